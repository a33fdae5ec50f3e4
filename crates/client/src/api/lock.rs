use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Fence;
use quorlock_core::quorum::Standing;

use crate::driver::{LockInner, extend};
use crate::{DetachedLock, ExtendError, LockWatch, LostError, Ownership, ReleaseError, telemetry};

/// A held lock.
///
/// It is held for [`remaining`](Self::remaining), by this machine's own clocks, whatever the nodes do: before that is
/// over, [`extend`](Self::extend) it, have it extended by [`keep_alive`](Self::keep_alive), or stop what it protects.
/// [`lost`](Self::lost) tells when. [`fence`](Self::fence) is for the resource itself, to reject whoever comes late.
///
/// Dropping the lock releases it from a background task; [`release`](Self::release) waits for a majority to confirm.
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    inner: Option<Arc<LockInner>>,
}

/// On how many of the nodes a lock is known to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coverage {
    /// Nodes that hold it.
    pub held: usize,
    /// Nodes that there are.
    pub nodes: usize,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock was held until now.
    Released,
    /// The lock had ended before, on so many nodes that another could have had it: by its deadline, by an operator's command,
    /// or because nodes were started again.
    AlreadyOver,
}

impl Lock {
    pub(crate) fn new(inner: Arc<LockInner>) -> Self {
        Self { inner: Some(inner) }
    }

    /// The locked key; of [several](crate::Quorum::lock_all) the first in the order of their bytes.
    pub fn key(&self) -> &[u8] {
        self.inner().spec.keys.first()
    }

    /// The locked keys, in the order of their bytes.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.inner().spec.keys.iter()
    }

    /// The fencing token: larger than that of every earlier holder of the key. Pass it along with every write to what the
    /// lock protects, and have that refuse anything below the largest it has seen.
    pub fn fence(&self) -> Fence {
        self.inner().fence
    }

    /// How much longer the lock is certainly held; zero when it may be another's.
    pub fn remaining(&self) -> Duration {
        self.inner().remaining()
    }

    /// Whether the lock is held, and until when.
    pub fn ownership(&self) -> Ownership {
        self.inner().ownership()
    }

    /// On how many nodes the lock is known to be held: those that said so when they were last asked, and have not been
    /// started again since. Nodes that answer late still count. A lock that was waited for is held on a majority at first. If it is
    /// still held after 10 to 20 ms, it is extended, which takes it to the nodes that were not asked for it.
    pub fn coverage(&self) -> Coverage {
        self.inner().coverage()
    }

    /// Another view of the same lock, for those who need to know whether it is held, and cannot end it.
    pub fn watch(&self) -> LockWatch {
        LockWatch::new(Arc::clone(self.inner()))
    }

    /// Waits until the lock is lost, and says why. That is at its deadline at the latest, also when no node answers and
    /// when the machine has slept, as far as the runtime lets tasks run.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LostError {
        self.watch().lost().await
    }

    /// Has the lock extended from now on, at a third of its ttl, until it is released, dropped or lost; and no longer than
    /// the [`max_hold`](crate::LockBuilder::max_hold) that it was acquired with. All locks of a client are extended by one
    /// task, and those that are due at about the same time with one message per node.
    ///
    /// Nodes that missed the lock, because they were away, are given it again while a majority holds it.
    pub fn renew(&mut self) {
        self.inner().renew();
    }

    /// Makes the lock last a full ttl from now, on a majority of the nodes. Nodes that missed the lock, because they were
    /// away, are given it again.
    ///
    /// # Errors
    /// [`ExtendError::Lost`] when the lock is another's or nobody's; [`ExtendError::NoQuorum`] when too few nodes
    /// answer, and then the lock is still held for what [`remaining`](Self::remaining) says;
    /// [`ExtendError::HeldTooLong`] when it would be held for longer than
    /// [`max_hold`](crate::LockBuilder::max_hold), and likewise.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the extension to the background: the lock is held at least as long as before.
    pub async fn extend(&mut self) -> Result<(), ExtendError> {
        self.extension().await
    }

    /// The same as a future of its own, for those who wait for it elsewhere.
    pub(crate) fn extension(&mut self) -> impl Future<Output = Result<(), ExtendError>> + Send + use<> {
        let inner = Arc::clone(self.inner());
        async move { extend(&inner).await }
    }

    /// Gives the lock back, on all nodes, and returns when a majority has confirmed it; or, at the nodes' time limit, when a
    /// majority is known not to have it, some because they were never asked for it. The rest is done in the background. That
    /// the lock had ended before is a result, not an error; of a lock that is known to be lost it is at once, and what may be
    /// left of it on some nodes is released in the background.
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer; the release goes on in the background.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background.
    pub async fn release(mut self) -> Result<Released, ReleaseError> {
        self.take().release().await
    }

    /// Detaches the lock from this process, so that another one can
    /// [attach](crate::Quorum::attach) it from the text of the [`DetachedLock`]. This handle is gone
    /// with it, and so is the renewal: unless the lock is attached, it ends by its deadline.
    /// [`extend`](Self::extend) it before to give the other process a full ttl of time.
    ///
    /// Until it is attached, nodes that missed the lock are not given it: see
    /// [`coverage`](Self::coverage).
    pub fn detach(mut self) -> DetachedLock {
        let inner = self.take();
        telemetry::detached(&inner);
        let (token, remaining) = inner.detach();
        DetachedLock::new(&inner, token, remaining)
    }

    /// Why it is lost, if it is.
    pub(crate) fn loss(&self) -> Option<LostError> {
        match self.inner().standing() {
            Standing::Lost(end) => Some(self.inner().lost_by(end)),
            Standing::Held(_) | Standing::Uncertain(_) => None,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<LockInner> {
        self.inner.as_ref().expect("taken only by what consumes the lock")
    }

    fn take(&mut self) -> Arc<LockInner> {
        self.inner.take().expect("taken only by what consumes the lock")
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            telemetry::dropped(&inner);
            inner.drop_lock();
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
