use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Waker};
use std::time::Duration;

use quorlock_core::Fence;
use quorlock_core::client::{
    Context, Hold, HoldAction, Mode, OutgoingRequest, RequestId, Response, Spec, Token,
};
use quorlock_core::quorum::{self, ExtensionVerdict, LossReason, Moment, ReleaseVerdict};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::releases::Releasing;
use super::shared::Shared;
use super::timers::sleep_until;
use crate::transport::{InFlight, Outgoing, Waits};
use crate::{
    Coverage, Deadline, LostError, NodeAnswers, Ownership, ReleaseError, Released, clock, telemetry,
};

/// Timers stop while the computer sleeps, and deadlines do not.
const DEADLINE_CHECK_EVERY: Duration = Duration::from_millis(500);

/// A held lock, which its handle, its watches and the rounds that extend it share.
pub(crate) struct LockInner {
    /// Distinguishes the locks of one program.
    pub(crate) id: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) fence: Fence,
    hold: Mutex<Hold>,
    /// If the lock is renewed, the responses are read as they arrive, and otherwise when it is next
    /// extended, released or reported.
    stragglers: Mutex<Stragglers>,
    /// Wakes the task of `await_stragglers` when another task has handled its stragglers.
    handled: Notify,
    /// Calls that wait for the verdict of a round, with the number of that round.
    extending: Mutex<Vec<(u32, oneshot::Sender<ExtensionVerdict>)>>,
    renewed: AtomicBool,
    /// Notifies watches of the end of the lock.
    ended: Notify,
}

/// Requests that were unanswered when the lock was acquired.
#[derive(Default)]
pub(super) struct Stragglers {
    pub(super) in_flight: InFlight,
    pub(super) waits: Waits,
}

impl Stragglers {
    fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.waits.is_empty()
    }

    fn poll_next(
        &mut self,
        shared: &Shared,
        cx: &mut task::Context<'_>,
    ) -> Poll<(RequestId, Response)> {
        if let Poll::Ready(Some(answered)) = self.in_flight.poll_answered(cx) {
            shared.sample(&answered);
            return Poll::Ready((answered.id, answered.response));
        }
        self.waits.poll_next(cx)
    }
}

