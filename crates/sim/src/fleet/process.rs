//! The driver of a client process: one loop over `poll` and `handle`, as in the client crate.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, Answer, Called, ClientState, Command, Context, Entry, Hello, Hold, HoldAction,
    LinkAction, Links, Mode, NodeError, Outcome, PlaceQueue, Random, Release, RenewalBatches,
    Request, RequestId, Response, SetReport, SlotMemory, Spec, Token, Topology, limits,
};
use quorlock_core::quorum::{Majority, Moment, Ownership, ReleaseVerdict};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::Mutant;
use super::caller::Caller;
use super::clock::{ClientClock, Ns};
use super::events::Event;
use super::network::{Conn, Down, Packet, Up};
use super::plan::Kind as LockKind;
use super::world::{Note, World};

/// The number of the links. Like a state machine, they have a timer and send requests.
const LINKS: u64 = 0;
/// The number of the timer of all renewals.
const RENEWALS: u64 = 1;
/// The timer of a connection has this number plus the index of the connection.
const CONNECTIONS: u64 = 1 << 62;

/// A client process.
pub(super) struct Process {
    pub(super) index: usize,
    pub(super) shared: Shared,
    links: Links,
    /// The timers of the links, the renewals, and the connections.
    timers: BTreeMap<u64, Ns>,
    /// The shared connections, by node and number.
    by_number: BTreeMap<(usize, u64), Conn>,
    connections: BTreeMap<Conn, Connection>,
    pub(super) machines: BTreeMap<u64, MachineEntry>,
    next_machine: u64,
    /// The queue of calls for each set of keys.
    local_queues: Vec<LocalQueue>,
    /// The seats on each node.
    seats: Vec<Seats>,
    /// The WAITs, by state machine and round.
    waits: BTreeMap<(u64, u32), Wait>,
    renewals: RenewalBatches,
    /// Responses that the driver makes itself, because a request could not be sent.
    local: VecDeque<(u64, RequestId, Response)>,
    /// Connections that a state machine suspects. The links learn of them after the other actions
    /// of that machine.
    suspicions: VecDeque<(usize, u64)>,
    /// Results that callers have not handled yet.
    pub(super) ended: VecDeque<Ended>,
    pub(super) callers: Vec<Caller>,
    /// Number of faults that pause the process now.
    pub(super) paused: u32,
    /// Events that wait for the end of the pause.
    pub(super) backlog: VecDeque<Event>,
    /// When the last pause ended.
    pub(super) resumed_at: Ns,
    /// Whether the machines of calls hear of a lost connection before the links do.
    tells_machines_first: bool,
    /// Processes with this index or a larger one do not remember that a key was contended.
    newcomers_from: usize,
}

/// The context that each state machine receives with each event.
pub(super) struct Shared {
    pub(super) clock: ClientClock,
    pub(super) client_state: ClientState,
    pub(super) topology: Topology,
    random: SeededRandom,
}

struct SeededRandom(StdRng);

/// A state machine, and what its driver knows about it.
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
    Release(Box<Task>),
}

/// A call that has not ended.
pub(super) struct Call {
    pub(super) acquire: Acquire,
    pub(super) key_set: usize,
    pub(super) caller: usize,
    pub(super) started: Ns,
    /// When the call must have ended, unless it waits without a limit.
    pub(super) due: Option<Moment>,
    /// When the first request of the last round was sent.
    round_sent_at: Ns,
    last_round: u32,
    /// For each node: when the last round that asked it began.
    asked_at: Vec<Ns>,
    /// Whether the call has sent any request.
    pub(super) has_asked: bool,
    place: Place,
    /// Whether the lock was known as contended when the turn of the call came.
    was_contended: bool,
    pub(super) renews: bool,
    /// The token of the detached lock, if the call attaches one.
    pub(super) attaches: Option<Token>,
}

/// The place of a call in its local queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The call takes no turn.
    None,
    Queued(u64),
    First,
}

/// A lock that a call acquired. It may have ended since.
pub(super) struct Lock {
    pub(super) hold: Hold,
    /// The set of keys of the call.
    pub(super) key_set: usize,
    /// The indexes of the keys of the lock.
    pub(super) members: Vec<usize>,
    pub(super) was_attached: bool,
    pub(super) caller: usize,
    pub(super) call_started: Ns,
    /// When the process acquired it.
    pub(super) since: Ns,
    pub(super) renews: bool,
    /// Whether the caller waits for the end of a round of extensions.
    extends: bool,
    round_began: Ns,
}

/// A release, and the caller that waits for it, if any.
pub(super) struct Task {
    release: Release,
    /// The WAIT that the release took over from a call, while it is unanswered.
    wait: Option<RequestId>,
    caller: Option<usize>,
    pub(super) started: Ns,
    due: Moment,
    token: Option<Token>,
    /// Whether the release covers all nodes that may have the token, and repeats failed requests.
    is_thorough: bool,
}

