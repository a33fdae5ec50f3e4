use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Fence;

use crate::held::Held;
use crate::{Coverage, LostError, Nodes, Ownership};

/// A view of a held [`Lock`](crate::Lock): it tells how things stand, and cannot end the lock. Cheap to clone.
///
/// What runs under [`LockBuilder::run`](crate::LockBuilder::run) is given one.
#[derive(Clone)]
pub struct LockWatch {
    held: Arc<Held>,
}

impl LockWatch {
    pub(crate) fn new(held: Arc<Held>) -> Self {
        Self { held }
    }

    /// The locked key; of [several](crate::Quorum::lock_all) the first in the order of their bytes.
    pub fn key(&self) -> &[u8] {
        self.held.keys.first()
    }

    /// The locked keys, in the order of their bytes.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.held.keys.iter().map(AsRef::as_ref)
    }

    /// The fencing token: see [`Lock::fence`](crate::Lock::fence).
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// How much longer the lock is certainly held; zero when it may be another's, and when it was given back.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Whether the lock is held, and until when. A lock that was given back is [`Ownership::Lost`].
    pub fn ownership(&self) -> Ownership {
        self.held.ownership()
    }

    /// On how many nodes the lock is known to be held.
    pub fn coverage(&self) -> Coverage {
        self.held.coverage()
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
        self.held.ended().await
    }

    /// What each node answered last.
    pub(crate) fn report(&self) -> Nodes {
        self.held.report()
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockWatch")
            .field("key", &format_args!("{}", self.held.keys))
            .field("fence", &self.fence())
            .field("ownership", &self.ownership())
            .field("coverage", &self.coverage())
            .finish_non_exhaustive()
    }
}
