//! INSPECT.

use super::key_state::KeyState;
use super::{Access, CommandError, Holder, Inspect, Inspected, Keyspace, Node, Now, Reply};

/// So many waiters of a key are shown.
const WAITERS_SHOWN: usize = 10;

impl Node {
    /// Describes the holder of a key. Never tells a token.
    pub(super) fn inspect<K: Keyspace>(
        &mut self,
        now: Now,
        inspect: &Inspect<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        self.inspect_key(now, inspect.db, inspect.key, keyspace).map(Reply::Inspected)
    }

    /// The holder of a key and its waiters; `None` when the key is free.
    pub(super) fn inspect_key<K: Keyspace>(
        &mut self,
        now: Now,
        db: u32,
        key: &K::Name,
        keyspace: &mut K,
    ) -> Result<Option<Inspected>, CommandError> {
        let entry = keyspace.open(db, key, Access::Read);
        self.hear_all(now, keyspace);
        let hash = self.leases.hash(db, key.as_ref());
        let holder = match self.key_state(now.monotonic, (hash, db, key.as_ref()), keyspace, &entry) {
            KeyState::Free | KeyState::Ended { .. } => return Ok(None),
            KeyState::WrongType => return Err(CommandError::WrongType),
            KeyState::Foreign => {
                let expires_at_ms = keyspace.expires_at_ms(&entry);
                let ttl_ms = expires_at_ms.map(|at| at.saturating_sub(now.wall_ms()));
                Holder::Foreign { ttl_ms }
            }
            KeyState::Held { lease, .. } => {
                let keys = self.leases.keys(lease);
                let lease = self.leases.get(lease);
                Holder::Lease {
                    owner: lease.owner.clone(),
                    fence: lease.fence,
                    ttl_ms: lease.deadline.ms_since(now.monotonic),
                    held_ms: now.monotonic.us_since(lease.granted) / 1000,
                    mode: lease.mode,
                    keys,
                    revoked: lease.is_revoked(),
                }
            }
        };
        let queue = self.queues.find(hash, db, key.as_ref());
        let waiters = queue.map_or(0, |queue| self.queues.len(queue));
        let queue = queue.map_or_else(Vec::new, |queue| self.queues.first_waiters(queue, WAITERS_SHOWN));
        Ok(Some(Inspected { waiters, queue, holder }))
    }
}
