use std::time::Duration;

use crate::Fence;
use crate::quorum::Majority;

/// A node's answer, as errors and reports show it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The node granted, extended or released the lock, or reported it free. The fence is the one
    /// that the node reported, if it reported one.
    Granted(Option<Fence>),
    /// Another client holds the lock or waits for it there, or this token does not hold the lock.
    Refused,
    /// The node did not vote.
    Failed(NodeError),
    /// The lock was decided before the node answered.
    Pending,
}

impl Answer {
    /// Whether [permanent errors](NodeError::is_permanent) leave too few nodes for a majority.
    pub fn rule_out_majority<'a>(
        answers: impl IntoIterator<Item = &'a Self>,
        majority: Majority,
    ) -> bool {
        let errors = answers.into_iter().filter_map(|answer| match answer {
            Self::Failed(error) => Some(error),
            _ => None,
        });
        NodeError::rule_out_majority(errors, majority)
    }
}

/// Why a node did not vote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// There is no connection to the node.
    #[error("not connected ({reason})")]
    Down {
        /// Why, such as what the last attempt to connect reported.
        reason: String,
    },
    /// It is unknown whether this node belongs to the client's set: too few nodes are connected, or
    /// the set that the node reports cannot be read.
    #[error("connected, and votes once enough of the other nodes are connected")]
    AwaitsMajority,
    /// The node did not answer within the time limit.
    #[error("no answer within {limit_ms} ms")]
    TimedOut {
        /// The time limit, in milliseconds.
        limit_ms: u64,
    },
    /// The node is too far away for the ttl: two round trips do not fit into a quarter of it.
    #[error(
        "no answer within {limit_ms} ms, with a round trip of {round_trip_ms} ms: set a ttl of at least {ttl_needed_ms} ms"
    )]
    TooFar {
        /// The time limit, in milliseconds.
        limit_ms: u64,
        /// The smoothed round trip, in milliseconds.
        round_trip_ms: u64,
        /// The smallest ttl that leaves the node enough time, in milliseconds.
        ttl_needed_ms: u64,
    },
    /// The node may have forgotten locks and does not vote until they have ended.
    #[error("abstains: {reason}")]
    Abstains {
        /// For how many more milliseconds, and why.
        reason: String,
    },
    /// The node's clock is so far behind the other nodes' clocks that it refuses their fence.
    #[error("its clock is too far behind the others': {reason}")]
    ClockBehind {
        /// The node's own words.
        reason: String,
    },
    /// Too many clients wait there.
    #[error("{reason}")]
    QueueFull {
        /// The node's own words.
        reason: String,
    },
    /// An operator revoked the lock on the node, which holds it until its deadline.
    #[error("an operator revoked the lock there: {left_ms} ms are left, and it cannot be extended")]
    Revoked {
        /// How much longer the node held the lock when it answered, in milliseconds.
        left_ms: u64,
    },
    /// The ttl is above the node's `lock.max-ttl`.
    #[error("it allows a ttl of at most {max_ms} ms: lower the ttl or raise lock.max-ttl")]
    TtlTooLong {
        /// The largest ttl that the node accepts, in milliseconds.
        max_ms: u64,
    },
    /// The node answered with an error.
    #[error("{0}")]
    ErrorReply(
        /// The node's own words.
        String,
    ),
    /// The node does not accept the user, the password or the command.
    #[error("{reason}: check user, password and ACL")]
    Denied {
        /// The node's own words.
        reason: String,
    },
    /// The configuration of the connection is wrong: its certificate, name or database.
    #[error("{reason}")]
    Misconfigured {
        /// What is wrong.
        reason: String,
    },
    /// The server runs without the module, or with one that does not know the command.
    #[error(
        "the lock module is not loaded there, or is too old: add `loadmodule \
         /path/to/libquorlock.so` to its configuration"
    )]
    NoModule,
    /// The server is also listed under another address. It has one vote.
    #[error("it is the same server as {node}, and one server has one vote")]
    SameServer {
        /// The other address.
        node: String,
    },
    /// The server is a Sentinel or runs in cluster mode.
    #[error("it runs in {mode} mode: a node must be an independent master")]
    WrongMode {
        /// The server's name for its mode.
        mode: String,
    },
    /// The server is a replica.
    #[error("it is a replica: name its master instead")]
    Replica,
    /// The sets that the nodes report do not allow the client to use this node.
    #[error("not admitted: {reason}")]
    NotAdmitted {
        /// What the node and the majority say, and what to do.
        reason: String,
    },
    /// The node refused, perhaps because it granted an earlier request of the same call, whose
    /// connection was lost.
    #[error(
        "refused, perhaps because it granted an earlier request of this call whose connection was \
         lost: that lock is being released, and ends with its ttl at the latest"
    )]
    HeldByLostRequest,
    /// The node sent something that is no answer to the request.
    #[error("sent an unexpected reply")]
    UnexpectedReply,
}

