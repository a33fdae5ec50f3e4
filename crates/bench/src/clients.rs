//! The clients that are compared, and nodes of which one fails.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_client::{LockBuilder, Quorum, Released};
use quorlock_testkit::{Accident, FleetNode, Injectors, Nodes, Proxy, Server, StartError};
use redis::{Client, IntoConnectionInfo as _, RedisResult};
use rslock::LockManager;

/// Ttl of each lock, longer than any is held.
pub(crate) const TTL: Duration = Duration::from_secs(30);
/// How long a node may take to answer about a free lock. `rslock` has the same limit: the default
/// of redis-rs.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// Starts nodes that listen on TCP.
pub(crate) fn start_nodes(nodes: usize) -> Result<Nodes, StartError> {
    Nodes::start_with(nodes, |_, builder| builder.tcp())
}

/// Opens a client with `TCP_NODELAY`, as the client of Quorlock does.
pub(crate) fn open(url: impl Into<String>) -> RedisResult<Client> {
    let info = url.into().into_connection_info()?;
    let settings = info.tcp_settings().clone().set_nodelay(true);
    Client::open(info.set_tcp_settings(settings))
}

/// A client with its own connections.
#[derive(Clone)]
pub(crate) enum LockClient {
    Quorlock(Quorum),
    /// `rslock` with its default retries, after 0 to 200 ms.
    Rslock(LockManager),
}

impl LockClient {
    /// Connects Quorlock and then `rslock` to all nodes. Each acquires a lock on them once.
    pub(crate) async fn connect_both(urls: &[String]) -> anyhow::Result<[Self; 2]> {
        let clients = urls.iter().map(|url| open(url.clone())).collect::<Result<_, _>>()?;
        let both = [
            Self::Quorlock(Quorum::connect(urls).await?),
            Self::Rslock(LockManager::from_clients(clients)),
        ];
        for client in &both {
            client.lock_once(&format!("warm-up:{:032x}", rand::random::<u128>())).await?;
        }
        Ok(both)
    }

    /// Acquires a free lock, and releases it. Returns the time until both are confirmed.
    pub(crate) async fn lock_once(&self, key: &str) -> anyhow::Result<Duration> {
        let started = Instant::now();
        match self {
            Self::Quorlock(quorum) => {
                lock_once(&quorum.lock(key).ttl(TTL).node_timeout(NODE_TIMEOUT)).await?;
            }
            Self::Rslock(manager) => {
                manager.acquire(key, TTL).await.context("rslock")?.release().await;
            }
        }
        Ok(started.elapsed())
    }
}

/// Acquires and releases the lock that `builder` describes, until both are confirmed.
pub(crate) async fn lock_once(builder: &LockBuilder) -> anyhow::Result<()> {
    let released = builder.acquire().await?.release().await?;
    ensure!(released == Released::Released, "a lock had ended before it was released");
    Ok(())
}

/// Three nodes, the first of which fails. Clients may reach it through a proxy, as they must if the
/// accident is one of the network.
pub(crate) struct FailingNodes {
    first: FleetNode,
    others: Vec<Server>,
}

impl FailingNodes {
    pub(crate) const NODES: usize = 3;

    pub(crate) fn start(behind_proxy: bool) -> anyhow::Result<Self> {
        let mut servers = start_nodes(Self::NODES)?.0.into_iter();
        let first = servers.next().context("there is no node")?;
        let first = FleetNode::new(first, usize::from(behind_proxy), Injectors::default());
        Ok(Self { first, others: servers.collect() })
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let FleetNode { server, networks, .. } = &self.first;
        let first = networks.first().map_or_else(|| server.url(), Proxy::url);
        [first].into_iter().chain(self.others.iter().map(Server::url)).collect()
    }

    pub(crate) fn inject(&mut self, accident: Accident) -> anyhow::Result<()> {
        ensure!(self.first.inject(accident, 0)?, "the accident was not injected");
        Ok(())
    }

    pub(crate) fn recover(&mut self, accident: Accident) -> anyhow::Result<()> {
        self.first.recover(accident, 0)
    }
}
