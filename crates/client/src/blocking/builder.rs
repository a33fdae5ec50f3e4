use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::quorum::Closing;
use super::{Lock, LockWatch, Quorum};
use crate::{AcquireError, AttachError, ConnectError, DetachedLock, RunError};

/// Where a quorum is, and how to get there: a [`crate::QuorumBuilder`] whose calls block.
#[derive(Clone, Debug)]
#[must_use = "nothing is connected until connect is called"]
pub struct QuorumBuilder {
    builder: crate::QuorumBuilder,
}

impl QuorumBuilder {
    pub(super) fn new(builder: crate::QuorumBuilder) -> Self {
        Self { builder }
    }

    /// Adds a node: see [`crate::Quorum::connect`].
    pub fn node(self, url: impl AsRef<str>) -> Self {
        Self::new(self.builder.node(url))
    }

    /// Adds nodes: see [`crate::Quorum::connect`].
    pub fn nodes<U: AsRef<str>>(self, urls: impl IntoIterator<Item = U>) -> Self {
        Self::new(self.builder.nodes(urls))
    }

    /// What signs the certificates of the nodes: see [`crate::QuorumBuilder::root_certificates`].
    #[cfg(feature = "tls")]
    pub fn root_certificates(self, pem: impl Into<Vec<u8>>) -> Self {
        Self::new(self.builder.root_certificates(pem))
    }

    /// The certificate of this client: see [`crate::QuorumBuilder::client_certificate`].
    #[cfg(feature = "tls")]
    pub fn client_certificate(self, chain_pem: impl Into<Vec<u8>>, key_pem: impl Into<Vec<u8>>) -> Self {
        Self::new(self.builder.client_certificate(chain_pem, key_pem))
    }

    /// How long one node may take to answer: see [`crate::QuorumBuilder::node_timeout`].
    pub fn node_timeout(self, limit: Duration) -> Self {
        Self::new(self.builder.node_timeout(limit))
    }

    /// Connects: see [`crate::Quorum::connect`].
    ///
    /// # Errors
    /// Only what no time can mend: see [`ConnectError`].
    pub fn connect(self) -> Result<Quorum, ConnectError> {
        Quorum::start(self.builder.connect())
    }
}

/// What lock is wanted, for how long and how patiently: a [`crate::LockBuilder`] whose calls block.
#[derive(Clone)]
#[must_use = "a builder locks nothing: call acquire or try_acquire"]
pub struct LockBuilder {
    builder: crate::LockBuilder,
    thread: Arc<Closing>,
}

impl LockBuilder {
    pub(super) fn new(builder: crate::LockBuilder, thread: Arc<Closing>) -> Self {
        Self { builder, thread }
    }

    /// How long the lock lasts: see [`crate::LockBuilder::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { builder: self.builder.ttl(ttl), ..self }
    }

    /// How long [`acquire`](Self::acquire) waits, in all: see [`crate::LockBuilder::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { builder: self.builder.wait(wait), ..self }
    }

    /// How much of the ttl must be left: see [`crate::LockBuilder::min_validity`].
    pub fn min_validity(self, min_validity: Duration) -> Self {
        Self { builder: self.builder.min_validity(min_validity), ..self }
    }

    /// How long one node may take to answer: see [`crate::LockBuilder::node_timeout`].
    pub fn node_timeout(self, limit: Duration) -> Self {
        Self { builder: self.builder.node_timeout(limit), ..self }
    }

    /// How long the lock is held at most: see [`crate::LockBuilder::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { builder: self.builder.max_hold(max_hold), ..self }
    }

    /// A label for people: see [`crate::LockBuilder::owner`].
    pub fn owner(self, owner: impl Into<String>) -> Self {
        Self { builder: self.builder.owner(owner), ..self }
    }

    /// One attempt: see [`crate::LockBuilder::try_acquire`].
    ///
    /// # Errors
    /// [`AcquireError::Held`], [`AcquireError::NoQuorum`], [`AcquireError::Expired`] or [`AcquireError::Unusable`].
    pub fn try_acquire(&self) -> Result<Lock, AcquireError> {
        let builder = self.builder.clone();
        let lock = self.thread.thread.block_on(async move { builder.try_acquire().await })?;
        Ok(Lock::new(lock, Arc::clone(&self.thread)))
    }

    /// Waits for the lock until the [`wait`](Self::wait) is over: see [`crate::LockBuilder::acquire`].
    ///
    /// # Errors
    /// [`AcquireError::TimedOut`] if others held the lock to the end; otherwise as the last attempt of
    /// [`try_acquire`](Self::try_acquire).
    pub fn acquire(&self) -> Result<Lock, AcquireError> {
        let builder = self.builder.clone();
        let lock = self.thread.thread.block_on(async move { builder.acquire().await })?;
        Ok(Lock::new(lock, Arc::clone(&self.thread)))
    }

    /// Acquires the lock as [`acquire`](Self::acquire) does, does something under it on this thread, and releases it.
    /// Meanwhile the lock is extended by itself, for [`max_hold`](Self::max_hold) at most.
    ///
    /// What is done on a thread cannot be stopped from outside: it is to look, before each step that must not be done
    /// without the lock, whether [`LockWatch::remaining`] is long enough for it.
    ///
    /// # Errors
    /// [`RunError::NotAcquired`] if nothing was done; [`RunError::Lost`] if the lock was lost before it was done, with what
    /// came of it.
    pub fn run<T>(&self, work: impl FnOnce(LockWatch) -> T) -> Result<T, RunError> {
        let mut lock = self.acquire().map_err(RunError::NotAcquired)?;
        lock.renew();
        let output = work(lock.watch());
        match lock.finish() {
            Ok(()) => Ok(output),
            Err(lost) => Err(RunError::Lost { lost, finished: true }),
        }
    }

    /// Makes a lock that another process handed over this one's: see [`crate::LockBuilder::attach`].
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&self, detached: DetachedLock) -> Result<Lock, AttachError> {
        let builder = self.builder.clone();
        let lock = self.thread.thread.block_on(async move { builder.attach(detached).await })?;
        Ok(Lock::new(lock, Arc::clone(&self.thread)))
    }
}

impl fmt::Debug for LockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.builder.fmt(f)
    }
}
