//! The thread on which all of a quorum's work is done.

use std::sync::mpsc::sync_channel;
use std::{io, thread};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A runtime on a thread of its own, which lives until this is dropped, and then until what was handed to
/// [`Thread::last`] is done.
pub(super) struct Thread {
    handle: Handle,
    /// What the thread still has to do before it ends.
    last: TaskTracker,
    /// Says that nobody needs the thread any more.
    _needed: DropGuard,
}

impl Thread {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, last, needed) = (runtime.handle().clone(), TaskTracker::new(), CancellationToken::new());
        let (waiting, over) = (last.clone(), needed.clone());
        // The runtime belongs to the thread, and goes with it: dropped by a caller inside tokio, it would panic.
        thread::Builder::new().name("quorlock".into()).spawn(move || {
            runtime.block_on(async {
                over.cancelled().await;
                waiting.close();
                waiting.wait().await;
            });
        })?;
        Ok(Self { handle, last, _needed: needed.drop_guard() })
    }

    /// Does this on the thread, and blocks until it is done.
    pub(super) fn block_on<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let (done, awaited) = sync_channel(1);
        self.handle.spawn(async move {
            let _ = done.send(work.await);
        });
        awaited.recv().expect("the thread runs as long as there is a handle, and does not panic")
    }

    /// Does this on the thread before it ends.
    pub(super) fn last(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.last.spawn_on(work, &self.handle);
    }
}
