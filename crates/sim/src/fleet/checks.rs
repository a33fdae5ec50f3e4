//! The properties that must hold in every run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::limits::LATE_TIMER;
use quorlock_core::client::{Keys, Mode, Reason, Spec};
use quorlock_core::quorum::{ExtensionVerdict, LossReason, Majority, Ownership};
use quorlock_core::{Answer, Fence, NodeError};

use super::claims::{Claim, ClaimKind, MachineId};
use super::clock::{MS, Ns, SECOND};
use super::notes::{Call, HeldLock, Lock, Note};
use super::plan::{FaultKind, LockKind, Plan};
use super::process::Process;
use super::world::World;

/// Interval between two checks of the whole fleet.
pub(super) const SAMPLE_EVERY: Ns = 250 * MS;
/// A pause that ends this long after a request was sent may end before the time of the node.
const SHORT_PAUSE: Ns = 62 * MS;

/// A lock that is older than this is on all nodes that no fault affects. A younger one may miss
/// nodes on which attempts of other clients hold a key for a moment.
const COVERAGE_DELAY: Ns = 1000 * MS;

pub(super) struct Checks {
    majority: Majority,
    /// The largest fence of each key.
    fences: Vec<Fence>,
    /// The last fence of an exclusive lock of each key.
    exclusive_fences: Vec<Fence>,
    /// When each key was last granted.
    last_granted_at: Vec<Ns>,
    /// For each call and each of its [choices](Plan::choices), by index: the time since which the
    /// keys of the choice are free for the call. A choice that is not free has no entry.
    free_since: BTreeMap<(MachineId, usize), Ns>,
    /// Number of grants since the last check of a [meeting](Plan::meet_every).
    grants_since_meeting: u64,
}

