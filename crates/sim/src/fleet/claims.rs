//! The tokens that held each key on each node, or waited for it, with their times. The checkers
//! compare them with the reports of clients.

use std::collections::HashMap;
use std::fmt;

use quorlock_core::client::{Mode, Token};

use super::clock::{MS, Ns, SECOND};

/// Identifies a state machine among those of all processes. A lock keeps the number of its call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MachineId {
    pub(super) process: usize,
    pub(super) number: u64,
}

pub(super) struct Claims {
    /// The claims by node and key.
    places: Vec<Vec<Vec<Claim>>>,
    tokens: HashMap<Token, TokenRecord>,
}

#[derive(Clone, Copy, Debug)]
struct TokenRecord {
    /// The call for which the token was made.
    call: MachineId,
    /// When the holder released the lock.
    released_at: Option<Ns>,
    /// When its release was over on all nodes that may have had it; `None` if that is not certain.
    gone_at: Option<Ns>,
}

/// A time for which a token held a key on a node, or waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) token: Token,
    pub(super) kind: ClaimKind,
    /// Whether other tokens may share the key with this one.
    pub(super) mode: Mode,
    pub(super) since: Ns,
    pub(super) until: Ns,
    /// When the token last asked for the key.
    pub(super) asked_at: Ns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimKind {
    Lease,
    Waiter,
    Foreign,
}

/// Claims that ended longer ago than this may be forgotten.
const KEPT: Ns = 30 * SECOND;
/// Number of claims on a key of a node beyond which old claims are forgotten.
const FORGET_BEYOND: usize = 256;
/// A lease that begins at least this long after its token was gone is due to a late ACQUIRE.
const LATE: Ns = 2 * SECOND;
/// An attempt that fails holds a node for less than this, unless messages are slow.
const ATTEMPT_MAX: Ns = 100 * MS;

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}/{}", self.process, self.number)
    }
}

impl Claim {
    pub(super) fn new(kind: ClaimKind, (token, mode): (Token, Mode), now: Ns, until: Ns) -> Self {
        Self { token, kind, mode, since: now, until, asked_at: now }
    }
}

impl Claims {
    pub(super) fn new(nodes: usize, keys: usize) -> Self {
        Self { places: vec![vec![Vec::new(); keys]; nodes], tokens: HashMap::new() }
    }

    pub(super) fn assign(&mut self, token: Token, call: MachineId) {
        let record = TokenRecord { call, released_at: None, gone_at: None };
        self.tokens.entry(token).or_insert(record);
    }

    pub(super) fn record_released(&mut self, token: Token, now: Ns) {
        if let Some(record) = self.tokens.get_mut(&token) {
            record.released_at = Some(now);
        }
    }

    pub(super) fn record_gone(&mut self, token: Token, at: Option<Ns>) {
        if let Some(record) = self.tokens.get_mut(&token) {
            record.gone_at = at;
        }
    }

    pub(super) fn released_at(&self, token: Token) -> Option<Ns> {
        self.tokens.get(&token)?.released_at
    }

    /// Returns a token that has held a key for over `age` and whose release is over, with its call.
    pub(super) fn left_behind(
        &self,
        node: usize,
        key: usize,
        now: Ns,
        age: Ns,
    ) -> Option<(Token, MachineId)> {
        self.at(node, key, now).find_map(|claim| {
            let record = self.tokens.get(&claim.token)?;
            let is_old = claim.kind == ClaimKind::Lease && claim.since + age < now;
            // An ACQUIRE in flight may arrive at any time after its connection was reset.
            let is_left = record.gone_at.is_some_and(|at| claim.since < at + LATE);
            (is_old && is_left).then_some((claim.token, record.call))
        })
    }

    pub(super) fn call_of(&self, token: Token) -> Option<MachineId> {
        self.tokens.get(&token).map(|record| record.call)
    }

    pub(super) fn begin(&mut self, node: usize, key: usize, claim: Claim) {
        let now = claim.since;
        let place = &mut self.places[node][key];
        if place.len() > FORGET_BEYOND {
            place.retain(|claim| claim.until.saturating_add(KEPT) > now);
        }
        place.push(claim);
    }

    /// Sets the end of a token's claim to `at`, if the claim has not ended at `now`.
    pub(super) fn end(
        &mut self,
        node: usize,
        key: usize,
        token: Token,
        kind: ClaimKind,
        now: Ns,
        at: Ns,
    ) {
        let live =
            |claim: &&mut Claim| claim.token == token && claim.kind == kind && claim.until > now;
        if let Some(claim) = self.places[node][key].iter_mut().rev().find(live) {
            claim.until = at;
        }
    }

