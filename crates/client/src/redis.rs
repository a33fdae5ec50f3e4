//! Nodes from connections that are there already: the only place where types of redis-rs appear.

use std::sync::Arc;

use ::redis::aio::ConnectionLike;

use crate::node::{Link, Node, Roll};
use crate::{ConnectError, Quorum};

/// Gathers ready connections into a quorum. Each must lead to a master of its own, and mend itself when it breaks, as a
/// `ConnectionManager` does; with a limit on the time it waits for an answer that is longer than any ttl, or none.
#[derive(Default)]
pub struct Connections {
    nodes: Vec<Node>,
    roll: Arc<Roll>,
}

impl Connections {
    /// No connections yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node. The name is for people: errors say which node said what.
    #[must_use]
    pub fn node(
        mut self,
        name: &str,
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
    ) -> Self {
        self.nodes.push(Node::new(name, Link::ready(name, &self.roll, connection), None));
        self
    }

    /// The quorum of these nodes. To be called from within a tokio runtime.
    ///
    /// # Errors
    /// [`ConnectError::NoNodes`], [`ConnectError::NamedTwice`] and [`ConnectError::NoRuntime`].
    pub fn into_quorum(self) -> Result<Quorum, ConnectError> {
        Quorum::of_ready(self.nodes)
    }
}
