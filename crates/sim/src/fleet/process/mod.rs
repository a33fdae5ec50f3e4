//! The driver of a client process: a loop over `poll` for each kind of state machine.

mod calls;
mod locks;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use quorlock_core::client::{
    Acquire, ClientState, Command, Context, Entry, Hello, Hold, LinkAction, Links, Mode, NodeError,
    PlaceQueue, Random, Release, RenewalBatches, Request, RequestId, Response, SlotMemory, Spec,
    Token, Topology,
};
use quorlock_core::node_set::SetReport;
use quorlock_core::quorum::{Majority, Moment};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::caller::Caller;
use super::clock::{ClientClock, Ns};
use super::events::Event;
use super::network::{Conn, Down, Packet, Up};
use super::world::World;

/// Identifies the links among the state machines, by whose numbers timers and requests are known.
const LINKS: u64 = 0;
/// Identifies the timer that all renewals share.
const RENEWALS: u64 = 1;
/// Identifies the timer of a connection, after the connection's index is added.
const CONNECTIONS: u64 = 1 << 62;

/// Identifies a state machine among those of all processes. A lock keeps the number of its call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MachineId {
    pub(super) process: usize,
    pub(super) number: u64,
}

pub(super) struct Process {
    pub(super) index: usize,
    pub(super) shared: Shared,
    links: Links,
    /// The timers of the links, the renewals, and the connections.
    timers: BTreeMap<u64, Ns>,
    /// The shared connections, by node and number.
    by_number: BTreeMap<(usize, u64), Conn>,
    connections: BTreeMap<Conn, Connection>,
    /// The state machines, by number.
    pub(super) machines: Machines,
    next_machine: u64,
    /// By set of keys.
    local_queues: Vec<LocalQueue>,
    /// The places for calls of the process that stand in line.
    places_in_line: Turns,
    /// The idle wait connections, by node.
    idle_connections: Vec<Vec<Conn>>,
    /// The WAITs, by state machine and round.
    waits: BTreeMap<(u64, u32), Wait>,
    renewals: RenewalBatches,
    /// Responses that the driver makes itself because a request could not be sent.
    local_responses: VecDeque<(u64, RequestId, Response)>,
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

type Machines = BTreeMap<u64, MachineEntry>;

pub(super) struct MachineEntry {
    pub(super) machine: Machine,
    /// Number of responses that the machine will receive.
    in_flight: u32,
    timer: Option<Ns>,
    /// A time, and how often the timer has fired again at that time.
    spins: (Ns, u32),
}

pub(super) enum Machine {
    Call(Box<Call>),
    Lock(Box<Lock>),
    Release(Box<ReleaseTask>),
}

/// A call that has not ended.
pub(super) struct Call {
    pub(super) acquire: Acquire,
    pub(super) key_set: usize,
    pub(super) caller: usize,
    pub(super) started: Ns,
    /// When the call must have ended, unless it waits without a limit.
    pub(super) due: Option<Moment>,
    /// For each node: when the last request that it refused was sent.
    asked_at: Vec<Ns>,
    /// When the request of each round was sent.
    sent_rounds: BTreeMap<u32, Ns>,
    /// For each node: when the last request of any kind was sent to it.
    sent_at: Vec<Ns>,
    /// Whether the call has sent any request.
    pub(super) has_asked: bool,
    place: QueuePosition,
    /// The place among the calls that stand in line, or in the queue for one.
    place_in_line: QueuePosition,
    pub(super) renews: bool,
    /// The token of the detached lock, if the call attaches one.
    pub(super) attaches: Option<Token>,
}

/// The place of a call in its local queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePosition {
    /// The call does not queue.
    None,
    Queued(u64),
    Turn,
}

/// A lock that a call acquired. It may have ended since.
pub(super) struct Lock {
    pub(super) hold: Hold,
    /// The keys that the call requested, as an index of [`Plan::key_sets`](super::plan::Plan).
    pub(super) key_set: usize,
    /// The keys that the lock took of the set, as indexes of [`Plan::names`](super::plan::Plan).
    pub(super) keys: Vec<usize>,
    pub(super) was_attached: bool,
    pub(super) caller: usize,
    pub(super) call_started: Ns,
    /// When the process acquired the lock.
    pub(super) since: Ns,
    pub(super) renews: bool,
    /// The round of extensions for whose verdict the caller waits.
    awaited_round: Option<u32>,
    round_began: Ns,
}

