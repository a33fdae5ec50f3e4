//! What a lock locks, and with which options.

use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use quorlock_client::{LockBuilder, Quorum};

/// Seconds as a number, or a `timedelta`. An infinite number is the longest time there is.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // A number first: to refuse one as a `timedelta` takes longer than to read it.
        let seconds = match value.extract::<f64>() {
            Ok(seconds) => seconds,
            Err(_) => match value.extract::<Duration>() {
                Ok(time) => return Ok(Self(time)),
                // A negative `timedelta` is no `Duration`.
                Err(_) => value
                    .call_method0("total_seconds")
                    .and_then(|seconds| seconds.extract::<f64>())
                    .map_err(|_| {
                        PyTypeError::new_err("a time is a number of seconds or a timedelta")
                    })?,
            },
        };
        if seconds.is_nan() || seconds < 0.0 {
            return Err(PyValueError::new_err("a time is not negative"));
        }
        Ok(Self(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
    }
}

/// A key: text, which stands for its UTF-8, or bytes.
pub(crate) struct Key(pub(crate) Vec<u8>);

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = value.extract::<&str>() {
            return Ok(Self(text.as_bytes().to_vec()));
        }
        let bytes = value.extract::<&[u8]>();
        bytes
            .map(|bytes| Self(bytes.to_vec()))
            .map_err(|_| PyTypeError::new_err("a key is str or bytes"))
    }
}

#[derive(Clone)]
enum Kind {
    All,
    Any,
    Permits(usize),
}

/// Describes a lock: the options of a `LockBuilder`.
#[pyclass(frozen, module = "quorlock._quorlock")]
#[derive(Clone)]
pub(crate) struct Request {
    keys: Vec<Vec<u8>>,
    kind: Kind,
    shared: bool,
    pub(crate) ttl: Option<Duration>,
    wait: Option<Duration>,
    min_validity: Option<Duration>,
    node_timeout: Option<Duration>,
    max_hold: Option<Duration>,
    owner: Option<String>,
    pub(crate) renew: bool,
}

#[pymethods]
impl Request {
    #[new]
    #[pyo3(signature = (kind, keys, *, permits=None, shared=false, ttl=None, wait=None, renew=true,
        min_validity=None, node_timeout=None, max_hold=None, owner=None))]
    #[expect(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn new(
        kind: &str,
        keys: Vec<Key>,
        permits: Option<usize>,
        shared: bool,
        ttl: Option<Seconds>,
        wait: Option<Seconds>,
        renew: bool,
        min_validity: Option<Seconds>,
        node_timeout: Option<Seconds>,
        max_hold: Option<Seconds>,
        owner: Option<String>,
    ) -> PyResult<Self> {
        let kind = match (kind, permits) {
            ("all", None) => Kind::All,
            ("any", None) => Kind::Any,
            ("permits", Some(permits)) => Kind::Permits(permits),
            _ => return Err(PyTypeError::new_err("only a semaphore has permits")),
        };
        let time = |time: Option<Seconds>| time.map(|time| time.0);
        Ok(Self {
            keys: keys.into_iter().map(|key| key.0).collect(),
            kind,
            shared,
            ttl: time(ttl),
            wait: time(wait),
            min_validity: time(min_validity),
            node_timeout: time(node_timeout),
            max_hold: time(max_hold),
            owner,
            renew,
        })
    }
}

impl Request {
    /// The lock of this client, with its own wait or another one.
    pub(crate) fn lock(&self, quorum: &Quorum, wait: Option<Duration>) -> LockBuilder {
        let lock = match (&self.kind, self.keys.first()) {
            (Kind::Permits(permits), Some(name)) => quorum.semaphore(name, *permits),
            (Kind::Any, _) => quorum.lock_any(&self.keys),
            _ => quorum.lock_all(&self.keys),
        };
        let lock = if self.shared { lock.shared() } else { lock };
        let lock = with(lock, self.ttl, LockBuilder::ttl);
        let lock = with(lock, wait.or(self.wait), LockBuilder::wait);
        let lock = with(lock, self.min_validity, LockBuilder::min_validity);
        let lock = with(lock, self.node_timeout, LockBuilder::node_timeout);
        let lock = with(lock, self.max_hold, LockBuilder::max_hold);
        with(lock, self.owner.as_deref(), LockBuilder::owner)
    }
}

/// Sets an option of a builder, if there is a value for it.
pub(crate) fn with<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}
