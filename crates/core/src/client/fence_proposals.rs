use std::sync::atomic::{AtomicU64, Ordering};

use crate::Fence;

/// The fence that a client proposes next: the same to every node of an attempt, so that they
/// usually agree at once.
///
/// A single node's answer is not remembered. A node whose clock is far ahead answers with fences
/// that the others do not accept, and a client that proposed above those would make every node
/// answer with a number of its own, each time.
#[derive(Debug, Default)]
pub struct FenceProposals {
    agreed: AtomicU64,
}

impl FenceProposals {
    /// The wall clock, or one above the fence that nodes last agreed on, whichever is larger.
    pub fn propose(&self, wall_us: u64) -> Fence {
        let agreed = Fence::new(self.agreed.load(Ordering::Relaxed)).unwrap_or_default();
        Fence::of_wall_us(wall_us).max(agreed.next())
    }

    /// Learns what a majority of the nodes made of a proposal. When they agreed on less, they did
    /// not accept it.
    pub fn learn(&self, proposed: Fence, agreed: Fence) {
        if agreed < proposed {
            self.agreed.store(agreed.get(), Ordering::Relaxed);
        } else {
            self.agreed.fetch_max(agreed.get(), Ordering::Relaxed);
        }
    }
}
