//! The driver of a client: one loop over `poll` and `handle`, as the client crate has it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, Answer, Called, Command, Context, Entry, Fleet, Hello, Hold, HoldAction,
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

/// The links are no machine of a call.
const LINKS: u64 = 0;
/// Nor is the timer of the renewals.
const RENEWALS: u64 = 1;
/// Timers above this number are of connections.
const CONNECTIONS: u64 = 1 << 62;

/// A client process.
pub(super) struct Process {
    pub(super) index: usize,
    pub(super) shared: Shared,
    links: Links,
    timers: BTreeMap<u64, Ns>,
    /// The connections that calls share, by node and number.
    by_number: BTreeMap<(usize, u64), Conn>,
    connections: BTreeMap<Conn, Connection>,
    pub(super) machines: BTreeMap<u64, Slot>,
    next_machine: u64,
    /// For each set of keys.
    lines: Vec<LocalQueue>,
    /// For each node.
    seats: Vec<Seats>,
    waits: BTreeMap<(u64, u32), Wait>,
    renewals: RenewalBatches,
    /// Responses that no node sent.
    local: VecDeque<(u64, RequestId, Response)>,
    /// What to tell the links: not before a machine has done what else it is to do.
    suspicions: VecDeque<(usize, u64)>,
    pub(super) ended: VecDeque<Ended>,
    pub(super) callers: Vec<Caller>,
    /// How many faults keep it from running.
    pub(super) paused: u32,
    /// What has happened meanwhile.
    pub(super) backlog: VecDeque<Event>,
    /// When it last was not paused.
    pub(super) paused_at: Ns,
    /// Whether machines hear of a lost connection before the links do.
    tells_machines_first: bool,
    /// Processes from this one on do not remember that a key was contended.
    remembering: usize,
}

/// What machines are told with everything that happens.
pub(super) struct Shared {
    pub(super) clock: ClientClock,
    pub(super) fleet: Fleet,
    pub(super) topology: Topology,
    random: SeededRandom,
}

struct SeededRandom(StdRng);

/// A machine, and what its driver knows of it.
pub(super) struct Slot {
    pub(super) machine: Machine,
    in_flight: u32,
    timer: Option<Ns>,
    /// How often its timer has fired at the same time.
    spins: (Ns, u32),
}

pub(super) enum Machine {
    Call(Box<Call>),
    Lock(Box<Lock>),
    Release(Box<Task>),
}

/// A call from its begin to its end.
pub(super) struct Call {
    pub(super) acquire: Acquire,
    pub(super) keys: usize,
    pub(super) caller: usize,
    pub(super) started: Ns,
    /// When it must have ended.
    pub(super) due: Option<Moment>,
    /// When the last attempt, or the last look, was sent.
    last_look: Ns,
    last_round: u32,
    /// The last look at each node.
    looks: Vec<Ns>,
    /// Whether it was sent anything.
    pub(super) has_asked: bool,
    place: Place,
    /// Whether its lock was contended when its turn came.
    was_contended: bool,
    pub(super) renews: bool,
    /// It attaches a lock that was detached with this token.
    pub(super) attaches: Option<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    None,
    Queued(u64),
    First,
}

/// A lock that is held, or was.
pub(super) struct Lock {
    pub(super) hold: Hold,
    /// What the call asked for: a set of keys.
    pub(super) keys: usize,
    /// The indexes of the keys that it got.
    pub(super) members: Vec<usize>,
    pub(super) was_attached: bool,
    pub(super) caller: usize,
    pub(super) call_started: Ns,
    pub(super) renews: bool,
    /// The call waits for the end of a round.
    extends: bool,
    round_began: Ns,
}

/// A release, and the call that waits for it.
pub(super) struct Task {
    release: Release,
    wait: Option<RequestId>,
    caller: Option<usize>,
    pub(super) started: Ns,
    due: Moment,
    token: Option<Token>,
    /// It repeats what fails.
    is_thorough: bool,
}

struct LocalQueue {
    places: PlaceQueue,
    calls: BTreeMap<u64, u64>,
    is_contended: bool,
    slots: SlotMemory,
}

struct Seats {
    places: PlaceQueue,
    /// The call of each number.
    waiting: BTreeMap<u64, (u64, RequestId)>,
    idle: Vec<Conn>,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    Queued(usize, u64),
    Connecting(usize, Conn),
    Sent(usize, Conn),
}

