//! Turns the errors of the client into the exceptions of `quorlock.errors`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use quorlock_client::{
    AcquireError, Answer, AttachError, ConnectError, ExtendError, FlushError, InspectError,
    InvalidDetached, LostError, NodeAnswers, NodeError, ReleaseError,
};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum Failure {
    Acquire(#[from] AcquireError),
    Attach(#[from] AttachError),
    Connect(#[from] ConnectError),
    Detached(#[from] InvalidDetached),
    Extend(#[from] ExtendError),
    Flush(#[from] FlushError),
    Inspect(#[from] InspectError),
    Lost(#[from] LostError),
    Release(#[from] ReleaseError),
    /// The object does not hold the lock, or holds it no more.
    #[error("this object holds no lock: acquire it first")]
    NotAcquired,
    /// A forked child inherited the lock.
    #[error(
        "the lock belongs to the parent process: a child must acquire its own, or attach a lock \
         that the parent has detached"
    )]
    Forked,
    /// A defect of the client.
    #[error("the call failed on the thread of the quorum")]
    Panicked,
}

/// Needs the GIL.
impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        if let Failure::Panicked = failure {
            return PyRuntimeError::new_err(failure.to_string());
        }
        Python::attach(|py| failure.exception(py).map_or_else(|error| error, Self::from_value))
    }
}

impl Failure {
    fn exception<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (class, nodes) = self.class_and_nodes();
        let class = py.import("quorlock.errors")?.getattr(class)?;
        let exception = class.call1((self.to_string(),))?;
        if let Some(nodes) = nodes {
            exception.setattr("nodes", node_answers(py, nodes)?)?;
        }
        if let Self::Acquire(AcquireError::TimedOut { waited, .. }) = self {
            exception.setattr("waited", waited.as_secs_f64())?;
        }
        match self {
            Self::Acquire(
                AcquireError::Held { holder: Some(holder), .. }
                | AcquireError::TimedOut { holder: Some(holder), .. },
            ) => exception.setattr("holder", holder.to_string())?,
            Self::Flush(error) => exception.setattr("pending", error.pending)?,
            Self::Lost(lost) => {
                let cause = match lost {
                    LostError::Ended { .. } => "ended",
                    LostError::Expired { .. } => "expired",
                    LostError::Revoked { .. } => "revoked",
                    LostError::HeldTooLong { .. } => "held_too_long",
                    _ => "unknown",
                };
                exception.setattr("cause", cause)?;
            }
            _ => {}
        }
        Ok(exception)
    }

    /// The class of the exception, and what each node answered.
    fn class_and_nodes(&self) -> (&'static str, Option<&NodeAnswers>) {
        match self {
            Self::Acquire(AcquireError::Held { nodes, .. }) => ("HeldError", Some(nodes)),
            Self::Acquire(AcquireError::TimedOut { nodes, .. }) => {
                ("WaitTimeoutError", Some(nodes))
            }
            Self::Acquire(AcquireError::NoQuorum { nodes })
            | Self::Attach(AttachError::NoQuorum { nodes })
            | Self::Extend(ExtendError::NoQuorum { nodes })
            | Self::Release(ReleaseError::NoQuorum { nodes }) => ("NoQuorumError", Some(nodes)),
            Self::Acquire(AcquireError::InsufficientValidity { nodes })
            | Self::Attach(AttachError::InsufficientValidity { nodes }) => {
                ("InsufficientValidityError", Some(nodes))
            }
            Self::Acquire(AcquireError::InvalidRequest { .. })
            | Self::Attach(AttachError::InvalidRequest { .. })
            | Self::Detached(_) => ("InvalidRequestError", None),
            Self::Attach(AttachError::Gone { nodes }) => ("GoneError", Some(nodes)),
            Self::Extend(ExtendError::Lost { nodes })
            | Self::Lost(
                LostError::Ended { nodes }
                | LostError::Expired { nodes }
                | LostError::Revoked { nodes },
            ) => ("LostError", Some(nodes)),
            Self::Extend(ExtendError::Revoked { nodes }) => ("RevokedError", Some(nodes)),
            Self::Extend(ExtendError::HeldTooLong { .. }) => ("HeldTooLongError", None),
            Self::Inspect(InspectError::NoAnswer { nodes }) => ("InspectError", Some(nodes)),
            Self::Acquire(_) => ("AcquireError", None),
            Self::Attach(_) => ("AttachError", None),
            Self::Connect(_) => ("ConnectError", None),
            Self::Extend(_) => ("ExtendError", None),
            Self::Flush(_) => ("FlushError", None),
            Self::Inspect(_) => ("InspectError", None),
            Self::Lost(_) => ("LostError", None),
            Self::Release(_) => ("ReleaseError", None),
            Self::NotAcquired => ("NotAcquiredError", None),
            Self::Forked => ("ForkedError", None),
            Self::Panicked => ("QuorlockError", None),
        }
    }
}

fn node_answers<'py>(py: Python<'py>, nodes: &NodeAnswers) -> PyResult<Bound<'py, PyAny>> {
    let class = py.import("quorlock.errors")?.getattr("NodeAnswer")?;
    let answers = nodes.0.iter().map(|node| {
        let (answer, error) = match &node.answer {
            Answer::Granted(_) => ("granted", None),
            Answer::Refused => ("refused", None),
            Answer::Failed(error) => ("failed", Some(error)),
            _ => ("pending", None),
        };
        let is_permanent = error.is_some_and(NodeError::is_permanent);
        class.call1((&node.node, answer, error.map(ToString::to_string), is_permanent))
    });
    let answers: Vec<_> = answers.collect::<PyResult<_>>()?;
    Ok(pyo3::types::PyTuple::new(py, answers)?.into_any())
}
