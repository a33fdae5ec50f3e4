use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::client::{Failure, Keys, Reason, Spec};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::run::run;
use crate::driver::{self, Shared};
use crate::{AcquireError, AttachError, DetachedLock, Lock, LockWatch, RunError, telemetry};

/// The default ttl.
const TTL: Duration = Duration::from_secs(10);
/// The default wait.
const WAIT: Duration = Duration::from_secs(10);

/// What lock is wanted, for how long and how patiently. Made by [`Quorum::lock`](crate::Quorum::lock)
/// and [`Quorum::lock_all`](crate::Quorum::lock_all).
#[derive(Clone)]
#[must_use = "a builder locks nothing: call acquire or try_acquire"]
pub struct LockBuilder {
    shared: Arc<Shared>,
    keys: Keys,
    ttl: Duration,
    wait: Duration,
    min_validity: Option<Duration>,
    node_timeout: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<String>,
}

impl LockBuilder {
    pub(crate) fn new(shared: Arc<Shared>, keys: Keys) -> Self {
        Self {
            shared,
            keys,
            ttl: TTL,
            wait: WAIT,
            min_validity: None,
            node_timeout: None,
            max_hold: None,
            owner: None,
        }
    }

    /// How long the lock lasts unless it is extended or released: whole milliseconds, at most the nodes'
    /// `lock.max-ttl`. Default: 10 s. Whoever dies holding the lock blocks the others for so long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long [`acquire`](Self::acquire) waits, in all. Default: 10 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// A lock with less than this left when it is granted counts as not granted, so that nobody starts work on its last
    /// milliseconds. Default: half the ttl.
    pub fn min_validity(mut self, min_validity: Duration) -> Self {
        self.min_validity = Some(min_validity);
        self
    }

