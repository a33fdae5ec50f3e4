use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Fence;

use crate::driver::LockInner;
use crate::{Coverage, LostError, Nodes, Ownership};

/// A view of a held [`Lock`](crate::Lock): it tells how things stand, and cannot end the lock. Cheap to clone.
///
/// What runs under [`LockBuilder::run`](crate::LockBuilder::run) is given one.
#[derive(Clone)]
pub struct LockWatch {
    lock: Arc<LockInner>,
}

impl LockWatch {
    pub(crate) fn new(lock: Arc<LockInner>) -> Self {
        Self { lock }
    }

    /// The locked key; of [several](crate::Quorum::lock_all) the first in the order of their bytes.
    pub fn key(&self) -> &[u8] {
        self.lock.spec.keys.first()
    }

    /// The locked keys, in the order of their bytes.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.lock.spec.keys.iter()
    }

    /// The fencing token: see [`Lock::fence`](crate::Lock::fence).
    pub fn fence(&self) -> Fence {
        self.lock.fence
    }

    /// How much longer the lock is certainly held; zero when it may be another's, and when it was given back.
    pub fn remaining(&self) -> Duration {
        self.lock.remaining()
    }

    /// Whether the lock is held, and until when. A lock that was given back is [`Ownership::Lost`].
    pub fn ownership(&self) -> Ownership {
        self.lock.ownership()
    }

    /// On how many nodes the lock is known to be held.
    pub fn coverage(&self) -> Coverage {
        self.lock.coverage()
    }

    /// Waits until the lock is lost, and says why. That is at its deadline at the latest. It never returns for a lock that
    /// was given back: see [`ended`](Self::ended).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LostError {
        match self.ended().await {
            Some(lost) => lost,
            None => std::future::pending().await,
        }
    }

    /// Waits until the lock is not held any more: lost, for this reason, or `None` when it was released, dropped or handed
    /// over.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ended(&self) -> Option<LostError> {
        self.lock.ended().await
    }

    /// What is left of it; or how it has ended: the loss, or `None` when it was released or detached.
    pub(crate) fn remaining_or_end(&self) -> Result<Duration, Option<LostError>> {
        self.lock.end()
    }

    /// What each node answered last.
    pub(crate) fn report(&self) -> Nodes {
        self.lock.report()
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockWatch")
            .field("key", &format_args!("{}", self.lock.spec.keys))
            .field("fence", &self.fence())
            .field("ownership", &self.ownership())
            .field("coverage", &self.coverage())
            .finish_non_exhaustive()
    }
}
