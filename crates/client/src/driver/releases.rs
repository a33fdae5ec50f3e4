//! What nodes have not answered yet when their callers have heard from enough of them. Almost all of it is answered within
//! moments: whoever leaves something looks at what was left before. One task for all locks of a client looks at the rest;
//! what stays open has a task of its own.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::release::Undo;

/// How often the task looks, while there is anything to look at: what fails after it was left, and is to be asked again, may be
/// noticed so much later. More often would cost everybody: when a timer is due soon, the runtime has the processor's set for it
/// each time it waits for a node, which takes a virtual machine microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How much of what was left before is looked at when something is left: more than one, so that it gets less.
const LOOKS_EACH: usize = 2;

/// What is left, and the way to the task that looks after it.
pub(crate) struct Leftovers {
    /// It is the task's: releases hold the client, and must not outlive the runtime.
    open: Weak<Mutex<Open>>,
    bell: mpsc::Sender<()>,
}

#[derive(Default)]
struct Open {
    /// In the order in which it is to be looked at.
    left: VecDeque<Left>,
    /// The task knows that there is something.
    looked_after: bool,
    /// Everything has a task of its own from now on.
    closed: bool,
}

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
        let open = Arc::default();
        let leftovers = Self { open: Arc::downgrade(&open), bell };
        runtime.spawn(look_after(open, rung));
        leftovers
    }

    /// Everything must have been sent.
    pub(crate) fn add(&self, undo: Undo, tasks: &TaskTracker) {
        // Without the task there is no runtime any more, or it has panicked.
        let Some(open) = self.open.upgrade() else { return undo.spawn() };
        self.put(&open, Left { undo, seen: false, _tracked: tasks.token() });
        let mut before: [Option<Left>; LOOKS_EACH] = Default::default();
        {
            let left = &mut lock_open(&open).left;
            // What was put in just now is most likely not answered yet.
            let others = left.len().saturating_sub(1);
            before.iter_mut().take(others).for_each(|place| *place = left.pop_front());
        }
        for left in before.into_iter().flatten().filter_map(Left::look) {
            self.put(&open, left);
        }
    }

    /// Has everything waited for in tasks of its own, which end as soon as it is answered.
    pub(crate) fn close(&self) {
        let Some(open) = self.open.upgrade() else { return };
        let left = {
            let mut open = lock_open(&open);
            open.closed = true;
            mem::take(&mut open.left)
        };
        left.into_iter().for_each(Left::end);
    }

    fn put(&self, open: &Mutex<Open>, left: Left) {
        let looked_after = {
            let mut open = lock_open(open);
            if open.closed {
                drop(open);
                return left.end();
            }
            open.left.push_back(left);
            mem::replace(&mut open.looked_after, true)
        };
        if !looked_after {
            // If it is full, the task has been told already.
            let _ = self.bell.try_send(());
        }
    }
}

impl Left {
    /// What is still to be waited for. What has to be asked again does so in a task of its own.
    fn look(mut self) -> Option<Self> {
        if self.undo.look() {
            return None;
        }
        if self.undo.asks_again() {
            self.end();
            return None;
        }
        Some(self)
    }

    /// Goes on in a task of its own.
    fn end(self) {
        self.undo.spawn();
    }
}

