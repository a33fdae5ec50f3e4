//! Who has waited for a lock asks no more nodes than it takes. Most locks are given back within moments; those that are not are
//! extended, which takes them to the other nodes as well, so that they outlive the failure of some. So it is with a lock that
//! another process has handed over and not all nodes had.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use quorlock_core::quorum::Acquisition;
use tokio::time::{Instant, sleep};

use crate::extend::{Due, Patience, rounds};
use crate::held::Held;
use crate::quorum::Shared;

/// How long a lock is held before that; it may be twice as long. After that the pause doubles.
const AFTER: Duration = Acquisition::WIDEN_AFTER;
/// How often it is tried: a node may be away for a moment.
const TRIES_MAX: u32 = 6;

/// Locks that some nodes do not have, for a moment.
#[derive(Default)]
pub(crate) struct Widening {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    locks: Vec<Narrow>,
    /// There is a task that looks after them.
    looked_after: bool,
}

struct Narrow {
    held: Weak<Held>,
    due: Instant,
    /// How often it was tried.
    tries: u32,
}

impl Widening {
    /// Has the lock taken to the nodes that do not have it, unless it is given back before that.
    pub(crate) fn add(held: &Arc<Held>) {
        let shared = &held.shared;
        let looked_after = {
            let mut waiting = shared.widening.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.locks.push(Narrow { held: Arc::downgrade(held), due: Instant::now() + AFTER, tries: 0 });
            std::mem::replace(&mut waiting.looked_after, true)
        };
        if !looked_after {
            shared.runtime.spawn(look_after(Arc::downgrade(shared)));
        }
    }

    /// Locks that are due; `None` when none are waiting, and nobody looks after them any more.
    fn due(&self) -> Option<Vec<Arc<Held>>> {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.locks.retain_mut(|narrow| {
            let Some(held) = narrow.held.upgrade().filter(|held| !held.is_over()) else { return false };
            if narrow.due <= now {
                if !held.is_narrow() {
                    return false;
                }
                due.push(held);
                narrow.tries += 1;
                narrow.due = now + AFTER * 2_u32.pow(narrow.tries);
            }
            narrow.tries < TRIES_MAX
        });
        waiting.looked_after = !waiting.locks.is_empty();
        (waiting.looked_after || !due.is_empty()).then_some(due)
    }
}

async fn look_after(shared: Weak<Shared>) {
    loop {
        sleep(AFTER).await;
        let Some(shared) = shared.upgrade() else { return };
        let Some(due) = shared.widening.due() else { return };
        let due = due.into_iter().map(|held| Due { held, tell: None }).collect();
        // Whoever closes the client waits for these: a lock that is given back meanwhile must not stay on a node.
        for round in rounds(&shared, due, Patience::NodeLimit) {
            shared.spawn(round);
        }
    }
}
