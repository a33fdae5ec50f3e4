use crate::Fence;

/// The fence that a client proposes next: the same to every node of an attempt, so that they usually agree at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints {
    largest_seen: Fence,
}

impl Hints {
    /// The wall clock, or one above the largest fence this client has seen, whichever is larger.
    pub fn propose(&self, wall_us: u64) -> Fence {
        Fence::of_wall_us(wall_us).max(self.largest_seen.next())
    }

    /// Remembers a fence that a node answered.
    pub fn saw(&mut self, fence: Fence) {
        self.largest_seen = self.largest_seen.max(fence);
    }
}
