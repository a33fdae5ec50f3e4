//! What the callers of a process do with its shard, and the facts about it for the checkers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Answer, Command, Failure, Hold, NodeError, Request, Response, ShardAction, Spec, Token, limits,
};
use quorlock_core::quorum::{Moment, Ownership};

use super::{CallerResult, ConnectionKind, Process};
use crate::fleet::claims::MachineId;
use crate::fleet::clock::{MS, Ns};
use crate::fleet::plan::LockKind;
use crate::fleet::world::{Call, FailedCall, Note, World};

/// A lock that a call acquired. It may have ended since.
pub(in crate::fleet) struct Lock<'a> {
    pub(in crate::fleet) hold: &'a Hold,
    facts: &'a HeldLock,
}

#[derive(Clone, Debug)]
pub(in crate::fleet) struct HeldLock {
    pub(in crate::fleet) call: Call,
    /// The keys that the lock took of the set, as indexes of `Plan::names`.
    pub(in crate::fleet) keys: Vec<usize>,
    /// When the process acquired the lock.
    pub(in crate::fleet) since: Ns,
    /// The round of extensions for whose verdict the caller waits.
    awaited_round: Option<u32>,
    round_began: Ns,
}

/// A release, and the caller that waits for it, if any.
pub(super) struct ReleaseTask {
    caller: Option<usize>,
    started: Ns,
    due: Moment,
    /// The token to release; `None` until a RELEASE was sent.
    token: Option<Token>,
    /// Whether the release covers all nodes that may have the token, and repeats failed requests.
    is_thorough: bool,
}

impl Deref for Lock<'_> {
    type Target = HeldLock;

    fn deref(&self) -> &HeldLock {
        self.facts
    }
}

impl Process {
    /// Starts a call of a program: for a lock, or to attach the detached lock of a token. With a
    /// `wait` of `None`, the call waits without a limit.
    pub(in crate::fleet) fn call(
        &mut self,
        caller: usize,
        (key_set, spec): (usize, Arc<Spec>),
        (wait, renews): (Option<Duration>, bool),
        attaches: Option<Token>,
        world: &mut World,
    ) -> u64 {
        let (longest, now) = (self.longest_timeout(&spec), self.shared.now(world.now));
        let due = wait.map(|wait| now.plus(wait.max(longest) + limits::WAIT_GRACE));
        let mut ctx = self.shared.context(world.now);
        let number = match attaches {
            None => self.shard.call(Arc::clone(&spec), wait, &mut ctx),
            Some(old) => self.shard.attach(Arc::clone(&spec), old, &mut ctx),
        };
        if renews {
            self.shard.renew(number, &mut ctx);
        }
        if attaches.is_some() {
            trace!(world, "p{}/{number} attaches {key_set}", self.index);
        } else {
            trace!(world, "p{}/{number} calls for {key_set} and waits for {wait:?}", self.index);
        }
        let at = vec![world.now; world.plan.nodes];
        let call = Call {
            spec,
            key_set,
            caller,
            started: world.now,
            due,
            asked_at: at.clone(),
            sent_at: at,
            has_asked: false,
            renews,
            attaches,
        };
        self.unended.insert(number, call);
        self.act(world);
        number
    }

    pub(in crate::fleet) fn cancel(&mut self, call: u64, world: &mut World) {
        if !self.unended.contains_key(&call) {
            return;
        }
        trace!(world, "p{}/{call} is cancelled", self.index);
        self.shard.cancel(call, &mut self.shared.context(world.now));
        self.act(world);
        self.unended.remove(&call);
        self.settle(world);
    }

    /// Returns the time limit of a request to the slowest node.
    pub(in crate::fleet) fn longest_timeout(&self, spec: &Spec) -> Duration {
        let round_trips = &self.shared.client_state.round_trips;
        limits::node_timeout(round_trips.longest(), spec.ttl)
    }

    /// Extends a lock. Returns `false` if the lock can no longer be extended.
    pub(in crate::fleet) fn extend(&mut self, lock: u64, world: &mut World) -> bool {
        self.begin_round(lock, false, world)
    }

