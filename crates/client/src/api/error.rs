//! Why an operation failed, with each node's own answer. `tests/errors.rs` has an example of each.

use std::fmt;
use std::time::Duration;

pub use quorlock_core::client::{Answer, NodeError};

/// Why a [`Quorum`](crate::Quorum) was not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No node was named.
    #[error("no nodes were named: give the URLs of the masters, three or five of them")]
    NoNodes,
    /// A URL cannot be used.
    #[error("{url} is not the URL of a node: {reason}")]
    InvalidUrl {
        /// The URL, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The same address was named twice: one server would have two votes.
    #[error("{node} is named twice: a server must not have two votes")]
    DuplicateNode {
        /// The address.
        node: String,
    },
    /// Two addresses lead to the same server, which would have two votes.
    #[error("{} and {} are the same server: a server must not have two votes", nodes[0], nodes[1])]
    SameServer {
        /// The addresses.
        nodes: [String; 2],
    },
    /// The certificates cannot be used, or the system's roots cannot be read.
    #[error("TLS cannot be set up: {reason}")]
    Tls {
        /// What is wrong.
        reason: String,
    },
    /// The system has no thread left for a [`blocking::Quorum`](crate::blocking::Quorum).
    #[error("no thread for the connections")]
    NoThread {
        /// What the system says.
        source: std::io::Error,
    },
    /// There is no tokio runtime to run the connections on.
    #[error("no tokio runtime: call this from within one")]
    NoRuntime,
}

/// Why a lock was not acquired. What some nodes may have granted is being released in the background.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// At the last look, others held the lock on so many nodes that no majority was left.
    #[error("another holds the lock: {nodes}")]
    Held {
        /// What each node answered.
        nodes: Nodes,
    },
    /// So many nodes do not answer, refuse or abstain that there is no majority.
    #[error("no majority of the nodes could be won: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
    /// The wait is over, and another still held the lock at the last look.
    #[error("another still holds the lock after {waited:?}: {nodes}")]
    TimedOut {
        /// How long the call waited.
        waited: Duration,
        /// What each node answered last.
        nodes: Nodes,
    },
    /// When a majority had granted the lock, less than the minimal validity was left of it.
    #[error(
        "the nodes answered too late for the lock to be of use: {nodes}. Raise the ttl, or lower \
         min_validity"
    )]
    InsufficientValidity {
        /// What each node answered.
        nodes: Nodes,
    },
    /// The request can never be granted.
    #[error("{reason}")]
    InvalidRequest {
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// Why a lock was not extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is not held any more. Stop what it protected.
    #[error("the lock is lost: {nodes}")]
    Lost {
        /// What each node answered.
        nodes: Nodes,
    },
    /// Too few nodes confirmed. The lock is held until its old deadline:
    /// [`Lock::remaining`](crate::Lock::remaining).
    #[error("too few nodes confirmed that the lock is held: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
    /// The lock has been held for so long that an extension would make it last no longer. It is held
    /// until its old deadline.
    #[error("the lock has reached its max_hold, {max_hold:?}: raise it, or do less under the lock")]
    HeldTooLong {
        /// The longest time that the lock may be held.
        max_hold: Duration,
    },
}

/// Why a lock is not held any more. Stop what it protected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostError {
    /// A majority of the nodes say that this lock is not held there any more: an operator ended it,
    /// or they have forgotten it.
    #[error("the lock has ended on a majority of the nodes: {nodes}")]
    Ended {
        /// What each node answered last.
        nodes: Nodes,
    },
    /// The deadline passed before a majority confirmed an extension: this process was paused, too few
    /// nodes answered, or nobody extended the lock.
    #[error(
        "the lock expired before it was extended (was this process paused, or too few nodes \
         reachable?). Before that: {nodes}"
    )]
    Expired {
        /// What each node answered last, before the deadline.
        nodes: Nodes,
    },
    /// The lock was held for as long as it may be held at all.
    #[error("the lock was held for max_hold, {max_hold:?}: raise it, or do less under the lock")]
    HeldTooLong {
        /// The longest time that the lock may be held.
        max_hold: Duration,
    },
}

/// Why work was not done under a lock to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not acquired, and nothing was done.
    #[error("nothing was done, because the lock was not acquired")]
    NotAcquired(#[from] AcquireError),
    /// The lock was lost meanwhile.
    #[error("the lock was lost during the work, which was {}", if *finished { "finished when that was noticed" } else { "stopped" })]
    Lost {
        /// Why.
        #[source]
        lost: LostError,
        /// Whether the work was finished when the loss was noticed. Its output is dropped.
        finished: bool,
    },
}

/// Why a detached lock was not attached. Nodes that made it this process's own are releasing it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The lock has ended, or another process has attached it.
    #[error("the lock has ended, or another process has attached it: {nodes}")]
    Gone {
        /// What each node answered.
        nodes: Nodes,
    },
    /// Too few nodes answered.
    #[error("no majority of the nodes could be won: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
    /// When a majority had answered, less than the minimal validity was left.
    #[error(
        "the nodes answered too late for the lock to be of use: {nodes}. Raise the ttl, or lower \
         min_validity"
    )]
    InsufficientValidity {
        /// What each node answered.
        nodes: Nodes,
    },
    /// The request can never be granted, or is for other keys.
    #[error("{reason}")]
    InvalidRequest {
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// Why it is not known whether a lock was released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Too few nodes answered. The release goes on in the background, and the lock ends by its
    /// deadline at the latest.
    #[error("too few nodes confirmed the release, which goes on in the background: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
}

/// Why nothing is known about a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// No node answered.
    #[error("no node answered: {nodes}")]
    NoAnswer {
        /// Why each node did not answer.
        nodes: Nodes,
    },
}

/// Releases that were not confirmed within the limit of [`Quorum::flush`](crate::Quorum::flush).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pending} releases are not confirmed by all nodes yet; those locks end by their deadlines")]
pub struct FlushError {
    /// How many.
    pub pending: usize,
}

/// What every node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes(pub Vec<NodeAnswer>);

/// What one node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// The node's address.
    pub node: String,
    /// Its answer.
    pub answer: Answer,
}

impl Nodes {
    /// The nodes that did not vote.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &NodeError)> {
        self.0.iter().filter_map(|node| match &node.answer {
            Answer::Failed(error) => Some((node.node.as_str(), error)),
            _ => None,
        })
    }

    /// Whether so many nodes fail permanently that the others are no majority: waiting does not help.
    pub fn is_permanent(&self) -> bool {
        let permanent = self.failed().filter(|(_, error)| error.is_permanent()).count();
        permanent >= self.0.len().div_ceil(2) && permanent > 0
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{}: ", node.node)?;
            match &node.answer {
                Answer::Granted(_) => write!(f, "granted")?,
                Answer::Refused => write!(f, "refused")?,
                Answer::Failed(error) => write!(f, "{error}")?,
                _ => write!(f, "no answer yet")?,
            }
        }
        Ok(())
    }
}