impl Checks {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            majority: Majority::of(plan.nodes).expect("a fleet has nodes"),
            fences: vec![Fence::ZERO; plan.names.len()],
            exclusive_fences: vec![Fence::ZERO; plan.names.len()],
            last_granted_at: vec![0; plan.names.len()],
            free_since: BTreeMap::new(),
            grants_since_meeting: 0,
        }
    }

    /// Checks the facts that the last event left behind.
    pub(super) fn check_notes(&mut self, world: &mut World, processes: &[Process]) {
        for note in std::mem::take(&mut world.notes) {
            match note {
                Note::Granted(id) => {
                    let Some(lock) = lock_of(processes, id) else { continue };
                    self.check_and_record_fence(&lock, world);
                    check_exclusion(&lock, world, processes);
                    self.check_overtakes_nobody(&lock, world, processes);
                    record_together(&lock, world, processes);
                    self.grants_since_meeting += 1;
                    self.check_held_on_majority(&lock, world, processes);
                }
                Note::Extended { id, verdict, round_began } => {
                    let Some(lock) = lock_of(processes, id) else { continue };
                    if matches!(verdict, ExtensionVerdict::Extended(_)) {
                        self.check_may_be_extended(&lock, round_began, world);
                    }
                    check_exclusion(&lock, world, processes);
                    self.check_held_on_majority(&lock, world, processes);
                }
                Note::Released { id, lock, ownership } => {
                    if let (Ownership::Lost(reason), true) = (ownership, lock.call.renews) {
                        self.check_loss(id, &lock, reason, world);
                    }
                }
                Note::Failed { id, call, failure } => {
                    let process = &processes[id.process];
                    check_own_pause(id, &call, &failure.answers, process, world);
                    if failure.reason == Reason::Held && call.attaches.is_none() {
                        self.check_refusal(id, &call, process, world);
                    }
                }
            }
        }
    }

    /// Records the fence of a new lock, and checks that fences grow in the order of grants. The
    /// fences of readers that may hold the lock together have no order.
    fn check_and_record_fence(&mut self, lock: &Lock<'_>, world: &mut World) {
        // After an operator has ended this lock on a node, a lock with a larger fence may be
        // acquired before this one.
        if was_ended(world, lock) {
            return;
        }
        let (id, fence, mode) = (lock.id, lock.hold.fence(), lock.hold.mode());
        for &key in &lock.keys {
            let before = match mode {
                Mode::Exclusive => self.fences[key],
                Mode::Shared => self.exclusive_fences[key],
            };
            if fence <= before {
                world.violate(format!("{id} has fence {fence} for key {key}, after {before}"));
            }
            self.fences[key] = self.fences[key].max(fence);
            if mode == Mode::Exclusive {
                self.exclusive_fences[key] = fence;
            }
            self.last_granted_at[key] = world.now;
        }
    }

    /// Checks that, before the round of extensions began, no operator had ended the lock on a
    /// majority, and no majority had answered, at whatever times, that the lock is revoked.
    fn check_may_be_extended(&self, lock: &Lock<'_>, round_began: Ns, world: &mut World) {
        let (id, token) = (lock.id, lock.hold.token());
        // A call whose grants were ended may be granted again before it has the lock.
        let was_held = |at: Ns| lock.since < at && at < round_began;
        if world.ended_on_majority.iter().any(|&(of, at)| of == token && was_held(at)) {
            world.violate(format!("{id} is extended after an operator has ended it"));
        }
        let answers = world
            .revoked_answers
            .iter()
            .filter(|&&(of, _, at)| of == token && at < round_began)
            .count();
        if answers >= self.majority.size() {
            world.violate(format!("{id} is extended after {answers} nodes revoked it"));
        }
    }

    /// Checks that a call overtakes no other call that was in line on a majority when it began, and
    /// has been since.
    ///
    /// A call for several keys may be passed while it lacks one of them, and one for any of several
    /// stands in line for keys that it does not get.
    fn check_overtakes_nobody(&self, lock: &Lock<'_>, world: &mut World, all: &[Process]) {
        let plan = Arc::clone(&world.plan);
        let key = match lock.keys[..] {
            [key] if lock.call.attaches.is_none() => key,
            _ => return,
        };
        let (began, mode) = (lock.call.started, lock.hold.mode());
        for (other, call) in all.iter().flat_map(Process::calls) {
            let spec = &call.spec;
            let may_share = mode == Mode::Shared && spec.mode == Mode::Shared;
            let is_comparable = plan.key_indexes[call.key_set] == [key] && !may_share;
            if !is_comparable || call.started >= began || call.attaches.is_some() {
                continue;
            }
            let in_line = |&node: &usize| {
                let since = world.claims.in_line_since(node, key, other, world.now);
                since.is_some_and(|since| since < began)
            };
            let nodes = (0..plan.nodes).filter(in_line).count();
            if nodes >= self.majority.size() {
                let (id, us) = (lock.id, (world.now - began) / 1000);
                world.violate(format!(
                    "{id}, which began {us} µs ago, overtakes {other}, which was in line on \
                     {nodes} nodes"
                ));
            }
        }
    }

    /// Checks that a held lock leaves no majority for another lock.
    ///
    /// A node counts for the lock if the token holds all keys there, or if the node does not vote.
    fn check_held_on_majority(&self, lock: &Lock<'_>, world: &mut World, all: &[Process]) {
        if !is_intact(lock, world, all) {
            return;
        }
        let (id, token) = (lock.id, lock.hold.token());
        let counts = |&node: &usize| {
            let has = |key: &usize| {
                let mut claims = world.claims.at(node, *key, world.now);
                claims.any(|claim| claim.token == token && claim.kind != ClaimKind::Waiter)
            };
            lock.keys.iter().all(has) || !votes(world, node)
        };
        let count = (0..world.plan.nodes).filter(counts).count();
        if count < self.majority.size() {
            world.violate(format!("{id} is held, but only {count} nodes have it or do not vote"));
        }
    }

    /// Checks that a renewed lock is not lost while a majority of nodes is well.
    ///
    /// A node is not well if another call held a key there for long, for example because a fault
    /// delayed the RELEASE of an earlier lock. If a fault begins within [`COVERAGE_DELAY`] of the
    /// grant, the lock need only survive one failing node.
    fn check_loss(&self, id: MachineId, lock: &HeldLock, reason: LossReason, world: &mut World) {
        let plan = Arc::clone(&world.plan);
        let (process, from, to) = (id.process, lock.call.started, world.now);
        // Several calls for one of several keys may hold a key in turn, so their times add up.
        let adds_up = plan.kind == LockKind::Permits;
        let is_taken = |node: usize| {
            let claims = &world.claims;
            (lock.keys.iter())
                .any(|&key| claims.was_held_by_another(node, key, id, (from, to), adds_up))
        };
        let (unaffected, failing): (Vec<usize>, Vec<usize>) =
            (0..plan.nodes).partition(|&node| plan.is_well(process, node, from, to));
        let well = unaffected.into_iter().filter(|&node| !is_taken(node)).count();
        let fault_began_early =
            plan.fault_begins(process, lock.since, lock.since + COVERAGE_DELAY, |_| true);
        if well >= self.majority.size() && !(failing.len() > 1 && fault_began_early) {
            world.violate(format!(
                "{id} lost a renewed lock ({reason:?}) while {well} nodes were well"
            ));
        }
    }

    /// Checks a call that failed with `Held`: claims of other calls must have left no majority.
    fn check_refusal(&self, id: MachineId, call: &Call, process: &Process, world: &mut World) {
        let plan = Arc::clone(&world.plan);
        let &Call { key_set, started, ref asked_at, .. } = call;
        let (keys, majority) = (&plan.key_indexes[key_set], self.majority.size());
        if !call.has_asked {
            world.violate(format!("{id} reports Held, but has not asked any node"));
            return;
        }
        let (claims, now) = (&world.claims, world.now);
        let has_revocations =
            plan.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Revoke { .. }));
        let is_writer = |claim: &Claim| claim.mode == Mode::Exclusive;
        let has_writer =
            keys.iter().any(|&key| claims.has_any_between(key, (started, now), is_writer));
        // A reader can join other readers, unless a writer has a claim on any node, or an operator
        // may have revoked the lock.
        let joins_readers = call.spec.mode == Mode::Shared && !has_writer && !has_revocations;
        let is_other = |node: usize, claim: &Claim| {
            if joins_readers && claim.mode == Mode::Shared && claim.kind != ClaimKind::Waiter {
                return false;
            }
            let claimant = claims.call_of(claim.token);
            // A lock that the same process released before the call does not block the call.
            let was_own = || {
                let released = claims.released_at(claim.token).filter(|at| *at <= started);
                // A WAIT may arrive after the release, and is released again.
                claimant.is_some_and(|claimant| claimant.process == id.process)
                    && released.is_some_and(|at| claim.since < at)
                    && released.is_some_and(|at| plan.is_well(id.process, node, at, now))
            };
            claimant != Some(id) && !was_own()
        };
        if plan.any_sets.contains(&key_set) {
            // The call asks for one slot, and then for another that a node knows to be free. It
            // must not fail if a slot was free on all nodes all the time.
            let began = vec![started; plan.nodes];
            let was_free =
                |key: &&usize| !claims.were_taken(&[**key], (&began, now), plan.nodes, is_other);
            let free = keys.iter().find(was_free);
            let is_well = |node| plan.is_well(id.process, node, started, now);
            let limit = process.inputs.now(now).plus(Duration::from_nanos(4 * plan.round_trip));
            let had_time = call.due.is_some_and(|due| !limit.has_reached(due));
            if let Some(key) = free.filter(|_| had_time && (0..plan.nodes).all(is_well)) {
                world.violate(format!("{id} reports Held, but key {key} was free"));
            }
            return;
        }
        if !claims.were_taken(keys, (&asked_at[..], now), majority, is_other) {
            let us = (now - asked_at.iter().max().copied().unwrap_or_default()) / 1000;
            world
                .violate(format!("{id} reports Held, but in the last {us} µs a majority was free"));
        }
    }

    /// Checks the whole fleet. Called once in each interval of [`SAMPLE_EVERY`].
    pub(super) fn sample(&mut self, world: &mut World, processes: &[Process]) {
        for lock in all_locks(processes) {
            self.check_held_on_majority(&lock, world, processes);
        }
        self.check_free_locks_are_granted(world, processes);
        check_nothing_left_behind(world);
        self.check_one_wins(world);
    }

    /// Checks that at least one of the callers that meet wins the free lock.
    fn check_one_wins(&mut self, world: &mut World) {
        let Some(every) = world.plan.meet_every else { return };
        // A call that finds no place in line cannot end a tie.
        let plan = &world.plan;
        let have_places = plan.max_waiters >= plan.processes * plan.callers
            && plan.wait_connections >= plan.callers;
        if !have_places {
            return;
        }
        // Each meeting is checked 750 ms after it begins.
        if world.now % every != 750 * MS {
            return;
        }
        let grants = std::mem::take(&mut self.grants_since_meeting);
        // Skips the first meeting, before which the processes connect.
        if grants == 0 && world.now > 2 * every && world.ended_at.is_none() {
            world.violate("all callers wanted a free lock, and none of them got it".into());
        }
    }

    /// Checks that no call waits too long for a lock that is free.
    ///
    /// A choice of keys is free for a call if no held lock excludes the call, and each process that
    /// calls for one of the keys reaches a majority of nodes on which no lease excludes the call. A
    /// key that a node may keep for another client is not free.
    fn check_free_locks_are_granted(&mut self, world: &mut World, processes: &[Process]) {
        let (plan, now) = (Arc::clone(&world.plan), world.now);
        // With two nodes, a majority needs both. So two queues or two clocks that disagree can
        // block a lock for a long time.
        if plan.nodes == 2 {
            return;
        }
        let mut free_since = BTreeMap::new();
        let wants = |(_, call): (MachineId, &Call)| (call.key_set, call.spec.mode);
        let wanted: Vec<Vec<(usize, Mode)>> =
            processes.iter().map(|process| process.calls().map(wants).collect()).collect();
        let held: Vec<_> =
            all_locks(processes).filter(|lock| is_held(lock, processes, now)).collect();
        let all_calls = processes.iter().flat_map(Process::calls);
        let several: BTreeMap<MachineId, &[usize]> = all_calls
            .filter_map(|(id, call)| Some((id, plan.choices(call.key_set).next()?)))
            .filter(|(_, keys)| keys.len() > 1)
            .collect();
        // A node keeps free keys for a client that waits for other keys as well. One node that does
        // is enough, because a majority may need it.
        let is_kept = |keys: &[usize]| {
            let places = (0..plan.nodes).flat_map(|node| keys.iter().map(move |&key| (node, key)));
            let mut claims = places.flat_map(|(node, key)| world.claims.at(node, key, now));
            claims.any(|claim| {
                let call = world.claims.call_of(claim.token);
                let waits_for = call.and_then(|call| several.get(&call));
                claim.kind == ClaimKind::Waiter
                    && waits_for.is_some_and(|all| all.iter().any(|key| !keys.contains(key)))
            })
        };
        // The longest time for which an attempt that fails holds a node.
        let at_most = 100 * MS + 4 * plan.round_trip;
        let is_free = |keys: &[usize], joins_readers: bool, node: usize| {
            keys.iter().all(|&key| {
                world.claims.at(node, key, now).all(|claim| {
                    claim.kind == ClaimKind::Waiter
                        || joins_readers && claim.mode == Mode::Shared
                        || claim.since + at_most > now
                })
            })
        };
        let reaches_majority = |process: usize, keys: &[usize], joins_readers: bool| {
            let is_good = |&node: &usize| {
                plan.is_well(process, node, now.saturating_sub(SAMPLE_EVERY), now)
                    && votes(world, node)
                    && is_free(keys, joins_readers, node)
            };
            !processes[process].is_paused()
                && (0..plan.nodes).filter(is_good).count() >= self.majority.size()
        };
        let mut stuck = None;
        for process in processes {
            for (id, call) in process.calls() {
                for (choice, keys) in plan.choices(call.key_set).enumerate() {
                    let has_key = |key: &usize| keys.contains(key);
                    let overlaps =
                        |&(set, _): &(usize, Mode)| plan.key_indexes[set].iter().any(has_key);
                    // Readers wait behind a writer.
                    let has_writer = (wanted.iter().flatten())
                        .any(|wanted| overlaps(wanted) && wanted.1 == Mode::Exclusive);
                    let joins_readers = call.spec.mode == Mode::Shared && !has_writer;
                    let excludes = |lock: &Lock<'_>| {
                        lock.keys.iter().any(has_key)
                            && !(joins_readers && lock.hold.mode() == Mode::Shared)
                    };
                    let is_free_for_call = !held.iter().any(excludes)
                        && !is_kept(keys)
                        && (wanted.iter().enumerate())
                            .filter(|(_, wanted)| wanted.iter().any(overlaps))
                            .all(|(other, _)| reaches_majority(other, keys, joins_readers));
                    if !is_free_for_call {
                        continue;
                    }
                    let known = self.free_since.get(&(id, choice)).copied().unwrap_or(now);
                    let granted = keys.iter().map(|&key| self.last_granted_at[key]).max();
                    // Readers do not compete with each other.
                    let granted = granted.filter(|_| !joins_readers);
                    let since = known.max(granted.unwrap_or_default());
                    if now - since > patience(&plan, process, &call.spec) {
                        stuck = Some((id, (now - since) / MS));
                    }
                    free_since.insert((id, choice), since);
                }
            }
        }
        self.free_since = free_since;
        if let Some((id, ms)) = stuck {
            world.violate(format!("{id} has waited {ms} ms for a free lock"));
        }
    }

    /// Checks that no call, lease, waiter or key is left at the end.
    pub(super) fn check_end(world: &mut World, processes: &[Process]) {
        for process in processes.iter().filter(|process| !process.is_idle()) {
            world.violate(format!("p{} is not idle: {:?}", process.index, process.shard));
        }
        for node in 0..world.hosts.len() {
            let now = world.now;
            let host = &mut world.hosts[node];
            host.server.expire_keys(host.clock.at(now));
            let (leases, waiters) = (host.server.node.leases(), host.server.node.waiters());
            let (keys, blocked) = (host.server.keys.iter().count(), host.blocked());
            if leases + waiters + keys + blocked > 0 {
                world.violate(format!(
                    "n{node} is left with {leases} leases, {waiters} waiters, {keys} keys and \
                     {blocked} blocked clients"
                ));
            }
        }
    }
}

