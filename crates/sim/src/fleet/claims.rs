//! Which token had, or waited for, which key on which node, and when: what the checkers compare
//! the words of the clients with.

use std::collections::HashMap;

use quorlock_core::client::Token;

use super::clock::Ns;

/// The tokens of all nodes.
pub(super) struct Claims {
    /// By node and key.
    places: Vec<Vec<Vec<Claim>>>,
    tokens: HashMap<Token, Owner>,
}

/// What is known of a token.
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
/// How much later than its RELEASE an ACQUIRE may arrive and still count as overtaken by it.
const LATE: Ns = 2 * super::clock::SECOND;
/// No attempt holds a node for longer.
const LONG: Ns = 100 * super::clock::MS;

impl Claims {
    pub(super) fn new(nodes: usize, keys: usize) -> Self {
        Self { places: vec![vec![Vec::new(); keys]; nodes], tokens: HashMap::new() }
    }

    /// The token was made for this call.
    pub(super) fn belongs(&mut self, token: Token, call: u64) {
        let owner = Owner { call, released_at: None, gone_at: None };
        self.tokens.entry(token).or_insert(owner);
    }

    /// The holder of the lock has released it.
    pub(super) fn released(&mut self, token: Token, now: Ns) {
        if let Some(owner) = self.tokens.get_mut(&token) {
            owner.released_at = Some(now);
        }
    }

    /// Every node that was asked for the lock has answered its RELEASE, or this is not known.
    pub(super) fn gone(&mut self, token: Token, at: Option<Ns>) {
        if let Some(owner) = self.tokens.get_mut(&token) {
            owner.gone_at = at;
        }
    }

    /// When the holder released the lock of this token, if it has.
    pub(super) fn released_at(&self, token: Token) -> Option<Ns> {
        self.tokens.get(&token)?.released_at
    }

    /// A token on a key of a node that has answered its RELEASE, and the call that it belongs to.
    pub(super) fn left_behind(&self, node: usize, key: usize, now: Ns, age: Ns) -> Option<(Token, u64)> {
        self.at(node, key, now).find_map(|claim| {
            let owner = self.tokens.get(&claim.token)?;
            let is_old = claim.kind == Kind::Lease && claim.since + age < now;
            // A request that was in flight when its connection was reset may arrive at any time.
            let is_left = owner.gone_at.is_some_and(|at| claim.since < at + LATE);
            (is_old && is_left).then_some((claim.token, owner.call))
        })
    }

    /// The call that a token was made for.
    pub(super) fn call_of(&self, token: Token) -> Option<u64> {
        self.tokens.get(&token).map(|owner| owner.call)
    }

    /// A token begins to hold a key, or to wait for it.
    pub(super) fn begin(&mut self, node: usize, key: usize, claim: Claim) {
        let now = claim.since;
        let place = &mut self.places[node][key];
        if place.len() > FORGET_BEYOND {
            place.retain(|claim| claim.until.saturating_add(KEPT) > now);
        }
        place.push(claim);
    }

    /// The claim of a token ends, or is to end at another time.
    pub(super) fn end(&mut self, node: usize, key: usize, token: Token, kind: Kind, now: Ns, at: Ns) {
        let live = |claim: &&mut Claim| claim.token == token && claim.kind == kind && claim.until > now;
        if let Some(claim) = self.places[node][key].iter_mut().rev().find(live) {
            claim.until = at;
        }
    }

    /// The lease of a token lasts until this time at least.
    pub(super) fn extend(&mut self, node: usize, key: usize, token: Token, now: Ns, at: Ns) {
        let live =
            |claim: &&mut Claim| claim.token == token && claim.kind != Kind::Waiter && claim.until > now;
        if let Some(claim) = self.places[node][key].iter_mut().rev().find(live) {
            claim.kind = Kind::Lease;
            claim.until = claim.until.max(at);
        }
    }

    /// All claims on a node end.
    pub(super) fn clear(&mut self, node: usize, now: Ns) {
        for claim in self.places[node].iter_mut().flatten() {
            claim.until = claim.until.min(now);
        }
    }

    /// The claims on a key of a node now.
    pub(super) fn at(&self, node: usize, key: usize, now: Ns) -> impl Iterator<Item = Claim> {
        let claims = self.places[node][key].iter().copied();
        claims.filter(move |claim| claim.since <= now && now < claim.until)
    }

    /// Whether another's lease, or a foreign string, was on a key for long between two times.
    pub(super) fn was_orphan(&self, node: usize, key: usize, call: u64, (from, to): (Ns, Ns)) -> bool {
        let is_orphan = |claim: &Claim| {
            let time = claim.until.min(to).saturating_sub(claim.since.max(from));
            claim.kind != Kind::Waiter && self.call_of(claim.token) != Some(call) && time > LONG
        };
        self.places[node][key].iter().any(is_orphan)
    }

    /// Whether tokens of others had claims on one of these keys on so many nodes that fewer than
    /// `majority` were left: on each node at some time from the last look at it until `to`. A look at
    /// several nodes is no snapshot, so these claims need not have been there at the same instant.
    pub(super) fn were_taken(
        &self,
        keys: &[usize],
        (looks, to): (&[Ns], Ns),
        majority: usize,
        is_other: impl Fn(usize, Token) -> bool,
    ) -> bool {
        let is_taken = |&node: &usize| {
            let others =
                |claim: &Claim| claim.since <= to && claim.until > looks[node] && is_other(node, claim.token);
            keys.iter().any(|&key| self.places[node][key].iter().any(others))
        };
        let taken = (0..self.places.len()).filter(is_taken).count();
        self.places.len() - taken < majority
    }
}
