//! What nodes have not answered yet when their callers have heard from enough of them. Almost all of it is answered within
//! moments: whoever leaves something looks at what was left before. One task for all locks of a client looks at the rest;
//! what stays open has a task of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::release::Undo;

/// How often the task looks, while there is anything to look at. Any timer that is due soon makes a thread that waits for a
/// node set the processor's, which on a virtual machine takes microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How much of what was left before is looked at when something is left: more than one, so that it gets less.
const LOOKS_EACH: usize = 2;

/// The way to the task.
pub(crate) struct Leftovers {
    /// It is the task's.
    open: Weak<Open>,
    bell: mpsc::Sender<()>,
}

/// In the order in which it is to be looked at.
#[derive(Default)]
struct Open(Mutex<VecDeque<Left>>);

/// A release that some nodes have not confirmed yet.
struct Left {
    undo: Undo,
    /// The task has looked at it once.
    seen: bool,
    /// Whoever closes the client waits for this one.
    _tracked: TaskTrackerToken,
}

impl Leftovers {
    /// Starts the task. It ends when the client is gone.
    pub(crate) fn start(runtime: &Handle) -> Self {
        let (bell, rung) = mpsc::channel(1);
        let open = Arc::new(Open::default());
        let leftovers = Self { open: Arc::downgrade(&open), bell };
        runtime.spawn(look_after(open, rung));
        leftovers
    }

    /// Everything must have been sent.
    pub(crate) fn add(&self, undo: Undo, tasks: &TaskTracker) {
        // Without the task there is no runtime, and nothing that could be answered.
        let Some(open) = self.open.upgrade() else { return };
        let mut before: [Option<Left>; LOOKS_EACH] = Default::default();
        {
            let mut open = open.lock();
            before.fill_with(|| open.pop_front());
        }
        let now = Left { undo, seen: false, _tracked: tasks.token() };
        let still_open = before.into_iter().flatten().filter_map(Left::look);
        for left in still_open.chain([now]) {
            if open.push(left) {
                self.look();
            }
        }
    }

    /// Has the task look soon.
    pub(crate) fn look(&self) {
        // Otherwise it has been told so already, or is gone.
        let _ = self.bell.try_send(());
    }
}

impl Open {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Left>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the only one now.
    fn push(&self, left: Left) -> bool {
        let mut open = self.lock();
        open.push_back(left);
        open.len() == 1
    }

    /// The task looks at all there is. Whether anything is left.
    fn look(&self) -> bool {
        let all = std::mem::take(&mut *self.lock());
        for left in all.into_iter().filter_map(Left::look) {
            if left.seen {
                left.undo.spawn();
            } else {
                self.push(Left { seen: true, ..left });
            }
        }
        !self.lock().is_empty()
    }
}

impl Left {
    /// What is still to be waited for. What has to be asked again does so in a task of its own.
    fn look(mut self) -> Option<Self> {
        if self.undo.look() {
            return None;
        }
        if self.undo.asks_again() {
            self.undo.spawn();
            return None;
        }
        Some(self)
    }
}

async fn look_after(open: Arc<Open>, mut rung: mpsc::Receiver<()>) {
    while rung.recv().await.is_some() {
        loop {
            // At once when a client is closed.
            let _ = timeout(LOOK_EVERY, rung.recv()).await;
            if !open.look() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quorlock_testkit::{Masters, eventually_async};

    use super::*;
    use crate::{Quorum, Released};

    const SOON: Duration = Duration::from_secs(3);

    /// A lock whose last node has not confirmed the release yet, and how much goes on in the background.
    async fn with_a_leftover(masters: &Masters) -> (Quorum, TaskTracker) {
        let quorum = Quorum::builder().nodes(masters.urls()).node_limit(SOON).connect().await.unwrap();
        let lock = quorum.lock("k").acquire().await.unwrap();
        let tasks = lock.held().shared.tasks.clone();
        masters.iter().last().unwrap().pause();
        assert_eq!(lock.release().await.unwrap(), Released::Released);
        assert_eq!(tasks.len(), 1);
        (quorum, tasks)
    }

    #[tokio::test]
    async fn what_is_left_is_looked_at_although_nobody_leaves_anything_more() {
        let masters = Masters::start(3);
        let (_quorum, tasks) = with_a_leftover(&masters).await;
        masters.iter().last().unwrap().resume();
        eventually_async(SOON, "it is done", async || tasks.is_empty()).await;
    }

    #[tokio::test]
    async fn whoever_closes_waits_for_it_and_no_longer() {
        let masters = Masters::start(3);
        let (quorum, tasks) = with_a_leftover(&masters).await;
        let closing = tokio::spawn(quorum.close());
        // Long after it has looked first.
        tokio::time::sleep(LOOK_EVERY).await;
        assert!(!closing.is_finished());
        assert_eq!(tasks.len(), 1);
        masters.iter().last().unwrap().resume();
        timeout(SOON, closing).await.expect("nothing is left to wait for").unwrap();
    }
}
