//! How this program fails: its exit codes, and the errors of the client library in its own words,
//! which name the option to change.
//!
//! `quorlock run` also returns the exit code of its command, and `quorlock doctor` has codes of its
//! own. After a signal, the code is 128 + the signal; `quorlock up` and `quorlock exporter` then
//! return 0.

use std::fmt::Display;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use quorlock_client::{AcquireError, NodeAnswers, NodeError, ReleaseError};
use quorlock_core::quorum::Majority;
use rustix::process::Signal;

pub(crate) const SUCCESS: u8 = 0;
/// The lock was lost, or had already ended.
pub(crate) const LOST: u8 = 120;
/// Another client holds the lock.
pub(crate) const CONFLICT: u8 = 121;
/// No majority of the nodes voted, answered or agreed in time.
pub(crate) const NO_MAJORITY: u8 = 122;
pub(crate) const FREE: u8 = 123;
/// `quorlock` itself failed.
pub(crate) const FAILED: u8 = 125;
pub(crate) const CANNOT_RUN: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// Returns the exit code of a subcommand that got no majority. `errors` has the error of each node
/// that failed, out of `nodes`: with too many permanent ones, waiting cannot help.
pub(crate) fn without_majority<'a>(
    errors: impl IntoIterator<Item = &'a NodeError>,
    nodes: usize,
) -> u8 {
    let is_permanent =
        Majority::of(nodes).is_some_and(|majority| NodeError::rule_out_majority(errors, majority));
    if is_permanent { FAILED } else { NO_MAJORITY }
}

/// Returns the exit code if no lock was acquired. `conflict` is the one if another client holds it.
pub(crate) fn not_acquired(error: &AcquireError, conflict: u8) -> u8 {
    match error {
        error if waiting_cannot_help(error) => FAILED,
        AcquireError::Held { .. } | AcquireError::TimedOut { .. } => conflict,
        AcquireError::NoQuorum { .. } | AcquireError::InsufficientValidity { .. } => NO_MAJORITY,
        _ => FAILED,
    }
}

/// Returns whether waiting cannot help: the request is invalid, or too many nodes fail permanently.
pub(crate) fn waiting_cannot_help(error: &AcquireError) -> bool {
    match error {
        AcquireError::InvalidRequest { .. } => true,
        AcquireError::NoQuorum { nodes } => nodes.is_permanent(),
        _ => false,
    }
}

/// An end without a result, with an exit code of its own and a message. A signal needs no message.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Ended {
    pub(crate) code: ExitCode,
    pub(crate) message: String,
}

impl Ended {
    pub(crate) fn by(signal: Signal) -> Self {
        Self { code: code_for_signal(signal), message: String::new() }
    }

    pub(crate) fn with(code: u8, message: impl Display) -> anyhow::Error {
        Self { code: ExitCode::from(code), message: message.to_string() }.into()
    }
}

/// Returns the error of a subcommand to which too few nodes gave an answer.
pub(crate) fn no_answer(error: &impl Display, nodes: &NodeAnswers) -> anyhow::Error {
    let errors = nodes.failed().map(|(_, error)| error);
    Ended::with(without_majority(errors, nodes.0.len()), error)
}

/// Returns the exit code of a command, or 128 + the signal that killed it.
pub(crate) fn code_for_status(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
}

/// Returns the code that a shell reports for a program that this signal ended.
pub(crate) fn code_for_signal(signal: Signal) -> ExitCode {
    code_for_status(ExitStatus::from_raw(signal.as_raw()))
}

pub(crate) fn describe(error: &AcquireError) -> String {
    match error {
        // The program has no option for the minimal validity.
        AcquireError::InsufficientValidity { nodes } => {
            format!("the nodes answered too late for the ttl: {nodes}. Raise --ttl")
        }
        error => error.to_string(),
    }
}

/// Unlike the library, does not promise that the release continues: this program ends soon.
pub(crate) fn describe_release(error: &ReleaseError) -> String {
    match error {
        ReleaseError::NoQuorum { nodes } => {
            format!("too few nodes confirmed the release: {nodes}. The lock ends by its ttl")
        }
        error => error.to_string(),
    }
}
