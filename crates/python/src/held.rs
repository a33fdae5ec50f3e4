//! A held lock.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quorlock_client::{Lock, LockWatch, Ownership};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::call::{self, Waiter};
use crate::engine::{Engine, OfProcess, Reply, Value};
use crate::errors::Failure;

/// A lock that a call acquired. When the object is dropped, the client releases the lock in the
/// background.
#[pyclass(frozen, weakref, module = "quorlock._quorlock")]
pub(crate) struct Held {
    inner: OfProcess<Inner>,
}

struct Inner {
    watch: LockWatch,
    is_shared: bool,
    /// `None` for the default of the client.
    ttl: Option<Duration>,
    /// Calls lock the mutex in the runtime. `None` once a call has ended the lock.
    lock: Arc<Mutex<Option<Lock>>>,
    /// Dropped last, because the release of the lock needs the runtime.
    engine: Arc<Engine>,
}

impl Held {
    pub(crate) fn new(engine: &Arc<Engine>, lock: Lock, ttl: Option<Duration>) -> Self {
        let (watch, is_shared) = (lock.watch(), lock.is_shared());
        let (engine, lock) = (Arc::clone(engine), Arc::new(Mutex::new(Some(lock))));
        Self { inner: OfProcess::new(Inner { watch, is_shared, ttl, lock, engine }) }
    }

    /// Runs a call with the lock, after other calls with it.
    fn run<F: Future<Output = Reply> + Send + 'static>(
        &self,
        py: Python<'_>,
        into: Waiter<'_>,
        work: impl FnOnce(Guard) -> F + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let inner = self.inner.get()?;
        let lock = Arc::clone(&inner.lock);
        call::run(py, &inner.engine, into, |_| async move { work(lock.lock_owned().await).await })
    }
}

/// `None` once a call has ended the lock.
type Guard = OwnedMutexGuard<Option<Lock>>;

fn take(mut lock: Guard) -> Result<Lock, Failure> {
    lock.take().ok_or(Failure::NotAcquired)
}

#[pymethods]
impl Held {
    /// The fence, as a number.
    #[getter]
    fn fence(&self) -> PyResult<u64> {
        Ok(self.inner.get()?.watch.fence().get())
    }

    /// In seconds.
    #[getter]
    fn remaining(&self) -> PyResult<f64> {
        Ok(self.inner.get()?.watch.remaining().as_secs_f64())
    }

    /// `held`, `uncertain` or `lost`.
    #[getter]
    fn ownership(&self) -> PyResult<&'static str> {
        Ok(match self.inner.get()?.watch.ownership() {
            Ownership::Held(_) => "held",
            Ownership::Uncertain(_) => "uncertain",
            Ownership::Lost => "lost",
        })
    }

    /// On how many nodes the lock is known to be held, and the number of all nodes.
    #[getter]
    fn coverage(&self) -> PyResult<(usize, usize)> {
        let coverage = self.inner.get()?.watch.coverage();
        Ok((coverage.held, coverage.nodes))
    }

    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        Ok(self.inner.get()?.watch.keys().map(|key| PyBytes::new(py, key)).collect())
    }

    #[getter]
    fn slot(&self) -> PyResult<Option<usize>> {
        Ok(self.inner.get()?.watch.slot())
    }

    /// Whether the lock was shared when it was acquired.
    #[getter]
    fn is_shared(&self) -> PyResult<bool> {
        Ok(self.inner.get()?.is_shared)
    }

    /// In seconds.
    #[getter]
    fn ttl(&self) -> PyResult<Option<f64>> {
        Ok(self.inner.get()?.ttl.map(|ttl| ttl.as_secs_f64()))
    }

    /// Releases the lock in the background, without waiting. In a forked child, does nothing.
    fn abandon(&self) {
        if let Ok(inner) = self.inner.get() {
            let lock = Arc::clone(&inner.lock);
            let end = |_| async move { take(lock.lock_owned().await).map(|_| Value::Nothing) };
            inner.engine.spawn(end, drop);
        }
    }

    /// Makes the lock last a full ttl from now.
    #[pyo3(signature = (into=None))]
    fn extend(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, into, |mut lock| async move {
            lock.as_mut().ok_or(Failure::NotAcquired)?.extend().await?;
            Ok(Value::Nothing)
        })
    }

    /// Turns an exclusive lock into a shared one, and extends it.
    #[pyo3(signature = (into=None))]
    fn downgrade(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, into, |mut lock| async move {
            lock.as_mut().ok_or(Failure::NotAcquired)?.downgrade().await?;
            Ok(Value::Nothing)
        })
    }

    /// Releases the lock. Returns whether it was held until then.
    #[pyo3(signature = (into=None))]
    fn release(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, into, |lock| async { Ok(Value::Released(take(lock)?.release().await?)) })
    }

    /// Releases the lock after the work that it protected. Fails if it was lost before.
    #[pyo3(signature = (into=None))]
    fn finish(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, into, |lock| async {
            take(lock)?.finish().await?;
            Ok(Value::Nothing)
        })
    }

    /// Detaches the lock from this process. Returns the secret text that attaches it.
    ///
    /// Sends no request, so that no cancellation can lose the text. Waits for a running extension.
    fn detach(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.inner.get()?;
        let lock = py.detach(|| inner.lock.blocking_lock().take());
        Ok(lock.ok_or(Failure::NotAcquired)?.detach().to_secret_text())
    }

    /// Waits until the lock is not held any more. Returns the exception of a lock that was lost,
    /// and `None` for one that was released or detached.
    #[pyo3(signature = (into=None))]
    fn ended(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        let inner = self.inner.get()?;
        let watch = inner.watch.clone();
        call::run(py, &inner.engine, into, |_| async move { Ok(Value::Ended(watch.ended().await)) })
    }
}
