use std::time::Duration;

use super::thread::Blocking;
use crate::{
    AcquireError, AttachError, DetachedLock, ExtendError, Holder, LostError, ReleaseError,
    Released, RunError,
};

/// Describes a lock and how to acquire it: a [`crate::LockBuilder`] whose calls block.
pub type LockBuilder = Blocking<crate::LockBuilder>;

/// A held lock: a [`crate::Lock`] whose calls block.
///
/// Dropping the lock releases it in the background, and does not block.
pub type Lock = Blocking<crate::Lock>;

/// A view of a lock: a [`crate::LockWatch`] whose calls block. Cheap to clone.
pub type LockWatch = Blocking<crate::LockWatch>;

impl LockBuilder {
    /// Shares the lock with other clients that ask to share it: see [`crate::LockBuilder::shared`].
    pub fn shared(self) -> Self {
        Self { value: self.value.shared(), ..self }
    }

    /// How long the lock lasts: see [`crate::LockBuilder::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { value: self.value.ttl(ttl), ..self }
    }

    /// How long [`acquire`](Self::acquire) waits in total: see [`crate::LockBuilder::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { value: self.value.wait(wait), ..self }
    }

    /// The least validity of a new lock: see [`crate::LockBuilder::min_validity`].
    pub fn min_validity(self, min_validity: Duration) -> Self {
        Self { value: self.value.min_validity(min_validity), ..self }
    }

    /// How long a node may take to answer: see [`crate::LockBuilder::node_timeout`].
    pub fn node_timeout(self, limit: Duration) -> Self {
        Self { value: self.value.node_timeout(limit), ..self }
    }

    /// The longest time that the lock is held: see [`crate::LockBuilder::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { value: self.value.max_hold(max_hold), ..self }
    }

    /// A label for people: see [`crate::LockBuilder::owner`].
    pub fn owner(self, owner: impl Into<String>) -> Self {
        Self { value: self.value.owner(owner), ..self }
    }

    /// Tries once to acquire the lock: see [`crate::LockBuilder::try_acquire`].
    ///
    /// # Errors
    /// See [`crate::LockBuilder::try_acquire`].
    pub fn try_acquire(&self) -> Result<Lock, AcquireError> {
        self.wait_for(self.value.try_acquire())
    }

    /// Acquires the lock, and waits up to [`wait`](Self::wait): see
    /// [`crate::LockBuilder::acquire`].
    ///
    /// # Errors
    /// See [`crate::LockBuilder::acquire`].
    pub fn acquire(&self) -> Result<Lock, AcquireError> {
        self.wait_for(self.value.acquire())
    }

    /// Asks the nodes who holds the lock now: see [`crate::LockBuilder::holder`].
    pub fn holder(&self) -> Option<Holder> {
        self.thread.block_on(self.value.holder())
    }

    /// [Acquires](Self::acquire) the lock, runs `work` under it on this thread, and releases it.
    ///
    /// The lock is renewed until the work is finished, up to [`max_hold`](Self::max_hold). A loss
    /// does not stop the work: before each step that needs the lock, the work must check
    /// [`LockWatch::remaining`](crate::LockWatch::remaining).
    ///
    /// # Errors
    /// - [`RunError::NotAcquired`]: the lock was not acquired, and the work did not begin.
    /// - [`RunError::Lost`]: the lock was lost before it was released. The output is dropped.
    pub fn run<T>(&self, work: impl FnOnce(LockWatch) -> T) -> Result<T, RunError> {
        let mut lock = self.acquire().map_err(RunError::NotAcquired)?;
        lock.renew();
        let output = work(lock.watch());
        let finished = self.thread.block_on(lock.value.finish());
        finished.map_err(|lost| RunError::Lost { lost, finished: true })?;
        Ok(output)
    }

    /// Attaches a lock that another process detached: see [`crate::LockBuilder::attach`].
    ///
    /// # Errors
    /// See [`AttachError`].
    pub fn attach(&self, detached: DetachedLock) -> Result<Lock, AttachError> {
        self.wait_for(self.value.attach(detached))
    }
}

impl Lock {
    /// A view of the lock that shows whether it is held, and cannot end it.
    pub fn watch(&self) -> LockWatch {
        self.with(self.value.watch())
    }

    /// Renews the lock in the background: see [`crate::Lock::renew`].
    pub fn renew(&mut self) {
        self.value.renew();
    }

    /// Makes the lock last a full ttl from now, on a majority of the nodes: see
    /// [`crate::Lock::extend`].
    ///
    /// # Errors
    /// See [`crate::Lock::extend`].
    pub fn extend(&mut self) -> Result<(), ExtendError> {
        self.thread.block_on(self.value.extend())
    }

    /// Turns an exclusive lock into a shared one: see [`crate::Lock::downgrade`].
    ///
    /// # Errors
    /// See [`crate::Lock::downgrade`].
    pub fn downgrade(&mut self) -> Result<(), ExtendError> {
        self.thread.block_on(self.value.downgrade())
    }

    /// Releases the lock, and returns when a majority has confirmed it: see
    /// [`crate::Lock::release`].
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer. The release then continues.
    pub fn release(self) -> Result<Released, ReleaseError> {
        self.thread.block_on(self.value.release())
    }

    /// Detaches the lock from this process: see [`crate::Lock::detach`].
    pub fn detach(self) -> DetachedLock {
        self.value.detach()
    }

    /// Blocks until the lock is lost: see [`crate::LockWatch::lost`].
    pub fn lost(&self) -> LostError {
        self.watch().lost()
    }

    /// Blocks until the lock is not held any more: see [`crate::LockWatch::ended`].
    pub fn ended(&self) -> Option<LostError> {
        self.watch().ended()
    }
}

impl LockWatch {
    /// Blocks until the lock is lost, at its deadline at the latest, and returns why: see
    /// [`crate::LockWatch::lost`].
    pub fn lost(&self) -> LostError {
        self.thread.block_on(self.value.lost())
    }

    /// Blocks until the lock is not held any more.
    ///
    /// Returns why it was lost, or `None` when it was released, dropped or detached.
    pub fn ended(&self) -> Option<LostError> {
        self.thread.block_on(self.value.ended())
    }
}
