use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ::redis::Client;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quorlock_core::Fence;
use quorlock_core::quorum::{Hints, Majority, order, round_trip_after};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::connect::address;
use crate::keeper::Keeper;
use crate::keys::Keys;
use crate::leftovers::Leftovers;
use crate::node::{Link, Node};
use crate::slots::Slots;
use crate::widen::Widening;
use crate::{ConnectError, Handover, Lock, LockBuilder, NodeError, QuorumBuilder, ResumeError, clock};

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
    /// How long one node may take to answer, if the caller says so.
    pub(crate) node_limit: Option<Duration>,
    pub(crate) runtime: Handle,
    /// Releases that go on behind the callers' backs.
    pub(crate) tasks: TaskTracker,
    pub(crate) slots: Slots<Keys>,
    pub(crate) keeper: Keeper,
    pub(crate) leftovers: Leftovers,
    pub(crate) widening: Widening,
    /// How long a round trip takes, in microseconds, or 0 before the first.
    round_trip_us: AtomicU64,
    hints: Mutex<Hints>,
}

impl Quorum {
    /// Connects to the masters, of which three or five are named by their URLs:
    ///
    /// - `redis://user:password@host:6379/0`, with user, password, port and database number as far as they are needed;
    /// - `rediss://…`, the same through TLS;
    /// - `redis+unix:///path?db=0&user=…&pass=…`.
    ///
    /// Returns as soon as a majority is connected, and the others a moment later; or as it is known of each whether it
    /// can be reached, after a second at most. Nodes that cannot be reached are tried again for ever in the background: a
    /// lock needs a majority, not all. [`Quorum::builder`] has more to say about the connections.
    ///
    /// # Errors
    /// Only what no time can mend: see [`ConnectError`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections.
    pub async fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, ConnectError> {
        Self::builder().nodes(urls).connect().await
    }

    /// A quorum to be connected, with certificates and limits of one's own.
    pub fn builder() -> QuorumBuilder {
        QuorumBuilder::new()
    }

    /// Keeps connections to these nodes from now on.
    pub(crate) async fn connected_to(
        clients: Vec<Client>,
        node_limit: Option<Duration>,
    ) -> Result<Self, ConnectError> {
        let roll = Arc::default();
        let nodes = clients.iter().map(|client| {
            let name = address(client);
            Node::new(&name, Link::unconnected(&name, &roll), Some(client.clone()))
        });
        let quorum = Self::of(nodes.collect(), node_limit)?;
        for (node, client) in quorum.shared.nodes.iter().cloned().zip(clients) {
            let stop = quorum.stop.clone();
            quorum.shared.runtime.spawn(async move { node.keep_connected(&client, stop).await });
        }
        quorum.settled().await;
        quorum.refuse_one_server_twice()?;
        Ok(quorum)
    }

    /// A server must not have two votes. One that turns out only later to be named twice has none the second time.
    fn refuse_one_server_twice(&self) -> Result<(), ConnectError> {
        for node in &self.shared.nodes {
            if let Err(NodeError::SameServer { node: other }) = node.connection() {
                return Err(ConnectError::SameServer { nodes: [other, node.name().to_owned()] });
            }
        }
        Ok(())
    }

