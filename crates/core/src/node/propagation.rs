//! What is propagated to replicas and the append-only file, and when it is skipped.

use super::{Keyspace, Monotonic, Node};

/// A change of a key. It is propagated as `SET … PXAT`, `PEXPIREAT` or `DEL`.
#[derive(Debug)]
pub enum Change<'a, N> {
    /// The key was set to this value, with this expiry in milliseconds of the wall clock.
    Set {
        /// The value.
        value: &'a N,
        /// When it expires.
        expires_at_ms: u64,
    },
    /// The expiry of the key was set, in milliseconds of the wall clock.
    Expire {
        /// When it expires.
        expires_at_ms: u64,
    },
    /// The key was deleted.
    Delete,
    /// The key was deleted because it had expired.
    Expired,
}

impl<N> Clone for Change<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for Change<'_, N> {}

/// The listeners that receive what a server propagates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a listener of its own")]
pub struct Listeners {
    /// An append-only file.
    pub append_only_file: bool,
    /// A backlog from which replicas may resume.
    pub backlog: bool,
    /// Connected replicas.
    pub replicas: bool,
    /// A forked child, whose snapshot may be for a replica or for an append-only file.
    pub child: bool,
}

/// Tracks whether replicas or the append-only file may receive what a node writes.
///
/// Propagating a write costs a quarter of a plain SET, even if the server then discards it. A write
/// may be skipped only while it is certain that no listener receives it. Every event that may
/// attach a listener ends that certainty, and only the server's own report restores it. The
/// departure of a replica does not restore it: the replica may resume from the backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Propagation {
    /// Whether replicas or an append-only file may receive what is written.
    is_needed: bool,
    check_at: Monotonic,
    other_modules: bool,
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
        if self.propagation.is_needed {
            keyspace.propagate(key, change);
        } else {
            keyspace.count_change();
        }
        keyspace.invalidate(key);
        if self.propagation.other_modules || keyspace.publishes_events() {
            keyspace.notify(key, change);
        }
    }

    /// Publishes a change of a mirror. Without a change, only invalidates caches, because INSPECT
    /// now shows something else.
    pub(super) fn publish_or_invalidate<K: Keyspace>(
        &self,
        keyspace: &mut K,
        key: &K::Name,
        change: Option<Change<'_, K::Name>>,
    ) {
        match change {
            Some(change) => self.publish(keyspace, key, change),
            None => keyspace.invalidate(key),
        }
    }
}

impl Propagation {
    pub(super) fn new(other_modules: bool) -> Self {
        Self { is_needed: true, check_at: Monotonic::default(), other_modules }
    }

    /// Records an event that may attach a listener.
    /// That is a fork, a replica that came online, an append-only file that was switched on, the
    /// loading of data, or a change of the role: former peers of a new master may resume from its
    /// backlog.
    pub(super) fn doubt(&mut self) {
        self.is_needed = true;
    }

    /// Records that another module was loaded. It may have subscribed to keyspace events.
    pub(super) fn add_other_module(&mut self) {
        self.other_modules = true;
    }

    /// Begins a check if one is due, and plans the next one. Returns whether it began.
    /// The caller then reads the server's report, and passes it to [`Propagation::learn`].
    pub(super) fn begin_check(&mut self, now: Monotonic) -> bool {
        let is_due = self.is_needed && now >= self.check_at;
        if is_due {
            self.check_at = now.plus_us(CHECK_INTERVAL_US);
        }
        is_due
    }

    /// Records the server's report, which the caller read after all other work of this turn.
    pub(super) fn learn(&mut self, listeners: Listeners) {
        let Listeners { append_only_file, backlog, replicas, child } = listeners;
        self.is_needed = append_only_file || backlog || replicas || child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Listeners =
        Listeners { append_only_file: false, backlog: false, replicas: false, child: false };

    #[test]
    fn write_is_propagated_unless_the_last_report_has_no_listener() {
        for listeners in [
            Listeners { append_only_file: true, ..NONE },
            Listeners { backlog: true, ..NONE },
            Listeners { replicas: true, ..NONE },
            Listeners { child: true, ..NONE },
        ] {
            let mut propagation = Propagation::new(false);
            assert!(propagation.is_needed, "listeners are unknown");
            propagation.learn(listeners);
            assert!(propagation.is_needed, "{listeners:?}");
            propagation.learn(NONE);
            assert!(!propagation.is_needed);
            propagation.doubt();
            assert!(propagation.is_needed);
        }
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
}
