use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::thread::QuorumThread;
use super::{Lock, LockWatch, Quorum};
use crate::{AcquireError, AttachError, ConnectError, DetachedLock, Holder, RunError};

/// Describes the nodes of a quorum: a [`crate::QuorumBuilder`] whose calls block.
pub type QuorumBuilder = crate::QuorumBuilder<Quorum>;

impl QuorumBuilder {
    /// Connects: see [`crate::Quorum::connect`].
    ///
    /// # Errors
    /// See [`crate::Quorum::connect`].
    pub fn connect(self) -> Result<Quorum, ConnectError> {
        Quorum::start(self.open_all())
    }
}

/// Describes a lock and how to acquire it: a [`crate::LockBuilder`] whose calls block.
#[derive(Clone)]
#[must_use = "a builder locks nothing: call acquire or try_acquire"]
pub struct LockBuilder {
    builder: crate::LockBuilder,
    thread: Arc<QuorumThread>,
}

impl LockBuilder {
    pub(super) fn new(builder: crate::LockBuilder, thread: Arc<QuorumThread>) -> Self {
        Self { builder, thread }
    }

    /// Shares the lock with other clients that ask to share it: see [`crate::LockBuilder::shared`].
    pub fn shared(self) -> Self {
        Self { builder: self.builder.shared(), ..self }
    }

    /// How long the lock lasts: see [`crate::LockBuilder::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { builder: self.builder.ttl(ttl), ..self }
    }

    /// How long [`acquire`](Self::acquire) waits in total: see [`crate::LockBuilder::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { builder: self.builder.wait(wait), ..self }
    }

    /// The least validity of a new lock: see [`crate::LockBuilder::min_validity`].
    pub fn min_validity(self, min_validity: Duration) -> Self {
        Self { builder: self.builder.min_validity(min_validity), ..self }
    }

    /// How long a node may take to answer: see [`crate::LockBuilder::node_timeout`].
    pub fn node_timeout(self, limit: Duration) -> Self {
        Self { builder: self.builder.node_timeout(limit), ..self }
    }

    /// The longest time that the lock is held: see [`crate::LockBuilder::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { builder: self.builder.max_hold(max_hold), ..self }
    }

    /// A label for people: see [`crate::LockBuilder::owner`].
    pub fn owner(self, owner: impl Into<String>) -> Self {
        Self { builder: self.builder.owner(owner), ..self }
    }

    /// Tries once to acquire the lock: see [`crate::LockBuilder::try_acquire`].
    ///
    /// # Errors
    /// See [`crate::LockBuilder::try_acquire`].
    pub fn try_acquire(&self) -> Result<Lock, AcquireError> {
        let lock = self.thread.block_on(self.builder.try_acquire())?;
        Ok(Lock::new(lock, &self.thread))
    }

    /// Acquires the lock, and waits up to [`wait`](Self::wait): see
    /// [`crate::LockBuilder::acquire`].
    ///
    /// # Errors
    /// See [`crate::LockBuilder::acquire`].
    pub fn acquire(&self) -> Result<Lock, AcquireError> {
        let lock = self.thread.block_on(self.builder.acquire())?;
        Ok(Lock::new(lock, &self.thread))
    }

    /// Asks the nodes who holds the lock now: see [`crate::LockBuilder::holder`].
    pub fn holder(&self) -> Option<Holder> {
        self.thread.block_on(self.builder.holder())
    }

    /// [Acquires](Self::acquire) the lock, runs `work` under it on this thread, and releases it.
    ///
    /// The lock is renewed until the work is finished, up to [`max_hold`](Self::max_hold). A loss
    /// does not stop the work: before each step that needs the lock, the work must check
    /// [`LockWatch::remaining`](crate::LockWatch::remaining).
    ///
    /// # Errors
    /// - [`RunError::NotAcquired`]: the lock was not acquired, and the work did not begin.
    /// - [`RunError::Lost`]: the lock was lost before it was released. The output is dropped.
    pub fn run<T>(&self, work: impl FnOnce(LockWatch) -> T) -> Result<T, RunError> {
        let mut lock = self.acquire().map_err(RunError::NotAcquired)?;
        lock.renew();
        let output = work(lock.watch());
        lock.finish().map_err(|lost| RunError::Lost { lost, finished: true })?;
        Ok(output)
    }

    /// Attaches a lock that another process detached: see [`crate::LockBuilder::attach`].
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&self, detached: DetachedLock) -> Result<Lock, AttachError> {
        let lock = self.thread.block_on(self.builder.attach(detached))?;
        Ok(Lock::new(lock, &self.thread))
    }
}

impl fmt::Debug for LockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.builder.fmt(f)
    }
}
