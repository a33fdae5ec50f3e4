//! INSPECT: describes the holder of a key.

use super::key_state::KeyState;
use super::{Access, CommandError, Holder, Inspected, Keyspace, Mode, Node, Now};

const WAITERS_SHOWN: usize = 10;
const HOLDERS_SHOWN: usize = 10;
/// How many holders that have ended, and that no job has removed yet, a description passes over.
const ENDED_PASSED_MAX: usize = 100;

impl Node {
    /// The holder and the waiters of a key, without tokens; `None` if the key is free.
    pub(super) fn inspect<K: Keyspace>(
        &mut self,
        now: Now,
        db: u32,
        key: &K::Name,
        keyspace: &mut K,
    ) -> Result<Option<Inspected>, CommandError> {
        let hash = self.leases.hash(db, key.as_ref());
        let (state, entry) = self.open_key(now, (hash, db), key, Access::Read, keyspace);
        let holder = match state {
            KeyState::Free | KeyState::Ended { .. } => return Ok(None),
            KeyState::WrongType => return Err(CommandError::WrongType),
            KeyState::Foreign => {
                let expires_at_ms = keyspace.expires_at_ms(&entry);
                let ttl_ms = expires_at_ms.map(|at| at.saturating_sub(now.wall_ms()));
                Holder::Foreign { ttl_ms }
            }
            KeyState::Held { lease, .. } => self.holder(now, lease),
        };
        let queue = self.queues.find(hash, db, key.as_ref());
        let waiters = queue.map_or(0, |queue| self.queues.len(queue));
        let queue =
            queue.map_or_else(Vec::new, |queue| self.queues.first_waiters(queue, WAITERS_SHOWN));
        Ok(Some(Inspected { waiters, queue, holder }))
    }

    /// Describes the holder of a lease, or the holders that share it.
    fn holder(&self, now: Now, slot: u32) -> Holder {
        let lease = self.leases.get(slot);
        let (ttl_ms, revoked) = (lease.deadline.ms_since(now.monotonic), lease.is_revoked());
        let held_ms = |granted| now.monotonic.us_since(granted) / 1000;
        let Some(group) = self.leases.group(slot) else {
            return Holder::Lease {
                owners: vec![lease.owner.clone()],
                holders: 1,
                fence: lease.fence,
                ttl_ms,
                held_ms: held_ms(lease.granted),
                mode: Mode::Exclusive,
                keys: self.leases.ring(slot).count(),
                revoked,
            };
        };
        let holders = self.leases.holders();
        let is_live = |holder: &&super::holders::SharedHolder| now.monotonic < holder.deadline();
        let live = || holders.iter(group).take(ENDED_PASSED_MAX + HOLDERS_SHOWN).filter(is_live);
        let ended = holders.count_ended(group, now.monotonic, ENDED_PASSED_MAX);
        Holder::Lease {
            owners: live().take(HOLDERS_SHOWN).map(|holder| holder.owner.clone()).collect(),
            holders: holders.count(group) as usize - ended,
            fence: holders.highest_fence(group),
            ttl_ms,
            held_ms: live().next().map_or(0, |holder| held_ms(holder.granted)),
            mode: Mode::Shared,
            keys: 1,
            revoked,
        }
    }
}
