use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::thread::{Blocking, QuorumThread};
use super::{Lock, LockBuilder};
use crate::{
    AttachError, ConnectError, DetachedLock, FlushError, InspectError, Inspection, LockList,
    ReleaseError, Released, RevocationState, RevokeError, ScanError,
};

/// Independent masters that together grant locks: a [`crate::Quorum`] whose calls block.
///
/// Cheap to clone. All clones share connections and a thread, which live as long as any clone,
/// lock, builder, watch or revocation. The thread then finishes the background releases and ends.
pub type Quorum = Blocking<crate::Quorum>;

/// Describes the nodes of a quorum: a [`crate::QuorumBuilder`] whose calls block.
pub type QuorumBuilder = crate::QuorumBuilder<Quorum>;

/// The revocation of a lock: a [`crate::Revocation`] whose calls block.
///
/// Nodes that did not answer are asked again only during `ended`.
pub type Revocation = Blocking<crate::Revocation>;

impl QuorumBuilder {
    /// Connects: see [`crate::Quorum::connect`].
    ///
    /// # Errors
    /// See [`crate::Quorum::connect`].
    pub fn connect(self) -> Result<Quorum, ConnectError> {
        let (value, thread) = QuorumThread::start(self.open_all())?;
        Ok(Blocking { value, thread: Arc::new(thread) })
    }
}

impl Quorum {
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
        self.with(self.value.lock(key))
    }

    /// Describes a lock on one of these keys: see [`crate::Quorum::lock_any`].
    pub fn lock_any<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> LockBuilder {
        self.with(self.value.lock_any(keys))
    }

    /// Describes a permit of a semaphore: see [`crate::Quorum::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: usize) -> LockBuilder {
        self.with(self.value.semaphore(name, permits))
    }

    /// Describes one lock on several keys: see [`crate::Quorum::lock_all`].
    pub fn lock_all<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> LockBuilder {
        self.with(self.value.lock_all(keys))
    }

    /// Attaches a lock that another process detached: see [`crate::Quorum::attach`].
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&self, detached: DetachedLock) -> Result<Lock, AttachError> {
        self.wait_for(self.value.attach(detached))
    }

    /// Releases a detached lock that no process attaches: see [`crate::Quorum::release_detached`].
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer. The release then continues.
    pub fn release_detached(&self, detached: DetachedLock) -> Result<Released, ReleaseError> {
        self.thread.block_on(self.value.release_detached(detached))
    }

    /// Asks every node which lock holds `key`, and for how long: see [`crate::Quorum::inspect`].
    ///
    /// # Errors
    /// [`InspectError::NoAnswer`] when no node answers.
    pub fn inspect(&self, key: impl AsRef<[u8]>) -> Result<Inspection, InspectError> {
        self.thread.block_on(self.value.inspect(key))
    }

    /// Asks every node about the slots of a semaphore: see [`crate::Quorum::inspect_semaphore`].
    ///
    /// # Errors
    /// [`InspectError::NoAnswer`] when no node answers about one of the slots.
    pub fn inspect_semaphore(
        &self,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<(Vec<u8>, Inspection)>, InspectError> {
        self.thread.block_on(self.value.inspect_semaphore(name))
    }

    /// Checks whether another client of a semaphore uses more permits: see
    /// [`crate::Quorum::larger_permits`].
    pub fn larger_permits(&self, name: impl AsRef<[u8]>, permits: usize) -> Option<usize> {
        self.thread.block_on(self.value.larger_permits(name, permits))
    }

    /// Revokes the lock on `key`: see [`crate::Quorum::revoke`].
    ///
    /// # Errors
    /// [`RevokeError::NoAnswer`] when no node answers.
    pub fn revoke(&self, key: impl AsRef<[u8]>) -> Result<Revocation, RevokeError> {
        self.wait_for(self.value.revoke(key))
    }

    /// Ends the lock on `key` at once: see [`crate::Quorum::revoke_now`].
    ///
    /// # Errors
    /// [`RevokeError::NoAnswer`] when no node answers.
    pub fn revoke_now(&self, key: impl AsRef<[u8]>) -> Result<Revocation, RevokeError> {
        self.wait_for(self.value.revoke_now(key))
    }

    /// Lists the locks whose keys match `pattern`, on all nodes: see [`crate::Quorum::scan`].
    ///
    /// # Errors
    /// [`ScanError::NoAnswer`] when no node lists its locks.
    pub fn scan(&self, pattern: impl AsRef<[u8]>, limit: usize) -> Result<LockList, ScanError> {
        self.thread.block_on(self.value.scan(pattern, limit))
    }

    /// Waits until the releases in the background have ended, for `limit` at most: see
    /// [`crate::Quorum::flush`].
    ///
    /// # Errors
    /// [`FlushError`] with the number of unfinished releases.
    pub fn flush(&self, limit: Duration) -> Result<(), FlushError> {
        self.thread.block_on(self.value.flush(limit))
    }
}

impl Revocation {
    /// Waits until the lock is over, for `limit` at most. Returns whether it is over.
    pub fn ended(&mut self, limit: Duration) -> bool {
        let ended = self.value.ended();
        let _ = self.thread.block_on(async { timeout(limit, ended).await });
        self.report().state == RevocationState::Over
    }
}
