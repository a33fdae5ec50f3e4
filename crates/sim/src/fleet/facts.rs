//! What the checkers need to know of a process: its calls, its locks and its releases.

use std::collections::BTreeMap;
use std::time::Duration;

use quorlock_core::client::{Command, Failure, Release, Request, Response, Token, limits};
use quorlock_core::quorum::{ExtensionVerdict, Moment, Ownership};
use quorlock_core::{Answer, NodeError};

use super::claims::MachineId;
use super::clock::{MS, Ns};
use super::notes::{Call, HeldLock, Lock, Note};
use super::plan::LockKind;
use super::process::Process;
use super::world::World;

#[derive(Default)]
pub(super) struct Facts {
    /// Number of faults that pause the process now.
    pub(super) pauses: u32,
    /// When the last pause of the process ended.
    pub(super) resumed_at: Ns,
    /// The calls that have not ended, the locks, and the releases, by number.
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) locks: BTreeMap<u64, HeldLock>,
    releases: BTreeMap<u64, ReleaseTask>,
    /// When the timer of a machine last fired, and how often it has fired again at that time.
    spins: BTreeMap<u64, (Ns, u32)>,
}

struct ReleaseTask {
    started: Ns,
    /// When it must have a verdict; `None` if no caller waits for that.
    due: Option<Moment>,
    /// Whether the release covers all nodes that may have the token, and repeats failed requests.
    is_thorough: bool,
}

impl Process {
    fn id(&self, number: u64) -> MachineId {
        MachineId { process: self.index, number }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.facts.pauses > 0
    }

    /// Returns the calls that have not ended and have sent a request.
    pub(super) fn calls(&self) -> impl Iterator<Item = (MachineId, &Call)> {
        let calls = self.facts.calls.iter().filter(|(_, call)| call.has_asked);
        calls.map(|(&number, call)| (self.id(number), call))
    }

