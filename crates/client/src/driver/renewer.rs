//! One task that extends all locks of a client that are to be kept, each at a third of its ttl, and those that are due at
//! about the same time together.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use quorlock_core::quorum::Moment;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::clock;
use crate::extend::{Due, Patience, rounds};
use crate::held::Held;
use crate::quorum::Shared;

/// What is due within so much time is done together.
const TOGETHER: Duration = Duration::from_millis(20);
/// The same for short locks: this part of their ttl.
const TOGETHER_PER_TTL: u32 = 50;
/// How often it is looked whether the clocks have gone on without the timers, as they do while a machine sleeps.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// By how much more than the timers.
const SLEPT_MIN: Duration = Duration::from_millis(100);

/// The way to that task.
pub(crate) struct Keeper {
    errands: mpsc::UnboundedSender<Errand>,
}

enum Errand {
    Keep(Arc<Held>),
    /// A round was decided: it is known when the next is due.
    Decided(u64),
    Forget(u64),
}

impl Keeper {
    /// Starts the task. It ends when the client is gone.
    pub(crate) fn start(runtime: &Handle, shared: Weak<Shared>) -> Self {
        let (errands, received) = mpsc::unbounded_channel();
        let (kept, due) = (HashMap::new(), BinaryHeap::new());
        let looked = (Instant::now(), clock::now());
        runtime.spawn(Keeping { shared, kept, due, looked }.run(received));
        Self { errands }
    }

    /// From now on the lock is extended until it ends.
    pub(crate) fn keep(&self, held: &Arc<Held>) {
        let _ = self.errands.send(Errand::Keep(Arc::clone(held)));
    }

    pub(crate) fn decided(&self, held: &Held) {
        let _ = self.errands.send(Errand::Decided(held.id));
    }

    /// The lock has ended.
    pub(crate) fn forget(&self, held: &Held) {
        let _ = self.errands.send(Errand::Forget(held.id));
    }
}

struct Keeping {
    shared: Weak<Shared>,
    kept: HashMap<u64, Kept>,
    /// When what is due. What is not due at that time any more is passed over.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    /// What the timers and the clocks said when they were last compared.
    looked: (Instant, Moment),
}

struct Kept {
    held: Arc<Held>,
    due: Option<Instant>,
}

impl Keeping {
    async fn run(mut self, mut errands: mpsc::UnboundedReceiver<Errand>) {
        loop {
            let next = self.due.peek().map(|Reverse((at, _))| *at);
            let look = Instant::now() + LOOK_EVERY;
            tokio::select! {
                biased;
                errand = errands.recv() => {
                    let Some(errand) = errand else { return };
                    self.take(errand);
                    // What has come in the meantime, too, before anything is sent.
                    while let Ok(errand) = errands.try_recv() {
                        self.take(errand);
                    }
                }
                () = sleep_until(next.map_or(look, |next| next.min(look))), if next.is_some() => {}
            }
            self.reschedule_after_sleep();
            self.extend_what_is_due();
        }
    }

    fn reschedule_after_sleep(&mut self) {
        let (timers, clocks) = self.looked;
        self.looked = (Instant::now(), clock::now());
        if self.looked.1.since(clocks) > self.looked.0 - timers + SLEPT_MIN {
            let waiting: Vec<_> =
                self.kept.iter().filter(|(_, kept)| kept.due.is_some()).map(|(id, _)| *id).collect();
            for id in waiting {
                self.schedule(id);
            }
        }
    }

    fn take(&mut self, errand: Errand) {
        match errand {
            Errand::Keep(held) => {
                let id = held.id;
                self.kept.insert(id, Kept { held, due: None });
                self.schedule(id);
            }
            Errand::Decided(id) => self.schedule(id),
            Errand::Forget(id) => {
                self.kept.remove(&id);
            }
        }
    }

    fn schedule(&mut self, id: u64) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let Some(pause) = kept.held.extend_in() else {
            // It has ended, or has been held long enough.
            self.kept.remove(&id);
            return;
        };
        let at = Instant::now() + pause;
        kept.due = Some(at);
        self.due.push(Reverse((at, id)));
    }

    fn extend_what_is_due(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let now = Instant::now();
        let mut all_due = Vec::new();
        while let Some(&Reverse((at, id))) = self.due.peek() {
            if at > now + TOGETHER {
                break;
            }
            let Some(kept) = self.kept.get_mut(&id).filter(|kept| kept.due == Some(at)) else {
                self.due.pop();
                continue;
            };
            let ttl = kept.held.ttl.duration();
            if at > now + TOGETHER.min(ttl / TOGETHER_PER_TTL) {
                break;
            }
            self.due.pop();
            kept.due = None;
            all_due.push(Due { held: Arc::clone(&kept.held), tell: None });
        }
        for round in rounds(&shared, all_due, Patience::NextRound) {
            shared.spawn(round);
        }
    }
}
