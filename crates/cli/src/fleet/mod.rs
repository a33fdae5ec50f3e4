//! The state of every node. Each node is asked separately, so that the snapshot includes broken
//! nodes, replicas and servers without the module.
//!
//! - [`Node`]: the connection to one node, and the requests to it. [`facts`]: what it answers.
//! - [`snapshot`]: all nodes, and which of them a client counts. Every subcommand that shows the
//!   state of the nodes shows such a snapshot.
//! - [`finding`]: why a node does not vote, and what to do.

pub(crate) mod facts;
mod finding;
pub(crate) mod snapshot;

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use quorlock_client::{connect_or_explain, read_error};
use quorlock_core::NodeError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, Pipeline, Value, cmd};
use tokio::sync::Mutex;

pub(crate) use self::facts::{Facts, ModuleInfo};
pub(crate) use self::finding::{Finding, Severity};
use self::snapshot::Answer;
pub(crate) use self::snapshot::{NodeReport, Snapshot, State};
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
        let node = |(endpoint, client): (&Endpoint, _)| Node {
            name: endpoint.name(),
            client,
            limit: self.node_timeout,
            connection: Mutex::default(),
        };
        let fleet = clients.map(node).collect();
        Ok((Fleet { nodes: fleet }, nodes))
    }
}

impl Fleet {
    /// Asks all nodes at the same time, and takes at most the time limit of one node.
    pub(crate) async fn gather(&self) -> Snapshot {
        Snapshot::new(join_all(self.nodes.iter().map(Node::answer)).await)
    }
}

/// How many times one report reads the node's clock. Only the fastest reply counts.
const PROBES: usize = 3;

/// A node. The connection to it is kept until it fails.
pub(crate) struct Node {
    name: String,
    client: Result<Client, NodeError>,
    /// How long one call of [`ask`](Self::ask) may take.
    limit: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Node {
    async fn answer(&self) -> Answer {
        let answer = self.ask(async |connection| facts(connection).await).await;
        (self.name.clone(), answer)
    }

    /// Runs `work` on a connection to the node within the time limit. If a kept connection is
    /// broken, connects again and repeats `work`.
    pub(crate) async fn ask<T>(
        &self,
        work: impl AsyncFn(&mut MultiplexedConnection) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let mut kept = self.connection.lock().await;
        // Takes the connection out, so that it is not used again if `work` exceeds the limit or the
        // caller is dropped.
        let old = kept.take();
        let asking = async {
            if let Some(mut connection) = old {
                match work(&mut connection).await {
                    // Connects again: the server may have been restarted in the meantime.
                    Err(NodeError::Down { .. }) => {}
                    other => return Ok((connection, other)),
                }
            }
            let mut connection = connect(client).await?;
            let result = work(&mut connection).await;
            Ok((connection, result))
        };
        let asked = tokio::time::timeout(self.limit, asking).await;
        let (connection, result) = asked.map_err(|_| NodeError::timed_out(self.limit))??;
        *kept = Some(connection);
        result
    }
}

async fn connect(client: &Client) -> Result<MultiplexedConnection, NodeError> {
    // No limits here: the one in [`Node::ask`] covers connecting and all replies.
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    connect_or_explain(client, &config).await
}

async fn facts(connection: &mut MultiplexedConnection) -> Result<Facts, NodeError> {
    let mut requests = Pipeline::with_capacity(3);
    requests.cmd("INFO");
    // A separate request: a plain INFO omits the sections of modules, and a server before Redis 7
    // accepts only one section.
    requests.cmd("INFO").arg("lock");
    requests.cmd("CONFIG").arg("GET").arg("lock.*");
    let [info, of_lock, configs] = replies(&requests, connection).await?;
    let text = |reply| String::from_redis_value(reply).map_err(|_| NodeError::UnexpectedReply);
    let facts = Facts::parse(&format!("{}\n{}", text(info?)?, text(of_lock?)?));
    // A user that may not read the configuration still gets the other facts.
    let configs =
        configs.ok().and_then(|reply| HashMap::<String, String>::from_redis_value(reply).ok());
    let config = |name: &str| configs.as_ref()?.get(name)?.parse().ok();
    let (max_clock_skew_ms, max_waiters) =
        (config("lock.max-clock-skew"), config("lock.max-waiters"));
    let (round_trip, clock_offset_us) = probe(connection).await?;
    Ok(Facts { max_clock_skew_ms, max_waiters, round_trip, clock_offset_us, ..facts })
}

/// Measures the round trip and the offset of the node's clock. The offset is `None` if the user may
/// not run TIME.
async fn probe(
    connection: &mut MultiplexedConnection,
) -> Result<(Duration, Option<i64>), NodeError> {
    let mut best: Option<(Duration, Option<i64>)> = None;
    for _ in 0..PROBES {
        let (wall, sent) = (SystemTime::now(), Instant::now());
        let reply: Result<(i64, i64), _> = cmd("TIME").query_async(connection).await;
        let round_trip = sent.elapsed();
        let offset_us = match reply {
            Ok((seconds, us)) => {
                // The node read its clock in the middle of the round trip, to within half of it.
                let here_us = unix_us(wall + round_trip / 2);
                let there_us = seconds.saturating_mul(1_000_000).saturating_add(us);
                Some(there_us.saturating_sub(here_us))
            }
            // This error is also an answer, and took one round trip.
            Err(error) if error.code() == Some("NOPERM") => None,
            Err(error) => return Err(read_error(&error)),
        };
        if best.is_none_or(|(fastest, _)| round_trip < fastest) {
            best = Some((round_trip, offset_us));
        }
    }
    best.ok_or(NodeError::UnexpectedReply)
}

/// Returns the microseconds since 1970.
fn unix_us(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) type Replies<const N: usize> = [Result<Value, NodeError>; N];

/// Sends several commands in one pipeline. An error of one command does not affect the others.
pub(crate) async fn replies<const N: usize>(
    requests: &Pipeline,
    connection: &mut MultiplexedConnection,
) -> Result<Replies<N>, NodeError> {
    let replies = connection.send_packed_commands(requests, 0, N).await;
    let replies = replies.map_err(|error| read_error(&error))?;
    let replies: [Value; N] = replies.try_into().map_err(|_| NodeError::UnexpectedReply)?;
    Ok(replies.map(|reply| reply.extract_error().map_err(|error| read_error(&error))))
}
