//! Whether writes must be propagated.

use super::{Listeners, Monotonic};

/// Knows whether replicas or the append-only file may receive what a node writes.
///
/// To propagate a write costs a quarter of a plain SET, also when the server then throws it away.
/// A write may be skipped only while it is certain that nothing receives it. Everything that may
/// attach a listener makes that uncertain; only the server's own figures make it certain again.
/// A replica that goes away does not: it may resume from the backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Propagation {
    listeners: Certainty,
    role: Role,
    check_at: Monotonic,
    other_modules: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Certainty {
    /// Replicas or an append-only file may receive what is written.
    Unknown,
    /// No replica, no backlog and no forked child. The append-only file is asked for each write.
    NoListener,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Master,
    Replica,
}

/// How often the server's figures are read while they may have changed for the better, in
/// microseconds.
const CHECK_INTERVAL_US: u64 = 1_000_000;

impl Propagation {
    /// Nothing is known yet.
    pub(super) fn new(other_modules: bool) -> Self {
        Self {
            listeners: Certainty::Unknown,
            role: Role::Master,
            check_at: Monotonic::default(),
            other_modules,
        }
    }

    /// Whether a write must be propagated to replicas, and to the append-only file if there is
    /// none of them.
    pub(super) fn is_needed(&self, append_only_file: bool) -> bool {
        self.listeners == Certainty::Unknown || append_only_file
    }

    /// Whether keyspace events must be sent.
    pub(super) fn notifies(&self, server_publishes: bool) -> bool {
        server_publishes || self.other_modules
    }

    /// Something happened that may attach a listener: a fork, a replica that came online, the
    /// loading of data.
    pub(super) fn doubt(&mut self) {
        self.listeners = Certainty::Unknown;
    }

    /// The server became a replica, whose own replicas hear what its master sends.
    pub(super) fn demote(&mut self) {
        self.role = Role::Replica;
        self.doubt();
    }

    /// The server became a master. Its backlog is active, and old peers may resume from it.
    pub(super) fn promote(&mut self) {
        self.role = Role::Master;
        self.doubt();
    }

    /// Another module was loaded, which may have subscribed to keyspace events.
    pub(super) fn module_loaded(&mut self) {
        self.other_modules = true;
    }

    /// Whether to read the server's figures now, and tell them to [`Propagation::learn`].
    pub(super) fn wants_check(&mut self, now: Monotonic) -> bool {
        let wants = self.listeners == Certainty::Unknown && self.role == Role::Master && now >= self.check_at;
        if wants {
            self.check_at = now.plus_us(CHECK_INTERVAL_US);
        }
        wants
    }

    /// The server's figures say this. They were read in this turn, after all that was done in it.
    pub(super) fn learn(&mut self, listeners: Listeners) {
        let Listeners { backlog, replicas, child } = listeners;
        if self.role == Role::Master && !backlog && !replicas && !child {
            self.listeners = Certainty::NoListener;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Listeners = Listeners { backlog: false, replicas: false, child: false };

    fn certain() -> Propagation {
        let mut propagation = Propagation::new(false);
        propagation.learn(NONE);
        assert!(!propagation.is_needed(false));
        propagation
    }

    #[test]
    fn unknown_means_propagate() {
        assert!(Propagation::new(false).is_needed(false));
    }

    #[test]
    fn every_possible_listener_is_propagated_to() {
        for listeners in [
            Listeners { backlog: true, ..NONE },
            Listeners { replicas: true, ..NONE },
            Listeners { child: true, ..NONE },
        ] {
            let mut propagation = Propagation::new(false);
            propagation.learn(listeners);
            assert!(propagation.is_needed(false), "{listeners:?}");
        }
        assert!(certain().is_needed(true), "an append-only file");
    }

    #[test]
    fn every_event_that_may_attach_a_listener_makes_it_unknown() {
        let events: [fn(&mut Propagation); 3] =
            [Propagation::doubt, Propagation::demote, Propagation::promote];
        for event in events {
            let mut propagation = certain();
            event(&mut propagation);
            assert!(propagation.is_needed(false));
        }
    }

    #[test]
    fn replica_learns_nothing_from_its_own_figures() {
        let mut propagation = certain();
        propagation.demote();
        assert!(!propagation.wants_check(Monotonic::from_us(10_000_000)));
        propagation.learn(NONE);
        assert!(propagation.is_needed(false), "before its first sync a replica has no backlog");
        propagation.promote();
        assert!(propagation.is_needed(false));
        assert!(propagation.wants_check(Monotonic::from_us(20_000_000)));
    }

    #[test]
    fn figures_are_read_once_a_second_while_they_matter() {
        let mut propagation = Propagation::new(false);
        assert!(propagation.wants_check(Monotonic::from_us(5)));
        assert!(!propagation.wants_check(Monotonic::from_us(1_000_004)));
        assert!(propagation.wants_check(Monotonic::from_us(1_000_005)));
        propagation.learn(NONE);
        assert!(!propagation.wants_check(Monotonic::from_us(9_000_000)));
    }
}
