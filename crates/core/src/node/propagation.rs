//! Whether a change is propagated to replicas and the append-only file. [`Change`] says what is
//! sent.

use super::{Author, Change, Keyspace, Listeners, Monotonic, Node};

/// Tracks whether replicas or the append-only file may receive what a node writes.
///
/// Propagating a write costs a quarter of a plain SET, even if the server then discards it. A write
/// may be skipped only while it is certain that no listener receives it. Every event that may
/// attach a listener ends that certainty, and only the server's own report restores it. A replica
/// that leaves does not: it may resume from the backlog.
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
    /// No append-only file, no replica, no backlog and no forked child.
    NoListener,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Master,
    Replica,
}

/// How often to read the server's report while listeners are unknown, in microseconds.
const CHECK_INTERVAL_US: u64 = 1_000_000;

impl Node {
    /// Propagates a change of a key, invalidates caches, and sends keyspace events.
    pub(super) fn publish<K: Keyspace>(
        &self,
        keyspace: &mut K,
        key: &K::Name,
        change: Change<'_, K::Name>,
        author: Author,
    ) {
        if self.propagation.is_needed() {
            keyspace.propagate(key, change);
        } else {
            keyspace.count_change();
        }
        keyspace.invalidate(key, author);
        if self.propagation.notifies(keyspace.publishes_events()) {
            keyspace.notify(key, change);
        }
    }
}

impl Propagation {
    /// Starts with listeners unknown.
    pub(super) fn new(other_modules: bool) -> Self {
        Self {
            listeners: Certainty::Unknown,
            role: Role::Master,
            check_at: Monotonic::default(),
            other_modules,
        }
    }

    /// Whether a write must be propagated.
    pub(super) fn is_needed(&self) -> bool {
        self.listeners == Certainty::Unknown
    }

    /// Whether keyspace events must be sent.
    pub(super) fn notifies(&self, server_publishes: bool) -> bool {
        server_publishes || self.other_modules
    }

    /// Records an event that may attach a listener.
    ///
    /// That is a fork, a replica that came online, an append-only file that was switched on, or the
    /// loading of data.
    pub(super) fn doubt(&mut self) {
        self.listeners = Certainty::Unknown;
    }

    /// The server became a replica. Its own replicas receive what its master sends.
    pub(super) fn demote(&mut self) {
        self.role = Role::Replica;
        self.doubt();
    }

    /// The server became a master. Its backlog is active, and former peers may resume from it.
    pub(super) fn promote(&mut self) {
        self.role = Role::Master;
        self.doubt();
    }

    /// Another module was loaded, which may have subscribed to keyspace events.
    pub(super) fn module_loaded(&mut self) {
        self.other_modules = true;
    }

    /// Whether to read the server's report now, and pass it to [`Propagation::learn`].
    pub(super) fn needs_check(&mut self, now: Monotonic) -> bool {
        let wants = self.listeners == Certainty::Unknown
            && self.role == Role::Master
            && now >= self.check_at;
        if wants {
            self.check_at = now.plus_us(CHECK_INTERVAL_US);
        }
        wants
    }

