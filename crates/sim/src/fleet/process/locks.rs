//! Locks that a process holds, and their releases.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{Answer, Command, Context, Hold, HoldAction, Release, Spec, Token};
use quorlock_core::quorum::{Moment, Ownership};

use super::{
    CallerResult, ConnectionKind, Machine, MachineEntry, Process, RENEWALS, ReleaseTask, Wait,
    lock_mut,
};
use crate::fleet::Mutant;
use crate::fleet::clock::Ns;
use crate::fleet::world::{Note, ReleasedLock, World};

impl Process {
    pub(super) fn schedule_renewal(&mut self, machine: u64, world: &mut World) {
        let now = self.shared.now(world.now);
        let Some(lock) = lock_mut(&mut self.machines, machine) else { return };
        match lock.hold.renew_in(now) {
            Some(after) => {
                self.renewals.schedule(machine, now.plus(after), lock.hold.renewal_window());
            }
            None => self.renewals.forget(machine),
        }
        let next = self.renewals.next_due();
        self.set_timer(RENEWALS, next, world);
    }

    pub(super) fn renew_due(&mut self, world: &mut World) {
        let now = self.shared.now(world.now);
        for machine in self.renewals.take_due(now).into_iter().flatten() {
            if let Some(lock) = lock_mut(&mut self.machines, machine) {
                lock.hold.extend(&self.shared.context(world.now));
                self.drive(machine, world);
            }
        }
        let next = self.renewals.next_due();
        self.set_timer(RENEWALS, next, world);
    }

    /// Extends a lock. Returns `false` if the lock can no longer be extended.
    pub(in crate::fleet) fn extend(&mut self, machine: u64, world: &mut World) -> bool {
        self.begin_round(machine, Hold::extend, world)
    }

    /// Makes an exclusive lock shared. Returns `false` if the lock can no longer be extended.
    pub(in crate::fleet) fn downgrade(&mut self, machine: u64, world: &mut World) -> bool {
        trace!(world, "p{}/{machine} shares its lock", self.index);
        self.begin_round(machine, Hold::downgrade, world)
    }

