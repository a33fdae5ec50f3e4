//! The properties that must hold in every run.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorlock_core::Fence;
use quorlock_core::client::{Keys, Mode, Reason, Spec};
use quorlock_core::quorum::{ExtensionVerdict, LossReason, Majority, Ownership};

use super::claims::{Claim, ClaimKind};
use super::clock::{MS, Ns, SECOND};
use super::plan::{FaultKind, LockKind, Plan};
use super::process::{Call, Lock, Machine, Process};
use super::simulation::SAMPLE_EVERY;
use super::world::{Note, World};

/// A reader that called longer ago than this is not compared with the writers that wait now.
const FRESH: Ns = 2 * SAMPLE_EVERY;

/// How long a new lock may take to reach nodes whose keys other clients' attempts hold in turn.
const SPREAD: Ns = 1000 * MS;

/// The checkers of a run.
pub(super) struct Checks {
    majority: Majority,
    /// The process and the machine of each lock that may be held.
    held: Vec<(usize, u64)>,
    /// The largest fence of each key.
    fences: Vec<Fence>,
    /// The last fence of an exclusive lock of each key.
    exclusive_fences: Vec<Fence>,
    /// When each key was last granted.
    last_granted_at: Vec<Ns>,
    /// For the process, the machine and each choice of a call: the time since which the call has
    /// had no reason to wait.
    unhindered: BTreeMap<(usize, u64, usize), Ns>,
    /// For the process and the machine of each writer that waits: the time since which it waits and
    /// reaches all nodes.
    writers: BTreeMap<(usize, u64), Ns>,
    /// Number of grants since the last check of a meeting.
    grants_since_meeting: u64,
}

