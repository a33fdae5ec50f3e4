//! Exit codes of this program. `quorlock run` also returns the exit code of its command, and
//! `quorlock doctor` has codes of its own. After a signal, the code is 128 + the signal; `quorlock
//! up` and `quorlock exporter` then return 0.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use quorlock_client::{NodeAnswers, NodeError};
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

/// Returns the exit code of a subcommand to which no node gave an answer.
pub(crate) fn no_answer(nodes: &NodeAnswers) -> ExitCode {
    ExitCode::from(without_majority(nodes.failed().map(|(_, error)| error), nodes.0.len()))
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
