use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorlock_core::client::{Keys, Mode, SlotMemory, limits};
use tokio::time::Instant;

use super::shared::SystemRandom;
use super::turns::{Position, Turns};

/// Each shard has its own mutex, so that calls for different locks rarely contend.
const SHARDS: usize = 16;

/// The queues of a client's own calls, one for each set of keys. At the head of a queue, one call
/// uses the network, or several adjacent calls that share. Calls that do not wait do not queue.
///
/// Calls that have only some keys in common compete on the servers. If they queued here, two of
/// them could wait for each other: one for the head of a queue here, the other for a lock on the
/// servers.
#[derive(Default)]
pub(crate) struct LocalQueues {
    shards: [Mutex<HashMap<Keys, Queue>>; SHARDS],
    hasher: RandomState,
}

struct Queue {
    turns: Turns,
    /// For locks on one of several keys.
    slots: SlotMemory,
    /// When the last check began whether other clients give the semaphore more permits.
    permits_checked_at: Option<Instant>,
}

/// A call in a queue or at its head. Dropping this lets the calls behind it move up.
pub(crate) struct QueuedCall {
    queues: Arc<LocalQueues>,
    keys: Keys,
    position: Position,
}

impl LocalQueues {
    fn shard(&self, keys: &Keys) -> MutexGuard<'_, HashMap<Keys, Queue>> {
        let hash = self.hasher.hash_one(keys);
        let shard = usize::try_from(hash % SHARDS as u64).unwrap_or_default();
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(self: &Arc<Self>, keys: &Keys, mode: Mode) -> QueuedCall {
        let mut shard = self.shard(keys);
        let position = queue_of(&mut shard, keys).turns.enter(mode);
        QueuedCall { queues: Arc::clone(self), keys: keys.clone(), position }
    }

    /// Which of these keys to request first.
    pub(super) fn propose_slot(&self, keys: &Keys) -> usize {
        queue_of(&mut self.shard(keys), keys).slots.propose(keys.len(), &mut SystemRandom)
    }

    pub(super) fn slot_acquired(&self, keys: &Keys, slot: usize) {
        queue_of(&mut self.shard(keys), keys).slots.acquired(slot);
    }

    pub(super) fn slot_freed(&self, keys: &Keys, slot: usize) {
        queue_of(&mut self.shard(keys), keys).slots.freed(slot);
    }

    /// Returns whether a check for clients that give the semaphore more permits is due. If so,
    /// records its start.
    pub(crate) fn begin_permit_check(&self, keys: &Keys, now: Instant) -> bool {
        let mut shard = self.shard(keys);
        let checked_at = &mut queue_of(&mut shard, keys).permits_checked_at;
        let is_due = checked_at.is_none_or(|last| now - last >= limits::COMPARE_PERMITS_EVERY);
        if is_due {
            *checked_at = Some(now);
        }
        is_due
    }
}

fn queue_of<'a>(shard: &'a mut HashMap<Keys, Queue>, keys: &Keys) -> &'a mut Queue {
    if shard.len() >= limits::LOCAL_QUEUES_MAX / SHARDS && !shard.contains_key(keys) {
        shard.retain(|_, queue| !queue.turns.is_idle(1));
    }
    shard.entry(keys.clone()).or_insert_with(|| Queue {
        turns: Turns::new(1),
        slots: SlotMemory::default(),
        permits_checked_at: None,
    })
}

impl QueuedCall {
    /// Waits until the call is at the head of the queue.
    ///
    /// # Cancel safety
    /// Dropping the future keeps the place in the queue.
    pub(crate) async fn ready(&mut self) {
        if let Some((_, notified)) = &mut self.position {
            // The queue keeps the sender until the call is at the head.
            let _ = notified.await;
            self.position = None;
        }
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        let mut shard = self.queues.shard(&self.keys);
        if let Some(queue) = shard.get_mut(&self.keys) {
            queue.turns.leave(&self.position);
        }
    }
}
