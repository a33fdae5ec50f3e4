//! Why something could not be done, with each node's own answer.

use std::fmt;
use std::time::Duration;

use quorlock_core::Fence;

/// Why a [`Quorum`](crate::Quorum) could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No node was named.
    #[error("no nodes were named: give the URLs of the masters, three or five of them")]
    NoNodes,
    /// A URL cannot be used.
    #[error("{url} is not the URL of a node: {reason}")]
    BadUrl {
        /// The URL, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The same address was named twice: one server would have two votes.
    #[error("{node} is named twice: a server must not have two votes")]
    NamedTwice {
        /// The address.
        node: String,
    },
    /// There is no tokio runtime here to run the connections on.
    #[error("no tokio runtime: call this from within one")]
    NoRuntime,
}

/// Why a lock was not acquired. Whatever some nodes may have granted is being released in the background.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Others hold the lock on so many nodes that no majority can be won.
    #[error("the lock is held by another: {nodes}")]
    Held {
        /// What each node answered.
        nodes: Nodes,
    },
    /// No majority could be won because nodes do not answer, answer with an error, or abstain.
    #[error("no majority of the nodes can vote: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
    /// The wait ran out while others held the lock.
    #[error("the lock was still held by another after waiting {waited:?}: {nodes}")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// What each node answered last.
        nodes: Nodes,
    },
    /// When a majority had granted the lock, or it was clear that none would in time, less than the wanted validity was
    /// left.
    #[error(
        "the nodes answered too late for the lock to be of use: {nodes}. Raise the ttl, or lower min_validity"
    )]
    Expired {
        /// What each node answered.
        nodes: Nodes,
    },
    /// What was asked for can never be a lock.
    #[error("{reason}")]
    Unusable {
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
    /// Too few nodes confirmed. The lock is held until its old deadline: [`Lock::remaining`](crate::Lock::remaining).
    #[error("too few nodes confirmed that the lock is held: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
}

/// Why it is not known whether a lock was released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Too few nodes answered. The release goes on in the background, and the lock ends by its deadline at the latest.
    #[error("too few nodes confirmed the release: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
}

/// What every node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes(pub Vec<NodeAnswer>);

/// What one node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// The node's address.
    pub node: String,
    /// Its answer.
    pub answer: Answer,
}

/// An answer, as far as one came.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The node did what was asked.
    Yes(Option<Fence>),
    /// The node did not: another holds the lock there, or this one no longer does.
    No,
    /// The node did not vote.
    Failed(NodeError),
    /// It was decided before the node answered.
    Pending,
}

/// Why a node did not vote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// There is no connection, for this reason.
    #[error("not connected ({reason})")]
    Down {
        /// What the last attempt to connect said.
        reason: String,
    },
    /// No answer within the time limit.
    #[error("no answer within {limit_ms} ms")]
    TimedOut {
        /// The limit per node, in milliseconds.
        limit_ms: u64,
    },
    /// The node may have forgotten locks and stays out until they have ended.
    #[error("abstains: {reason}")]
    Abstains {
        /// How much longer, in milliseconds, and why.
        reason: String,
    },
    /// The node's clock is so far from the others' that it does not take their fence.
    #[error("its clock is too far behind the others': {reason}")]
    ClockBehind {
        /// The node's own words.
        reason: String,
    },
    /// The node answered an error.
    #[error("{0}")]
    Refused(
        /// Its own words.
        String,
    ),
    /// The server runs, but without the module.
    #[error(
        "the lock module is not loaded there: add `loadmodule /path/to/libquorlock.so` to its configuration"
    )]
    NoModule,
    /// The node answered something that is not an answer to what was asked.
    #[error("answered nonsense")]
    Nonsense,
}

impl Nodes {
    /// The nodes that did not vote.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &NodeError)> {
        self.0.iter().filter_map(|node| match &node.answer {
            Answer::Failed(error) => Some((node.node.as_str(), error)),
            _ => None,
        })
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{} ", node.node)?;
            match &node.answer {
                Answer::Yes(_) => write!(f, "said yes")?,
                Answer::No => write!(f, "said no")?,
                Answer::Failed(error) => write!(f, "{error}")?,
                Answer::Pending => write!(f, "had not answered yet")?,
            }
        }
        Ok(())
    }
}