    fn begin_round(
        &mut self,
        machine: u64,
        begin: fn(&mut Hold, &Context<'_>) -> Option<u32>,
        world: &mut World,
    ) -> bool {
        let Some(lock) = lock_mut(&mut self.machines, machine) else { return false };
        if !lock.hold.is_extensible(self.shared.clock.at(world.now)) {
            return false;
        }
        lock.awaited_round = begin(&mut lock.hold, &self.shared.context(world.now));
        self.drive(machine, world);
        self.settle(world);
        true
    }

    pub(super) fn drive_lock(&mut self, machine: u64, world: &mut World) {
        loop {
            let Some(lock) = lock_mut(&mut self.machines, machine) else { return };
            let Some(action) = lock.hold.poll() else { break };
            match action {
                HoldAction::Send(send) => {
                    if matches!(send.request.command, Command::Extend { .. }) {
                        lock.round_began = world.now;
                    }
                    let spec = Arc::clone(lock.hold.spec());
                    self.send(machine, send.id, send.connection, send.request, &spec, world);
                }
                HoldAction::Decided { round, verdict } => {
                    trace!(world, "p{}/{machine} extension: {verdict:?}", self.index);
                    let is_awaited =
                        lock.awaited_round.take_if(|awaited| *awaited <= round).is_some();
                    let (caller, renews, round_began) =
                        (lock.caller, lock.renews, lock.round_began);
                    let lock = self.machine_id(machine);
                    world.notes.push(Note::Extended { lock, verdict, round_began });
                    if is_awaited {
                        self.results.push_back(CallerResult::Extended { caller, lock: machine });
                    }
                    if renews {
                        self.schedule_renewal(machine, world);
                    }
                }
                HoldAction::Repaired(is_held) => world.repairs += u64::from(is_held),
                HoldAction::Incomplete => {
                    if lock.renews {
                        self.schedule_renewal(machine, world);
                    }
                }
                HoldAction::Wait { id } => self.start_wait(machine, id, world),
                HoldAction::Release(release) => self.release_best_effort(*release, world),
                HoldAction::Suspect { node, connection } => {
                    self.suspicions.push_back((node, connection));
                }
            }
        }
        let Some(entry) = self.machines.get_mut(&machine) else { return };
        let Machine::Lock(lock) = &mut entry.machine else { return };
        if lock.hold.was_given_up() && entry.in_flight == 0 {
            self.machines.remove(&machine);
        } else {
            let timeouts = [lock.hold.poll_timeout(), lock.hold.front_at()];
            let timeout = timeouts.into_iter().flatten().reduce(Moment::earlier);
            self.set_timer(machine, timeout, world);
        }
    }

    /// Releases a lock. The `caller`, if any, waits for the result.
    pub(in crate::fleet) fn release_lock(
        &mut self,
        machine: u64,
        caller: Option<usize>,
        world: &mut World,
    ) {
        self.renewals.forget(machine);
        let id = self.machine_id(machine);
        let Some(lock) = lock_mut(&mut self.machines, machine) else { return };
        let (ownership, release) = lock.hold.release(&self.shared.context(world.now));
        trace!(world, "{id} releases: {ownership:?}");
        world.notes.push(Note::Released(ReleasedLock {
            id,
            keys: lock.keys.clone(),
            ownership,
            renewed: lock.renews,
            call_started: lock.call_started,
            since: lock.since,
        }));
        if let Some(slot) = lock.hold.spec().slot() {
            self.local_queues[lock.key_set].slots.freed(slot);
        }
        let (token, is_held) = (lock.hold.token(), !matches!(ownership, Ownership::Lost(_)));
        if is_held {
            world.claims.record_released(token, world.now);
        }
        let task = self.add_release(release, Some(machine), caller, is_held, world);
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
    pub(in crate::fleet) fn detach(
        &mut self,
        machine: u64,
        world: &mut World,
    ) -> Option<(Token, Arc<Spec>)> {
        self.renewals.forget(machine);
        let lock = lock_mut(&mut self.machines, machine)?;
        let left = lock.hold.detach(self.shared.clock.at(world.now));
        // A permit is attached as a lock of its key.
        let spec = Spec { any: None, ..(**lock.hold.spec()).clone() };
        let detached = left.map(|_| (lock.hold.token(), Arc::new(spec)));
        trace!(world, "p{}/{machine} detaches: {left:?}", self.index);
        world.notes.push(Note::Detached(self.machine_id(machine)));
        self.drive(machine, world);
        self.settle(world);
        detached
    }

    /// Runs a release after which a node may still have the token: another state machine may use
    /// the token, or the lock was detached.
    pub(super) fn release_best_effort(&mut self, release: Release, world: &mut World) {
        let task = self.add_release(release, None, None, false, world);
        self.drive_release(task, world);
    }

    /// Runs a release. It takes over the unanswered WAIT of the state machine `from`.
    pub(super) fn release(
        &mut self,
        release: Release,
        from: u64,
        is_thorough: bool,
        world: &mut World,
    ) {
        let machine = self.add_release(release, Some(from), None, is_thorough, world);
        self.drive_release(machine, world);
    }

    fn add_release(
        &mut self,
        release: Release,
        from: Option<u64>,
        caller: Option<usize>,
        is_thorough: bool,
        world: &mut World,
    ) -> u64 {
        let waits: Vec<_> = release.waits().collect();
        let due = self.shared.now(world.now).plus(self.longest_timeout(release.spec()));
        let (started, token) = (world.now, None);
        let task = ReleaseTask { release, caller, started, due, token, is_thorough };
        let machine = self.add_machine(Machine::Release(Box::new(task)));
        for id in waits {
            let Some((from, wait)) =
                from.and_then(|from| Some((from, self.waits.remove(&(from, id.round))?)))
            else {
                world.violate(format!("{from:?} hands over a WAIT that it does not have"));
                continue;
            };
            self.waits.insert((machine, id.round), wait);
            if let Wait::Sent(_, conn) = wait
                && let Some(connection) = self.connections.get_mut(&conn)
            {
                connection.kind = ConnectionKind::Wait(Some((machine, id)));
                for request in &mut connection.in_flight {
                    request.machine = machine;
                }
            }
            if let Some(entry) = self.machines.get_mut(&from) {
                entry.in_flight = entry.in_flight.saturating_sub(1);
            }
            self.expect_response(machine);
        }
        machine
    }

    pub(super) fn drive_release(&mut self, machine: u64, world: &mut World) {
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
            self.results.push_back(CallerResult::Released { caller });
        }
        let is_done = task.release.is_done();
        let timeout = task.release.poll_timeout();
        if is_done {
            if let Some(MachineEntry { machine: Machine::Release(task), .. }) =
                self.machines.remove(&machine)
            {
                self.record_release(&task, world);
            }
        } else {
            self.set_timer(machine, timeout, world);
        }
    }

    /// Records for the checkers that a release is over and that no node has its token any more,
    /// unless the release may have missed a node.
    fn record_release(&self, task: &ReleaseTask, world: &mut World) {
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
    pub(in crate::fleet) fn settle(&mut self, world: &mut World) {
        loop {
            if let Some((machine, id, response)) = self.local_responses.pop_front() {
                self.deliver(machine, id, &response, world);
            } else if let Some((node, connection)) = self.suspicions.pop_front() {
                let now = self.shared.now(world.now);
                self.links.handle_suspicion(node, connection, now, &self.shared.client_state);
                self.drive_links(world);
            } else if let Some(result) = self.results.pop_front() {
                self.caller_goes_on(result, world);
            } else {
                return;
            }
        }
    }

    /// Returns whether the process has no state machine and no WAIT.
    pub(in crate::fleet) fn is_idle(&self) -> bool {
        self.machines.is_empty() && self.waits.is_empty()
    }

    pub(in crate::fleet) fn describe(&self) -> Vec<String> {
        let machines = self.machines.iter();
        machines.map(|(number, entry)| format!("{number}: {}", entry.machine.describe())).collect()
    }
}
