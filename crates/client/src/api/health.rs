use std::time::Duration;

use crate::NodeError;

/// The state of the connection to one node: see [`Quorum::health`](crate::Quorum::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The node's address.
    pub node: String,
    /// Why the node cannot vote; `None` if it can, as far as the client knows. The client learns
    /// that a node abstains only when it asks the node for a lock.
    pub error: Option<NodeError>,
    /// How long this state has lasted.
    pub since: Duration,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// The version of the node's module; `None` while the node is not connected, or if it has no
    /// module.
    pub module_version: Option<String>,
    /// The set that the node reports: `NAME ID MEMBERS`. `None` while the node is not connected, or
    /// if it reports no set.
    pub set: Option<String>,
}
