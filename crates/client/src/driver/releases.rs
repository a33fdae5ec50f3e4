//! Releases that go on behind their callers' backs. Almost all of them are answered within moments:
//! each that is added looks at what was added before. One task for all locks of a client looks at
//! the rest; what stays open has a task of its own.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use quorlock_core::client::{Answer, Release, RequestId, Response};
use quorlock_core::quorum::ReleaseVerdict;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::acquire::Wait;
use super::shared::Shared;
use super::timers::reach;
use crate::transport::{InFlight, Outgoing};

/// How often the task looks while there is anything to look at. More often would cost everybody: a
/// runtime with a timer that is due soon sets the processor's timer each time it waits for a node.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How many older releases are looked at when one is added: more than one, so that they get fewer.
const LOOKS_EACH: usize = 2;

/// The loop of a [`Release`].
pub(crate) struct Releasing {
    shared: Arc<Shared>,
    machine: Release,
    in_flight: InFlight,
    wait: Option<Wait>,
    outgoing: Option<Outgoing>,
}

/// Runs a release to its end in the background. Its requests are sent before this returns.
pub(super) fn release_in_background(shared: &Arc<Shared>, machine: Release, wait: Option<Wait>) {
    Releasing::with_wait(shared, machine, wait).leave();
}

impl Releasing {
    /// Its requests are sent before this returns.
    pub(crate) fn new(shared: &Arc<Shared>, machine: Release) -> Self {
        Self::with_wait(shared, machine, None)
    }

    fn with_wait(shared: &Arc<Shared>, machine: Release, wait: Option<Wait>) -> Self {
        let in_flight = InFlight::with_capacity(shared.nodes.len());
        let mut this = Self { shared: Arc::clone(shared), machine, in_flight, wait, outgoing: None };
        this.act();
        this
    }

    /// Waits for the verdict; the rest goes on in the background, in whatever way the future ends.
    pub(crate) async fn finish_in_background(self) -> (Option<ReleaseVerdict>, Vec<Answer>) {
        struct Guard(Option<Releasing>);
        impl Drop for Guard {
            fn drop(&mut self) {
                if let Some(releasing) = self.0.take() {
                    releasing.leave();
                }
            }
        }

        let mut guard = Guard(Some(self));
        let Some(releasing) = &mut guard.0 else { return (None, Vec::new()) };
        releasing.run_until(|release| release.verdict().is_some()).await;
        (releasing.machine.verdict(), releasing.machine.answers().cloned().collect())
    }

    fn act(&mut self) {
        while let Some((node, connection)) = self.machine.poll_suspect() {
            self.shared.suspect(node, connection);
        }
        while let Some(send) = self.machine.poll() {
            let spec = self.machine.spec();
            let outgoing = self.outgoing.get_or_insert_with(|| Outgoing::new(spec, &send.request)).clone();
            self.shared.ask(&mut self.in_flight, send.id, send.connection, outgoing);
        }
    }

    /// Takes what has been answered already. Returns whether nothing is left to do.
    fn look(&mut self) -> bool {
        while let Some(answered) = self.in_flight.take_done() {
            self.shared.sample(&answered);
            self.respond(answered.id, &answered.response);
            self.act();
        }
        self.machine.is_done()
    }

    fn respond(&mut self, id: RequestId, response: &Response) {
        self.shared.with_context(|ctx| self.machine.handle_response(id, response, ctx));
    }

    /// To the end, or until this holds.
    pub(crate) async fn run_until(&mut self, until: impl Fn(&Release) -> bool) {
        let timer = sleep(Duration::ZERO);
        tokio::pin!(timer);
        let mut armed = None;
        while !until(&self.machine) && !self.machine.is_done() {
            let deadline = self.machine.poll_timeout();
            tokio::select! {
                biased;
                answered = self.in_flight.next() => {
                    self.shared.sample(&answered);
                    self.respond(answered.id, &answered.response);
                }
                (id, response) = wait_answer(&mut self.wait), if self.wait.is_some() => {
                    self.wait = None;
                    self.respond(id, &response);
                }
                () = reach(timer.as_mut(), &mut armed, deadline) => {
                    self.shared.with_context(|ctx| self.machine.handle_timeout(ctx));
                }
            }
            self.act();
        }
    }