    /// Returns the locks that the process has acquired, of which some may have ended.
    pub(super) fn locks(&self) -> impl Iterator<Item = Lock<'_>> {
        self.facts.locks.keys().filter_map(|&number| self.lock(number))
    }

    pub(super) fn lock(&self, number: u64) -> Option<Lock<'_>> {
        let (hold, facts) = (self.shard.hold(number)?, self.facts.locks.get(&number)?);
        Some(Lock { id: self.id(number), hold, facts })
    }

    /// Returns whether something that was due, and that began at this time, is late. After a pause
    /// it may be.
    fn is_late(&self, due: Moment, began: Ns, world: &World) -> bool {
        let is_over = self.inputs.now(world.now).has_reached(due.plus(Duration::from_millis(1)));
        is_over && self.facts.resumed_at < began
    }

    /// Returns whether the timer of a machine fires again and again at this moment.
    pub(super) fn spins(&mut self, machine: u64, world: &mut World) -> bool {
        let (at, spins) = self.facts.spins.entry(machine).or_default();
        *spins = if *at == world.now { *spins + 1 } else { 0 };
        *at = world.now;
        let is_spinning = *spins > 20;
        if is_spinning {
            let (id, shard) = (self.id(machine), &self.shard);
            world.violate(format!("the timer of {id} spins: {shard:?}"));
        }
        is_spinning
    }

    /// A lock without a timer and without a machine is forgotten.
    pub(super) fn record_timer(&mut self, machine: u64, at: Option<Moment>) {
        if at.is_none() && self.shard.hold(machine).is_none() {
            self.facts.locks.remove(&machine);
        }
    }

    pub(super) fn record_call(
        &mut self,
        number: u64,
        mut call: Call,
        wait: Option<Duration>,
        world: &mut World,
    ) {
        let (id, key_set) = (self.id(number), call.key_set);
        if call.attaches.is_some() {
            trace!(world, "{id} attaches {key_set}");
        } else {
            trace!(world, "{id} calls for {key_set} and waits for {wait:?}");
        }
        let longest = self.inputs.longest_timeout(&call.spec);
        let now = self.inputs.now(world.now);
        call.due = wait.map(|wait| now.plus(wait.max(longest) + limits::WAIT_GRACE));
        self.facts.calls.insert(number, call);
    }

    /// Takes a call that has ended out of the unended ones, and checks that it did so in time.
    fn end_call(&mut self, number: u64, world: &mut World) -> Option<Call> {
        let call = self.facts.calls.remove(&number)?;
        if call.due.is_some_and(|due| self.is_late(due, call.started, world)) {
            let (id, took) = (self.id(number), (world.now - call.started) / MS);
            world.violate(format!("{id} ended after {took} ms, too late"));
        }
        self.ended.push_back(number);
        Some(call)
    }

    pub(super) fn record_request(
        &mut self,
        machine: u64,
        node: usize,
        request: &Request,
        world: &mut World,
    ) {
        if let Some(call) = self.facts.calls.get_mut(&machine) {
            call.sent_at[node] = world.now;
            let own_token = match request.command {
                Command::SwapToken { new } => new,
                _ => request.token,
            };
            self.record_own_token(machine, own_token, world);
        } else if request.command == Command::Release {
            world.claims.record_gone(request.token, None);
        } else if let Some(lock) = self.facts.locks.get_mut(&machine)
            && matches!(request.command, Command::Extend { .. })
        {
            lock.round_began = world.now;
        }
    }

    /// Records that a machine sends a request with this token of its own.
    pub(super) fn record_own_token(&mut self, machine: u64, token: Token, world: &mut World) {
        if let Some(call) = self.facts.calls.get_mut(&machine) {
            call.has_asked = true;
        }
        world.claims.assign(token, self.id(machine));
    }

    pub(super) fn record_response(
        &mut self,
        number: u64,
        sent: Ns,
        response: &Response,
        world: &mut World,
    ) {
        let Some((machine, asked)) = self.shard.asked(number) else { return };
        let (id, node, round) = (self.id(machine), asked.node, asked.round);
        let Facts { calls, locks, releases, .. } = &mut self.facts;
        let call = calls.get_mut(&machine);
        if call.is_some() || locks.contains_key(&machine) || releases.contains_key(&machine) {
            trace!(world, "{id} hears n{node} in round {round}: {response:?}");
        }
        if let (Some(call), Response::Held { .. } | Response::No) = (call, response) {
            call.asked_at[node] = sent;
        }
        if let Response::Failed(NodeError::Revoked { .. }) = response
            && let Some(hold) = self.shard.hold(machine)
        {
            world.record_revoked_answer(hold.token(), node);
        }
    }

    pub(super) fn record_grant(&mut self, number: u64, world: &mut World) {
        let Some(call) = self.end_call(number, world) else { return };
        let (id, Some(hold)) = (self.id(number), self.shard.hold(number)) else { return };
        let (spec, key_set) = (hold.spec(), call.key_set);
        let keys: Vec<_> = spec.keys.iter().map(|key| world.plan.key_index(key)).collect();
        trace!(world, "{id} acquires {key_set}, fence {}", hold.fence());
        if world.plan.kind != LockKind::Exclusive {
            trace!(world, "{id} has {keys:?}, {:?}", spec.mode);
        }
        world.notes.push(Note::Granted(id));
        let (since, round_began) = (world.now, world.now);
        let lock = HeldLock { call, keys, since, awaited_round: None, round_began };
        self.facts.locks.insert(number, lock);
    }

    pub(super) fn record_failure(&mut self, number: u64, failure: Failure, world: &mut World) {
        let Some(call) = self.end_call(number, world) else { return };
        let id = self.id(number);
        trace!(world, "{id} fails: {failure:?}");
        world.notes.push(Note::Failed { id, call, failure });
    }

    pub(super) fn record_extension(
        &mut self,
        number: u64,
        round: u32,
        verdict: ExtensionVerdict,
        world: &mut World,
    ) {
        let id = self.id(number);
        trace!(world, "{id} extension: {verdict:?}");
        let Some(held) = self.facts.locks.get_mut(&number) else { return };
        let round_began = held.round_began;
        world.notes.push(Note::Extended { id, verdict, round_began });
        if held.awaited_round.take_if(|awaited| *awaited <= round).is_some() {
            self.ended.push_back(number);
        }
    }

    /// Records that the holder ends a lock by this release. A caller may wait for the verdict.
    pub(super) fn record_release(
        &mut self,
        number: u64,
        (release, ownership): (u64, Ownership),
        is_awaited: bool,
        world: &mut World,
    ) {
        let (id, machine) = (self.id(number), self.shard.release_of(release));
        let (Some(lock), Some(machine)) = (self.facts.locks.get(&number), machine) else { return };
        trace!(world, "{id} releases: {ownership:?}");
        world.notes.push(Note::Released { id, lock: lock.clone(), ownership });
        let is_held = !matches!(ownership, Ownership::Lost(_));
        if is_held {
            world.claims.record_released(machine.token(), world.now);
        }
        let longest = self.inputs.longest_timeout(machine.spec());
        let due = is_awaited.then(|| self.inputs.now(world.now).plus(longest));
        let task = ReleaseTask { started: world.now, due, is_thorough: is_held };
        self.facts.releases.insert(release, task);
    }

    /// Records a release that a call or a lock has begun by itself.
    pub(super) fn record_own_release(&mut self, number: u64, by: Option<u64>, world: &World) {
        let Some(release) = self.shard.release_of(number) else { return };
        // The process that detached the lock may have a request with this token in flight, so the
        // token may be on a node even after this release. A lock may use its token further, and the
        // token of a call may keep one of several keys.
        let call = by.and_then(|by| self.facts.calls.get(&by));
        let is_thorough = call.is_some_and(|call| call.attaches != Some(release.token()))
            && release.spec().keys.len() == release.spec().name().len();
        let task = ReleaseTask { started: world.now, due: None, is_thorough };
        self.facts.releases.entry(number).or_insert(task);
    }

    pub(super) fn record_verdict(&mut self, release: u64, world: &mut World) {
        let Some(task) = self.facts.releases.get_mut(&release) else { return };
        let (Some(due), started) = (task.due.take(), task.started) else { return };
        if self.is_late(due, started, world) {
            world.violate(format!("a release of p{} took too long", self.index));
        }
        self.ended.push_back(release);
    }

    /// Records that a release is over and that no node has its token any more, unless the release
    /// may have missed a node.
    pub(super) fn record_release_over(
        &mut self,
        number: u64,
        release: &Release,
        world: &mut World,
    ) {
        let Some(task) = self.facts.releases.remove(&number) else { return };
        let token = release.token();
        let ttl = u64::try_from(release.spec().ttl.duration().as_nanos()).unwrap_or(Ns::MAX);
        let is_in_time = world.now < task.started + ttl / 100 * 95;
        let gave_up =
            |answer: &Answer| matches!(answer, Answer::Failed(error) if error.is_permanent());
        let mut others = self.facts.releases.keys().filter_map(|&key| self.shard.release_of(key));
        let is_used = self.locks().any(|lock| lock.hold.token() == token)
            || others.any(|other| other.token() == token);
        if task.is_thorough && is_in_time && !is_used && !release.answers().any(gave_up) {
            world.claims.record_gone(token, Some(world.now));
        }
    }
}
