//! Errors of the client library in the words of the program. They name the option to change.

use anyhow::anyhow;
use quorlock_client::{AcquireError, AttachError, Holder, NodeAnswers, NodeError, ReleaseError};

use crate::values::text_of_ms;

/// Names the option to change if a node refused the ttl as too long.
pub(crate) fn acquire_error(error: AcquireError) -> anyhow::Error {
    match &error {
        AcquireError::NoQuorum { nodes } => about_ttl(nodes).unwrap_or_else(|| error.into()),
        _ => error.into(),
    }
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

/// Says why a call waits, given the error of its first attempt and who holds the lock now.
pub(crate) fn describe_wait(first: AcquireError, holder: Option<Holder>) -> String {
    match (first, holder) {
        // The first attempt may have named an earlier holder, or found nodes that now vote.
        (AcquireError::Held { nodes, .. }, holder) => {
            describe(&AcquireError::Held { nodes, holder })
        }
        (_, Some(holder)) => format!("another client holds the lock: {holder}"),
        (first, None) => describe(&first),
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

/// Returns the error of an attach that found no majority, with advice.
pub(crate) fn attach_error(nodes: NodeAnswers) -> anyhow::Error {
    about_ttl(&nodes).unwrap_or_else(|| AttachError::NoQuorum { nodes }.into())
}

/// Returns an error that advises a smaller ttl, if a node refused the ttl as too long.
fn about_ttl(nodes: &NodeAnswers) -> Option<anyhow::Error> {
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
