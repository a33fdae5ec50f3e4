use std::convert::Infallible;
use std::fmt;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use quorlock_core::client::{Context, Failure, Keys, Mode, Reason, Shard, Spec, limits};
use quorlock_core::{Answer, NodeError, Ttl};
use scopeguard::{ScopeGuard, guard};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tracing::Instrument as _;

use super::lock_inner::LockInner;
use super::queries::{self, PERMITS_MAX};
use crate::driver::Shards;
use crate::{
    AcquireError, AttachError, DetachedLock, Holder, Lock, LockWatch, RunError, telemetry,
};

const DEFAULT_WAIT: Duration = Duration::from_secs(10);

/// Describes a lock and how to acquire it. Made by [`Quorum::lock`](crate::Quorum::lock),
/// [`lock_all`](crate::Quorum::lock_all), [`lock_any`](crate::Quorum::lock_any) and
/// [`semaphore`](crate::Quorum::semaphore).
#[derive(Clone)]
#[must_use = "a builder locks nothing: call acquire or try_acquire"]
pub struct LockBuilder {
    shards: Arc<Shards>,
    keys: Keys,
    kind: Kind,
    mode: Mode,
    ttl: Duration,
    wait: Duration,
    min_validity: Option<Duration>,
    node_timeout: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<String>,
}

/// Which of the keys a lock takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    All,
    Any,
    /// A slot of a semaphore with this number of permits.
    Permits(usize),
}

impl LockBuilder {
    pub(crate) fn new(kind: Kind, shards: Arc<Shards>, keys: Keys) -> Self {
        Self {
            shards,
            keys,
            kind,
            mode: Mode::Exclusive,
            ttl: Ttl::DEFAULT.duration(),
            wait: DEFAULT_WAIT,
            min_validity: None,
            node_timeout: None,
            max_hold: None,
            owner: None,
        }
    }

    /// For readers: shares the lock with other clients that ask to share it.
    ///
    /// Any number of readers hold the lock at a time, and none while an exclusive holder has it. A
    /// reader that comes after a waiting writer waits for that writer.
    ///
    /// A reader cannot become a writer, because two readers that tried would wait for each other.
    /// Release the shared lock, acquire an exclusive one, and read again. A writer becomes a reader
    /// with [`Lock::downgrade`](crate::Lock::downgrade).
    ///
    /// Fences of readers that hold the lock at the same time may be equal. Each is larger than that
    /// of every earlier exclusive holder, and smaller than that of every later one.
    ///
    /// Locks of [several keys](crate::Quorum::lock_all), locks on [one of
    /// several](crate::Quorum::lock_any) and permits cannot be shared:
    /// [`AcquireError::InvalidRequest`].
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// How long the lock lasts unless it is extended or released. Default: 10 s.
    ///
    /// Whole milliseconds, at most the nodes' `lock.max-ttl`. A holder that dies blocks other
    /// clients for up to this time.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long [`acquire`](Self::acquire) waits for the lock in total. Default: 10 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The least validity that a new lock must have left. Default: half the ttl.
    ///
    /// A grant with less is released, so that no work begins in a lock's last milliseconds. The
    /// time limit of a node is such a minimum, too, up to a quarter of the ttl.
    pub fn min_validity(mut self, min_validity: Duration) -> Self {
        self.min_validity = Some(min_validity);
        self
    }

