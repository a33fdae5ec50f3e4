use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use quorlock_core::client::Shard;

use super::lock_inner::LockInner;
use crate::{DetachedLock, ExtendError, LockWatch, LostError, ReleaseError, telemetry};

/// A held lock.
///
/// The lock is certainly held for [`remaining`](LockWatch::remaining), by this machine's own
/// clocks. Before that time ends, [`extend`](Self::extend) the lock, [`renew`](Self::renew) it in
/// the background, or stop the work that it protects. [`lost`](LockWatch::lost) waits for the loss.
/// Send the [`fence`](LockWatch::fence) with every write, so that the resource can refuse an
/// earlier holder. A lock has all methods of its [`LockWatch`].
///
/// Dropping the lock releases it in the background. [`release`](Self::release) waits until a
/// majority confirms.
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    watch: LockWatch,
}

/// The number of nodes on which a lock is known to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// The number of nodes that hold the lock.
    pub held: usize,
    /// The number of all nodes.
    pub nodes: usize,
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock was held until this release.
    Released,
    /// The lock had already ended: too few nodes held it to exclude another client. Its deadline
    /// had passed, an operator had ended it, or nodes had been restarted.
    AlreadyOver,
}

impl Lock {
    pub(crate) fn new(inner: Arc<LockInner>) -> Self {
        Self { watch: LockWatch { inner } }
    }

    /// A view of the lock that shows whether it is held, and cannot end it.
    pub fn watch(&self) -> LockWatch {
        self.watch.clone()
    }

    /// Renews the lock in the background, every third of its ttl.
    ///
    /// Renewal ends when the lock is released, dropped, detached or lost, and at its
    /// [`max_hold`](crate::LockBuilder::max_hold). Nodes do not extend a revoked lock, but the
    /// client goes on asking, because the operator may end the lock early. The extensions of locks
    /// that are due at the same time share a pipeline per node.
    ///
    /// While a majority holds the lock, renewal repairs the nodes that miss it.
    pub fn renew(&mut self) {
        self.watch.inner.renew();
    }

    /// Makes the lock last a full ttl from now, on a majority of the nodes.
    ///
    /// An extension also repairs the nodes that miss the lock.
    ///
    /// # Errors
    /// - [`ExtendError::Lost`]: the lock is not held any more.
    /// - [`ExtendError::NoQuorum`]: too few nodes answer. The lock is still held for
    ///   [`remaining`](LockWatch::remaining).
    /// - [`ExtendError::Revoked`]: an operator [revoked](crate::Quorum::revoke) the lock. It is
    ///   still held for `remaining`.
    /// - [`ExtendError::HeldTooLong`]: the lock has reached its
    ///   [`max_hold`](crate::LockBuilder::max_hold). It is still held for `remaining`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the extension to the background, which never shortens the lock.
    pub async fn extend(&mut self) -> Result<(), ExtendError> {
        self.watch.inner.run_round(Shard::extend).await
    }

    /// Releases the lock on all nodes, and returns when a majority has confirmed it.
    ///
    /// The release on the other nodes continues in the background. A lock that had already ended is
    /// no error, but [`Released::AlreadyOver`]. If the lock is known to be lost, the call returns
    /// `AlreadyOver` at once, and the whole release runs in the background.
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer. The release then continues.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background.
    pub async fn release(self) -> Result<Released, ReleaseError> {
        self.watch.inner.release().await
    }

    /// Releases the lock after the work it protected, as [`run`](crate::LockBuilder::run) does.
    ///
    /// An unconfirmed release is no error: by this machine's own clocks, the lock was held until
    /// the work ended, and the release continues in the background.
    ///
    /// # Errors
    /// [`LostError`] when the lock did not protect the whole work.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background.
    pub async fn finish(self) -> Result<(), LostError> {
        if let Err(Some(lost)) = self.watch.inner.validity_or_end() {
            return Err(lost);
        }
        let watch = self.watch();
        match self.release().await {
            Ok(Released::AlreadyOver) => Err(LostError::Ended { nodes: watch.inner.report() }),
            // By the local clocks, the lock was held. An unconfirmed release continues.
            Ok(Released::Released) | Err(_) => Ok(()),
        }
    }

    /// Turns an exclusive lock into a shared one, and extends it.
    ///
    /// Waiting readers acquire the lock at once, unless a writer waits ahead of them. No writer
    /// holds the lock in between. The fence stays the same. On a shared lock this is
    /// [`extend`](Self::extend).
    ///
    /// A downgrade cannot be undone. From the first poll on, the lock counts as shared, since some
    /// nodes may have granted it to readers. After an error, the lock is held as
    /// [`ownership`](LockWatch::ownership) says, and each later extension repeats the request.
    ///
    /// # Errors
    /// Those of [`extend`](Self::extend). [`ExtendError::NotShareable`] leaves the lock exclusive.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: the downgrade continues in the background. A future
    /// that was never polled leaves the lock exclusive.
    pub async fn downgrade(&mut self) -> Result<(), ExtendError> {
        // An attached permit has one key. Only its slot shows that the key was one of several.
        if self.slot().is_some() || self.keys().len() > 1 {
            return Err(ExtendError::NotShareable);
        }
        self.watch.inner.run_round(Shard::downgrade).await
    }

    /// Detaches the lock from this process, for another process to attach.
    ///
    /// The other process passes the [`DetachedLock`] to [`Quorum::attach`](crate::Quorum::attach).
    /// Renewal ends here: a lock that is not attached ends by its deadline. To leave a full ttl for
    /// the attachment, [`extend`](Self::extend) the lock first.
    ///
    /// Until the lock is attached, nodes that miss it are not repaired: see
    /// [`coverage`](LockWatch::coverage).
    pub fn detach(self) -> DetachedLock {
        let inner = &self.watch.inner;
        telemetry::ended(inner, "detached");
        DetachedLock::new(inner, inner.detach())
    }

    /// Describes the lock for a process that releases it after this process has died.
    ///
    /// This handle keeps the lock. The other process passes the [`DetachedLock`] to
    /// [`Quorum::release_detached`](crate::Quorum::release_detached), once nothing that the lock
    /// protects runs any more. Attaching it would take the lock away from this handle.
    pub fn to_detached(&self) -> DetachedLock {
        DetachedLock::new(&self.watch.inner, self.remaining())
    }
}

impl Deref for Lock {
    type Target = LockWatch;

    fn deref(&self) -> &LockWatch {
        &self.watch
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let inner = &self.watch.inner;
        if !inner.was_given_up() {
            telemetry::ended(inner, "dropped");
            inner.release_in_background();
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.watch.describe("Lock", f)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.held, self.nodes)
    }
}
