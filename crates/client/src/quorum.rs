use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::{Client, ConnectionAddr, IntoConnectionInfo};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quorlock_core::Fence;
use quorlock_core::quorum::{Hints, Majority, order};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::node::{Link, Node};
use crate::slots::Slots;
use crate::{ConnectError, LockBuilder, clock};

/// How long [`Quorum::connect`] waits for nodes that do not answer, in milliseconds.
const SETTLE_LIMIT_MS: u64 = 1000;
/// What a round trip is taken for before the first, in microseconds.
const ROUND_TRIP_US: u64 = 1000;
/// How long it waits for the others when a majority is connected, in milliseconds.
const STRAGGLERS_LIMIT_MS: u64 = 50;

/// Independent masters that together grant locks. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Quorum {
    shared: Arc<Shared>,
    stop: CancellationToken,
    /// When the last clone is gone, the connections are not mended any more.
    _stop: Arc<DropGuard>,
}

/// What background tasks share with the handles.
pub(crate) struct Shared {
    pub(crate) nodes: Vec<Node>,
    pub(crate) majority: Majority,
    pub(crate) runtime: Handle,
    /// Releases and stragglers that go on behind the callers' backs.
    pub(crate) tasks: TaskTracker,
    pub(crate) slots: Slots,
    /// How long the last attempt on all nodes took, in microseconds.
    round_trip_us: AtomicU64,
    hints: Mutex<Hints>,
}

impl Quorum {
    /// Connects to the masters: `redis://` or `rediss://` (TLS), with user, password and database number as usual, or
    /// `redis+unix:///path`. Returns as soon as a majority is connected, and the others a moment later; or as it is known
    /// of each whether it can be reached, after a second at most.
    /// Nodes that cannot be reached are tried again for ever in the background: a lock needs a majority, not all.
    ///
    /// # Errors
    /// Only what no time can mend: see [`ConnectError`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        let mut nodes = Vec::new();
        let mut clients = Vec::new();
        for url in urls {
            let client = open(url.as_ref())?;
            nodes.push(Node::new(&name(&client), Link::unconnected(), Some(client.clone())));
            clients.push(client);
        }
        let quorum = Self::of(nodes)?;
        for (node, client) in quorum.shared.nodes.iter().cloned().zip(clients) {
            let stop = quorum.stop.clone();
            quorum.shared.runtime.spawn(async move { node.keep_connected(&client, stop).await });
        }
        quorum.settled().await;
        Ok(quorum)
    }

    /// Returns when all nodes are connected; or when a majority is, and the others had a moment to be; or when it is
    /// known of each whether it can be reached.
    async fn settled(&self) {
        let limit = Duration::from_millis(SETTLE_LIMIT_MS);
        let mut settling: FuturesUnordered<_> =
            self.shared.nodes.iter().map(|node| node.settled(limit)).collect();
        while settling.next().await.is_some() && self.connected().1 < self.shared.majority.size() {}
        let moment = Duration::from_millis(STRAGGLERS_LIMIT_MS);
        let _ = timeout(moment, async { while settling.next().await.is_some() {} }).await;
    }

    pub(crate) fn of(nodes: Vec<Node>) -> Result<Self, ConnectError> {
        let majority = Majority::of(nodes.len()).ok_or(ConnectError::NoNodes)?;
        let mut names = HashSet::new();
        for node in &nodes {
            if !names.insert(node.name()) {
                return Err(ConnectError::NamedTwice { node: node.name().to_owned() });
            }
        }
        if nodes.len().is_multiple_of(2) {
            tracing::warn!(
                nodes = nodes.len(),
                "an even number of nodes survives no more failures than one node less: use three or five"
            );
        }
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let shared = Shared {
            nodes,
            majority,
            runtime,
            tasks: TaskTracker::new(),
            slots: Slots::default(),
            round_trip_us: AtomicU64::new(ROUND_TRIP_US),
            hints: Mutex::new(Hints::default()),
        };
        let stop = CancellationToken::new();
        Ok(Self { shared: Arc::new(shared), stop: stop.clone(), _stop: Arc::new(stop.drop_guard()) })
    }

    /// Describes a lock on `key`, to be acquired. The key is any bytes; it is the name of the key on every node.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> LockBuilder {
        LockBuilder::new(Arc::clone(&self.shared), key.as_ref().to_vec())
    }

    /// How many nodes there are, and how many of them are connected now.
    pub fn connected(&self) -> (usize, usize) {
        let connected = self.shared.nodes.iter().filter(|node| node.connection().is_ok()).count();
        (self.shared.nodes.len(), connected)
    }

    /// Waits until the releases that go on in the background are done: each of them has a limit, which is the ttl of its
    /// lock. Afterwards this client has left nothing behind.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the releases.
    pub async fn close(self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Shared {
    /// The fence to propose next.
    pub(crate) fn propose_fence(&self) -> Fence {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner).propose(clock::wall_us())
    }

    /// Remembers a fence that a node answered.
    pub(crate) fn saw_fence(&self, fence: Fence) {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner).saw(fence);
    }

    /// The order of the nodes for a key, of which those that are not connected come last.
    pub(crate) fn order(&self, key: &[u8]) -> Vec<usize> {
        let identities: Vec<_> = self.nodes.iter().map(Node::identity).collect();
        let mut order = order(key, identities.iter().map(|identity| identity.as_bytes()));
        order.sort_by_key(|&node| self.nodes[node].connection().is_err());
        order
    }

    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.load(Ordering::Relaxed))
    }

    pub(crate) fn saw_round_trip(&self, took: Duration) {
        self.round_trip_us.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Runs something behind the callers' backs; [`Quorum::close`] waits for it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }
}

/// A client of this URL. Errors never show a password.
fn open(url: &str) -> Result<Client, ConnectError> {
    let bad = |reason: String| ConnectError::BadUrl { url: without_password(url), reason };
    let info = url.into_connection_info().map_err(|error| bad(error.to_string()))?;
    let settings = info.tcp_settings().clone().set_nodelay(true);
    Client::open(info.set_tcp_settings(settings)).map_err(|error| bad(error.to_string()))
}

/// The address of a node, for people.
fn name(client: &Client) -> String {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        other => other.to_string(),
    }
}

/// A URL without what may be a password: whatever is before an `@`, and whatever is after a `?`.
fn without_password(url: &str) -> String {
    let (address, query) = url.split_once('?').map_or((url, ""), |(address, _)| (address, "?…"));
    let scheme = address.find("://").map_or("", |end| &address[..end + 3]);
    match address.rfind('@') {
        Some(at) if at >= scheme.len() => format!("{scheme}…{}{query}", &address[at..]),
        _ => format!("{address}{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_url_that_may_be_a_password_is_shown() {
        for (url, shown) in [
            ("redis://host:1/2", "redis://host:1/2"),
            ("redis://user:secret@host", "redis://…@host"),
            ("redis://:secret@host?protocol=resp3", "redis://…@host?…"),
            ("redis+unix:///tmp/x?db=x&pass=secret", "redis+unix:///tmp/x?…"),
            (":secret@host:7001", "…@host:7001"),
            ("secret@", "…@"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
