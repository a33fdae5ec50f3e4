//! The state of every node. Each node is asked separately, so that the snapshot includes broken
//! nodes, replicas and servers without the module.
//!
//! - [`node`]: the connection to one node, and the requests to it.
//! - [`info`]: its replies to INFO.
//! - [`snapshot`]: all nodes, and which of them a client counts. Every subcommand that shows the
//!   state of the nodes shows such a snapshot. Also what to do about a node that is not counted.

pub(crate) mod info;
mod node;
pub(crate) mod snapshot;

use std::time::Duration;

use futures_util::future::join_all;

pub(crate) use self::node::{Node, Replies, query, replies};
pub(crate) use self::snapshot::{Facts, NodeReport, Snapshot, State, advice, unwritable_advice};
use crate::endpoint::Endpoint;
use crate::nodes::{NodeArgs, NodeSettings};
use crate::values::duration;

const NODE_TIMEOUT_DEFAULT: &str = "2s";

/// Options of every subcommand that asks each node separately.
#[derive(clap::Args)]
pub(crate) struct FleetArgs {
    #[command(flatten)]
    pub(crate) nodes: NodeArgs,

    /// How long one node may take to connect and to answer
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = NODE_TIMEOUT_DEFAULT)]
    pub(crate) node_timeout: Duration,
}

/// All nodes, in the order in which they were named.
#[derive(Clone)]
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Node>,
}

impl FleetArgs {
    /// Makes a client for each node, and connects to none yet.
    pub(crate) fn load(&self) -> anyhow::Result<(Fleet, NodeSettings)> {
        let has_limit = !self.node_timeout.is_zero();
        anyhow::ensure!(has_limit, "--node-timeout must be longer than 0, such as 2s");
        let nodes = self.nodes.load()?;
        let clients = nodes.endpoints.iter().zip(nodes.clients()?);
        let node = |(endpoint, client): (&Endpoint, _)| {
            Node::new(&endpoint.name(), client, self.node_timeout)
        };
        let fleet = clients.map(node).collect();
        Ok((Fleet { nodes: fleet }, nodes))
    }
}

impl Fleet {
    /// Asks all nodes at the same time, and takes at most the time limit of one node.
    pub(crate) async fn gather(&self) -> Snapshot {
        Snapshot::new(self.each(async |node: &Node| node.report().await).await)
    }

    /// Like [`each`](Self::each), for the nodes whose facts are in `snapshot`. The other nodes have
    /// the default result.
    pub(crate) async fn each_answering<T: Default>(
        &self,
        snapshot: &Snapshot,
        work: impl AsyncFn(&Node) -> T,
    ) -> Vec<T> {
        let asked = self.nodes.iter().zip(&snapshot.nodes);
        let of_node = async |(node, answer): (&Node, &NodeReport)| match answer.facts() {
            Some(_) => work(node).await,
            None => T::default(),
        };
        join_all(asked.map(of_node)).await
    }

    /// Runs `work` at the same time for every node. Returns the results in the nodes' order.
    pub(crate) async fn each<T>(&self, work: impl AsyncFn(&Node) -> T) -> Vec<T> {
        join_all(self.nodes.iter().map(|node| work(node))).await
    }
}