impl Checks {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            majority: Majority::of(plan.nodes).expect("a fleet has nodes"),
            held: Vec::new(),
            fences: vec![Fence::ZERO; plan.names.len()],
            exclusive_fences: vec![Fence::ZERO; plan.names.len()],
            writers: BTreeMap::new(),
            last_granted_at: vec![0; plan.names.len()],
            unhindered: BTreeMap::new(),
            grants_since_meeting: 0,
        }
    }

    /// Checks the facts that the last event left behind.
    pub(super) fn check_notes(&mut self, world: &mut World, processes: &[Process]) {
        for note in std::mem::take(&mut world.notes) {
            match note {
                Note::Granted { process, machine } => {
                    self.check_fence_grows(process, machine, world, processes);
                    self.check_exclusion(process, machine, world, processes);
                    self.check_overtakes_no_writer(process, machine, world, processes);
                    self.held.push((process, machine));
                    self.check_permits(process, machine, world, processes);
                    self.grants_since_meeting += 1;
                    self.check_held_on_majority(process, machine, world, processes);
                }
                Note::Extended { process, machine, verdict, round_began } => {
                    check_ended_not_extended(
                        (process, machine),
                        verdict,
                        round_began,
                        world,
                        processes,
                    );
                    self.check_revoked_not_extended(
                        (process, machine),
                        verdict,
                        round_began,
                        world,
                        processes,
                    );
                    self.check_exclusion(process, machine, world, processes);
                    self.check_held_on_majority(process, machine, world, processes);
                }
                Note::Released {
                    process,
                    call,
                    members,
                    ownership,
                    renewed,
                    call_started,
                    since,
                } => {
                    self.forget(process, call);
                    if let (Ownership::Lost(end), true) = (ownership, renewed) {
                        let lock = (&members[..], call_started, since);
                        self.check_loss(process, call, end, lock, world);
                    }
                }
                Note::Detached { process, call } => self.forget(process, call),
                Note::Failed {
                    process,
                    call,
                    key_set,
                    mode,
                    reason,
                    attached,
                    started,
                    had_time,
                    asked_at,
                } => {
                    if reason == Reason::Held && !attached {
                        let wanted = (key_set, mode, had_time);
                        self.check_refusal(process, call, wanted, (started, asked_at), world);
                    }
                }
            }
        }
    }

    fn forget(&mut self, process: usize, call: u64) {
        let (_, machine) = Process::split_id(call);
        self.held.retain(|&held| held != (process, machine));
    }

    /// Checks that fences grow in the order of grants. The fences of readers that may hold the lock
    /// together have no order.
    fn check_fence_grows(
        &mut self,
        process: usize,
        machine: u64,
        world: &mut World,
        all: &[Process],
    ) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        // An operator has ended this lock on a node. A lock with a larger fence may have been
        // acquired first.
        if was_ended(world, lock) {
            return;
        }
        let (fence, mode) = (lock.hold.fence(), lock.hold.mode());
        for &key in &lock.members {
            let before = match mode {
                Mode::Exclusive => self.fences[key],
                Mode::Shared => self.exclusive_fences[key],
            };
            if fence <= before {
                world.violate(format!(
                    "p{process}/{machine} has fence {fence} for key {key}, after {before}"
                ));
            }
            self.fences[key] = self.fences[key].max(fence);
            if mode == Mode::Exclusive {
                self.exclusive_fences[key] = fence;
            }
            self.last_granted_at[key] = world.now;
        }
    }

    /// Checks that a lock is not extended after a majority of nodes has answered that it is
    /// revoked, however far apart these answers were.
    fn check_revoked_not_extended(
        &self,
        (process, machine): (usize, u64),
        verdict: ExtensionVerdict,
        round_began: Ns,
        world: &mut World,
        all: &[Process],
    ) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        let token = lock.hold.token();
        let answers = world
            .revoked_answers
            .iter()
            .filter(|&&(of, _, at)| of == token && at < round_began)
            .count();
        if answers >= self.majority.size() && matches!(verdict, ExtensionVerdict::Extended(_)) {
            world.violate(format!(
                "p{process}/{machine} is extended after {answers} nodes revoked it"
            ));
        }
    }

    /// Checks that no two locks that have a key in common are held at the same time, unless both
    /// are shared.
    fn check_exclusion(
        &mut self,
        process: usize,
        machine: u64,
        world: &mut World,
        all: &[Process],
    ) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        if !is_held(all, process, lock, world.now) || was_ended(world, lock) {
            return;
        }
        for &(other_process, other_machine) in &self.held {
            if (other_process, other_machine) == (process, machine) {
                continue;
            }
            let Some(other) = lock_of(all, other_process, other_machine) else { continue };
            let overlaps = lock.members.iter().any(|key| other.members.contains(key));
            let may_share = lock.hold.mode() == Mode::Shared && other.hold.mode() == Mode::Shared;
            if overlaps
                && !may_share
                && is_held(all, other_process, other, world.now)
                && !was_ended(world, other)
            {
                world.violate(format!(
                    "two holders: p{process}/{machine} and p{other_process}/{other_machine}"
                ));
            }
        }
    }

    /// Checks that a semaphore has no more holders than permits. Also records the largest number of
    /// locks of one set of keys that are held together.
    fn check_permits(&self, process: usize, machine: u64, world: &mut World, all: &[Process]) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        let of_set = |&&(process, machine): &&(usize, u64)| {
            lock_of(all, process, machine).is_some_and(|other| {
                other.key_set == lock.key_set
                    && is_held(all, process, other, world.now)
                    && !was_ended(world, other)
            })
        };
        let together = self.held.iter().filter(of_set).count();
        world.most_together = world.most_together.max(together);
        let set = &world.plan.members[lock.key_set];
        if world.plan.any_sets.contains(&lock.key_set) && together > set.len() {
            let permits = set.len();
            world.violate(format!("{together} holders of a semaphore with {permits} permits"));
        }
    }

    /// Checks that a reader does not overtake a writer that had waited for long when the reader
    /// called.
    fn check_overtakes_no_writer(
        &self,
        process: usize,
        machine: u64,
        world: &mut World,
        all: &[Process],
    ) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        let is_old = lock.call_started < world.now.saturating_sub(FRESH);
        if lock.hold.mode() == Mode::Exclusive || lock.was_attached || is_old {
            return;
        }
        let plan = Arc::clone(&world.plan);
        // While no other client holds the lock, a reader may acquire it although the queue node
        // refuses.
        let is_beside_another = self.held.iter().any(|&(process, machine)| {
            lock_of(all, process, machine).is_some_and(|other| {
                other.members == lock.members && is_held(all, process, other, world.now)
            })
        });
        if !is_beside_another {
            return;
        }
        for (&(writer, call), &since) in &self.writers {
            let Some(waiting) = all[writer].unended_call(call) else { continue };
            let wants = plan.members[waiting.key_set].iter().any(|key| lock.members.contains(key));
            let is_up = |node| plan.is_well(process, node, since, world.now) && votes(world, node);
            let limit = patience(&plan, &all[writer], waiting.acquire.spec());
            // A node treats a request as a repair if its fence is older than the writer's wait.
            let limit = limit + plan.clock_spread();
            // A writer that does not wait on the queue node may wait for several locks in turn.
            let ends = 3 * (plan.habits.hold.1 + plan.ttl_max());
            let began = lock.call_started;
            let in_place = in_place_since(world, &all[writer], call, waiting.key_set)
                .filter(|since| began > since + limit);
            let overtakes = in_place.is_some() || began > since + limit + ends;
            if wants && overtakes && (0..plan.nodes).all(is_up) {
                let (since, place) =
                    in_place.map_or((since, "in all"), |since| (since, "in its place"));
                let ms = (began - since) / MS;
                world.violate(format!(
                    "p{process}/{machine} acquired a shared lock, but the writer p{writer}/{call} \
                     had waited {ms} ms {place} when p{process}/{machine} called"
                ));
            }
        }
    }

    /// Records the writers that wait and that no fault keeps from their place in a queue.
    fn note_writers(&mut self, world: &World, processes: &[Process]) {
        let plan = Arc::clone(&world.plan);
        if plan.kind != LockKind::Shared || plan.max_waiters < plan.processes || plan.nodes == 2 {
            return;
        }
        let mut writers = BTreeMap::new();
        for process in processes {
            let index = process.index;
            let from = world.now.saturating_sub(SAMPLE_EVERY);
            let is_up = |node| plan.is_well(index, node, from, world.now) && votes(world, node);
            if process.paused > 0 || !(0..plan.nodes).all(is_up) {
                continue;
            }
            for (machine, call) in process.calls() {
                let spec = call.acquire.spec();
                if spec.mode == Mode::Exclusive && spec.keys.len() == 1 {
                    let known = self.writers.get(&(index, machine));
                    writers.insert((index, machine), known.copied().unwrap_or(world.now));
                }
            }
        }
        self.writers = writers;
    }

    /// Checks that a held lock leaves no majority for another lock.
    ///
    /// A node counts for the lock if the token holds all keys there, or if the node does not vote.
    fn check_held_on_majority(
        &mut self,
        process: usize,
        machine: u64,
        world: &mut World,
        all: &[Process],
    ) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        if !is_held(all, process, lock, world.now) || was_ended(world, lock) {
            return;
        }
        let (token, now) = (lock.hold.token(), world.now);
        let holds = |&node: &usize| {
            let has = |key: &usize| {
                let mut claims = world.claims.at(node, *key, now);
                claims.any(|claim| claim.token == token && claim.kind != ClaimKind::Waiter)
            };
            lock.members.iter().all(has) || !votes(world, node)
        };
        let count = (0..world.plan.nodes).filter(holds).count();
        if count < self.majority.size() {
            world.violate(format!("p{process}/{machine} is held, but on {count} nodes only"));
        }
    }

    /// Checks that a renewed lock is not lost while a majority of nodes is well.
    ///
    /// A node is not well if another call held a key there for long, for example because a fault
    /// delayed the RELEASE of an earlier lock. A lock that is younger than [`SPREAD`] when a fault
    /// begins may not be on all nodes yet, so it must survive one failing node, but not two.
    fn check_loss(
        &mut self,
        process: usize,
        call: u64,
        end: LossReason,
        (members, call_started, since): (&[usize], Ns, Ns),
        world: &mut World,
    ) {
        let plan = Arc::clone(&world.plan);
        let (from, to) = (call_started, world.now);
        // Several calls for one of several keys may hold a key in turn, so their times add up.
        let adds_up = plan.kind == LockKind::Permits;
        let is_free = |node: &usize| {
            !members
                .iter()
                .any(|&key| world.claims.was_held_by_another(*node, key, call, (from, to), adds_up))
        };
        let nodes = (0..plan.nodes).filter(|&node| plan.is_well(process, node, from, to));
        let well = nodes.filter(is_free).count();
        let is_failing = |node: &usize| !plan.is_well(process, *node, from, to);
        let failing = (0..plan.nodes).filter(is_failing).count();
        let is_new_at_fault = plan.fault_begins(process, since, since + SPREAD);
        if well >= self.majority.size() && !(failing > 1 && is_new_at_fault) {
            let (_, machine) = Process::split_id(call);
            world.violate(format!(
                "p{process}/{machine} lost a renewed lock ({end:?}) while {well} nodes were well"
            ));
        }
    }

    /// Checks a call that failed with `Held`: claims of other calls must have left no majority.
    fn check_refusal(
        &mut self,
        process: usize,
        call: u64,
        (key_set, mode, had_time): (usize, Mode, bool),
        (started, asked_at): (Ns, Option<Vec<Ns>>),
        world: &mut World,
    ) {
        let plan = Arc::clone(&world.plan);
        let (members, majority) = (&plan.members[key_set], self.majority.size());
        let (_, machine) = Process::split_id(call);
        let Some(asked_at) = asked_at else {
            world.violate(format!("p{process}/{machine} reports Held, but has not asked any node"));
            return;
        };
        let (claims, now) = (&world.claims, world.now);
        let has_revocations =
            plan.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Revoke { .. }));
        let has_writer = members.iter().any(|&key| {
            let is_writer = |claim: &Claim| claim.mode == Mode::Exclusive;
            claims.has_any_between(key, (started, now), is_writer)
        });
        // A reader can join other readers, unless a writer has a claim on any node, or an operator
        // may have revoked the lock.
        let is_open = mode == Mode::Shared && !has_writer && !has_revocations;
        let is_other = |node: usize, claim: &Claim| {
            if is_open && claim.mode == Mode::Shared && claim.kind != ClaimKind::Waiter {
                return false;
            }
            let token = claim.token;
            // A lock that the same process released before the call does not block the call.
            let was_own = || {
                let owner = claims.call_of(token).map(|call| Process::split_id(call).0);
                let released = claims.released_at(token).filter(|at| *at <= started);
                owner == Some(process as u64)
                    && released.is_some_and(|at| plan.is_well(process, node, at, now))
            };
            claims.call_of(token) != Some(call) && !was_own()
        };
        if plan.any_sets.contains(&key_set) {
            // The call asks for one slot, and then for another that a node knows to be free. It
            // must not fail if a slot was free on all nodes all the time.
            let began = vec![started; plan.nodes];
            let was_taken =
                |key: &&usize| claims.were_taken(&[**key], (&began, now), plan.nodes, is_other);
            let free = members.iter().find(|key| !was_taken(key)).copied();
            let is_well = |node| plan.is_well(process, node, started, now);
            if let Some(key) = free.filter(|_| had_time && (0..plan.nodes).all(is_well)) {
                world.violate(format!("p{process}/{machine} reports Held, but key {key} was free"));
            }
            return;
        }
        if !claims.were_taken(members, (&asked_at, now), majority, is_other) {
            let us = (now - asked_at.iter().max().copied().unwrap_or_default()) / 1000;
            world.violate(format!(
                "p{process}/{machine} reports Held, but in the last {us} µs a majority was free"
            ));
        }
    }

    /// Checks the whole fleet. Called once in each interval of [`SAMPLE_EVERY`].
    pub(super) fn sample(&mut self, world: &mut World, processes: &[Process]) {
        let held = std::mem::take(&mut self.held);
        for &(process, machine) in &held {
            self.check_held_on_majority(process, machine, world, processes);
        }
        self.held = held;
        self.check_free_locks_are_granted(world, processes);
        self.note_writers(world, processes);
        check_nothing_left_behind(world);
        self.check_one_wins(world);
    }

    /// Checks that at least one of the callers that meet wins the free lock.
    fn check_one_wins(&mut self, world: &mut World) {
        let Some(every) = world.plan.meet_every else { return };
        if world.now % every != 750 * MS {
            return;
        }
        let grants = std::mem::take(&mut self.grants_since_meeting);
        // Skips the first meeting, before which the processes connect.
        if grants == 0 && world.now > 2 * every && !world.is_ending {
            world.violate("all callers wanted a free lock, and none of them got it".into());
        }
    }

    /// Checks that no call waits too long for a lock that is free.
    fn check_free_locks_are_granted(&mut self, world: &mut World, processes: &[Process]) {
        let (plan, now) = (Arc::clone(&world.plan), world.now);
        // With two nodes, a majority needs both. So two queues or two clocks that disagree can
        // block a lock for a long time.
        if plan.nodes == 2 {
            return;
        }
        let mut unhindered = BTreeMap::new();
        let wants = |(_, call): (u64, &Call)| (call.key_set, call.acquire.spec().mode);
        let wanted: Vec<Vec<(usize, Mode)>> =
            processes.iter().map(|process| process.calls().map(wants).collect()).collect();
        let held: Vec<&Lock> = (self.held.iter())
            .filter_map(|&(process, machine)| {
                let lock = lock_of(processes, process, machine)?;
                is_held(processes, process, lock, now).then_some(lock)
            })
            .collect();
        // The longest time for which an attempt that fails holds a node.
        let at_most = 100 * MS + 4 * plan.round_trip;
        let is_free = |keys: &[usize], mode: Mode, node: usize| {
            keys.iter().all(|&key| {
                let mut claims = world.claims.at(node, key, now);
                claims.all(|claim| {
                    let is_open = mode == Mode::Shared && claim.mode == Mode::Shared;
                    claim.kind == ClaimKind::Waiter || is_open || claim.since + at_most > now
                })
            })
        };
        let reaches_majority = |process: usize, keys: &[usize], mode: Mode| {
            let is_good = |&node: &usize| {
                plan.is_well(process, node, now.saturating_sub(SAMPLE_EVERY), now)
                    && votes(world, node)
                    && is_free(keys, mode, node)
            };
            processes[process].paused == 0
                && (0..plan.nodes).filter(is_good).count() >= self.majority.size()
        };
        let mut stuck = None;
        for process in processes {
            for (machine, call) in process.calls() {
                let mode = call.acquire.spec().mode;
                for (choice, keys) in plan.choices(call.key_set).enumerate() {
                    let has_key = |key: &usize| keys.contains(key);
                    let overlaps =
                        |&(set, _): &(usize, Mode)| plan.members[set].iter().any(has_key);
                    // Readers wait behind a writer.
                    let has_writer = wanted
                        .iter()
                        .flatten()
                        .any(|wanted| overlaps(wanted) && wanted.1 == Mode::Exclusive);
                    let is_open = mode == Mode::Shared && !has_writer;
                    let hinders = |lock: &&Lock| {
                        lock.members.iter().any(has_key)
                            && !(is_open && lock.hold.mode() == Mode::Shared)
                    };
                    let beside = if is_open { Mode::Shared } else { Mode::Exclusive };
                    let is_unhindered = !held.iter().any(hinders)
                        && (wanted.iter().enumerate())
                            .filter(|(_, wanted)| wanted.iter().any(overlaps))
                            .all(|(other, _)| reaches_majority(other, keys, beside));
                    if !is_unhindered {
                        continue;
                    }
                    let call_choice = (process.index, machine, choice);
                    let known = self.unhindered.get(&call_choice).copied().unwrap_or(now);
                    let granted = keys.iter().map(|&key| self.last_granted_at[key]).max();
                    // Readers do not compete with each other.
                    let granted = granted.filter(|_| !is_open);
                    let since = known.max(granted.unwrap_or_default());
                    if now - since > patience(&plan, process, call.acquire.spec()) {
                        stuck = Some((process.index, machine, (now - since) / MS));
                    }
                    unhindered.insert(call_choice, since);
                }
            }
        }
        self.unhindered = unhindered;
        if let Some((process, machine, ms)) = stuck {
            world.violate(format!("p{process}/{machine} has waited {ms} ms for a free lock"));
        }
    }

    /// Checks that no call, lease, waiter or key is left at the end.
    pub(super) fn check_end(world: &mut World, processes: &[Process]) {
        for process in processes {
            if !process.is_idle() {
                let what = process.describe();
                world.violate(format!("p{} is not idle: {what:?}", process.index));
            }
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

/// Returns the time since which a call for one key waits on the queue node of the key; `None` if
/// the call does not wait there.
fn in_place_since(world: &World, process: &Process, call: u64, key_set: usize) -> Option<Ns> {
    let (key, owner) = (world.plan.members[key_set][0], process.global_id(call));
    let is_its = |claim: &Claim| {
        claim.kind == ClaimKind::Waiter && world.claims.call_of(claim.token) == Some(owner)
    };
    world.claims.at(world.queue_node(key), key, world.now).find(is_its).map(|claim| claim.since)
}

/// Returns the longest time for which a call may wait for a free lock.
fn patience(plan: &Plan, process: &Process, spec: &Spec) -> Ns {
    // Each process may make a first attempt, which holds a node for a round trip.
    let newcomers = plan.round_trip * plan.processes as u64;
    let limit = u64::try_from(process.longest_timeout(spec).as_nanos()).unwrap_or_default();
    // Clients without a place in the queue of a node poll, and compete with each other. With an
    // even number of nodes, each half of the nodes can have a queue of its own, and the clients
    // need more time to agree. Clients warn of such fleets.
    let slow = plan.max_waiters < plan.processes || plan.nodes.is_multiple_of(2);
    let crowd = if slow { 10 * SECOND } else { 2 * SECOND };
    // A client that polls asks for one slot at a time, chosen at random.
    let polls = plan.seats < plan.callers;
    let slots = spec.any.as_ref().filter(|_| polls).map_or(1, Keys::len);
    let crowd = crowd * u64::try_from(slots).unwrap_or(1);
    crowd + newcomers + 4 * limit + SAMPLE_EVERY
}

/// Checks that a node which has answered the RELEASE of a token has no lease of the token.
fn check_nothing_left_behind(world: &mut World) {
    let age = 100 * MS + 4 * world.plan.round_trip;
    for node in 0..world.plan.nodes {
        for key in 0..world.plan.names.len() {
            if let Some((token, call)) = world.claims.left_behind(node, key, world.now, age) {
                let ((process, _), token) = (Process::split_id(call), world.short(token));
                world.violate(format!("p{process} has released {token}, but n{node} has it"));
            }
        }
    }
}

/// Checks that a lock is not extended after an operator has ended it on a majority.
fn check_ended_not_extended(
    (process, machine): (usize, u64),
    verdict: ExtensionVerdict,
    round_began: Ns,
    world: &mut World,
    all: &[Process],
) {
    let Some(lock) = lock_of(all, process, machine) else { return };
    let token = lock.hold.token();
    let ended =
        world.ended_on_majority.iter().any(|&(ended, at)| ended == token && at < round_began);
    if ended && matches!(verdict, ExtensionVerdict::Extended(_)) {
        world.violate(format!("p{process}/{machine} is extended after an operator has ended it"));
    }
}

fn votes(world: &World, node: usize) -> bool {
    let host = &world.hosts[node];
    host.server.node.abstention(host.clock.at(world.now).monotonic).is_none()
        && host.state == super::host::State::Up
}

fn lock_of(processes: &[Process], process: usize, machine: u64) -> Option<&Lock> {
    match &processes[process].machines.get(&machine)?.machine {
        Machine::Lock(lock) => Some(lock),
        Machine::Call(_) | Machine::Release(_) => None,
    }
}

/// Returns whether an operator has ended the lock on any node. Its holder may not know that yet.
fn was_ended(world: &World, lock: &Lock) -> bool {
    let token = lock.hold.token();
    world.ended_by_operator.contains(&token)
}

fn is_held(processes: &[Process], process: usize, lock: &Lock, now: Ns) -> bool {
    let now = processes[process].shared.now(now);
    !matches!(lock.hold.ownership(now), Ownership::Lost(_))
}
