//! The callers of one program that want the same key come one after the other: one of them at a time is on the network
//! for it, first come first served.

use std::collections::HashMap;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sync::{Arc, AtomicBool, Mutex, Ordering, PoisonError};

/// How many keys that nobody wants at the moment are remembered as contended.
const REMEMBERED_MAX: usize = if cfg!(test) { 2 } else { 1024 };

/// A key of a lock.
type Key = std::sync::Arc<[u8]>;

#[derive(Default)]
pub(crate) struct Slots {
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
}

struct Slot {
    turn: std::sync::Arc<Semaphore>,
    /// Whoever was on the network last had to wait.
    contended: AtomicBool,
}

/// One's turn for a key. The next one's begins when it is dropped.
pub(crate) struct Turn {
    slot: Arc<Slot>,
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    /// Waits for one's turn.
    ///
    /// # Cancel safety
    /// Dropping the future gives up one's place.
    pub(crate) async fn turn(&self, key: &Key) -> Turn {
        let slot = self.slot(key);
        let permit = std::sync::Arc::clone(&slot.turn).acquire_owned().await.expect("it is never closed");
        Turn { slot, _permit: permit }
    }

    fn slot(&self, key: &Key) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(key) {
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
        slots.insert(Key::clone(key), Arc::clone(&slot));
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