    /// Makes an exclusive lock shared. Returns `false` if the lock can no longer be extended.
    pub(in crate::fleet) fn downgrade(&mut self, lock: u64, world: &mut World) -> bool {
        trace!(world, "p{}/{lock} shares its lock", self.index);
        self.begin_round(lock, true, world)
    }

    fn begin_round(&mut self, number: u64, downgrades: bool, world: &mut World) -> bool {
        let mut ctx = self.shared.context(world.now);
        if !self.shard.hold(number).is_some_and(|hold| hold.is_extensible(ctx.now)) {
            return false;
        }
        let round = if downgrades {
            self.shard.downgrade(number, &mut ctx)
        } else {
            self.shard.extend(number, &mut ctx)
        };
        if let Some(lock) = self.locks.get_mut(&number) {
            lock.awaited_round = round;
        }
        self.act(world);
        self.settle(world);
        true
    }

    /// Releases a lock. The `caller`, if any, waits for the result.
    pub(in crate::fleet) fn release_lock(
        &mut self,
        number: u64,
        caller: Option<usize>,
        world: &mut World,
    ) {
        let id = self.machine_id(number);
        let Some((hold, lock)) = self.shard.hold(number).zip(self.locks.get(&number)) else {
            return;
        };
        let (token, due) = (hold.token(), self.longest_timeout(hold.spec()));
        let lock = lock.clone();
        let mut ctx = self.shared.context(world.now);
        let released = match caller {
            Some(_) => self.shard.release(number, &mut ctx),
            None => self.shard.drop_lock(number, &mut ctx),
        };
        let Some((ownership, release)) = released else { return };
        trace!(world, "{id} releases: {ownership:?}");
        world.notes.push(Note::Released { id, lock, ownership });
        let is_held = !matches!(ownership, Ownership::Lost(_));
        if is_held {
            world.claims.record_released(token, world.now);
        }
        self.add_release(release, caller, due, is_held, world);
        self.act(world);
        self.shard.forget(number);
        self.act(world);
        self.settle(world);
    }

    fn add_release(
        &mut self,
        release: u64,
        caller: Option<usize>,
        limit: Duration,
        is_thorough: bool,
        world: &World,
    ) {
        let due = self.shared.now(world.now).plus(limit);
        let task = ReleaseTask { caller, started: world.now, due, token: None, is_thorough };
        self.releases.insert(release, task);
    }

    /// Detaches a lock. Returns its token and its description, unless the lock is lost.
    pub(in crate::fleet) fn detach(
        &mut self,
        lock: u64,
        world: &mut World,
    ) -> Option<(Token, Arc<Spec>)> {
        // A permit is attached as a lock of its key.
        let spec = Spec { any: None, ..(**self.shard.hold(lock)?.spec()).clone() };
        let detached = self.shard.detach(lock, &mut self.shared.context(world.now));
        let left = detached.map(|(_, left)| left);
        trace!(world, "p{}/{lock} detaches: {left:?}", self.index);
        world.notes.push(Note::Detached(self.machine_id(lock)));
        self.shard.forget(lock);
        self.act(world);
        self.settle(world);
        detached.map(|(token, _)| (token, Arc::new(spec)))
    }

    /// Passes a response to the shard.
    pub(super) fn deliver(
        &mut self,
        number: u64,
        sent: Ns,
        response: &Response,
        world: &mut World,
    ) {
        if let Some((machine, id)) = self.shard.asked(number) {
            let (node, round) = (id.node, id.round);
            let is_known = self.unended.contains_key(&machine)
                || self.locks.contains_key(&machine)
                || self.releases.contains_key(&machine);
            if is_known {
                trace!(
                    world,
                    "p{}/{machine} hears n{node} in round {round}: {response:?}", self.index
                );
            }
            if let Some(call) = self.unended.get_mut(&machine)
                && matches!(response, Response::Held { .. } | Response::No)
            {
                call.asked_at[node] = sent;
            }
            if let Response::Failed(NodeError::Revoked { .. }) = response
                && let Some(hold) = self.shard.hold(machine)
            {
                world.record_revoked_answer(hold.token(), node);
            }
        }
        self.shard.handle_response(number, response, &mut self.shared.context(world.now));
        self.act(world);
    }

