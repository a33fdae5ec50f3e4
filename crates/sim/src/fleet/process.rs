//! A process of the fleet: a driver of the client's machines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::NodeError;
use quorlock_core::client::{
    ConnectionId, Hello, LinkAction, Links, OutgoingRequest, Response, Shard, ShardAction, Spec,
    limits,
};
use quorlock_core::node_set::SetReport;
use quorlock_core::quorum::Moment;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::clock::{ClientClock, Ns};
use super::connections::{Connection, ConnectionKind, Connections, InFlight};
use super::events::{Conn, Down, Event, Packet, Timer, Up};
use super::facts::Facts;
use super::inputs::Inputs;
use super::notes::Call;
use super::world::World;

pub(super) struct Process {
    pub(super) index: usize,
    pub(super) inputs: Inputs,
    links: Links,
    pub(super) shard: Shard,
    timers: BTreeMap<Timer, Ns>,
    connections: Connections,
    /// Responses to requests that could not be sent.
    local_responses: VecDeque<(u64, Response)>,
    /// Connections that a state machine suspects. The links learn of them once that machine has no
    /// other actions left.
    suspicions: VecDeque<ConnectionId>,
    /// The calls, extensions and releases whose callers have not learned of their ends yet, by the
    /// number of the call, the lock or the release.
    pub(super) ended: VecDeque<u64>,
    pub(super) facts: Facts,
    /// Whether the other state machines learn of a lost connection before the links do.
    tells_machines_first: bool,
}

impl Process {
    pub(super) fn new(index: usize, clock: ClientClock, seed: u64, world: &World) -> Self {
        let plan = &world.plan;
        let names = (0..plan.nodes).map(|node| Arc::from(format!("node {node}")));
        let links = Links::new(names, None, clock.at(world.now));
        let mut rng = StdRng::seed_from_u64(seed);
        let tells_machines_first = rng.random();
        Self {
            index,
            inputs: Inputs::new(clock, plan, links.topology(), rng),
            links,
            shard: Shard::default(),
            timers: BTreeMap::new(),
            connections: Connections::new(index, plan.nodes),
            local_responses: VecDeque::new(),
            suspicions: VecDeque::new(),
            ended: VecDeque::new(),
            facts: Facts::default(),
            tells_machines_first,
        }
    }

    pub(super) fn links_time_out(&mut self, world: &mut World) {
        let now = self.inputs.now(world.now);
        let Inputs { client_state, random, .. } = &mut self.inputs;
        self.links.handle_timeout(now, client_state, random);
        self.drive_links(world);
    }

    fn drive_links(&mut self, world: &mut World) {
        while let Some(action) = self.links.poll() {
            match action {
                LinkAction::Connect(ConnectionId { node, number }) => {
                    self.connections.connect(node, ConnectionKind::Shared(number), world);
                }
                LinkAction::Close(ConnectionId { node, number }) => {
                    self.connections.retire(node, number, world);
                }
                LinkAction::Ping(ConnectionId { node, number }) => {
                    self.connections.ping(node, number, self.inputs.now(world.now), world);
                }
                LinkAction::Changed => self.inputs.topology = self.links.topology(),
                LinkAction::Notice(notice) => trace!(world, "p{} notices {notice:?}", self.index),
            }
        }
        let timeout = self.links.poll_timeout();
        self.set_timer(Timer::Links, timeout, world);
    }

    pub(super) fn receive(&mut self, conn: Conn, message: Down, world: &mut World) {
        match message {
            // The process has closed the connection.
            _ if !self.connections.is_open(conn) => {}
            Down::Refused => self.lose(conn, "connection refused", world),
            Down::Closed => self.lose(conn, "the connection was lost", world),
            Down::Connected => {
                self.connections.say_hello(conn, self.inputs.now(world.now), world);
            }
            Down::Hello { run_id } => self.handle_hello(conn, run_id, world),
            Down::Response(response) => self.handle_response(conn, &response, world),
        }
        self.settle(world);
    }

    fn handle_hello(&mut self, conn: Conn, run_id: Arc<str>, world: &mut World) {
        match self.connections.take_answered(conn, world) {
            Some((node, ConnectionKind::Shared(number), InFlight::Probe(sent))) => {
                let hello = Hello {
                    run_id: Some(run_id),
                    mode: Some("standalone".into()),
                    is_replica: false,
                    module_version: Some("0.1.0".into()),
                    set: SetReport::Unset,
                };
                let now = self.inputs.sample_round_trip(node, sent, world.now);
                self.links.handle_connected(ConnectionId { node, number }, hello, now);
                self.drive_links(world);
            }
            Some((_, ConnectionKind::Wait(Some(number)), _)) => {
                self.wait_through(number, conn, world);
                self.act(world);
            }
            _ => {}
        }
    }

