use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use quorlock_core::client::{
    Answer, ClientState, Context, LinkHealth, NodeError, Random, RequestId, Response, Topology,
};
use quorlock_core::quorum::Majority;
use rand::RngExt as _;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::links::{LinkEvent, supervise};
use super::local_queues::LocalQueues;
use super::places_in_line::PlacesInLine;
use super::releases::Releases;
use super::renewer::Renewer;
use crate::transport::{Answered, Connection, Endpoint, InFlight, Outgoing, WaitConnectionPool};
use crate::{NodeAnswer, NodeAnswers, clock};

/// The state that all handles and tasks of one client share, and that keeps its connections open.
pub(crate) struct Shared {
    pub(crate) nodes: Vec<NodeInfo>,
    pub(crate) client_state: Arc<ClientState>,
    pub(crate) runtime: Handle,
    /// The releases in the background, for which `flush` waits.
    pub(crate) tasks: TaskTracker,
    pub(crate) queues: Arc<LocalQueues>,
    pub(super) places_in_line: Arc<PlacesInLine>,
    pub(crate) renewer: Renewer,
    pub(crate) releases: Releases,
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
    /// Replaced connections, by node. Each is kept alive only by its requests in flight.
    pub(crate) replaced: Vec<(usize, Weak<Connection>)>,
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
        Arc::new_cyclic(|this| Self {
            renewer: Renewer::start(&runtime, Weak::clone(this)),
            releases: Releases::start(&runtime),
            nodes,
            client_state,
            runtime,
            tasks: TaskTracker::new(),
            queues: Arc::default(),
            places_in_line: Arc::default(),
            node_timeout,
            view,
            health,
            events,
            _close_connections: stop.drop_guard(),
        })
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

    /// The connection with this number to a node, if it still exists.
    pub(crate) fn connection(&self, node: usize, number: u64) -> Option<Arc<Connection>> {
        let view = self.view.load();
        let current =
            view.connections[node].as_ref().filter(|connection| connection.number == number);
        current.cloned().or_else(|| {
            let of_node = view.replaced.iter().filter(|(of, _)| *of == node);
            let mut alive = of_node.filter_map(|(_, connection)| connection.upgrade());
            alive.find(|connection| connection.number == number)
        })
    }

    /// Reports to the loop of the connections that a request was not answered in time.
    pub(crate) fn suspect(&self, node: usize, connection: u64) {
        let _ = self.events.send(LinkEvent::Suspicion { node, connection });
    }

    /// Sends a request through the connection with this number. If that is gone, the request fails.
    pub(super) fn ask(
        &self,
        in_flight: &mut InFlight,
        id: RequestId,
        connection: u64,
        outgoing: Outgoing,
    ) {
        match self.connection(id.node, connection) {
            Some(connection) => in_flight.ask(id, connection, outgoing),
            None => in_flight.fail(id, NodeError::connection_lost()),
        }
    }

    /// Records the round trip of a response, whether it was in time or late.
    pub(super) fn sample(&self, answered: &Answered) {
        if !matches!(answered.response, Response::Failed(NodeError::Down { .. })) {
            self.client_state.round_trips.sample(answered.id.node, answered.took);
        }
    }

    /// Runs a release in the background. [`Quorum::flush`](crate::Quorum::flush) waits for it.
    pub(crate) fn spawn_release(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
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
