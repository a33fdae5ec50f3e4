//! Nodes from connections that are there already: the only place where types of redis-rs appear.

use std::fmt;
use std::sync::Arc;

use ::redis::aio::ConnectionLike;

use crate::node::{Link, Node, Roll};
use crate::{ConnectError, Quorum};

/// Gathers ready connections into a quorum. Each must lead to a master of its own, and mend itself when it breaks, as a
/// `ConnectionManager` does; with a limit on the time it waits for an answer that is longer than any ttl, or none; and with
/// a pipeline buffer (`set_pipeline_buffer_size`) for more commands than are ever on their way at the same time. Of
/// commands that wait for a place in the buffer a later one may be sent first, and a lock whose release overtakes its
/// acquire stays on that node until its ttl is over.
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

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(Node::name).collect();
        f.debug_struct("Connections").field("nodes", &nodes).finish_non_exhaustive()
    }
}
