use std::sync::{Mutex, MutexGuard, PoisonError};

use quorlock_core::Fence;

/// The resource's side of a lock: lets holders pass as long as no later one has passed, and refuses whoever comes late.
///
/// A lease cannot stop a holder that was paused, or whose request was on its way for too long. The resource can: every
/// holder sends the fence of its lock along, and what is below the largest fence seen so far comes from a lock that
/// has ended. The same fence again is the same holder, and passes.
///
/// There is one gate for each lock key: fences of different keys have nothing to do with each other. A gate is one
/// number and a mutex; which gates to keep, and for how long, is up to whoever keeps them. One that is thrown away or
/// starts afresh lets everybody pass who would have been refused, so a resource that outlives its process stores the
/// number beside the data ([`FenceGate::resume`]), or best lets the database that holds the data do the check.
///
/// # Check and write in one step
///
/// Between a [`check`](Self::check) and the write that follows it, a later holder may write. Then the older write comes
/// last after all. So either what is written refuses by itself to go back (as an SQL `UPDATE … WHERE fence <= …` does),
/// or the write happens inside [`pass`](Self::pass).
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
/// A column beside the data is a gate that is as durable as the data, checked in the same statement. No row changed
/// means: too late.
///
/// ```sql
/// ALTER TABLE stock ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
/// UPDATE stock SET apples = :apples, fence = :fence WHERE name = :name AND fence <= :fence;
/// ```
///
/// When one lock protects several tables, its fence has a table of its own, and every transaction begins with it. The
/// row stays locked until the commit, which makes check and writes one step:
///
/// ```sql
/// CREATE TABLE fences (lock_key TEXT PRIMARY KEY, fence BIGINT NOT NULL);
/// BEGIN;
/// INSERT INTO fences VALUES (:key, :fence)
///     ON CONFLICT (lock_key) DO UPDATE SET fence = excluded.fence WHERE fences.fence <= excluded.fence;
/// -- no row changed: ROLLBACK. Otherwise the writes, and
/// COMMIT;
/// ```
#[derive(Debug, Default)]
pub struct FenceGate {
    largest: Mutex<Fence>,
}

/// What was refused by a [`FenceGate`]: it belongs to a lock that has ended, and somebody else has held it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "fence {fence} comes too late: {largest} has been here, so this lock has ended and was another's since"
)]
pub struct Stale {
    /// The fence that was refused.
    pub fence: Fence,
    /// The largest that has passed.
    pub largest: Fence,
}

impl FenceGate {
    /// A gate that nobody has passed.
    pub const fn new() -> Self {
        Self::resume(Fence::ZERO)
    }

    /// A gate that this fence was the largest to pass, as it was stored with the data.
    pub const fn resume(largest: Fence) -> Self {
        Self { largest: Mutex::new(largest) }
    }

    /// Lets this fence pass, unless a larger one has, and remembers it.
    ///
    /// For a resource that refuses by itself to go back, or that is only read. Waits for whoever is
    /// [passing](Self::pass).
    ///
    /// # Errors
    /// [`Stale`]: whoever sent this must not go on.
    pub fn check(&self, fence: Fence) -> Result<(), Stale> {
        self.pass(fence, || ())
    }

    /// Lets this fence pass, unless a larger one has, and does the work before anybody else may pass.
    ///
    /// The fence is remembered whatever becomes of the work, also when it panics.
    ///
    /// # Errors
    /// [`Stale`]: the work was not done, and whoever sent this must not go on.
    pub fn pass<R>(&self, fence: Fence, work: impl FnOnce() -> R) -> Result<R, Stale> {
        let mut largest = self.lock();
        if fence < *largest {
            return Err(Stale { fence, largest: *largest });
        }
        *largest = fence;
        Ok(work())
    }

    /// The largest fence that has passed, to be stored with the data; [`Fence::ZERO`] when none has.
    pub fn largest(&self) -> Fence {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Fence> {
        // The number is whole, whatever panicked beside it.
        self.largest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