/// Checks that no two locks that have a key in common are held at the same time, unless both are
/// shared.
fn check_exclusion(lock: &Lock<'_>, world: &mut World, all: &[Process]) {
    let is_other = |other: &Lock<'_>| {
        let overlaps = lock.keys.iter().any(|key| other.keys.contains(key));
        let may_share = lock.hold.mode() == Mode::Shared && other.hold.mode() == Mode::Shared;
        other.id != lock.id && overlaps && !may_share && is_intact(other, world, all)
    };
    if is_intact(lock, world, all)
        && let Some(other) = all_locks(all).find(is_other)
    {
        world.violate(format!("two holders: {} and {}", lock.id, other.id));
    }
}

/// Records the largest number of locks of one set of keys that are held together.
fn record_together(lock: &Lock<'_>, world: &mut World, all: &[Process]) {
    let is_of_set =
        |other: &Lock<'_>| other.call.key_set == lock.call.key_set && is_intact(other, world, all);
    let together = all_locks(all).filter(is_of_set).count();
    let most = &mut world.report.most_together;
    *most = together.max(*most);
}

/// Checks that no node counts as silent because the process itself was paused.
///
/// After a pause that ends about when the time of a node ends, no timer is late, so the call cannot
/// know of the pause.
fn check_own_pause(
    id: MachineId,
    call: &Call,
    answers: &[Answer],
    process: &Process,
    world: &mut World,
) {
    let plan = Arc::clone(&world.plan);
    let resumed_at = process.facts.resumed_at;
    // The client's clock may be rounded.
    let unnoticed = LATE_TIMER + Duration::from_millis(1);
    for (node, answer) in answers.iter().enumerate() {
        let &Answer::Failed(NodeError::TimedOut { limit_ms }) = answer else { continue };
        let sent_at = call.sent_at[node];
        let limit_at = sent_at + limit_ms * MS;
        let ended_at_limit = Duration::from_nanos(resumed_at.abs_diff(limit_at)) <= unnoticed;
        let was_late = resumed_at > sent_at + SHORT_PAUSE || resumed_at + SHORT_PAUSE < world.now;
        let had_time = was_late && !ended_at_limit && 2 * plan.round_trip < world.now - sent_at;
        let process = process.index;
        if had_time && plan.was_only_paused(process, node, call.started, world.now) {
            world.violate(format!("{id} counts n{node} as silent, but only p{process} paused"));
        }
    }
}

