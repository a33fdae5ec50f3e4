//! Turns the errors of the client into the exceptions of `quorlock.errors`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use quorlock_client::{
    AcquireError, Answer, AttachError, ConnectError, ExtendError, FlushError, Holder, InspectError,
    InvalidDetached, LostError, NodeAnswers, NodeError, ReleaseError,
};

use crate::engine::Reply;

/// The values of an exception besides its text.
#[derive(Default)]
struct Details {
    nodes: Option<NodeAnswers>,
    holder: Option<Holder>,
    /// In seconds.
    waited: Option<f64>,
    cause: Option<&'static str>,
    pending: Option<usize>,
}

impl Details {
    fn nodes(nodes: NodeAnswers) -> Self {
        Self { nodes: Some(nodes), ..Self::default() }
    }
}

/// Makes an exception of this class; the error of making it if that fails.
fn make(py: Python<'_>, class: &str, text: String, details: Details) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let exception = py.import("quorlock.errors")?.getattr(class)?.call1((text,))?;
        if let Some(nodes) = details.nodes {
            exception.setattr("nodes", node_answers(py, nodes)?)?;
        }
        if let Some(holder) = details.holder {
            exception.setattr("holder", holder.to_string())?;
        }
        if let Some(waited) = details.waited {
            exception.setattr("waited", waited)?;
        }
        if let Some(cause) = details.cause {
            exception.setattr("cause", cause)?;
        }
        if let Some(pending) = details.pending {
            exception.setattr("pending", pending)?;
        }
        Ok(PyErr::from_value(exception))
    };
    made().unwrap_or_else(|error| error)
}

fn node_answers(py: Python<'_>, nodes: NodeAnswers) -> PyResult<Bound<'_, PyAny>> {
    let class = py.import("quorlock.errors")?.getattr("NodeAnswer")?;
    let answers = nodes.0.into_iter().map(|node| {
        let (answer, error) = match &node.answer {
            Answer::Granted(_) => ("granted", None),
            Answer::Refused => ("refused", None),
            Answer::Failed(error) => ("failed", Some(error)),
            _ => ("pending", None),
        };
        let is_permanent = error.is_some_and(NodeError::is_permanent);
        class.call1((node.node, answer, error.map(ToString::to_string), is_permanent))
    });
    let answers: Vec<_> = answers.collect::<PyResult<_>>()?;
    Ok(pyo3::types::PyTuple::new(py, answers)?.into_any())
}

pub(crate) fn acquire(py: Python<'_>, error: AcquireError) -> PyErr {
    let text = error.to_string();
    let (class, details) = match error {
        AcquireError::Held { nodes, holder } => {
            ("HeldError", Details { holder, ..Details::nodes(nodes) })
        }
        AcquireError::TimedOut { waited, nodes, holder } => {
            let waited = Some(waited.as_secs_f64());
            ("WaitTimeoutError", Details { holder, waited, ..Details::nodes(nodes) })
        }
        AcquireError::NoQuorum { nodes } => ("NoQuorumError", Details::nodes(nodes)),
        AcquireError::InsufficientValidity { nodes } => {
            ("InsufficientValidityError", Details::nodes(nodes))
        }
        AcquireError::InvalidRequest { .. } => ("InvalidRequestError", Details::default()),
        _ => ("AcquireError", Details::default()),
    };
    make(py, class, text, details)
}

pub(crate) fn extend(py: Python<'_>, error: ExtendError) -> PyErr {
    let text = error.to_string();
    let (class, details) = match error {
        ExtendError::Lost { nodes } => ("LostError", Details::nodes(nodes)),
        ExtendError::NoQuorum { nodes } => ("NoQuorumError", Details::nodes(nodes)),
        ExtendError::Revoked { nodes } => ("RevokedError", Details::nodes(nodes)),
        ExtendError::HeldTooLong { .. } => ("HeldTooLongError", Details::default()),
        _ => ("ExtendError", Details::default()),
    };
    make(py, class, text, details)
}

pub(crate) fn lost(py: Python<'_>, error: LostError) -> PyErr {
    let text = error.to_string();
    let (cause, nodes) = match error {
        LostError::Ended { nodes } => ("ended", Some(nodes)),
        LostError::Expired { nodes } => ("expired", Some(nodes)),
        LostError::Revoked { nodes } => ("revoked", Some(nodes)),
        LostError::HeldTooLong { .. } => ("held_too_long", None),
        _ => ("unknown", None),
    };
    make(py, "LostError", text, Details { nodes, cause: Some(cause), ..Details::default() })
}

pub(crate) fn attach(py: Python<'_>, error: AttachError) -> PyErr {
    let text = error.to_string();
    let (class, details) = match error {
        AttachError::Gone { nodes } => ("GoneError", Details::nodes(nodes)),
        AttachError::NoQuorum { nodes } => ("NoQuorumError", Details::nodes(nodes)),
        AttachError::InsufficientValidity { nodes } => {
            ("InsufficientValidityError", Details::nodes(nodes))
        }
        AttachError::InvalidRequest { .. } => ("InvalidRequestError", Details::default()),
        _ => ("AttachError", Details::default()),
    };
    make(py, class, text, details)
}

pub(crate) fn release(py: Python<'_>, error: ReleaseError) -> PyErr {
    let text = error.to_string();
    match error {
        ReleaseError::NoQuorum { nodes } => make(py, "NoQuorumError", text, Details::nodes(nodes)),
        _ => make(py, "ReleaseError", text, Details::default()),
    }
}

pub(crate) fn inspect(py: Python<'_>, error: InspectError) -> PyErr {
    let text = error.to_string();
    match error {
        InspectError::NoAnswer { nodes } => make(py, "InspectError", text, Details::nodes(nodes)),
        _ => make(py, "InspectError", text, Details::default()),
    }
}

pub(crate) fn connect(py: Python<'_>, error: &ConnectError) -> PyErr {
    make(py, "ConnectError", error.to_string(), Details::default())
}

/// The reply of a call that needs the connections.
pub(crate) fn reply_connect(error: ConnectError) -> Reply {
    Box::new(move |py, _| Err(connect(py, &error)))
}

pub(crate) fn flush(py: Python<'_>, error: FlushError) -> PyErr {
    let pending = Some(error.pending);
    make(py, "FlushError", error.to_string(), Details { pending, ..Details::default() })
}

pub(crate) fn invalid_detached(py: Python<'_>, error: InvalidDetached) -> PyErr {
    invalid(py, &error.to_string())
}

/// The request can never be granted.
pub(crate) fn invalid(py: Python<'_>, text: &str) -> PyErr {
    make(py, "InvalidRequestError", text.to_owned(), Details::default())
}

/// A lock that the object does not hold, or holds no more.
pub(crate) fn not_acquired(py: Python<'_>) -> PyErr {
    let text = "this object holds no lock: acquire it first";
    make(py, "NotAcquiredError", text.to_owned(), Details::default())
}

/// A lock that a forked child inherited.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let text = "the lock belongs to the parent process: a child must acquire its own, or attach a \
                lock that the parent has detached";
    make(py, "ForkedError", text.to_owned(), Details::default())
}

/// A call that panicked, which is a defect of the client.
pub(crate) fn call_failed() -> PyErr {
    PyRuntimeError::new_err("the call failed on the thread of the quorum")
}
