//! The driver of a client process: connections, timers, and the facts for the checkers.

mod use_of_locks;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quorlock_core::Ttl;
use quorlock_core::client::{
    ClientState, Command, Context, Hello, Keys, LinkAction, Links, NodeError, Places, Random,
    Request, Response, Shard, Spec, Token, Topology, limits,
};
use quorlock_core::node_set::SetReport;
use quorlock_core::quorum::{Majority, Moment};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use self::use_of_locks::ReleaseTask;
pub(super) use self::use_of_locks::{HeldLock, Lock};
use super::caller::Caller;
use super::claims::MachineId;
use super::clock::{ClientClock, Ns};
use super::events::{Conn, Down, Event, Packet, Up};
use super::world::{Call, World};

/// Identifies the timer of the links.
const LINKS: u64 = 0;
/// Identifies the timer of a connection, after the connection's index is added.
const CONNECTIONS: u64 = 1 << 62;

pub(super) struct Process {
    pub(super) index: usize,
    pub(super) shared: Shared,
    links: Links,
    shard: Shard,
    /// The timers of the links, the state machines, and the connections.
    timers: BTreeMap<u64, Ns>,
    /// When the timer of a machine last fired, and how often it has fired again at that time.
    spins: BTreeMap<u64, (Ns, u32)>,
    connections: BTreeMap<Conn, Connection>,
    /// The idle wait connections, by node.
    idle_connections: Vec<Vec<Conn>>,
    /// The calls that have not ended, the locks, and the releases, by number.
    pub(super) unended: BTreeMap<u64, Call>,
    locks: BTreeMap<u64, HeldLock>,
    releases: BTreeMap<u64, ReleaseTask>,
    /// Responses to requests that could not be sent.
    local_responses: VecDeque<(u64, Response)>,
    /// Connections that a state machine suspects. The links learn of them once that machine has no
    /// other actions left.
    suspicions: VecDeque<(usize, u64)>,
    /// Not handled by callers yet.
    pub(super) results: VecDeque<CallerResult>,
    pub(super) callers: Vec<Caller>,
    /// Number of faults that pause the process now.
    pub(super) paused: u32,
    /// Events that wait for the end of the pause.
    pub(super) backlog: VecDeque<Event>,
    /// Whether the process goes on after a pause, and has not read its sockets yet.
    pub(super) reads_later: bool,
    /// When the last pause ended.
    pub(super) resumed_at: Ns,
    /// Whether the other state machines learn of a lost connection before the links do.
    tells_machines_first: bool,
}

/// The state of a process from which [`Shared::context`] makes the context of an event.
pub(super) struct Shared {
    pub(super) clock: ClientClock,
    pub(super) client_state: ClientState,
    pub(super) topology: Topology,
    random: SeededRandom,
}

struct SeededRandom(StdRng);

struct Connection {
    node: usize,
    kind: ConnectionKind,
    hello_sent_at: Option<Moment>,
    is_ready: bool,
    /// Whether to close the connection as soon as nothing is in flight on it.
    is_retired: bool,
    in_flight: VecDeque<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionKind {
    Shared(u64),
    /// A wait connection, and the WAIT that uses it, if any.
    Wait(Option<u64>),
}

/// What a response answers, and when that was sent.
#[derive(Clone, Copy)]
enum InFlight {
    Request(u64, Ns),
    Ping(Moment),
}

/// A result for which a caller waits.
pub(super) enum CallerResult {
    Acquired { caller: usize, lock: u64 },
    Failed { caller: usize },
    Extended { caller: usize, lock: u64 },
    Released { caller: usize },
}

impl Random for SeededRandom {
    fn bits(&mut self) -> Option<u128> {
        Some(self.0.random())
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }
}

impl Shared {
    pub(super) fn now(&self, now: Ns) -> Moment {
        self.clock.at(now)
    }

    pub(super) fn context(&mut self, now: Ns) -> Context<'_> {
        Context {
            now: self.clock.at(now),
            wall_us: self.clock.wall_us(now),
            client_state: &self.client_state,
            topology: &self.topology,
            random: &mut self.random,
        }
    }
}

