use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::thread::QuorumThread;

/// A value of the API for tokio, with calls that block instead of its `async` ones.
///
/// It has all other methods of the value. The thread that its calls need lives as long as it does.
#[derive(Clone)]
#[must_use = "a lock that is dropped is released, and a builder locks nothing"]
pub struct Blocking<T> {
    pub(super) value: T,
    pub(super) thread: Arc<QuorumThread>,
}

impl<T> Blocking<T> {
    /// Makes another value of the same quorum.
    pub(super) fn with<U>(&self, value: U) -> Blocking<U> {
        Blocking { value, thread: Arc::clone(&self.thread) }
    }

    /// Runs a call that makes another value of the same quorum.
    pub(super) fn wait_for<U, E>(
        &self,
        call: impl Future<Output = Result<U, E>>,
    ) -> Result<Blocking<U>, E> {
        Ok(self.with(self.thread.block_on(call)?))
    }
}

impl<T> Deref for Blocking<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
