use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{Context, Hold, Mode, Shard, Spec, Token};
use quorlock_core::quorum::{self, ExtensionVerdict, LossReason, ReleaseVerdict};
use quorlock_core::{Answer, Fence};
use scopeguard::{ScopeGuard, guard};
use tokio::sync::{Notify, oneshot};

use crate::driver::{Network, ReleaseResult, Shards, State};
use crate::{
    Coverage, ExtendError, LostError, NodeAnswers, ReleaseError, Released, clock, telemetry,
};

/// A held lock, which its handle and its watches share.
pub(crate) struct LockInner {
    pub(crate) shards: Arc<Shards>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) fence: Fence,
    pub(crate) token: Token,
    /// Which of several keys it is on, also after it was detached and attached.
    pub(crate) slot: Option<usize>,
    /// The index of its shard, and its number there.
    index: usize,
    number: u64,
    /// Notifies watches of the end of the lock.
    pub(super) ended: Notify,
}

/// [`Shard::extend`] or [`Shard::downgrade`].
type BeginRound = fn(&mut Shard, u64, &mut Context<'_>) -> Option<u32>;

impl LockInner {
    /// The lock that the call with this number has acquired; `None` if the caller learned of it so
    /// late that too little of its validity is left.
    pub(crate) fn acquired(
        shards: &Arc<Shards>,
        index: usize,
        number: u64,
        attempts: u32,
        slot: Option<usize>,
    ) -> Option<Arc<Self>> {
        let lock = shards.with_state(index, |state| {
            let hold = state.machines.hold(number)?;
            hold.is_learned_in_time(clock::now()).then(|| Self {
                shards: Arc::clone(shards),
                spec: Arc::clone(hold.spec()),
                fence: hold.fence(),
                token: hold.token(),
                slot: slot.or(hold.spec().slot()),
                index,
                number,
                ended: Notify::new(),
            })
        })?;
        tracing::debug!(attempts, coverage = %lock.coverage(), nodes = %lock.report(), "granted");
        Some(Arc::new(lock))
    }

    fn with_shard<T>(&self, event: impl FnOnce(&mut State, &mut Context<'_>) -> T) -> T {
        self.shards.with_shard(self.index, event)
    }

    /// Reads the machine of the lock; `None` once the lock was dropped.
    fn read<T>(&self, read: impl FnOnce(&Hold) -> T) -> Option<T> {
        self.shards.with_state(self.index, |state| state.machines.hold(self.number).map(read))
    }

    /// Whether the lock is held, and for how long. A released lock counts as lost.
    pub(crate) fn ownership(&self) -> quorum::Ownership {
        // The clock is read under the mutex, since a wait for the mutex uses up validity.
        let ownership = self.read(|hold| hold.ownership(clock::now()));
        ownership.unwrap_or(quorum::Ownership::Lost(LossReason::GivenUp))
    }

    /// The present mode, which a downgrade changes.
    pub(crate) fn mode(&self) -> Mode {
        self.read(Hold::mode).unwrap_or(self.spec.mode)
    }

    pub(crate) fn held_for(&self) -> Duration {
        self.read(|hold| hold.held_for(clock::now())).unwrap_or_default()
    }

    pub(crate) fn coverage(&self) -> Coverage {
        let view = self.shards.network.view.load();
        let held = self.read(|hold| hold.coverage(&view.topology)).unwrap_or_default();
        Coverage { held, nodes: self.shards.network.nodes.len() }
    }

    pub(crate) fn report(&self) -> NodeAnswers {
        let answers: Vec<Answer> =
            self.read(|hold| hold.answers().cloned().collect()).unwrap_or_default();
        self.shards.network.report(answers)
    }

    /// Whether an extension could prolong the lock. Fails if the lock has ended.
    fn is_extensible(&self) -> Result<bool, ExtendError> {
        if let quorum::Ownership::Lost(end) = self.ownership() {
            return Err(match self.loss_of(end) {
                LostError::HeldTooLong { max_hold } => ExtendError::HeldTooLong { max_hold },
                LostError::Ended { nodes }
                | LostError::Expired { nodes }
                | LostError::Revoked { nodes } => ExtendError::Lost { nodes },
            });
        }
        Ok(self.read(|hold| hold.is_extensible(clock::now())).unwrap_or_default())
    }

    fn is_revoked(&self) -> bool {
        self.read(Hold::is_revoked).unwrap_or_default()
    }

    /// Returns the validity that is left. The error is why the lock was lost, or `None` when it was
    /// released or detached.
    pub(crate) fn validity_or_end(&self) -> Result<Duration, Option<LostError>> {
        match self.ownership() {
            quorum::Ownership::Lost(LossReason::GivenUp) => Err(None),
            quorum::Ownership::Lost(end) => Err(Some(self.loss_of(end))),
            quorum::Ownership::Held(left) | quorum::Ownership::Uncertain(left) => Ok(left),
        }
    }

    pub(crate) fn was_given_up(&self) -> bool {
        self.read(Hold::was_given_up).unwrap_or(true)
    }

    pub(crate) fn renew(self: &Arc<Self>) {
        self.with_shard(|state, _| {
            state.locks.insert(self.number, Arc::downgrade(self));
            state.machines.renew(self.number);
        });
    }

    /// Runs an extension or a downgrade.
    pub(crate) async fn run_round(self: &Arc<Self>, begin: BeginRound) -> Result<(), ExtendError> {
        // A lock that has ended by this machine's clocks is not extended: another client may hold
        // it.
        if !self.is_extensible()? {
            if self.is_revoked() {
                return Err(ExtendError::Revoked { nodes: self.report() });
            }
            let max_hold = self.spec.max_hold.unwrap_or(Duration::MAX);
            return Err(ExtendError::HeldTooLong { max_hold });
        }
        let (call, verdict) = oneshot::channel();
        self.with_shard(|state, ctx| {
            state.locks.insert(self.number, Arc::downgrade(self));
            if let Some(round) = begin(&mut state.machines, self.number, ctx) {
                state.callers.rounds.push((self.number, round, call));
            }
        });
        // The round continues for late answers and repairs. It has no verdict if the lock ended
        // before, or if the runtime has ended.
        let verdict = verdict.await;
        self.is_extensible()?;
        match verdict {
            Ok(ExtensionVerdict::Extended(_)) => Ok(()),
            _ if verdict.is_err() || self.shards.network.has_no_runtime() => {
                Err(ExtendError::RuntimeEnded)
            }
            _ if self.is_revoked() => Err(ExtendError::Revoked { nodes: self.report() }),
            // A majority has answered since the verdict.
            _ if matches!(self.ownership(), quorum::Ownership::Held(_)) => Ok(()),
            _ => Err(ExtendError::NoQuorum { nodes: self.report() }),
        }
    }

    pub(crate) fn release_in_background(&self) {
        self.with_shard(|state, ctx| {
            state.machines.release(self.number, ctx);
            state.machines.forget(self.number);
        });
        self.ended.notify_waiters();
    }

    /// See [`crate::Lock::release`].
    pub(crate) async fn release(&self) -> Result<Released, ReleaseError> {
        let (result, verdict) = oneshot::channel();
        let ownership = self.with_shard(|state, ctx| {
            let (ownership, release) = state.machines.release(self.number, ctx)?;
            state.callers.releases.insert(release, result);
            Some(ownership)
        });
        self.ended.notify_waiters();
        if let None | Some(quorum::Ownership::Lost(_)) = ownership {
            telemetry::ended(self, "already_over");
            return Ok(Released::AlreadyOver);
        }
        let dropped = guard((), |()| telemetry::ended(self, "dropped"));
        let verdict = verdict.await.ok();
        ScopeGuard::into_inner(dropped);
        if let Some((ReleaseVerdict::AlreadyOver, answers)) = &verdict {
            let answers = answers.iter().cloned();
            self.with_shard(|state, _| state.machines.handle_released(self.number, answers));
        }
        let released = released(&self.shards.network, verdict);
        let outcome = match &released {
            Ok(Released::Released) => "released",
            Ok(Released::AlreadyOver) => "already_over",
            Err(_) => "unconfirmed",
        };
        telemetry::ended(self, outcome);
        released
    }

    /// Called after each verdict on an extension, without the mutex of the machines.
    pub(crate) fn on_verdict(&self, verdict: ExtensionVerdict) {
        telemetry::extended(self, verdict);
        if matches!(verdict, ExtensionVerdict::Lost) {
            self.ended.notify_waiters();
        }
    }

    /// Gives the lock up for another process to attach. Returns the validity that is left.
    pub(crate) fn detach(&self) -> Duration {
        let detached = self.with_shard(|state, ctx| state.machines.detach(self.number, ctx));
        self.ended.notify_waiters();
        detached.map(|(_, left)| left).unwrap_or_default()
    }

    pub(crate) fn loss_of(&self, end: LossReason) -> LostError {
        match end {
            LossReason::NotHeld | LossReason::GivenUp | LossReason::Expired
                if self.is_revoked() =>
            {
                LostError::Revoked { nodes: self.report() }
            }
            LossReason::NotHeld | LossReason::GivenUp => LostError::Ended { nodes: self.report() },
            LossReason::Expired => LostError::Expired { nodes: self.report() },
            LossReason::HeldTooLong => {
                LostError::HeldTooLong { max_hold: self.spec.max_hold.unwrap_or(Duration::MAX) }
            }
        }
    }
}

impl Drop for LockInner {
    fn drop(&mut self) {
        self.shards.with_state(self.index, |state| {
            state.locks.remove(&self.number);
            state.machines.forget(self.number);
        });
    }
}

/// Releases the token of a detached lock on all nodes.
pub(crate) async fn release_token(
    shards: &Arc<Shards>,
    token: Token,
    spec: Spec,
) -> Result<Released, ReleaseError> {
    let (result, verdict) = oneshot::channel();
    shards.with_shard(shards.of(spec.name()), |state, ctx| {
        let release = state.machines.release_token(token, &Arc::new(spec), ctx);
        state.callers.releases.insert(release, result);
    });
    released(&shards.network, verdict.await.ok())
}

fn released(network: &Network, result: Option<ReleaseResult>) -> Result<Released, ReleaseError> {
    match result {
        Some((ReleaseVerdict::Released, _)) => Ok(Released::Released),
        Some((ReleaseVerdict::AlreadyOver, _)) => Ok(Released::AlreadyOver),
        Some((ReleaseVerdict::Unconfirmed, answers)) => {
            Err(ReleaseError::NoQuorum { nodes: network.report(answers) })
        }
        None => Err(ReleaseError::NoQuorum { nodes: network.report([]) }),
    }
}

#[cfg(test)]
mod tests {
    use quorlock_testkit::Nodes;
    use tokio::time::{Duration, timeout};

    use crate::clock::tests::sleep_through;
    use crate::{Lock, LostError, Ownership, Quorum};

    const SOON: Duration = Duration::from_secs(5);

    async fn acquire(ttl: Duration) -> (Nodes, Lock) {
        let nodes = Nodes::start(3);
        let quorum = Quorum::builder().nodes(nodes.urls()).node_timeout(SOON);
        let lock = quorum.connect().await.unwrap().lock("k").ttl(ttl).acquire().await.unwrap();
        (nodes, lock)
    }

    #[tokio::test]
    async fn lock_is_lost_when_the_machine_wakes_after_the_deadline() {
        let (_nodes, lock) = acquire(Duration::from_secs(30)).await;
        let watch = lock.watch();
        let waiting = tokio::spawn(async move { watch.lost().await });
        // The waiting task sets its timer before the machine sleeps.
        tokio::task::yield_now().await;
        sleep_through(Duration::from_secs(30));
        assert_eq!(lock.ownership(), Ownership::Lost);
        let lost = timeout(SOON, waiting).await.expect("the task noticed no loss").unwrap();
        assert!(matches!(lost, LostError::Expired { .. }), "{lost}");
    }

    #[tokio::test]
    async fn renewed_lock_is_extended_when_the_machine_wakes() {
        let (_nodes, mut lock) = acquire(Duration::from_secs(60)).await;
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
