//! The callers of one program that want the same lock come one after the other: one of them at a time is on the network
//! for it, first come first served.
//!
//! The same lock is the same key, or all of the same keys. Locks that only share a key meet on the servers: whoever kept the
//! others of a program from one key while it waits for another might wait for one of them.

use std::collections::HashMap;
use std::hash::Hash;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sync::{Arc, AtomicBool, Mutex, Ordering, PoisonError};

/// How many locks that nobody wants at the moment are remembered as contended.
const REMEMBERED_MAX: usize = if cfg!(test) { 2 } else { 1024 };

/// One for each lock, which is known by its keys `K`.
pub(crate) struct Slots<K> {
    slots: Mutex<HashMap<K, Arc<Slot>>>,
}

struct Slot {
    turn: std::sync::Arc<Semaphore>,
    /// Whoever was on the network last had to wait, or got past those who waited.
    contended: AtomicBool,
}

/// One's turn for a lock. The next one's begins when it is dropped.
pub(crate) struct Turn {
    slot: Arc<Slot>,
    _permit: OwnedSemaphorePermit,
}

impl<K> Default for Slots<K> {
    fn default() -> Self {
        Self { slots: Mutex::new(HashMap::new()) }
    }
}

impl<K: Clone + Eq + Hash> Slots<K> {
    /// Waits for one's turn.
    ///
    /// # Cancel safety
    /// Dropping the future gives up one's place.
    pub(crate) async fn turn(&self, keys: &K) -> Turn {
        let slot = self.slot(keys);
        let permit = std::sync::Arc::clone(&slot.turn).acquire_owned().await.expect("it is never closed");
        Turn { slot, _permit: permit }
    }

    /// Others want this lock, too.
    pub(crate) fn set_contended(&self, keys: &K) {
        self.slot(keys).contended.store(true, Ordering::Relaxed);
    }

    fn slot(&self, keys: &K) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(keys) {
            return Arc::clone(slot);
        }
        if slots.len() >= REMEMBERED_MAX {
            // Nobody else can come to hold one meanwhile: that takes this mutex.
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        let slot = Arc::new(Slot {
            turn: std::sync::Arc::new(Semaphore::new(1)),
            contended: AtomicBool::new(false),
        });
        slots.insert(keys.clone(), Arc::clone(&slot));
        slot
    }
}

impl Turn {
    pub(crate) fn contended(&self) -> bool {
        self.slot.contended.load(Ordering::Relaxed)
    }

    pub(crate) fn set_contended(&self, contended: bool) {
        self.slot.contended.store(contended, Ordering::Relaxed);
    }
}
