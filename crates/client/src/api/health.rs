use std::time::Duration;

use crate::NodeError;

/// How one node is reached now: see [`Quorum::health`](crate::Quorum::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The node's address.
    pub node: String,
    /// Why the node cannot vote, or `None` if nothing is known against it. Whether it abstains is
    /// known only when it is asked for a lock.
    pub error: Option<NodeError>,
    /// For how long that has been so.
    pub since: Duration,
    /// The smoothed round trip.
    pub round_trip: Duration,
    /// The version of its lock module, while it is connected.
    pub module_version: Option<String>,
    /// The set that it says it belongs to: `NAME ID MEMBERS`.
    pub set: Option<String>,
}
