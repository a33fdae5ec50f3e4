use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::Mode;
use quorlock_core::{Fence, quorum};
use tokio::time::sleep;

use super::lock_inner::LockInner;
use crate::{Coverage, Deadline, LostError, Ownership, clock};

/// Timers stop while the computer sleeps, and deadlines do not.
const DEADLINE_CHECK_EVERY: Duration = Duration::from_millis(500);

/// A read-only view of a [`Lock`](crate::Lock). Cheap to clone.
///
/// [`LockBuilder::run`](crate::LockBuilder::run) passes one to the work.
#[derive(Clone)]
pub struct LockWatch {
    pub(crate) inner: Arc<LockInner>,
}

impl LockWatch {
    /// The locked key. For [several keys](crate::Quorum::lock_all), the first one in byte order.
    pub fn key(&self) -> &[u8] {
        self.inner.spec.keys.first()
    }

    /// The locked keys, in byte order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.inner.spec.keys.iter()
    }

    /// Returns which key was chosen, if the lock is a permit or a lock on one of several keys.
    ///
    /// This is the number of the slot of a [permit](crate::Quorum::semaphore), or the position of
    /// the locked key among [several keys](crate::Quorum::lock_any) in byte order, from 0; `None`
    /// for other locks. A lock that was detached and attached keeps its slot.
    pub fn slot(&self) -> Option<usize> {
        self.inner.slot
    }

    /// Whether the lock was acquired [shared](crate::LockBuilder::shared) or was
    /// [downgraded](crate::Lock::downgrade), so that other clients may hold it at the same time.
    pub fn is_shared(&self) -> bool {
        self.inner.mode() == Mode::Shared
    }

    /// The fence of the lock, which is larger than that of every earlier holder of the key.
    ///
    /// Send it with every write to the protected resource. The resource refuses a fence below the
    /// largest one that it has seen: see [`FenceGate`](crate::FenceGate). Readers that hold a
    /// [shared](crate::LockBuilder::shared) lock at the same time may have equal fences.
    pub fn fence(&self) -> Fence {
        self.inner.fence
    }

    /// How much longer the lock is certainly held; zero once it may have ended or was released.
    pub fn remaining(&self) -> Duration {
        self.ownership().until().map_or(Duration::ZERO, Deadline::remaining)
    }

    /// Whether the lock is held, and until when. A released lock is [`Ownership::Lost`].
    pub fn ownership(&self) -> Ownership {
        let now = clock::now();
        match self.inner.ownership() {
            quorum::Ownership::Held(left) => Ownership::Held(Deadline::new(now, left)),
            quorum::Ownership::Uncertain(left) => Ownership::Uncertain(Deadline::new(now, left)),
            quorum::Ownership::Lost(_) => Ownership::Lost,
        }
    }

    /// The number of nodes on which the lock is known to be held.
    ///
    /// These nodes confirmed the lock when they last answered, and have not been restarted since. A
    /// late answer counts. The next extension repairs a node that misses the lock.
    pub fn coverage(&self) -> Coverage {
        self.inner.coverage()
    }

    /// Waits until the lock is lost, and returns why.
    ///
    /// Returns at the deadline at the latest, even if no node answers, or soon after the machine
    /// wakes if it sleeps then. Never returns for a lock that was released, dropped or detached:
    /// see [`ended`](Self::ended).
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
        loop {
            // From `enable` on, this task notices the end.
            let mut ended = pin!(self.inner.ended.notified());
            ended.as_mut().enable();
            match self.inner.validity_or_end() {
                Err(end) => return end,
                Ok(left) => tokio::select! {
                    () = ended => {}
                    () = sleep(left.min(DEADLINE_CHECK_EVERY)) => {}
                },
            }
        }
    }

    pub(super) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("key", &format_args!("{}", self.inner.spec.keys))
            .field("fence", &self.fence())
            .field("ownership", &self.ownership())
            .field("coverage", &self.coverage())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe("LockWatch", f)
    }
}
