//! The thread that does all work of a quorum.

use std::sync::mpsc::sync_channel;
use std::{io, thread};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A runtime on its own thread. The thread ends when this is dropped and the futures of
/// [`Thread::run_before_end`] are done.
pub(super) struct Thread {
    handle: Handle,
    /// Futures that the thread finishes before it ends.
    tracker: TaskTracker,
    /// Lets the thread end when this guard is dropped.
    _stop: DropGuard,
}

impl Thread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, tracker, stop) =
            (runtime.handle().clone(), TaskTracker::new(), CancellationToken::new());
        let (unfinished, stopped) = (tracker.clone(), stop.clone());
        // The thread owns the runtime, since dropping a runtime panics in a caller inside tokio.
        thread::Builder::new().name("quorlock".into()).spawn(move || {
            runtime.block_on(async {
                stopped.cancelled().await;
                unfinished.close();
                unfinished.wait().await;
            });
        })?;
        Ok(Self { handle, tracker, _stop: stop.drop_guard() })
    }

    /// Runs a future on the thread, and blocks until it is done.
    pub(super) fn block_on<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (sender, receiver) = sync_channel(1);
        self.handle.spawn(async move {
            let _ = sender.send(work.await);
        });
        receiver
            .recv()
            .expect("the thread of the quorum ended or panicked before its last handle was dropped")
    }

    /// Runs a future on the thread, which does not end before the future is done.
    pub(super) fn run_before_end(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn_on(work, &self.handle);
    }
}
