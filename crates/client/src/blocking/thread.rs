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
    /// The futures that the thread finishes before it ends.
    tracker: TaskTracker,
    /// Lets the thread end when this guard is dropped.
    _stop: DropGuard,
}

impl Thread {
    pub(super) fn start() -> io::Result<Self> {
        let (sender, receiver) = sync_channel(1);
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let (unfinished, stopped) = (tracker.clone(), stop.clone());
        // The thread builds the runtime. If a caller inside tokio built it, and the thread could
        // not be started, dropping the runtime there would panic.
        thread::Builder::new().name("quorlock".into()).spawn(move || {
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let _ = sender.send(Ok(runtime.handle().clone()));
                    runtime.block_on(async {
                        stopped.cancelled().await;
                        unfinished.close();
                        unfinished.wait().await;
                    });
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        })?;
        let handle = receiver.recv().map_err(io::Error::other)??;
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
            .expect("the call panicked on the thread of the quorum, or that thread has ended")
    }

    /// Runs a future on the thread, which does not end before the future is done.
    pub(super) fn run_before_end(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn_on(work, &self.handle);
    }
}