impl LockInner {
    pub(super) fn new(shared: &Arc<Shared>, hold: Hold, stragglers: Stragglers) -> Arc<Self> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let (spec, fence) = (Arc::clone(hold.spec()), hold.fence());
        if let Some(slot) = spec.slot() {
            shared.queues.slot_acquired(spec.name(), slot);
        }
        Arc::new(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            shared: Arc::clone(shared),
            spec,
            fence,
            hold: Mutex::new(hold),
            stragglers: Mutex::new(stragglers),
            handled: Notify::new(),
            extending: Mutex::default(),
            renewed: AtomicBool::new(false),
            ended: Notify::new(),
        })
    }

    fn hold(&self) -> MutexGuard<'_, Hold> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the machine and carries out its actions.
    ///
    /// `send` is called under the mutex of the machine. What it passes to a connection there, no
    /// later RELEASE can overtake.
    pub(super) fn with_hold<T>(
        self: &Arc<Self>,
        call: impl FnOnce(&mut Hold, &mut Context<'_>) -> T,
        mut send: impl FnMut(&Spec, OutgoingRequest),
    ) -> T {
        let (mut verdicts, mut incomplete) = (Vec::new(), false);
        let mut releases = Vec::new();
        let result = {
            let mut hold = self.hold();
            let result = self.shared.with_context(|ctx| call(&mut hold, ctx));
            while let Some(action) = hold.poll() {
                match action {
                    HoldAction::Send(request) => send(hold.spec(), request),
                    HoldAction::Decided { round, verdict } => verdicts.push((round, verdict)),
                    HoldAction::Repaired(granted) => telemetry::repaired(granted),
                    HoldAction::Incomplete => incomplete = true,
                    HoldAction::Wait { id } => self.open_wait_connection(id),
                    HoldAction::Release(release) => releases.push(release),
                    HoldAction::Suspect { node, connection } => {
                        self.shared.suspect(node, connection);
                    }
                }
            }
            result
        };
        for release in releases {
            Releasing::without_waits(&self.shared, *release).finish_later();
        }
        if verdicts.is_empty() && incomplete && self.renewed.load(Ordering::Relaxed) {
            self.shared.renewer.reschedule(self);
        }
        for (round, verdict) in verdicts {
            self.handle_verdict(round, verdict);
        }
        result
    }

    /// Handles the answers to earlier requests that have arrived.
    pub(super) fn handle_stragglers(self: &Arc<Self>) {
        let mut cx = task::Context::from_waker(Waker::noop());
        loop {
            // The mutex is unlocked before the response is handled.
            let answered = self.stragglers().poll_next(&self.shared, &mut cx);
            let Poll::Ready((id, response)) = answered else { break };
            self.handle_straggler(id, &response);
        }
        if self.renewed.load(Ordering::Relaxed) {
            self.handled.notify_one();
        }
    }

    fn stragglers(&self) -> MutexGuard<'_, Stragglers> {
        self.stragglers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_straggler(self: &Arc<Self>, id: RequestId, response: &Response) {
        self.with_hold(|hold, ctx| hold.handle_response(id, response, ctx), |_, _| {});
    }

    /// Stands in line on a node that misses the lock, once there is a connection for that.
    fn open_wait_connection(self: &Arc<Self>, id: RequestId) {
        let (this, runtime) = (Arc::clone(self), self.shared.runtime.clone());
        let wait_connections = Arc::clone(&self.shared.nodes[id.node].wait_connections);
        self.shared.runtime.spawn(async move {
            let connection = match wait_connections.checkout().await {
                Ok(connection) => connection,
                Err(error) => return this.handle_straggler(id, &Response::Failed(error)),
            };
            let stand = |hold: &mut Hold, ctx: &mut Context<'_>| {
                if let Some(request) = hold.handle_wait_connection(id, ctx) {
                    let outgoing = Outgoing::new(hold.spec(), &request);
                    // Under the mutex of the machine, so that a release awaits the response.
                    this.stragglers().waits.push(id, connection.ask(outgoing, &runtime));
                }
            };
            this.with_hold(stand, |_, _| {});
            this.await_stragglers().await;
        });
    }

    /// Handles the stragglers of a renewed lock as they arrive, and stands in front where the lock
    /// is missing. Ends with the lock, or when nothing is left to do.
    async fn await_stragglers(self: Arc<Self>) {
        let ended = self.ended.notified();
        tokio::pin!(ended);
        // From `enable` on, this task notices the end. After an earlier release, no straggler is
        // left.
        ended.as_mut().enable();
        loop {
            let front_at = self.hold().front_at();
            if self.stragglers().is_empty() && front_at.is_none() {
                return;
            }
            let next = poll_fn(|cx| self.stragglers().poll_next(&self.shared, cx));
            tokio::select! {
                (id, response) = next => self.handle_straggler(id, &response),
                () = sleep_until(front_at) => {
                    self.with_hold(|hold, ctx| hold.stand_in_front(ctx), |_, _| {});
                }
                () = self.handled.notified() => {}
                () = &mut ended => return,
            }
        }
    }

    fn handle_verdict(self: &Arc<Self>, round: u32, verdict: ExtensionVerdict) {
        telemetry::extended(self, verdict);
        if matches!(verdict, ExtensionVerdict::Lost) {
            self.ended.notify_waiters();
        }
        if self.renewed.load(Ordering::Relaxed) {
            self.shared.renewer.reschedule(self);
        }
        let answered =
            self.extending().extract_if(.., |(awaited, _)| *awaited <= round).collect::<Vec<_>>();
        for (_, call) in answered {
            let _ = call.send(verdict);
        }
    }

    fn extending(&self) -> MutexGuard<'_, Vec<(u32, oneshot::Sender<ExtensionVerdict>)>> {
        self.extending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the nodes' time to answer the last round; `None` once that time is over.
    pub(super) fn node_timeout_at(&self) -> Option<Moment> {
        self.hold().poll_timeout()
    }

    /// See [`Hold::round_ends_at`].
    pub(super) fn round_ends_at(&self) -> Option<Moment> {
        self.hold().round_ends_at()
    }

    /// Tells all calls that wait for a verdict that none will come.
    pub(super) fn fail_calls(&self) {
        self.extending().clear();
    }

    /// The call receives the verdict of this round, or of a round that replaces it.
    pub(super) fn register_call(&self, round: u32, call: oneshot::Sender<ExtensionVerdict>) {
        self.extending().push((round, call));
    }

    /// Whether the lock is held, and for how long. A released lock counts as lost.
    pub(crate) fn ownership(&self) -> quorum::Ownership {
        let hold = self.hold();
        // The clock is read under the mutex, since a wait for the mutex uses up validity.
        hold.ownership(clock::now())
    }

    pub(crate) fn ownership_with_deadline(&self) -> Ownership {
        let now = clock::now();
        match self.ownership() {
            quorum::Ownership::Held(left) => Ownership::Held(Deadline::new(now, left)),
            quorum::Ownership::Uncertain(left) => Ownership::Uncertain(Deadline::new(now, left)),
            quorum::Ownership::Lost(_) => Ownership::Lost,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.ownership() {
            quorum::Ownership::Held(left) | quorum::Ownership::Uncertain(left) => left,
            quorum::Ownership::Lost(_) => Duration::ZERO,
        }
    }

    /// The spec with the current mode, which a downgrade changes.
    pub(super) fn current_spec(&self) -> Arc<Spec> {
        Arc::clone(self.hold().spec())
    }

    pub(crate) fn mode(&self) -> Mode {
        self.hold().mode()
    }

    pub(crate) fn held_for(&self) -> Duration {
        self.hold().held_for(clock::now())
    }

    pub(crate) fn coverage(self: &Arc<Self>) -> Coverage {
        self.handle_stragglers();
        let view = self.shared.view.load();
        Coverage { held: self.hold().coverage(&view.topology), nodes: self.shared.nodes.len() }
    }

    pub(crate) fn report(self: &Arc<Self>) -> NodeAnswers {
        self.handle_stragglers();
        self.shared.report(self.hold().answers().cloned())
    }

    /// Whether an extension could prolong the lock. Fails if the lock has ended.
    pub(crate) fn is_extensible(self: &Arc<Self>) -> Result<bool, LostError> {
        let now = clock::now();
        if let quorum::Ownership::Lost(end) = self.ownership() {
            return Err(self.loss_of(end));
        }
        Ok(self.hold().is_extensible(now))
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.hold().is_revoked()
    }

    /// How soon the next extension is due, and how much earlier it may be sent together with
    /// extensions of other locks; `None` if no extension follows.
    pub(super) fn renew_in(&self) -> Option<(Duration, Duration)> {
        let hold = self.hold();
        Some((hold.renew_in(clock::now())?, hold.renewal_window()))
    }

    /// Waits for the end of the lock, at its deadline at the latest. Returns why it was lost, or
    /// `None` when it was released or detached.
    pub(crate) async fn ended(self: &Arc<Self>) -> Option<LostError> {
        loop {
            // From `enable` on, this task notices the end.
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            match self.validity_or_end() {
                Err(end) => return end,
                Ok(left) => tokio::select! {
                    () = ended => {}
                    () = sleep(left.min(DEADLINE_CHECK_EVERY)) => {}
                },
            }
        }
    }

    /// Returns the validity that is left. The error is what `ended` returns.
    pub(crate) fn validity_or_end(self: &Arc<Self>) -> Result<Duration, Option<LostError>> {
        let (was_given_up, ownership) = {
            let hold = self.hold();
            (hold.was_given_up(), hold.ownership(clock::now()))
        };
        match ownership {
            _ if was_given_up => Err(None),
            quorum::Ownership::Lost(end) => Err(Some(self.loss_of(end))),
            quorum::Ownership::Held(left) | quorum::Ownership::Uncertain(left) => Ok(left),
        }
    }

    pub(crate) fn was_given_up(&self) -> bool {
        self.hold().was_given_up()
    }

    pub(crate) fn renew(self: &Arc<Self>) {
        if !self.renewed.swap(true, Ordering::Relaxed) {
            self.handle_stragglers();
            self.hold().renew();
            if !self.stragglers().is_empty() || self.hold().front_at().is_some() {
                self.shared.runtime.spawn(Arc::clone(self).await_stragglers());
            }
        }
        self.shared.renewer.renew(self);
    }

    /// Begins the release on all nodes. Returns the ownership before the release, and the release.
    fn begin_release(self: &Arc<Self>) -> (quorum::Ownership, Releasing) {
        self.handle_stragglers();
        let (ownership, release) = self.with_hold(|hold, ctx| hold.release(ctx), |_, _| {});
        let releasing = Releasing::new(&self.shared, release, &mut self.stragglers().waits);
        if let Some(slot) = self.spec.slot() {
            self.shared.queues.slot_freed(self.spec.name(), slot);
        }
        self.clean_up_after_end();
        (ownership, releasing)
    }

    fn clean_up_after_end(&self) {
        // Later answers no longer matter.
        *self.stragglers() = Stragglers::default();
        self.ended.notify_waiters();
        if self.renewed.load(Ordering::Relaxed) {
            self.shared.renewer.forget(self);
        }
    }

    pub(crate) fn release_in_background(self: &Arc<Self>) {
        self.begin_release().1.finish_later();
    }

    /// See [`crate::Lock::release`].
    pub(crate) async fn release(self: &Arc<Self>) -> Result<Released, ReleaseError> {
        let (ownership, releasing) = self.begin_release();
        if let quorum::Ownership::Lost(_) = ownership {
            releasing.finish_later();
            telemetry::released(self, Some(Released::AlreadyOver));
            return Ok(Released::AlreadyOver);
        }
        let mut dropped = DroppedRelease(Some(self));
        let (verdict, answers) = releasing.wait_for_verdict().await;
        dropped.0 = None;
        let released = match verdict {
            Some(ReleaseVerdict::Released) => Ok(Released::Released),
            Some(ReleaseVerdict::AlreadyOver) => {
                self.hold().handle_released(answers.into_iter());
                Ok(Released::AlreadyOver)
            }
            Some(ReleaseVerdict::Unconfirmed) | None => {
                Err(ReleaseError::NoQuorum { nodes: self.shared.report(answers) })
            }
        };
        telemetry::released(self, released.as_ref().ok().copied());
        released
    }

    pub(crate) fn token(&self) -> Token {
        self.hold().token()
    }

    /// Returns the token and the validity that is left.
    pub(crate) fn detach(self: &Arc<Self>) -> (Token, Duration) {
        let (token, left) = {
            let mut hold = self.hold();
            // The clock is read under the mutex: see `ownership`.
            (hold.token(), hold.detach(clock::now()).unwrap_or_default())
        };
        self.clean_up_after_end();
        (token, left)
    }

    pub(crate) fn loss_of(self: &Arc<Self>, end: LossReason) -> LostError {
        match end {
            LossReason::NotHeld | LossReason::Expired if self.is_revoked() => {
                LostError::Revoked { nodes: self.report() }
            }
            LossReason::NotHeld => LostError::Ended { nodes: self.report() },
            LossReason::Expired => LostError::Expired { nodes: self.report() },
            LossReason::HeldTooLong => {
                LostError::HeldTooLong { max_hold: self.spec.max_hold.unwrap_or(Duration::MAX) }
            }
        }
    }
}

