//! What is under a key.

use super::leases::MirrorState;
use super::queues::Lack;
use super::{Access, Keyspace, Kind, Monotonic, Node, Now};

/// The state of a key, as every command and every job sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyState {
    /// The key is missing, and has no lease.
    Free,
    /// The key has a live lease.
    Held {
        lease: u32,
        /// Whether its mirror exists.
        mirrored: bool,
    },
    /// The key has a lease that has ended. The key is free, and the mirror may be overwritten.
    Ended { lease: u32, mirrored: bool },
    /// A string without a lease.
    Foreign,
    /// A value that is not a string, without a lease.
    WrongType,
}

/// How often to check a key that has waiters and a foreign value, in microseconds. Before its
/// expiry too, because Valkey does not report to the module that a client has shortened it.
const FOREIGN_CHECK_INTERVAL_US: u64 = 1_000_000;

impl Node {
    /// Opens a key, processes the events that this causes, and determines the key's state.
    #[inline]
    pub(super) fn open_key<K: Keyspace>(
        &mut self,
        now: Now,
        (hash, db): (u64, u32),
        name: &K::Name,
        access: Access,
        keyspace: &mut K,
    ) -> (KeyState, K::Entry) {
        let entry = keyspace.open(db, name, access);
        self.handle_events(now, keyspace);
        let state = self.key_state(now.monotonic, (hash, db, name.as_ref()), keyspace, &entry);
        (state, entry)
    }

    /// Determines the state of a key. Every command and every job goes through here.
    /// Updates the lease to match: a lease whose mirror was overwritten ends here.
    pub(super) fn key_state<K: Keyspace>(
        &mut self,
        now: Monotonic,
        (hash, db, key): (u64, u32, &[u8]),
        keyspace: &K,
        entry: &K::Entry,
    ) -> KeyState {
        let kind = keyspace.kind(entry);
        let Some(lease) = self.find_lease(hash, db, key) else {
            return KeyState::without_lease(kind);
        };
        let mirrored =
            kind == Kind::Text && keyspace.holds(entry, self.leases.get(lease).mirror_value());
        if now >= self.leases.get(lease).deadline {
            if mirrored || kind == Kind::Missing {
                return KeyState::Ended { lease, mirrored };
            }
            self.end_by_deadline(lease);
            return KeyState::without_lease(kind);
        }
        if mirrored {
            self.leases.regain_mirror(lease);
            return KeyState::Held { lease, mirrored };
        }
        match (self.leases.get(lease).mirror(), kind) {
            // The mirror was lost before, so another value under the key does not end the lease.
            (MirrorState::Lost, _) => {}
            (_, Kind::Missing) => {
                self.leases.set_mirror(lease, MirrorState::Lost, Monotonic::default());
            }
            (_, Kind::Text | Kind::Other) => {
                self.end_by_operator(lease);
                return KeyState::without_lease(kind);
            }
        }
        KeyState::Held { lease, mirrored }
    }

    /// Returns the lease of a key. If the lease is stale, removes it and returns `None`.
    pub(super) fn find_lease(&mut self, hash: u64, db: u32, key: &[u8]) -> Option<u32> {
        let lease = self.leases.find(hash, db, key)?;
        if self.leases.is_stale(self.leases.get(lease)) {
            self.end_by_operator(lease);
            return None;
        }
        Some(lease)
    }

    /// Why a key in this state is not free for a waiter; `None` if it is free.
    pub(super) fn lack<K: Keyspace>(
        &self,
        now: Now,
        state: KeyState,
        keyspace: &K,
        entry: &K::Entry,
    ) -> Option<Lack> {
        match state {
            KeyState::Free | KeyState::Ended { .. } => None,
            KeyState::Held { lease, .. } => Some(Lack::Held(self.leases.get(lease).deadline)),
            KeyState::Foreign | KeyState::WrongType => {
                // One millisecond more, because the server expires a key only after its expiry has
                // passed.
                let expires_in_us = keyspace
                    .expires_at_ms(entry)
                    .map(|at| (at.saturating_sub(now.wall_ms()) + 1).saturating_mul(1000));
                let after_us = expires_in_us.unwrap_or(u64::MAX).min(FOREIGN_CHECK_INTERVAL_US);
                Some(Lack::Foreign(now.monotonic.plus_us(after_us)))
            }
        }
    }

    pub(super) fn end_by_operator(&mut self, lease: u32) {
        self.stats.ended_by_operator += self.end(lease);
    }

    pub(super) fn end_by_deadline(&mut self, lease: u32) {
        self.stats.ended_by_deadline += self.end(lease);
    }

    /// Removes a lease, and ends its lock on the lock's other keys.
    /// The leases of the other keys stay until their mirrors are removed. Returns the number of
    /// keys on which the lock ended, or the number of holders of a shared lock.
    pub(super) fn end(&mut self, lease: u32) -> u64 {
        let mut keys = match self.leases.end_holders(lease) {
            Some(holders) => holders.into(),
            None => u64::from(!self.leases.get(lease).ended_with_another()),
        };
        while let Some(other) = self.leases.end_next(lease) {
            self.check_key_of_lease_by(other, Monotonic::default());
            keys += 1;
        }
        self.check_key_of_lease_by(lease, Monotonic::default());
        self.leases.remove(lease);
        keys
    }

    /// Plans a check of the lease's key by `at`, if the key has waiters.
    pub(super) fn check_key_of_lease_by(&mut self, lease: u32, at: Monotonic) {
        if let Some(queue) = self.queue_of(lease) {
            self.queues.check_by(queue, at);
        }
    }

    /// The queue of the lease's key, if the key has waiters.
    pub(super) fn queue_of(&self, lease: u32) -> Option<u32> {
        let lease = self.leases.get(lease);
        self.queues.find(lease.hash(), lease.db, &lease.key)
    }
}

impl KeyState {
    fn without_lease(kind: Kind) -> Self {
        match kind {
            Kind::Missing => Self::Free,
            Kind::Text => Self::Foreign,
            Kind::Other => Self::WrongType,
        }
    }
}
