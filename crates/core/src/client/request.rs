use std::sync::Arc;
use std::time::Duration;

use super::{ConnectionId, Hold, Release, Spec, Token};
use crate::quorum::ExtensionVerdict;
use crate::{Answer, Fence, NodeError};

/// Identifies a request within the state machine that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// The number of the round. Each state machine counts its own rounds.
    pub round: u32,
    /// The index of the node.
    pub node: usize,
}

/// A request to one node. Its keys and ttl are those of the [`Spec`] that comes with
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The token of the lock.
    pub token: Token,
    /// The command.
    pub command: Command,
}

/// A command to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `ACQUIRE … FENCE fence`.
    Acquire {
        /// The proposed fence.
        fence: Fence,
    },
    /// `ACQUIRE … WAIT wait FENCE fence`, or `ACQUIREANY …` for any one of several keys, on a
    /// wait connection.
    Wait {
        /// The proposed fence.
        fence: Fence,
        /// How long the node lets the client wait: at least 1 ms.
        wait: Duration,
    },
    /// `ACQUIREANY … FENCE fence`, for any one of the keys.
    AcquireAny {
        /// The proposed fence.
        fence: Fence,
    },
    /// `EXTEND`, with `FENCE fence` if there is one.
    Extend {
        /// The fence for the node to store.
        fence: Option<Fence>,
    },
    /// `EXTEND … TOKEN new`: from then on only the new token holds the lock.
    SwapToken {
        /// The new token.
        new: Token,
    },
    /// `RELEASE`.
    Release,
    /// `YIELD`: `RELEASE` if an older call waits.
    Yield,
    /// `PING`.
    Ping,
}

/// An instruction of a machine to its driver. Keep the order of the actions.
#[derive(Debug)]
pub enum Action {
    /// Send a request.
    Send(OutgoingRequest),
    /// Get an exclusive connection to the node. Then call the machine's `handle_wait_connection`,
    /// and send the WAIT that it returns.
    Wait {
        /// Identifies the response.
        id: RequestId,
    },
    /// Drive this machine. Also pass it the response to each WAIT that it [needs](Release::waits).
    Release(Box<Release>),
    /// Report to the node's link that this connection left a request unanswered.
    Suspect(ConnectionId),
    /// The call has ended, with its lock or the reason why there is none. The machine of the lock
    /// also processes the responses still missing, also those to WAITs.
    Done(Result<Box<Hold>, Failure>),
    /// A round of extensions was decided.
    Decided {
        /// The number of the round. Its verdict also answers the calls that wait for an earlier
        /// round, which this round replaced.
        round: u32,
        /// What the nodes answered.
        verdict: ExtensionVerdict,
    },
    /// A repair has ended. The value says whether the node has the lock again.
    Repaired(bool),
}

/// The result of a call that did not acquire its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub reason: Reason,
    /// The last answer of each node, by index.
    pub answers: Vec<Answer>,
    /// How long the call took.
    pub took: Duration,
}

/// Why a lock was not acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// When last heard, too many nodes refused for the others to form a majority: another client
    /// holds the lock or waits for it.
    Held,
    /// Too few nodes voted, or their votes gave no client a majority.
    NoQuorum,
    /// The grants took so long that less than the minimal validity was left.
    InsufficientValidity,
    /// The operating system has no random numbers for a token.
    NoRandom,
}

/// A request to send through one of the client's shared connections. If the connection is closed,
/// respond with [`NodeError::connection_lost`](crate::NodeError::connection_lost).
#[derive(Clone, Debug)]
pub struct OutgoingRequest {
    /// Identifies the response.
    pub id: RequestId,
    /// The number of the node's connection.
    pub connection: u64,
    /// The request.
    pub request: Request,
    /// The lock that the request is about.
    pub spec: Arc<Spec>,
}

/// The response to a request, or the lack of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// ACQUIRE, EXTEND: the token holds the lock.
    Granted {
        /// The fence on this node.
        fence: Fence,
        /// How long the node made the client wait, by the node's clock; zero without WAIT.
        waited: Duration,
        /// After ACQUIREANY, the position of the granted key among the keys of the request.
        key: Option<usize>,
    },
    /// RELEASE: the token held the lock. YIELD: the token gave the lock up. PING: PONG.
    Yes,
    /// YIELD: the token still holds the lock.
    Kept,
    /// ACQUIRE: another client holds the lock or waits for it.
    Held {
        /// The largest fence and ticket that the node knows for the keys.
        number: Fence,
        /// Whether a holder or a waiter there is older than this request.
        is_older: bool,
    },
    /// EXTEND, RELEASE, YIELD: this token does not hold the lock. ACQUIRE that waited: another
    /// request or command has ended the wait.
    No,
    /// No answer, or an error.
    Failed(NodeError),
}

impl Response {
    /// Whether the token holds the lock, or held it until this RELEASE; `None` if the request
    /// failed.
    pub fn holds(&self) -> Option<bool> {
        match self.to_answer() {
            Answer::Granted(_) => Some(true),
            Answer::Refused => Some(false),
            Answer::Failed(_) | Answer::Pending => None,
        }
    }

    /// Whether the request failed without an answer, so that it may still arrive.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Failed(error) if !error.is_answer())
    }

    /// The answer as errors and reports show it.
    pub fn to_answer(&self) -> Answer {
        match self {
            Self::Granted { fence, .. } => Answer::Granted(Some(*fence)),
            Self::Yes | Self::Kept => Answer::Granted(None),
            Self::Held { .. } | Self::No => Answer::Refused,
            Self::Failed(error) => Answer::Failed(error.clone()),
        }
    }
}

/// Whether a request that may grant a lock has reached its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Not sent.
    #[default]
    NotSent,
    /// Sent, and not answered, or answered with an error.
    InFlight {
        /// The number of the node's connection.
        connection: u64,
    },
    /// Arrived: requests that are sent from now on, through any connection, arrive later.
    Arrived,
}
