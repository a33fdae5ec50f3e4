//! Calls of a process: local queues, attempts, waits and their connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, Answer, Command, Mode, NodeError, Outcome, RequestId, Spec, Token, limits,
};
use quorlock_core::quorum::Moment;

use super::{
    CONNECTIONS, Call, CallerResult, ConnectionKind, Lock, Machine, Process, QueuePosition, Wait,
    call_mut,
};
use crate::fleet::clock::{MS, Ns};
use crate::fleet::network::Conn;
use crate::fleet::plan::LockKind;
use crate::fleet::world::{FailedCall, Note, World};

impl Process {
    /// Starts a call of a program. With a `wait` of `None`, the call waits without a limit.
    pub(in crate::fleet) fn call(
        &mut self,
        caller: usize,
        key_set: usize,
        spec: &Arc<Spec>,
        wait: Option<Duration>,
        renews: bool,
        world: &mut World,
    ) -> u64 {
        let (longest, now) = (self.longest_timeout(spec), self.shared.now(world.now));
        let due = wait.map(|wait| now.plus(wait.max(longest) + limits::CALL_GRACE));
        let acquire = Acquire::new(Arc::clone(spec), wait, &self.shared.context(world.now));
        let (takes_turn, mode) = (acquire.takes_turn(), spec.mode);
        let machine = self.add_call(acquire, caller, key_set, due, renews, world.now);
        trace!(world, "p{}/{machine} calls for {key_set} and waits for {wait:?}", self.index);
        let position = if takes_turn {
            self.local_queues[key_set].turns.enter(machine, mode)
        } else {
            QueuePosition::None
        };
        if let QueuePosition::Queued(_) = position {
            self.set_place(machine, position);
            self.drive(machine, world);
        } else {
            self.give_turn(machine, position, world);
        }
        machine
    }