/// A release, and the caller that waits for it, if any.
pub(super) struct ReleaseTask {
    release: Release,
    caller: Option<usize>,
    pub(super) started: Ns,
    due: Moment,
    /// The token to release; `None` until a RELEASE was sent.
    token: Option<Token>,
    /// Whether the release covers all nodes that may have the token, and repeats failed requests.
    is_thorough: bool,
}

/// A queue for places, whose callers are calls of the process.
struct Turns {
    places: PlaceQueue,
    /// The calls by their number in the queue.
    calls: BTreeMap<u64, u64>,
}

impl Turns {
    fn new(places: usize) -> Self {
        Self { places: PlaceQueue::new(places), calls: BTreeMap::new() }
    }

    /// Takes a place, or queues for one.
    fn enter(&mut self, call: u64, mode: Mode) -> QueuePosition {
        let entry = match mode {
            Mode::Exclusive => self.places.enter(),
            Mode::Shared => self.places.enter_to_share(),
        };
        match entry {
            Entry::Place => QueuePosition::Turn,
            Entry::Queued(number) => {
                self.calls.insert(number, call);
                QueuePosition::Queued(number)
            }
        }
    }

    /// Leaves the place or the queue. Returns the calls that have a place now.
    fn leave(&mut self, position: QueuePosition) -> Vec<u64> {
        let next = match position {
            QueuePosition::None => return Vec::new(),
            QueuePosition::Turn => self.places.leave(),
            QueuePosition::Queued(number) => {
                self.calls.remove(&number);
                self.places.give_up(number).unwrap_or_else(|| self.places.leave())
            }
        };
        next.iter().filter_map(|number| self.calls.remove(number)).collect()
    }
}

/// The queue of the calls of a process for one set of keys.
struct LocalQueue {
    turns: Turns,
    slots: SlotMemory,
}

/// The progress of a WAIT, with its node.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Connecting(usize, Conn),
    Sent(usize, Conn),
}

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
    Wait(Option<(u64, RequestId)>),
}

struct InFlight {
    machine: u64,
    id: RequestId,
    sent: Moment,
    is_wait: bool,
}

