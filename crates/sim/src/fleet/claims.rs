//! Which token had, or waited for, which key on which node, and when: what the checkers compare
//! the words of the clients with.

use std::collections::HashMap;

use quorlock_core::client::Token;

use super::clock::Ns;

/// The tokens of all nodes.
pub(super) struct Claims {
    /// By node and key.
    places: Vec<Vec<Vec<Claim>>>,
    /// The call that each token belongs to.
    calls: HashMap<Token, u64>,
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
/// No attempt holds a node for longer.
const LONG: Ns = 100 * super::clock::MS;

impl Claims {
    pub(super) fn new(nodes: usize, keys: usize) -> Self {
        Self { places: vec![vec![Vec::new(); keys]; nodes], calls: HashMap::new() }
    }

    /// The token was made for this call.
    pub(super) fn belongs(&mut self, token: Token, call: u64) {
        self.calls.insert(token, call);
    }

    /// The call that a token was made for.
    pub(super) fn call_of(&self, token: Token) -> Option<u64> {
        self.calls.get(&token).copied()
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

    /// Whether between two times others than `call` had claims on one of these keys on so many nodes
    /// that fewer than `majority` were left. A look at several nodes is no snapshot, so these claims
    /// need not have been there at the same instant.
    pub(super) fn were_taken(
        &self,
        keys: &[usize],
        call: u64,
        (from, to): (Ns, Ns),
        majority: usize,
    ) -> bool {
        let others = |claim: &Claim| {
            self.call_of(claim.token) != Some(call) && claim.since <= to && claim.until > from
        };
        let is_taken = |node: &&Vec<Vec<Claim>>| keys.iter().any(|&key| node[key].iter().any(others));
        let taken = self.places.iter().filter(is_taken).count();
        self.places.len() - taken < majority
    }
}
