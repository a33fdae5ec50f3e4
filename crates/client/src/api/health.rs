use std::time::Duration;

use crate::NodeError;

/// The state of the connection to one node: see [`Quorum::health`](crate::Quorum::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The node's address.
    pub node: String,
    /// Why the node cannot vote; `None` if it can, as far as the client knows. A node says that it
    /// abstains only in response to a request for a lock.
    pub error: Option<NodeError>,
    /// How long this state has lasted.
    pub since: Duration,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// The version of the node's module, while it is connected.
    pub module_version: Option<String>,
    /// The set that the node reports: `NAME ID MEMBERS`.
    pub set: Option<String>,
}
