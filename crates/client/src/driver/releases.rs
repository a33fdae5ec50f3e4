//! Releases in the background. Nodes answer most releases quickly, so adding a release also reads
//! the answers to some earlier ones. One task per client checks the rest. A release that is still
//! open at its second check gets its own task.

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

use super::shared::Shared;
use super::timers::sleep_with_timer;
use crate::transport::{InFlight, Outgoing, Waits};

/// A shorter interval would slow down all calls: a runtime with a timer that is due soon sets the
/// processor's timer each time it waits for a node.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// More than one, so that the number of open releases falls.
const CHECKS_PER_ADD: usize = 2;

/// The driver of a [`Release`].
pub(crate) struct Releasing {
    shared: Arc<Shared>,
    machine: Release,
    in_flight: InFlight,
    /// The WAITs of the released token.
    waits: Waits,
    /// The encoded RELEASE, for reuse.
    outgoing: Option<Outgoing>,
}

impl Releasing {
    /// Sends the first requests before it returns. `waits` has the WAITs of the released token.
    pub(crate) fn new(shared: &Arc<Shared>, machine: Release, waits: &mut Waits) -> Self {
        let in_flight = InFlight::with_capacity(shared.nodes.len());
        let waits = waits.take(machine.waits());
        let mut this =
            Self { shared: Arc::clone(shared), machine, in_flight, waits, outgoing: None };
        this.act();
        this
    }

    /// As [`new`](Self::new), for a token that has no WAIT.
    pub(crate) fn without_waits(shared: &Arc<Shared>, machine: Release) -> Self {
        Self::new(shared, machine, &mut Waits::default())
    }

    /// The release continues after the verdict, and also when the future is dropped.
    pub(crate) async fn wait_for_verdict(self) -> (Option<ReleaseVerdict>, Vec<Answer>) {
        struct FinishOnDrop(Option<Releasing>);
        impl Drop for FinishOnDrop {
            fn drop(&mut self) {
                if let Some(releasing) = self.0.take() {
                    releasing.finish_later();
                }
            }
        }

        let mut guard = FinishOnDrop(Some(self));
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
            let outgoing =
                self.outgoing.get_or_insert_with(|| Outgoing::new(spec, &send.request)).clone();
            self.shared.ask(&mut self.in_flight, send.id, send.connection, outgoing);
        }
    }

    /// Handles the responses that have arrived. Returns whether nothing is left to do.
    fn advance(&mut self) -> bool {
        while let Some(answered) = self.in_flight.take_answered() {
            self.shared.sample(&answered);
            self.respond(answered.id, &answered.response);
            self.act();
        }
        self.machine.is_done()
    }

    fn respond(&mut self, id: RequestId, response: &Response) {
        self.shared.with_context(|ctx| self.machine.handle_response(id, response, ctx));
    }

    /// Runs the release to its end, or until `until` holds.
    async fn run_until(&mut self, until: impl Fn(&Release) -> bool) {
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
                (id, response) = self.waits.next() => self.respond(id, &response),
                () = sleep_with_timer(timer.as_mut(), &mut armed, deadline) => {
                    self.shared.with_context(|ctx| self.machine.handle_timeout(ctx));
                }
            }
            self.act();
        }
    }

    /// Continues in the background, unless nothing is left to do.
    pub(crate) fn finish_later(mut self) {
        if self.advance() {
            return;
        }
        if self.waits.is_empty() {
            let shared = Arc::clone(&self.shared);
            shared.releases.add(self, &shared.tasks);
        } else {
            self.spawn();
        }
    }

    fn spawn(mut self) {
        let shared = Arc::clone(&self.shared);
        shared.spawn_release(async move { self.run_until(|_| false).await });
    }
}

/// The open releases, and the channel that wakes the task that checks them.
pub(crate) struct Releases {
    /// The task owns the releases: they keep the client alive, and must not outlive the runtime.
    open: Weak<Mutex<Open>>,
    wake: mpsc::Sender<()>,
}

#[derive(Default)]
struct Open {
    /// In the order of their checks.
    releases: VecDeque<OpenRelease>,
    /// Whether the task checks open releases or was notified to do so.
    is_watched: bool,
}

struct OpenRelease {
    releasing: Releasing,
    /// Whether the task has checked the release once.
    is_checked: bool,
    /// Makes `flush` wait for the release.
    _tracked: TaskTrackerToken,
}

impl Releases {
    /// Starts the task, which ends when the client is gone.
    pub(crate) fn start(runtime: &Handle) -> Self {
        let (wake, woken) = mpsc::channel(1);
        let open = Arc::default();
        let releases = Self { open: Arc::downgrade(&open), wake };
        runtime.spawn(watch(open, woken));
        releases
    }

    fn add(&self, releasing: Releasing, tasks: &TaskTracker) {
        // Fails only after the runtime has ended, and the task with it.
        let Some(open) = self.open.upgrade() else { return };
        self.put(&open, OpenRelease { releasing, is_checked: false, _tracked: tasks.token() });
        let mut oldest: [Option<OpenRelease>; CHECKS_PER_ADD] = Default::default();
        {
            let releases = &mut lock(&open).releases;
            // The release that was just added most likely has no answer yet.
            let others = releases.len().saturating_sub(1);
            oldest.iter_mut().take(others).for_each(|place| *place = releases.pop_front());
        }
        for mut release in oldest.into_iter().flatten() {
            if !release.releasing.advance() {
                self.put(&open, release);
            }
        }
    }

    /// Runs each open release in its own task, so that each ends as soon as it is answered.
    pub(crate) fn spawn_all(&self) {
        let Some(open) = self.open.upgrade() else { return };
        let releases = mem::take(&mut lock(&open).releases);
        for release in releases {
            release.releasing.spawn();
        }
    }

    fn put(&self, open: &Mutex<Open>, release: OpenRelease) {
        let is_watched = {
            let mut open = lock(open);
            open.releases.push_back(release);
            mem::replace(&mut open.is_watched, true)
        };
        if !is_watched {
            // A full channel means that the task was notified already.
            let _ = self.wake.try_send(());
        }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(open: Arc<Mutex<Open>>, mut woken: mpsc::Receiver<()>) {
    while woken.recv().await.is_some() {
        while keep_watching(&open) {
            sleep(CHECK_EVERY).await;
            check_all(&open);
        }
    }
}

/// Returns whether a release is open. If none is, records that the task waits for a notification.
fn keep_watching(open: &Mutex<Open>) -> bool {
    let mut open = lock(open);
    open.is_watched = !open.releases.is_empty();
    open.is_watched
}

fn check_all(open: &Mutex<Open>) {
    let releases = mem::take(&mut lock(open).releases);
    for mut release in releases {
        if release.releasing.advance() {
            continue;
        }
        if release.is_checked {
            release.releasing.spawn();
        } else {
            lock(open).releases.push_back(OpenRelease { is_checked: true, ..release });
        }
    }
}
