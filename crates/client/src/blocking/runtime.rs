//! A runtime of tokio that is driven by the threads that wait for it.
//!
//! If a thread of its own did all the work, each call would wake that thread and be woken by it,
//! which takes longer than a round trip to a node of the same network. A call that is the only one
//! thus drives the runtime itself, for 2 ms at most. Otherwise a thread drives it: a caller that
//! waits for long delays no renewal, even if it is rarely scheduled.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem, ptr};

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::{unconstrained, yield_now};
use tokio::time::timeout;

/// The thread drives the runtime once no call has for this time, or for twice as long. Calls in
/// quick succession need not wait for it.
const THREAD_DRIVES_AFTER: Duration = Duration::from_millis(1);
/// A call that takes longer leaves the runtime to the thread.
const CALL_DRIVES_FOR: Duration = Duration::from_millis(2);

thread_local! {
    /// The runtime that this thread drives.
    static DRIVEN: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

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
    /// The number of [`Awaited`]. A task may own one, so they own nothing else of the runtime.
    awaited: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Turns {
    does_call_drive: bool,
    /// Whether a call has begun to drive since the thread last looked.
    has_called: bool,
    does_thread_drive: bool,
}

/// A call for which the thread drives the runtime, as soon as no other call does.
pub struct Awaited(Arc<AtomicUsize>);

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
            awaited: Arc::default(),
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

    /// The handle of the runtime. A task that it spawns after a call may begin 2 ms late, unless it
    /// is [awaited](Self::awaited).
    pub fn handle(&self) -> &Handle {
        self.shared.runtime.handle()
    }

    /// Lets the thread drive the runtime, whenever no call does, until the result is dropped.
    pub fn awaited(&self) -> Awaited {
        self.shared.awaited.fetch_add(1, Ordering::Relaxed);
        // Under the mutex, so that the thread has not just looked.
        let _turns = self.shared.turns();
        self.shared.has_work.notify_one();
        Awaited(Arc::clone(&self.shared.awaited))
    }

    /// Runs a future on the calling thread, which blocks and may belong to another runtime.
    ///
    /// If this call drives the runtime, the tasks that the future has made ready run before this
    /// returns: they send requests.
    ///
    /// # Panics
    /// On a thread that drives this runtime: the reply would be read by the thread that waits.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        // Otherwise, the budget of a task that calls this could be used up in one call.
        let mut work = pin!(unconstrained(work));
        if let Some(_turn) = Turn::begin(&self.shared) {
            let driven = self.shared.runtime.block_on(async {
                let output = timeout(CALL_DRIVES_FOR, work.as_mut()).await;
                if output.is_ok() {
                    yield_now().await;
                }
                output
            });
            if let Ok(output) = driven {
                return output;
            }
        }
        self.block_without_driving(work)
    }

    /// As [`Self::block_on`], but leaves the runtime to the thread.
    ///
    /// # Panics
    /// As [`Self::block_on`].
    pub fn block_without_driving<T>(&self, work: impl Future<Output = T>) -> T {
        assert!(
            DRIVEN.get() != Arc::as_ptr(&self.shared),
            "a callback of the client waits for the same client: wait on another thread"
        );
        let (_awaited, _context) = (self.awaited(), self.shared.runtime.enter());
        pollster::block_on(work)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // The thread finishes at once.
        self.shared.turns().has_called = false;
        self.shared.has_work.notify_one();
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > 0
    }

    /// Drives the runtime when no calls do, until this future is ready.
    fn run(&self, until: impl Future<Output = ()>) {
        DRIVEN.set(self);
        let mut until = pin!(until);
        loop {
            let mut turns = self.turns();
            while turns.does_call_drive || (mem::take(&mut turns.has_called) && !self.is_awaited())
            {
                let waited = self.has_work.wait_timeout(turns, THREAD_DRIVES_AFTER);
                turns = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            turns.does_thread_drive = true;
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
            self.turns().does_thread_drive = false;
        }
    }
}

