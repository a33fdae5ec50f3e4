//! What nodes have not answered yet when their callers have heard from enough of them. Almost all of it is answered within
//! moments, so it is looked at together, by one task for all locks of a client; what stays open has a task of its own.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::release::Undo;

/// How often it is looked, while there is anything to look at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often one thing is looked at before it has a task of its own.
const LOOKS_MAX: u32 = 4;

/// The way to the task.
pub(crate) struct Leftovers {
    left: mpsc::UnboundedSender<Left>,
}

/// A release that some nodes have not confirmed yet.
struct Left {
    undo: Undo,
    looks: u32,
    /// Whoever closes the client waits for this one.
    _tracked: TaskTrackerToken,
}

impl Leftovers {
    /// Starts the task. It ends when the client is gone.
    pub(crate) fn start(runtime: &Handle) -> Self {
        let (left, received) = mpsc::unbounded_channel();
        runtime.spawn(look_at(received));
        Self { left }
    }

    /// Everything must have been sent.
    pub(crate) fn add(&self, undo: Undo, tasks: &TaskTracker) {
        let _ = self.left.send(Left { undo, looks: 0, _tracked: tasks.token() });
    }
}

async fn look_at(mut received: mpsc::UnboundedReceiver<Left>) {
    let mut open = Vec::new();
    loop {
        if open.is_empty() {
            let Some(left) = received.recv().await else { return };
            open.push(left);
        }
        sleep(LOOK_EVERY).await;
        while let Ok(left) = received.try_recv() {
            open.push(left);
        }
        open.extract_if(.., Left::was_last_look).for_each(Left::end);
    }
}

impl Left {
    /// Looks. Whether that was for the last time.
    fn was_last_look(&mut self) -> bool {
        self.looks += 1;
        self.undo.look() || self.looks == LOOKS_MAX
    }

    /// What is still open has a task of its own from now on.
    fn end(self) {
        self.undo.spawn();
    }
}
