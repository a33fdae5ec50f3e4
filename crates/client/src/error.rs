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
    /// Two addresses lead to the same server, which would have two votes.
    #[error("{} and {} are the same server: a server must not have two votes", nodes[0], nodes[1])]
    SameServer {
        /// The addresses.
        nodes: [String; 2],
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
    /// The lock has been held for so long that an extension would make it last no longer. It is held until its old
    /// deadline.
    #[error(
        "the lock is not to be held for longer than max_hold, {max_hold:?}: raise it, or do less under the lock"
    )]
    HeldTooLong {
        /// What [`LockBuilder::max_hold`](crate::LockBuilder::max_hold) says.
        max_hold: Duration,
    },
}

/// Why a lock is not held any more. Stop what it protected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostError {
    /// A majority of the nodes say that this lock is not held there any more: an operator has ended it, or they have
    /// forgotten it.
    #[error("the lock has ended on the nodes: {nodes}")]
    Ended {
        /// What each node answered last.
        nodes: Nodes,
    },
    /// Its deadline has come, and no majority has confirmed an extension before; if one was asked for at all.
    #[error("the lock's time is over, and it was not extended: {nodes}")]
    Expired {
        /// What each node answered last.
        nodes: Nodes,
    },
    /// The lock has been held for as long as it was to be held at all.
    #[error("the lock was held for max_hold, {max_hold:?}: raise it, or do less under the lock")]
    HeldTooLong {
        /// What [`LockBuilder::max_hold`](crate::LockBuilder::max_hold) says.
        max_hold: Duration,
    },
}

/// Why what was to be done under a lock was not done under it to its end.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T> {
    /// The lock was not acquired, and nothing was done.
    #[error("nothing was done, because the lock was not acquired")]
    NotAcquired(#[source] AcquireError),
    /// The lock was lost meanwhile.
    #[error("the lock was lost while something was done under it, which was {}", if output.is_some() { "done when that was noticed" } else { "stopped" })]
    Lost {
        /// Why.
        #[source]
        lost: LostError,
        /// What came of it, if it had come to an end before the loss was noticed: its own error, for example.
        output: Option<T>,
    },
}

impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(error) => f.debug_tuple("NotAcquired").field(error).finish(),
            Self::Lost { lost, output } => {
                let output = output.as_ref().map(|_| format_args!("…"));
                f.debug_struct("Lost").field("lost", lost).field("output", &output).finish()
            }
        }
    }
}

/// Why a lock that another process gave was not resumed. If some nodes have made it this one's already, they are releasing
/// it in the background.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The lock has ended, or somebody else has resumed it.
    #[error("the lock has ended, or was resumed by another: {nodes}")]
    Gone {
        /// What each node answered.
        nodes: Nodes,
    },
    /// Too few nodes answered.
    #[error("too few nodes answered for the lock to be resumed: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: Nodes,
    },
    /// When a majority had answered, less than the wanted validity was left.
    #[error(
        "the nodes answered too late for the lock to be of use: {nodes}. Raise the ttl, or lower min_validity"
    )]
    Expired {
        /// What each node answered.
        nodes: Nodes,
    },
    /// What was asked for can never be a lock, or is not this lock.
    #[error("{reason}")]
    Unusable {
        /// What is wrong, and what to do.
        reason: String,
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
    /// This is a server that another node is already: it has a vote there, and none here.
    #[error("it is the same server as {node}, which has its vote")]
    SameServer {
        /// The other address.
        node: String,
    },
    /// The server is a Sentinel, or in cluster mode: no master that stands by itself.
    #[error("it runs in {mode} mode: a node must be a master that stands by itself")]
    NotAMaster {
        /// What the server calls it.
        mode: String,
    },
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
