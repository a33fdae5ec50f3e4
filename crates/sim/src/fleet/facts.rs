//! What the checkers need to know of a process: its calls, its locks and its releases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Command, Failure, Release, Request, Response, Shard, Spec, Token, limits,
};
use quorlock_core::quorum::{ExtensionVerdict, Moment, Ownership};
use quorlock_core::{Answer, NodeError};

use super::claims::MachineId;
use super::clock::{MS, Ns};
use super::inputs::Inputs;
use super::notes::{Call, CallerResult, FailedCall, HeldLock, Lock, Note};
use super::plan::LockKind;
use super::world::World;

pub(super) struct Facts {
    process: usize,
    /// Number of faults that pause the process now.
    pub(super) pauses: u32,
    /// When the last pause of the process ended.
    pub(super) resumed_at: Ns,
    /// The calls that have not ended, the locks, and the releases, by number.
    unended: BTreeMap<u64, Call>,
    locks: BTreeMap<u64, HeldLock>,
    releases: BTreeMap<u64, ReleaseTask>,
    /// When the timer of a machine last fired, and how often it has fired again at that time.
    spins: BTreeMap<u64, (Ns, u32)>,
}

/// A release, and the caller that waits for it, if any.
struct ReleaseTask {
    caller: Option<usize>,
    started: Ns,
    due: Moment,
    /// The token to release; `None` until a RELEASE was sent.
    token: Option<Token>,
    /// Whether the release covers all nodes that may have the token, and repeats failed requests.
    is_thorough: bool,
}

impl Facts {
    pub(super) fn new(process: usize) -> Self {
        Self {
            process,
            pauses: 0,
            resumed_at: 0,
            unended: BTreeMap::new(),
            locks: BTreeMap::new(),
            releases: BTreeMap::new(),
            spins: BTreeMap::new(),
        }
    }

    fn id(&self, number: u64) -> MachineId {
        MachineId { process: self.process, number }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pauses > 0
    }

    /// Returns the calls that have not ended and have sent a request.
    pub(super) fn calls(&self) -> impl Iterator<Item = (MachineId, &Call)> {
        let calls = self.unended.iter().filter(|(_, call)| call.has_asked);
        calls.map(|(&number, call)| (self.id(number), call))
    }

    pub(super) fn is_unended(&self, call: u64) -> bool {
        self.unended.contains_key(&call)
    }

    pub(super) fn lock<'a>(&'a self, number: u64, shard: &'a Shard) -> Option<Lock<'a>> {
        Some(Lock { hold: shard.hold(number)?, facts: self.locks.get(&number)? })
    }

    /// Returns whether the timer of a machine fires again and again at this moment.
    pub(super) fn spins(&mut self, timer: u64, shard: &Shard, world: &mut World) -> bool {
        let (at, spins) = self.spins.entry(timer).or_default();
        *spins = if *at == world.now { *spins + 1 } else { 0 };
        *at = world.now;
        let is_spinning = *spins > 20;
        if is_spinning {
            let process = self.process;
            world.violate(format!("the timer of p{process}'s machine {timer} spins: {shard:?}"));
        }
        is_spinning
    }

    /// A lock without a timer and without a machine is forgotten.
    pub(super) fn record_timer(&mut self, machine: u64, at: Option<Moment>, shard: &Shard) {
        if at.is_none() && shard.hold(machine).is_none() {
            self.locks.remove(&machine);
        }
    }

    pub(super) fn begin_call(
        &mut self,
        number: u64,
        mut call: Call,
        wait: Option<Duration>,
        inputs: &Inputs,
        world: &mut World,
    ) {
        let (process, key_set) = (self.process, call.key_set);
        if call.attaches.is_some() {
            trace!(world, "p{process}/{number} attaches {key_set}");
        } else {
            trace!(world, "p{process}/{number} calls for {key_set} and waits for {wait:?}");
        }
        let longest = inputs.longest_timeout(&call.spec);
        let now = inputs.now(world.now);
        call.due = wait.map(|wait| now.plus(wait.max(longest) + limits::WAIT_GRACE));
        self.unended.insert(number, call);
    }