    /// A quorum of nodes that are connected already.
    pub(crate) fn of_ready(nodes: Vec<Node>) -> Result<Self, ConnectError> {
        let quorum = Self::of(nodes, None)?;
        for node in &quorum.shared.nodes {
            let (node, stop) = (node.clone(), quorum.stop.clone());
            quorum.shared.runtime.spawn(async move { node.watch_ready(stop).await });
        }
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

    pub(crate) fn of(nodes: Vec<Node>, node_limit: Option<Duration>) -> Result<Self, ConnectError> {
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
        let shared = Arc::new_cyclic(|shared| Shared {
            keeper: Keeper::start(&runtime, Weak::clone(shared)),
            leftovers: Leftovers::start(&runtime),
            widening: Widening::default(),
            nodes,
            node_limit,
            majority,
            runtime,
            tasks: TaskTracker::new(),
            slots: Slots::default(),
            round_trip_us: AtomicU64::new(0),
            hints: Mutex::new(Hints::default()),
        });
        let stop = CancellationToken::new();
        Ok(Self { shared, stop: stop.clone(), _stop: Arc::new(stop.drop_guard()) })
    }

    /// Describes a lock on `key`, to be acquired. The key is any bytes; it is the name of the key on every node.
    pub fn lock(&self, key: impl AsRef<[u8]>) -> LockBuilder {
        self.lock_all([key])
    }

    /// Describes one lock on several keys, at most 64: all of them or none, with one fence, and whatever ends it on one key
    /// ends it on all. In whatever order the keys are named, and by however many callers: none of them waits for another while
    /// it holds a key, so they never wait for each other.
    ///
    /// It excludes, and is excluded by, locks on each of its keys. Its fence is larger than that of every earlier holder of any
    /// of them.
    ///
    /// ```no_run
    /// # async fn example(quorum: quorlock_client::Quorum) -> Result<(), Box<dyn std::error::Error>> {
    /// let transfer = quorum.lock_all(["account/17", "account/4"]).acquire().await?;
    /// println!("fence {} for both", transfer.fence());
    /// transfer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_all<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> LockBuilder {
        LockBuilder::new(Arc::clone(&self.shared), keys.into_iter().collect())
    }

    /// Makes a lock that another process [handed over](crate::Lock::hand_over) this one's, for the ttl that it had there. For
    /// other limits, see [`LockBuilder::resume`].
    ///
    /// # Errors
    /// See [`ResumeError`]. A handover that was not resumed is used up: nodes that had answered have released the lock.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background, wherever it is this one's already.
    pub async fn resume(&self, handover: Handover) -> Result<Lock, ResumeError> {
        self.lock_all(handover.keys()).ttl(handover.ttl()).resume(handover).await
    }

    /// How many nodes there are, and how many of them are connected now.
    pub fn connected(&self) -> (usize, usize) {
        let connected = self.shared.nodes.iter().filter(|node| node.is_connected()).count();
        (self.shared.nodes.len(), connected)
    }

    /// Waits until the releases that go on in the background are done: each of them has a limit, which is the ttl of its
    /// lock. Afterwards this client has left nothing behind.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the releases.
    pub async fn close(self) {
        self.shared.leftovers.close();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.shared.nodes.iter().map(Node::name).collect();
        f.debug_struct("Quorum")
            .field("nodes", &nodes)
            .field("connected", &self.connected().1)
            .finish_non_exhaustive()
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

    /// The order of the nodes for a key, of which those that are not connected come last.
    pub(crate) fn order(&self, key: &[u8]) -> Vec<usize> {
        let identities: Vec<_> = self.nodes.iter().map(Node::identity).collect();
        let mut order = order(key, identities.iter().map(|identity| identity.as_bytes()));
        order.sort_by_key(|&node| !self.nodes[node].is_connected());
        order
    }

    /// Those that decide for who does not wait: the queue node of each key, where others may wait for that key alone.
    pub(crate) fn queue_nodes(&self, keys: &Keys) -> Vec<usize> {
        keys.iter().filter_map(|key| self.order(key).first().copied()).collect()
    }

    pub(crate) fn round_trip(&self) -> Duration {
        let us = self.round_trip_us.load(Ordering::Relaxed);
        Duration::from_micros(if us == 0 { ROUND_TRIP_US } else { us })
    }

    pub(crate) fn saw_round_trip(&self, took: Duration) {
        let before = Some(self.round_trip_us.load(Ordering::Relaxed)).filter(|us| *us > 0);
        let round_trip = round_trip_after(before.map(Duration::from_micros), took);
        self.round_trip_us
            .store(u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// Whether this client has made all of its connections: none was handed in.
    pub(crate) fn has_own_connections(&self) -> bool {
        self.nodes.iter().all(Node::lets_wait)
    }

    /// Runs something behind the callers' backs; [`Quorum::close`] waits for it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }
}
