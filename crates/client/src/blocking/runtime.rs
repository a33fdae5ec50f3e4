//! A runtime of tokio that is driven by the threads that wait for it.
//!
//! If a thread of its own did all the work, each call would wake that thread and be woken by it,
//! which takes longer than a round trip to a node of the same network. A call thus drives the
//! runtime itself while it waits. The thread drives it when no calls do.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::{unconstrained, yield_now};

/// The thread drives the runtime once no call has for this time, or for twice as long. Calls in
/// quick succession wake no thread.
const THREAD_DRIVES_AFTER: Duration = Duration::from_millis(1);

/// A runtime, and a thread that drives it between calls.
pub struct Runtime {
    shared: Arc<Shared>,
}

struct Shared {
    runtime: runtime::Runtime,
    turns: Mutex<Turns>,
    /// Tells the thread, while it waits for its turn, that it has work.
    has_work: Condvar,
    /// Tells the thread, while it drives, that a call wants to.
    wanted: Notify,
}

#[derive(Default)]
struct Turns {
    /// The calls that drive the runtime, or wait for another one that does.
    calls: usize,
    /// Whether a call has begun since the thread last looked.
    has_called: bool,
    thread: ThreadTurn,
}

#[derive(Default, PartialEq)]
enum ThreadTurn {
    Drives,
    /// Waits until there are no calls any more.
    #[default]
    Waits,
    /// Looks again after a pause.
    Looks,
}

/// A call that drives the runtime.
struct Turn<'a>(&'a Shared);

impl Runtime {
    /// Starts a thread with this name. It ends when `until` is ready, which is polled there.
    ///
    /// Drop the runtime before `until` is ready, so that the thread drops the tasks.
    ///
    /// # Errors
    /// The system gives no thread, or no descriptor.
    pub fn start(
        name: &str,
        until: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let shared = Arc::new(Shared {
            runtime: runtime::Builder::new_current_thread().enable_all().build()?,
            turns: Mutex::default(),
            has_work: Condvar::new(),
            wanted: Notify::new(),
        });
        let of_thread = Arc::clone(&shared);
        let started = thread::Builder::new().name(name.into()).spawn(move || of_thread.run(until));
        match started {
            Ok(thread) => Ok((Self { shared }, thread)),
            Err(error) => {
                if let Some(shared) = Arc::into_inner(shared) {
                    // To drop it would panic inside another runtime.
                    shared.runtime.shutdown_background();
                }
                Err(error)
            }
        }
    }

    /// The handle of the runtime. A task that it spawns after a call may begin 2 ms late: see
    /// [`Self::drive_by_thread`].
    pub fn handle(&self) -> &Handle {
        self.shared.runtime.handle()
    }

    /// Lets the thread drive the runtime at once, unless a call does.
    pub fn drive_by_thread(&self) {
        let mut turns = self.shared.turns();
        if turns.thread != ThreadTurn::Drives {
            turns.has_called = false;
            self.shared.has_work.notify_one();
        }
    }

    /// Runs a future on the calling thread, which blocks and may belong to another runtime.
    ///
    /// If this call drives the runtime, the tasks that the future has made ready run before this
    /// returns: they send requests.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        // Otherwise, the budget of a task that calls this could be used up in one call.
        let work = unconstrained(work);
        if Handle::try_current().is_ok() {
            // tokio lets no thread of a runtime drive another one.
            return self.block_on_parked(work);
        }
        let _turn = Turn::begin(&self.shared);
        self.shared.runtime.block_on(async {
            let output = work.await;
            yield_now().await;
            output
        })
    }

    fn block_on_parked<T>(&self, work: impl Future<Output = T>) -> T {
        let _context = self.shared.runtime.enter();
        let mut work = pin!(work);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
            self.drive_by_thread();
            match polled {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl Shared {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the runtime when no calls do, until this future is ready.
    fn run(&self, until: impl Future<Output = ()>) {
        let mut until = pin!(until);
        loop {
            let mut turns = self.turns();
            loop {
                if mem::take(&mut turns.has_called) {
                    turns.thread = ThreadTurn::Looks;
                    let waited = self.has_work.wait_timeout(turns, THREAD_DRIVES_AFTER);
                    turns = waited.unwrap_or_else(PoisonError::into_inner).0;
                } else if turns.calls > 0 {
                    turns.thread = ThreadTurn::Waits;
                    turns = self.has_work.wait(turns).unwrap_or_else(PoisonError::into_inner);
                } else {
                    break;
                }
            }
            turns.thread = ThreadTurn::Drives;
            drop(turns);
            let is_over = self.runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = until.as_mut() => true,
                    () = self.wanted.notified() => false,
                }
            });
            if is_over {
                return;
            }
            self.turns().thread = ThreadTurn::Looks;
        }
    }
}

