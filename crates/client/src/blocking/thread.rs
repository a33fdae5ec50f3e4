//! The thread that keeps the connections of a quorum, and the values whose calls wait for it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::runtime::Runtime;
use crate::{ConnectError, Quorum};

/// A runtime, and the thread that keeps the connections between calls. When this is dropped, the
/// thread finishes the background releases and ends.
pub(super) struct QuorumThread {
    /// Dropped before the thread may end.
    runtime: Runtime,
    _stop: DropGuard,
}

impl QuorumThread {
    /// Starts the thread, and connects.
    pub(super) fn start(
        connecting: impl Future<Output = Result<Quorum, ConnectError>>,
    ) -> Result<(Quorum, Self), ConnectError> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let (connected, quorum) = oneshot::channel::<Quorum>();
        let until = async move {
            let Ok(quorum) = quorum.await else { return };
            stopped.cancelled().await;
            // This wait ends: each release in the background has a time limit.
            let _ = quorum.flush(Duration::MAX).await;
        };
        let started = Runtime::start("quorlock", until);
        let (runtime, _) = started.map_err(|source| ConnectError::NoThread { source })?;
        let quorum = runtime.block_on(connecting)?;
        let _ = connected.send(quorum.clone());
        Ok((quorum, Self { runtime, _stop: stop.drop_guard() }))
    }

    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

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
