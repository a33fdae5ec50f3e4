//! The tokens that had, or waited for, each key on each node, with their times. Checkers compare
//! them with what clients report.

use std::collections::HashMap;

use quorlock_core::client::{Mode, Token};

use super::clock::Ns;

/// The tokens of all nodes.
pub(super) struct Claims {
    /// By node and key.
    places: Vec<Vec<Vec<Claim>>>,
    tokens: HashMap<Token, Owner>,
}

/// What is known about a token.
#[derive(Clone, Copy, Debug)]
struct Owner {
    call: u64,
    /// When the holder released the lock.
    released_at: Option<Ns>,
    /// When every node that was asked for the lock had answered its RELEASE.
    gone_at: Option<Ns>,
}

/// A token on a key of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) token: Token,
    pub(super) kind: Kind,
    /// Whether others may share the key with it.
    pub(super) mode: Mode,
    pub(super) since: Ns,
    pub(super) until: Ns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lease,
    Waiter,
    Foreign,
}

/// Claims that ended longer ago than this are forgotten.
const KEPT: Ns = 30 * super::clock::SECOND;
const FORGET_BEYOND: usize = 256;
/// Delay by which an ACQUIRE may arrive after its RELEASE and still count as overtaken by it.
const LATE: Ns = 2 * super::clock::SECOND;
/// An attempt holds a node for less than this.
const LONG: Ns = 100 * super::clock::MS;

impl Claims {
    pub(super) fn new(nodes: usize, keys: usize) -> Self {
        Self { places: vec![vec![Vec::new(); keys]; nodes], tokens: HashMap::new() }
    }

    /// Records the call for which a token was made.
    pub(super) fn belongs(&mut self, token: Token, call: u64) {
        let owner = Owner { call, released_at: None, gone_at: None };
        self.tokens.entry(token).or_insert(owner);
    }

    /// Records that the holder has released the lock.
    pub(super) fn released(&mut self, token: Token, now: Ns) {
        if let Some(owner) = self.tokens.get_mut(&token) {
            owner.released_at = Some(now);
        }
    }

    /// Records that every node that was asked for the lock has answered its RELEASE, or that this
    /// is unknown.
    pub(super) fn gone(&mut self, token: Token, at: Option<Ns>) {
        if let Some(owner) = self.tokens.get_mut(&token) {
            owner.gone_at = at;
        }
    }

    /// Returns when the holder released the lock of this token.
    pub(super) fn released_at(&self, token: Token) -> Option<Ns> {
        self.tokens.get(&token)?.released_at
    }

    /// Returns a token on a key of a node that has answered its RELEASE, and the call of the token.
    pub(super) fn left_behind(
        &self,
        node: usize,
        key: usize,
        now: Ns,
        age: Ns,
    ) -> Option<(Token, u64)> {
        self.at(node, key, now).find_map(|claim| {
            let owner = self.tokens.get(&claim.token)?;
            let is_old = claim.kind == Kind::Lease && claim.since + age < now;
            // A request in flight may arrive at any time after its connection was reset.
            let is_left = owner.gone_at.is_some_and(|at| claim.since < at + LATE);
            (is_old && is_left).then_some((claim.token, owner.call))
        })
    }

    /// Returns the call for which a token was made.
    pub(super) fn call_of(&self, token: Token) -> Option<u64> {
        self.tokens.get(&token).map(|owner| owner.call)
    }

    /// Records that a token begins to hold a key, or to wait for it.
    pub(super) fn begin(&mut self, node: usize, key: usize, claim: Claim) {
        let now = claim.since;
        let place = &mut self.places[node][key];
        if place.len() > FORGET_BEYOND {
            place.retain(|claim| claim.until.saturating_add(KEPT) > now);
        }
        place.push(claim);
    }

    /// Records when the claim of a token ends, now or at another time than before.
    pub(super) fn end(
        &mut self,
        node: usize,
        key: usize,
        token: Token,
        kind: Kind,
        now: Ns,
        at: Ns,
    ) {
        let live =
            |claim: &&mut Claim| claim.token == token && claim.kind == kind && claim.until > now;
        if let Some(claim) = self.places[node][key].iter_mut().rev().find(live) {
            claim.until = at;
        }
    }

    /// Records the minimal end of a token's lease, and that it is shared if the mode says so.
    pub(super) fn extend(
        &mut self,
        node: usize,
        key: usize,
        (token, mode): (Token, Mode),
        now: Ns,
        at: Ns,
    ) {
        let live = |claim: &&mut Claim| {
            claim.token == token && claim.kind != Kind::Waiter && claim.until > now
        };
        if let Some(claim) = self.places[node][key].iter_mut().rev().find(live) {
            claim.kind = Kind::Lease;
            let until = claim.until.max(at);
            claim.until = until;
            if mode == Mode::Shared && claim.mode != mode {
                // Until now it excluded others.
                claim.until = now;
                let shared = Claim { mode, since: now, until, ..*claim };
                self.places[node][key].push(shared);
            }
        }
    }

    /// Ends all claims on a node.
    pub(super) fn clear(&mut self, node: usize, now: Ns) {
        for claim in self.places[node].iter_mut().flatten() {
            claim.until = claim.until.min(now);
        }
    }

    /// Returns the present claims on a key of a node.
    pub(super) fn at(&self, node: usize, key: usize, now: Ns) -> impl Iterator<Item = Claim> {
        let claims = self.places[node][key].iter().copied();
        claims.filter(move |claim| claim.since <= now && now < claim.until)
    }

    /// Returns whether another token's lease, or a foreign string, was on a key for long between
    /// two times, or with `in_all` several of them together.
    pub(super) fn was_orphan(
        &self,
        node: usize,
        key: usize,
        call: u64,
        (from, to): (Ns, Ns),
        in_all: bool,
    ) -> bool {
        let is_other =
            |claim: &&Claim| claim.kind != Kind::Waiter && self.call_of(claim.token) != Some(call);
        let time = |claim: &Claim| claim.until.min(to).saturating_sub(claim.since.max(from));
        let mut others = self.places[node][key].iter().filter(is_other).map(time);
        if in_all { others.sum::<Ns>() > LONG } else { others.any(|time| time > LONG) }
    }

    /// Returns whether a claim of this kind was on a key of any node between two times.
    pub(super) fn any_was(
        &self,
        key: usize,
        (from, to): (Ns, Ns),
        is: impl Fn(&Claim) -> bool,
    ) -> bool {
        let was = |claim: &Claim| claim.since <= to && claim.until > from && is(claim);
        self.places.iter().any(|keys| keys[key].iter().any(was))
    }

    /// Returns whether fewer than `majority` nodes were without a claim of other tokens on one of
    /// these keys.
    ///
    /// A claim on a node counts at any time from the last request there until `to`. Requests to
    /// several nodes are no snapshot, so these claims need not exist at the same instant.
    pub(super) fn were_taken(
        &self,
        keys: &[usize],
        (looks, to): (&[Ns], Ns),
        majority: usize,
        is_other: impl Fn(usize, &Claim) -> bool,
    ) -> bool {
        let is_taken = |&node: &usize| {
            let others = |claim: &Claim| {
                claim.since <= to && claim.until > looks[node] && is_other(node, claim)
            };
            keys.iter().any(|&key| self.places[node][key].iter().any(others))
        };
        let taken = (0..self.places.len()).filter(is_taken).count();
        self.places.len() - taken < majority
    }
}