/// A result for which a caller waits.
pub(super) enum CallerResult {
    Acquired { caller: usize, lock: u64 },
    Failed { caller: usize },
    Extended { caller: usize, lock: u64 },
    Released { caller: usize },
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}/{}", self.process, self.number)
    }
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
        let now = clock.at(world.now);
        let links = Links::new(names, None, now);
        let majority = Majority::of(plan.nodes).expect("a fleet has nodes");
        let mut rng = StdRng::seed_from_u64(seed);
        let queue = |_| LocalQueue { turns: Turns::new(1), slots: SlotMemory::default() };
        let tells_machines_first = rng.random();
        Self {
            index,
            shared: Shared {
                clock,
                client_state: ClientState::new(majority),
                topology: links.topology(),
                random: SeededRandom(rng),
            },
            links,
            timers: BTreeMap::new(),
            by_number: BTreeMap::new(),
            connections: BTreeMap::new(),
            machines: BTreeMap::new(),
            next_machine: 2,
            local_queues: (0..plan.key_sets.len()).map(queue).collect(),
            places_in_line: Turns::new(plan.wait_connections),
            idle_connections: vec![Vec::new(); plan.nodes],
            waits: BTreeMap::new(),
            renewals: RenewalBatches::default(),
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

    #[cfg(test)]
    pub(super) fn telling_machines_first(self, tells_machines_first: bool) -> Self {
        Self { tells_machines_first, ..self }
    }

    pub(super) fn begin(&mut self, world: &mut World) {
        self.links_time_out(world);
    }

    fn machine_id(&self, machine: u64) -> MachineId {
        MachineId { process: self.index, number: machine }
    }

    fn links_time_out(&mut self, world: &mut World) {
        let now = self.shared.now(world.now);
        let Shared { client_state, random, .. } = &mut self.shared;
        self.links.handle_timeout(now, client_state, random);
        self.drive_links(world);
    }

    fn drive_links(&mut self, world: &mut World) {
        while let Some(action) = self.links.poll() {
            match action {
                LinkAction::Connect { node, connection } => {
                    let conn = self.connect(node, ConnectionKind::Shared(connection), world);
                    self.by_number.insert((node, connection), conn);
                }
                LinkAction::Close { node, connection } => {
                    if let Some(&conn) = self.by_number.get(&(node, connection)) {
                        self.retire(conn, world);
                    }
                }
                LinkAction::Ping { node, connection } => {
                    let request = Request { token: Token::of_bits(0), command: Command::Ping };
                    let id = RequestId { round: 0, node };
                    let spec = Arc::clone(&world.plan.ping);
                    self.send(LINKS, id, connection, request, &spec, world);
                }
                LinkAction::Changed => self.shared.topology = self.links.topology(),
                LinkAction::Notice(notice) => trace!(world, "p{} notices {notice:?}", self.index),
            }
        }
        let timeout = self.links.poll_timeout();
        self.set_timer(LINKS, timeout, world);
    }

    fn connect(&mut self, node: usize, kind: ConnectionKind, world: &mut World) -> Conn {
        let now = world.now;
        let conn = world.network.connect(self.index, node, now, &mut world.events);
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

    /// Closes the connection as soon as nothing is in flight on it.
    fn retire(&mut self, conn: Conn, world: &mut World) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.is_retired = true;
        if !connection.is_ready || connection.in_flight.is_empty() {
            self.close(conn, world);
        }
    }

    fn close(&mut self, conn: Conn, world: &mut World) {
        if let Some(connection) = self.connections.remove(&conn) {
            if let ConnectionKind::Shared(number) = connection.kind {
                self.by_number.remove(&(connection.node, number));
            }
            world.network.close(conn, world.now, &mut world.events);
        }
    }

    pub(super) fn receive(&mut self, conn: Conn, message: Down, world: &mut World) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let node = connection.node;
        match message {
            Down::Connected => {
                connection.hello_sent_at = Some(self.shared.clock.at(world.now));
                world.send_up(conn, Up::Hello);
            }
            Down::Hello { run_id } => {
                connection.is_ready = true;
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
                        if let Some(sent_at) = connection.hello_sent_at {
                            self.shared.client_state.round_trips.sample(node, now.since(sent_at));
                        }
                        self.links.handle_connected(node, number, hello, now);
                        self.drive_links(world);
                    }
                    ConnectionKind::Wait(Some((machine, id))) => {
                        self.timers.remove(&(CONNECTIONS + conn as u64));
                        self.wait_through(machine, id, conn, world);
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
        let node = connection.node;
        let Some(InFlight { machine, id, sent, is_wait }) = connection.in_flight.pop_front() else {
            return;
        };
        let kind = connection.kind;
        let is_over = connection.is_retired && connection.in_flight.is_empty();
        if is_wait {
            self.stop_waiting(machine, id.round, world);
        } else {
            let took = self.shared.now(world.now).since(sent);
            self.shared.client_state.round_trips.sample(node, took);
        }
        if is_over {
            self.close(conn, world);
        }
        if machine == LINKS {
            if let ConnectionKind::Shared(number) = kind {
                self.links.handle_pong(node, number, self.shared.now(world.now));
                self.drive_links(world);
            }
            return;
        }
        self.deliver(machine, id, response, world);
    }

    pub(super) fn lose(&mut self, conn: Conn, reason: &str, world: &mut World) {
        world.network.forget(conn);
        let Some(connection) = self.connections.remove(&conn) else { return };
        let Connection { node, kind, is_ready, in_flight, .. } = connection;
        trace!(world, "p{} loses a connection to n{node}: {reason}", self.index);
        let error = NodeError::Down { reason: reason.to_owned() };
        let mut failed: VecDeque<_> = (in_flight.into_iter())
            .filter(|request| request.machine != LINKS)
            .map(|request| (request.machine, request.id, Response::Failed(error.clone())))
            .collect();
        match kind {
            ConnectionKind::Shared(number) => {
                self.by_number.remove(&(node, number));
                if self.tells_machines_first {
                    self.deliver_local(&mut failed, world);
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
                if let Some((machine, id)) = user
                    && self.waits.remove(&(machine, id.round)).is_some()
                    && failed.is_empty()
                {
                    self.expect_response(machine);
                    failed.push_back((machine, id, Response::Failed(error)));
                }
            }
        }
        self.deliver_local(&mut failed, world);
        self.settle(world);
    }

    fn deliver_local(
        &mut self,
        responses: &mut VecDeque<(u64, RequestId, Response)>,
        world: &mut World,
    ) {
        while let Some((machine, id, response)) = responses.pop_front() {
            self.deliver(machine, id, &response, world);
        }
    }

    fn deliver(&mut self, machine: u64, id: RequestId, response: &Response, world: &mut World) {
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        entry.in_flight = entry.in_flight.saturating_sub(1);
        let (node, round) = (id.node, id.round);
        trace!(world, "p{}/{machine} hears n{node} in round {round}: {response:?}", self.index);
        let mut ctx = self.shared.context(world.now);
        match &mut entry.machine {
            Machine::Call(call) => {
                if let (Response::Held { .. } | Response::No, Some(at)) =
                    (response, call.sent_rounds.get(&round))
                {
                    call.asked_at[node] = *at;
                }
                call.acquire.handle_response(id, response, &mut ctx);
            }
            Machine::Lock(lock) => {
                if let Response::Failed(NodeError::Revoked { .. }) = response {
                    world.record_revoked_answer(lock.hold.token(), node);
                }
                lock.hold.handle_response(id, response, &ctx);
            }
            Machine::Release(task) => task.release.handle_response(id, response, &ctx),
        }
        self.drive(machine, world);
    }

    fn set_timer(&mut self, timer: u64, at: Option<Moment>, world: &mut World) {
        let at = at.and_then(|at| self.shared.clock.when(at, world.now));
        let previous = match self.machines.get_mut(&timer) {
            Some(entry) => std::mem::replace(&mut entry.timer, at),
            None => match at {
                Some(at) => self.timers.insert(timer, at),
                None => self.timers.remove(&timer),
            },
        };
        if let Some(at) = at
            && previous != Some(at)
        {
            world.events.add(at, Event::Timer { process: self.index, timer });
        }
    }

    /// Handles a timer that fires, unless the timer was set to another time since.
    pub(super) fn time_out(&mut self, timer: u64, world: &mut World) {
        let is_due = |at: Option<Ns>| at.is_some_and(|at| at <= world.now);
        if let Some(entry) = self.machines.get_mut(&timer) {
            if !is_due(entry.timer) {
                return;
            }
            entry.timer = None;
            world.activity += 1;
            entry.spins = match entry.spins {
                (at, spins) if at == world.now => (at, spins + 1),
                _ => (world.now, 0),
            };
            if entry.spins.1 > 20 {
                let what = entry.machine.describe();
                world.violate(format!("the timer of p{}'s {what} spins", self.index));
                return;
            }
            if let Machine::Call(call) = &entry.machine
                && matches!(call.place, QueuePosition::Queued(_))
                && !call.has_asked
            {
                // The call goes on without its turn.
                self.propose_slot(timer);
            }
            let Some(entry) = self.machines.get_mut(&timer) else { return };
            let mut ctx = self.shared.context(world.now);
            match &mut entry.machine {
                Machine::Call(call) => call.acquire.handle_timeout(&mut ctx),
                Machine::Lock(lock) => {
                    lock.hold.handle_timeout(&ctx);
                    lock.hold.stand_in_front(&ctx);
                }
                Machine::Release(task) => task.release.handle_timeout(&ctx),
            }
            self.drive(timer, world);
        } else if is_due(self.timers.get(&timer).copied()) {
            self.timers.remove(&timer);
            world.activity += 1;
            match timer {
                LINKS => self.links_time_out(world),
                RENEWALS => self.renew_due(world),
                _ => {
                    let conn = usize::try_from(timer - CONNECTIONS).expect("an index");
                    if self.connections.get(&conn).is_some_and(|connection| !connection.is_ready) {
                        world.network.close(conn, world.now, &mut world.events);
                        self.lose(conn, "connecting took too long", world);
                    }
                }
            }
        }
        self.settle(world);
    }

    fn add_machine(&mut self, machine: Machine) -> u64 {
        let number = self.next_machine;
        self.next_machine += 1;
        let entry = MachineEntry { machine, in_flight: 0, timer: None, spins: (0, 0) };
        self.machines.insert(number, entry);
        number
    }

    fn drive(&mut self, machine: u64, world: &mut World) {
        match self.machines.get(&machine).map(|entry| &entry.machine) {
            Some(Machine::Call(_)) => self.drive_call(machine, world),
            Some(Machine::Lock(_)) => self.drive_lock(machine, world),
            Some(Machine::Release(_)) => self.drive_release(machine, world),
            None => {}
        }
    }

    fn send(
        &mut self,
        machine: u64,
        id: RequestId,
        connection: u64,
        request: Request,
        spec: &Arc<Spec>,
        world: &mut World,
    ) {
        let Some(&conn) = self.by_number.get(&(id.node, connection)) else {
            let error = NodeError::connection_lost();
            self.expect_response(machine);
            self.local_responses.push_back((machine, id, Response::Failed(error)));
            return;
        };
        self.send_through(conn, machine, id, request, spec, world);
    }

    fn expect_response(&mut self, machine: u64) {
        if let Some(entry) = self.machines.get_mut(&machine) {
            entry.in_flight += 1;
        }
    }

    fn send_through(
        &mut self,
        conn: Conn,
        machine: u64,
        id: RequestId,
        request: Request,
        spec: &Arc<Spec>,
        world: &mut World,
    ) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let sent = self.shared.clock.at(world.now);
        let is_wait = matches!(request.command, Command::Wait { .. });
        connection.in_flight.push_back(InFlight { machine, id, sent, is_wait });
        self.expect_response(machine);
        let packet = Packet { request, spec: Arc::clone(spec) };
        world.send_up(conn, Up::Request(Box::new(packet)));
    }

    /// Returns the calls that have not ended and have sent a request.
    pub(super) fn calls(&self) -> impl Iterator<Item = (MachineId, &Call)> {
        self.machines.iter().filter_map(move |(&number, entry)| match &entry.machine {
            Machine::Call(call) if call.has_asked => Some((self.machine_id(number), &**call)),
            _ => None,
        })
    }

    pub(super) fn unended_call(&self, machine: u64) -> Option<&Call> {
        match &self.machines.get(&machine)?.machine {
            Machine::Call(call) => Some(call),
            Machine::Lock(_) | Machine::Release(_) => None,
        }
    }

    /// Returns the set of keys of a lock or a call.
    pub(super) fn key_set_of(&self, machine: u64) -> usize {
        match self.machines.get(&machine).map(|entry| &entry.machine) {
            Some(Machine::Lock(lock)) => lock.key_set,
            Some(Machine::Call(call)) => call.key_set,
            _ => 0,
        }
    }
}

fn call_mut(machines: &mut Machines, machine: u64) -> Option<&mut Call> {
    match &mut machines.get_mut(&machine)?.machine {
        Machine::Call(call) => Some(call),
        Machine::Lock(_) | Machine::Release(_) => None,
    }
}

fn lock_mut(machines: &mut Machines, machine: u64) -> Option<&mut Lock> {
    match &mut machines.get_mut(&machine)?.machine {
        Machine::Lock(lock) => Some(lock),
        Machine::Call(_) | Machine::Release(_) => None,
    }
}

impl Machine {
    fn describe(&self) -> String {
        match self {
            Self::Call(call) => format!("{:?}", call.acquire),
            Self::Lock(lock) => format!("{:?}", lock.hold),
            Self::Release(task) => format!("{:?}", task.release),
        }
    }
}