    /// Goes on in the background; most likely there is little left to do.
    pub(crate) fn leave(mut self) {
        if self.look() {
            return;
        }
        if self.wait.is_some() {
            self.spawn();
        } else {
            let shared = Arc::clone(&self.shared);
            shared.releases.add(self, &shared.tasks);
        }
    }

    /// Goes on in a task of its own.
    fn spawn(mut self) {
        let shared = Arc::clone(&self.shared);
        shared.spawn(async move { self.run_until(|_| false).await });
    }
}

async fn wait_answer(wait: &mut Option<Wait>) -> (RequestId, Response) {
    match wait {
        Some(Wait::Sent(id, answer)) => (*id, answer.await),
        Some(Wait::Opening(..)) | None => std::future::pending().await,
    }
}

/// The releases that are left, and the way to the task that looks after them.
pub(crate) struct Releases {
    /// It is the task's: releases hold the client, and must not outlive the runtime.
    open: Weak<Mutex<Open>>,
    bell: mpsc::Sender<()>,
}

#[derive(Default)]
struct Open {
    /// In the order in which they are looked at.
    left: VecDeque<Left>,
    /// The task knows that there are some.
    looked_after: bool,
}

struct Left {
    releasing: Releasing,
    /// The task has looked at it once.
    seen: bool,
    /// `flush` waits for it.
    _tracked: TaskTrackerToken,
}

impl Releases {
    /// Starts the task. It ends when the client is gone.
    pub(crate) fn start(runtime: &Handle) -> Self {
        let (bell, rung) = mpsc::channel(1);
        let open = Arc::default();
        let releases = Self { open: Arc::downgrade(&open), bell };
        runtime.spawn(look_after(open, rung));
        releases
    }

    fn add(&self, releasing: Releasing, tasks: &TaskTracker) {
        // Without the task there is no runtime any more.
        let Some(open) = self.open.upgrade() else { return };
        self.put(&open, Left { releasing, seen: false, _tracked: tasks.token() });
        let mut before: [Option<Left>; LOOKS_EACH] = Default::default();
        {
            let left = &mut lock(&open).left;
            // The one that was put in just now is most likely not answered yet.
            let others = left.len().saturating_sub(1);
            before.iter_mut().take(others).for_each(|place| *place = left.pop_front());
        }
        for mut left in before.into_iter().flatten() {
            if !left.releasing.look() {
                self.put(&open, left);
            }
        }
    }

    /// Runs what is left in tasks of its own, which end as soon as it is answered.
    pub(crate) fn spawn_all(&self) {
        let Some(open) = self.open.upgrade() else { return };
        let left = mem::take(&mut lock(&open).left);
        for left in left {
            left.releasing.spawn();
        }
    }

    fn put(&self, open: &Mutex<Open>, left: Left) {
        let looked_after = {
            let mut open = lock(open);
            open.left.push_back(left);
            mem::replace(&mut open.looked_after, true)
        };
        if !looked_after {
            // If it is full, the task has been told already.
            let _ = self.bell.try_send(());
        }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn look_after(open: Arc<Mutex<Open>>, mut rung: mpsc::Receiver<()>) {
    while rung.recv().await.is_some() {
        while is_left(&open) {
            sleep(LOOK_EVERY).await;
            look_at_all(&open);
        }
    }
}

/// Whether there is anything to look after. If not, the bell rings when there is.
fn is_left(open: &Mutex<Open>) -> bool {
    let mut open = lock(open);
    open.looked_after = !open.left.is_empty();
    open.looked_after
}

fn look_at_all(open: &Mutex<Open>) {
    let all = mem::take(&mut lock(open).left);
    for mut left in all {
        if left.releasing.look() {
            continue;
        }
        if left.seen {
            left.releasing.spawn();
        } else {
            lock(open).left.push_back(Left { seen: true, ..left });
        }
    }
}