    /// How long a node may take to answer before it counts as silent. Default: derived.
    ///
    /// The derived limit is four measured round trips of that node, at least 50 ms, and at most a
    /// quarter of the ttl. [`QuorumBuilder::node_timeout`](crate::QuorumBuilder::node_timeout) sets
    /// a default.
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = Some(limit);
        self
    }

    /// The longest time from the grant to the end of the lock. Default: no limit.
    ///
    /// At that time the lock is lost, however often it was extended. A limit keeps a program that
    /// hangs from blocking other clients for ever.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// A label for people, at most 256 bytes. Default: host name and process id, as `web-3:4711`.
    ///
    /// [`Quorum::inspect`](crate::Quorum::inspect) and `LOCK.INSPECT` show it.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Tries once to acquire the lock, without waiting for its holder.
    ///
    /// Returns as soon as a majority of the nodes has decided.
    ///
    /// # Errors
    /// [`AcquireError::Held`], [`AcquireError::NoQuorum`], [`AcquireError::InsufficientValidity`]
    /// or [`AcquireError::InvalidRequest`].
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background on nodes that may have granted it.
    pub async fn try_acquire(&self) -> Result<Lock, AcquireError> {
        self.acquire_within(Some(Duration::ZERO)).await
    }

    /// Acquires the lock within `wait`; `None` is no limit.
    async fn acquire_within(&self, wait: Option<Duration>) -> Result<Lock, AcquireError> {
        let started = Instant::now();
        let span = tracing::debug_span!("acquire", key = %self.keys);
        let outcome = match self.spec() {
            Ok(spec) => {
                // Pinned here, because the call is large, and the futures around it are moved.
                let acquiring = run_call(&self.shards, spec, None, |shard, spec, ctx| {
                    shard.call(spec, wait, ctx)
                });
                let acquiring = pin!(acquiring.instrument(span.clone()));
                let may_wait = wait != Some(Duration::ZERO);
                let (acquired, holder) = self.end_of(acquiring, wait).await;
                acquired
                    .map(Lock::new)
                    .map_err(|failure| self.acquire_error(failure, holder, may_wait))
            }
            Err(reason) => Err(AcquireError::InvalidRequest { reason }),
        };
        span.in_scope(|| telemetry::acquired(&outcome, started));
        outcome
    }

    /// Awaits the end of a call. Also returns who holds the lock, if the call fails because another
    /// client does.
    ///
    /// A call that waits asks for the holder shortly before its wait ends, so that its error is not
    /// late. A call that does not wait, or hardly, asks nothing: its refusal would cost a round
    /// trip more. A call that waits for a permit, or was refused one, also compares the numbers of
    /// permits.
    async fn end_of<T>(
        &self,
        mut call: impl Future<Output = Result<T, Failure>> + Unpin,
        wait: Option<Duration>,
    ) -> (Result<T, Failure>, Option<Holder>) {
        let limit = self.shards.network.typical_timeout();
        let ask_in = wait.and_then(|wait| wait.checked_sub(limit));
        let asking = async {
            sleep(ask_in.unwrap_or_default()).await;
            self.holder().await
        };
        let comparing = async {
            sleep(limits::WAIT_SLICE / 2).await;
            self.check_permits();
            pending::<Infallible>().await
        };
        let (outcome, holder) = tokio::select! {
            biased;
            outcome = &mut call => (outcome, None),
            never = comparing, if matches!(self.kind, Kind::Permits(_)) => match never {},
            holder = asking, if ask_in.is_some() => (call.await, holder),
        };
        if matches!(&outcome, Err(failure) if failure.reason == Reason::Held) {
            self.check_permits();
        }
        (outcome, holder)
    }

    /// Asks the nodes who holds the lock now, for a message to people; `None` if it is free, or if
    /// the nodes do not answer within a few round trips.
    ///
    /// [`AcquireError::TimedOut`] names the holder already, unless the wait was very short. A
    /// program can use this after a refusal, or to say for whom it waits.
    /// [`Quorum::inspect`](crate::Quorum::inspect) tells more.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn holder(&self) -> Option<Holder> {
        let limit = self.shards.network.typical_timeout();
        queries::main_lease(&self.shards.network, &self.keys, limit).await.map(Holder::of)
    }

    /// Checks in the background whether another client uses more permits, if all are taken.
    fn check_permits(&self) {
        let Kind::Permits(permits) = self.kind else { return };
        let Some(name) = queries::name_of(self.keys.first()) else { return };
        let begins = self.shards.with_shard(self.shards.of(&self.keys), |state, ctx| {
            state.machines.begins_permit_check(&self.keys, ctx.now)
        });
        if !begins {
            return;
        }
        let (name, network) = (name.to_vec(), Arc::clone(&self.shards.network));
        self.shards.network.runtime.spawn(async move {
            if let Some(larger) = queries::larger_permits(&network, &name, permits).await {
                tracing::warn!(
                    semaphore = %String::from_utf8_lossy(&name),
                    permits,
                    larger,
                    "another client uses a larger number of permits: use the same number everywhere"
                );
            }
        });
    }

    fn acquire_error(
        &self,
        failure: Failure,
        holder: Option<Holder>,
        may_wait: bool,
    ) -> AcquireError {
        let nodes = self.shards.network.report(failure.answers);
        match failure.reason {
            Reason::Held if may_wait => {
                AcquireError::TimedOut { waited: failure.took, nodes, holder }
            }
            Reason::Held => AcquireError::Held { nodes, holder },
            Reason::NoQuorum => AcquireError::NoQuorum { nodes },
            Reason::InsufficientValidity => AcquireError::InsufficientValidity { nodes },
            Reason::NoRandom => AcquireError::InvalidRequest { reason: no_random() },
        }
    }

    /// Acquires the lock, and waits up to [`wait`](Self::wait) while another client holds it.
    ///
    /// The call stands in line on all nodes, which have the same order. They grant the lock to the
    /// first in line as soon as the holder releases it. Calls of one client for the same keys queue
    /// in the program. The first of them stands in line, as do calls that share its lock.
    ///
    /// # Errors
    /// [`AcquireError::TimedOut`] when other clients held the lock until the end of the wait.
    /// Otherwise the errors of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// Dropping the future leaves all queues, and releases the lock in the background on all nodes
    /// that may have granted it.
    pub async fn acquire(&self) -> Result<Lock, AcquireError> {
        // A wait that the clock cannot represent has no end.
        let wait = Some(self.wait).filter(|wait| Instant::now().checked_add(*wait).is_some());
        self.acquire_within(wait).await
    }

    /// [Acquires](Self::acquire) the lock, runs `work` under it, and releases it.
    ///
    /// The lock is renewed until the work is finished. When the lock is lost, the work is dropped
    /// at the await point that it has reached, or reaches next.
    ///
    /// ```no_run
    /// # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn write_report(fence: quorlock_client::Fence) -> std::io::Result<u32> { Ok(1) }
    /// let nightly = quorum.lock("nightly");
    /// let pages = nightly.run(|lock| async move { write_report(lock.fence()).await }).await??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`RunError::NotAcquired`]: the lock was not acquired, and the work did not begin.
    /// - [`RunError::Lost`]: the lock was lost before it was released.
    ///
    /// Errors of the work are inside the `Ok`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    pub async fn run<T, F>(&self, work: impl FnOnce(LockWatch) -> F) -> Result<T, RunError>
    where
        F: Future<Output = T>,
    {
        let mut lock = self.acquire().await.map_err(RunError::NotAcquired)?;
        lock.renew();
        let watch = lock.watch();
        let output = {
            let mut work = pin!(work(watch.clone()));
            let mut ended = pin!(watch.ended());
            poll_fn(|cx| {
                // Timers fire late in a process that was paused, so each poll reads the clock
                // first.
                if let Err(end) = watch.inner.validity_or_end() {
                    return Poll::Ready(Err(end));
                }
                if let Poll::Ready(end) = ended.as_mut().poll(cx) {
                    return Poll::Ready(Err(end));
                }
                work.as_mut().poll(cx).map(Ok)
            })
            .await
            // The work is dropped here, before the lock is released.
        };
        let output = match output {
            Ok(output) => output,
            Err(Some(lost)) => return Err(RunError::Lost { lost, finished: false }),
            Err(None) => unreachable!("only this function releases the lock"),
        };
        lock.finish().await.map_err(|lost| RunError::Lost { lost, finished: true })?;
        Ok(output)
    }

    /// Attaches a lock that another process [detached](crate::Lock::detach).
    ///
    /// The lock lasts for the [`ttl`](Self::ttl) from now, with a new and larger fence.
    ///
    /// # Errors
    /// [`AttachError`]. After [`AttachError::InvalidRequest`], no node was asked. After any other,
    /// do not attach the lock again: the client releases it on nodes that attached it.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background on nodes that attached it.
    pub async fn attach(&self, detached: DetachedLock) -> Result<Lock, AttachError> {
        let invalid = |reason| AttachError::InvalidRequest { reason };
        let mut spec = self.spec().map_err(invalid)?;
        // An attached lock keeps its mode.
        spec.mode = detached.mode;
        if detached.keys != spec.keys {
            let reason = "the detached lock has other keys: attach it with Quorum::attach";
            return Err(invalid(reason.into()));
        }
        self.shards.network.client_state.fences.learn(detached.fence, detached.fence);
        let attaching = run_call(&self.shards, spec, detached.slot, |shard, spec, ctx| {
            shard.attach(spec, detached.token, ctx)
        });
        let failure = match attaching.await {
            Ok(inner) => return Ok(Lock::new(inner)),
            Err(failure) => failure,
        };
        let nodes = self.shards.network.report(failure.answers);
        Err(match failure.reason {
            Reason::Held => AttachError::Gone { nodes },
            Reason::NoQuorum => AttachError::NoQuorum { nodes },
            Reason::InsufficientValidity => AttachError::InsufficientValidity { nodes },
            Reason::NoRandom => invalid(no_random()),
        })
    }

    /// The error says why the lock can never be granted.
    fn spec(&self) -> Result<Spec, String> {
        let ttl = u64::try_from(self.ttl.as_millis()).ok().and_then(|ms| Ttl::from_ms(ms).ok());
        let ttl = ttl.ok_or_else(|| format!("ttl must be between 1 ms and {} ms", Ttl::MAX_MS))?;
        if let Kind::Permits(permits) = self.kind
            && !(1..=PERMITS_MAX).contains(&permits)
        {
            return Err(format!("a semaphore has 1 to {PERMITS_MAX} permits, not {permits}"));
        }
        let spec = Spec {
            keys: self.keys.clone(),
            ttl,
            any: (!matches!(self.kind, Kind::All)).then(|| self.keys.clone()),
            mode: self.mode,
            min_validity: self.min_validity.unwrap_or(ttl.duration() / 2),
            node_timeout: self.node_timeout.or(self.shards.network.node_timeout(ttl)),
            max_hold: self.max_hold,
            owner: Some(self.owner.as_deref().map_or_else(default_owner, Arc::from)),
        };
        spec.check().map_err(|error| error.to_string())?;
        Ok(spec)
    }
}

