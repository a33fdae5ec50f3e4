//! Whether a change is propagated to replicas and the append-only file. [`Change`] in `keyspace.rs`
//! says what is sent.

use super::{Change, Keyspace, Listeners, Monotonic, Node};

/// Tracks whether replicas or the append-only file may receive what a node writes.
///
/// Propagating a write costs a quarter of a plain SET, even if the server then discards it. A write
/// may be skipped only while it is certain that no listener receives it. Every event that may
/// attach a listener ends that certainty, and only the server's own report restores it. The
/// departure of a replica does not restore it: the replica may resume from the backlog.
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
    ) {
        if self.propagation.is_needed() {
            keyspace.propagate(key, change);
        } else {
            keyspace.count_change();
        }
        keyspace.invalidate(key);
        if self.propagation.notifies(keyspace.publishes_events()) {
            keyspace.notify(key, change);
        }
    }
}

impl Propagation {
    pub(super) fn new(other_modules: bool) -> Self {
        Self {
            listeners: Certainty::Unknown,
            role: Role::Master,
            check_at: Monotonic::default(),
            other_modules,
        }
    }

    pub(super) fn is_needed(&self) -> bool {
        self.listeners == Certainty::Unknown
    }

    pub(super) fn notifies(&self, server_publishes: bool) -> bool {
        server_publishes || self.other_modules
    }

    /// Records an event that may attach a listener.
    /// That is a fork, a replica that came online, an append-only file that was switched on, or the
    /// loading of data.
    pub(super) fn doubt(&mut self) {
        self.listeners = Certainty::Unknown;
    }

    /// Records that the server became a replica. Its own replicas receive what its master sends.
    pub(super) fn demote(&mut self) {
        self.role = Role::Replica;
        self.doubt();
    }

    /// Records that the server became a master. Former peers may resume from its active backlog.
    pub(super) fn promote(&mut self) {
        self.role = Role::Master;
        self.doubt();
    }

    /// Records that another module was loaded. It may have subscribed to keyspace events.
    pub(super) fn add_other_module(&mut self) {
        self.other_modules = true;
    }

    /// Begins a check if one is due, and plans the next one. Returns whether it began.
    /// The caller then reads the server's report, and passes it to [`Propagation::learn`].
    pub(super) fn begin_check(&mut self, now: Monotonic) -> bool {
        let is_due = self.listeners == Certainty::Unknown
            && self.role == Role::Master
            && now >= self.check_at;
        if is_due {
            self.check_at = now.plus_us(CHECK_INTERVAL_US);
        }
        is_due
    }

    /// Records the server's report, which the caller read after all other work of this turn.
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
    fn write_is_propagated_while_listeners_are_unknown() {
        assert!(Propagation::new(false).is_needed());
    }

    #[test]
    fn write_is_propagated_to_every_possible_listener() {
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
    fn event_that_may_attach_a_listener_makes_listeners_unknown() {
        let events: [fn(&mut Propagation); 3] =
            [Propagation::doubt, Propagation::demote, Propagation::promote];
        for event in events {
            let mut propagation = certain();
            event(&mut propagation);
            assert!(propagation.is_needed());
        }
    }

    #[test]
    fn replica_learns_nothing_from_its_own_report() {
        let mut propagation = certain();
        propagation.demote();
        assert!(!propagation.begin_check(Monotonic::from_us(10_000_000)));
        propagation.learn(NONE);
        assert!(propagation.is_needed(), "before its first sync a replica has no backlog");
        propagation.promote();
        assert!(propagation.is_needed());
        assert!(propagation.begin_check(Monotonic::from_us(20_000_000)));
    }

    #[test]
    fn report_is_read_once_a_second_while_listeners_are_unknown() {
        let mut propagation = Propagation::new(false);
        assert!(propagation.begin_check(Monotonic::from_us(5)));
        assert!(!propagation.begin_check(Monotonic::from_us(1_000_004)));
        assert!(propagation.begin_check(Monotonic::from_us(1_000_005)));
        propagation.learn(NONE);
        assert!(!propagation.begin_check(Monotonic::from_us(9_000_000)));
    }

    /// A server, reduced to the state that decides which listeners receive its writes.
    #[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
    #[derive(Clone, Copy, Debug, Default)]
    struct Server {
        replica: bool,
        backlog: bool,
        replicas: u8,
        child: bool,
        append_only_file: bool,
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
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

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            1 => Just(Event::FullSyncBegins),
            1 => Just(Event::FullSyncEnds),
            1 => Just(Event::PartialSync),
            1 => Just(Event::ReplicaLeaves),
            2 => Just(Event::BacklogExpires),
            1 => Just(Event::Demoted),
            1 => Just(Event::Promoted),
            1 => any::<bool>().prop_map(|backlog| Event::Loaded { backlog }),
            1 => any::<bool>().prop_map(|on| Event::AppendOnlyFile { on }),
            1 => Just(Event::SnapshotBegins),
            1 => Just(Event::SnapshotEnds),
            4 => Just(Event::Check),
            4 => Just(Event::Write),
        ]
    }

    impl Server {
        /// Changes the server, and reports to the module what a real server would.
        fn apply(&mut self, event: Event, propagation: &mut Propagation) {
            match event {
                Event::FullSyncBegins => {
                    (self.backlog, self.child) = (true, true);
                    propagation.doubt();
                }
                Event::FullSyncEnds if self.child => {
                    (self.child, self.replicas) = (false, self.replicas + 1);
                    propagation.doubt();
                }
                // A resynchronization from the backlog needs no fork.
                Event::PartialSync if self.backlog => {
                    self.replicas += 1;
                    propagation.doubt();
                }
                // The backlog stays, and the server sends no event.
                Event::ReplicaLeaves => self.replicas = self.replicas.saturating_sub(1),
                Event::BacklogExpires if self.replicas == 0 && !self.replica => {
                    self.backlog = false;
                }
                Event::Demoted => {
                    self.replica = true;
                    propagation.demote();
                }
                // Former peers may resume from its backlog, which is already active.
                Event::Promoted if self.replica => {
                    (self.replica, self.backlog) = (false, true);
                    propagation.promote();
                }
                Event::Loaded { backlog } => {
                    self.backlog |= backlog;
                    propagation.doubt();
                }
                Event::AppendOnlyFile { on } => {
                    self.append_only_file = on;
                    propagation.doubt();
                }
                Event::SnapshotBegins => {
                    self.child = true;
                    propagation.doubt();
                }
                Event::SnapshotEnds => self.child = false,
                _ => {}
            }
        }

        fn report(self) -> Listeners {
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
        fn write_is_never_skipped_while_a_listener_may_receive_it(
            events in prop::collection::vec(event(), 1..60),
        ) {
            let (mut server, mut propagation) = (Server::default(), Propagation::new(false));
            let mut now = Monotonic::default();
            for event in events {
                now = now.plus_us(CHECK_INTERVAL_US);
                server.apply(event, &mut propagation);
                match event {
                    Event::Check if propagation.begin_check(now) => {
                        propagation.learn(server.report());
                    }
                    Event::Write if server.is_listened_to() => {
                        prop_assert!(propagation.is_needed(), "{server:?}");
                    }
                    _ => {}
                }
            }
        }
    }
}