    /// Records that a token that holds a key has asked for it again.
    pub(super) fn ask_again(&mut self, node: usize, key: usize, token: Token, now: Ns) {
        let mut claims = self.places[node][key].iter_mut().rev();
        if let Some(claim) = claims.find(|claim| claim.token == token) {
            claim.asked_at = now;
        }
    }

    /// Moves the end of a lease to `at` if that is later. A shared `mode` makes the lease shared.
    /// Returns whether there is such a lease, or a foreign string, which becomes one.
    pub(super) fn extend(
        &mut self,
        node: usize,
        key: usize,
        (token, mode): (Token, Mode),
        now: Ns,
        at: Ns,
    ) -> bool {
        let live = |claim: &&mut Claim| {
            claim.token == token && claim.kind != ClaimKind::Waiter && claim.until > now
        };
        let claim = self.places[node][key].iter_mut().rev().find(live);
        let Some(claim) = claim else { return false };
        claim.kind = ClaimKind::Lease;
        let until = claim.until.max(at);
        claim.until = until;
        if mode == Mode::Shared && claim.mode != mode {
            // The lease was exclusive until now: a new claim begins.
            claim.until = now;
            let shared = Claim { mode, since: now, until, ..*claim };
            self.places[node][key].push(shared);
        }
        true
    }

    pub(super) fn end_all(&mut self, node: usize, now: Ns) {
        for claim in self.places[node].iter_mut().flatten() {
            claim.until = claim.until.min(now);
        }
    }

    /// Returns since when a call has been in line for a key of a node, or has held it there.
    pub(super) fn in_line_since(
        &self,
        node: usize,
        key: usize,
        call: MachineId,
        now: Ns,
    ) -> Option<Ns> {
        let is_its = |claim: &Claim| self.call_of(claim.token) == Some(call);
        let claim = self.at(node, key, now).find(is_its)?;
        // A call that is granted a key has waited for it, perhaps.
        let is_before = |other: &&Claim| {
            claim.kind == ClaimKind::Lease
                && other.kind == ClaimKind::Waiter
                && is_its(other)
                && other.until == claim.since
        };
        let waiter = self.places[node][key].iter().rev().find(is_before);
        // A call that was granted before it stood in line tells the node its ticket when it asks
        // again.
        Some(waiter.map_or(claim.asked_at, |waiter| waiter.since))
    }

    /// Returns the present claims on a key of a node.
    pub(super) fn at(&self, node: usize, key: usize, now: Ns) -> impl Iterator<Item = Claim> {
        let claims = self.places[node][key].iter().copied();
        claims.filter(move |claim| claim.since <= now && now < claim.until)
    }

    /// Returns whether a lease of another call, or a foreign string, was on a key for longer than
    /// an attempt lasts, between two times. If `adds_up`, the sum of their times counts.
    pub(super) fn was_held_by_another(
        &self,
        node: usize,
        key: usize,
        call: MachineId,
        (from, to): (Ns, Ns),
        adds_up: bool,
    ) -> bool {
        let is_other = |claim: &&Claim| {
            claim.kind != ClaimKind::Waiter && self.call_of(claim.token) != Some(call)
        };
        let time = |claim: &Claim| claim.until.min(to).saturating_sub(claim.since.max(from));
        let mut others = self.places[node][key].iter().filter(is_other).map(time);
        if adds_up {
            others.sum::<Ns>() > ATTEMPT_MAX
        } else {
            others.any(|time| time > ATTEMPT_MAX)
        }
    }

    /// Returns whether a claim that `matches` accepts was on a key of any node between two times.
    pub(super) fn has_any_between(
        &self,
        key: usize,
        (from, to): (Ns, Ns),
        matches: impl Fn(&Claim) -> bool,
    ) -> bool {
        let was = |claim: &Claim| claim.since <= to && claim.until > from && matches(claim);
        self.places.iter().any(|keys| keys[key].iter().any(was))
    }

    /// Returns whether claims of others on these keys left fewer than `majority` nodes free.
    ///
    /// A claim counts if it existed at any time from the last request to its node until `to`. The
    /// nodes are not asked at one instant, so the claims need not have existed at the same instant.
    pub(super) fn were_taken(
        &self,
        keys: &[usize],
        (asked_at, to): (&[Ns], Ns),
        majority: usize,
        is_other: impl Fn(usize, &Claim) -> bool,
    ) -> bool {
        let is_taken = |&node: &usize| {
            let others = |claim: &Claim| {
                claim.since <= to && claim.until > asked_at[node] && is_other(node, claim)
            };
            keys.iter().any(|&key| self.places[node][key].iter().any(others))
        };
        let taken = (0..self.places.len()).filter(is_taken).count();
        self.places.len() - taken < majority
    }
}
