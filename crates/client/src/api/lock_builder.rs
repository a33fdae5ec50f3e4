use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::quorum::{Loss, reliable};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use crate::acquire::acquire;
use crate::attempt::{self, Failure, Wanted};
use crate::keys::Keys;
use crate::quorum::Shared;
use crate::run::run;
use crate::{AcquireError, Handover, Lock, LockWatch, ResumeError, RunError, observe};

/// How long a lock lasts, unless told otherwise.
const TTL: Duration = Duration::from_secs(10);
/// How long [`LockBuilder::acquire`] waits, unless told otherwise.
const WAIT: Duration = Duration::from_secs(10);
/// The longest that one node is waited for, unless told otherwise. A twentieth of the ttl, if that is less.
const NODE_LIMIT: Duration = Duration::from_millis(50);
/// How long a lock is held at most, however often it is extended, unless told otherwise.
const MAX_HOLD: Duration = Duration::from_secs(60 * 60);
/// Longest owner label that a node takes, in bytes.
const OWNER_BYTES_MAX: usize = 256;

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
    node_limit: Option<Duration>,
    max_hold: Duration,
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
            node_limit: None,
            max_hold: MAX_HOLD,
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

    /// How long one node may take to answer before it counts as silent. Default: 50 ms, or a twentieth of the ttl if
    /// that is less. To be raised where the masters are in regions far apart, for all locks of a client by
    /// [`QuorumBuilder::node_limit`](crate::QuorumBuilder::node_limit).
    pub fn node_limit(mut self, limit: Duration) -> Self {
        self.node_limit = Some(limit);
        self
    }

    /// How long the lock is held at most, however often it is extended, counted from when it is acquired: then it is lost. So
    /// a program that hangs does not keep others out for ever. Default: one hour; to hold a lock for longer is to be asked
    /// for.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = max_hold;
        self
    }

    /// A label for people who ask with `LOCK.INSPECT` who holds the lock: at most 256 bytes.
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
        let (started, span) = (Instant::now(), self.span());
        let outcome = self.attempt().instrument(span.clone()).await;
        span.in_scope(|| observe::acquired(&outcome, started));
        outcome
    }

    /// A call, as observers see it.
    fn span(&self) -> Span {
        tracing::debug_span!("acquire", key = %self.keys)
    }

    async fn attempt(&self) -> Result<Lock, AcquireError> {
        let wanted = self.check()?;
        // Who does not wait does not get past those who do.
        let limit = wanted.node_limit;
        let Failure { loss, nodes, .. } = match attempt::attempt(&self.shared, &wanted, limit).await? {
            Ok(lock) => return Ok(lock),
            Err(failure) => failure,
        };
        Err(match loss {
            Loss::Held => AcquireError::Held { nodes },
            Loss::NoQuorum => AcquireError::NoQuorum { nodes },
            Loss::TooLate => AcquireError::Expired { nodes },
        })
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
        let (started, span) = (Instant::now(), self.span());
        let outcome = match self.check() {
            Ok(wanted) => {
                // A wait beyond the end of time has no end.
                let until = started.checked_add(self.wait);
                acquire(&self.shared, &wanted, started, until).instrument(span.clone()).await
            }
            Err(error) => Err(error),
        };
        span.in_scope(|| observe::acquired(&outcome, started));
        outcome
    }

    /// Acquires the lock as [`acquire`](Self::acquire) does, does something under it, and releases it. Meanwhile the lock is
    /// extended by itself, at a third of its ttl, for [`max_hold`](Self::max_hold) at most. When it is lost, what is done
    /// under it is dropped, wherever it is.
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
    /// [`RunError::NotAcquired`] if nothing was done; [`RunError::Lost`] if it was not done under the lock to its end, with
    /// what came of it, if it had come to an end before that was known. Errors of what is done are inside the `Ok`.
    ///
    /// # Cancel safety
    /// Dropping the future drops what is done under the lock, and releases it in the background.
    pub async fn run<T, F>(&self, work: impl FnOnce(LockWatch) -> F) -> Result<T, RunError<T>>
    where
        F: Future<Output = T>,
    {
        let lock = self.acquire().await.map_err(RunError::NotAcquired)?;
        run(lock, work).await
    }

    /// Makes a lock that another process [handed over](crate::Lock::hand_over) this one's, on a majority of the nodes. It
    /// lasts for the [`ttl`](Self::ttl) from now, and has a new fence, larger than before.
    ///
    /// # Errors
    /// See [`ResumeError`]. A handover that was not resumed is used up: nodes that had answered have released the lock.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background, wherever it is this one's already.
    pub async fn resume(&self, handover: Handover) -> Result<Lock, ResumeError> {
        let unusable = |reason| ResumeError::Unusable { reason };
        let wanted = self.check().map_err(|error| unusable(error.to_string()))?;
        if !handover.is_of(&wanted.keys) {
            return Err(unusable("the handover is of other keys: resume it by Quorum::resume".into()));
        }
        let resumed = attempt::resume(&self.shared, &wanted, handover).await;
        let Failure { loss, nodes, .. } = match resumed.map_err(|error| unusable(error.to_string()))? {
            Ok(lock) => return Ok(lock),
            Err(failure) => failure,
        };
        Err(match loss {
            Loss::Held => ResumeError::Gone { nodes },
            Loss::NoQuorum => ResumeError::NoQuorum { nodes },
            Loss::TooLate => ResumeError::Expired { nodes },
        })
    }

    /// Refuses what can never be a lock.
    fn check(&self) -> Result<Wanted, AcquireError> {
        let unusable = |reason: String| AcquireError::Unusable { reason };
        let ttl = u64::try_from(self.ttl.as_millis())
            .ok()
            .and_then(|ms| Ttl::from_ms(ms).ok())
            .ok_or_else(|| unusable(format!("ttl must be between 1 ms and {} ms", Ttl::MAX_MS)))?;
        let of_the_client = self.shared.node_limit.map(|limit| limit.min(ttl.duration() / 4));
        let of_all = || of_the_client.unwrap_or_else(|| NODE_LIMIT.min(ttl.duration() / 20));
        let node_limit = self.node_limit.unwrap_or_else(of_all);
        let min_validity = self.min_validity.unwrap_or(ttl.duration() / 2);
        let lasts = reliable(ttl);
        if lasts.saturating_sub(node_limit).is_zero() || lasts < min_validity {
            return Err(unusable(format!(
                "a ttl of {ttl:?} leaves {lasts:?} after clock drift, which must be more than the time limit per node \
                 ({node_limit:?}) and no less than min_validity ({min_validity:?}): raise the ttl",
                ttl = ttl.duration(),
            )));
        }
        if self.owner.as_ref().is_some_and(|owner| owner.len() > OWNER_BYTES_MAX) {
            return Err(unusable(format!("the owner label must be at most {OWNER_BYTES_MAX} bytes")));
        }
        if self.max_hold < min_validity {
            return Err(unusable(format!(
                "max_hold ({:?}) is less than min_validity ({min_validity:?}): raise it",
                self.max_hold
            )));
        }
        self.keys.check().map_err(unusable)?;
        let (keys, owner) = (self.keys.clone(), self.owner.clone());
        Ok(Wanted { keys, ttl, min_validity, node_limit, max_hold: self.max_hold, owner })
    }
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