/// Runs a call that acquires a lock, or attaches one that had this slot.
///
/// Dropped before its end, the call releases the lock in the background.
async fn run_call(
    shards: &Arc<Shards>,
    spec: Spec,
    slot: Option<usize>,
    begin: impl FnOnce(&mut Shard, Arc<Spec>, &mut Context<'_>) -> u64,
) -> Result<Arc<LockInner>, Failure> {
    let (started, index) = (Instant::now(), shards.of(spec.name()));
    let (result, ended) = oneshot::channel();
    let number = shards.with_shard(index, |state, ctx| {
        let number = begin(&mut state.machines, Arc::new(spec), ctx);
        state.callers.calls.insert(number, result);
        number
    });
    let cancel = guard((), |()| {
        shards.with_shard(index, |state, ctx| {
            state.callers.calls.remove(&number);
            state.machines.cancel(number, ctx);
        });
    });
    let (reason, answer) = match ended.await {
        Ok(Ok(attempts)) => match LockInner::acquired(shards, index, number, attempts, slot) {
            Some(lock) => {
                ScopeGuard::into_inner(cancel);
                return Ok(lock);
            }
            None => (Reason::InsufficientValidity, Answer::Granted(None)),
        },
        Ok(Err(failure)) => {
            ScopeGuard::into_inner(cancel);
            return Err(failure);
        }
        Err(_) => {
            let reason = "the client's runtime has ended".to_owned();
            (Reason::NoQuorum, Answer::Failed(NodeError::Down { reason }))
        }
    };
    let answers = vec![answer; shards.network.nodes.len()];
    Err(Failure { reason, answers, took: started.elapsed() })
}

fn default_owner() -> Arc<str> {
    static OWNER: OnceLock<(u32, Arc<str>)> = OnceLock::new();
    let make = |pid| {
        let name = rustix::system::uname();
        let host = name.nodename().to_string_lossy();
        format!("{host}:{pid}").into()
    };
    let here = std::process::id();
    let (pid, owner) = OWNER.get_or_init(|| (here, make(here)));
    // A forked child inherits the label of its parent.
    if *pid == here { Arc::clone(owner) } else { make(here) }
}

fn no_random() -> String {
    "the operating system has no random numbers for a token".into()
}

impl fmt::Debug for LockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockBuilder")
            .field("key", &format_args!("{}", self.keys))
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .field("max_hold", &self.max_hold)
            .finish_non_exhaustive()
    }
}
