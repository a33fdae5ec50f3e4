//! The clients that are compared, and nodes of which one fails.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use quorlock_client::{Lock, LockBuilder, Quorum, ReleaseError, Released};
use quorlock_testkit::{Direction, Nodes, Proxy, StartError};
use redis::{Client, IntoConnectionInfo as _, RedisResult};
use rslock::{LockGuard, LockManager};

/// Ttl of each lock, longer than any is held.
const TTL: Duration = Duration::from_secs(30);
/// Limit of Quorlock's waits, longer than any that occurs.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Longest time for background releases.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Quorlock,
    /// `rslock` with its default retries, after 0 to 200 ms.
    Rslock,
}

/// A client with its own connections.
#[derive(Clone)]
pub(crate) enum LockClient {
    Quorlock(Quorum),
    Rslock(LockManager),
}

/// A lock that a [`LockClient`] holds.
pub(crate) enum Held {
    Quorlock(Box<Lock>),
    Rslock(LockGuard),
}

impl LockClient {
    /// Connects to all nodes, and acquires a lock on them once.
    pub(crate) async fn connect(kind: Kind, urls: Vec<String>) -> anyhow::Result<Self> {
        let client = match kind {
            Kind::Quorlock => Self::Quorlock(Quorum::connect(urls).await?),
            Kind::Rslock => Self::Rslock(LockManager::from_clients(
                urls.into_iter().map(open).collect::<Result<_, _>>()?,
            )),
        };
        client.lock_once(&format!("warm-up:{:032x}", rand::random::<u128>())).await?;
        Ok(client)
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

    /// Waits until all nodes have confirmed the background releases, if the client has any.
    pub(crate) async fn flush(&self) {
        if let Self::Quorlock(quorum) = self {
            let _ = quorum.flush(FLUSH_LIMIT).await;
        }
    }

    /// Waits for a lock.
    pub(crate) async fn acquire(&self, key: &str) -> anyhow::Result<Held> {
        Ok(match self {
            Self::Quorlock(quorum) => {
                Held::Quorlock(Box::new(quorum.lock(key).ttl(TTL).wait(WAIT_MAX).acquire().await?))
            }
            Self::Rslock(manager) => {
                Held::Rslock(manager.acquire(key, TTL).await.context("rslock")?)
            }
        })
    }
}

impl Held {
    /// Returns the fence, or 0 for a client without fences.
    pub(crate) fn fence(&self) -> u64 {
        match self {
            Self::Quorlock(lock) => lock.fence().get(),
            Self::Rslock(_) => 0,
        }
    }

    /// Releases the lock. An unconfirmed release goes on in the background, and delays the next
    /// grant.
    pub(crate) async fn release(self) -> anyhow::Result<()> {
        match self {
            Self::Quorlock(lock) => match lock.release().await {
                Ok(Released::Released) | Err(ReleaseError::NoQuorum { .. }) => {}
                Ok(Released::AlreadyOver) => bail!("the lock ended before it was released"),
                Err(error) => return Err(error.into()),
            },
            Self::Rslock(guard) => guard.release().await,
        }
        Ok(())
    }
}

/// Acquires and releases the lock that `builder` describes, until both are confirmed.
pub(crate) async fn lock_once(builder: &LockBuilder) -> anyhow::Result<()> {
    let released = builder.acquire().await?.release().await?;
    ensure!(released == Released::Released, "a lock had ended before it was released");
    Ok(())
}

/// What happens to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// SIGSTOP: connections stay open, and no request is answered.
    Pause,
    /// SIGKILL: the node refuses connections.
    Kill,
    /// Connections are reset, and so are new ones.
    Cut,
    LoseRequests,
    LoseReplies,
}

/// Three nodes, the first of which fails. Clients reach it through a proxy if the fault is one of
/// the network.
pub(crate) struct FailingNodes {
    nodes: Nodes,
    proxy: Option<Proxy>,
}

impl FailingNodes {
    pub(crate) const NODES: usize = 3;

    pub(crate) fn start(behind_proxy: bool) -> anyhow::Result<Self> {
        let nodes = start_nodes(Self::NODES)?;
        let proxy = behind_proxy.then(|| Proxy::start(nodes[0].url()));
        Ok(Self { nodes, proxy })
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let mut urls = self.nodes.urls();
        if let Some(proxy) = &self.proxy {
            urls[0] = proxy.url();
        }
        urls
    }

    pub(crate) fn inject(&mut self, fault: Fault) {
        let proxy = || self.proxy.as_ref().expect("a fault of the network needs the proxy");
        match fault {
            Fault::Nothing => {}
            Fault::Pause => self.nodes[0].pause(),
            Fault::Kill => self.nodes[0].kill(),
            Fault::Cut => proxy().cut(),
            Fault::LoseRequests => proxy().drop_bytes(Direction::ToServer),
            Fault::LoseReplies => proxy().drop_bytes(Direction::ToClient),
        }
    }

    pub(crate) fn recover(&mut self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::Nothing => {}
            Fault::Pause => self.nodes[0].resume(),
            Fault::Kill => self.nodes[0].restart()?,
            Fault::Cut | Fault::LoseRequests | Fault::LoseReplies => {
                self.proxy.as_ref().expect("the proxy was there for the fault").heal();
            }
        }
        Ok(())
    }
}

impl Fault {
    pub(crate) fn is_of_the_network(self) -> bool {
        matches!(self, Self::Cut | Self::LoseRequests | Self::LoseReplies)
    }
}