/// Records a lock as dropped, if its release is dropped before the verdict.
struct DroppedRelease<'a>(Option<&'a Arc<LockInner>>);

impl Drop for DroppedRelease<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.0 {
            telemetry::dropped(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorlock_testkit::Masters;
    use tokio::time::{Duration, timeout};

    use crate::clock::tests::sleep_through;
    use crate::{LostError, Ownership, Quorum};

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn lock_is_lost_when_the_machine_wakes_after_the_deadline() {
        let masters = Masters::start(3);
        let quorum =
            Quorum::builder().nodes(masters.urls()).node_timeout(SOON).connect().await.unwrap();
        let lock = quorum.lock("k").ttl(Duration::from_secs(30)).acquire().await.unwrap();
        let watch = lock.watch();
        let waiting = tokio::spawn(async move { watch.lost().await });
        // The waiting task sets its timer before the machine sleeps.
        tokio::task::yield_now().await;
        sleep_through(Duration::from_secs(30));
        assert_eq!(lock.ownership(), Ownership::Lost);
        let lost = timeout(SOON, waiting)
            .await
            .expect("the task did not notice the loss in time")
            .unwrap();
        assert!(matches!(lost, LostError::Expired { .. }), "{lost}");
    }

    #[tokio::test]
    async fn requests_are_sent_before_a_release_can_begin() {
        let masters = Masters::start(3);
        let quorum = Quorum::connect(masters.urls()).await.unwrap();
        let lock = quorum.lock("k").acquire().await.unwrap();
        let (inner, mut sent) = (Arc::clone(lock.inner()), 0);
        inner.with_hold(
            |hold, ctx| hold.extend(ctx),
            |_, _| {
                sent += 1;
                assert!(inner.hold.try_lock().is_err(), "a release could overtake the request");
            },
        );
        assert_eq!(sent, 3);
    }

    #[tokio::test]
    async fn renewed_lock_is_extended_when_the_machine_wakes() {
        let masters = Masters::start(3);
        let quorum =
            Quorum::builder().nodes(masters.urls()).node_timeout(SOON).connect().await.unwrap();
        let mut lock = quorum.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        lock.renew();
        tokio::task::yield_now().await;
        sleep_through(Duration::from_secs(40));
        assert!(lock.remaining() < Duration::from_secs(20));
        quorlock_testkit::eventually_async(SOON, "it is extended", async || {
            lock.remaining() > Duration::from_secs(55)
        })
        .await;
    }
}
