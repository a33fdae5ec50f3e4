//! The errors of the API. Most contain the answer of each node. `tests/errors.rs` has examples.

use std::fmt;
use std::time::Duration;

use quorlock_core::quorum::Majority;
use quorlock_core::rounded;
pub use quorlock_core::{Answer, NodeError};

use super::Holder;

/// Why a [`Quorum`](crate::Quorum) was not connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The list of nodes is empty.
    #[error("the list of nodes is empty: name three or five masters by their URLs")]
    NoNodes,
    /// A URL cannot be used.
    #[error("{url} is not the URL of a node: {reason}")]
    InvalidUrl {
        /// The URL, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The same address is listed twice, so that one server would have two votes.
    #[error("{node} is listed twice: a server must not have two votes")]
    DuplicateNode {
        /// The address.
        node: String,
    },
    /// Two addresses are the same server, which would have two votes.
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
    /// The system could not start the thread of a [`blocking::Quorum`](crate::blocking::Quorum).
    #[error("the thread for the connections cannot be started")]
    NoThread {
        /// The error of the system.
        source: std::io::Error,
    },
    /// The call was made outside a tokio runtime.
    #[error("no tokio runtime: call this inside one, or use quorlock_client::blocking")]
    NoRuntime,
}

/// Why a lock was not acquired. The client releases the lock on nodes that granted it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Other clients hold the lock or wait for it: the nodes that did not refuse form no majority.
    #[error("another client {}{}{}", holds(holder.as_ref()), named(holder.as_ref()), nodes.list_failed())]
    Held {
        /// What each node answered.
        nodes: NodeAnswers,
        /// Who holds the lock; `None` from a call that does not wait, because asking would delay
        /// the refusal: see [`LockBuilder::holder`](crate::LockBuilder::holder).
        holder: Option<Holder>,
    },
    /// No majority of the nodes agreed.
    #[error("no majority of the nodes agreed: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: NodeAnswers,
    },
    /// The wait ended while another client held the lock or waited for it.
    #[error(
        "another client still {} after {:?}{}{}",
        holds(holder.as_ref()), rounded(*waited), named(holder.as_ref()), nodes.list_failed()
    )]
    TimedOut {
        /// How long the call waited.
        waited: Duration,
        /// What each node answered last.
        nodes: NodeAnswers,
        /// Who held the lock shortly before the wait ended; `None` if the nodes do not say in time,
        /// or if the lock is free and other clients wait for it.
        holder: Option<Holder>,
    },
    /// A majority granted the lock too late: less than the minimal validity was left.
    #[error(
        "the nodes answered too late, and the lock had too little validity left: {nodes}. Raise the \
         ttl, or lower min_validity"
    )]
    InsufficientValidity {
        /// What each node answered.
        nodes: NodeAnswers,
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
    /// The lock is not held any more. Stop the work that it protected.
    #[error("the lock is lost: {nodes}")]
    Lost {
        /// What each node answered.
        nodes: NodeAnswers,
    },
    /// Too few nodes confirmed. The lock is held until its old deadline: see
    /// [`Lock::remaining`](crate::LockWatch::remaining).
    #[error("too few nodes confirmed that the lock is held: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: NodeAnswers,
    },
    /// An operator revoked the lock. Finish or stop the work before the lock's deadline.
    #[error(
        "an operator revoked the lock: it cannot be extended, and ends by its deadline: {nodes}"
    )]
    Revoked {
        /// What each node answered.
        nodes: NodeAnswers,
    },
    /// A lock of several keys, or on one of several, cannot become shared. It is held as before.
    #[error(
        "this lock has several keys, or is on one of several: only an exclusive lock of one key can become shared"
    )]
    NotShareable,
    /// The tokio runtime on which the quorum was connected has ended, so no request was sent. The
    /// lock is held until its old deadline.
    #[error(
        "the runtime on which the quorum was connected has ended: connect the quorum on a runtime \
         that lives as long as its locks"
    )]
    RuntimeEnded,
    /// The lock cannot be extended beyond its `max_hold`. It is held until its old deadline.
    #[error("the lock has reached its max_hold, {max_hold:?}: raise it, or do less under the lock")]
    HeldTooLong {
        /// The longest time that the lock may be held.
        max_hold: Duration,
    },
}