impl NodeError {
    /// Whether the node has answered, so that the request has arrived.
    pub(super) fn is_answer(&self) -> bool {
        !matches!(self, Self::Down { .. } | Self::TimedOut { .. } | Self::TooFar { .. })
    }

    /// The error of a request whose connection was lost.
    pub fn connection_lost() -> Self {
        Self::Down { reason: "the connection was lost".into() }
    }

    /// Reads an error reply: `TtlTooLong` if it names the largest ttl, otherwise `ErrorReply`.
    pub fn of_error_reply(words: String) -> Self {
        let max_ms = words.strip_prefix("ERR ttl must be between 1 and ").and_then(|rest| {
            let (max_ms, _) = rest.split_once(" milliseconds")?;
            max_ms.parse().ok()
        });
        max_ms.map_or(Self::ErrorReply(words), |max_ms| Self::TtlTooLong { max_ms })
    }

    /// Whether the node's clock is too far behind the ticket of the request.
    pub fn rejects_ticket(&self) -> bool {
        matches!(self, Self::ErrorReply(words) if words.starts_with("ERR FENCE is more than twice "))
    }

    /// The error of a node that has not answered within `limit`.
    pub fn timed_out(limit: Duration) -> Self {
        Self::TimedOut { limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Whether so many of these errors, at most one of each node, are
    /// [permanent](Self::is_permanent) that too few nodes are left for a majority.
    pub fn rule_out_majority<'a>(
        errors: impl IntoIterator<Item = &'a Self>,
        majority: Majority,
    ) -> bool {
        errors.into_iter().filter(|error| error.is_permanent()).count() > majority.spare()
    }

    /// Whether the error lasts until a person changes something. A call ends at once when such
    /// errors leave no majority. Nodes that are down or abstain recover without a person.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NoModule
            | Self::WrongMode { .. }
            | Self::SameServer { .. }
            | Self::Replica
            | Self::Denied { .. }
            | Self::NotAdmitted { .. }
            | Self::TtlTooLong { .. }
            | Self::Misconfigured { .. } => true,
            Self::ErrorReply(words) => {
                ["WRONGTYPE ", "ERR ttl "].iter().any(|kind| words.starts_with(kind))
            }
            Self::Down { .. }
            | Self::AwaitsMajority
            | Self::TimedOut { .. }
            | Self::TooFar { .. }
            | Self::Abstains { .. }
            | Self::ClockBehind { .. }
            | Self::QueueFull { .. }
            | Self::Revoked { .. }
            | Self::HeldByLostRequest
            | Self::UnexpectedReply => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_above_the_limit_of_a_node_names_that_limit() {
        let words = "ERR ttl must be between 1 and 60000 milliseconds (lock.max-ttl)";
        let error = NodeError::of_error_reply(words.into());
        assert_eq!(error, NodeError::TtlTooLong { max_ms: 60_000 });
        assert!(error.is_permanent());
        assert_eq!(
            NodeError::of_error_reply("ERR other".into()),
            NodeError::ErrorReply("ERR other".into())
        );
    }
}
