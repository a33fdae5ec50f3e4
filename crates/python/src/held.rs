//! A held lock.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quorlock_client::{ExtendError, Lock, LockWatch, LostError, Ownership, ReleaseError, Released};
use tokio::sync::Mutex;

use crate::call::{self, Waiter};
use crate::engine::{Engine, OfProcess, Reply, reply};
use crate::errors;

/// A lock that a call acquired. When the object is dropped, the client releases the lock in the
/// background.
#[pyclass(frozen, weakref, module = "quorlock._quorlock")]
pub(crate) struct Held {
    inner: OfProcess<Inner>,
}

struct Inner {
    watch: LockWatch,
    slot: Option<usize>,
    is_shared: bool,
    /// `None` for the default of the client.
    ttl: Option<Duration>,
    /// Calls lock the mutex on the runtime's thread. `None` once a call has ended the lock.
    lock: Arc<Mutex<Option<Lock>>>,
    /// Dropped last, because the release of the lock needs the runtime.
    engine: Arc<Engine>,
}

impl Held {
    fn new(engine: &Arc<Engine>, lock: Lock, ttl: Option<Duration>) -> Self {
        let (watch, slot, is_shared) = (lock.watch(), lock.slot(), lock.is_shared());
        let (engine, lock) = (Arc::clone(engine), Arc::new(Mutex::new(Some(lock))));
        Self { inner: OfProcess::new(Inner { watch, slot, is_shared, ttl, lock, engine }) }
    }

    /// The reply of a call that has acquired or attached a lock.
    pub(crate) fn reply<E: Send + 'static>(
        result: Result<Lock, E>,
        ttl: Option<Duration>,
        error: impl FnOnce(Python<'_>, E) -> PyErr + Send + 'static,
    ) -> Reply {
        let make = move |py: Python<'_>, engine: &Arc<Engine>, lock| {
            Ok(Py::new(py, Self::new(engine, lock, ttl))?.into_any())
        };
        reply(result, make, error)
    }

    fn inner(&self, py: Python<'_>) -> PyResult<&Inner> {
        self.inner.get().ok_or_else(|| errors::forked(py))
    }

    /// Runs a call that ends the lock.
    fn end<F: Future<Output = Reply> + Send + 'static>(
        &self,
        py: Python<'_>,
        into: Waiter<'_>,
        end: impl FnOnce(Lock) -> F + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let inner = self.inner(py)?;
        let lock = Arc::clone(&inner.lock);
        call::run(py, &inner.engine, into, |_| async move {
            let lock = lock.lock().await.take();
            match lock {
                Some(lock) => end(lock).await,
                None => gone(),
            }
        })
    }
}

/// The reply of a call for a lock that another call has ended.
fn gone() -> Reply {
    Box::new(|py, _| Err(errors::not_acquired(py)))
}

#[pymethods]
impl Held {
    /// The fence, as a number.
    #[getter]
    fn fence(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.inner(py)?.watch.fence().get())
    }

    /// In seconds.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.inner(py)?.watch.remaining().as_secs_f64())
    }

    /// `held`, `uncertain` or `lost`.
    #[getter]
    fn ownership(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.inner(py)?.watch.ownership() {
            Ownership::Held(_) => "held",
            Ownership::Uncertain(_) => "uncertain",
            Ownership::Lost => "lost",
        })
    }

    /// On how many nodes the lock is known to be held, and the number of all nodes.
    #[getter]
    fn coverage(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let coverage = self.inner(py)?.watch.coverage();
        Ok((coverage.held, coverage.nodes))
    }

    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        Ok(self.inner(py)?.watch.keys().map(|key| PyBytes::new(py, key)).collect())
    }

    #[getter]
    fn slot(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        Ok(self.inner(py)?.slot)
    }

    /// Whether the lock was shared when it was acquired.
    #[getter]
    fn is_shared(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.inner(py)?.is_shared)
    }

    /// In seconds.
    #[getter]
    fn ttl(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        Ok(self.inner(py)?.ttl.map(|ttl| ttl.as_secs_f64()))
    }

    /// Releases the lock in the background, without waiting. In a forked child, does nothing.
    fn abandon(&self) {
        if let Some(inner) = self.inner.get() {
            let lock = Arc::clone(&inner.lock);
            let end = |_| async move {
                drop(lock.lock().await.take());
                gone()
            };
            inner.engine.spawn(end, drop);
        }
    }

    /// Makes the lock last a full ttl from now.
    #[pyo3(signature = (into=None))]
    fn extend(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        let inner = self.inner(py)?;
        let lock = Arc::clone(&inner.lock);
        call::run(py, &inner.engine, into, |_| async move {
            match &mut *lock.lock().await {
                Some(lock) => extended(lock.extend().await),
                None => gone(),
            }
        })
    }

    /// Turns an exclusive lock into a shared one, and extends it.
    #[pyo3(signature = (into=None))]
    fn downgrade(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        let inner = self.inner(py)?;
        let lock = Arc::clone(&inner.lock);
        call::run(py, &inner.engine, into, |_| async move {
            match &mut *lock.lock().await {
                Some(lock) => extended(lock.downgrade().await),
                None => gone(),
            }
        })
    }

    /// Releases the lock. Returns whether it was held until then.
    #[pyo3(signature = (into=None))]
    fn release(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        self.end(py, into, |lock| async { released(lock.release().await) })
    }

    /// Releases the lock after the work that it protected. Fails if it was lost before.
    #[pyo3(signature = (into=None))]
    fn finish(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        self.end(py, into, |lock| async {
            reply(lock.finish().await, |py, _, ()| Ok(py.None()), errors::lost)
        })
    }

    /// Detaches the lock from this process. Returns the secret text that attaches it.
    ///
    /// Sends no request, so that no cancellation can lose the text. Waits for a running extension.
    fn detach(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.inner(py)?;
        let lock = py.detach(|| inner.lock.blocking_lock().take());
        let lock = lock.ok_or_else(|| errors::not_acquired(py))?;
        Ok(lock.detach().to_secret_text())
    }

    /// Waits until the lock is not held any more. Returns the exception of a lock that was lost,
    /// and `None` for one that was released or detached.
    #[pyo3(signature = (into=None))]
    fn ended(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        let inner = self.inner(py)?;
        let watch = inner.watch.clone();
        call::run(py, &inner.engine, into, |_| async move { ended(watch.ended().await) })
    }
}

pub(crate) fn released(result: Result<Released, ReleaseError>) -> Reply {
    let make = |py: Python<'_>, _: &Arc<Engine>, released| {
        Ok((released == Released::Released).into_pyobject(py)?.to_owned().into_any().unbind())
    };
    reply(result, make, errors::release)
}

fn extended(result: Result<(), ExtendError>) -> Reply {
    reply(result, |py, _, ()| Ok(py.None()), errors::extend)
}

fn ended(lost: Option<LostError>) -> Reply {
    Box::new(move |py, _| match lost {
        Some(lost) => Ok(errors::lost(py, lost).into_value(py).into_any()),
        None => Ok(py.None()),
    })
}