    /// Starts a call that attaches a detached lock.
    pub(in crate::fleet) fn attach(
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
        if let Some(call) = call_mut(&mut self.machines, machine) {
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
            asked_at: vec![now; self.idle_connections.len()],
            sent_rounds: BTreeMap::new(),
            sent_at: vec![now; self.idle_connections.len()],
            has_asked: false,
            place: QueuePosition::None,
            place_in_line: QueuePosition::None,
            renews,
            attaches: None,
        })))
    }

    /// Returns the time limit of a request to the slowest node.
    pub(in crate::fleet) fn longest_timeout(&self, spec: &Spec) -> Duration {
        let round_trips = &self.shared.client_state.round_trips;
        limits::node_timeout(round_trips.longest(), spec.ttl)
    }

    fn set_place(&mut self, machine: u64, place: QueuePosition) {
        if let Some(call) = call_mut(&mut self.machines, machine) {
            call.place = place;
        }
    }

    /// Tells a call for one of several keys which key is likely free. The call asks for that key
    /// first.
    pub(super) fn propose_slot(&mut self, machine: u64) {
        let Some(call) = call_mut(&mut self.machines, machine) else { return };
        if let Some(keys) = &call.acquire.spec().any {
            let slots = &mut self.local_queues[call.key_set].slots;
            let slot = slots.propose(keys.len(), &mut self.shared.random);
            call.acquire.prefer_slot(slot);
        }
    }

    fn give_turn(&mut self, machine: u64, place: QueuePosition, world: &mut World) {
        self.propose_slot(machine);
        let Some(call) = call_mut(&mut self.machines, machine) else { return };
        call.place = place;
        call.acquire.begin(&mut self.shared.context(world.now));
        self.drive(machine, world);
    }

    pub(super) fn drive_call(&mut self, machine: u64, world: &mut World) {
        let id_of_call = self.machine_id(machine);
        loop {
            let Some(call) = call_mut(&mut self.machines, machine) else { return };
            let Some(action) = call.acquire.poll() else { break };
            match action {
                Action::Send { id, connection, request, spec } => {
                    call.sent_rounds.insert(id.round, world.now);
                    call.sent_at[id.node] = world.now;
                    call.has_asked = true;
                    let own_token = match request.command {
                        Command::SwapToken { new } => new,
                        _ => request.token,
                    };
                    world.claims.assign(own_token, id_of_call);
                    self.send(machine, id, connection, request, &spec, world);
                }
                Action::TakePlace => self.take_place(machine, world),
                Action::Wait { id } => self.start_wait(machine, id, world),
                // The process that detached the lock may have a request with this token in flight,
                // so the token may be on a node even after this release.
                Action::Release(release) if call.attaches == Some(release.token()) => {
                    self.release_best_effort(*release, world);
                }
                Action::Release(release) => {
                    // The token may keep one of several keys.
                    let spec = release.spec();
                    let is_of_all = spec.keys.len() == spec.name().len();
                    self.release(*release, machine, is_of_all, world);
                }
                Action::Suspect { node, connection } => {
                    self.suspicions.push_back((node, connection));
                }
                Action::Done(outcome) => {
                    self.call_ends(machine, outcome, world);
                    return;
                }
            }
        }
        self.set_call_timer(machine, world);
    }

    fn set_call_timer(&mut self, machine: u64, world: &mut World) {
        if let Some(call) = self.unended_call(machine) {
            let timeout = call.acquire.poll_timeout();
            self.set_timer(machine, timeout, world);
        }
    }

    fn call_ends(&mut self, machine: u64, outcome: Outcome, world: &mut World) {
        let id = self.machine_id(machine);
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Call(call) = &mut entry.machine else { return };
        if call.acquire.poll().is_some() {
            world.violate("an action follows Done".into());
        }
        let (key_set, place, caller) = (call.key_set, call.place, call.caller);
        let place_in_line = call.place_in_line;
        let mode = call.acquire.spec().mode;
        let now = self.shared.clock.at(world.now);
        let is_late =
            call.due.is_some_and(|due| now.has_reached(due.plus(Duration::from_millis(1))));
        if is_late && self.resumed_at < call.started {
            let took = (world.now - call.started) / MS;
            world.violate(format!("{id} ended after {took} ms, too late"));
        }
        match outcome {
            Outcome::Acquired(mut hold) => {
                let spec = Arc::clone(hold.spec());
                let keys: Vec<_> = spec.keys.iter().map(|key| world.plan.key_index(key)).collect();
                trace!(world, "{id} acquires {key_set}, fence {}", hold.fence());
                if world.plan.kind != LockKind::Exclusive {
                    trace!(world, "{id} has {keys:?}, {mode:?}");
                }
                if let Some(slot) = spec.slot() {
                    self.local_queues[key_set].slots.acquired(slot);
                }
                let (call_started, renews) = (call.started, call.renews);
                if renews {
                    hold.renew();
                }
                let was_attached = call.attaches.is_some();
                entry.timer = None;
                entry.machine = Machine::Lock(Box::new(Lock {
                    hold: *hold,
                    key_set,
                    keys,
                    was_attached,
                    caller,
                    call_started,
                    since: world.now,
                    renews,
                    awaited_round: None,
                    round_began: world.now,
                }));
                world.notes.push(Note::Granted(id));
                if renews {
                    self.schedule_renewal(machine, world);
                }
                self.drive(machine, world);
                self.results.push_back(CallerResult::Acquired { caller, lock: machine });
            }
            Outcome::Failed(failure) => {
                trace!(world, "{id} fails: {failure:?}");
                let asked_at = call.asked_at.clone();
                let silent = failure.answers.iter().enumerate().filter_map(|(node, answer)| {
                    let is_silent = matches!(answer, Answer::Failed(NodeError::TimedOut { .. }));
                    is_silent.then_some((node, call.sent_at[node]))
                });
                let margin = Duration::from_nanos(4 * world.plan.round_trip);
                let had_time = call.due.is_some_and(|due| !now.plus(margin).has_reached(due));
                world.notes.push(Note::Failed(FailedCall {
                    id,
                    key_set,
                    mode,
                    reason: failure.reason,
                    attached: call.attaches.is_some(),
                    started: call.started,
                    had_time,
                    asked_at: call.has_asked.then_some(asked_at),
                    silent: silent.collect(),
                }));
                self.machines.remove(&machine);
                self.results.push_back(CallerResult::Failed { caller });
            }
        }
        self.stop_opening(machine, world);
        self.leave_place(place_in_line, world);
        self.leave_local_queue(key_set, place, world);
    }

    /// Gives up the WAITs of a machine that have no connection yet.
    fn stop_opening(&mut self, machine: u64, world: &mut World) {
        let of_machine = self.waits.range((machine, 0)..=(machine, u32::MAX));
        let opening: Vec<u32> = of_machine
            .filter(|(_, wait)| !matches!(wait, Wait::Sent(..)))
            .map(|(&(_, round), _)| round)
            .collect();
        for round in opening {
            self.stop_waiting(machine, round, world);
        }
    }

    fn leave_local_queue(&mut self, key_set: usize, place: QueuePosition, world: &mut World) {
        let calls = self.local_queues[key_set].turns.leave(place);
        for call in calls {
            self.give_turn(call, QueuePosition::Turn, world);
        }
    }

    pub(in crate::fleet) fn cancel(&mut self, machine: u64, world: &mut World) {
        let Some(call) = call_mut(&mut self.machines, machine) else { return };
        trace!(world, "p{}/{machine} is cancelled", self.index);
        let (key_set, place, place_in_line) = (call.key_set, call.place, call.place_in_line);
        call.acquire.cancel(&mut self.shared.context(world.now));
        self.drive_call(machine, world);
        self.machines.remove(&machine);
        self.stop_opening(machine, world);
        self.leave_place(place_in_line, world);
        self.leave_local_queue(key_set, place, world);
        self.settle(world);
    }

    fn take_place(&mut self, machine: u64, world: &mut World) {
        let position = self.places_in_line.enter(machine, Mode::Exclusive);
        let Some(call) = call_mut(&mut self.machines, machine) else { return };
        call.place_in_line = position;
        if position == QueuePosition::Turn {
            call.acquire.handle_place(&mut self.shared.context(world.now));
        }
    }

    fn leave_place(&mut self, place: QueuePosition, world: &mut World) {
        for machine in self.places_in_line.leave(place) {
            let Some(call) = call_mut(&mut self.machines, machine) else { continue };
            call.place_in_line = QueuePosition::Turn;
            call.acquire.handle_place(&mut self.shared.context(world.now));
            self.drive(machine, world);
        }
    }

    pub(super) fn start_wait(&mut self, machine: u64, id: RequestId, world: &mut World) {
        let node = id.node;
        if let Some(conn) = self.idle_connections[node].pop() {
            self.waits.insert((machine, id.round), Wait::Connecting(node, conn));
            self.wait_through(machine, id, conn, world);
            return;
        }
        let conn = self.connect(node, ConnectionKind::Wait(Some((machine, id))), world);
        self.waits.insert((machine, id.round), Wait::Connecting(node, conn));
        let due = self.shared.now(world.now).plus(limits::HANDSHAKE);
        self.set_timer(CONNECTIONS + conn as u64, Some(due), world);
    }

    /// Sends a WAIT through its connection, if the call or the lock still needs the WAIT.
    pub(super) fn wait_through(
        &mut self,
        machine: u64,
        id: RequestId,
        conn: Conn,
        world: &mut World,
    ) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.kind = ConnectionKind::Wait(Some((machine, id)));
        }
        let mut ctx = self.shared.context(world.now);
        let request = match self.machines.get_mut(&machine).map(|entry| &mut entry.machine) {
            Some(Machine::Call(call)) => {
                call.has_asked = true;
                call.sent_rounds.insert(id.round, world.now);
                call.acquire.handle_wait_connection(id, &mut ctx)
            }
            Some(Machine::Lock(lock)) => {
                let request = lock.hold.handle_wait_connection(id, &ctx);
                request.map(|request| (request, Arc::clone(lock.hold.spec())))
            }
            Some(Machine::Release(_)) | None => None,
        };
        match request {
            Some((request, spec)) => {
                self.waits.insert((machine, id.round), Wait::Sent(id.node, conn));
                world.claims.assign(request.token, self.machine_id(machine));
                self.send_through(conn, machine, id, request, &spec, world);
            }
            None => self.stop_waiting(machine, id.round, world),
        }
        self.set_call_timer(machine, world);
    }

    /// Frees the connection of a WAIT.
    pub(super) fn stop_waiting(&mut self, machine: u64, round: u32, world: &mut World) {
        let Some(wait) = self.waits.remove(&(machine, round)) else { return };
        let (Wait::Connecting(node, conn) | Wait::Sent(node, conn)) = wait;
        match self.connections.get_mut(&conn) {
            Some(connection) if connection.is_ready && connection.in_flight.is_empty() => {
                connection.kind = ConnectionKind::Wait(None);
                self.idle_connections[node].push(conn);
            }
            _ => self.close(conn, world),
        }
    }
}
