use crate::Fence;

/// The fence that a client proposes next: the same to every node of an attempt, so that they usually agree at once.
///
/// What a single node answers is not remembered. One whose clock is far ahead answers fences that the others do not
/// believe, and who proposed above those would have every node give a number of its own, each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    agreed: Fence,
}

impl Hints {
    /// The wall clock, or one above the fence that nodes last agreed on, whichever is larger.
    pub fn propose(&self, wall_us: u64) -> Fence {
        Fence::of_wall_us(wall_us).max(self.agreed.next())
    }

    /// Learns what a majority of the nodes made of a proposal. When they agreed on less, they did not believe it.
    pub fn learn(&mut self, proposed: Fence, agreed: Fence) {
        self.agreed = if agreed < proposed { agreed } else { agreed.max(self.agreed) };
    }
}
