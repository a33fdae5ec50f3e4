use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use quorlock_core::NodeError;
use quorlock_core::client::{
    ClientState, ConnectionId, Hello, LinkAction, LinkHealth, Links, Notice, Topology, limits,
};
use quorlock_core::quorum::Moment;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::timers::sleep_until;
use crate::clock;
use crate::random::SystemRandom;
use crate::transport::{Connection, Endpoint, WaitConnectionPool, open};

pub(crate) struct NodeInfo {
    pub(crate) name: Arc<str>,
    pub(crate) endpoint: Endpoint,
    pub(crate) wait_connections: Arc<WaitConnectionPool>,
}

/// The nodes at one moment, with their connections.
pub(crate) struct View {
    pub(crate) topology: Topology,
    pub(crate) links: Vec<LinkHealth>,
    /// Whether every node has been reached or has failed once.
    pub(crate) settled: bool,
    /// The connections to each node that may carry requests.
    pub(crate) connections: Vec<Vec<OpenConnection>>,
}

#[derive(Clone)]
pub(crate) struct OpenConnection {
    pub(crate) connection: Arc<Connection>,
    /// Until when a replaced connection is kept for its requests in flight; `None` for the present
    /// one.
    until: Option<Moment>,
}

/// A new connection, or why there is none.
type Opened = Box<Result<(Connection, Hello), NodeError>>;

/// An event of a connection. `Suspicion`: the node has left a request unanswered.
pub(super) enum LinkEvent {
    Opened(ConnectionId, Opened),
    Closed(ConnectionId),
    Pong(ConnectionId),
    Suspicion(ConnectionId),
}

/// The driver of [`Links`], whose state it publishes.
pub(super) struct Supervisor {
    links: Links,
    client_state: Arc<ClientState>,
    nodes: Arc<[NodeInfo]>,
    connecting: HashMap<ConnectionId, AbortOnDropHandle<()>>,
    connections: Vec<Vec<OpenConnection>>,
    pings: JoinSet<()>,
    events: mpsc::UnboundedSender<LinkEvent>,
    pub(super) view: Arc<ArcSwap<View>>,
    pub(super) changed: watch::Sender<()>,
}

impl Supervisor {
    pub(super) fn new(
        nodes: &Arc<[NodeInfo]>,
        expected_set: Option<String>,
        client_state: &Arc<ClientState>,
        events: mpsc::UnboundedSender<LinkEvent>,
    ) -> Self {
        let names = nodes.iter().map(|node| Arc::clone(&node.name));
        let links = Links::new(names, expected_set, clock::now());
        let connections = vec![Vec::new(); nodes.len()];
        let view = View::of(&links, &connections);
        Self {
            links,
            client_state: Arc::clone(client_state),
            nodes: Arc::clone(nodes),
            connecting: HashMap::new(),
            connections,
            pings: JoinSet::new(),
            events,
            view: Arc::new(ArcSwap::from_pointee(view)),
            changed: watch::Sender::default(),
        }
    }

    pub(super) async fn run(mut self, mut received: mpsc::UnboundedReceiver<LinkEvent>) {
        loop {
            self.links.handle_timeout(clock::now(), &self.client_state, &mut SystemRandom);
            self.act();
            let next = self.next_due();
            tokio::select! {
                Some(event) = received.recv() => self.handle(event),
                Some(_) = self.pings.join_next() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    fn handle(&mut self, event: LinkEvent) {
        let now = clock::now();
        match event {
            LinkEvent::Opened(id, opened) => {
                self.connecting.remove(&id);
                match *opened {
                    Ok((connection, hello)) => {
                        if self.links.handle_connected(id, hello, now) {
                            let connection = Arc::new(connection);
                            let open = OpenConnection { connection, until: None };
                            self.connections[id.node].push(open);
                        }
                    }
                    Err(error) => self.links.handle_connect_failed(id, error, now),
                }
            }
            LinkEvent::Closed(id) => self.links.handle_closed(id, now),
            LinkEvent::Pong(id) => self.links.handle_pong(id, now),
            LinkEvent::Suspicion(id) => self.links.handle_suspicion(id, now, &self.client_state),
        }
    }

    fn act(&mut self) {
        let now = clock::now();
        let mut changed = false;
        for open in &mut self.connections {
            let before = open.len();
            open.retain(|open| open.until.is_none_or(|until| !now.has_reached(until)));
            changed |= open.len() < before;
        }
        while let Some(action) = self.links.poll() {
            match action {
                LinkAction::Connect(id) => self.connect(id),
                LinkAction::Close(id) => {
                    self.connecting.remove(&id);
                    let mut open = self.connections[id.node].iter_mut();
                    if let Some(open) = open.find(|open| open.connection.number == id.number) {
                        // Requests may be in flight, and others of their tokens follow them.
                        open.until = Some(now.plus(limits::RELEASE_OVERTAKES));
                        changed = true;
                    }
                }
                LinkAction::Ping(id) => self.ping(id),
                LinkAction::Changed => changed = true,
                LinkAction::Notice(notice) => self.log(&notice),
            }
        }
        if changed {
            self.view.store(Arc::new(View::of(&self.links, &self.connections)));
            self.changed.send_replace(());
        }
    }

    fn connect(&mut self, id: ConnectionId) {
        let (endpoint, events) = (self.nodes[id.node].endpoint.clone(), self.events.clone());
        let (close_events, client_state) = (events.clone(), Arc::clone(&self.client_state));
        let task = tokio::spawn(async move {
            let on_close = move || {
                let _ = close_events.send(LinkEvent::Closed(id));
            };
            let opened = open(&endpoint, id.number, on_close).await;
            let opened = opened.map(|(opened, hello, took)| {
                client_state.round_trips.sample(id.node, took);
                (opened, hello)
            });
            let _ = events.send(LinkEvent::Opened(id, Box::new(opened)));
        });
        self.connecting.insert(id, AbortOnDropHandle::new(task));
    }

    fn ping(&mut self, id: ConnectionId) {
        let mut open = self.connections[id.node].iter();
        let Some(open) = open.find(|open| open.connection.number == id.number) else { return };
        let connection = Arc::clone(&open.connection);
        let (events, client_state) = (self.events.clone(), Arc::clone(&self.client_state));
        self.pings.spawn(async move {
            let asked = Instant::now();
            if connection.ping().await {
                client_state.round_trips.sample(id.node, asked.elapsed());
                let _ = events.send(LinkEvent::Pong(id));
            }
        });
    }

    /// When the links have something to do, or a replaced connection is given up.
    fn next_due(&self) -> Option<Moment> {
        let replaced = self.connections.iter().flatten().filter_map(|open| open.until);
        replaced.chain(self.links.poll_timeout()).reduce(Moment::earlier)
    }

    fn log(&self, notice: &Notice) {
        // Not in the span of the call that happens to drive the runtime.
        match notice {
            Notice::Restarted { node } => tracing::warn!(
                parent: None,
                node = %self.nodes[*node].name,
                "the server was restarted: it may have forgotten locks"
            ),
            Notice::NoSet => tracing::warn!(
                parent: None,
                "most nodes report no set, so a client with a different list of nodes would not be \
                 noticed: set lock.set on every node"
            ),
            Notice::NotAdmitted { node, error } => {
                let node = &self.nodes[*node].name;
                tracing::warn!(parent: None, %node, %error, "the node does not vote");
            }
        }
    }
}

impl View {
    fn of(links: &Links, connections: &[Vec<OpenConnection>]) -> Self {
        Self {
            topology: links.topology(),
            links: links.health(),
            settled: links.has_tried_all(),
            connections: connections.to_vec(),
        }
    }
}