    fn handle_response(&mut self, conn: Conn, response: &Response, world: &mut World) {
        match self.connections.take_answered(conn, world) {
            Some((_, _, InFlight::Request(number, sent))) => {
                self.deliver(number, sent, response, world);
            }
            Some((node, ConnectionKind::Shared(number), InFlight::Probe(sent))) => {
                let now = self.inputs.sample_round_trip(node, sent, world.now);
                self.links.handle_pong(ConnectionId { node, number }, now);
                self.drive_links(world);
            }
            _ => {}
        }
    }

    pub(super) fn lose(&mut self, conn: Conn, reason: &str, world: &mut World) {
        world.network.forget(conn);
        let Some(lost) = self.connections.take_lost(conn) else { return };
        let Connection { node, kind, is_ready, in_flight, .. } = lost;
        trace!(world, "p{} loses a connection to n{node}: {reason}", self.index);
        let error = NodeError::Down { reason: reason.to_owned() };
        let response = Response::Failed(error.clone());
        let requests: Vec<u64> = match kind {
            ConnectionKind::Shared(_) => {
                let request = |in_flight| match in_flight {
                    InFlight::Request(number, _) => Some(number),
                    InFlight::Probe(_) => None,
                };
                in_flight.into_iter().filter_map(request).collect()
            }
            // The WAIT fails, sent or not.
            ConnectionKind::Wait(number) => number.into_iter().collect(),
        };
        let fail_all = |this: &mut Self, world: &mut World| {
            for &request in &requests {
                this.deliver(request, world.now, &response, world);
            }
        };
        if self.tells_machines_first {
            fail_all(self, world);
        }
        if let ConnectionKind::Shared(number) = kind {
            let (id, now) = (ConnectionId { node, number }, self.inputs.now(world.now));
            if is_ready {
                self.links.handle_closed(id, now);
            } else {
                self.links.handle_connect_failed(id, error, now);
            }
            self.drive_links(world);
        }
        if !self.tells_machines_first {
            fail_all(self, world);
        }
        self.settle(world);
    }

    fn set_timer(&mut self, timer: Timer, at: Option<Moment>, world: &mut World) {
        let Some(at) = at.and_then(|at| self.inputs.clock.when(at, world.now)) else {
            self.timers.remove(&timer);
            return;
        };
        if self.timers.insert(timer, at) != Some(at) {
            world.events.add(at, Event::Timer { process: self.index, timer });
        }
    }

    /// Handles a timer that fires, unless the timer was set to another time since.
    pub(super) fn time_out(&mut self, timer: Timer, world: &mut World) {
        if self.timers.get(&timer).is_some_and(|&at| at <= world.now) {
            self.timers.remove(&timer);
            world.activity += 1;
            match timer {
                Timer::Links => self.links_time_out(world),
                Timer::Connection(conn) if self.connections.is_connecting(conn) => {
                    world.send_up(conn, Up::Close);
                    self.lose(conn, "connecting took too long", world);
                }
                Timer::Connection(_) => {}
                Timer::Machine(machine) if self.spins(machine, world) => return,
                Timer::Machine(machine) => {
                    self.shard.handle_timeout(machine, &mut self.inputs.context(world.now));
                    self.act(world);
                }
            }
        }
        self.settle(world);
    }

    /// Starts a call of a program. A `wait` of `None` has no limit.
    pub(super) fn call(&mut self, call: Call, wait: Option<Duration>, world: &mut World) -> u64 {
        let (spec, mut ctx) = (Arc::clone(&call.spec), self.inputs.context(world.now));
        let number = match call.attaches {
            None => self.shard.call(spec, wait, &mut ctx),
            Some(old) => self.shard.attach(spec, old, &mut ctx),
        };
        if call.renews {
            self.shard.renew(number);
        }
        self.record_call(number, call, wait, world);
        self.act(world);
        self.settle(world);
        number
    }

    pub(super) fn cancel(&mut self, call: u64, world: &mut World) {
        if !self.facts.calls.contains_key(&call) {
            return;
        }
        trace!(world, "p{}/{call} is cancelled", self.index);
        self.shard.cancel(call, &mut self.inputs.context(world.now));
        self.act(world);
        self.facts.calls.remove(&call);
        self.settle(world);
    }

    /// Extends a lock, or makes it shared too. Returns `false` if it can no longer be extended.
    pub(super) fn extend(&mut self, number: u64, downgrades: bool, world: &mut World) -> bool {
        if downgrades {
            trace!(world, "p{}/{number} shares its lock", self.index);
        }
        let mut ctx = self.inputs.context(world.now);
        if !self.shard.hold(number).is_some_and(|hold| hold.is_extensible(ctx.now)) {
            return false;
        }
        let extend = if downgrades { Shard::downgrade } else { Shard::extend };
        let round = extend(&mut self.shard, number, &mut ctx);
        if let Some(lock) = self.facts.locks.get_mut(&number) {
            lock.awaited_round = round;
        }
        self.act(world);
        self.settle(world);
        true
    }