impl<'a> Turn<'a> {
    fn begin(shared: &'a Shared) -> Self {
        let mut turns = shared.turns();
        turns.calls += 1;
        turns.has_called = true;
        if turns.thread == ThreadTurn::Drives {
            shared.wanted.notify_one();
        }
        Self(shared)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.turns();
        turns.calls -= 1;
        if turns.calls == 0 && turns.thread == ThreadTurn::Waits {
            self.0.has_work.notify_one();
        }
    }
}

/// Wakes the thread that waits for a future.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use quorlock_testkit::eventually;
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    use super::{Runtime, ThreadTurn};

    const SOON: Duration = Duration::from_secs(30);

    /// Returns the runtime, and what ends it.
    fn start() -> (Runtime, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel();
        let (runtime, _) = Runtime::start("test", async { drop(ended.await) }).unwrap();
        (runtime, end)
    }

    /// Which thread runs a task that a call awaits.
    fn driver_of_a_call(runtime: &Runtime) -> ThreadId {
        runtime.block_on(async { tokio::spawn(async { thread::current().id() }).await.unwrap() })
    }

    #[test]
    fn calls_drive_the_runtime_and_the_thread_does_between_them() {
        let (runtime, _end) = start();
        for _ in 0..2 {
            eventually(SOON, "a call drives", || {
                driver_of_a_call(&runtime) == thread::current().id()
            });
            let (tell, told) = std::sync::mpsc::channel();
            runtime.handle().spawn(async move { tell.send(thread::current().id()) });
            assert_ne!(told.recv_timeout(SOON).unwrap(), thread::current().id());
        }
    }

    #[test]
    fn thread_drives_after_a_long_call() {
        let (runtime, _end) = start();
        let drives = || runtime.shared.turns().thread == ThreadTurn::Drives;
        eventually(SOON, "the thread drives", drives);
        runtime.block_on(async {
            while runtime.shared.turns().thread != ThreadTurn::Waits {
                sleep(Duration::from_millis(1)).await;
            }
        });
        let (tell, told) = std::sync::mpsc::channel();
        runtime.handle().spawn(async move { tell.send(()) });
        told.recv_timeout(SOON).unwrap();
    }

    #[test]
    fn call_goes_on_when_the_one_that_drove_has_ended() {
        let (runtime, _end) = start();
        let runtime = &runtime;
        let (tell, told) = oneshot::channel();
        let (begun, has_begun) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                runtime.block_on(async {
                    begun.send(()).unwrap();
                    tokio::spawn(told).await.unwrap().unwrap();
                });
            });
            has_begun.recv().unwrap();
            let driver = scope.spawn(move || driver_of_a_call(runtime));
            driver.join().unwrap();
            tell.send(()).unwrap();
        });
    }

    #[test]
    fn tasks_that_a_call_has_made_ready_run_before_it_returns() {
        let (runtime, _end) = start();
        let has_run = || {
            let ran = Arc::new(AtomicBool::new(false));
            let runs = Arc::clone(&ran);
            runtime.block_on(async {
                tokio::spawn(async move { runs.store(true, Ordering::Release) });
            });
            ran.load(Ordering::Acquire)
        };
        // Not if the thread drives, as during the first call.
        let calls = (0..100).filter(|_| has_run()).count();
        assert!(calls > 50, "after {calls} of 100 calls");
    }

    #[test]
    fn thread_ends_with_the_runtime() {
        let (end, ended) = oneshot::channel();
        let (runtime, thread) = Runtime::start("test", async { drop(ended.await) }).unwrap();
        driver_of_a_call(&runtime);
        drop(runtime);
        drop::<oneshot::Sender<()>>(end);
        thread.join().unwrap();
    }
}