impl Process {
    pub(super) fn new(index: usize, clock: ClientClock, seed: u64, world: &World) -> Self {
        let plan = &world.plan;
        let names = (0..plan.nodes).map(|node| Arc::from(format!("node {node}")));
        let links = Links::new(names, None, clock.at(world.now));
        let majority = Majority::of(plan.nodes).expect("a fleet has nodes");
        let mut rng = StdRng::seed_from_u64(seed);
        let tells_machines_first = rng.random();
        Self {
            index,
            shared: Shared {
                clock,
                client_state: ClientState {
                    places: Places::new(plan.wait_connections),
                    ..ClientState::new(majority)
                },
                topology: links.topology(),
                random: SeededRandom(rng),
            },
            links,
            shard: Shard::new(limits::LOCAL_QUEUES_MAX),
            timers: BTreeMap::new(),
            spins: BTreeMap::new(),
            connections: BTreeMap::new(),
            idle_connections: vec![Vec::new(); plan.nodes],
            unended: BTreeMap::new(),
            locks: BTreeMap::new(),
            releases: BTreeMap::new(),
            local_responses: VecDeque::new(),
            suspicions: VecDeque::new(),
            results: VecDeque::new(),
            callers: Vec::new(),
            paused: 0,
            backlog: VecDeque::new(),
            reads_later: false,
            resumed_at: 0,
            tells_machines_first,
        }
    }

    fn machine_id(&self, machine: u64) -> MachineId {
        MachineId { process: self.index, number: machine }
    }

    pub(super) fn links_time_out(&mut self, world: &mut World) {
        let now = self.shared.now(world.now);
        let Shared { client_state, random, .. } = &mut self.shared;
        self.links.handle_timeout(now, client_state, random);
        self.drive_links(world);
    }

    fn drive_links(&mut self, world: &mut World) {
        while let Some(action) = self.links.poll() {
            match action {
                LinkAction::Connect { node, connection } => {
                    self.connect(node, ConnectionKind::Shared(connection), world);
                }
                LinkAction::Close { node, connection } => {
                    if let Some(conn) = self.shared_connection(node, connection) {
                        self.retire(conn, world);
                    }
                }
                LinkAction::Ping { node, connection } => {
                    let request = Request { token: Token::of_bits(0), command: Command::Ping };
                    // A PING belongs to no lock.
                    let ttl = Ttl::from_ms(1000).expect("a second is a ttl");
                    let spec = Arc::new(Spec::exclusive(Keys::from_iter([""; 0]), ttl));
                    if let Some(conn) = self.shared_connection(node, connection) {
                        let sent = self.shared.now(world.now);
                        self.send_through(conn, InFlight::Ping(sent), request, spec, world);
                    }
                }
                LinkAction::Changed => self.shared.topology = self.links.topology(),
                LinkAction::Notice(notice) => trace!(world, "p{} notices {notice:?}", self.index),
            }
        }
        let timeout = self.links.poll_timeout();
        self.set_timer(LINKS, timeout, world);
    }

    fn connect(&mut self, node: usize, kind: ConnectionKind, world: &mut World) -> Conn {
        let conn = world.connect(self.index, node);
        let connection = Connection {
            node,
            kind,
            hello_sent_at: None,
            is_ready: false,
            is_retired: false,
            in_flight: VecDeque::new(),
        };
        self.connections.insert(conn, connection);
        conn
    }

    fn find(&self, is_it: impl Fn(&Connection) -> bool) -> Option<Conn> {
        self.connections.iter().find(|(_, connection)| is_it(connection)).map(|(&conn, _)| conn)
    }

    fn shared_connection(&self, node: usize, number: u64) -> Option<Conn> {
        let kind = ConnectionKind::Shared(number);
        self.find(|connection| (connection.node, connection.kind) == (node, kind))
    }

