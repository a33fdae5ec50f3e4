//! INSPECT.

use super::key_state::KeyState;
use super::leases::Lease;
use super::{Access, CommandError, Holder, Inspect, Inspected, Keyspace, Node, Now, Reply};

impl Node {
    /// Describes the holder of a key. Never tells a token.
    pub(super) fn inspect<K: Keyspace>(
        &mut self,
        now: Now,
        inspect: &Inspect<'_, K::Name>,
        keyspace: &mut K,
    ) -> Result<Reply, CommandError> {
        let &Inspect { db, key } = inspect;
        let entry = keyspace.open(db, key, Access::Read);
        self.hear_all(now, keyspace);
        let hash = self.leases.hash(db, key.as_ref());
        let holder = match self.key_state(now.monotonic, (hash, db, key.as_ref()), keyspace, &entry) {
            KeyState::Free | KeyState::Ended { .. } => return Ok(Reply::Inspected(None)),
            KeyState::WrongType => return Err(CommandError::WrongType),
            KeyState::Foreign => {
                let expires_at_ms = keyspace.expires_at_ms(&entry);
                let ttl_ms = expires_at_ms.map(|at| at.saturating_sub(now.wall_ms()));
                Holder::Foreign { ttl_ms }
            }
            KeyState::Held { lease, .. } => {
                let keys = self.leases.keys(lease);
                let Lease { owner, fence, deadline, .. } = self.leases.get(lease);
                let ttl_ms = deadline.ms_since(now.monotonic);
                Holder::Lease { owner: owner.clone(), fence: *fence, ttl_ms, keys }
            }
        };
        let queue = self.queues.find(hash, db, key.as_ref());
        let waiters = queue.map_or(0, |queue| self.queues.len(queue));
        Ok(Reply::Inspected(Some(Inspected { waiters, holder })))
    }
}