/// Returns the longest time for which a call may wait for a free lock.
fn patience(plan: &Plan, process: &Process, spec: &Spec) -> Ns {
    // Each process may make a first attempt, which holds a node for a round trip.
    let newcomers = plan.round_trip * plan.processes as u64;
    let limit = u64::try_from(process.inputs.longest_timeout(spec).as_nanos()).unwrap_or_default();
    // Clients without a place in the queue of a node poll, and compete with each other. With an
    // even number of nodes, each half of the nodes can have a queue of its own, and the clients
    // need more time to agree. Clients warn of such fleets.
    let slow = plan.max_waiters < plan.processes || plan.nodes.is_multiple_of(2);
    let crowd = if slow { 10 * SECOND } else { 2 * SECOND };
    // A client that polls asks for one slot at a time, chosen at random.
    let polls = plan.wait_connections < plan.callers;
    let slots = spec.any.as_ref().filter(|_| polls).map_or(1, Keys::len);
    let crowd = crowd * u64::try_from(slots).unwrap_or(1);
    crowd + newcomers + 4 * limit + SAMPLE_EVERY
}

/// Checks that no node has a lease of a token once its RELEASE is over.
fn check_nothing_left_behind(world: &mut World) {
    let age = 100 * MS + 4 * world.plan.round_trip;
    for node in 0..world.plan.nodes {
        for key in 0..world.plan.names.len() {
            if let Some((token, call)) = world.claims.left_behind(node, key, world.now, age) {
                let (process, token) = (call.process, world.short(token));
                world.violate(format!("p{process} has released {token}, but n{node} has it"));
            }
        }
    }
}

fn votes(world: &World, node: usize) -> bool {
    let host = &world.hosts[node];
    host.server.node.abstention(host.clock.at(world.now).monotonic).is_none()
        && host.state == super::host::State::Up
}

fn lock_of(processes: &[Process], id: MachineId) -> Option<Lock<'_>> {
    processes[id.process].lock(id.number)
}

fn all_locks(processes: &[Process]) -> impl Iterator<Item = Lock<'_>> {
    processes.iter().flat_map(Process::locks)
}

/// Returns whether a lock is held, and no operator has ended it on any node.
fn is_intact(lock: &Lock<'_>, world: &World, all: &[Process]) -> bool {
    is_held(lock, all, world.now) && !was_ended(world, lock)
}

/// Returns whether an operator has ended the lock on any node. Its holder may not know that yet.
fn was_ended(world: &World, lock: &Lock<'_>) -> bool {
    world.ended_by_operator.contains(&lock.hold.token())
}

fn is_held(lock: &Lock<'_>, all: &[Process], now: Ns) -> bool {
    let now = all[lock.id.process].inputs.now(now);
    !matches!(lock.hold.ownership(now), Ownership::Lost(_))
}
