//! The nodes, and the calls that need no lock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use quorlock_client::{DetachedLock, QuorumBuilder};

use crate::call::{self, Waiter};
use crate::engine::{Engine, OfProcess, reply};
use crate::held::{self, Held};
use crate::request::{Key, Request, Seconds};
use crate::{errors, reports};

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
        if let Some(engine) = engine.as_ref().and_then(OfProcess::get) {
            return Ok(Arc::clone(engine));
        }
        *engine = Some(OfProcess::new(Arc::clone(&started)));
        Ok(started)
    }

    /// The engine of this process, if a call has started it.
    fn started(&self) -> Option<Arc<Engine>> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref().and_then(OfProcess::get).cloned()
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
        let mut builder = quorlock_client::Quorum::builder().nodes(nodes);
        if let Some(password) = password {
            builder = builder.credentials(user.unwrap_or_else(|| "default".into()), password);
        }
        if let Some(set) = set {
            builder = builder.set(set);
        }
        if let Some(Seconds(limit)) = node_timeout {
            builder = builder.node_timeout(limit);
        }
        if let Some(Seconds(limit)) = connect_timeout {
            builder = builder.connect_timeout(limit);
        }
        if let Some(pem) = root_certificates {
            builder = builder.root_certificates(pem);
        }
        if let Some((chain, key)) = client_certificate {
            builder = builder.client_certificate(chain, key);
        }
        Self { builder, engine: Mutex::new(None) }
    }

    /// Acquires a lock: a [`Held`]. `wait` is `None` for the wait of the request, and zero for one
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
            let quorum = match client.quorum().await {
                Ok(quorum) => quorum,
                Err(error) => return errors::reply_connect(error),
            };
            let lock = request.lock(quorum, wait);
            let acquired = match wait {
                Some(Duration::ZERO) => lock.try_acquire().await,
                _ => lock.acquire().await,
            };
            let acquired = acquired.map(|mut lock| {
                if request.renew {
                    lock.renew();
                }
                lock
            });
            Held::reply(acquired, request.ttl, errors::acquire)
        })
    }

    /// Attaches a detached lock: a [`Held`]. `ttl` is `None` for the ttl that the lock has.
    #[pyo3(signature = (detached, ttl=None, renew=true, into=None))]
    fn attach(
        &self,
        py: Python<'_>,
        detached: &str,
        ttl: Option<Seconds>,
        renew: bool,
        into: Waiter<'_>,
    ) -> PyResult<Py<PyAny>> {
        let detached: DetachedLock =
            detached.parse().map_err(|error| errors::invalid_detached(py, error))?;
        let ttl = ttl.map_or(detached.ttl(), |ttl| ttl.0);
        call::run(py, &self.engine(py)?, into, |client| async move {
            let quorum = match client.quorum().await {
                Ok(quorum) => quorum,
                Err(error) => return errors::reply_connect(error),
            };
            let lock = quorum.lock_all(detached.keys()).ttl(ttl);
            let attached = lock.attach(detached).await.map(|mut lock| {
                if renew {
                    lock.renew();
                }
                lock
            });
            Held::reply(attached, Some(ttl), errors::attach)
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
        let detached: DetachedLock =
            detached.parse().map_err(|error| errors::invalid_detached(py, error))?;
        call::run(py, &self.engine(py)?, into, |client| async move {
            match client.quorum().await {
                Ok(quorum) => held::released(quorum.release_detached(detached).await),
                Err(error) => errors::reply_connect(error),
            }
        })
    }

    /// What the nodes say about a key.
    #[pyo3(signature = (key, into=None))]
    fn inspect(&self, py: Python<'_>, key: Key, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        call::run(py, &self.engine(py)?, into, |client| async move {
            match client.quorum().await {
                Ok(quorum) => reply(
                    quorum.inspect(key.0).await,
                    |py, _, inspection| reports::inspection(py, inspection),
                    errors::inspect,
                ),
                Err(error) => errors::reply_connect(error),
            }
        })
    }

    /// The state of the connection to each node.
    #[pyo3(signature = (into=None))]
    fn health(&self, py: Python<'_>, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        call::run(py, &self.engine(py)?, into, |client| async move {
            let health = client.quorum().await.map(quorlock_client::Quorum::health);
            reply(
                health,
                |py, _, nodes| reports::health(py, nodes),
                |py, error| errors::connect(py, &error),
            )
        })
    }

    /// Waits until the releases in the background have ended.
    #[pyo3(signature = (limit, into=None))]
    fn flush(&self, py: Python<'_>, limit: Seconds, into: Waiter<'_>) -> PyResult<Py<PyAny>> {
        call::run(py, &self.engine(py)?, into, |client| async move {
            let flushed = match client.opened() {
                Some(quorum) => quorum.flush(limit.0).await,
                None => Ok(()),
            };
            reply(flushed, |py, _, ()| Ok(py.None()), errors::flush)
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
