use std::time::Duration;

use super::{Answer, NodeError, Token};
use crate::Fence;

/// Tells the requests of one machine apart, so that a response reaches the round that it belongs
/// to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// The round of its machine.
    pub round: u32,
    /// The index of the node.
    pub node: usize,
}

/// A request to one node, about the keys and the ttl of its machine's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The token of the lock.
    pub token: Token,
    /// What the node is to do.
    pub command: Command,
}

/// What a node is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `ACQUIRE … FENCE fence`.
    Acquire {
        /// The proposed fence.
        fence: Fence,
    },
    /// `ACQUIRE … WAIT wait FENCE fence`, on a connection that nothing else uses.
    Wait {
        /// The proposed fence.
        fence: Fence,
        /// How long the node lets the client wait: at least 1 ms.
        wait: Duration,
    },
    /// `EXTEND`, with `FENCE fence` where there is one.
    Extend {
        /// The fence that the node is to store.
        fence: Option<Fence>,
    },
    /// `EXTEND … TOKEN new`: from then on only the new token holds the lock.
    SwapToken {
        /// The new token.
        new: Token,
    },
    /// `RELEASE`.
    Release,
    /// `INSPECT` of each key.
    Inspect,
    /// `PING`.
    Ping,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// ACQUIRE without WAIT and EXTEND: the token holds the lock, with this fence.
    Fence(Fence),
    /// ACQUIRE with WAIT: the token holds the lock.
    FenceAfterWait {
        /// The fence on this node.
        fence: Fence,
        /// How long the node made the client wait, by the node's clock.
        waited: Duration,
    },
    /// RELEASE: the token held the lock. INSPECT: a key is taken. PING: the node answers.
    Yes,
    /// ACQUIRE: another holds the lock. EXTEND, RELEASE: the token does not hold it. INSPECT: the
    /// keys are free.
    No,
    /// No answer, or an error.
    Failed(NodeError),
}

impl Response {
    /// Whether the token holds the lock, or held it until this RELEASE; `None` without an answer.
    pub fn holds(&self) -> Option<bool> {
        match self {
            Self::Fence(_) | Self::FenceAfterWait { .. } | Self::Yes => Some(true),
            Self::No => Some(false),
            Self::Failed(_) => None,
        }
    }

    /// The same for reports.
    pub fn to_answer(&self) -> Answer {
        match self {
            Self::Fence(fence) | Self::FenceAfterWait { fence, .. } => {
                Answer::Granted(Some(*fence))
            }
            Self::Yes => Answer::Granted(None),
            Self::No => Answer::Refused,
            Self::Failed(error) => Answer::Failed(error.clone()),
        }
    }
}

/// Whether a request that may grant a lock has reached its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// It was not sent.
    NotSent,
    /// It was sent through this connection of the node, and no answer shows that it has arrived.
    InFlight {
        /// The connection: the number of the node's link.
        connection: u64,
    },
    /// It has arrived: what is sent through any connection from now on comes after it.
    Arrived,
}