    /// Releases a lock. Returns the number of the release, for whose verdict a caller may wait.
    pub(super) fn release(
        &mut self,
        lock: u64,
        is_awaited: bool,
        world: &mut World,
    ) -> Option<u64> {
        let mut ctx = self.inputs.context(world.now);
        let (ownership, release) = self.shard.release(lock, &mut ctx)?;
        self.record_release(lock, (release, ownership), is_awaited, world);
        self.forget(lock, world);
        Some(release)
    }

    /// Detaches a lock. Unless it is lost, another caller may attach it.
    pub(super) fn detach(&mut self, number: u64, world: &mut World) {
        let Some(lock) = self.lock(number) else { return };
        // A permit is attached as a lock of its key.
        let spec = Spec { any: None, ..(**lock.hold.spec()).clone() };
        let key_set = lock.call.key_set;
        let detached = self.shard.detach(number, &mut self.inputs.context(world.now));
        let left = detached.map(|(_, left)| left);
        trace!(world, "p{}/{number} detaches: {left:?}", self.index);
        world.detached.extend(detached.map(|(token, _)| (key_set, token, Arc::new(spec))));
        self.forget(number, world);
    }

    fn forget(&mut self, lock: u64, world: &mut World) {
        self.act(world);
        self.shard.forget(lock);
        self.act(world);
        self.settle(world);
    }

    fn deliver(&mut self, number: u64, sent: Ns, response: &Response, world: &mut World) {
        self.record_response(number, sent, response, world);
        self.shard.handle_response(number, response, &mut self.inputs.context(world.now));
        self.act(world);
    }

    /// Carries out the actions of the shard.
    fn act(&mut self, world: &mut World) {
        while let Some(action) = self.shard.poll() {
            match action {
                ShardAction::Send { number, request } => {
                    let OutgoingRequest { id, connection, request, spec } = request;
                    let machine = self.shard.asked(number).map(|(machine, _)| machine);
                    self.record_request(machine.unwrap_or_default(), id.node, &request, world);
                    if let Some(conn) = self.connections.shared(id.node, connection) {
                        self.connections.request(conn, number, Packet { request, spec }, world);
                    } else {
                        let lost = Response::Failed(NodeError::connection_lost());
                        self.local_responses.push_back((number, lost));
                    }
                }
                ShardAction::Wait { number, node } => self.start_wait(number, node, world),
                ShardAction::StopWaiting(number) => self.connections.stop_waiting(number, world),
                ShardAction::Timer(machine, at) => {
                    self.record_timer(machine, at);
                    self.set_timer(Timer::Machine(machine), at, world);
                }
                ShardAction::Suspect(connection) => self.suspicions.push_back(connection),
                ShardAction::Ended { call: lock, result: Ok(_) } => {
                    self.timers.remove(&Timer::Machine(lock));
                    self.record_grant(lock, world);
                }
                ShardAction::Ended { call, result: Err(failure) } => {
                    self.record_failure(call, failure, world);
                }
                ShardAction::Extended { lock, round, verdict } => {
                    self.record_extension(lock, round, verdict, world);
                }
                ShardAction::Repaired(_) => {}
                ShardAction::Releases { release, by } => {
                    self.record_own_release(release, by, world);
                }
                ShardAction::Released(release) => self.record_verdict(release, world),
                ShardAction::ReleaseOver(number) => {
                    if let Some(release) = self.shard.take_release(number) {
                        self.record_release_over(number, &release, world);
                    }
                }
            }
        }
    }

    /// Gets a connection for a WAIT.
    fn start_wait(&mut self, number: u64, node: usize, world: &mut World) {
        if let Some(conn) = self.connections.take_idle(node, number) {
            return self.wait_through(number, conn, world);
        }
        let conn = self.connections.connect(node, ConnectionKind::Wait(Some(number)), world);
        let due = self.inputs.now(world.now).plus(limits::HANDSHAKE);
        self.set_timer(Timer::Connection(conn), Some(due), world);
    }

    /// Sends a WAIT through its connection, if a machine still needs it.
    fn wait_through(&mut self, number: u64, conn: Conn, world: &mut World) {
        let machine = self.shard.asked(number).map(|(machine, _)| machine).unwrap_or_default();
        let mut ctx = self.inputs.context(world.now);
        match self.shard.handle_wait_connection(number, &mut ctx) {
            Some((request, spec)) => {
                self.record_own_token(machine, request.token, world);
                self.connections.request(conn, number, Packet { request, spec }, world);
            }
            None => self.connections.free(conn, world),
        }
    }

    /// Handles all local responses and suspicions that the last event left behind.
    fn settle(&mut self, world: &mut World) {
        loop {
            if let Some((number, response)) = self.local_responses.pop_front() {
                self.deliver(number, world.now, &response, world);
            } else if let Some(connection) = self.suspicions.pop_front() {
                let now = self.inputs.now(world.now);
                self.links.handle_suspicion(connection, now, &self.inputs.client_state);
                self.drive_links(world);
            } else {
                return;
            }
        }
    }

    /// Returns whether the process has no state machine and no WAIT.
    pub(super) fn is_idle(&self) -> bool {
        self.shard.is_idle() && !self.connections.has_waits()
    }
}
