//! The nodes that a verb works on: where they are named, and the connection to them.

use anyhow::ensure;
use quorlock_client::Quorum;

/// Options of every verb that reaches the nodes. Flatten them into the verb.
#[derive(clap::Args)]
#[command(next_help_heading = "Nodes")]
pub(crate) struct NodeArgs {
    /// The masters, separated by commas; the same for everybody who uses the lock
    #[arg(long, env = "QUORLOCK_NODES", value_name = "URLS", value_delimiter = ',', hide_env_values = true)]
    nodes: Vec<String>,
}

/// A node as the user named it.
pub(crate) struct Endpoint {
    url: String,
}

impl Endpoint {
    /// The URL. It may contain a password: never print it.
    pub(crate) fn secret_url(&self) -> &str {
        &self.url
    }
}

impl NodeArgs {
    /// Connects to the nodes.
    pub(crate) async fn connect(&self) -> anyhow::Result<Quorum> {
        let endpoints = self.endpoints()?;
        Ok(Quorum::connect(endpoints.iter().map(Endpoint::secret_url)).await?)
    }

    /// The nodes, in the order in which they are named. There is at least one.
    pub(crate) fn endpoints(&self) -> anyhow::Result<Vec<Endpoint>> {
        let given = self.nodes.iter().map(|node| node.trim()).filter(|node| !node.is_empty());
        let endpoints: Vec<_> = given
            .map(|node| if node.contains("://") { node.to_owned() } else { format!("redis://{node}") })
            .map(|url| Endpoint { url })
            .collect();
        ensure!(
            !endpoints.is_empty(),
            "no masters are named: give their URLs with --nodes or in QUORLOCK_NODES, separated by commas, such as \
             redis://a:6379,redis://b:6379,redis://c:6379; `quorlock up` starts some for trying things out"
        );
        Ok(endpoints)
    }
}