fn lock_open(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn look_after(open: Arc<Mutex<Open>>, mut rung: mpsc::Receiver<()>) {
    while rung.recv().await.is_some() {
        while is_left(&open) {
            sleep(LOOK_EVERY).await;
            look(&open);
        }
    }
}

/// Whether there is anything to look after. If not, the bell rings when there is.
fn is_left(open: &Mutex<Open>) -> bool {
    let mut open = lock_open(open);
    open.looked_after = !open.left.is_empty();
    open.looked_after
}

/// Looks at everything.
fn look(open: &Mutex<Open>) {
    let all = mem::take(&mut lock_open(open).left);
    for left in all.into_iter().filter_map(Left::look) {
        let mut open = lock_open(open);
        if left.seen || open.closed {
            drop(open);
            left.end();
        } else {
            open.left.push_back(Left { seen: true, ..left });
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use quorlock_testkit::{Masters, eventually_async};
    use tokio::time::timeout;

    use super::*;
    use crate::quorum::Shared;
    use crate::{Lock, Quorum, Released};

    const SOON: Duration = Duration::from_secs(3);

    /// Connected to all of three masters.
    async fn connect(masters: &Masters) -> Quorum {
        let quorum = Quorum::builder().nodes(masters.urls()).node_limit(SOON).connect().await.unwrap();
        eventually_async(SOON, "all are connected", async || quorum.connected() == (3, 3)).await;
        quorum
    }

    async fn lock_of(quorum: &Quorum, key: &str) -> (Lock, Arc<Shared>) {
        let lock = quorum.lock(key).acquire().await.unwrap();
        let shared = Arc::clone(&lock.held().shared);
        (lock, shared)
    }

    /// Releases a lock, which the last node does not confirm before it is resumed.
    async fn release_most(lock: Lock, masters: &Masters) {
        masters.iter().last().unwrap().pause();
        assert_eq!(lock.release().await.unwrap(), Released::Released);
    }

    #[tokio::test]
    async fn what_is_left_is_looked_at_although_nobody_leaves_anything_more() {
        let masters = Masters::start(3);
        let quorum = connect(&masters).await;
        let (lock, shared) = lock_of(&quorum, "k").await;
        release_most(lock, &masters).await;
        assert_eq!(shared.tasks.len(), 1);
        masters.iter().last().unwrap().resume();
        eventually_async(SOON, "it is done", async || shared.tasks.is_empty()).await;
    }

    #[tokio::test]
    async fn whoever_closes_waits_for_the_answer_and_for_no_timer() {
        let masters = Masters::start(3);
        let quorum = connect(&masters).await;
        let (lock, shared) = lock_of(&quorum, "k").await;
        let (other, _) = lock_of(&quorum, "other").await;
        release_most(lock, &masters).await;
        let mut closing = Box::pin(quorum.close());
        assert!(poll!(&mut closing).is_pending());
        // It has a task of its own, as has what is left from now on.
        shared.leftovers.add(Undo::of(other.held()).1, &shared.tasks);
        let open = shared.leftovers.open.upgrade().unwrap();
        assert!(lock_open(&open).left.is_empty());
        assert_eq!(shared.tasks.len(), 2);
        masters.iter().last().unwrap().resume();
        timeout(SOON, closing).await.expect("nothing is left to wait for");
    }

    #[tokio::test]
    async fn the_task_is_not_told_of_each_that_is_left() {
        let masters = Masters::start(3);
        let quorum = connect(&masters).await;
        let (bell, mut rung) = mpsc::channel(1);
        let open = Arc::new(Mutex::new(Open::default()));
        let leftovers = Leftovers { open: Arc::downgrade(&open), bell };
        let mut locks = Vec::new();
        for key in ["a", "b", "c", "d"] {
            locks.push(lock_of(&quorum, key).await);
        }
        masters.iter().last().unwrap().pause();
        let add =
            |(lock, shared): &(Lock, Arc<Shared>)| leftovers.add(Undo::of(lock.held()).1, &shared.tasks);
        let (last, first) = locks.split_last().unwrap();
        for (place, lock) in first.iter().enumerate() {
            add(lock);
            assert_eq!(rung.try_recv().is_ok(), place == 0);
        }
        // What is open is not forgotten, and the bell rings again for what comes after it.
        assert_eq!(lock_open(&open).left.len(), first.len());
        lock_open(&open).left.clear();
        assert!(!is_left(&open));
        add(last);
        assert!(rung.try_recv().is_ok());
        masters.iter().last().unwrap().resume();
    }
}
