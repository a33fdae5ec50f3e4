//! Tickets: the order of the holders and the waiters of a key.

use super::Token;
use super::fence_counters::FenceCounters;
use crate::Fence;

/// A place in that order: older ones come first. The same tickets give the same order on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// The `FENCE` of the request, or what the node chose without one. [`Fence::ZERO`] is the front
    /// of the queue, and the ticket of a holder that gave no `FENCE`.
    pub(super) ticket: Fence,
    pub(super) token: Token,
}

/// The ticket of a token that asks again: the larger one.
///
/// A token that once stood in front stays there, so that a late request does not move it back.
pub(super) fn later_ticket(stored: Fence, new: Fence) -> Fence {
    if stored == Fence::ZERO || new == Fence::ZERO { Fence::ZERO } else { stored.max(new) }
}

impl Rank {
    pub(super) fn new(ticket: Fence, token: &[u8]) -> Self {
        Self { ticket, token: Token::from_slice(token) }
    }

    /// Whether a holder is older. One without a ticket is older than every other client.
    pub(super) fn is_younger_than_holder(&self, ticket: Fence, token: &[u8]) -> bool {
        ticket == Fence::ZERO || (ticket, token) < (self.ticket, &self.token[..])
    }
}

impl FenceCounters {
    /// The largest ticket that the node accepts now: twice as far ahead as a proposed fence.
    ///
    /// After a restart a node reports fences up to [`Self::ceiling`], and a client that hears one
    /// answers with a larger one, by a clock that may differ as well.
    pub(super) fn ticket_ceiling(&self, wall_us: u64) -> Fence {
        self.ceiling(wall_us).saturating_add(self.max_clock_skew_us)
    }
}
