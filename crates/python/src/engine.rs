//! The client of one process: its runtime, and the values that end with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem, process};

use futures_util::FutureExt as _;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use quorlock_client::blocking::Runtime;
use quorlock_client::{
    ConnectError, Inspection, Lock, LostError, NodeHealth, Quorum, QuorumBuilder, Released,
};
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::errors::Failure;
use crate::held::Held;
use crate::logs::{self, Records};
use crate::reports;
use crate::request::Seconds;

/// A signal interrupts a call within this time.
const SIGNALS_CHECK_EVERY: Duration = Duration::from_millis(50);
const ENDED_CHECK_EVERY: Duration = Duration::from_millis(1);

/// The runtimes of this process.
///
/// Locked only with the GIL, so that no thread holds it when the process forks.
static RUNTIMES: Mutex<Runtimes> =
    Mutex::new(Runtimes { markers: BTreeMap::new(), ending: Vec::new() });

struct Runtimes {
    /// The descriptors that identify the runtimes, and whether they are open: see [`inherited`].
    markers: BTreeMap<i32, Arc<AtomicBool>>,
    /// The threads of dropped engines.
    ending: Vec<JoinHandle<()>>,
}

/// What a call returns.
pub(crate) type Reply = Result<Value, Failure>;

/// The result of a call, of which the Python thread that waits for the call makes an object.
pub(crate) enum Value {
    Nothing,
    /// A lock, with its ttl; `None` for the default of the client.
    Held(Lock, Option<Duration>),
    Released(Released),
    Ended(Option<LostError>),
    Inspection(Inspection),
    Health(Vec<NodeHealth>),
}

/// The reply of a call that has ended. The runtime lives as long as it, since it may have a lock,
/// which is released if nothing takes the reply.
pub(crate) struct Ended {
    reply: Reply,
    _alive: mpsc::Sender<()>,
}

/// The connections to the nodes, opened by the first call.
pub(crate) struct Client {
    builder: QuorumBuilder,
    quorum: OnceCell<Quorum>,
}

/// A runtime, which threads drive only without the GIL.
///
/// Only Python objects own an engine. After the last of them is dropped, the runtime's thread
/// finishes the calls and the releases in the background, and ends.
pub(crate) struct Engine {
    /// Dropped before `alive`, with which the thread may end.
    runtime: Runtime,
    alive: mpsc::Sender<()>,
    client: Arc<Client>,
    pub(crate) records: Arc<Records>,
    thread: Option<JoinHandle<()>>,
    pid: u32,
}

/// A socket that only the epoll instance of one runtime watches. The runtime's thread owns it,
/// because that thread may outlive the engine.
struct Marker {
    stream: tokio::net::UnixStream,
    _peer: UnixStream,
    is_open: Arc<AtomicBool>,
}

/// A value of the process that made it. A forked child forgets the value: dropping it could wait
/// for threads that the child does not have.
pub(crate) struct OfProcess<T> {
    value: Option<T>,
    pid: u32,
}

impl Client {
    pub(crate) async fn quorum(&self) -> Result<&Quorum, ConnectError> {
        self.quorum.get_or_try_init(|| self.builder.clone().connect()).await
    }

    /// The quorum, if a call has connected to the nodes.
    pub(crate) fn opened(&self) -> Option<&Quorum> {
        self.quorum.get()
    }
}

impl Engine {
    pub(crate) fn start(py: Python<'_>, builder: QuorumBuilder) -> PyResult<Arc<Self>> {
        logs::install();
        let client = Arc::new(Client { builder, quorum: OnceCell::new() });
        let records = Arc::new(Records::default());
        let (alive, all_dropped) = mpsc::channel(1);
        let started = start_runtime(Arc::clone(&client), Arc::clone(&records), all_dropped);
        let started = started.map_err(|source| ConnectError::NoThread { source });
        let (runtime, thread) = started.map_err(Failure::from)?;
        let (thread, pid) = (Some(thread), process::id());
        let engine = Arc::new(Self { runtime, alive, client, records, thread, pid });
        let told = py.import("quorlock._process")?.call_method0("started");
        if engine.is_forked() {
            mem::forget(engine);
            return Err(Failure::Forked.into());
        }
        told?;
        Ok(engine)
    }

    /// Whether a call has connected to the nodes, so that there may be releases to wait for.
    pub(crate) fn is_open(&self) -> bool {
        self.client.opened().is_some()
    }