    /// Carries out the actions of the shard.
    pub(super) fn act(&mut self, world: &mut World) {
        while let Some(action) = self.shard.poll() {
            match action {
                ShardAction::Send { number, machine, node, connection, request, spec } => {
                    self.record_request(machine, node, &request, world);
                    self.send(number, (node, connection), request, spec, world);
                }
                ShardAction::Wait { number, node } => self.start_wait(number, node, world),
                ShardAction::StopWaiting(number) => self.stop_waiting(number, world),
                ShardAction::Timer(machine, at) => {
                    self.set_timer(machine, at, world);
                    if at.is_none() && self.shard.hold(machine).is_none() {
                        self.locks.remove(&machine);
                    }
                }
                ShardAction::Suspect { node, connection } => {
                    self.suspicions.push_back((node, connection));
                }
                ShardAction::Acquired { call, .. } => self.record_grant(call, world),
                ShardAction::Failed { call, failure } => self.record_failure(call, &failure, world),
                ShardAction::Extended { lock: number, round, verdict } => {
                    trace!(world, "p{}/{number} extension: {verdict:?}", self.index);
                    let lock = self.machine_id(number);
                    let Some(held) = self.locks.get_mut(&number) else { continue };
                    let (caller, round_began) = (held.call.caller, held.round_began);
                    world.notes.push(Note::Extended { lock, verdict, round_began });
                    if held.awaited_round.take_if(|awaited| *awaited <= round).is_some() {
                        self.results.push_back(CallerResult::Extended { caller, lock: number });
                    }
                }
                ShardAction::Repaired(_) => {}
                ShardAction::Releases { release, by } => self.record_begin(release, by, world),
                ShardAction::Released(release) => self.record_verdict(release, world),
                ShardAction::ReleaseOver(release) => self.record_end(release, world),
            }
        }
    }

    fn record_request(&mut self, machine: u64, node: usize, request: &Request, world: &mut World) {
        let id = self.machine_id(machine);
        if let Some(call) = self.unended.get_mut(&machine) {
            call.sent_at[node] = world.now;
            call.has_asked = true;
            let own_token = match request.command {
                Command::SwapToken { new } => new,
                _ => request.token,
            };
            world.claims.assign(own_token, id);
        } else if let Some(task) = self.releases.get_mut(&machine) {
            task.token = Some(request.token);
            world.claims.record_gone(request.token, None);
        } else if let Some(lock) = self.locks.get_mut(&machine)
            && matches!(request.command, Command::Extend { .. })
        {
            lock.round_began = world.now;
        }
    }

    /// Takes a call that has ended out of the unended ones, and checks that it did so in time.
    fn end_call(&mut self, number: u64, world: &mut World) -> Option<Call> {
        let call = self.unended.remove(&number)?;
        let now = self.shared.now(world.now);
        let is_late =
            call.due.is_some_and(|due| now.has_reached(due.plus(Duration::from_millis(1))));
        if is_late && self.resumed_at < call.started {
            let took = (world.now - call.started) / MS;
            world.violate(format!("{} ended after {took} ms, too late", self.machine_id(number)));
        }
        Some(call)
    }

    fn record_grant(&mut self, number: u64, world: &mut World) {
        let (id, Some(call)) = (self.machine_id(number), self.end_call(number, world)) else {
            return;
        };
        let Some(hold) = self.shard.hold(number) else { return };
        let (spec, key_set) = (hold.spec(), call.key_set);
        let keys: Vec<_> = spec.keys.iter().map(|key| world.plan.key_index(key)).collect();
        trace!(world, "{id} acquires {key_set}, fence {}", hold.fence());
        if world.plan.kind != LockKind::Exclusive {
            trace!(world, "{id} has {keys:?}, {:?}", spec.mode);
        }
        world.notes.push(Note::Granted(id));
        self.results.push_back(CallerResult::Acquired { caller: call.caller, lock: number });
        let (since, round_began) = (world.now, world.now);
        let lock = HeldLock { call, keys, since, awaited_round: None, round_began };
        self.locks.insert(number, lock);
        self.timers.remove(&number);
    }