    /// How long one node may take to answer before it counts as silent. Default: four round trips of
    /// that node, as measured, at least 50 ms, and a quarter of the ttl at most. For all locks of a
    /// client: [`QuorumBuilder::node_timeout`](crate::QuorumBuilder::node_timeout).
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = Some(limit);
        self
    }

    /// How long the lock is held at most, however often it is extended, counted from when it is
    /// acquired: then it is lost. So a program that hangs does not keep others out for ever. Default:
    /// no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// A label for people, which `LOCK.INSPECT` shows: at most 256 bytes. Default: host name and
    /// process id.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// One attempt: the lock, or why not, as soon as a majority of the nodes has decided.
    ///
    /// # Errors
    /// [`AcquireError::Held`], [`AcquireError::NoQuorum`], [`AcquireError::Expired`] or [`AcquireError::Unusable`].
    ///
    /// # Cancel safety
    /// Dropping the future releases, in the background, what any node may have granted.
    pub async fn try_acquire(&self) -> Result<Lock, AcquireError> {
        self.acquire_within(Some(Duration::ZERO)).await
    }

    async fn acquire_within(&self, wait: Option<Duration>) -> Result<Lock, AcquireError> {
        let (started, span) = (Instant::now(), self.span());
        let outcome = match self.spec() {
            Ok(spec) => {
                let acquired = driver::acquire(&self.shared, spec, wait).instrument(span.clone());
                let waited = wait != Some(Duration::ZERO);
                acquired.await.map(Lock::new).map_err(|failure| self.failed(&failure, waited))
            }
            Err(reason) => Err(AcquireError::InvalidRequest { reason }),
        };
        span.in_scope(|| telemetry::acquired(&outcome, started));
        outcome
    }

    fn failed(&self, failure: &Failure, waited: bool) -> AcquireError {
        let nodes = self.shared.report(failure.answers.iter());
        match failure.reason {
            Reason::Held if waited => AcquireError::TimedOut { waited: failure.took, nodes },
            Reason::Held => AcquireError::Held { nodes },
            Reason::NoQuorum => AcquireError::NoQuorum { nodes },
            Reason::InsufficientValidity => AcquireError::InsufficientValidity { nodes },
            Reason::NoRandom => AcquireError::InvalidRequest { reason: no_random() },
        }
    }

    /// A call, as observers see it.
    fn span(&self) -> Span {
        tracing::debug_span!("acquire", key = %self.keys)
    }

    /// Waits for the lock until the [`wait`](Self::wait) is over: on the server that answered first in the key's order,
    /// which hands it over as soon as it is free, first come first served. Callers of one program that want the same key,
    /// or all of the same keys, queue in the program, so that one of them at a time waits on a server.
    ///
    /// # Errors
    /// [`AcquireError::TimedOut`] if others held the lock to the end; otherwise as the last attempt of
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue and releases, in the background, what any node may have granted.
    pub async fn acquire(&self) -> Result<Lock, AcquireError> {
        // A wait beyond the end of time has no end.
        let wait = Some(self.wait).filter(|wait| Instant::now().checked_add(*wait).is_some());
        self.acquire_within(wait).await
    }

    /// Acquires the lock as [`acquire`](Self::acquire) does, runs `work` under it, and releases it.
    /// Meanwhile the lock is renewed. When it is lost, the work is dropped at its next await point,
    /// and nothing of it is polled after that.
    ///
    /// ```no_run
    /// # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn write_report(fence: quorlock_client::Fence) -> std::io::Result<u32> { Ok(1) }
    /// let pages = quorum.lock("nightly").run(|lock| async move { write_report(lock.fence()).await }).await??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RunError::NotAcquired`] if nothing was done; [`RunError::Lost`] if the lock was lost before
    /// the work was finished and the lock released. Errors of the work are inside the `Ok`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    pub async fn run<T, F>(&self, work: impl FnOnce(LockWatch) -> F) -> Result<T, RunError>
    where
        F: Future<Output = T>,
    {
        let lock = self.acquire().await.map_err(RunError::NotAcquired)?;
        run(lock, work).await
    }

    /// Attaches a lock that another process [detached](crate::Lock::detach), on a majority of the
    /// nodes. It lasts for the [`ttl`](Self::ttl) from now, and has a new fence, larger than before.
    ///
    /// # Errors
    /// [`AttachError`]. The text is used up then: nodes that had answered have released the lock.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background where it is this process's already.
    pub async fn attach(&self, detached: DetachedLock) -> Result<Lock, AttachError> {
        let invalid = |reason| AttachError::InvalidRequest { reason };
        let spec = self.spec().map_err(invalid)?;
        if !detached.is_of(&spec.keys) {
            let reason = "the detached lock is of other keys: attach it with Quorum::attach";
            return Err(invalid(reason.into()));
        }
        self.shared.fleet.fences.learn(detached.fence(), detached.fence());
        let failure = match driver::attach(&self.shared, spec, detached.token()).await {
            Ok(inner) => return Ok(Lock::new(inner)),
            Err(failure) => failure,
        };
        let nodes = self.shared.report(failure.answers.iter());
        Err(match failure.reason {
            Reason::Held => AttachError::Gone { nodes },
            Reason::NoQuorum => AttachError::NoQuorum { nodes },
            Reason::InsufficientValidity => AttachError::InsufficientValidity { nodes },
            Reason::NoRandom => invalid(no_random()),
        })
    }

    /// What the machines are to acquire; otherwise why that can never be a lock.
    fn spec(&self) -> Result<Spec, String> {
        let ttl = u64::try_from(self.ttl.as_millis()).ok().and_then(|ms| Ttl::from_ms(ms).ok());
        let ttl = ttl.ok_or_else(|| format!("ttl must be between 1 ms and {} ms", Ttl::MAX_MS))?;
        let of_the_client = self.shared.node_timeout.map(|limit| limit.min(ttl.duration() / 4));
        let spec = Spec {
            keys: self.keys.clone(),
            ttl,
            min_validity: self.min_validity.unwrap_or(ttl.duration() / 2),
            node_timeout: self.node_timeout.or(of_the_client),
            max_hold: self.max_hold,
            owner: match &self.owner {
                Some(owner) => Some(owner.as_str().into()),
                None => Some(default_owner()),
            },
        };
        spec.check().map_err(|error| error.to_string())?;
        Ok(spec)
    }
}

/// The label of locks that have none: host name and process id.
fn default_owner() -> Arc<str> {
    static OWNER: OnceLock<Arc<str>> = OnceLock::new();
    let make = || {
        let name = rustix::system::uname();
        let host = name.nodename().to_string_lossy();
        format!("{host}:{}", std::process::id()).into()
    };
    Arc::clone(OWNER.get_or_init(make))
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
