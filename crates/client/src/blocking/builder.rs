use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::thread::QuorumThread;
use super::{Lock, LockWatch, Quorum};
use crate::{AcquireError, AttachError, ConnectError, DetachedLock, Holder, RunError};

/// Describes the nodes of a quorum: a [`crate::QuorumBuilder`] whose calls block.
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

    /// Adds the node of a redis-rs client: see [`crate::QuorumBuilder::redis_client`].
    pub fn redis_client(self, client: ::redis::Client) -> Self {
        Self::new(self.builder.redis_client(client))
    }

    /// The root certificates of the nodes: see [`crate::QuorumBuilder::root_certificates`].
    #[cfg(feature = "tls")]
    pub fn root_certificates(self, pem: impl Into<Vec<u8>>) -> Self {
        Self::new(self.builder.root_certificates(pem))
    }

    /// The certificate of this client: see [`crate::QuorumBuilder::client_certificate`].
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        self,
        chain_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        Self::new(self.builder.client_certificate(chain_pem, key_pem))
    }

    /// The user and the password of all nodes without their own: see
    /// [`crate::QuorumBuilder::credentials`].
    pub fn credentials(self, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self::new(self.builder.credentials(user, password))
    }

    /// How long a node may take to answer: see [`crate::QuorumBuilder::node_timeout`].
    pub fn node_timeout(self, limit: Duration) -> Self {
        Self::new(self.builder.node_timeout(limit))
    }

    /// How long connecting waits for a majority: see [`crate::QuorumBuilder::connect_timeout`].
    pub fn connect_timeout(self, limit: Duration) -> Self {
        Self::new(self.builder.connect_timeout(limit))
    }

    /// The name of the nodes' set: see [`crate::QuorumBuilder::set`].
    pub fn set(self, name: impl Into<String>) -> Self {
        Self::new(self.builder.set(name))
    }

    /// Connects: see [`crate::Quorum::connect`].
    ///
    /// # Errors
    /// See [`crate::Quorum::connect`].
    pub fn connect(self) -> Result<Quorum, ConnectError> {
        Quorum::start(self.builder)
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
    /// [`LockWatch::remaining`].
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