/// Why a lock is not held any more. Stop the work that it protected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LostError {
    /// No majority holds the lock any more: an operator ended it, or restarted nodes forgot it.
    #[error("no majority of the nodes holds the lock any more: {nodes}")]
    Ended {
        /// What each node answered last.
        nodes: NodeAnswers,
    },
    /// No majority confirmed an extension before the deadline: the process was paused, too few
    /// nodes answered, or the program did not extend the lock.
    #[error(
        "the lock expired before it was extended (was this process paused, or were too few nodes \
         reachable?). Before that: {nodes}"
    )]
    Expired {
        /// What each node answered last, before the deadline.
        nodes: NodeAnswers,
    },
    /// An operator revoked the lock, and it has ended by its deadline.
    #[error("an operator revoked the lock, which has ended by its deadline: {nodes}")]
    Revoked {
        /// What each node answered last, before the deadline.
        nodes: NodeAnswers,
    },
    /// The lock was held for its `max_hold`.
    #[error("the lock was held for max_hold, {max_hold:?}: raise it, or do less under the lock")]
    HeldTooLong {
        /// The longest time that the lock may be held.
        max_hold: Duration,
    },
}

/// Why work was not completed under a lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not acquired, and the work did not begin.
    #[error("the work did not begin, because the lock was not acquired")]
    NotAcquired(#[from] AcquireError),
    /// The lock was lost during the work.
    #[error("the lock was lost during the work, which was {}", if *finished { "finished before the loss was noticed" } else { "stopped" })]
    Lost {
        /// Why.
        #[source]
        lost: LostError,
        /// Whether the work was finished when the loss was noticed. Its output is dropped.
        finished: bool,
    },
}

/// Why a detached lock was not attached. The client releases the lock on nodes that attached it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The lock has ended, or another process has attached it.
    #[error("the lock has ended, or another process has attached it: {nodes}")]
    Gone {
        /// What each node answered.
        nodes: NodeAnswers,
    },
    /// No majority of the nodes agreed.
    #[error("no majority of the nodes agreed: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: NodeAnswers,
    },
    /// A majority answered too late: less than the minimal validity was left.
    #[error(
        "the nodes answered too late, and the lock had too little validity left: {nodes}. Raise the \
         ttl, or lower min_validity"
    )]
    InsufficientValidity {
        /// What each node answered.
        nodes: NodeAnswers,
    },
    /// The request can never be granted, or names other keys than those of the detached lock.
    #[error("{reason}")]
    InvalidRequest {
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// Why a release is not confirmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Too few nodes answered. The release continues, and the lock ends by its deadline.
    #[error("too few nodes confirmed the release, which continues in the background: {nodes}")]
    NoQuorum {
        /// What each node answered.
        nodes: NodeAnswers,
    },
}

/// Why a key was not inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// Each node failed to answer, may not vote, or may have forgotten the lock.
    #[error("no node knows the state of the key: {nodes}")]
    NoAnswer {
        /// The error of each node.
        nodes: NodeAnswers,
    },
}

/// Why no node confirmed a revocation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevokeError {
    /// Each node failed, or may have forgotten the lock. The holder may still extend the lock.
    #[error("no node confirmed the revocation: {nodes}")]
    NoAnswer {
        /// The error of each node.
        nodes: NodeAnswers,
    },
}

/// Why no locks were listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// No node listed its locks.
    #[error("no node lists its locks: {nodes}")]
    NoAnswer {
        /// The error of each node.
        nodes: NodeAnswers,
    },
}

/// Background requests that outlast the limit of [`Quorum::flush`](crate::Quorum::flush).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requests still in the background: {pending}; their locks end by their deadlines")]
pub struct FlushError {
    /// The number of unfinished releases.
    pub pending: usize,
}

