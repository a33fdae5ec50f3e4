//! What to do about an error, in terms of the command line.

use anyhow::anyhow;
use quorlock_client::{AcquireError, AttachError, NodeError, Nodes};

use crate::duration::text_of_ms;

/// Advice on an acquisition that can never succeed.
pub(crate) fn on_acquire(error: AcquireError) -> anyhow::Error {
    match &error {
        AcquireError::NoQuorum { nodes } => about_ttl(nodes).unwrap_or_else(|| error.into()),
        _ => error.into(),
    }
}

/// The error in terms of the command line.
pub(crate) fn shown(error: &AcquireError) -> String {
    match error {
        // The program has no option for the minimal validity.
        AcquireError::InsufficientValidity { nodes } => {
            format!("the nodes answered too late for the ttl: {nodes}. Raise --ttl")
        }
        error => error.to_string(),
    }
}

/// Advice on an attachment that these nodes refused.
pub(crate) fn on_attach(nodes: Nodes) -> anyhow::Error {
    about_ttl(&nodes).unwrap_or_else(|| AttachError::NoQuorum { nodes }.into())
}

/// Names the option to change, if a limit for the ttl is the reason.
fn about_ttl(nodes: &Nodes) -> Option<anyhow::Error> {
    let limits = nodes.failed().filter_map(|(node, error)| match error {
        NodeError::TtlTooLong { max_ms } => Some((*max_ms, node)),
        _ => None,
    });
    let (max_ms, node) = limits.min()?;
    let most = text_of_ms(max_ms);
    Some(anyhow!(
        "{node} allows no longer ttl: lower --ttl to at most {most} or raise lock.max-ttl"
    ))
}
