use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use quorlock_core::client::{Answer, ClientState, Context, Keys, LinkHealth, Random, Topology};
use quorlock_core::quorum::{Majority, Moment};
use rand::RngExt as _;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::links::{LinkEvent, supervise};
use super::shards::{CloseShards, SHARDS, ShardDriver, Timekeeper};
use crate::transport::{Connection, Endpoint, WaitConnectionPool};
use crate::{NodeAnswer, NodeAnswers, clock};

/// The state that all handles and tasks of one client share, and that keeps its connections open.
pub(crate) struct Shared {
    pub(crate) nodes: Vec<NodeInfo>,
    pub(crate) client_state: Arc<ClientState>,
    pub(crate) runtime: Handle,
    /// The releases in the background, for which `flush` waits.
    pub(crate) tasks: TaskTracker,
    pub(super) shards: Vec<ShardDriver>,
    pub(super) timekeeper: Arc<Timekeeper>,
    hasher: RandomState,
    /// The time limit per node that the program set for all locks of the client.
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) view: Arc<ArcSwap<View>>,
    pub(crate) health: watch::Receiver<Health>,
    events: mpsc::UnboundedSender<LinkEvent>,
    /// Closes the connections when it is dropped.
    _close_connections: DropGuard,
}

pub(crate) struct NodeInfo {
    pub(crate) name: Arc<str>,
    pub(crate) endpoint: Endpoint,
    pub(crate) wait_connections: Arc<WaitConnectionPool>,
}

/// The nodes at one moment, with their connections.
pub(crate) struct View {
    pub(crate) topology: Topology,
    pub(crate) connections: Vec<Option<Arc<Connection>>>,
    /// Replaced connections, by node, and until when each is kept for its requests in flight.
    pub(crate) replaced: Vec<(usize, Arc<Connection>, Moment)>,
}

/// The state of the connections at one moment, for `connect` and `Quorum::health`.
#[derive(Clone, Default)]
pub(crate) struct Health {
    pub(crate) links: Vec<LinkHealth>,
    /// Whether every node has been reached or has failed once.
    pub(crate) settled: bool,
    /// The number of nodes that can vote.
    pub(crate) admitted: usize,
}

impl Shared {
    pub(crate) fn start(
        nodes: Vec<NodeInfo>,
        majority: Majority,
        expected_set: Option<String>,
        node_timeout: Option<Duration>,
        runtime: Handle,
    ) -> Arc<Self> {
        let stop = CancellationToken::new();
        let (events, received) = mpsc::unbounded_channel();
        let client_state = Arc::new(ClientState::new(majority));
        let supervised = supervise(&nodes, expected_set, &client_state, events.clone(), received);
        let (view, health, links) = supervised;
        let stopped = stop.clone();
        runtime.spawn(async move {
            tokio::select! {
                () = links => {}
                () = stopped.cancelled() => {}
            }
        });
        let timekeeper = Arc::<Timekeeper>::default();
        let shared = Arc::new(Self {
            nodes,
            client_state,
            runtime,
            tasks: TaskTracker::new(),
            shards: ShardDriver::all(),
            timekeeper: Arc::clone(&timekeeper),
            hasher: RandomState::new(),
            node_timeout,
            view,
            health,
            events,
            _close_connections: stop.clone().drop_guard(),
        });
        let guard = CloseShards(Arc::downgrade(&shared));
        let keeps_time = Self::keep_time(guard, timekeeper, stop);
        shared.runtime.spawn(keeps_time);
        shared
    }

    /// Calls a machine with the current time and nodes.
    pub(crate) fn with_context<T>(&self, call: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let view = self.view.load();
        call(&mut Context {
            now: clock::now(),
            wall_us: clock::wall_us(),
            client_state: &self.client_state,
            topology: &view.topology,
            random: &mut SystemRandom,
        })
    }

    /// The shard of these keys.
    pub(super) fn shard_of(&self, keys: &Keys) -> usize {
        let hash = self.hasher.hash_one(keys);
        usize::try_from(hash % SHARDS as u64).unwrap_or_default()
    }

    /// Whether a check for clients that give this semaphore more permits is due.
    pub(crate) fn begins_permit_check(self: &Arc<Self>, keys: &Keys) -> bool {
        self.with_shard(self.shard_of(keys), |state, ctx| {
            state.machines.begins_permit_check(keys, ctx.now)
        })
    }

    /// The connection with this number to a node, if it still exists.
    pub(crate) fn connection(&self, node: usize, number: u64) -> Option<Arc<Connection>> {
        let view = self.view.load();
        let current =
            view.connections[node].as_ref().filter(|connection| connection.number == number);
        current.cloned().or_else(|| {
            let mut replaced = view.replaced.iter().filter(|(of, _, _)| *of == node);
            let found = replaced.find(|(_, connection, _)| connection.number == number);
            found.map(|(_, connection, _)| Arc::clone(connection))
        })
    }

    /// Reports to the loop of the connections that a request was not answered in time.
    pub(crate) fn suspect(&self, node: usize, connection: u64) {
        let _ = self.events.send(LinkEvent::Suspicion { node, connection });
    }

    /// How many releases are not over.
    pub(crate) fn open_releases(self: &Arc<Self>) -> usize {
        (0..SHARDS).map(|index| self.lock(index).open_releases()).sum()
    }

    /// Whether the runtime of the client has ended, or ends now.
    pub(super) fn has_no_runtime(&self) -> bool {
        let probe = self.runtime.spawn(std::future::pending::<()>());
        let is_refused = probe.is_finished();
        probe.abort();
        is_refused
    }

    pub(crate) fn report(&self, answers: impl IntoIterator<Item = Answer>) -> NodeAnswers {
        let named = self.nodes.iter().zip(answers);
        let named = named.map(|(node, answer)| NodeAnswer { node: node.name.to_string(), answer });
        NodeAnswers(named.collect())
    }
}

/// Random numbers: from the operating system for tokens, and from a fast generator for pauses.
pub(super) struct SystemRandom;

impl Random for SystemRandom {
    fn bits(&mut self) -> Option<u128> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).ok()?;
        Some(u128::from_ne_bytes(bits))
    }

    fn below(&mut self, end: u64) -> u64 {
        rand::rng().random_range(0..end)
    }
}