/// The answers of all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswers(pub Vec<NodeAnswer>);

/// The answer of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeAnswer {
    /// The node's address.
    pub node: String,
    /// Its answer.
    pub answer: Answer,
}

impl NodeAnswers {
    /// The nodes that did not vote, and why. Nodes without an answer so far are not included.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &NodeError)> {
        self.0.iter().filter_map(|node| match &node.answer {
            Answer::Failed(error) => Some((node.node.as_str(), error)),
            _ => None,
        })
    }

    /// The nodes that did not vote, after a semicolon; empty if there are none. The other nodes
    /// refused, which the error says already.
    fn list_failed(&self) -> String {
        match list(self.failed().map(|(node, error)| (node, error.to_string()))) {
            failed if failed.is_empty() => failed,
            failed => format!("; {failed}"),
        }
    }

    /// Whether permanent errors leave too few nodes for a majority, so that waiting does not help.
    pub fn is_permanent(&self) -> bool {
        let answers = self.0.iter().map(|node| &node.answer);
        Majority::of(self.0.len())
            .is_some_and(|majority| Answer::rule_out_majority(answers, majority))
    }
}

/// Names the nodes of each answer: `a, b: refused; c: no answer within 50 ms`. Leaves out the nodes
/// that had no time to answer, because the other nodes decided earlier.
impl fmt::Display for NodeAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = self.0.iter().filter_map(|node| {
            let answer = match &node.answer {
                Answer::Granted(_) => "granted".to_owned(),
                Answer::Refused => "refused".to_owned(),
                Answer::Failed(error) => error.to_string(),
                _ => return None,
            };
            Some((node.node.as_str(), answer))
        });
        match list(answers) {
            list if list.is_empty() => write!(f, "no node has answered"),
            list => write!(f, "{list}"),
        }
    }
}

/// Lists each answer once, after the nodes that gave it.
fn list<'a>(answers: impl Iterator<Item = (&'a str, String)>) -> String {
    let mut nodes_by_answer: Vec<(String, Vec<&str>)> = Vec::new();
    for (node, answer) in answers {
        match nodes_by_answer.iter_mut().find(|(other, _)| *other == answer) {
            Some((_, nodes)) => nodes.push(node),
            None => nodes_by_answer.push((answer, vec![node])),
        }
    }
    let lines =
        nodes_by_answer.iter().map(|(answer, nodes)| format!("{}: {answer}", nodes.join(", ")));
    lines.collect::<Vec<_>>().join("; ")
}

fn holds(holder: Option<&Holder>) -> &'static str {
    if holder.is_some() { "holds the lock" } else { "holds the lock or waits for it" }
}

fn named(holder: Option<&Holder>) -> String {
    holder.map(|holder| format!(": {holder}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers<const N: usize>(answers: [Answer; N]) -> NodeAnswers {
        let named = answers.into_iter().zip(["a", "b", "c", "d"]);
        NodeAnswers(named.map(|(answer, node)| NodeAnswer { node: node.into(), answer }).collect())
    }

    fn failed(ms: u64) -> Answer {
        Answer::Failed(NodeError::timed_out(Duration::from_millis(ms)))
    }

    #[test]
    fn each_answer_is_listed_once_and_only_healthy_nodes_can_be_missing() {
        use Answer::{Pending, Refused};

        assert_eq!(answers([Refused, Refused, Pending]).to_string(), "a, b: refused");
        assert_eq!(
            answers([failed(5), Refused, failed(5), failed(6)]).to_string(),
            "a, c: no answer within 5 ms; b: refused; d: no answer within 6 ms"
        );
        assert_eq!(answers([Pending, Pending]).to_string(), "no node has answered");

        let held = |nodes| AcquireError::Held { nodes, holder: None }.to_string();
        let sentence = "another client holds the lock or waits for it";
        assert_eq!(held(answers([Refused, Refused, Pending])), sentence);
        let one_failed = held(answers([Refused, Refused, failed(5)]));
        assert_eq!(one_failed, format!("{sentence}; c: no answer within 5 ms"));
    }
}
