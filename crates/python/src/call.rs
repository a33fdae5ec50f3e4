//! The two ways to wait for a call: on the calling thread, or in an event loop of asyncio.

use std::collections::HashMap;
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::mem;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::engine::{Client, Ended, Engine, OfProcess, Reply};
use crate::logs;

/// The replies of calls to the futures of one event loop.
///
/// The thread that drives the runtime writes to a socket that the loop watches. It calls nothing in
/// Python, since a thread that holds the GIL would then delay the renewal of locks.
///
/// Only the loop owns a bridge. The garbage collector thus ends the tasks of a closed loop, and
/// their locks.
#[pyclass(frozen, weakref, module = "quorlock._quorlock")]
pub(crate) struct Bridge {
    inner: OfProcess<Inner>,
}

struct Inner {
    replies: Arc<Replies>,
    wakes: UnixStream,
    /// Locked only with the GIL.
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    last: u64,
    waiting: HashMap<u64, (Py<PyAny>, Arc<Engine>)>,
}

struct Replies {
    queue: Mutex<Vec<(u64, Ended)>>,
    wake: UnixStream,
}

/// A call whose reply an event loop awaits.
#[pyclass(frozen, module = "quorlock._quorlock")]
pub(crate) struct Call {
    bridge: Py<Bridge>,
    number: u64,
    task: OfProcess<AbortHandle>,
}

/// The event loop and the future in it that wait for a call; `None` for a call that blocks.
pub(crate) type Waiter<'py> = Option<(Bound<'py, Bridge>, Py<PyAny>)>;

/// Runs a call. Returns its result, or a [`Call`] whose result the future receives.
pub(crate) fn run<F: Future<Output = Reply> + Send + 'static>(
    py: Python<'_>,
    engine: &Arc<Engine>,
    into: Waiter<'_>,
    work: impl FnOnce(Arc<Client>) -> F,
) -> PyResult<Py<PyAny>> {
    logs::read_level(py)?;
    match into {
        None => engine.wait(py, work),
        Some((bridge, future)) => Bridge::run(&bridge, engine, future, work),
    }
}

impl Bridge {
    fn run<F: Future<Output = Reply> + Send + 'static>(
        this: &Bound<'_, Self>,
        engine: &Arc<Engine>,
        future: Py<PyAny>,
        work: impl FnOnce(Arc<Client>) -> F,
    ) -> PyResult<Py<PyAny>> {
        let py = this.py();
        let inner = this.get().inner.get()?;
        let mut calls = inner.calls();
        calls.last += 1;
        let number = calls.last;
        calls.waiting.insert(number, (future, Arc::clone(engine)));
        drop(calls);
        let replies = Arc::clone(&inner.replies);
        let task = engine.spawn(work, move |ended| replies.add(number, ended));
        let task = OfProcess::new(task);
        let call = Call { bridge: this.clone().unbind(), number, task };
        Ok(Py::new(py, call)?.into_any())
    }
}

#[pymethods]
impl Bridge {
    #[new]
    fn new() -> PyResult<Self> {
        let (wake, wakes) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let replies = Arc::new(Replies { queue: Mutex::default(), wake });
        Ok(Self { inner: OfProcess::new(Inner { replies, wakes, calls: Mutex::default() }) })
    }

    fn fileno(&self) -> PyResult<i32> {
        Ok(self.inner.get()?.wakes.as_raw_fd())
    }

    /// Passes all replies to their futures, and then raises the first exception of passing them.
    /// The event loop calls this when the socket is readable.
    fn deliver(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get()?;
        // Read before the queue is emptied, so that a later reply wakes the loop again.
        let _ = (&inner.wakes).read(&mut [0; 64]);
        let replies = mem::take(&mut *inner.replies.queue());
        let (mut delivered, mut engines) = (Ok(()), Vec::<Arc<Engine>>::new());
        for (number, ended) in replies {
            // A call that was cancelled drops its reply, and so a lock in it.
            let Some((future, engine)) = inner.calls().waiting.remove(&number) else { continue };
            delivered = delivered.and(resolve(future.bind(py), ended, &engine));
            if !engines.iter().any(|other| Arc::ptr_eq(other, &engine)) {
                engines.push(engine);
            }
        }
        for engine in engines {
            delivered = delivered.and(logs::forward(py, &engine.records));
        }
        delivered
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Without a visit, the collector keeps the futures.
        let Ok(inner) = self.inner.get() else { return Ok(()) };
        let Ok(calls) = inner.calls.try_lock() else { return Ok(()) };
        calls.waiting.values().try_for_each(|(future, _)| visit.call(future))
    }

    fn __clear__(&self) {
        if let Ok(inner) = self.inner.get() {
            let waiting = mem::take(&mut inner.calls().waiting);
            drop(waiting);
        }
    }
}

/// Sets the result of a future, unless its task was cancelled.
fn resolve(future: &Bound<'_, PyAny>, ended: Ended, engine: &Arc<Engine>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    match ended.result(py, engine) {
        Ok(result) => future.call_method1(intern!(py, "set_result"), (result,))?,
        Err(error) => future.call_method1(intern!(py, "set_exception"), (error,))?,
    };
    Ok(())
}

#[pymethods]
impl Call {
    /// Cancels the call: the client releases what it may have acquired.
    fn cancel(&self) {
        if let (Ok(task), Ok(inner)) = (self.task.get(), self.bridge.get().inner.get()) {
            task.abort();
            // Dropped without the mutex, since the end of an engine runs other code.
            let waiting = inner.calls().waiting.remove(&self.number);
            drop(waiting);
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.bridge)
    }
}

impl Inner {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replies {
    fn queue(&self) -> MutexGuard<'_, Vec<(u64, Ended)>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, number: u64, ended: Ended) {
        let mut queue = self.queue();
        queue.push((number, ended));
        if queue.len() == 1 {
            drop(queue);
            // The socket has room for the one byte that may be in it. If the loop is gone, nothing
            // waits.
            let _ = (&self.wake).write(&[1]);
        }
    }
}
