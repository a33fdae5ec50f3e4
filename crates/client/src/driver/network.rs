use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use quorlock_core::client::{ClientState, ConnectionId, Context, limits};
use quorlock_core::quorum::Majority;
use quorlock_core::{Answer, NodeError, Ttl};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::links::{LinkEvent, NodeInfo, Supervisor, View};
use crate::random::SystemRandom;
use crate::transport::Connection;
use crate::{NodeAnswer, NodeAnswers, clock};

/// Requests that are not about a lock of this client have the time limits of a lock with this ttl.
const LIMITS_TTL: Ttl = Ttl::DEFAULT;

/// The nodes of a client and its connections, which stay open while this exists.
pub(crate) struct Network {
    pub(crate) nodes: Arc<[NodeInfo]>,
    pub(crate) client_state: Arc<ClientState>,
    pub(crate) runtime: Handle,
    /// The time limit per node that the program set for all locks of the client.
    node_timeout: Option<Duration>,
    pub(crate) view: Arc<ArcSwap<View>>,
    /// Tells of each new view.
    pub(crate) changed: watch::Receiver<()>,
    events: mpsc::UnboundedSender<LinkEvent>,
    _supervisor: AbortOnDropHandle<()>,
}

impl Network {
    pub(crate) fn start(
        nodes: Arc<[NodeInfo]>,
        majority: Majority,
        expected_set: Option<String>,
        node_timeout: Option<Duration>,
        runtime: Handle,
    ) -> Arc<Self> {
        let (events, received) = mpsc::unbounded_channel();
        let client_state = Arc::new(ClientState::new(majority));
        let supervisor = Supervisor::new(&nodes, expected_set, &client_state, events.clone());
        let (view, changed) = (Arc::clone(&supervisor.view), supervisor.changed.subscribe());
        let supervisor = runtime.spawn(supervisor.run(received));
        Arc::new(Self {
            nodes,
            client_state,
            runtime,
            node_timeout,
            view,
            changed,
            events,
            _supervisor: AbortOnDropHandle::new(supervisor),
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
        let mut open = view.connections[node].iter();
        let found = open.find(|open| open.connection.number == number);
        found.map(|open| Arc::clone(&open.connection))
    }

    /// Reports to the loop of the connections that a request was not answered in time.
    pub(crate) fn suspect(&self, connection: ConnectionId) {
        let _ = self.events.send(LinkEvent::Suspicion(connection));
    }

    /// The addresses, in the order in which the nodes were named.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().map(|node| node.name.to_string())
    }

    /// The time limit that the program set for a request about a lock with this ttl.
    pub(crate) fn node_timeout(&self, ttl: Ttl) -> Option<Duration> {
        self.node_timeout.map(|limit| limits::bounded_node_timeout(limit, ttl))
    }

    /// The time limit of a typical node, also for answers that decide nothing.
    pub(crate) fn typical_timeout(&self) -> Duration {
        limits::node_timeout(self.client_state.round_trips.typical(), LIMITS_TTL)
    }

    /// Asks a node within its time limit, or within `at_least` if that is longer.
    pub(crate) async fn ask_in_time<T>(
        &self,
        (node, number): (usize, u64),
        at_least: Duration,
        ask: impl AsyncFnOnce(&Connection) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let Some(connection) = self.connection(node, number) else {
            return Err(NodeError::connection_lost());
        };
        let derived = || limits::node_timeout(self.client_state.round_trips.of(node), LIMITS_TTL);
        let limit = self.node_timeout(LIMITS_TTL).unwrap_or_else(derived).max(at_least);
        let asked = Instant::now();
        let mut asking = pin!(ask(&connection));
        let mut answer = timeout(limit, &mut asking).await;
        if answer.is_err() && asked.elapsed() > limit + limits::LATE_TIMER {
            // The process did not run, so the answer may be in the socket.
            answer = timeout(limits::LATE_TIMER, asking).await;
        }
        let Ok(answer) = answer else {
            self.client_state.round_trips.timed_out(node);
            self.suspect(ConnectionId { node, number });
            return Err(NodeError::timed_out(limit));
        };
        if !matches!(answer, Err(NodeError::Down { .. })) {
            self.client_state.round_trips.sample(node, asked.elapsed());
        }
        answer
    }

    /// Whether the runtime of the client has ended, or ends now.
    pub(crate) fn has_no_runtime(&self) -> bool {
        let probe = self.runtime.spawn(std::future::pending::<()>());
        let is_refused = probe.is_finished();
        probe.abort();
        is_refused
    }

    pub(crate) fn report(&self, answers: impl IntoIterator<Item = Answer>) -> NodeAnswers {
        let named = self.names().zip(answers);
        NodeAnswers(named.map(|(node, answer)| NodeAnswer { node, answer }).collect())
    }
}
