//! Whether anybody listens to what is written.
//!
//! Building the commands for replicas and the append-only file costs a quarter of a plain SET, and so do two keyspace
//! events, also when the server then throws them away. They are left out while it is certain that nobody could hear them.
//!
//! Replication: the append-only file is off, and there is neither a replica nor a backlog for one to resume from. Whoever
//! wants to listen gets a snapshot first, which the server forks for, and that fork is heard of here before the next
//! command runs.
//!
//! Keyspace events: the server publishes none, and no other module is loaded that may have subscribed to them.

use quorlock_core::node::Monotonic;

/// How often the server's own figures are looked at while somebody may be listening, in microseconds.
const LOOK_EVERY_US: u64 = 1_000_000;

pub(crate) struct Audience {
    nobody_replicates: bool,
    look_at: Monotonic,
    /// Something was written of which the server's count of changes does not know.
    uncounted: bool,
    only_module: bool,
}

impl Audience {
    pub(crate) fn new(only_module: bool) -> Self {
        Self { nobody_replicates: false, look_at: Monotonic::default(), uncounted: false, only_module }
    }

    /// Something was written. Whether it is to be replicated.
    pub(crate) fn replicates(&mut self) -> bool {
        self.uncounted |= self.nobody_replicates;
        !self.nobody_replicates
    }

    /// Whether keyspace events are to be sent, when the server publishes some or none.
    pub(crate) fn hears_events(&self, server_publishes: bool) -> bool {
        server_publishes || !self.only_module
    }

    /// A snapshot is being made; whoever it is for will hear what comes after it.
    pub(crate) fn snapshot_begins(&mut self) {
        self.nobody_replicates = false;
    }

    /// Another module was loaded. Whether it is ever unloaded is of no importance.
    pub(crate) fn module_joins(&mut self) {
        self.only_module = false;
    }

    /// Whether to look who replicates, now.
    pub(crate) fn wants_to_look(&mut self, now: Monotonic) -> bool {
        let wants = !self.nobody_replicates && now >= self.look_at;
        if wants {
            self.look_at = now.plus_us(LOOK_EVERY_US);
        }
        wants
    }

    pub(crate) fn looked(&mut self, nobody_replicates: bool) {
        self.nobody_replicates = nobody_replicates;
    }

    /// Whether the server is to be told that the data changed, for its save points.
    pub(crate) fn take_uncounted(&mut self) -> bool {
        std::mem::take(&mut self.uncounted) && self.nobody_replicates
    }
}
