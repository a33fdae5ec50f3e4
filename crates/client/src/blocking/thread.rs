//! The thread that keeps the connections of a quorum, and the values whose calls wait for it.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::{fmt, io, thread};

use tokio::runtime::{Builder, Handle};
use tokio::task::unconstrained;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{ConnectError, Quorum};

/// A runtime on its own thread. When this is dropped, the thread finishes the background releases
/// and ends.
pub(super) struct QuorumThread {
    runtime: Handle,
    _stop: DropGuard,
}

impl QuorumThread {
    /// Starts the thread, and connects there.
    pub(super) fn start(
        connecting: impl Future<Output = Result<Quorum, ConnectError>> + Send + 'static,
    ) -> Result<(Quorum, Self), ConnectError> {
        let no_thread = |source| ConnectError::NoThread { source };
        let (sender, connected) = sync_channel(1);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        // The thread builds the runtime. If a caller inside tokio built it, and the thread could
        // not be started, dropping the runtime there would panic.
        let run = move || match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(async {
                match connecting.await {
                    Ok(quorum) => {
                        let _ = sender.send(Ok((quorum.clone(), Handle::current())));
                        stopped.cancelled().await;
                        // This wait ends: each release in the background has a time limit.
                        let _ = quorum.flush(Duration::MAX).await;
                    }
                    Err(error) => drop(sender.send(Err(error))),
                }
            }),
            Err(source) => drop(sender.send(Err(no_thread(source)))),
        };
        thread::Builder::new().name("quorlock".into()).spawn(run).map_err(no_thread)?;
        let connected = connected.recv().map_err(|ended| no_thread(io::Error::other(ended)))?;
        let (quorum, runtime) = connected?;
        Ok((quorum, Self { runtime, _stop: stop.drop_guard() }))
    }

    /// Runs a future on the calling thread, which blocks and may belong to another runtime.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let _context = self.runtime.enter();
        // Otherwise, the budget of a task that calls this could be used up in one call.
        let mut work = pin!(unconstrained(work));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match work.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
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

/// Wakes the thread that waits for a future.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