struct Connection {
    node: usize,
    kind: Kind,
    /// When the node was asked what it is.
    asked_at: Option<Moment>,
    is_ready: bool,
    /// It is closed when nothing is in flight.
    is_retired: bool,
    in_flight: VecDeque<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shared(u64),
    /// And the wait that it is for.
    Waiting(Option<(u64, RequestId)>),
}

struct InFlight {
    machine: u64,
    id: RequestId,
    sent: Moment,
    is_wait: bool,
}

/// Something that a caller waited for.
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
            fleet: &self.fleet,
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
                fleet: Fleet::new(majority),
                topology: links.topology(),
                random: SeededRandom(rng),
            },
            links,
            timers: BTreeMap::new(),
            by_number: BTreeMap::new(),
            connections: BTreeMap::new(),
            machines: BTreeMap::new(),
            next_machine: 2,
            lines: (0..plan.key_sets.len()).map(queue).collect(),
            seats: (0..plan.nodes).map(seats).collect(),
            waits: BTreeMap::new(),
            renewals: RenewalBatches::default(),
            local: VecDeque::new(),
            suspicions: VecDeque::new(),
            ended: VecDeque::new(),
            callers: Vec::new(),
            paused: 0,
            backlog: VecDeque::new(),
            paused_at: 0,
            tells_machines_first,
            remembering: plan.processes - plan.newcomers,
        }
    }

    /// The same, with machines that hear of a lost connection before the links do, or after them.
    #[cfg(test)]
    pub(super) fn telling_machines_first(self, tells_machines_first: bool) -> Self {
        Self { tells_machines_first, ..self }
    }

    /// Connects to all nodes.
    pub(super) fn begin(&mut self, world: &mut World) {
        self.links_time_out(world);
    }

    /// Names a call, or a lock, among those of all processes.
    pub(super) fn global(&self, machine: u64) -> u64 {
        (self.index as u64) << 40 | machine
    }

    // Links.

    fn links_time_out(&mut self, world: &mut World) {
        let now = self.shared.now(world.now);
        let Shared { fleet, random, .. } = &mut self.shared;
        self.links.handle_timeout(now, fleet, random);
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

    // What arrives.

    /// A message of a node has arrived.
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
                            self.shared.fleet.round_trips.sample(node, now.since(asked_at));
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
            self.shared.fleet.round_trips.sample(node, took);
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

    /// The connection has ended.
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
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        slot.in_flight = slot.in_flight.saturating_sub(1);
        let (node, round) = (id.node, id.round);
        trace!(world, "p{}/{machine} hears n{node} in round {round}: {response:?}", self.index);
        let mut ctx = self.shared.context(world.now);
        match &mut slot.machine {
            Machine::Call(call) => call.acquire.handle_response(id, response, &mut ctx),
            Machine::Lock(lock) => {
                if let Response::Failed(NodeError::Revoked { .. }) = response {
                    world.is_told_revoked(lock.hold.token(), node);
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
            Some(slot) => std::mem::replace(&mut slot.timer, at),
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

    /// A timer fires, unless it was set to another time meanwhile.
    pub(super) fn time_out(&mut self, timer: u64, world: &mut World) {
        let is_due = |at: Option<Ns>| at.is_some_and(|at| at <= world.now);
        if let Some(slot) = self.machines.get_mut(&timer) {
            if !is_due(slot.timer) {
                return;
            }
            slot.timer = None;
            world.activity += 1;
            slot.spins = match slot.spins {
                (at, spins) if at == world.now => (at, spins + 1),
                _ => (world.now, 0),
            };
            if slot.spins.1 > 20 {
                let what = slot.machine.describe();
                world.violate(format!("the timer of p{}'s {what} spins", self.index));
                return;
            }
            let is_in_line = matches!(
                &slot.machine,
                Machine::Call(call) if matches!(call.place, Place::Queued(_)) && !call.has_asked
            );
            if is_in_line {
                // It goes on without its turn.
                self.propose_slot(timer);
            }
            let Some(slot) = self.machines.get_mut(&timer) else { return };
            let mut ctx = self.shared.context(world.now);
            match &mut slot.machine {
                Machine::Call(call) => call.acquire.handle_timeout(&mut ctx),
                Machine::Lock(lock) => {
                    lock.hold.handle_timeout(&ctx);
                    if lock.renews {
                        lock.hold.repeat_refused(&ctx);
                    }
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
        let slot = Slot { machine, in_flight: 0, timer: None, spins: (0, 0) };
        self.machines.insert(number, slot);
        number
    }

    fn drive(&mut self, machine: u64, world: &mut World) {
        match self.machines.get(&machine).map(|slot| &slot.machine) {
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
        if let Some(slot) = self.machines.get_mut(&machine) {
            slot.in_flight += 1;
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

    /// A program calls. `until` says how long it waits.
    pub(super) fn call(
        &mut self,
        caller: usize,
        keys: usize,
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
        let machine = self.add_call(acquire, caller, keys, due, renews, world.now);
        trace!(world, "p{}/{machine} calls for {keys} and waits for {wait:?}", self.index);
        let queue = &mut self.lines[keys];
        if takes_turn {
            let entry = match mode {
                Mode::Exclusive => queue.places.enter(),
                Mode::Shared => queue.places.enter_to_share(),
            };
            match entry {
                Entry::Place => self.call_has_turn(machine, Place::First, world),
                Entry::Queued(number) => {
                    queue.calls.insert(number, machine);
                    self.set_place(machine, Place::Queued(number));
                    self.drive(machine, world);
                }
            }
        } else {
            self.call_has_turn(machine, Place::None, world);
        }
        machine
    }

    /// A program attaches a lock that another one has detached.
    pub(super) fn attach(
        &mut self,
        caller: usize,
        keys: usize,
        spec: &Arc<Spec>,
        old: Token,
        world: &mut World,
    ) -> u64 {
        let longest = self.longest_timeout(spec);
        let due = self.shared.now(world.now).plus(longest + limits::CALL_GRACE);
        let mut ctx = self.shared.context(world.now);
        let acquire = Acquire::attach(Arc::clone(spec), old, &mut ctx);
        let machine = self.add_call(acquire, caller, keys, Some(due), false, world.now);
        trace!(world, "p{}/{machine} attaches {keys}", self.index);
        if let Some(Machine::Call(call)) =
            self.machines.get_mut(&machine).map(|slot| &mut slot.machine)
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
        keys: usize,
        due: Option<Moment>,
        renews: bool,
        now: Ns,
    ) -> u64 {
        self.add_machine(Machine::Call(Box::new(Call {
            acquire,
            keys,
            caller,
            started: now,
            due,
            last_look: now,
            last_round: u32::MAX,
            looks: vec![now; self.seats.len()],
            has_asked: false,
            place: Place::None,
            was_contended: false,
            renews,
            attaches: None,
        })))
    }

    pub(super) fn longest_timeout(&self, spec: &Spec) -> Duration {
        let round_trips = &self.shared.fleet.round_trips;
        limits::node_timeout(round_trips.longest(), spec.ttl)
    }

    fn set_place(&mut self, machine: u64, place: Place) {
        if let Some(Machine::Call(call)) =
            self.machines.get_mut(&machine).map(|slot| &mut slot.machine)
        {
            call.place = place;
        }
    }

    /// Of several keys, that which is likely free is asked for first.
    fn propose_slot(&mut self, machine: u64) {
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut slot.machine else { return };
        if let Some(keys) = &call.acquire.spec().any {
            let (slots, random) = (&mut self.lines[call.keys].slots, &mut self.shared.random);
            let slot = slots.propose(keys.len(), random);
            call.acquire.prefer_slot(slot);
        }
    }

    fn call_has_turn(&mut self, machine: u64, place: Place, world: &mut World) {
        self.propose_slot(machine);
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut slot.machine else { return };
        call.place = place;
        let is_newcomer = self.index >= self.remembering;
        let is_contended = self.lines[call.keys].is_contended && !is_newcomer;
        call.was_contended = is_contended;
        call.acquire.handle_turn(is_contended, &mut self.shared.context(world.now));
        self.drive(machine, world);
    }

    fn drive_call(&mut self, machine: u64, world: &mut World) {
        let global = self.global(machine);
        loop {
            let Some(slot) = self.machines.get_mut(&machine) else { return };
            let Machine::Call(call) = &mut slot.machine else { return };
            let Some(action) = call.acquire.poll() else { break };
            match action {
                Action::Send { id, connection, request } => {
                    if matches!(
                        request.command,
                        Command::Acquire { .. } | Command::SwapToken { .. } | Command::Inspect
                    ) {
                        if call.last_round != id.round {
                            call.last_round = id.round;
                            call.last_look = world.now;
                        }
                        call.looks[id.node] = call.last_look;
                    }
                    call.has_asked = true;
                    let own = match request.command {
                        Command::SwapToken { new } => new,
                        _ => request.token,
                    };
                    world.claims.belongs(own, global);
                    let spec = Arc::clone(call.acquire.spec());
                    self.send(machine, id, connection, request, &spec, world);
                }
                Action::Wait { id } => self.stand_in_line(machine, id, world),
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
        if let Some(Machine::Call(call)) = self.machines.get(&machine).map(|slot| &slot.machine) {
            let timeout = call.acquire.poll_timeout();
            self.set_timer(machine, timeout, world);
        }
    }

    fn call_ends(&mut self, machine: u64, outcome: Outcome, world: &mut World) {
        let global = self.global(machine);
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut slot.machine else { return };
        if call.acquire.poll().is_some() {
            world.violate("an action follows Done".into());
        }
        let (keys, place, caller) = (call.keys, call.place, call.caller);
        let mode = call.acquire.spec().mode;
        let contended = call.acquire.is_contended();
        // Calls that go together do not undo what another of them has found.
        let has_learned = mode == Mode::Exclusive || contended != call.was_contended;
        if call.has_asked && call.acquire.takes_turn() && has_learned {
            self.lines[keys].is_contended = contended;
        }
        let now = self.shared.clock.at(world.now);
        let is_late =
            call.due.is_some_and(|due| now.has_reached(due.plus(Duration::from_millis(1))));
        if is_late && self.paused_at < call.started {
            let took = (world.now - call.started) / super::clock::MS;
            world.violate(format!("p{}/{machine} ended after {took} ms, too late", self.index));
        }
        match outcome {
            Outcome::Acquired(grant) => {
                let spec = Arc::clone(call.acquire.spec());
                let members: Vec<_> =
                    spec.keys.iter().map(|key| world.plan.key_index(key)).collect();
                trace!(world, "p{}/{machine} acquires {keys}, fence {}", self.index, grant.fence);
                if world.plan.kind != LockKind::Exclusive {
                    trace!(world, "p{}/{machine} has {members:?}, {mode:?}", self.index);
                }
                if let Some(slot) = spec.slot() {
                    self.lines[keys].slots.acquired(slot);
                }
                let hold = Hold::new(spec, grant);
                let (call_started, renews) = (call.started, call.renews);
                let was_attached = call.attaches.is_some();
                slot.timer = None;
                slot.machine = Machine::Lock(Box::new(Lock {
                    hold,
                    keys,
                    members,
                    was_attached,
                    caller,
                    call_started,
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
                // A node that did not answer is judged by the last look at any.
                let look = |(node, answer)| match answer {
                    &Answer::Refused => call.looks[node],
                    _ => call.last_look,
                };
                let looks = failure.answers.iter().enumerate().map(look).collect();
                let (looks, started) = (call.has_asked.then_some(looks), call.started);
                let time_left = Duration::from_nanos(4 * world.plan.round_trip);
                let had_time = call.due.is_some_and(|due| !now.plus(time_left).has_reached(due));
                world.notes.push(Note::Failed {
                    process: self.index,
                    call: global,
                    keys,
                    mode,
                    reason: failure.reason,
                    attached: call.attaches.is_some(),
                    started,
                    had_time,
                    looks,
                });
                self.machines.remove(&machine);
                self.ended.push_back(Ended::Failed { caller });
            }
        }
        self.leave_line(keys, place, world);
    }

    fn leave_line(&mut self, keys: usize, place: Place, world: &mut World) {
        let queue = &mut self.lines[keys];
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
            self.call_has_turn(call, Place::First, world);
        }
    }

    /// The caller is not interested any more.
    pub(super) fn cancel(&mut self, machine: u64, world: &mut World) {
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut slot.machine else { return };
        trace!(world, "p{}/{machine} is cancelled", self.index);
        let (keys, place) = (call.keys, call.place);
        call.acquire.cancel(&mut self.shared.context(world.now));
        self.drive_call(machine, world);
        self.machines.remove(&machine);
        self.leave_line(keys, place, world);
        self.settle(world);
    }

    // Waiting connections.

    fn stand_in_line(&mut self, machine: u64, id: RequestId, world: &mut World) {
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

    /// There is a connection for the WAIT.
    fn wait_through(&mut self, machine: u64, id: RequestId, conn: Conn, world: &mut World) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.kind = Kind::Waiting(Some((machine, id)));
        }
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut slot.machine else { return };
        let request = call.acquire.handle_wait_sent(id, &mut self.shared.context(world.now));
        match request {
            Some(request) => {
                let spec = Arc::clone(call.acquire.wait_spec());
                call.has_asked = true;
                call.looks[id.node] = world.now;
                self.waits.insert((machine, id.round), Wait::Sent(id.node, conn));
                world.claims.belongs(request.token, self.global(machine));
                self.send_through(conn, machine, id, request, &spec, world);
            }
            None => self.stop_waiting(machine, id, world),
        }
        if let Some(Machine::Call(call)) = self.machines.get(&machine).map(|slot| &slot.machine) {
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
        let Some(Machine::Lock(lock)) = self.machines.get(&machine).map(|slot| &slot.machine)
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
            if let Some(slot) = self.machines.get_mut(&machine)
                && let Machine::Lock(lock) = &mut slot.machine
            {
                lock.hold.extend(&self.shared.context(world.now));
                self.drive(machine, world);
            }
        }
        let next = self.renewals.next_due();
        self.set_timer(RENEWALS, next, world);
    }

    /// The holder extends its lock. Returns whether a round has begun.
    pub(super) fn extend(&mut self, machine: u64, world: &mut World) -> bool {
        self.begin_round(machine, Hold::extend, world)
    }

    /// The holder of an exclusive lock shares it from now on. Returns whether a round has begun.
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
        let Some(slot) = self.machines.get_mut(&machine) else { return false };
        let Machine::Lock(lock) = &mut slot.machine else { return false };
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
            let Some(slot) = self.machines.get_mut(&machine) else { return };
            let Machine::Lock(lock) = &mut slot.machine else { return };
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
                    let (keys, name) = (lock.keys, lock.hold.spec().name());
                    // A permit that was attached is a lock of its key.
                    let sets = &world.plan.key_sets;
                    let line = if sets[keys] == *name {
                        Some(keys)
                    } else {
                        sets.iter().position(|set| set == name)
                    };
                    if let Some(line) = line {
                        self.lines[line].is_contended = true;
                    }
                }
                HoldAction::Release(release) => self.release_in_part(*release, world),
                HoldAction::Suspect { node, connection } => {
                    self.suspicions.push_back((node, connection));
                }
            }
        }
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        let Machine::Lock(lock) = &mut slot.machine else { return };
        if lock.hold.is_over() && slot.in_flight == 0 {
            self.machines.remove(&machine);
        } else {
            // The program of a lock that is not renewed reads late answers when it next extends it.
            let repeat_at = lock.hold.repeat_at().filter(|_| lock.renews);
            let timeouts = [lock.hold.poll_timeout(), repeat_at];
            let timeout = timeouts.into_iter().flatten().reduce(Moment::earlier);
            self.set_timer(machine, timeout, world);
        }
    }

    /// The holder releases its lock. A `caller` is told the result.
    pub(super) fn release_lock(&mut self, machine: u64, caller: Option<usize>, world: &mut World) {
        self.renewals.forget(machine);
        let call = self.global(machine);
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        let Machine::Lock(lock) = &mut slot.machine else { return };
        let (ownership, release) = lock.hold.release(&self.shared.context(world.now));
        trace!(world, "p{}/{machine} releases: {ownership:?}", self.index);
        world.notes.push(Note::Released {
            process: self.index,
            call,
            members: lock.members.clone(),
            ownership,
            renewed: lock.renews,
            call_started: lock.call_started,
        });
        if let Some(slot) = lock.hold.spec().slot() {
            self.lines[lock.keys].slots.freed(slot);
        }
        let (token, is_held) = (lock.hold.token(), !matches!(ownership, Ownership::Lost(_)));
        if is_held {
            world.claims.released(token, world.now);
        }
        let task = self.add_release(release, None, caller, world);
        if let Some(Machine::Release(task)) =
            self.machines.get_mut(&task).map(|slot| &mut slot.machine)
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

    /// The holder detaches its lock. Returns its token, unless it is lost.
    pub(super) fn detach(&mut self, machine: u64, world: &mut World) -> Option<(Token, Arc<Spec>)> {
        self.renewals.forget(machine);
        let slot = self.machines.get_mut(&machine)?;
        let Machine::Lock(lock) = &mut slot.machine else { return None };
        let left = lock.hold.detach(self.shared.clock.at(world.now));
        if let Some(slot) = lock.hold.spec().slot() {
            self.lines[lock.keys].slots.freed(slot);
        }
        // It is attached as a lock of its keys, whatever it was one of.
        let spec = Spec { any: None, ..(**lock.hold.spec()).clone() };
        let text = left.map(|_| (lock.hold.token(), Arc::new(spec)));
        trace!(world, "p{}/{machine} detaches: {left:?}", self.index);
        world.notes.push(Note::Detached { process: self.index, call: self.global(machine) });
        self.drive(machine, world);
        self.settle(world);
        text
    }

    // Releases.

    /// Releases some nodes. Another machine may release the same token, or the lock was detached.
    fn release_in_part(&mut self, release: Release, world: &mut World) {
        let task = self.add_release(release, None, None, world);
        if let Some(Machine::Release(task)) =
            self.machines.get_mut(&task).map(|slot| &mut slot.machine)
        {
            task.is_thorough = false;
        }
        self.drive_release(task, world);
    }

    /// Runs a release, which takes over a WAIT of the machine that it comes from.
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
                if let Some(slot) = self.machines.get_mut(&from) {
                    slot.in_flight = slot.in_flight.saturating_sub(1);
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
        while let Some(slot) = self.machines.get_mut(&machine) {
            let Machine::Release(task) = &mut slot.machine else { return };
            self.suspicions.extend(std::iter::from_fn(|| task.release.poll_suspect()));
            let Some(send) = task.release.poll() else { break };
            task.token = Some(send.request.token);
            world.claims.gone(send.request.token, None);
            let spec = Arc::clone(task.release.spec());
            self.send(machine, send.id, send.connection, send.request, &spec, world);
        }
        let Some(slot) = self.machines.get_mut(&machine) else { return };
        let Machine::Release(task) = &mut slot.machine else { return };
        if task.release.verdict().is_some()
            && let Some(caller) = task.caller.take()
        {
            let now = self.shared.clock.at(world.now);
            let due = task.due.plus(Duration::from_millis(1));
            if now.has_reached(due) && self.paused_at < task.started {
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
            if let Some(Slot { machine: Machine::Release(task), .. }) =
                self.machines.remove(&machine)
            {
                world.unconfirmed +=
                    u64::from(task.release.verdict() == Some(ReleaseVerdict::Unconfirmed));
                self.is_released(&task, world);
            }
        } else {
            self.set_timer(machine, timeout, world);
        }
    }

    /// A release is over. Unless it gave up, no node has its token any more.
    fn is_released(&self, task: &Task, world: &mut World) {
        let Some(token) = task.token else { return };
        let ttl = u64::try_from(task.release.spec().ttl.duration().as_nanos()).unwrap_or(Ns::MAX);
        let is_in_time = world.now < task.started + ttl / 100 * 95;
        let gave_up =
            |answer: &Answer| matches!(answer, Answer::Failed(error) if error.is_permanent());
        let is_used = self.machines.values().any(|slot| match &slot.machine {
            Machine::Lock(lock) => lock.hold.token() == token,
            Machine::Release(other) => other.token == Some(token),
            Machine::Call(_) => false,
        });
        if task.is_thorough && is_in_time && !is_used && !task.release.answers().any(gave_up) {
            world.claims.gone(token, Some(world.now));
        }
    }

    /// Carries out what follows from what has happened.
    pub(super) fn settle(&mut self, world: &mut World) {
        loop {
            if let Some((machine, id, response)) = self.local.pop_front() {
                self.deliver(machine, id, &response, world);
            } else if let Some((node, connection)) = self.suspicions.pop_front() {
                let now = self.shared.now(world.now);
                self.links.handle_suspicion(node, connection, now, &self.shared.fleet);
                self.drive_links(world);
            } else if let Some(ended) = self.ended.pop_front() {
                self.caller_goes_on(ended, world);
            } else {
                return;
            }
        }
    }

    /// Whether nothing is left to do.
    pub(super) fn is_idle(&self) -> bool {
        self.machines.is_empty() && self.waits.is_empty()
    }

    /// What is left to do.
    pub(super) fn describe(&self) -> Vec<String> {
        let machines = self.machines.iter();
        machines.map(|(number, slot)| format!("{number}: {}", slot.machine.describe())).collect()
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
    /// Calls that have not ended, and have asked a node.
    pub(super) fn calls(&self) -> impl Iterator<Item = (u64, &Call)> {
        self.machines.iter().filter_map(|(&number, slot)| match &slot.machine {
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

    /// The keys of a lock.
    pub(super) fn keys_of(&self, machine: u64) -> usize {
        match self.machines.get(&machine).map(|slot| &slot.machine) {
            Some(Machine::Lock(lock)) => lock.keys,
            Some(Machine::Call(call)) => call.keys,
            _ => 0,
        }
    }
}