    /// Records the server's report, read in this turn after all other work of the turn.
    pub(super) fn learn(&mut self, listeners: Listeners) {
        let Listeners { append_only_file, backlog, replicas, child } = listeners;
        let any = append_only_file || backlog || replicas || child;
        if self.role == Role::Master && !any {
            self.listeners = Certainty::NoListener;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONE: Listeners =
        Listeners { append_only_file: false, backlog: false, replicas: false, child: false };

    fn certain() -> Propagation {
        let mut propagation = Propagation::new(false);
        propagation.learn(NONE);
        assert!(!propagation.is_needed());
        propagation
    }

    #[test]
    fn unknown_means_propagate() {
        assert!(Propagation::new(false).is_needed());
    }

    #[test]
    fn every_possible_listener_is_propagated_to() {
        for listeners in [
            Listeners { append_only_file: true, ..NONE },
            Listeners { backlog: true, ..NONE },
            Listeners { replicas: true, ..NONE },
            Listeners { child: true, ..NONE },
        ] {
            let mut propagation = Propagation::new(false);
            propagation.learn(listeners);
            assert!(propagation.is_needed(), "{listeners:?}");
        }
    }

    #[test]
    fn every_event_that_may_attach_a_listener_makes_it_unknown() {
        let events: [fn(&mut Propagation); 3] =
            [Propagation::doubt, Propagation::demote, Propagation::promote];
        for event in events {
            let mut propagation = certain();
            event(&mut propagation);
            assert!(propagation.is_needed());
        }
    }

    #[test]
    fn replica_learns_nothing_from_its_own_figures() {
        let mut propagation = certain();
        propagation.demote();
        assert!(!propagation.needs_check(Monotonic::from_us(10_000_000)));
        propagation.learn(NONE);
        assert!(propagation.is_needed(), "before its first sync a replica has no backlog");
        propagation.promote();
        assert!(propagation.is_needed());
        assert!(propagation.needs_check(Monotonic::from_us(20_000_000)));
    }

    #[test]
    fn figures_are_read_once_a_second_while_they_matter() {
        let mut propagation = Propagation::new(false);
        assert!(propagation.needs_check(Monotonic::from_us(5)));
        assert!(!propagation.needs_check(Monotonic::from_us(1_000_004)));
        assert!(propagation.needs_check(Monotonic::from_us(1_000_005)));
        propagation.learn(NONE);
        assert!(!propagation.needs_check(Monotonic::from_us(9_000_000)));
    }

    /// A server, reduced to what decides who receives its writes.
    #[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
    #[derive(Clone, Copy, Debug, Default)]
    struct Server {
        replica: bool,
        backlog: bool,
        replicas: u8,
        child: bool,
        append_only_file: bool,
    }

    /// What happens to a server.
    #[derive(Clone, Copy, Debug)]
    enum Happening {
        FullSyncBegins,
        FullSyncEnds,
        PartialSync,
        ReplicaLeaves,
        BacklogExpires,
        Demoted,
        Promoted,
        Loaded { backlog: bool },
        AppendOnlyFile { on: bool },
        SnapshotBegins,
        SnapshotEnds,
        Check,
        Write,
    }

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            1 => Just(Happening::FullSyncBegins),
            1 => Just(Happening::FullSyncEnds),
            1 => Just(Happening::PartialSync),
            1 => Just(Happening::ReplicaLeaves),
            2 => Just(Happening::BacklogExpires),
            1 => Just(Happening::Demoted),
            1 => Just(Happening::Promoted),
            1 => any::<bool>().prop_map(|backlog| Happening::Loaded { backlog }),
            1 => any::<bool>().prop_map(|on| Happening::AppendOnlyFile { on }),
            1 => Just(Happening::SnapshotBegins),
            1 => Just(Happening::SnapshotEnds),
            4 => Just(Happening::Check),
            4 => Just(Happening::Write),
        ]
    }

    impl Server {
        /// Changes the server, and reports to the module what a real server would.
        fn live(&mut self, happening: Happening, propagation: &mut Propagation) {
            match happening {
                Happening::FullSyncBegins => {
                    (self.backlog, self.child) = (true, true);
                    propagation.doubt();
                }
                Happening::FullSyncEnds if self.child => {
                    (self.child, self.replicas) = (false, self.replicas + 1);
                    propagation.doubt();
                }
                // A resynchronization from the backlog needs no fork.
                Happening::PartialSync if self.backlog => {
                    self.replicas += 1;
                    propagation.doubt();
                }
                // The backlog stays, and no event would justify more.
                Happening::ReplicaLeaves => self.replicas = self.replicas.saturating_sub(1),
                Happening::BacklogExpires if self.replicas == 0 && !self.replica => {
                    self.backlog = false;
                }
                Happening::Demoted => {
                    self.replica = true;
                    propagation.demote();
                }
                // Former peers may resume from its backlog, which is already active.
                Happening::Promoted if self.replica => {
                    (self.replica, self.backlog) = (false, true);
                    propagation.promote();
                }
                Happening::Loaded { backlog } => {
                    self.backlog |= backlog;
                    propagation.doubt();
                }
                Happening::AppendOnlyFile { on } => {
                    self.append_only_file = on;
                    propagation.doubt();
                }
                Happening::SnapshotBegins => {
                    self.child = true;
                    propagation.doubt();
                }
                Happening::SnapshotEnds => self.child = false,
                _ => {}
            }
        }

        fn figures(self) -> Listeners {
            // A replica has no backlog before its first synchronization.
            let backlog = self.backlog && !self.replica;
            let append_only_file = self.append_only_file;
            Listeners { append_only_file, backlog, replicas: self.replicas > 0, child: self.child }
        }

        fn is_listened_to(self) -> bool {
            self.backlog || self.replicas > 0 || self.child || self.append_only_file
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn write_is_never_skipped_while_something_may_receive_it(
            happenings in prop::collection::vec(happening(), 1..60),
        ) {
            let (mut server, mut propagation) = (Server::default(), Propagation::new(false));
            let mut now = Monotonic::default();
            for happening in happenings {
                now = now.plus_us(CHECK_INTERVAL_US);
                server.live(happening, &mut propagation);
                match happening {
                    Happening::Check if propagation.needs_check(now) => {
                        propagation.learn(server.figures());
                    }
                    Happening::Write if server.is_listened_to() => {
                        prop_assert!(propagation.is_needed(), "{server:?}");
                    }
                    _ => {}
                }
            }
        }
    }
}
