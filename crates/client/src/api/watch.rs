use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Fence;

use super::lock_inner::LockInner;
use crate::{Coverage, LostError, Ownership};

/// A read-only view of a [`Lock`](crate::Lock). Cheap to clone.
///
/// [`LockBuilder::run`](crate::LockBuilder::run) passes one to the work.
#[derive(Clone)]
pub struct LockWatch {
    lock: Arc<LockInner>,
}

impl LockWatch {
    pub(crate) fn new(lock: Arc<LockInner>) -> Self {
        Self { lock }
    }

    /// The locked key. For [several keys](crate::Quorum::lock_all), the first one in byte order.
    pub fn key(&self) -> &[u8] {
        self.lock.spec.keys.first()
    }

    /// The locked keys, in byte order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.lock.spec.keys.iter()
    }

    /// The fence of the lock: see [`Lock::fence`](crate::Lock::fence).
    pub fn fence(&self) -> Fence {
        self.lock.fence
    }

    /// How much longer the lock is certainly held; zero once it may have ended or was released.
    pub fn remaining(&self) -> Duration {
        self.lock.remaining()
    }

    /// Whether the lock is held, and until when. A released lock is [`Ownership::Lost`].
    pub fn ownership(&self) -> Ownership {
        self.lock.ownership_with_deadline()
    }

    /// The number of nodes on which the lock is known to be held.
    pub fn coverage(&self) -> Coverage {
        self.lock.coverage()
    }

    /// Waits until the lock is lost, and returns why.
    ///
    /// Returns at the deadline at the latest. Never returns for a lock that was released, dropped
    /// or detached: see [`ended`](Self::ended).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LostError {
        match self.ended().await {
            Some(lost) => lost,
            None => std::future::pending().await,
        }
    }

    /// Waits until the lock is not held any more.
    ///
    /// Returns why it was lost, or `None` when it was released, dropped or detached.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ended(&self) -> Option<LostError> {
        self.lock.ended().await
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
