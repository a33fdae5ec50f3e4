use std::sync::atomic::{AtomicU64, Ordering};

use super::limits;
use crate::Fence;

/// Chooses the fence that a client proposes to all nodes of an attempt, so that they usually agree
/// at once. It is also the ticket of the call.
///
/// The fence that a single node grants has no influence: a node whose clock is far ahead returns
/// fences that the other nodes do not accept. They would ignore a proposal above these, and each
/// would choose another fence. The number in a refusal has influence unless it is far ahead.
#[derive(Debug)]
pub struct FenceProposals {
    agreed: AtomicU64,
    /// How far ahead of the wall clock a number may be.
    ahead_max_us: AtomicU64,
}

impl Default for FenceProposals {
    fn default() -> Self {
        let ahead_max_us = AtomicU64::new(limits::LEARNED_AHEAD_MAX_US);
        Self { agreed: AtomicU64::default(), ahead_max_us }
    }
}

impl FenceProposals {
    /// Returns the larger of the wall clock and the successor of the last agreed fence.
    ///
    /// Forgets a fence that is too far ahead of the wall clock, because nodes would reject a larger
    /// one: a majority agreed on it while a clock was wrong.
    pub fn propose(&self, wall_us: u64) -> Fence {
        let agreed = Fence::new(self.agreed.load(Ordering::Relaxed)).unwrap_or_default();
        if !self.believes(agreed, wall_us) {
            self.agreed.store(0, Ordering::Relaxed);
            return Fence::of_wall_us(wall_us);
        }
        Fence::of_wall_us(wall_us).max(agreed.next())
    }

    /// Records the number in a refusal, so that the next proposal exceeds the tickets in line.
    ///
    /// Ignores a number that is too far ahead of the wall clock: nodes would reject a larger one.
    pub fn learn_refusal(&self, number: Fence, wall_us: u64) {
        if self.believes(number, wall_us) {
            self.agreed.fetch_max(number.get(), Ordering::Relaxed);
        }
    }

    /// Records the fence on which a majority agreed, if it is larger than the recorded one.
    ///
    /// A fence below the proposal also replaces a larger recorded one: the nodes did not accept the
    /// proposal, so the recorded fence may be too far ahead for them.
    pub fn learn(&self, proposed: Fence, agreed: Fence) {
        if agreed < proposed {
            self.agreed.store(agreed.get(), Ordering::Relaxed);
        } else {
            self.agreed.fetch_max(agreed.get(), Ordering::Relaxed);
        }
    }

    /// Records that a majority rejects this ticket, whose number a node with a wrong clock told.
    /// From now on, numbers are believed only if they are at most half as far ahead.
    pub fn learn_rejection(&self, ticket: Fence, wall_us: u64) {
        let ahead_us = ticket.get().saturating_sub(Fence::of_wall_us(wall_us).get());
        self.ahead_max_us.fetch_min(ahead_us / 2, Ordering::Relaxed);
    }

    fn believes(&self, number: Fence, wall_us: u64) -> bool {
        let ahead_max_us = self.ahead_max_us.load(Ordering::Relaxed);
        number <= Fence::of_wall_us(wall_us).saturating_add(ahead_max_us)
    }
}
