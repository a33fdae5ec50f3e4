use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Fence;
use quorlock_core::client::Mode;
use quorlock_core::quorum;

use super::lock_inner::LockInner;
use crate::{DetachedLock, ExtendError, LockWatch, LostError, Ownership, ReleaseError, telemetry};

/// A held lock.
///
/// The lock is certainly held for [`remaining`](Self::remaining), by this machine's own clocks.
/// Before that time ends, [`extend`](Self::extend) the lock, [`renew`](Self::renew) it in the
/// background, or stop the work that it protects. [`lost`](Self::lost) waits for the loss. Send the
/// [`fence`](Self::fence) with every write, so that the resource can refuse an earlier holder.
///
/// Dropping the lock releases it in the background. [`release`](Self::release) waits until a
/// majority confirms.
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    inner: Option<Arc<LockInner>>,
    slot: Option<usize>,
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
        let slot = inner.spec.slot();
        Self { inner: Some(inner), slot }
    }

    /// `slot` is the slot that the lock had before it was detached.
    pub(crate) fn attached(inner: Arc<LockInner>, slot: Option<usize>) -> Self {
        Self { inner: Some(inner), slot }
    }

    /// The locked key. For [several keys](crate::Quorum::lock_all), the first one in byte order.
    pub fn key(&self) -> &[u8] {
        self.inner().spec.keys.first()
    }

    /// The locked keys, in byte order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.inner().spec.keys.iter()
    }

    /// Returns which key was chosen, if the lock is a permit or a lock on one of several keys.
    ///
    /// This is the number of the slot of a [permit](crate::Quorum::semaphore), or the position of
    /// the locked key among [several keys](crate::Quorum::lock_any) in byte order, from 0; `None`
    /// for other locks. A lock that was detached and attached keeps its slot.
    pub fn slot(&self) -> Option<usize> {
        self.slot
    }

    /// The fence of the lock, which is larger than that of every earlier holder of the key.
    ///
    /// Send it with every write to the protected resource. The resource refuses a fence below the
    /// largest one that it has seen: see [`FenceGate`](crate::FenceGate). Readers that hold a
    /// [shared](crate::LockBuilder::shared) lock at the same time may have equal fences.
    pub fn fence(&self) -> Fence {
        self.inner().fence
    }

    /// Whether the lock was acquired [shared](crate::LockBuilder::shared) or was
    /// [downgraded](Self::downgrade), so that other clients may hold it at the same time.
    pub fn is_shared(&self) -> bool {
        self.inner().mode() == Mode::Shared
    }

    /// How much longer the lock is certainly held; zero once it may have ended.
    pub fn remaining(&self) -> Duration {
        self.inner().remaining()
    }

    /// Whether the lock is held, and until when.
    pub fn ownership(&self) -> Ownership {
        self.inner().ownership_with_deadline()
    }

    /// The number of nodes on which the lock is known to be held.
    ///
    /// These nodes confirmed the lock when they last answered, and have not been restarted since. A
    /// late answer counts. The next extension repairs a node that misses the lock.
    pub fn coverage(&self) -> Coverage {
        self.inner().coverage()
    }

    /// A view of the lock that shows whether it is held, and cannot end it.
    pub fn watch(&self) -> LockWatch {
        LockWatch::new(Arc::clone(self.inner()))
    }

    /// Waits until the lock is lost, and returns why.
    ///
    /// Returns at the deadline at the latest, even if no node answers, or soon after the machine
    /// wakes if it sleeps then.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LostError {
        self.watch().lost().await
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
        self.inner().renew();
    }

    /// Makes the lock last a full ttl from now, on a majority of the nodes.
    ///
    /// An extension also repairs the nodes that miss the lock.
    ///
    /// # Errors
    /// - [`ExtendError::Lost`]: the lock is not held any more.
    /// - [`ExtendError::NoQuorum`]: too few nodes answer. The lock is still held for
    ///   [`remaining`](Self::remaining).
    /// - [`ExtendError::Revoked`]: an operator [revoked](crate::Quorum::revoke) the lock. It is
    ///   still held for `remaining`.
    /// - [`ExtendError::HeldTooLong`]: the lock has reached its
    ///   [`max_hold`](crate::LockBuilder::max_hold). It is still held for `remaining`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the extension to the background, which never shortens the lock.
    pub async fn extend(&mut self) -> Result<(), ExtendError> {
        self.extension().await
    }

    /// [`extend`](Self::extend) for another thread: the future does not borrow the lock.
    pub(crate) fn extension(
        &mut self,
    ) -> impl Future<Output = Result<(), ExtendError>> + Send + use<> {
        let inner = Arc::clone(self.inner());
        async move { inner.extend().await }
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
    pub async fn release(mut self) -> Result<Released, ReleaseError> {
        self.take().release().await
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
        super::run::finish(self).await
    }

    /// Turns an exclusive lock into a shared one, and extends it.
    ///
    /// Waiting readers acquire the lock at once, unless a writer waits ahead of them. No writer
    /// holds the lock in between. The fence stays the same. On a shared lock this is
    /// [`extend`](Self::extend).
    ///
    /// A downgrade cannot be undone. From the first poll on, the lock counts as shared, since some
    /// nodes may have granted it to readers. After an error, the lock is held as
    /// [`ownership`](Self::ownership) says, and each later extension repeats the request.
    ///
    /// # Errors
    /// Those of [`extend`](Self::extend). [`ExtendError::NotShareable`] leaves the lock exclusive.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: the downgrade continues in the background. A future
    /// that was never polled leaves the lock exclusive.
    pub async fn downgrade(&mut self) -> Result<(), ExtendError> {
        self.downgrading().await
    }

    /// [`downgrade`](Self::downgrade) with a future that does not borrow the lock.
    pub(crate) fn downgrading(
        &mut self,
    ) -> impl Future<Output = Result<(), ExtendError>> + Send + use<> {
        let inner = Arc::clone(self.inner());
        // An attached permit has one key. Only its slot shows that the key was one of several.
        let is_one_of_several = self.slot.is_some();
        async move {
            if is_one_of_several {
                return Err(ExtendError::NotShareable);
            }
            inner.downgrade().await
        }
    }

    /// Detaches the lock from this process, for another process to attach.
    ///
    /// The other process passes the [`DetachedLock`] to [`Quorum::attach`](crate::Quorum::attach).
    /// Renewal ends here: a lock that is not attached ends by its deadline. To leave a full ttl for
    /// the attachment, [`extend`](Self::extend) the lock first.
    ///
    /// Until the lock is attached, nodes that miss it are not repaired: see
    /// [`coverage`](Self::coverage).
    pub fn detach(mut self) -> DetachedLock {
        let inner = self.take();
        telemetry::detached(&inner);
        DetachedLock::new(&inner, self.slot, inner.detach())
    }

    /// Describes the lock for a process that releases it after this process has died.
    ///
    /// This handle keeps the lock. The other process passes the [`DetachedLock`] to
    /// [`Quorum::release_detached`](crate::Quorum::release_detached), once nothing that the lock
    /// protects runs any more. Attaching it would take the lock away from this handle.
    pub fn to_detached(&self) -> DetachedLock {
        let inner = self.inner();
        DetachedLock::new(inner, self.slot, inner.remaining())
    }

    pub(crate) fn loss(&self) -> Option<LostError> {
        match self.inner().ownership() {
            quorum::Ownership::Lost(end) => Some(self.inner().loss_of(end)),
            quorum::Ownership::Held(_) | quorum::Ownership::Uncertain(_) => None,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<LockInner> {
        self.inner.as_ref().expect("the lock was used after a call that consumes it")
    }

    fn take(&mut self) -> Arc<LockInner> {
        self.inner.take().expect("the lock was used after a call that consumes it")
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            telemetry::dropped(&inner);
            inner.release_in_background();
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &format_args!("{}", self.inner().spec.keys))
            .field("fence", &self.fence())
            .field("ownership", &self.ownership())
            .field("coverage", &self.coverage())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.held, self.nodes)
    }
}
