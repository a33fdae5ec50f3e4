use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::{Client, ConnectionAddr, IntoConnectionInfo};
use futures_util::future::join_all;
use quorlock_core::Fence;
use quorlock_core::quorum::{Hints, Majority};
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::node::{Link, Node};
use crate::{ConnectError, LockBuilder, clock};

/// How long [`Quorum::connect`] waits for nodes that do not answer, in milliseconds.
const SETTLE_LIMIT_MS: u64 = 1000;

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
    hints: Mutex<Hints>,
}

impl Quorum {
    /// Connects to the masters: `redis://` or `rediss://` (TLS), with user, password and database number as usual, or
    /// `redis+unix:///path`. Returns as soon as it is known of each whether it can be reached, after a second at most.
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
            nodes.push(Node::new(&name(&client), Link::unconnected()));
            clients.push(client);
        }
        let quorum = Self::of(nodes)?;
        for (node, client) in quorum.shared.nodes.iter().cloned().zip(clients) {
            let stop = quorum.stop.clone();
            quorum.shared.runtime.spawn(async move { node.keep_connected(&client, stop).await });
        }
        let limit = Duration::from_millis(SETTLE_LIMIT_MS);
        join_all(quorum.shared.nodes.iter().map(|node| node.settled(limit))).await;
        Ok(quorum)
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

    /// Remembers what a majority made of a proposal.
    pub(crate) fn agreed_on_fence(&self, proposed: Fence, agreed: Fence) {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner).learn(proposed, agreed);
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

fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://…{}", &url[..scheme], &url[at..]),
        _ => url.to_owned(),
    }
}
