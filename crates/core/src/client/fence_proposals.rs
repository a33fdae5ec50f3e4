use std::sync::atomic::{AtomicU64, Ordering};

use super::limits;
use crate::Fence;

/// Chooses the fence that a client proposes to all nodes of an attempt, so that they usually agree
/// at once.
///
/// The fence that a single node grants has no influence: a node whose clock is far ahead returns
/// fences that the other nodes do not accept. They would ignore a proposal above these, and each
/// would choose another fence. The number in a refusal has influence unless it is far ahead.
#[derive(Debug, Default)]
pub struct FenceProposals {
    agreed: AtomicU64,
}

impl FenceProposals {
    /// Returns the larger of the wall clock and the successor of the last agreed fence.
    pub fn propose(&self, wall_us: u64) -> Fence {
        let agreed = Fence::new(self.agreed.load(Ordering::Relaxed)).unwrap_or_default();
        Fence::of_wall_us(wall_us).max(agreed.next())
    }

    /// Records the number in a refusal, so that the next proposal exceeds the tickets in line.
    ///
    /// Ignores a number that is too far ahead of the wall clock: nodes would reject a larger one.
    pub fn learn_refusal(&self, number: Fence, wall_us: u64) {
        if number <= Fence::of_wall_us(wall_us).saturating_add(limits::LEARNED_AHEAD_MAX_US) {
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

    /// Forgets the fence that made this ticket too large for a majority of the nodes: a clock was
    /// wrong when they agreed on it, or when a node told it.
    pub fn forget(&self, rejected: Fence) {
        let is_too_large = |agreed| Fence::new(agreed).is_some_and(|it| it.next() >= rejected);
        let forgotten = |agreed| is_too_large(agreed).then_some(0);
        let _ = self.agreed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, forgotten);
    }
}
