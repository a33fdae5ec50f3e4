//! A process of the fleet: a driver of the client's machines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::NodeError;
use quorlock_core::client::{
    Hello, LinkAction, Links, Response, Shard, ShardAction, Spec, Token, limits,
};
use quorlock_core::node_set::SetReport;
use quorlock_core::quorum::{Moment, Ownership};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::claims::MachineId;
use super::clock::{ClientClock, Ns};
use super::connections::{ConnectionKind, Connections, Lost, Received};
use super::events::{Conn, Down, Event};
use super::facts::Facts;
use super::inputs::Inputs;
use super::notes::{Call, CallerResult, Lock, Note};
use super::world::World;

/// Identifies the timer of the links.
const LINKS: u64 = 0;
/// Identifies the timer of a connection, after the connection's index is added.
const CONNECTIONS: u64 = 1 << 62;

pub(super) struct Process {
    pub(super) index: usize,
    pub(super) inputs: Inputs,
    links: Links,
    shard: Shard,
    /// The timers of the links, the state machines, and the connections.
    timers: BTreeMap<u64, Ns>,
    connections: Connections,
    /// Responses to requests that could not be sent.
    local_responses: VecDeque<(u64, Response)>,
    /// Connections that a state machine suspects. The links learn of them once that machine has no
    /// other actions left.
    suspicions: VecDeque<(usize, u64)>,
    /// Not handled by callers yet.
    pub(super) results: VecDeque<CallerResult>,
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
            results: VecDeque::new(),
            facts: Facts::new(index),
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
                LinkAction::Connect { node, connection } => {
                    self.connections.connect(node, ConnectionKind::Shared(connection), world);
                }
                LinkAction::Close { node, connection } => {
                    if let Some(conn) = self.connections.shared(node, connection) {
                        self.connections.retire(conn, world);
                    }
                }
                LinkAction::Ping { node, connection } => {
                    if let Some(conn) = self.connections.shared(node, connection) {
                        self.connections.ping(conn, self.inputs.now(world.now), world);
                    }
                }
                LinkAction::Changed => self.inputs.topology = self.links.topology(),
                LinkAction::Notice(notice) => trace!(world, "p{} notices {notice:?}", self.index),
            }
        }
        let timeout = self.links.poll_timeout();
        self.set_timer(LINKS, timeout, world);
    }

    pub(super) fn receive(&mut self, conn: Conn, message: Down, world: &mut World) {
        match message {
            Down::Refused => return self.lose(conn, "connection refused", world),
            Down::Closed => return self.lose(conn, "the connection was lost", world),
            Down::Connected | Down::Hello { .. } | Down::Response(_) => {}
        }
        let now = self.inputs.now(world.now);
        match self.connections.receive(conn, message, now, world) {
            Some(Received::Ready { node, kind: ConnectionKind::Shared(number), run_id, sent }) => {
                let hello = Hello {
                    run_id: Some(run_id),
                    mode: Some("standalone".into()),
                    is_replica: false,
                    module_version: Some("0.1.0".into()),
                    set: SetReport::Unset,
                };
                if let Some(sent) = sent {
                    self.inputs.client_state.round_trips.sample(node, now.since(sent));
                }
                self.links.handle_connected(node, number, hello, now);
                self.drive_links(world);
            }
            Some(Received::Ready { kind: ConnectionKind::Wait(Some(number)), .. }) => {
                self.wait_through(number, conn, world);
                self.act(world);
            }
            Some(Received::Answer { number, sent, response }) => {
                self.deliver(number, sent, &response, world);
            }
            Some(Received::Pong { node, connection, sent }) => {
                self.inputs.client_state.round_trips.sample(node, now.since(sent));
                self.links.handle_pong(node, connection, now);
                self.drive_links(world);
            }
            Some(Received::Ready { kind: ConnectionKind::Wait(None), .. }) | None => {}
        }
        self.settle(world);
    }

    pub(super) fn lose(&mut self, conn: Conn, reason: &str, world: &mut World) {
        let Some(lost) = self.connections.lose(conn, world) else { return };
        let Lost { node, kind, was_ready, mut requests } = lost;
        trace!(world, "p{} loses a connection to n{node}: {reason}", self.index);
        let error = NodeError::Down { reason: reason.to_owned() };
        let response = Response::Failed(error.clone());
        if let ConnectionKind::Shared(number) = kind {
            if self.tells_machines_first {
                for request in std::mem::take(&mut requests) {
                    self.deliver(request, world.now, &response, world);
                }
            }
            let now = self.inputs.now(world.now);
            if was_ready {
                self.links.handle_closed(node, number, now);
            } else {
                self.links.handle_connect_failed(node, number, error, now);
            }
            self.drive_links(world);
        }
        for request in requests {
            self.deliver(request, world.now, &response, world);
        }
        self.settle(world);
    }

    fn set_timer(&mut self, timer: u64, at: Option<Moment>, world: &mut World) {
        let Some(at) = at.and_then(|at| self.inputs.clock.when(at, world.now)) else {
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
                    if self.connections.is_connecting(conn) {
                        world.close(conn);
                        self.lose(conn, "connecting took too long", world);
                    }
                }
                _ if self.facts.spins(timer, &self.shard, world) => return,
                _ => {
                    self.shard.handle_timeout(timer, &mut self.inputs.context(world.now));
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
        self.facts.begin_call(number, call, wait, &self.inputs, world);
        self.act(world);
        number
    }

    pub(super) fn cancel(&mut self, call: u64, world: &mut World) {
        if !self.facts.is_unended(call) {
            return;
        }
        trace!(world, "p{}/{call} is cancelled", self.index);
        self.shard.cancel(call, &mut self.inputs.context(world.now));
        self.act(world);
        self.facts.record_cancel(call);
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
        self.facts.begin_round(number, round);
        self.act(world);
        self.settle(world);
        true
    }

    /// Releases a lock. The `caller`, if any, waits for the result.
    pub(super) fn release(&mut self, number: u64, caller: Option<usize>, world: &mut World) {
        let Some(hold) = self.shard.hold(number) else { return };
        let (token, spec) = (hold.token(), Arc::clone(hold.spec()));
        let mut ctx = self.inputs.context(world.now);
        let released = match caller {
            Some(_) => self.shard.release(number, &mut ctx),
            None => self.shard.drop_lock(number, &mut ctx),
        };
        let Some((ownership, release)) = released else { return };
        self.facts.record_release(number, token, ownership, world);
        let is_held = !matches!(ownership, Ownership::Lost(_));
        self.facts.begin_release(release, caller, is_held, &spec, (&self.inputs, world));
        self.forget(number, world);
    }

    /// Detaches a lock. Returns its token and its description, unless the lock is lost.
    pub(super) fn detach(&mut self, lock: u64, world: &mut World) -> Option<(Token, Arc<Spec>)> {
        // A permit is attached as a lock of its key.
        let spec = Spec { any: None, ..(**self.shard.hold(lock)?.spec()).clone() };
        let detached = self.shard.detach(lock, &mut self.inputs.context(world.now));
        let left = detached.map(|(_, left)| left);
        trace!(world, "p{}/{lock} detaches: {left:?}", self.index);
        world.notes.push(Note::Detached(MachineId { process: self.index, number: lock }));
        self.forget(lock, world);
        detached.map(|(token, _)| (token, Arc::new(spec)))
    }

    fn forget(&mut self, lock: u64, world: &mut World) {
        self.act(world);
        self.shard.forget(lock);
        self.act(world);
        self.settle(world);
    }

    fn deliver(&mut self, number: u64, sent: Ns, response: &Response, world: &mut World) {
        self.facts.record_answer(number, sent, response, &self.shard, world);
        self.shard.handle_response(number, response, &mut self.inputs.context(world.now));
        self.act(world);
    }

    /// Carries out the actions of the shard.
    fn act(&mut self, world: &mut World) {
        while let Some(action) = self.shard.poll() {
            let (shard, inputs) = (&self.shard, &self.inputs);
            match action {
                ShardAction::Send { number, machine, node, connection, request, spec } => {
                    self.facts.record_request(machine, node, &request, world);
                    if let Some(conn) = self.connections.shared(node, connection) {
                        let sent = (number, world.now);
                        self.connections.send(conn, sent, request, spec, world);
                    } else {
                        let lost = Response::Failed(NodeError::connection_lost());
                        self.local_responses.push_back((number, lost));
                    }
                }
                ShardAction::Wait { number, node } => self.start_wait(number, node, world),
                ShardAction::StopWaiting(number) => {
                    if let Some(conn) = self.connections.of_wait(number) {
                        self.connections.free(conn, world);
                    }
                }
                ShardAction::Timer(machine, at) => {
                    self.facts.record_timer(machine, at, shard);
                    self.set_timer(machine, at, world);
                }
                ShardAction::Suspect { node, connection } => {
                    self.suspicions.push_back((node, connection));
                }
                ShardAction::Acquired { call: lock, .. } => {
                    self.timers.remove(&lock);
                    self.results.extend(self.facts.record_grant(lock, shard, inputs, world));
                }
                ShardAction::Failed { call, failure } => {
                    self.results.extend(self.facts.record_failure(call, &failure, inputs, world));
                }
                ShardAction::Extended { lock, round, verdict } => {
                    self.results.extend(self.facts.record_extension(lock, round, verdict, world));
                }
                ShardAction::Repaired(_) => {}
                ShardAction::Releases { release, by } => {
                    self.facts.record_own_release(release, by, shard, inputs, world);
                }
                ShardAction::Released(release) => {
                    self.results.extend(self.facts.record_verdict(release, inputs, world));
                }
                ShardAction::ReleaseOver(number) => {
                    if let Some(release) = self.shard.take_release(number) {
                        self.facts.record_release_over(number, &release, &self.shard, world);
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
        self.set_timer(CONNECTIONS + conn as u64, Some(due), world);
    }

    /// Sends a WAIT through its connection, if a machine still needs it.
    fn wait_through(&mut self, number: u64, conn: Conn, world: &mut World) {
        let machine = self.shard.asked(number).map(|(machine, _)| machine).unwrap_or_default();
        let mut ctx = self.inputs.context(world.now);
        match self.shard.handle_wait_connection(number, &mut ctx) {
            Some((request, spec)) => {
                self.facts.record_wait(machine, request.token, world);
                let sent = (number, world.now);
                self.connections.send(conn, sent, request, spec, world);
            }
            None => self.connections.free(conn, world),
        }
    }

    /// Handles all local responses and suspicions that the last event left behind.
    pub(super) fn settle(&mut self, world: &mut World) {
        loop {
            if let Some((number, response)) = self.local_responses.pop_front() {
                self.deliver(number, world.now, &response, world);
            } else if let Some((node, connection)) = self.suspicions.pop_front() {
                let now = self.inputs.now(world.now);
                self.links.handle_suspicion(node, connection, now, &self.inputs.client_state);
                self.drive_links(world);
            } else {
                return;
            }
        }
    }

    pub(super) fn lock(&self, number: u64) -> Option<Lock<'_>> {
        self.facts.lock(number, &self.shard)
    }

    /// Returns whether the process has no state machine and no WAIT.
    pub(super) fn is_idle(&self) -> bool {
        self.shard.is_idle() && !self.connections.has_waits()
    }

    pub(super) fn describe(&self) -> String {
        format!("{:?}", self.shard)
    }
}