impl<'a> Turn<'a> {
    /// Takes the runtime from the thread, unless other calls wait for it.
    fn begin(shared: &'a Shared) -> Option<Self> {
        // tokio lets no thread of a runtime drive another one.
        let is_inside = Handle::try_current().is_ok();
        let mut turns = shared.turns();
        if is_inside || turns.does_call_drive || shared.is_awaited() {
            return None;
        }
        turns.does_call_drive = true;
        turns.has_called = true;
        if turns.does_thread_drive {
            shared.wanted.notify_one();
        }
        DRIVEN.set(shared);
        Some(Self(shared))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        DRIVEN.set(ptr::null());
        let mut turns = self.0.turns();
        turns.does_call_drive = false;
        if self.0.is_awaited() {
            self.0.has_work.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use quorlock_testkit::eventually;
    use tokio::sync::oneshot;
    use tokio::time::{sleep, timeout};

    use super::Runtime;

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
            let (tell, told) = mpsc::channel();
            runtime.handle().spawn(async move { tell.send(thread::current().id()) });
            assert_ne!(told.recv_timeout(SOON).unwrap(), thread::current().id());
        }
        let _awaited = runtime.awaited();
        assert_ne!(driver_of_a_call(&runtime), thread::current().id(), "beside another call");
    }

    #[test]
    fn long_call_leaves_the_runtime_to_the_thread() {
        let (runtime, _end) = start();
        let long = async {
            loop {
                let driver = tokio::spawn(async { thread::current().id() }).await.unwrap();
                if driver != thread::current().id() && !runtime.shared.turns().has_called {
                    return;
                }
                sleep(Duration::from_millis(1)).await;
            }
        };
        runtime.block_on(async { timeout(SOON, long).await.unwrap() });
    }

    #[test]
    fn calls_of_several_threads_all_return() {
        let (runtime, _end) = start();
        let runtime = &runtime;
        let inside = tokio::runtime::Builder::new_current_thread().build().unwrap();
        thread::scope(|scope| {
            for thread in 0..4 {
                let inside = inside.handle();
                scope.spawn(move || {
                    for call in 0..200 {
                        let work = async move {
                            sleep(Duration::from_millis((call * 7 + thread) % 4)).await;
                            tokio::spawn(sleep(Duration::ZERO)).await.unwrap();
                        };
                        let _inside = (call % 5 == 0).then(|| inside.enter());
                        runtime.block_on(async { timeout(SOON, work).await.unwrap() });
                    }
                });
            }
        });
    }

    #[test]
    fn tasks_that_a_call_has_made_ready_run_before_it_returns() {
        let (runtime, _end) = start();
        eventually(SOON, "a call drives", || {
            let ran = Arc::new(AtomicBool::new(false));
            let runs = Arc::clone(&ran);
            let driver = runtime.block_on(async {
                let driver = tokio::spawn(async { thread::current().id() }).await.unwrap();
                tokio::spawn(async move { runs.store(true, Ordering::Release) });
                driver
            });
            let did_drive = driver == thread::current().id();
            assert!(!did_drive || ran.load(Ordering::Acquire), "the task did not run");
            did_drive
        });
    }

    #[test]
    fn call_from_a_callback_panics_instead_of_waiting_for_itself() {
        let (runtime, _end) = start();
        let runtime = Arc::new(runtime);
        let nested = |runtime: &Runtime| {
            catch_unwind(AssertUnwindSafe(|| runtime.block_on(async {}))).unwrap_err();
        };
        runtime.block_on(async { nested(&runtime) });
        let (weak, (tell, told)) = (Arc::downgrade(&runtime), mpsc::channel());
        runtime.handle().spawn(async move {
            nested(&weak.upgrade().unwrap());
            tell.send(()).unwrap();
        });
        told.recv_timeout(SOON).unwrap();
        runtime.block_on(async {});
    }

    #[test]
    fn thread_drops_the_tasks_of_a_dropped_runtime() {
        let (end, ended) = oneshot::channel::<()>();
        let (runtime, thread) = Runtime::start("test", async { drop(ended.await) }).unwrap();
        let kept = Arc::new(());
        let task = Arc::clone(&kept);
        runtime.handle().spawn(async move {
            sleep(SOON).await;
            drop(task);
        });
        driver_of_a_call(&runtime);
        drop((runtime, end));
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
