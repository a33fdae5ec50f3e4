use std::sync::Arc;

use super::{Outcome, Release, Request, RequestId, Spec};
use crate::quorum::ExtensionVerdict;

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
    Suspect {
        /// The index of the node.
        node: usize,
        /// The number of its connection.
        connection: u64,
    },
    /// The call has ended.
    Done(Outcome),
    /// A round of extensions was decided. [`Hold::renew_in`](super::Hold::renew_in) says when the
    /// next is due.
    Decided {
        /// The number of the round. Its verdict also answers the calls that wait for an earlier
        /// round, which this round replaced.
        round: u32,
        /// What the nodes answered.
        verdict: ExtensionVerdict,
    },
    /// A repair has ended. The value says whether the node has the lock again.
    Repaired(bool),
    /// A node misses the lock. [`Hold::renew_in`](super::Hold::renew_in) says when the next round
    /// is due.
    Incomplete,
}

/// A request to send through one of the client's shared connections. If the connection is closed,
/// respond with [`NodeError::connection_lost`](super::NodeError::connection_lost).
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
