//! Who has waited for a lock asks no more nodes than it takes. Most locks are given back within moments; those that are not are
//! extended, which takes them to the other nodes as well, so that they outlive the failure of some. Whoever extends them before
//! that, or has them extended, has the same. So it is with a lock that another process has handed over and not all nodes had.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use quorlock_core::quorum::Acquisition;
use tokio::time::{Instant, sleep};

use crate::extend::{Due, rounds};
use crate::held::Held;
use crate::quorum::Shared;

/// How long a lock is held before that; it may be twice as long.
const AFTER: Duration = Acquisition::WIDEN_AFTER;

/// Locks that some nodes do not have, for a moment.
#[derive(Default)]
pub(crate) struct Widening {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// When each is due, the earliest first.
    locks: VecDeque<(Instant, Weak<Held>)>,
    /// There is a task that looks after them.
    looked_after: bool,
}

impl Widening {
    /// Has the lock taken to the nodes that do not have it, unless it is given back or extended before that.
    pub(crate) fn add(held: &Arc<Held>) {
        held.set_to_be_widened(true);
        let shared = &held.shared;
        let looked_after = {
            let mut waiting = shared.widening.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.locks.push_back((Instant::now() + AFTER, Arc::downgrade(held)));
            std::mem::replace(&mut waiting.looked_after, true)
        };
        if !looked_after {
            shared.runtime.spawn(look_after(Arc::downgrade(shared)));
        }
    }

    /// Locks that are due; `None` when none are waiting, and nobody looks after them any more.
    fn due(&self) -> Option<Vec<Arc<Held>>> {
        let now = Instant::now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.locks.is_empty() {
            waiting.looked_after = false;
            return None;
        }
        let due = waiting.locks.partition_point(|(at, _)| *at <= now);
        Some(waiting.locks.drain(..due).filter_map(|(_, held)| held.upgrade()).collect())
    }
}

async fn look_after(shared: Weak<Shared>) {
    loop {
        sleep(AFTER).await;
        let Some(shared) = shared.upgrade() else { return };
        let Some(mut due) = shared.widening.due() else { return };
        due.retain(|held| held.is_to_be_widened());
        let due = due.into_iter().map(|held| Due { held, tell: None }).collect();
        for round in rounds(&shared, due) {
            // Nobody who closes the client waits for this one: there is nothing to be released.
            shared.runtime.spawn(round);
        }
    }
}