    /// Closes the connection as soon as nothing is in flight on it.
    fn retire(&mut self, conn: Conn, world: &mut World) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.is_retired = true;
        if !connection.is_ready || connection.in_flight.is_empty() {
            self.close(conn, world);
        }
    }

    fn close(&mut self, conn: Conn, world: &mut World) {
        if self.connections.remove(&conn).is_some() {
            world.close(conn);
        }
    }

    pub(super) fn receive(&mut self, conn: Conn, message: Down, world: &mut World) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        match message {
            Down::Connected => {
                connection.hello_sent_at = Some(self.shared.clock.at(world.now));
                world.send_up(conn, Up::Hello);
            }
            Down::Hello { run_id } => {
                connection.is_ready = true;
                let (node, sent_at) = (connection.node, connection.hello_sent_at);
                match connection.kind {
                    ConnectionKind::Shared(number) => {
                        let hello = Hello {
                            run_id: Some(run_id),
                            mode: Some("standalone".into()),
                            is_replica: false,
                            module_version: Some("0.1.0".into()),
                            set: SetReport::Unset,
                        };
                        let now = self.shared.now(world.now);
                        if let Some(sent_at) = sent_at {
                            self.shared.client_state.round_trips.sample(node, now.since(sent_at));
                        }
                        self.links.handle_connected(node, number, hello, now);
                        self.drive_links(world);
                    }
                    ConnectionKind::Wait(Some(number)) => {
                        self.timers.remove(&(CONNECTIONS + conn as u64));
                        self.wait_through(number, conn, world);
                        self.act(world);
                    }
                    ConnectionKind::Wait(None) => self.idle_connections[node].push(conn),
                }
            }
            Down::Refused => self.lose(conn, "connection refused", world),
            Down::Closed => self.lose(conn, "the connection was lost", world),
            Down::Response(response) => self.receive_response(conn, &response, world),
        }
        self.settle(world);
    }

    fn receive_response(&mut self, conn: Conn, response: &Response, world: &mut World) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let (node, kind) = (connection.node, connection.kind);
        let Some(answered) = connection.in_flight.pop_front() else { return };
        let is_over = connection.is_retired && connection.in_flight.is_empty();
        if let ConnectionKind::Wait(Some(_)) = kind {
            self.free(conn, world);
        }
        if is_over {
            self.close(conn, world);
        }
        match (answered, kind) {
            (InFlight::Request(number, sent), _) => self.deliver(number, sent, response, world),
            (InFlight::Ping(sent), ConnectionKind::Shared(connection)) => {
                let now = self.shared.now(world.now);
                self.shared.client_state.round_trips.sample(node, now.since(sent));
                self.links.handle_pong(node, connection, now);
                self.drive_links(world);
            }
            (InFlight::Ping(_), ConnectionKind::Wait(_)) => {}
        }
    }

    pub(super) fn lose(&mut self, conn: Conn, reason: &str, world: &mut World) {
        world.network.forget(conn);
        let Some(connection) = self.connections.remove(&conn) else { return };
        let Connection { node, kind, is_ready, in_flight, .. } = connection;
        trace!(world, "p{} loses a connection to n{node}: {reason}", self.index);
        let error = NodeError::Down { reason: reason.to_owned() };
        let requests = in_flight.into_iter().filter_map(|sent| match sent {
            InFlight::Request(number, _) => Some(number),
            InFlight::Ping(_) => None,
        });
        let mut failed: Vec<u64> = requests.collect();
        let response = Response::Failed(error.clone());
        match kind {
            ConnectionKind::Shared(number) => {
                if self.tells_machines_first {
                    for request in std::mem::take(&mut failed) {
                        self.deliver(request, world.now, &response, world);
                    }
                }
                let now = self.shared.now(world.now);
                if is_ready {
                    self.links.handle_closed(node, number, now);
                } else {
                    self.links.handle_connect_failed(node, number, error, now);
                }
                self.drive_links(world);
            }
            ConnectionKind::Wait(user) => {
                self.idle_connections[node].retain(|&idle| idle != conn);
                // The WAIT fails, sent or not.
                failed = user.into_iter().collect();
            }
        }
        for request in failed {
            self.deliver(request, world.now, &response, world);
        }
        self.settle(world);
    }

    fn set_timer(&mut self, timer: u64, at: Option<Moment>, world: &mut World) {
        let Some(at) = at.and_then(|at| self.shared.clock.when(at, world.now)) else {
            self.timers.remove(&timer);
            return;
        };
        if self.timers.insert(timer, at) != Some(at) {
            world.events.add(at, Event::Timer { process: self.index, timer });
        }
    }

    /// Handles a timer that fires, unless the timer was set to another time since.
    pub(super) fn time_out(&mut self, timer: u64, world: &mut World) {
        if self.timers.get(&timer).is_some_and(|&at| at <= world.now) {
            self.timers.remove(&timer);
            world.activity += 1;
            match timer {
                LINKS => self.links_time_out(world),
                CONNECTIONS.. => {
                    let conn = usize::try_from(timer - CONNECTIONS).expect("an index");
                    if self.connections.get(&conn).is_some_and(|connection| !connection.is_ready) {
                        world.close(conn);
                        self.lose(conn, "connecting took too long", world);
                    }
                }
                _ if self.spins(timer, world) => return,
                _ => {
                    self.shard.handle_timeout(timer, &mut self.shared.context(world.now));
                    self.act(world);
                }
            }
        }
        self.settle(world);
    }

    /// Whether the timer of a machine fires again and again at this moment.
    fn spins(&mut self, timer: u64, world: &mut World) -> bool {
        let (at, spins) = self.spins.entry(timer).or_default();
        *spins = if *at == world.now { *spins + 1 } else { 0 };
        *at = world.now;
        let is_spinning = *spins > 20;
        if is_spinning {
            let what = format!("{:?}", self.shard);
            world.violate(format!("the timer of p{}'s machine {timer} spins: {what}", self.index));
        }
        is_spinning
    }

    /// Sends a request that a machine has made through the connection with this number.
    fn send(
        &mut self,
        number: u64,
        (node, connection): (usize, u64),
        request: Request,
        spec: Arc<Spec>,
        world: &mut World,
    ) {
        if let Some(conn) = self.shared_connection(node, connection) {
            self.send_through(conn, InFlight::Request(number, world.now), request, spec, world);
        } else {
            let lost = Response::Failed(NodeError::connection_lost());
            self.local_responses.push_back((number, lost));
        }
    }

    fn send_through(
        &mut self,
        conn: Conn,
        in_flight: InFlight,
        request: Request,
        spec: Arc<Spec>,
        world: &mut World,
    ) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.in_flight.push_back(in_flight);
        world.send_up(conn, Up::Request(Box::new(Packet { request, spec })));
    }

    /// Gets a connection for a WAIT.
    fn start_wait(&mut self, number: u64, node: usize, world: &mut World) {
        if let Some(conn) = self.idle_connections[node].pop() {
            return self.wait_through(number, conn, world);
        }
        let conn = self.connect(node, ConnectionKind::Wait(Some(number)), world);
        let due = self.shared.now(world.now).plus(limits::HANDSHAKE);
        self.set_timer(CONNECTIONS + conn as u64, Some(due), world);
    }

    /// Sends a WAIT through its connection, if a machine still needs it.
    fn wait_through(&mut self, number: u64, conn: Conn, world: &mut World) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.kind = ConnectionKind::Wait(Some(number));
        }
        let machine = self.shard.asked(number).map(|(machine, _)| machine).unwrap_or_default();
        if let Some(call) = self.unended.get_mut(&machine) {
            call.has_asked = true;
        }
        let mut ctx = self.shared.context(world.now);
        match self.shard.handle_wait_connection(number, &mut ctx) {
            Some((request, spec)) => {
                let id = self.machine_id(machine);
                world.claims.assign(request.token, id);
                self.send_through(conn, InFlight::Request(number, world.now), request, spec, world);
            }
            None => self.free(conn, world),
        }
    }

    /// Frees the connection of a WAIT.
    fn stop_waiting(&mut self, number: u64, world: &mut World) {
        let kind = ConnectionKind::Wait(Some(number));
        if let Some(conn) = self.find(|connection| connection.kind == kind) {
            self.free(conn, world);
        }
    }

    fn free(&mut self, conn: Conn, world: &mut World) {
        match self.connections.get_mut(&conn) {
            Some(connection) if connection.is_ready && connection.in_flight.is_empty() => {
                connection.kind = ConnectionKind::Wait(None);
                self.idle_connections[connection.node].push(conn);
            }
            _ => self.close(conn, world),
        }
    }
}
