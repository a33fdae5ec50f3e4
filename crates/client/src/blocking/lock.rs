use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::thread::QuorumThread;
use crate::{DetachedLock, ExtendError, LostError, ReleaseError, Released};

/// A held lock: a [`crate::Lock`] whose calls block.
///
/// A lock has all methods of its [`LockWatch`]. Dropping the lock releases it on the quorum's
/// thread, and does not block.
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    lock: crate::Lock,
    watch: LockWatch,
}

/// A view of a lock: a [`crate::LockWatch`] whose calls block. Cheap to clone.
#[derive(Clone)]
pub struct LockWatch {
    watch: crate::LockWatch,
    thread: Arc<QuorumThread>,
}

impl Lock {
    pub(super) fn new(lock: crate::Lock, thread: &Arc<QuorumThread>) -> Self {
        let watch = LockWatch { watch: lock.watch(), thread: Arc::clone(thread) };
        Self { lock, watch }
    }

    /// A view of the lock that shows whether it is held, and cannot end it.
    pub fn watch(&self) -> LockWatch {
        self.watch.clone()
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
        self.watch.thread.block_on(self.lock.extend())
    }

    /// Turns an exclusive lock into a shared one: see [`crate::Lock::downgrade`].
    ///
    /// # Errors
    /// See [`crate::Lock::downgrade`].
    pub fn downgrade(&mut self) -> Result<(), ExtendError> {
        self.watch.thread.block_on(self.lock.downgrade())
    }

    /// Releases the lock, and returns when a majority has confirmed it: see
    /// [`crate::Lock::release`].
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer. The release then continues.
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.watch.thread.block_on(self.lock.release())
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
        self.watch.thread.block_on(self.lock.finish())
    }
}

impl Deref for Lock {
    type Target = LockWatch;

    fn deref(&self) -> &LockWatch {
        &self.watch
    }
}

impl LockWatch {
    /// Blocks until the lock is lost, at its deadline at the latest, and returns why: see
    /// [`crate::LockWatch::lost`].
    pub fn lost(&self) -> LostError {
        self.thread.block_on(self.watch.lost())
    }

    /// Blocks until the lock is not held any more.
    ///
    /// Returns why it was lost, or `None` when it was released, dropped or detached.
    pub fn ended(&self) -> Option<LostError> {
        self.thread.block_on(self.watch.ended())
    }
}

/// The methods that do not block.
impl Deref for LockWatch {
    type Target = crate::LockWatch;

    fn deref(&self) -> &crate::LockWatch {
        &self.watch
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
