//! The nodes, and the calls that need no lock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use quorlock_client::{DetachedLock, QuorumBuilder};

use crate::call::{self, Waiter};
use crate::engine::{Engine, OfProcess, Value};
use crate::errors::Failure;
use crate::request::{Key, Request, Seconds, with};

/// Independent masters that together grant locks. Connects with the first call, in each process.
#[pyclass(frozen, weakref, module = "quorlock._quorlock")]
pub(crate) struct Quorum {
    builder: QuorumBuilder,
    /// Locked only with the GIL, so that no thread holds it when the process forks.
    engine: Mutex<Option<OfProcess<Arc<Engine>>>>,
}

impl Quorum {
    fn engine(&self, py: Python<'_>) -> PyResult<Arc<Engine>> {
        if let Some(engine) = self.started() {
            return Ok(engine);
        }
        let started = Engine::start(py, self.builder.clone())?;
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have started one meanwhile.
        if let Some(engine) = engine.as_ref().and_then(|engine| engine.get().ok()) {
            return Ok(Arc::clone(engine));
        }
        *engine = Some(OfProcess::new(Arc::clone(&started)));
        Ok(started)
    }

    /// The engine of this process, if a call has started it.
    fn started(&self) -> Option<Arc<Engine>> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref().and_then(|engine| engine.get().ok()).cloned()
    }
}

#[pymethods]
impl Quorum {
    #[new]
    #[pyo3(signature = (nodes, *, user=None, password=None, set=None, node_timeout=None,
        connect_timeout=None, root_certificates=None, client_certificate=None))]
    #[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn new(
        nodes: Vec<String>,
        user: Option<String>,
        password: Option<String>,
        set: Option<String>,
        node_timeout: Option<Seconds>,
        connect_timeout: Option<Seconds>,
        root_certificates: Option<Vec<u8>>,
        client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let builder = quorlock_client::Quorum::builder().nodes(nodes);
        let user = user.unwrap_or_else(|| "default".into());
        let builder = with(builder, password, |b, password| b.credentials(user, password));
        let builder = with(builder, set, QuorumBuilder::set);
        let builder = with(builder, node_timeout, |b, Seconds(limit)| b.node_timeout(limit));
        let builder = with(builder, connect_timeout, |b, Seconds(limit)| b.connect_timeout(limit));
        let builder = with(builder, root_certificates, QuorumBuilder::root_certificates);
        let builder =
            with(builder, client_certificate, |b, (chain, key)| b.client_certificate(chain, key));
        Self { builder, engine: Mutex::new(None) }
    }

    /// Acquires a lock: a `Held`. `wait` is `None` for the wait of the request, and zero for one
    /// attempt.
    #[pyo3(signature = (request, wait=None, into=None))]
    fn acquire(
        &self,
        py: Python<'_>,
        request: &Request,
        wait: Option<Seconds>,
        into: Waiter<'_>,
    ) -> PyResult<Py<PyAny>> {
        let (request, wait) = (request.clone(), wait.map(|wait| wait.0));
        call::run(py, &self.engine(py)?, into, |client| async move {
            let lock = request.lock(client.quorum().await?, wait);
            let mut lock = match wait {
                Some(Duration::ZERO) => lock.try_acquire().await?,
                _ => lock.acquire().await?,
            };
            if request.renew {
                lock.renew();
            }
            Ok(Value::Held(lock, request.ttl))
        })
    }

    /// Attaches a detached lock: a `Held`. `ttl` is `None` for the ttl that the lock has.
    #[pyo3(signature = (detached, ttl=None, renew=true, into=None))]
    fn attach(
        &self,
        py: Python<'_>,
        detached: &str,
        ttl: Option<Seconds>,
        renew: bool,
        into: Waiter<'_>,
    ) -> PyResult<Py<PyAny>> {
        let detached = parse(detached)?;
        let ttl = ttl.map_or(detached.ttl(), |ttl| ttl.0);
        call::run(py, &self.engine(py)?, into, |client| async move {
            let lock = client.quorum().await?.lock_all(detached.keys()).ttl(ttl);
            let mut lock = lock.attach(detached).await?;
            if renew {
                lock.renew();
            }
            Ok(Value::Held(lock, Some(ttl)))
        })
    }

    /// Releases a detached lock. Returns whether it was held until then.
    #[pyo3(signature = (detached, into=None))]
    fn release_detached(
        &self,
        py: Python<'_>,
        detached: &str,
        into: Waiter<'_>,
    ) -> PyResult<Py<PyAny>> {
        let detached = parse(detached)?;
        call::run(py, &self.engine(py)?, into, |client| async move {
            Ok(Value::Released(client.quorum().await?.release_detached(detached).await?))
        })
    }

    /// What the nodes say about a key.
    #[pyo3(signature = (key, into=None))]
    fn inspect(&self, py: Python<'_>, key: Key, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        call::run(py, &self.engine(py)?, into, |client| async move {
            Ok(Value::Inspection(client.quorum().await?.inspect(key.0).await?))
        })
    }

    /// The state of the connection to each node.
    #[pyo3(signature = (into=None))]
    fn health(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        call::run(py, &self.engine(py)?, into, |client| async move {
            Ok(Value::Health(client.quorum().await?.health()))
        })
    }

    /// Waits until the releases in the background have ended.
    #[pyo3(signature = (limit, into=None))]
    fn flush(&self, py: Python<'_>, limit: Seconds, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        call::run(py, &self.engine(py)?, into, |client| async move {
            if let Some(quorum) = client.opened() {
                quorum.flush(limit.0).await?;
            }
            Ok(Value::Nothing)
        })
    }

    /// Whether this process has connected to the nodes.
    #[getter]
    fn is_open(&self) -> bool {
        self.started().is_some_and(|engine| engine.is_open())
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.builder).replace("QuorumBuilder", "Quorum")
    }
}

fn parse(detached: &str) -> Result<DetachedLock, Failure> {
    Ok(detached.parse::<DetachedLock>()?)
}