    pub(super) fn record_cancel(&mut self, call: u64) {
        self.unended.remove(&call);
    }

    /// Takes a call that has ended out of the unended ones, and checks that it did so in time.
    fn end_call(&mut self, number: u64, inputs: &Inputs, world: &mut World) -> Option<Call> {
        let call = self.unended.remove(&number)?;
        let now = inputs.now(world.now);
        let is_late =
            call.due.is_some_and(|due| now.has_reached(due.plus(Duration::from_millis(1))));
        if is_late && self.resumed_at < call.started {
            let took = (world.now - call.started) / MS;
            world.violate(format!("{} ended after {took} ms, too late", self.id(number)));
        }
        Some(call)
    }

    pub(super) fn record_request(
        &mut self,
        machine: u64,
        node: usize,
        request: &Request,
        world: &mut World,
    ) {
        let id = self.id(machine);
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

    pub(super) fn record_wait(&mut self, machine: u64, token: Token, world: &mut World) {
        if let Some(call) = self.unended.get_mut(&machine) {
            call.has_asked = true;
        }
        world.claims.assign(token, self.id(machine));
    }

    pub(super) fn record_answer(
        &mut self,
        number: u64,
        sent: Ns,
        response: &Response,
        shard: &Shard,
        world: &mut World,
    ) {
        let Some((machine, id)) = shard.asked(number) else { return };
        let (node, round) = (id.node, id.round);
        let is_known = self.unended.contains_key(&machine)
            || self.locks.contains_key(&machine)
            || self.releases.contains_key(&machine);
        if is_known {
            let process = self.process;
            trace!(world, "p{process}/{machine} hears n{node} in round {round}: {response:?}");
        }
        if let Some(call) = self.unended.get_mut(&machine)
            && matches!(response, Response::Held { .. } | Response::No)
        {
            call.asked_at[node] = sent;
        }
        if let Response::Failed(NodeError::Revoked { .. }) = response
            && let Some(hold) = shard.hold(machine)
        {
            world.record_revoked_answer(hold.token(), node);
        }
    }

    pub(super) fn record_grant(
        &mut self,
        lock: u64,
        shard: &Shard,
        inputs: &Inputs,
        world: &mut World,
    ) -> Option<CallerResult> {
        let (id, call) = (self.id(lock), self.end_call(lock, inputs, world)?);
        let hold = shard.hold(lock)?;
        let (spec, caller, key_set) = (hold.spec(), call.caller, call.key_set);
        let keys: Vec<_> = spec.keys.iter().map(|key| world.plan.key_index(key)).collect();
        trace!(world, "{id} acquires {key_set}, fence {}", hold.fence());
        if world.plan.kind != LockKind::Exclusive {
            trace!(world, "{id} has {keys:?}, {:?}", spec.mode);
        }
        world.notes.push(Note::Granted(id));
        let (since, round_began) = (world.now, world.now);
        self.locks.insert(lock, HeldLock { call, keys, since, awaited_round: None, round_began });
        Some(CallerResult::Acquired { caller, lock })
    }

    pub(super) fn record_failure(
        &mut self,
        number: u64,
        failure: &Failure,
        inputs: &Inputs,
        world: &mut World,
    ) -> Option<CallerResult> {
        let (id, call) = (self.id(number), self.end_call(number, inputs, world)?);
        trace!(world, "{id} fails: {failure:?}");
        let silent = failure.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            Answer::Failed(NodeError::TimedOut { limit_ms }) => {
                Some((node, call.sent_at[node], limit_ms * MS))
            }
            _ => None,
        });
        let limit = inputs.now(world.now).plus(Duration::from_nanos(4 * world.plan.round_trip));
        let had_time = call.due.is_some_and(|due| !limit.has_reached(due));
        let (caller, reason, silent) = (call.caller, failure.reason, silent.collect());
        world.notes.push(Note::Failed(FailedCall { id, call, reason, had_time, silent }));
        Some(CallerResult::Failed { caller })
    }

    pub(super) fn begin_round(&mut self, lock: u64, round: Option<u32>) {
        if let Some(lock) = self.locks.get_mut(&lock) {
            lock.awaited_round = round;
        }
    }

    pub(super) fn record_extension(
        &mut self,
        number: u64,
        round: u32,
        verdict: ExtensionVerdict,
        world: &mut World,
    ) -> Option<CallerResult> {
        trace!(world, "p{}/{number} extension: {verdict:?}", self.process);
        let lock = self.id(number);
        let held = self.locks.get_mut(&number)?;
        let (caller, round_began) = (held.call.caller, held.round_began);
        world.notes.push(Note::Extended { lock, verdict, round_began });
        held.awaited_round.take_if(|awaited| *awaited <= round)?;
        Some(CallerResult::Extended { caller, lock: number })
    }

    /// Records the end of a lock by its holder.
    pub(super) fn record_release(
        &self,
        number: u64,
        token: Token,
        ownership: Ownership,
        world: &mut World,
    ) {
        let (id, Some(lock)) = (self.id(number), self.locks.get(&number).cloned()) else { return };
        trace!(world, "{id} releases: {ownership:?}");
        world.notes.push(Note::Released { id, lock, ownership });
        if !matches!(ownership, Ownership::Lost(_)) {
            world.claims.record_released(token, world.now);
        }
    }

    pub(super) fn begin_release(
        &mut self,
        release: u64,
        caller: Option<usize>,
        is_thorough: bool,
        spec: &Spec,
        (inputs, world): (&Inputs, &World),
    ) {
        let due = inputs.now(world.now).plus(inputs.longest_timeout(spec));
        let task = ReleaseTask { caller, started: world.now, due, token: None, is_thorough };
        self.releases.insert(release, task);
    }

    /// Records a release that a call or a lock has begun by itself.
    pub(super) fn record_own_release(
        &mut self,
        number: u64,
        by: Option<u64>,
        shard: &Shard,
        inputs: &Inputs,
        world: &World,
    ) {
        let Some(release) = shard.release_of(number) else { return };
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
        self.begin_release(number, None, is_thorough, &spec, (inputs, world));
    }

    pub(super) fn record_verdict(
        &mut self,
        release: u64,
        inputs: &Inputs,
        world: &mut World,
    ) -> Option<CallerResult> {
        let task = self.releases.get_mut(&release)?;
        let caller = task.caller.take()?;
        let due = task.due.plus(Duration::from_millis(1));
        if inputs.now(world.now).has_reached(due) && self.resumed_at < task.started {
            world.violate(format!("a release of p{} took too long", self.process));
        }
        Some(CallerResult::Released { caller })
    }

    /// Records that a release is over and that no node has its token any more, unless the release
    /// may have missed a node.
    pub(super) fn record_release_over(
        &mut self,
        number: u64,
        release: &Release,
        shard: &Shard,
        world: &mut World,
    ) {
        let Some(task) = self.releases.remove(&number) else { return };
        let Some(token) = task.token else { return };
        let ttl = u64::try_from(release.spec().ttl.duration().as_nanos()).unwrap_or(Ns::MAX);
        let is_in_time = world.now < task.started + ttl / 100 * 95;
        let gave_up =
            |answer: &Answer| matches!(answer, Answer::Failed(error) if error.is_permanent());
        let is_held = |lock| shard.hold(lock).is_some_and(|hold| hold.token() == token);
        let is_used = self.locks.keys().any(|lock| is_held(*lock))
            || self.releases.values().any(|other| other.token == Some(token));
        if task.is_thorough && is_in_time && !is_used && !release.answers().any(gave_up) {
            world.claims.record_gone(token, Some(world.now));
        }
    }
}
