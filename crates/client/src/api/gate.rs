use std::sync::{Mutex, MutexGuard, PoisonError};

use quorlock_core::Fence;

/// Checks fences for a protected resource: refuses a fence that is smaller than the largest seen.
///
/// A lock cannot stop a holder that was paused, or whose request was delayed in the network, but
/// the resource can. Every holder sends the fence of its lock with each write. A fence below the
/// largest one seen belongs to a lock that has ended. An equal fence comes from the same holder,
/// and passes. Pass only fences of exclusive holders: those of readers may be equal or different.
///
/// Use one gate for each lock key, since fences of different keys are unrelated. A new gate accepts
/// every fence. If the data outlives the process, store the largest fence with the data and start
/// with [`FenceGate::resume`]. If a database holds the data, let the database do the whole check.
///
/// # Check and write in one step
///
/// Between a [`check`](Self::check) and the write that follows it, a later holder may write. The
/// older write would then come last. To prevent that, let the write itself compare the fence, as an
/// SQL `UPDATE … WHERE fence <= …` does, or write inside [`pass`](Self::pass).
///
/// ```
/// use quorlock_client::{Fence, FenceGate};
///
/// let gate = FenceGate::new();
/// let (first, second) = (Fence::new(33).unwrap(), Fence::new(34).unwrap());
///
/// gate.pass(first, || println!("written")).unwrap();
/// gate.pass(second, || println!("written by the next holder")).unwrap();
/// // The first holder was paused, and does not know that its lock has ended.
/// let late = gate.pass(first, || unreachable!("nothing is written")).unwrap_err();
/// assert_eq!(late.largest, second);
/// ```
///
/// # In SQL
///
/// A column beside the data is a gate that is as durable as the data. The statement that writes
/// the data also checks the fence. If no row changes, the fence was too small.
///
/// ```sql
/// ALTER TABLE stock ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
/// UPDATE stock SET apples = :apples, fence = :fence WHERE name = :name AND fence <= :fence;
/// ```
///
/// When one lock protects several tables, its fence gets its own table, and every transaction
/// begins there. The row stays locked until the commit, so that check and writes are one step:
///
/// ```sql
/// CREATE TABLE fences (lock_key TEXT PRIMARY KEY, fence BIGINT NOT NULL);
/// BEGIN;
/// INSERT INTO fences VALUES (:key, :fence)
///     ON CONFLICT (lock_key) DO UPDATE SET fence = excluded.fence
///     WHERE fences.fence <= excluded.fence;
/// -- If no row changed: ROLLBACK. Otherwise the writes, and then
/// COMMIT;
/// ```
#[derive(Debug, Default)]
pub struct FenceGate {
    largest: Mutex<Fence>,
}

/// A fence that a [`FenceGate`] refused: its lock has ended, and a larger fence has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "fence {fence} is too old: {largest} was accepted before, so this lock has ended and another client \
     has acquired it since"
)]
pub struct Stale {
    /// The fence that was refused.
    pub fence: Fence,
    /// The largest fence that passed.
    pub largest: Fence,
}

impl FenceGate {
    /// A gate that no fence has passed.
    pub const fn new() -> Self {
        Self::resume(Fence::ZERO)
    }

    /// A gate that continues from the largest fence that was stored with the data.
    pub const fn resume(largest: Fence) -> Self {
        Self { largest: Mutex::new(largest) }
    }

    /// Accepts this fence and remembers it, unless a larger one passed before.
    ///
    /// For reads, or writes that compare fences. Blocks while another fence [passes](Self::pass).
    ///
    /// # Errors
    /// [`Stale`]: the sender must stop.
    pub fn check(&self, fence: Fence) -> Result<(), Stale> {
        self.pass(fence, || ())
    }

    /// Accepts this fence, unless a larger one passed before, and runs `work` before another fence
    /// can pass.
    ///
    /// The fence is remembered even if `work` panics.
    ///
    /// # Errors
    /// [`Stale`]: `work` was not run, and the sender must stop.
    pub fn pass<R>(&self, fence: Fence, work: impl FnOnce() -> R) -> Result<R, Stale> {
        let mut largest = self.lock();
        if fence < *largest {
            return Err(Stale { fence, largest: *largest });
        }
        *largest = fence;
        Ok(work())
    }

    /// The largest fence that passed, to be stored with the data; [`Fence::ZERO`] at first.
    pub fn largest(&self) -> Fence {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Fence> {
        // A panic in `work` leaves the number valid.
        self.largest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