    /// Runs a call after the earlier ones, and passes its result to `done`.
    pub(crate) fn spawn<F: Future<Output = Reply> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Client>) -> F,
        done: impl FnOnce(Ended) + Send + 'static,
    ) -> AbortHandle {
        let (call, awaited) = (self.call(work), self.runtime.awaited());
        let call = self.runtime.handle().spawn(async move {
            done(call.await);
            drop(awaited);
        });
        call.abort_handle()
    }

    /// Runs a call after the earlier ones, and waits for it without the GIL.
    ///
    /// On the main thread, a signal can raise an exception, such as `KeyboardInterrupt`. The call
    /// is then cancelled: the client releases what it may have acquired.
    pub(crate) fn wait<F: Future<Output = Reply> + Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        work: impl FnOnce(Arc<Client>) -> F,
    ) -> PyResult<Py<PyAny>> {
        // Other threads do not take the GIL before the call is over: at the exit of the
        // interpreter, a daemon thread that takes it never returns.
        let limit = if is_main_thread(py)? { SIGNALS_CHECK_EVERY } else { Duration::MAX };
        let call = self.call(work);
        if self.is_forked() {
            mem::forget((call, Arc::clone(self)));
            return Err(Failure::Forked.into());
        }
        let mut call = self.runtime.handle().spawn(call);
        let mut is_first = true;
        loop {
            let ended = py.detach(|| {
                let _collecting = logs::collect_into(Arc::clone(&self.records));
                let ended = async { timeout(limit, &mut call).await };
                if mem::take(&mut is_first) {
                    self.runtime.block_on(ended)
                } else {
                    self.runtime.block_without_driving(ended)
                }
            });
            if let Ok(ended) = ended {
                let result = ended.map_err(|_| Failure::Panicked)?.result(py, self);
                logs::forward(py, &self.records)?;
                return result;
            }
            let mut handled = py.check_signals();
            if !self.is_forked() {
                handled = handled.and_then(|()| logs::forward(py, &self.records));
            }
            if self.is_forked() {
                mem::forget((call, Arc::clone(self)));
                return Err(handled.err().unwrap_or_else(|| Failure::Forked.into()));
            }
            if handled.is_err() {
                call.abort();
                return handled.map(|()| py.None());
            }
        }
    }

    /// Whether a handler of a signal, which runs while Python code does, has forked during a call.
    /// The child has neither the thread nor the connections.
    fn is_forked(&self) -> bool {
        process::id() != self.pid
    }

    fn call<F: Future<Output = Reply> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Client>) -> F,
    ) -> impl Future<Output = Ended> + Send + 'static {
        let work = AssertUnwindSafe(work(Arc::clone(&self.client)));
        let alive = self.alive.clone();
        async move {
            let reply = work.catch_unwind().await;
            let reply = reply.unwrap_or(Err(Failure::Panicked));
            Ended { reply, _alive: alive }
        }
    }
}

impl Ended {
    pub(crate) fn result(self, py: Python<'_>, engine: &Arc<Engine>) -> PyResult<Py<PyAny>> {
        match self.reply? {
            Value::Nothing | Value::Ended(None) => Ok(py.None()),
            Value::Held(lock, ttl) => Ok(Py::new(py, Held::new(engine, lock, ttl))?.into_any()),
            Value::Released(released) => {
                let was_held = released == Released::Released;
                Ok(was_held.into_pyobject(py)?.to_owned().into_any().unbind())
            }
            Value::Ended(Some(lost)) => {
                let exception: PyErr = Failure::Lost(lost).into();
                Ok(exception.into_value(py).into_any())
            }
            Value::Inspection(inspection) => reports::inspection(py, inspection),
            Value::Health(nodes) => reports::health(py, nodes),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let mut runtimes = runtimes();
        runtimes.ending.retain(|thread| !thread.is_finished());
        runtimes.ending.extend(self.thread.take());
    }
}

impl Marker {
    /// Makes the marker of the runtime whose context the caller has entered.
    fn new() -> io::Result<Self> {
        let (stream, peer) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(stream)?;
        Ok(Self { stream, _peer: peer, is_open: Arc::new(AtomicBool::new(true)) })
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // Before the descriptor is closed and another file has its number.
        self.is_open.store(false, Ordering::Release);
    }
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), pid: process::id() }
    }

    /// The value, except in a forked child.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        self.value.as_ref().filter(|_| self.pid == process::id()).ok_or(Failure::Forked)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.pid != process::id() {
            mem::forget(self.value.take());
        }
    }
}

/// Starts a runtime whose thread ends after all senders are dropped and all releases are over.
fn start_runtime(
    client: Arc<Client>,
    records: Arc<Records>,
    mut all_dropped: mpsc::Receiver<()>,
) -> io::Result<(Runtime, JoinHandle<()>)> {
    let (mark, marker) = oneshot::channel();
    let until = async move {
        let _collecting = logs::collect_into(records);
        // Nothing is sent.
        let _ = all_dropped.recv().await;
        if let Some(quorum) = client.opened() {
            // This wait ends: each release in the background has a time limit.
            let _ = quorum.flush(Duration::MAX).await;
        }
        drop(marker);
    };
    let (runtime, thread) = Runtime::start("quorlock", until)?;
    let marker = {
        let _context = runtime.handle().enter();
        Marker::new()?
    };
    let (descriptor, is_open) = (marker.stream.as_raw_fd(), Arc::clone(&marker.is_open));
    let _ = mark.send(marker);
    let mut runtimes = runtimes();
    runtimes.markers.retain(|_, is_open| is_open.load(Ordering::Acquire));
    runtimes.markers.insert(descriptor, is_open);
    drop(runtimes);
    Ok((runtime, thread))
}

fn runtimes() -> MutexGuard<'static, Runtimes> {
    RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    static MAIN_THREAD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static GET_IDENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let main = MAIN_THREAD.import(py, "threading", "main_thread")?.call0()?;
    let this = GET_IDENT.import(py, "threading", "get_ident")?.call0()?;
    main.getattr(intern!(py, "ident"))?.eq(this)
}

/// The descriptors that identify the runtimes of the process, for a forked child.
///
/// A child inherits the sockets of its parent, which keep a waiter of a dead parent in line. The
/// epoll instance that watches a marker watches these sockets. Forgets all runtimes.
#[pyfunction]
pub(crate) fn inherited() -> BTreeSet<i32> {
    let mut runtimes = runtimes();
    mem::forget(mem::take(&mut runtimes.ending));
    let markers = mem::take(&mut runtimes.markers);
    let is_open = |marker: &(i32, Arc<AtomicBool>)| marker.1.load(Ordering::Acquire);
    markers.into_iter().filter(is_open).map(|(descriptor, _)| descriptor).collect()
}

/// Waits until the threads of dropped engines have ended, for this many seconds at most.
#[pyfunction]
pub(crate) fn await_ended(py: Python<'_>, limit: Seconds) {
    let ending = mem::take(&mut runtimes().ending);
    py.detach(move || {
        let until = Instant::now() + limit.0;
        while ending.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(ENDED_CHECK_EVERY);
        }
    });
}
