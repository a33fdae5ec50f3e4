//! Errors of the client library, with the option of the command line to change.

use anyhow::anyhow;
use quorlock_client::{AcquireError, AttachError, NodeError, Nodes, ReleaseError};

use crate::duration::text_of_ms;

/// Adds advice to an acquisition error that waiting cannot resolve.
pub(crate) fn on_acquire(error: AcquireError) -> anyhow::Error {
    match &error {
        AcquireError::NoQuorum { nodes } => about_ttl(nodes).unwrap_or_else(|| error.into()),
        _ => error.into(),
    }
}

/// Describes the error. Names options of the program instead of those of the client library.
pub(crate) fn describe(error: &AcquireError) -> String {
    match error {
        // The program has no option for the minimal validity.
        AcquireError::InsufficientValidity { nodes } => {
            format!("the nodes answered too late for the ttl: {nodes}. Raise --ttl")
        }
        error => error.to_string(),
    }
}

/// Describes the error. This program ends soon, so it does not promise that the release continues.
pub(crate) fn describe_release(error: &ReleaseError) -> String {
    match error {
        ReleaseError::NoQuorum { nodes } => {
            format!("too few nodes confirmed the release; the lock ends by its ttl: {nodes}")
        }
        error => error.to_string(),
    }
}

/// Returns the error of an attach that found no majority among these nodes, with advice.
pub(crate) fn on_attach(nodes: Nodes) -> anyhow::Error {
    about_ttl(&nodes).unwrap_or_else(|| AttachError::NoQuorum { nodes }.into())
}

/// Returns an error that advises a smaller ttl, if a node refused the ttl as too long.
fn about_ttl(nodes: &Nodes) -> Option<anyhow::Error> {
    let limits = nodes.failed().filter_map(|(node, error)| match error {
        NodeError::TtlTooLong { max_ms } => Some((*max_ms, node)),
        _ => None,
    });
    let (max_ms, node) = limits.min()?;
    let most = text_of_ms(max_ms);
    Some(anyhow!(
        "{node} does not allow this ttl: lower --ttl to at most {most} or raise lock.max-ttl"
    ))
}
