use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Fence;

use super::quorum::QuorumThread;
use crate::{Coverage, DetachedLock, ExtendError, LostError, Ownership, ReleaseError, Released};

/// A held lock: a [`crate::Lock`] whose calls block.
///
/// Dropping the lock releases it on the quorum's thread, and does not block.
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    lock: crate::Lock,
    thread: Arc<QuorumThread>,
}

/// A view of a lock: a [`crate::LockWatch`] whose calls block. Cheap to clone.
#[derive(Clone)]
pub struct LockWatch {
    watch: crate::LockWatch,
    thread: Arc<QuorumThread>,
}

impl Lock {
    pub(super) fn new(lock: crate::Lock, thread: Arc<QuorumThread>) -> Self {
        Self { lock, thread }
    }

    /// The locked key: see [`crate::Lock::key`].
    pub fn key(&self) -> &[u8] {
        self.lock.key()
    }

    /// The locked keys, in byte order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.lock.keys()
    }

    /// Which of several keys is locked: see [`crate::Lock::slot`].
    pub fn slot(&self) -> Option<usize> {
        self.lock.slot()
    }

    /// The fence of the lock: see [`crate::Lock::fence`].
    pub fn fence(&self) -> Fence {
        self.lock.fence()
    }

    /// How much longer the lock is certainly held; zero once it may have ended.
    pub fn remaining(&self) -> Duration {
        self.lock.remaining()
    }

    /// Whether the lock is held, and until when.
    pub fn ownership(&self) -> Ownership {
        self.lock.ownership()
    }

    /// The number of nodes on which the lock is known to be held: see [`crate::Lock::coverage`].
    pub fn coverage(&self) -> Coverage {
        self.lock.coverage()
    }

    /// A view of the lock that shows whether it is held, and cannot end it.
    pub fn watch(&self) -> LockWatch {
        LockWatch { watch: self.lock.watch(), thread: Arc::clone(&self.thread) }
    }

    /// Blocks until the lock is lost, at its deadline at the latest, and returns why.
    pub fn lost(&self) -> LostError {
        let watch = self.lock.watch();
        self.thread.block_on(async move { watch.lost().await })
    }

    /// Renews the lock in the background: see [`crate::Lock::renew`].
    pub fn renew(&mut self) {
        self.lock.renew();
    }

    /// Makes the lock last a full ttl from now, on a majority of the nodes: see
    /// [`crate::Lock::extend`].
    ///
    /// # Errors
    /// See [`crate::Lock::extend`].
    pub fn extend(&mut self) -> Result<(), ExtendError> {
        self.thread.block_on(self.lock.extension())
    }

    /// Whether other clients may hold the lock at the same time: see [`crate::Lock::is_shared`].
    pub fn is_shared(&self) -> bool {
        self.lock.is_shared()
    }

    /// Turns an exclusive lock into a shared one: see [`crate::Lock::downgrade`].
    ///
    /// # Errors
    /// See [`crate::Lock::downgrade`].
    pub fn downgrade(&mut self) -> Result<(), ExtendError> {
        self.thread.block_on(self.lock.downgrading())
    }

    /// Releases the lock, and returns when a majority has confirmed it: see
    /// [`crate::Lock::release`].
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer. The release then continues.
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.thread.block_on(self.lock.release())
    }

    /// Detaches the lock from this process: see [`crate::Lock::detach`].
    pub fn detach(self) -> DetachedLock {
        self.lock.detach()
    }

    /// Describes the lock for a process that releases it after this process has died: see
    /// [`crate::Lock::to_detached`].
    pub fn to_detached(&self) -> DetachedLock {
        self.lock.to_detached()
    }

    /// Releases the lock. Fails if it was lost before.
    pub(super) fn finish(self) -> Result<(), LostError> {
        self.thread.block_on(crate::api::finish(self.lock))
    }
}

impl LockWatch {
    /// The locked key: see [`crate::LockWatch::key`].
    pub fn key(&self) -> &[u8] {
        self.watch.key()
    }

    /// The locked keys, in byte order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.watch.keys()
    }

    /// The fence of the lock: see [`crate::Lock::fence`].
    pub fn fence(&self) -> Fence {
        self.watch.fence()
    }

    /// How much longer the lock is certainly held; zero once it may have ended or was released.
    pub fn remaining(&self) -> Duration {
        self.watch.remaining()
    }

    /// Whether the lock is held, and until when. A released lock is [`Ownership::Lost`].
    pub fn ownership(&self) -> Ownership {
        self.watch.ownership()
    }

    /// The number of nodes on which the lock is known to be held.
    pub fn coverage(&self) -> Coverage {
        self.watch.coverage()
    }

    /// Blocks until the lock is not held any more.
    ///
    /// Returns why it was lost, or `None` when it was released, dropped or detached.
    pub fn ended(&self) -> Option<LostError> {
        let watch = self.watch.clone();
        self.thread.block_on(async move { watch.ended().await })
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.watch.fmt(f)
    }
}
