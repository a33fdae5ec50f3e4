//! The properties that must hold in every run.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorlock_core::Fence;
use quorlock_core::client::{Keys, Mode, Reason, Spec};
use quorlock_core::quorum::{End, ExtensionVerdict, Majority, Ownership};

use super::claims::{Claim, Kind};
use super::clock::{MS, Ns, SECOND};
use super::plan::{FaultKind, Kind as LockKind, Plan};
use super::process::{Call, Lock, Machine, Process};
use super::world::{Note, World};

/// Interval between two checks of the whole fleet.
const SAMPLED: Ns = 250 * MS;
/// Longest time from the call of a reader to its grant for which the writers that wait now also
/// waited then.
const FRESH: Ns = 2 * SAMPLED;

/// The checkers of a run.
pub(super) struct Checks {
    majority: Majority,
    /// The locks that may be held.
    held: Vec<(usize, u64)>,
    /// The largest fence of each key, that of an exclusive lock, and the time of the last grant.
    fences: Vec<Fence>,
    exclusive: Vec<Fence>,
    granted: Vec<Ns>,
    /// The time since which no call has had a reason to wait for its lock, of several keys for each
    /// of its choices.
    unhindered: BTreeMap<(usize, u64, usize), Ns>,
    /// The time since which the call of a writer waits and reaches all nodes.
    writers: BTreeMap<(usize, u64), Ns>,
    /// Number of grants since the last meeting of the callers.
    met: u64,
}

