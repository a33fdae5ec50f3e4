use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::thread::QuorumThread;
use super::{Lock, LockBuilder, QuorumBuilder};
use crate::{
    AttachError, ConnectError, DetachedLock, FlushError, InspectError, Inspection, LockList,
    NodeHealth, ReleaseError, Released, RevocationReport, RevocationState, RevokeError, ScanError,
};

/// Independent masters that together grant locks: a [`crate::Quorum`] whose calls block.
///
/// Cheap to clone. All clones share connections and a thread, which live as long as any clone,
/// lock, builder, watch or revocation. The thread then finishes the background releases and ends.
#[derive(Clone)]
pub struct Quorum {
    quorum: crate::Quorum,
    thread: Arc<QuorumThread>,
}

/// The revocation of a lock: a [`crate::Revocation`] whose calls block.
///
/// Nodes that did not answer are asked again only during [`ended`](Self::ended).
#[must_use = "nodes that did not answer are asked again only during `ended`"]
pub struct Revocation {
    revocation: crate::Revocation,
    thread: Arc<QuorumThread>,
}

impl Quorum {
    pub(super) fn start(
        connecting: impl Future<Output = Result<crate::Quorum, ConnectError>> + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let (quorum, thread) = QuorumThread::start(connecting)?;
        Ok(Self { quorum, thread: Arc::new(thread) })
    }

    /// Connects to the masters: see [`crate::Quorum::connect`].
    ///
    /// # Errors
    /// See [`crate::Quorum::connect`].
    pub fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        Self::builder().nodes(urls).connect()
    }

    /// Describes a quorum with more options: certificates, limits, the name of the set.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder::new()
    }

    /// Describes a lock on `key`.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> LockBuilder {
        LockBuilder::new(self.quorum.lock(key), Arc::clone(&self.thread))
    }

    /// Describes a lock on one of these keys: see [`crate::Quorum::lock_any`].
    pub fn lock_any<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> LockBuilder {
        LockBuilder::new(self.quorum.lock_any(keys), Arc::clone(&self.thread))
    }

    /// Describes a permit of a semaphore: see [`crate::Quorum::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: usize) -> LockBuilder {
        LockBuilder::new(self.quorum.semaphore(name, permits), Arc::clone(&self.thread))
    }

    /// Describes one lock on several keys: see [`crate::Quorum::lock_all`].
    pub fn lock_all<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> LockBuilder {
        LockBuilder::new(self.quorum.lock_all(keys), Arc::clone(&self.thread))
    }

    /// Attaches a lock that another process detached: see [`crate::Quorum::attach`].
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&self, detached: DetachedLock) -> Result<Lock, AttachError> {
        self.lock_all(detached.keys()).ttl(detached.ttl()).attach(detached)
    }

    /// Releases a detached lock that no process attaches: see [`crate::Quorum::release_detached`].
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer. The release then continues.
    pub fn release_detached(&self, detached: DetachedLock) -> Result<Released, ReleaseError> {
        self.thread.block_on(self.quorum.release_detached(detached))
    }

    /// The state of the connection to each node: see [`crate::Quorum::health`].
    pub fn health(&self) -> Vec<NodeHealth> {
        self.quorum.health()
    }

    /// Asks every node which lock holds `key`, and for how long: see [`crate::Quorum::inspect`].
    ///
    /// # Errors
    /// [`InspectError::NoAnswer`] when no node answers.
    pub fn inspect(&self, key: impl AsRef<[u8]>) -> Result<Inspection, InspectError> {
        self.thread.block_on(self.quorum.inspect(key))
    }

    /// Asks every node about the slots of a semaphore: see [`crate::Quorum::inspect_semaphore`].
    ///
    /// # Errors
    /// [`InspectError::NoAnswer`] when no node answers about one of the slots.
    pub fn inspect_semaphore(
        &self,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<(Vec<u8>, Inspection)>, InspectError> {
        self.thread.block_on(self.quorum.inspect_semaphore(name))
    }

    /// Checks whether another client of a semaphore uses more permits: see
    /// [`crate::Quorum::larger_permits`].
    pub fn larger_permits(&self, name: impl AsRef<[u8]>, permits: usize) -> Option<usize> {
        self.thread.block_on(self.quorum.larger_permits(name, permits))
    }

    /// Revokes the lock on `key`: see [`crate::Quorum::revoke`].
    ///
    /// # Errors
    /// [`RevokeError::NoAnswer`] when no node answers.
    pub fn revoke(&self, key: impl AsRef<[u8]>) -> Result<Revocation, RevokeError> {
        self.revocation(self.quorum.revoke(key))
    }

    /// Ends the lock on `key` at once: see [`crate::Quorum::revoke_now`].
    ///
    /// # Errors
    /// [`RevokeError::NoAnswer`] when no node answers.
    pub fn revoke_now(&self, key: impl AsRef<[u8]>) -> Result<Revocation, RevokeError> {
        self.revocation(self.quorum.revoke_now(key))
    }

    fn revocation(
        &self,
        revoking: impl Future<Output = Result<crate::Revocation, RevokeError>>,
    ) -> Result<Revocation, RevokeError> {
        let revocation = self.thread.block_on(revoking)?;
        Ok(Revocation { revocation, thread: Arc::clone(&self.thread) })
    }

    /// Lists the locks whose keys match `pattern`, on all nodes: see [`crate::Quorum::scan`].
    ///
    /// # Errors
    /// [`ScanError::NoAnswer`] when no node lists its locks.
    pub fn scan(&self, pattern: impl AsRef<[u8]>, limit: usize) -> Result<LockList, ScanError> {
        self.thread.block_on(self.quorum.scan(pattern, limit))
    }

    /// Waits until the releases in the background have ended, for `limit` at most: see
    /// [`crate::Quorum::flush`].
    ///
    /// # Errors
    /// [`FlushError`] with the number of unfinished releases.
    pub fn flush(&self, limit: Duration) -> Result<(), FlushError> {
        self.thread.block_on(self.quorum.flush(limit))
    }
}

impl Revocation {
    /// Returns the progress of the revocation: see [`crate::Revocation::report`].
    pub fn report(&self) -> RevocationReport {
        self.revocation.report()
    }

    /// Waits until the lock is over, for `limit` at most. Returns whether it is over.
    pub fn ended(&mut self, limit: Duration) -> bool {
        let ended = self.revocation.ended();
        let _ = self.thread.block_on(async { timeout(limit, ended).await });
        self.report().state == RevocationState::Over
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quorum.fmt(f)
    }
}