/// The queue of the calls of a process for one set of keys.
struct LocalQueue {
    places: PlaceQueue,
    /// The call of each number in the queue.
    calls: BTreeMap<u64, u64>,
    is_contended: bool,
    slots: SlotMemory,
}

/// The seats of a process on one node.
struct Seats {
    places: PlaceQueue,
    /// The WAIT of each number in the queue for a seat.
    waiting: BTreeMap<u64, (u64, RequestId)>,
    idle: Vec<Conn>,
}

/// The progress of a WAIT on a node.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Queued(usize, u64),
    Connecting(usize, Conn),
    Sent(usize, Conn),
}

struct Connection {
    node: usize,
    kind: Kind,
    /// When HELLO was sent.
    asked_at: Option<Moment>,
    is_ready: bool,
    /// Whether to close the connection as soon as nothing is in flight on it.
    is_retired: bool,
    in_flight: VecDeque<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shared(u64),
    /// A seat, and the WAIT that uses it, if any.
    Waiting(Option<(u64, RequestId)>),
}

struct InFlight {
    machine: u64,
    id: RequestId,
    sent: Moment,
    is_wait: bool,
}

/// A result for which a caller waited.
pub(super) enum Ended {
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
        let now = clock.at(world.now);
        let links = Links::new(names, None, now);
        let majority = Majority::of(plan.nodes).expect("a fleet has nodes");
        let mut rng = StdRng::seed_from_u64(seed);
        let queue = |_| LocalQueue {
            places: PlaceQueue::new(1),
            calls: BTreeMap::new(),
            is_contended: false,
            slots: SlotMemory::default(),
        };
        let seats = |_| Seats {
            places: PlaceQueue::new(plan.seats),
            waiting: BTreeMap::new(),
            idle: Vec::new(),
        };
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
            seats: (0..plan.nodes).map(seats).collect(),
            waits: BTreeMap::new(),
            renewals: RenewalBatches::default(),
            local: VecDeque::new(),
            suspicions: VecDeque::new(),
            ended: VecDeque::new(),
            callers: Vec::new(),
            paused: 0,
            backlog: VecDeque::new(),
            resumed_at: 0,
            tells_machines_first,
            newcomers_from: plan.processes - plan.newcomers,
        }
    }

    /// Sets whether the machines of calls hear of a lost connection before the links do.
    #[cfg(test)]
    pub(super) fn telling_machines_first(self, tells_machines_first: bool) -> Self {
        Self { tells_machines_first, ..self }
    }

    /// Connects to all nodes.
    pub(super) fn begin(&mut self, world: &mut World) {
        self.links_time_out(world);
    }

    /// Returns a number for a call, and its lock, that is unique among all processes.
    pub(super) fn global(&self, machine: u64) -> u64 {
        (self.index as u64) << 40 | machine
    }

    // Links.

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
                    let conn = self.connect(node, Kind::Shared(connection), world);
                    self.by_number.insert((node, connection), conn);
                }
                LinkAction::Close { node, connection } => {
                    if let Some(&conn) = self.by_number.get(&(node, connection)) {
                        self.retire(conn, world);
                    }
                }
                LinkAction::Ping { node, connection } => {
                    let token = Token::of_bits(0);
                    let request = Request { token, command: Command::Ping };
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

    fn connect(&mut self, node: usize, kind: Kind, world: &mut World) -> Conn {
        let now = world.now;
        let conn = world.network.connect(self.index, node, now, &mut world.events);
        let connection = Connection {
            node,
            kind,
            asked_at: None,
            is_ready: false,
            is_retired: false,
            in_flight: VecDeque::new(),
        };
        self.connections.insert(conn, connection);
        conn
    }

    /// Closes a connection as soon as nothing is in flight.
    fn retire(&mut self, conn: Conn, world: &mut World) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.is_retired = true;
        if !connection.is_ready || connection.in_flight.is_empty() {
            self.close(conn, world);
        }
    }

    fn close(&mut self, conn: Conn, world: &mut World) {
        if let Some(connection) = self.connections.remove(&conn) {
            if let Kind::Shared(number) = connection.kind {
                self.by_number.remove(&(connection.node, number));
            }
            world.network.close(conn, world.now, &mut world.events);
        }
    }

    // Messages of nodes.

    /// Handles a message of a node.
    pub(super) fn receive(&mut self, conn: Conn, message: Down, world: &mut World) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        let node = connection.node;
        match message {
            Down::Connected => {
                connection.asked_at = Some(self.shared.clock.at(world.now));
                world.send_up(conn, Up::Hello);
            }
            Down::Hello { run_id } => {
                connection.is_ready = true;
                match connection.kind {
                    Kind::Shared(number) => {
                        let hello = Hello {
                            run_id: Some(run_id),
                            mode: Some("standalone".into()),
                            is_replica: false,
                            module_version: Some("0.1.0".into()),
                            set: SetReport::Unset,
                        };
                        let now = self.shared.now(world.now);
                        if let Some(asked_at) = connection.asked_at {
                            self.shared.client_state.round_trips.sample(node, now.since(asked_at));
                        }
                        self.links.handle_connected(node, number, hello, now);
                        self.drive_links(world);
                    }
                    Kind::Waiting(Some((machine, id))) => {
                        self.timers.remove(&(CONNECTIONS + conn as u64));
                        self.wait_through(machine, id, conn, world);
                    }
                    Kind::Waiting(None) => self.seats[node].idle.push(conn),
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
        if !is_wait {
            let took = self.shared.now(world.now).since(sent);
            self.shared.client_state.round_trips.sample(node, took);
        }
        if is_over {
            self.close(conn, world);
        }
        if machine == LINKS {
            if let Kind::Shared(number) = kind {
                self.links.handle_pong(node, number, self.shared.now(world.now));
                self.drive_links(world);
            }
            return;
        }
        self.deliver(machine, id, response, world);
    }

    /// Handles the end of a connection.
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
            Kind::Shared(number) => {
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
            Kind::Waiting(user) => {
                self.seats[node].idle.retain(|&idle| idle != conn);
                if let Some((machine, id)) = user
                    && self.waits.remove(&(machine, id.round)).is_some()
                {
                    self.leave_seat(node, world);
                    if failed.is_empty() {
                        self.expect_response(machine);
                        failed.push_back((machine, id, Response::Failed(error)));
                    }
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
            Machine::Call(call) => call.acquire.handle_response(id, response, &mut ctx),
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

    // Timers.

    fn set_timer(&mut self, timer: u64, at: Option<Moment>, world: &mut World) {
        let at = at.and_then(|at| self.shared.clock.when(at, world.now));
        let known = match self.machines.get_mut(&timer) {
            Some(entry) => std::mem::replace(&mut entry.timer, at),
            None => match at {
                Some(at) => self.timers.insert(timer, at),
                None => self.timers.remove(&timer),
            },
        };
        if let Some(at) = at
            && known != Some(at)
        {
            world.events.add(at, Event::Timer { process: self.index, machine: timer });
        }
    }

    /// Handles a timer that fires. Ignores it if the timer was set to another time since.
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
            let is_queued = matches!(
                &entry.machine,
                Machine::Call(call) if matches!(call.place, Place::Queued(_)) && !call.has_asked
            );
            if is_queued {
                // The call goes on without its turn.
                self.propose_slot(timer);
            }
            let Some(entry) = self.machines.get_mut(&timer) else { return };
            let mut ctx = self.shared.context(world.now);
            match &mut entry.machine {
                Machine::Call(call) => call.acquire.handle_timeout(&mut ctx),
                Machine::Lock(lock) => {
                    lock.hold.handle_timeout(&ctx);
                    lock.hold.repeat_refused(&ctx);
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

    // Machines.

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
            self.local.push_back((machine, id, Response::Failed(error)));
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

    // Calls.

    /// Starts a call of a program. With a `wait` of `None`, the call waits without a limit.
    pub(super) fn call(
        &mut self,
        caller: usize,
        key_set: usize,
        spec: &Arc<Spec>,
        wait: Option<Duration>,
        renews: bool,
        world: &mut World,
    ) -> u64 {
        let longest = self.longest_timeout(spec);
        let now = self.shared.now(world.now);
        let due = wait.map(|wait| now.plus(wait.max(longest) + limits::CALL_GRACE));
        let acquire = Acquire::new(Arc::clone(spec), wait, &self.shared.context(world.now));
        let (takes_turn, mode) = (acquire.takes_turn(), spec.mode);
        let machine = self.add_call(acquire, caller, key_set, due, renews, world.now);
        trace!(world, "p{}/{machine} calls for {key_set} and waits for {wait:?}", self.index);
        let queue = &mut self.local_queues[key_set];
        if takes_turn {
            let entry = match mode {
                Mode::Exclusive => queue.places.enter(),
                Mode::Shared => queue.places.enter_to_share(),
            };
            match entry {
                Entry::Place => self.give_turn(machine, Place::First, world),
                Entry::Queued(number) => {
                    queue.calls.insert(number, machine);
                    self.set_place(machine, Place::Queued(number));
                    self.drive(machine, world);
                }
            }
        } else {
            self.give_turn(machine, Place::None, world);
        }
        machine
    }

    /// Starts a call that attaches a detached lock.
    pub(super) fn attach(
        &mut self,
        caller: usize,
        key_set: usize,
        spec: &Arc<Spec>,
        old: Token,
        world: &mut World,
    ) -> u64 {
        let longest = self.longest_timeout(spec);
        let due = self.shared.now(world.now).plus(longest + limits::CALL_GRACE);
        let mut ctx = self.shared.context(world.now);
        let acquire = Acquire::attach(Arc::clone(spec), old, &mut ctx);
        let machine = self.add_call(acquire, caller, key_set, Some(due), false, world.now);
        trace!(world, "p{}/{machine} attaches {key_set}", self.index);
        if let Some(Machine::Call(call)) =
            self.machines.get_mut(&machine).map(|entry| &mut entry.machine)
        {
            call.attaches = Some(old);
        }
        self.drive(machine, world);
        machine
    }

    fn add_call(
        &mut self,
        acquire: Acquire,
        caller: usize,
        key_set: usize,
        due: Option<Moment>,
        renews: bool,
        now: Ns,
    ) -> u64 {
        self.add_machine(Machine::Call(Box::new(Call {
            acquire,
            key_set,
            caller,
            started: now,
            due,
            round_sent_at: now,
            last_round: u32::MAX,
            asked_at: vec![now; self.seats.len()],
            has_asked: false,
            place: Place::None,
            was_contended: false,
            renews,
            attaches: None,
        })))
    }

    /// Returns the time limit of a request to the slowest node.
    pub(super) fn longest_timeout(&self, spec: &Spec) -> Duration {
        let round_trips = &self.shared.client_state.round_trips;
        limits::node_timeout(round_trips.longest(), spec.ttl)
    }

    fn set_place(&mut self, machine: u64, place: Place) {
        if let Some(Machine::Call(call)) =
            self.machines.get_mut(&machine).map(|entry| &mut entry.machine)
        {
            call.place = place;
        }
    }

    /// Tells a call for one of several keys which key is likely free. The call asks for that key
    /// first.
    fn propose_slot(&mut self, machine: u64) {
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut entry.machine else { return };
        if let Some(keys) = &call.acquire.spec().any {
            let (slots, random) =
                (&mut self.local_queues[call.key_set].slots, &mut self.shared.random);
            let slot = slots.propose(keys.len(), random);
            call.acquire.prefer_slot(slot);
        }
    }

    fn give_turn(&mut self, machine: u64, place: Place, world: &mut World) {
        self.propose_slot(machine);
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut entry.machine else { return };
        call.place = place;
        let is_newcomer = self.index >= self.newcomers_from;
        let is_contended = self.local_queues[call.key_set].is_contended && !is_newcomer;
        call.was_contended = is_contended;
        call.acquire.handle_turn(is_contended, &mut self.shared.context(world.now));
        self.drive(machine, world);
    }

    fn drive_call(&mut self, machine: u64, world: &mut World) {
        let global = self.global(machine);
        loop {
            let Some(entry) = self.machines.get_mut(&machine) else { return };
            let Machine::Call(call) = &mut entry.machine else { return };
            let Some(action) = call.acquire.poll() else { break };
            match action {
                Action::Send { id, connection, request } => {
                    if matches!(
                        request.command,
                        Command::Acquire { .. } | Command::SwapToken { .. } | Command::Inspect
                    ) {
                        if call.last_round != id.round {
                            call.last_round = id.round;
                            call.round_sent_at = world.now;
                        }
                        call.asked_at[id.node] = call.round_sent_at;
                    }
                    call.has_asked = true;
                    let own = match request.command {
                        Command::SwapToken { new } => new,
                        _ => request.token,
                    };
                    world.claims.assign(own, global);
                    let spec = Arc::clone(call.acquire.spec());
                    self.send(machine, id, connection, request, &spec, world);
                }
                Action::Wait { id } => self.take_seat(machine, id, world),
                Action::StopWaiting { id } => self.stop_waiting(machine, id, world),
                // A request of the process that detached the lock may still be on its way.
                Action::Release(release) if call.attaches == Some(release.token()) => {
                    self.release_in_part(*release, world);
                }
                Action::Release(release) => self.release(*release, Some(machine), None, world),
                Action::Suspect { node, connection } => {
                    self.suspicions.push_back((node, connection));
                }
                Action::Done(outcome) => {
                    self.call_ends(machine, *outcome, world);
                    return;
                }
            }
        }
        if let Some(Machine::Call(call)) = self.machines.get(&machine).map(|entry| &entry.machine) {
            let timeout = call.acquire.poll_timeout();
            self.set_timer(machine, timeout, world);
        }
    }

    fn call_ends(&mut self, machine: u64, outcome: Outcome, world: &mut World) {
        let global = self.global(machine);
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut entry.machine else { return };
        if call.acquire.poll().is_some() {
            world.violate("an action follows Done".into());
        }
        let (key_set, place, caller) = (call.key_set, call.place, call.caller);
        let mode = call.acquire.spec().mode;
        let contended = call.acquire.is_contended();
        // Shared calls run at the same time. None of them may undo what another one has learned.
        let has_learned = mode == Mode::Exclusive || contended != call.was_contended;
        if call.has_asked && call.acquire.takes_turn() && has_learned {
            self.local_queues[key_set].is_contended = contended;
        }
        let now = self.shared.clock.at(world.now);
        let is_late =
            call.due.is_some_and(|due| now.has_reached(due.plus(Duration::from_millis(1))));
        if is_late && self.resumed_at < call.started {
            let took = (world.now - call.started) / super::clock::MS;
            world.violate(format!("p{}/{machine} ended after {took} ms, too late", self.index));
        }
        match outcome {
            Outcome::Acquired(grant) => {
                let spec = Arc::clone(call.acquire.spec());
                let members: Vec<_> =
                    spec.keys.iter().map(|key| world.plan.key_index(key)).collect();
                trace!(
                    world,
                    "p{}/{machine} acquires {key_set}, fence {}", self.index, grant.fence
                );
                if world.plan.kind != LockKind::Exclusive {
                    trace!(world, "p{}/{machine} has {members:?}, {mode:?}", self.index);
                }
                if let Some(slot) = spec.slot() {
                    self.local_queues[key_set].slots.acquired(slot);
                }
                let mut hold = Hold::new(spec, grant);
                let (call_started, renews) = (call.started, call.renews);
                if renews {
                    hold.renew();
                }
                let was_attached = call.attaches.is_some();
                entry.timer = None;
                entry.machine = Machine::Lock(Box::new(Lock {
                    hold,
                    key_set,
                    members,
                    was_attached,
                    caller,
                    call_started,
                    since: world.now,
                    renews,
                    extends: false,
                    round_began: world.now,
                }));
                world.notes.push(Note::Granted { process: self.index, machine });
                if renews {
                    self.schedule_renewal(machine, world);
                }
                self.drive(machine, world);
                self.ended.push_back(Ended::Acquired { caller, lock: machine });
            }
            Outcome::Failed(failure) => {
                trace!(world, "p{}/{machine} fails: {failure:?}", self.index);
                // For a node that did not refuse, the last round to any node counts.
                let asked = |(node, answer)| match answer {
                    &Answer::Refused => call.asked_at[node],
                    _ => call.round_sent_at,
                };
                let asked_at = failure.answers.iter().enumerate().map(asked).collect();
                let (asked_at, started) = (call.has_asked.then_some(asked_at), call.started);
                let time_left = Duration::from_nanos(4 * world.plan.round_trip);
                let had_time = call.due.is_some_and(|due| !now.plus(time_left).has_reached(due));
                world.notes.push(Note::Failed {
                    process: self.index,
                    call: global,
                    key_set,
                    mode,
                    reason: failure.reason,
                    attached: call.attaches.is_some(),
                    started,
                    had_time,
                    asked_at,
                });
                self.machines.remove(&machine);
                self.ended.push_back(Ended::Failed { caller });
            }
        }
        self.leave_local_queue(key_set, place, world);
    }

    fn leave_local_queue(&mut self, key_set: usize, place: Place, world: &mut World) {
        let queue = &mut self.local_queues[key_set];
        let next = match place {
            Place::None => Called::new(),
            Place::First => queue.places.leave(),
            Place::Queued(number) => {
                queue.calls.remove(&number);
                queue.places.give_up(number).unwrap_or_else(|| queue.places.leave())
            }
        };
        let calls: Vec<_> = next.iter().filter_map(|number| queue.calls.remove(number)).collect();
        for call in calls {
            self.give_turn(call, Place::First, world);
        }
    }

    /// Cancels a call.
    pub(super) fn cancel(&mut self, machine: u64, world: &mut World) {
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut entry.machine else { return };
        trace!(world, "p{}/{machine} is cancelled", self.index);
        let (key_set, place) = (call.key_set, call.place);
        call.acquire.cancel(&mut self.shared.context(world.now));
        self.drive_call(machine, world);
        self.machines.remove(&machine);
        self.leave_local_queue(key_set, place, world);
        self.settle(world);
    }

    // Seats.

    fn take_seat(&mut self, machine: u64, id: RequestId, world: &mut World) {
        let seats = &mut self.seats[id.node];
        match seats.places.enter() {
            Entry::Place => self.start_wait(machine, id, world),
            Entry::Queued(number) => {
                seats.waiting.insert(number, (machine, id));
                self.waits.insert((machine, id.round), Wait::Queued(id.node, number));
            }
        }
    }

    fn start_wait(&mut self, machine: u64, id: RequestId, world: &mut World) {
        let node = id.node;
        if let Some(conn) = self.seats[node].idle.pop() {
            self.waits.insert((machine, id.round), Wait::Connecting(node, conn));
            self.wait_through(machine, id, conn, world);
            return;
        }
        let conn = self.connect(node, Kind::Waiting(Some((machine, id))), world);
        self.waits.insert((machine, id.round), Wait::Connecting(node, conn));
        let due = self.shared.now(world.now).plus(limits::HANDSHAKE);
        self.set_timer(CONNECTIONS + conn as u64, Some(due), world);
    }

    /// Sends a WAIT through its connection, unless the call does not need it any more.
    fn wait_through(&mut self, machine: u64, id: RequestId, conn: Conn, world: &mut World) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.kind = Kind::Waiting(Some((machine, id)));
        }
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut entry.machine else { return };
        let request = call.acquire.handle_seat(id, &mut self.shared.context(world.now));
        match request {
            Some(request) => {
                let spec = Arc::clone(call.acquire.wait_spec());
                call.has_asked = true;
                call.asked_at[id.node] = world.now;
                self.waits.insert((machine, id.round), Wait::Sent(id.node, conn));
                world.claims.assign(request.token, self.global(machine));
                self.send_through(conn, machine, id, request, &spec, world);
            }
            None => self.stop_waiting(machine, id, world),
        }
        if let Some(Machine::Call(call)) = self.machines.get(&machine).map(|entry| &entry.machine) {
            let timeout = call.acquire.poll_timeout();
            self.set_timer(machine, timeout, world);
        }
    }

    fn stop_waiting(&mut self, machine: u64, id: RequestId, world: &mut World) {
        let node = match self.waits.remove(&(machine, id.round)) {
            None => return,
            Some(Wait::Queued(node, number)) => {
                self.seats[node].waiting.remove(&number);
                if self.seats[node].places.give_up(number).is_some() {
                    return;
                }
                node
            }
            Some(Wait::Connecting(node, conn) | Wait::Sent(node, conn)) => {
                let connection = self.connections.get_mut(&conn);
                match connection {
                    Some(connection) if connection.is_ready && connection.in_flight.is_empty() => {
                        connection.kind = Kind::Waiting(None);
                        self.seats[node].idle.push(conn);
                    }
                    _ => self.close(conn, world),
                }
                node
            }
        };
        self.leave_seat(node, world);
    }

    fn leave_seat(&mut self, node: usize, world: &mut World) {
        let seats = &mut self.seats[node];
        let called: Vec<_> =
            seats.places.leave().iter().filter_map(|number| seats.waiting.remove(number)).collect();
        for (machine, id) in called {
            self.start_wait(machine, id, world);
        }
    }

    // Locks.

    fn schedule_renewal(&mut self, machine: u64, world: &mut World) {
        let now = self.shared.now(world.now);
        let Some(Machine::Lock(lock)) = self.machines.get(&machine).map(|entry| &entry.machine)
        else {
            return;
        };
        match lock.hold.renew_in(now) {
            Some(after) => {
                self.renewals.schedule(machine, now.plus(after), lock.hold.renewal_window());
            }
            None => self.renewals.forget(machine),
        }
        let next = self.renewals.next_due();
        self.set_timer(RENEWALS, next, world);
    }

    fn renew_due(&mut self, world: &mut World) {
        let now = self.shared.now(world.now);
        for machine in self.renewals.take_due(now).into_iter().flatten() {
            if let Some(entry) = self.machines.get_mut(&machine)
                && let Machine::Lock(lock) = &mut entry.machine
            {
                lock.hold.extend(&self.shared.context(world.now));
                self.drive(machine, world);
            }
        }
        let next = self.renewals.next_due();
        self.set_timer(RENEWALS, next, world);
    }

    /// Extends a lock. Returns whether a round of extensions has begun.
    pub(super) fn extend(&mut self, machine: u64, world: &mut World) -> bool {
        self.begin_round(machine, Hold::extend, world)
    }

    /// Makes an exclusive lock shared. Returns whether a round of extensions has begun.
    pub(super) fn downgrade(&mut self, machine: u64, world: &mut World) -> bool {
        trace!(world, "p{}/{machine} shares its lock", self.index);
        self.begin_round(machine, Hold::downgrade, world)
    }

    fn begin_round(
        &mut self,
        machine: u64,
        begin: fn(&mut Hold, &Context<'_>),
        world: &mut World,
    ) -> bool {
        let Some(entry) = self.machines.get_mut(&machine) else { return false };
        let Machine::Lock(lock) = &mut entry.machine else { return false };
        if !lock.hold.is_extensible(self.shared.clock.at(world.now)) {
            return false;
        }
        lock.extends = true;
        begin(&mut lock.hold, &self.shared.context(world.now));
        self.drive(machine, world);
        self.settle(world);
        true
    }

    fn drive_lock(&mut self, machine: u64, world: &mut World) {
        loop {
            let Some(entry) = self.machines.get_mut(&machine) else { return };
            let Machine::Lock(lock) = &mut entry.machine else { return };
            let Some(action) = lock.hold.poll() else { break };
            match action {
                HoldAction::Send(send) => {
                    if matches!(send.request.command, Command::Extend { .. }) {
                        lock.round_began = world.now;
                    }
                    let spec = Arc::clone(lock.hold.spec());
                    self.send(machine, send.id, send.connection, send.request, &spec, world);
                }
                HoldAction::Decided(verdict) => {
                    trace!(world, "p{}/{machine} extension: {verdict:?}", self.index);
                    let (extends, renews) = (std::mem::take(&mut lock.extends), lock.renews);
                    let caller = lock.caller;
                    let (process, round_began) = (self.index, lock.round_began);
                    world.notes.push(Note::Extended { process, machine, verdict, round_began });
                    if extends {
                        self.ended.push_back(Ended::Extended { caller, lock: machine });
                    }
                    if renews {
                        self.schedule_renewal(machine, world);
                    }
                }
                HoldAction::Repaired(is_held) => {
                    world.repairs += u64::from(is_held);
                }
                HoldAction::Incomplete => {
                    if lock.renews {
                        self.schedule_renewal(machine, world);
                    }
                }
                HoldAction::Contended => {
                    let (key_set, name) = (lock.key_set, lock.hold.spec().name());
                    // An attached permit is a lock of its key. That key may have a set of its own.
                    let sets = &world.plan.key_sets;
                    let key_set = if sets[key_set] == *name {
                        Some(key_set)
                    } else {
                        sets.iter().position(|set| set == name)
                    };
                    if let Some(key_set) = key_set {
                        self.local_queues[key_set].is_contended = true;
                    }
                }
                HoldAction::Release(release) => self.release_in_part(*release, world),
                HoldAction::Suspect { node, connection } => {
                    self.suspicions.push_back((node, connection));
                }
            }
        }
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Lock(lock) = &mut entry.machine else { return };
        if lock.hold.is_over() && entry.in_flight == 0 {
            self.machines.remove(&machine);
        } else {
            let timeouts = [lock.hold.poll_timeout(), lock.hold.repeat_at()];
            let timeout = timeouts.into_iter().flatten().reduce(Moment::earlier);
            self.set_timer(machine, timeout, world);
        }
    }

    /// Releases a lock. The `caller`, if any, waits for the result.
    pub(super) fn release_lock(&mut self, machine: u64, caller: Option<usize>, world: &mut World) {
        self.renewals.forget(machine);
        let call = self.global(machine);
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Lock(lock) = &mut entry.machine else { return };
        let (ownership, release) = lock.hold.release(&self.shared.context(world.now));
        trace!(world, "p{}/{machine} releases: {ownership:?}", self.index);
        world.notes.push(Note::Released {
            process: self.index,
            call,
            members: lock.members.clone(),
            ownership,
            renewed: lock.renews,
            call_started: lock.call_started,
            since: lock.since,
        });
        if let Some(slot) = lock.hold.spec().slot() {
            self.local_queues[lock.key_set].slots.freed(slot);
        }
        let (token, is_held) = (lock.hold.token(), !matches!(ownership, Ownership::Lost(_)));
        if is_held {
            world.claims.record_released(token, world.now);
        }
        let task = self.add_release(release, None, caller, world);
        if let Some(Machine::Release(task)) =
            self.machines.get_mut(&task).map(|entry| &mut entry.machine)
        {
            task.is_thorough = is_held;
        }
        if world.plan.mutant == Some(Mutant::LateRelease) && caller.is_none() {
            let later = self.shared.now(world.now).plus(Duration::from_millis(20));
            self.set_timer(task, Some(later), world);
        } else {
            self.drive_release(task, world);
        }
        self.drive(machine, world);
        self.settle(world);
    }

    /// Detaches a lock. Returns its token and its description, unless the lock is lost.
    pub(super) fn detach(&mut self, machine: u64, world: &mut World) -> Option<(Token, Arc<Spec>)> {
        self.renewals.forget(machine);
        let entry = self.machines.get_mut(&machine)?;
        let Machine::Lock(lock) = &mut entry.machine else { return None };
        let left = lock.hold.detach(self.shared.clock.at(world.now));
        if let Some(slot) = lock.hold.spec().slot() {
            self.local_queues[lock.key_set].slots.freed(slot);
        }
        // A permit is attached as a lock of its key.
        let spec = Spec { any: None, ..(**lock.hold.spec()).clone() };
        let text = left.map(|_| (lock.hold.token(), Arc::new(spec)));
        trace!(world, "p{}/{machine} detaches: {left:?}", self.index);
        world.notes.push(Note::Detached { process: self.index, call: self.global(machine) });
        self.drive(machine, world);
        self.settle(world);
        text
    }

    // Releases.

    /// Runs a release after which a node may still have the token.
    ///
    /// Another state machine may use the same token, or the lock was detached.
    fn release_in_part(&mut self, release: Release, world: &mut World) {
        let task = self.add_release(release, None, None, world);
        if let Some(Machine::Release(task)) =
            self.machines.get_mut(&task).map(|entry| &mut entry.machine)
        {
            task.is_thorough = false;
        }
        self.drive_release(task, world);
    }

    /// Runs a release. It takes over the unanswered WAIT of the state machine `from`.
    fn release(
        &mut self,
        release: Release,
        from: Option<u64>,
        caller: Option<usize>,
        world: &mut World,
    ) {
        let machine = self.add_release(release, from, caller, world);
        self.drive_release(machine, world);
    }

    fn add_release(
        &mut self,
        release: Release,
        from: Option<u64>,
        caller: Option<usize>,
        world: &mut World,
    ) -> u64 {
        let wait = release.wait();
        let due = self.shared.now(world.now).plus(self.longest_timeout(release.spec()));
        let (started, token) = (world.now, None);
        let task = Task { release, wait, caller, started, due, token, is_thorough: true };
        let machine = self.add_machine(Machine::Release(Box::new(task)));
        if let (Some(id), Some(from)) = (wait, from) {
            if let Some(wait) = self.waits.remove(&(from, id.round)) {
                self.waits.insert((machine, id.round), wait);
                if let Wait::Sent(_, conn) | Wait::Connecting(_, conn) = wait
                    && let Some(connection) = self.connections.get_mut(&conn)
                {
                    connection.kind = Kind::Waiting(Some((machine, id)));
                    for request in &mut connection.in_flight {
                        request.machine = machine;
                    }
                }
                if let Some(entry) = self.machines.get_mut(&from) {
                    entry.in_flight = entry.in_flight.saturating_sub(1);
                }
                self.expect_response(machine);
            } else {
                world
                    .violate(format!("p{}/{from} leaves a WAIT that it does not have", self.index));
            }
        }
        machine
    }

    fn drive_release(&mut self, machine: u64, world: &mut World) {
        while let Some(entry) = self.machines.get_mut(&machine) {
            let Machine::Release(task) = &mut entry.machine else { return };
            self.suspicions.extend(std::iter::from_fn(|| task.release.poll_suspect()));
            let Some(send) = task.release.poll() else { break };
            task.token = Some(send.request.token);
            world.claims.record_gone(send.request.token, None);
            let spec = Arc::clone(task.release.spec());
            self.send(machine, send.id, send.connection, send.request, &spec, world);
        }
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Release(task) = &mut entry.machine else { return };
        if task.release.verdict().is_some()
            && let Some(caller) = task.caller.take()
        {
            let now = self.shared.clock.at(world.now);
            let due = task.due.plus(Duration::from_millis(1));
            if now.has_reached(due) && self.resumed_at < task.started {
                world.violate(format!("a release of p{} took too long", self.index));
            }
            self.ended.push_back(Ended::Released { caller });
        }
        let is_done = task.release.is_done();
        let timeout = task.release.poll_timeout();
        let answered = if task.release.wait().is_none() { task.wait.take() } else { None };
        if let Some(id) = answered {
            self.stop_waiting(machine, id, world);
        }
        if is_done {
            if let Some(MachineEntry { machine: Machine::Release(task), .. }) =
                self.machines.remove(&machine)
            {
                world.unconfirmed +=
                    u64::from(task.release.verdict() == Some(ReleaseVerdict::Unconfirmed));
                self.record_release(&task, world);
            }
        } else {
            self.set_timer(machine, timeout, world);
        }
    }

    /// Records for the checkers that a release is over and that no node has its token any more.
    ///
    /// Does nothing if the release may have missed a node.
    fn record_release(&self, task: &Task, world: &mut World) {
        let Some(token) = task.token else { return };
        let ttl = u64::try_from(task.release.spec().ttl.duration().as_nanos()).unwrap_or(Ns::MAX);
        let is_in_time = world.now < task.started + ttl / 100 * 95;
        let gave_up =
            |answer: &Answer| matches!(answer, Answer::Failed(error) if error.is_permanent());
        let is_used = self.machines.values().any(|entry| match &entry.machine {
            Machine::Lock(lock) => lock.hold.token() == token,
            Machine::Release(other) => other.token == Some(token),
            Machine::Call(_) => false,
        });
        if task.is_thorough && is_in_time && !is_used && !task.release.answers().any(gave_up) {
            world.claims.record_gone(token, Some(world.now));
        }
    }

    /// Handles all local responses, suspicions and results that the last event left behind.
    pub(super) fn settle(&mut self, world: &mut World) {
        loop {
            if let Some((machine, id, response)) = self.local.pop_front() {
                self.deliver(machine, id, &response, world);
            } else if let Some((node, connection)) = self.suspicions.pop_front() {
                let now = self.shared.now(world.now);
                self.links.handle_suspicion(node, connection, now, &self.shared.client_state);
                self.drive_links(world);
            } else if let Some(ended) = self.ended.pop_front() {
                self.caller_goes_on(ended, world);
            } else {
                return;
            }
        }
    }

    /// Returns whether the process has no state machine and no WAIT.
    pub(super) fn is_idle(&self) -> bool {
        self.machines.is_empty() && self.waits.is_empty()
    }

    /// Describes all state machines.
    pub(super) fn describe(&self) -> Vec<String> {
        let machines = self.machines.iter();
        machines.map(|(number, entry)| format!("{number}: {}", entry.machine.describe())).collect()
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

impl Process {
    /// Returns the calls that have not ended and have sent a request.
    pub(super) fn calls(&self) -> impl Iterator<Item = (u64, &Call)> {
        self.machines.iter().filter_map(|(&number, entry)| match &entry.machine {
            Machine::Call(call) if call.has_asked => Some((number, &**call)),
            _ => None,
        })
    }

    /// Returns a call that has not ended.
    pub(super) fn waiting(&self, machine: u64) -> Option<&Call> {
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