impl Checks {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            majority: Majority::of(plan.nodes).expect("a fleet has nodes"),
            held: Vec::new(),
            fences: vec![Fence::ZERO; plan.names.len()],
            exclusive: vec![Fence::ZERO; plan.names.len()],
            writers: BTreeMap::new(),
            granted: vec![0; plan.names.len()],
            unhindered: BTreeMap::new(),
            met: 0,
        }
    }

    /// Checks what happened in the last event.
    pub(super) fn take_notes(&mut self, world: &mut World, processes: &[Process]) {
        for note in std::mem::take(&mut world.notes) {
            match note {
                Note::Granted { process, machine } => {
                    self.fence_grows(process, machine, world, processes);
                    self.excludes_others(process, machine, world, processes);
                    self.gives_way(process, machine, world, processes);
                    self.held.push((process, machine));
                    self.are_no_more_than_permits(process, machine, world, processes);
                    self.met += 1;
                    self.is_held_on_majority(process, machine, world, processes);
                }
                Note::Extended { process, machine, verdict, round_began } => {
                    is_not_revived((process, machine), verdict, round_began, world, processes);
                    self.is_not_kept((process, machine), verdict, round_began, world, processes);
                    self.excludes_others(process, machine, world, processes);
                    self.is_held_on_majority(process, machine, world, processes);
                }
                Note::Released { process, call, members, ownership, renewed, call_started } => {
                    self.forget(process, call);
                    if let (Ownership::Lost(end), true) = (ownership, renewed) {
                        let lock = (&members[..], call_started);
                        self.was_lost_for_a_reason(process, call, end, lock, world);
                    }
                }
                Note::Detached { process, call } => self.forget(process, call),
                Note::Failed {
                    process,
                    call,
                    keys,
                    mode,
                    reason,
                    attached,
                    started,
                    had_time,
                    looks,
                } => {
                    if reason == Reason::Held && !attached {
                        let wanted = (keys, mode, had_time);
                        self.was_taken(process, call, wanted, (started, looks), world);
                    }
                }
            }
        }
    }

    fn forget(&mut self, process: usize, call: u64) {
        let machine = call & ((1 << 40) - 1);
        self.held.retain(|&held| held != (process, machine));
    }

    /// Checks that fences grow in the order of grants. Those of readers that may read together are
    /// in no order.
    fn fence_grows(&mut self, process: usize, machine: u64, world: &mut World, all: &[Process]) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        // The fence shows to the resource that an operator ended the lock.
        if was_ended(world, lock) {
            return;
        }
        let (fence, mode) = (lock.hold.fence(), lock.hold.mode());
        for &key in &lock.members {
            let before = match mode {
                Mode::Exclusive => self.fences[key],
                Mode::Shared => self.exclusive[key],
            };
            if fence <= before {
                world.violate(format!(
                    "p{process}/{machine} has fence {fence} for key {key}, after {before}"
                ));
            }
            self.fences[key] = self.fences[key].max(fence);
            if mode == Mode::Exclusive {
                self.exclusive[key] = fence;
            }
            self.granted[key] = world.now;
        }
    }

    /// Checks that a lock is not extended after a majority of nodes has reported its revocation,
    /// however far apart these reports were.
    fn is_not_kept(
        &self,
        (process, machine): (usize, u64),
        verdict: ExtensionVerdict,
        round_began: Ns,
        world: &mut World,
        all: &[Process],
    ) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        let token = lock.hold.token();
        let told =
            world.revoked.iter().filter(|&&(of, _, at)| of == token && at < round_began).count();
        if told >= self.majority.size() && matches!(verdict, ExtensionVerdict::Extended(_)) {
            world
                .violate(format!("p{process}/{machine} is extended after {told} nodes revoked it"));
        }
    }

    /// Checks that no two locks that have a key in common are held at the same time, unless both
    /// are shared.
    fn excludes_others(
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

    /// Checks that a semaphore has no more holders than permits, and counts holders.
    fn are_no_more_than_permits(
        &self,
        process: usize,
        machine: u64,
        world: &mut World,
        all: &[Process],
    ) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        let of_set = |&&(process, machine): &&(usize, u64)| {
            lock_of(all, process, machine).is_some_and(|other| {
                other.keys == lock.keys
                    && is_held(all, process, other, world.now)
                    && !was_ended(world, other)
            })
        };
        let together = self.held.iter().filter(of_set).count();
        world.most_together = world.most_together.max(together);
        let set = &world.plan.members[lock.keys];
        if world.plan.any.contains(&lock.keys) && together > set.len() {
            let permits = set.len();
            world.violate(format!("{together} holders of a semaphore with {permits} permits"));
        }
    }

    /// Checks that a reader does not overtake a writer that began to wait long before its call.
    fn gives_way(&self, process: usize, machine: u64, world: &mut World, all: &[Process]) {
        let Some(lock) = lock_of(all, process, machine) else { return };
        let is_old = lock.call_started < world.now.saturating_sub(FRESH);
        if lock.hold.mode() == Mode::Exclusive || lock.was_attached || is_old {
            return;
        }
        let plan = Arc::clone(&world.plan);
        // A client may go ahead past a queue node that refuses while no other holds the lock.
        let is_beside_another = self.held.iter().any(|&(process, machine)| {
            lock_of(all, process, machine).is_some_and(|other| {
                other.members == lock.members && is_held(all, process, other, world.now)
            })
        });
        if !is_beside_another {
            return;
        }
        for (&(writer, call), &since) in &self.writers {
            let Some(waiting) = all[writer].waiting(call) else { continue };
            let wants = plan.members[waiting.keys].iter().any(|key| lock.members.contains(key));
            let hears = |node| plan.is_well(process, node, since, world.now) && votes(world, node);
            let limit = patience(&plan, &all[writer], waiting.acquire.spec());
            // A node takes a request with a fence from before the wait for a repair.
            let limit = limit + plan.clock_spread();
            // Elsewhere it may wait for the end of one lock after the other.
            let ends = 3 * (plan.habits.hold.1 + plan.ttl_max());
            let began = lock.call_started;
            let overtakes = in_place_since(world, &all[writer], call, waiting.keys)
                .is_some_and(|since| began > since + limit);
            if wants && (overtakes || began > since + limit + ends) && (0..plan.nodes).all(hears) {
                let waited = began.saturating_sub(since) / MS;
                let place = if overtakes { "in its place" } else { "at all" };
                world.violate(format!(
                    "p{process}/{machine} reads, but p{writer}/{call} waited {place} to write, for \
                     {waited} ms before that call"
                ));
            }
        }
    }

    /// Records the writers that wait, while no fault keeps them from their place in a queue.
    fn note_writers(&mut self, world: &World, processes: &[Process]) {
        let plan = Arc::clone(&world.plan);
        if plan.kind != LockKind::Shared || plan.max_waiters < plan.processes || plan.nodes == 2 {
            return;
        }
        let mut writers = BTreeMap::new();
        for process in processes {
            let index = process.index;
            let from = world.now.saturating_sub(SAMPLED);
            let hears = |node| plan.is_well(index, node, from, world.now) && votes(world, node);
            if process.paused > 0 || !(0..plan.nodes).all(hears) {
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

    /// Checks that no majority is left for another lock: on the other nodes the token holds the
    /// lock, or the node abstains because it may have forgotten it.
    fn is_held_on_majority(
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
                claims.any(|claim| claim.token == token && claim.kind != Kind::Waiter)
            };
            lock.members.iter().all(has) || !votes(world, node)
        };
        let count = (0..world.plan.nodes).filter(holds).count();
        if count < self.majority.size() {
            world.violate(format!("p{process}/{machine} is held, but on {count} nodes only"));
        }
    }

    /// Checks that a renewed lock is not lost while a majority is well, and no other token holds it
    /// there. A lock that was not released before a fault may be lost.
    fn was_lost_for_a_reason(
        &mut self,
        process: usize,
        call: u64,
        end: End,
        (members, call_started): (&[usize], Ns),
        world: &mut World,
    ) {
        let plan = Arc::clone(&world.plan);
        let (from, to) = (call_started, world.now);
        // Waiters for any of several keys may have one key by turns.
        let in_all = plan.kind == LockKind::Permits;
        let is_free = |node: &usize| {
            !members
                .iter()
                .any(|&key| world.claims.was_orphan(*node, key, call, (from, to), in_all))
        };
        let nodes = (0..plan.nodes).filter(|&node| plan.is_well(process, node, from, to));
        let well = nodes.filter(is_free).count();
        if well >= self.majority.size() {
            let machine = call & ((1 << 40) - 1);
            world.violate(format!(
                "p{process}/{machine} lost a renewed lock ({end:?}) while {well} nodes were well"
            ));
        }
    }

    /// Checks that no majority was left: others held the lock, or waited for it, on the other
    /// nodes.
    fn was_taken(
        &mut self,
        process: usize,
        call: u64,
        (keys, mode, had_time): (usize, Mode, bool),
        (started, looks): (Ns, Option<Vec<Ns>>),
        world: &mut World,
    ) {
        let plan = Arc::clone(&world.plan);
        let (members, majority) = (&plan.members[keys], self.majority.size());
        let machine = call & ((1 << 40) - 1);
        let Some(looks) = looks else {
            world.violate(format!("p{process}/{machine} reports Held, but has not asked any node"));
            return;
        };
        let (claims, now) = (&world.claims, world.now);
        let has_revocations =
            plan.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Revoke { .. }));
        let has_writer = members.iter().any(|&key| {
            let is_writer = |claim: &Claim| claim.mode == Mode::Exclusive;
            claims.any_was(key, (started, now), is_writer)
        });
        // Readers let others in unless a node may have a writer, or an operator has revoked the
        // lock.
        let is_open = mode == Mode::Shared && !has_writer && !has_revocations;
        let is_other = |node: usize, claim: &Claim| {
            if is_open && claim.mode == Mode::Shared && claim.kind != Kind::Waiter {
                return false;
            }
            let token = claim.token;
            // A lock that the same program released before the call is free for it.
            let was_own = || {
                let owner = claims.call_of(token).map(|call| call >> 40);
                let released = claims.released_at(token).filter(|at| *at <= started);
                owner == Some(process as u64)
                    && released.is_some_and(|at| plan.is_well(process, node, at, now))
            };
            claims.call_of(token) != Some(call) && !was_own()
        };
        if plan.any.contains(&keys) {
            // It was refused one slot, and a node knew of no other that is free.
            let began = vec![started; plan.nodes];
            let was_taken =
                |key: &&usize| claims.were_taken(&[**key], (&began, now), plan.nodes, is_other);
            let free = members.iter().find(|key| !was_taken(key)).copied();
            let is_well = |node| plan.is_well(process, node, started, now);
            if let Some(key) = free.filter(|_| had_time && (0..plan.nodes).all(is_well)) {
                world.violate(format!("p{process}/{machine} reports Held, but {key} was free"));
            }
            return;
        }
        if !claims.were_taken(members, (&looks, now), majority, is_other) {
            let look = (now - looks.iter().max().copied().unwrap_or_default()) / 1000;
            world.violate(format!(
                "p{process}/{machine} reports Held, but in the last {look} µs a majority was free"
            ));
        }
    }

    /// Checks the whole fleet, at intervals.
    pub(super) fn sample(&mut self, world: &mut World, processes: &[Process]) {
        let held = std::mem::take(&mut self.held);
        for &(process, machine) in &held {
            self.is_held_on_majority(process, machine, world, processes);
        }
        self.held = held;
        self.free_locks_are_granted(world, processes);
        self.note_writers(world, processes);
        nothing_is_left_behind(world);
        self.one_of_all_wins(world);
    }

    /// Checks that one of several callers wins a free lock that they request at the same moment.
    fn one_of_all_wins(&mut self, world: &mut World) {
        let Some(every) = world.plan.meet_every else { return };
        if world.now % every != 750 * MS {
            return;
        }
        let met = std::mem::take(&mut self.met);
        // Callers start one meeting after the connections were made.
        if met == 0 && world.now > 2 * every && !world.is_ending {
            world.violate("all callers wanted a free lock, and none of them got it".into());
        }
    }

    /// Checks that a free lock is granted to one of the calls for it.
    fn free_locks_are_granted(&mut self, world: &mut World, processes: &[Process]) {
        let (plan, now) = (Arc::clone(&world.plan), world.now);
        // Each of two nodes has a veto: two queues or two clocks that disagree can block a lock for
        // long.
        if plan.nodes == 2 {
            return;
        }
        let mut unhindered = BTreeMap::new();
        let wants = |(_, call): (u64, &Call)| (call.keys, call.acquire.spec().mode);
        let wanted: Vec<Vec<(usize, Mode)>> =
            processes.iter().map(|process| process.calls().map(wants).collect()).collect();
        let held: Vec<&Lock> = (self.held.iter())
            .filter_map(|&(process, machine)| {
                let lock = lock_of(processes, process, machine)?;
                is_held(processes, process, lock, now).then_some(lock)
            })
            .collect();
        // The time for which an attempt may hold a node.
        let at_most = 100 * MS + 4 * plan.round_trip;
        let is_free = |keys: &[usize], mode: Mode, node: usize| {
            keys.iter().all(|&key| {
                let mut claims = world.claims.at(node, key, now);
                claims.all(|claim| {
                    let is_open = mode == Mode::Shared && claim.mode == Mode::Shared;
                    claim.kind == Kind::Waiter || is_open || claim.since + at_most > now
                })
            })
        };
        let reaches_majority = |process: usize, keys: &[usize], mode: Mode| {
            let is_good = |&node: &usize| {
                plan.is_well(process, node, now.saturating_sub(SAMPLED), now)
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
                for (choice, keys) in plan.choices(call.keys).enumerate() {
                    let has_key = |key: &usize| keys.contains(key);
                    let overlaps =
                        |&(set, _): &(usize, Mode)| plan.members[set].iter().any(has_key);
                    // While a writer waits, readers wait behind it.
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
                    let is_fair = !held.iter().any(hinders)
                        && (wanted.iter().enumerate())
                            .filter(|(_, wanted)| wanted.iter().any(overlaps))
                            .all(|(other, _)| reaches_majority(other, keys, beside));
                    if !is_fair {
                        continue;
                    }
                    let place = (process.index, machine, choice);
                    let known = self.unhindered.get(&place).copied().unwrap_or(now);
                    let granted = keys.iter().map(|&key| self.granted[key]).max();
                    // Readers do not compete with each other.
                    let granted = granted.filter(|_| !is_open);
                    let since = known.max(granted.unwrap_or_default());
                    if now - since > patience(&plan, process, call.acquire.spec()) {
                        stuck = Some((process.index, machine, (now - since) / MS));
                    }
                    unhindered.insert(place, since);
                }
            }
        }
        self.unhindered = unhindered;
        if let Some((process, machine, ms)) = stuck {
            world.violate(format!("p{process}/{machine} has waited {ms} ms for a free lock"));
        }
    }

    /// Checks that nothing is left at the end.
    pub(super) fn end(world: &mut World, processes: &[Process]) {
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

/// Returns since when a call for one key waits on the queue node of the key.
fn in_place_since(world: &World, process: &Process, call: u64, keys: usize) -> Option<Ns> {
    let (key, owner) = (world.plan.members[keys][0], process.global(call));
    let is_its = |claim: &Claim| {
        claim.kind == Kind::Waiter && world.claims.call_of(claim.token) == Some(owner)
    };
    world.claims.at(world.queue_node(key), key, world.now).find(is_its).map(|claim| claim.since)
}

/// Returns how long a call may wait for a free lock.
fn patience(plan: &Plan, process: &Process, spec: &Spec) -> Ns {
    // Each process may be making a first attempt, which keeps a node from others for a round trip.
    let newcomers = plan.round_trip * plan.processes as u64;
    let limit = u64::try_from(process.longest_timeout(spec).as_nanos()).unwrap_or_default();
    // Clients without a place in a node's queue poll, and compete with each other. In a fleet with
    // an even number of nodes two halves can have a queue each, which takes longer to resolve:
    // clients warn of such fleets.
    let slow = plan.max_waiters < plan.processes || plan.nodes.is_multiple_of(2);
    let crowd = if slow { 10 * SECOND } else { 2 * SECOND };
    // A client that polls asks for one slot at a time, at random.
    let polls = plan.seats < plan.callers;
    let slots = spec.any.as_ref().filter(|_| polls).map_or(1, Keys::len);
    let crowd = crowd * u64::try_from(slots).unwrap_or(1);
    crowd + newcomers + 4 * limit + SAMPLED
}

/// Checks that a node which has answered the RELEASE of a token does not hold the lock for it.
fn nothing_is_left_behind(world: &mut World) {
    let age = 100 * MS + 4 * world.plan.round_trip;
    for node in 0..world.plan.nodes {
        for key in 0..world.plan.names.len() {
            if let Some((token, call)) = world.claims.left_behind(node, key, world.now, age) {
                let (process, token) = (call >> 40, world.short(token));
                world.violate(format!("p{process} has released {token}, but n{node} has it"));
            }
        }
    }
}

/// Checks that a lock which an operator has ended on a majority is not extended.
fn is_not_revived(
    (process, machine): (usize, u64),
    verdict: ExtensionVerdict,
    round_began: Ns,
    world: &mut World,
    all: &[Process],
) {
    let Some(lock) = lock_of(all, process, machine) else { return };
    let token = lock.hold.token();
    let ended =
        world.ended_everywhere.iter().any(|&(ended, at)| ended == token && at < round_began);
    if ended && matches!(verdict, ExtensionVerdict::Extended(_)) {
        world.violate(format!("p{process}/{machine} is extended after an operator has ended it"));
    }
}

fn votes(world: &World, node: usize) -> bool {
    let host = &world.hosts[node];
    host.server.node.abstains(host.clock.at(world.now).monotonic).is_none()
        && host.state == super::host::State::Up
}

fn lock_of(processes: &[Process], process: usize, machine: u64) -> Option<&Lock> {
    match &processes[process].machines.get(&machine)?.machine {
        Machine::Lock(lock) => Some(lock),
        Machine::Call(_) | Machine::Release(_) => None,
    }
}

/// Returns whether an operator has ended the lock. Its holder may not know it yet.
fn was_ended(world: &World, lock: &Lock) -> bool {
    let token = lock.hold.token();
    world.ended.contains(&token)
}

fn is_held(processes: &[Process], process: usize, lock: &Lock, now: Ns) -> bool {
    let now = processes[process].shared.now(now);
    !matches!(lock.hold.ownership(now), Ownership::Lost(_))
}
