//! Whether anybody listens to what is replicated.
//!
//! Building the commands for replicas and the append-only file costs a quarter of a plain SET, also when the server then
//! throws them away. They are left out while it is certain that nobody could hear them: the append-only file is off, and
//! there is neither a replica nor a backlog for one to resume from. Whoever wants to listen gets a snapshot first, which
//! the server forks for, and that fork is heard of here before the next command runs.

use quorlock_core::node::Monotonic;

/// How often the server's own figures are looked at while somebody may be listening, in microseconds.
const LOOK_EVERY_US: u64 = 1_000_000;

pub(crate) struct Replication {
    nobody: bool,
    look_at: Monotonic,
    /// Something was written of which the server's count of changes does not know.
    uncounted: bool,
}

impl Replication {
    pub(crate) fn new() -> Self {
        Self { nobody: false, look_at: Monotonic::default(), uncounted: false }
    }

    /// Something was written. Whether it is to be replicated.
    pub(crate) fn write(&mut self) -> bool {
        self.uncounted |= self.nobody;
        !self.nobody
    }

    /// A snapshot is being made; whoever it is for will hear what comes after it.
    pub(crate) fn somebody_may_listen(&mut self) {
        self.nobody = false;
    }

    /// Whether to look who listens, now.
    pub(crate) fn wants_to_look(&mut self, now: Monotonic) -> bool {
        let wants = !self.nobody && now >= self.look_at;
        if wants {
            self.look_at = now.plus_us(LOOK_EVERY_US);
        }
        wants
    }

    pub(crate) fn looked(&mut self, nobody: bool) {
        self.nobody = nobody;
    }

    /// Whether the server is to be told that the data changed, for its save points.
    pub(crate) fn take_uncounted(&mut self) -> bool {
        std::mem::take(&mut self.uncounted) && self.nobody
    }
}