    fn record_failure(&mut self, number: u64, failure: &Failure, world: &mut World) {
        let (id, Some(call)) = (self.machine_id(number), self.end_call(number, world)) else {
            return;
        };
        trace!(world, "{id} fails: {failure:?}");
        let silent = failure.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            Answer::Failed(NodeError::TimedOut { limit_ms }) => {
                Some((node, call.sent_at[node], limit_ms * MS))
            }
            _ => None,
        });
        let limit =
            self.shared.now(world.now).plus(Duration::from_nanos(4 * world.plan.round_trip));
        let had_time = call.due.is_some_and(|due| !limit.has_reached(due));
        let (reason, silent) = (failure.reason, silent.collect());
        self.results.push_back(CallerResult::Failed { caller: call.caller });
        world.notes.push(Note::Failed(FailedCall { id, call, reason, had_time, silent }));
    }

    /// Records a release that a call or a lock has begun by itself.
    fn record_begin(&mut self, number: u64, by: Option<u64>, world: &World) {
        let Some(release) = self.shard.release_of(number) else { return };
        if self.releases.contains_key(&number) {
            return;
        }
        let spec = Arc::clone(release.spec());
        // The process that detached the lock may have a request with this token in flight, so the
        // token may be on a node even after this release. A lock may use its token further, and the
        // token of a call may keep one of several keys.
        let call = by.and_then(|by| self.unended.get(&by));
        let is_thorough = call.is_some_and(|call| call.attaches != Some(release.token()))
            && spec.keys.len() == spec.name().len();
        self.add_release(number, None, self.longest_timeout(&spec), is_thorough, world);
    }

    fn record_verdict(&mut self, release: u64, world: &mut World) {
        let Some(task) = self.releases.get_mut(&release) else { return };
        let Some(caller) = task.caller.take() else { return };
        let due = task.due.plus(Duration::from_millis(1));
        if self.shared.clock.at(world.now).has_reached(due) && self.resumed_at < task.started {
            world.violate(format!("a release of p{} took too long", self.index));
        }
        self.results.push_back(CallerResult::Released { caller });
    }

    /// Records for the checkers that a release is over and that no node has its token any more,
    /// unless the release may have missed a node.
    fn record_end(&mut self, number: u64, world: &mut World) {
        let Some(release) = self.shard.take_release(number) else { return };
        let Some(task) = self.releases.remove(&number) else { return };
        let Some(token) = task.token else { return };
        let ttl = u64::try_from(release.spec().ttl.duration().as_nanos()).unwrap_or(Ns::MAX);
        let is_in_time = world.now < task.started + ttl / 100 * 95;
        let gave_up =
            |answer: &Answer| matches!(answer, Answer::Failed(error) if error.is_permanent());
        let is_held = |lock| self.shard.hold(lock).is_some_and(|hold| hold.token() == token);
        let is_used = self.locks.keys().any(|lock| is_held(*lock))
            || self.releases.values().any(|other| other.token == Some(token));
        if task.is_thorough && is_in_time && !is_used && !release.answers().any(gave_up) {
            world.claims.record_gone(token, Some(world.now));
        }
    }

    /// Handles all local responses, suspicions and results that the last event left behind.
    pub(in crate::fleet) fn settle(&mut self, world: &mut World) {
        loop {
            if let Some((number, response)) = self.local_responses.pop_front() {
                self.deliver(number, world.now, &response, world);
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

    /// Returns the calls that have not ended and have sent a request.
    pub(in crate::fleet) fn calls(&self) -> impl Iterator<Item = (MachineId, &Call)> {
        let calls = self.unended.iter().filter(|(_, call)| call.has_asked);
        calls.map(|(&number, call)| (self.machine_id(number), call))
    }

    pub(in crate::fleet) fn lock(&self, number: u64) -> Option<Lock<'_>> {
        Some(Lock { hold: self.shard.hold(number)?, facts: self.locks.get(&number)? })
    }

    /// Returns whether the process has no state machine and no WAIT.
    pub(in crate::fleet) fn is_idle(&self) -> bool {
        self.shard.is_idle()
            && !self
                .connections
                .values()
                .any(|conn| matches!(conn.kind, ConnectionKind::Wait(Some(_))))
    }

    pub(in crate::fleet) fn describe(&self) -> String {
        format!("{:?}", self.shard)
    }
}
