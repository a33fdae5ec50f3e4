use std::time::Duration;

use crate::NodeError;

/// The state of the connection to one node: see [`Quorum::health`](crate::Quorum::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The node's address.
    pub node: String,
    /// Why the node cannot vote; `None` if the connection shows no reason. An abstention shows only
    /// in the answers to requests.
    pub error: Option<NodeError>,
    /// How long the connection has been up, silent or down.
    pub since: Duration,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// The version of the node's module; `None` without a connection or a module.
    pub module_version: Option<String>,
    /// The set that the node reports: `NAME ID MEMBERS`. `None` without a connection or a set.
    pub set: Option<String>,
}
