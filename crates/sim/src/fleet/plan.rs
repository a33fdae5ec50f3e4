//! The plan that a seed draws: the fleet, the habits of its programs, the network, and the faults.

use std::fmt;

use clap::ValueEnum;
use quorlock_core::client::{Keys, limits};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::Mutant;
use super::clock::{MS, Ns, SECOND};
use super::network::Direction;

/// Largest ttl of a run, and time for which a restarted node abstains, in milliseconds.
pub(super) const TTL_MAX_MS: u64 = 10_000;
/// Number of commands after which programs make no more calls.
pub(super) const COMMANDS_MAX: u64 = 8000;
/// Largest error of a wall clock at the start, in microseconds.
pub(super) const WALL_OFFSET_US: i64 = 500_000;
/// Time after the end of a fault in which connections, and processes that poll, recover.
pub(super) const RECOVERY: Ns = 3 * SECOND;

/// The kinds of lock in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LockKind {
    /// Exclusive locks of one key or of several at once
    Exclusive,
    /// Shared locks beside exclusive locks of the same keys, which may become shared
    Shared,
    /// Semaphores and other locks of one of several keys, beside exclusive locks of the same keys
    Permits,
}

impl fmt::Display for LockKind {
    /// Writes the name on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().expect("no kind is hidden").get_name())
    }
}

/// The parts of a run that do not depend on its events.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    pub(super) processes: usize,
    /// Number of callers of each process.
    pub(super) callers: usize,
    /// Of all keys.
    pub(super) names: Vec<String>,
    /// The sets of keys for which programs call, as indexes of `names`.
    pub(super) key_indexes: Vec<Vec<usize>>,
    /// Indexes of the sets of which a lock takes one key.
    pub(super) any_sets: Vec<usize>,
    pub(super) kind: LockKind,
    pub(super) habits: Habits,
    /// Number of wait connections of a process on each node.
    pub(super) wait_connections: usize,
    pub(super) max_waiters: usize,
    pub(super) max_clock_skew_ms: u64,
    /// For each process and node: the shortest latency of a message, and its largest random
    /// addition.
    pub(super) paths: Vec<(Ns, Ns)>,
    /// Longest round trip of a path without faults.
    pub(super) round_trip: Ns,
    /// For each process: how much faster than true time its raw and its boot clock are.
    pub(super) client_ppm: Vec<(i64, i64)>,
    /// For each node: how much faster than true time its clock is.
    pub(super) node_ppm: Vec<i64>,
    /// The time in which programs make calls.
    pub(super) length: Ns,
    pub(super) faults: Vec<Fault>,
    pub(super) mutant: Option<Mutant>,
    /// The interval of meetings, if there are any: moments at which all callers call.
    pub(super) meet_every: Option<Ns>,
}

/// The habits of the programs of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Habits {
    pub(super) ttls_ms: Vec<u64>,
    pub(super) hold: (Ns, Ns),
    pub(super) rest: (Ns, Ns),
    /// Shares of calls that do not wait, wait briefly, and wait long. The rest waits without a
    /// limit.
    pub(super) waits_percent: [u32; 3],
    pub(super) renew_percent: u32,
    pub(super) extend_percent: u32,
    pub(super) detach_percent: u32,
    pub(super) drop_percent: u32,
    pub(super) cancel_percent: u32,
    /// Share of calls that follow the previous one without a pause.
    pub(super) at_once_percent: u32,
    /// Share of calls for a set of one key that request a shared lock.
    pub(super) share_percent: u32,
    /// Share of exclusive locks of one key that become shared.
    pub(super) downgrade_percent: u32,
    /// Share of calls that use the first set of keys. The rest uses any set.
    pub(super) first_set_percent: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) from: Ns,
    pub(super) to: Ns,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Debug)]
pub(super) enum FaultKind {
    /// Connections between these processes and nodes break.
    Reset { pairs: Pairs, node_learns_after: Ns },
    /// Messages between these processes and nodes are blocked: in both directions if `None`.
    Partition { pairs: Pairs, direction: Option<Direction> },
    /// Messages between these processes and nodes take longer by this time.
    Spike { pairs: Pairs, by: Ns },
    /// Each command of the node takes this time.
    SlowNode { node: usize, service: Ns },
    /// The server of the node does nothing for a while.
    PauseNode { node: usize },
    /// The process does nothing for a while.
    PauseProcess { process: usize },
    /// The machine of the process sleeps, and its raw clock stops.
    Sleep { process: usize },
    /// The server of the node stops, and its host too if `host_too`, and starts again.
    Restart { node: usize, host_too: bool, with_keys: bool },
    /// The wall clock of the node jumps.
    StepWall { node: usize, by_us: i64 },
    /// An operator ends the lock of a key on these nodes.
    End { key: usize, nodes: Vec<usize> },
    /// An operator revokes the lock of a key on the node.
    Revoke { key: usize, node: usize },
}

/// Pairs of a process and a node.
type Pairs = Vec<(usize, usize)>;

impl Plan {
    /// Draws a plan with locks of this kind.
    ///
    /// A separate generator draws the parts that exclusive locks do not have. So a change of these
    /// parts does not change the runs of exclusive locks.
    pub fn draw_of(kind: LockKind, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let rng = &mut rng;
        let mut kind_rng = StdRng::seed_from_u64(seed ^ 0x006b_696e_6400 ^ kind as u64);
        let nodes = pick(rng, &[1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 6, 7]);
        let processes = match rng.random_range(0..10) {
            0 => 1,
            1..6 => rng.random_range(2..=6),
            6..9 => rng.random_range(4..=20),
            _ => rng.random_range(16..=64),
        };
        let callers = rng.random_range(1..=(48 / processes).clamp(1, 6));
        let (names, key_indexes) = draw_keys(rng);
        let (names, key_indexes, any_sets) = match kind {
            LockKind::Exclusive => (names, key_indexes, Vec::new()),
            LockKind::Shared => draw_shared_keys(&mut kind_rng),
            LockKind::Permits => draw_slots(&mut kind_rng),
        };
        let (paths, round_trip) = draw_paths(rng, nodes, processes);
        let length = pick(rng, &[4, 8, 15, 30, 60, 90]) * SECOND;
        // With one call of each caller per cycle, and three commands to each node per call, a run
        // has `COMMANDS_MAX` commands.
        let cycle = (processes * callers * nodes * 3) as u64 * length / COMMANDS_MAX;
        let habits = draw_habits(rng, round_trip, cycle);
        let ppm = |rng: &mut StdRng, spread: i64| {
            if spread == 0 { 0 } else { rng.random_range(-spread..=spread) }
        };
        let spread = pick(rng, &[0, 200, 4800]);
        let client_ppm = (0..processes).map(|_| {
            let raw = ppm(rng, spread);
            (raw, raw + rng.random_range(-50..=50))
        });
        let client_ppm = client_ppm.collect();
        let node_ppm = (0..nodes).map(|_| ppm(rng, spread)).collect();
        let many = limits::WAIT_CONNECTIONS_MAX;
        let mut this = Self {
            seed,
            nodes,
            processes,
            callers,
            names,
            key_indexes,
            any_sets,
            kind,
            habits,
            wait_connections: pick(rng, &[many, many, many, 1, 2]),
            max_waiters: pick(rng, &[1000, 1000, 1000, 1000, 1, 4]),
            max_clock_skew_ms: pick(rng, &[5000, 60_000]),
            paths,
            round_trip,
            client_ppm,
            node_ppm,
            length,
            faults: Vec::new(),
            mutant: None,
            meet_every: None,
        };
        if rng.random_range(0..4) > 0 {
            this.draw_faults(rng);
        }
        match seed % 10 {
            8 => this.draw_operator(rng),
            9 => this.draw_meetings(rng),
            _ if seed % 100 == 37 => this.draw_revocations(rng),
            _ if seed % 50 == 3 => this.draw_scarcity(&mut kind_rng),
            _ => {}
        }
        match kind {
            LockKind::Exclusive => {}
            LockKind::Shared => {
                this.habits.share_percent = pick(&mut kind_rng, &[30, 60, 60, 90, 97]);
                this.habits.downgrade_percent = pick(&mut kind_rng, &[0, 30, 80]);
            }
            LockKind::Permits => {
                this.habits.first_set_percent = pick(&mut kind_rng, &[50, 80, 100]);
            }
        }
        this
    }

    /// Draws a plan with this mutant, and with locks of the kind that shows its harm.
    pub fn of_mutant(mutant: Mutant, seed: u64) -> Self {
        Self { mutant: Some(mutant), ..Self::draw_of(mutant.kind(), seed) }
    }

    /// Returns the keys of a set.
    pub(super) fn keys(&self, set: usize) -> Keys {
        self.key_indexes[set].iter().map(|&key| self.names[key].as_str()).collect()
    }

    pub(super) fn key_index(&self, name: &[u8]) -> usize {
        self.names.iter().position(|known| known.as_bytes() == name).unwrap_or_default()
    }

    /// Returns the choices of a call for a set of keys, of which the call needs one: each key of
    /// the set if a lock takes one key of it, and the whole set otherwise.
    pub(super) fn choices(&self, set: usize) -> impl Iterator<Item = &[usize]> {
        let key_indexes = &self.key_indexes[set];
        key_indexes.chunks(if self.any_sets.contains(&set) { 1 } else { key_indexes.len() })
    }

    /// Returns when the last fault ends.
    pub(super) fn faults_end(&self) -> Ns {
        self.faults.iter().map(|fault| fault.to).max().unwrap_or_default()
    }

    /// Returns whether no fault affected this process and this node between two times.
    pub(super) fn is_well(&self, process: usize, node: usize, from: Ns, to: Ns) -> bool {
        !self.fences_disagree(from, to) && self.has_no_fault((process, node), from, to, |_| true)
    }

    /// Returns whether the process was paused between two times, and no other fault affected it and
    /// this node.
    pub(super) fn was_only_paused(&self, process: usize, node: usize, from: Ns, to: Ns) -> bool {
        let is_pause = |kind: &FaultKind| {
            matches!(kind, FaultKind::PauseProcess { .. } | FaultKind::Sleep { .. })
        };
        let is_other = |kind: &FaultKind| !is_pause(kind);
        self.fault_begins(process, from, to, is_pause)
            && self.has_no_fault((process, node), from, to, is_other)
    }

    fn has_no_fault(
        &self,
        (process, node): (usize, usize),
        from: Ns,
        to: Ns,
        counts: impl Fn(&FaultKind) -> bool,
    ) -> bool {
        let after = |kind: &FaultKind| match kind {
            FaultKind::Restart { .. } => TTL_MAX_MS * 11 / 10 * MS + RECOVERY,
            // For twice the length of the step, the fences of this node may lie too far ahead of
            // the clocks of other nodes, or the fences of other nodes too far ahead of its clock.
            FaultKind::StepWall { by_us, .. } => by_us.unsigned_abs() * 2000 + RECOVERY,
            _ => RECOVERY,
        };
        !self.faults.iter().any(|fault| {
            counts(&fault.kind)
                && fault.kind.concerns(process, node)
                && fault.from <= to
                && fault.to + after(&fault.kind) > from
        })
    }

    /// Returns whether a fault that `counts`, and that affects requests of this process, begins
    /// between two times.
    pub(super) fn fault_begins(
        &self,
        process: usize,
        from: Ns,
        to: Ns,
        counts: impl Fn(&FaultKind) -> bool,
    ) -> bool {
        self.faults.iter().any(|fault| {
            let concerns = |node| fault.kind.concerns(process, node);
            counts(&fault.kind)
                && (from..=to).contains(&fault.from)
                && (0..self.nodes).any(concerns)
        })
    }

    /// Returns an upper bound of the difference between two wall clocks.
    pub(super) fn clock_spread(&self) -> Ns {
        let steps = self.faults.iter().map(|fault| match fault.kind {
            FaultKind::StepWall { by_us, .. } => by_us.unsigned_abs(),
            _ => 0,
        });
        (2 * WALL_OFFSET_US.unsigned_abs() + steps.sum::<u64>()) * 1100
    }

    /// Returns whether, between two times, a restarted node may have granted fences that other
    /// nodes did not accept.
    ///
    /// The counters of a restarted node start as far ahead as its own clock allows. That is too far
    /// ahead for a node whose clock is behind.
    fn fences_disagree(&self, from: Ns, to: Ns) -> bool {
        let spread = self.clock_spread();
        let delay = TTL_MAX_MS * MS;
        self.faults.iter().any(|fault| {
            let rejoins = fault.to + delay * 98 / 100;
            let restarts = matches!(fault.kind, FaultKind::Restart { .. });
            restarts && rejoins <= to && rejoins + delay / 20 + spread > from
        })
    }

    /// Returns the first meeting at or after `at`, if the callers meet.
    pub(super) fn next_meeting(&self, at: Ns) -> Option<Ns> {
        Some(at.div_ceil(self.meet_every?) * self.meet_every?)
    }

    /// Draws meetings: all callers request one free lock at the same moment, without waiting. One
    /// node may be down all the time.
    fn draw_meetings(&mut self, rng: &mut StdRng) {
        if self.kind == LockKind::Permits {
            self.key_indexes.truncate(1);
        } else {
            self.names.truncate(1);
            self.key_indexes = vec![vec![0]];
        }
        let base = rng.random_range(50_000..MS);
        let path = |_| (base, rng.random_range(0..=base));
        self.paths = (0..self.nodes * self.processes).map(path).collect();
        self.round_trip = 4 * base;
        self.length = 12 * SECOND;
        self.meet_every = Some(SECOND);
        self.habits = Habits {
            ttls_ms: vec![5000],
            hold: (0, 100 * MS),
            waits_percent: [100, 0, 0],
            drop_percent: 50,
            ..Habits::default()
        };
        self.faults.clear();
        if self.nodes > 2 && rng.random() {
            let (node, to) = (rng.random_range(0..self.nodes), self.length);
            let kind = FaultKind::Restart { node, host_too: false, with_keys: false };
            self.faults.push(Fault { from: MS, to, kind });
        }
    }

    /// Draws an operator who ends locks on a majority, one node of which then pauses for a while.
    /// Draws no operator if a lock may have several keys.
    fn draw_operator(&mut self, rng: &mut StdRng) {
        let is_of_several =
            |(set, keys): (usize, &Vec<usize>)| keys.len() > 1 && !self.any_sets.contains(&set);
        if self.key_indexes.iter().enumerate().any(is_of_several) {
            return;
        }
        for _ in 0..rng.random_range(1..=10) {
            let from = SECOND + rng.random_range(0..self.length);
            let mut nodes: Vec<usize> = (0..self.nodes).collect();
            while nodes.len() > self.nodes / 2 + 1 {
                nodes.swap_remove(rng.random_range(0..nodes.len()));
            }
            let node = nodes[rng.random_range(0..nodes.len())];
            let key = rng.random_range(0..self.names.len());
            self.faults.push(Fault { from, to: from, kind: FaultKind::End { key, nodes } });
            let to = from + rng.random_range(MS..=3 * SECOND);
            self.faults.push(Fault { from: from + 1, to, kind: FaultKind::PauseNode { node } });
        }
        self.keep_apart();
    }

    /// Draws an operator who revokes long locks on one node after another. The lease on one node
    /// may end before the operator reaches the next node.
    fn draw_revocations(&mut self, rng: &mut StdRng) {
        let ttl_ms = (20 * self.round_trip / MS).clamp(pick(rng, &[300, 500, 1000]), TTL_MAX_MS);
        let ttl = ttl_ms * MS;
        self.habits = Habits {
            ttls_ms: vec![ttl_ms],
            hold: (ttl, 6 * ttl),
            rest: (0, ttl),
            waits_percent: [0, 0, 100],
            renew_percent: 100,
            ..Habits::default()
        };
        self.length = 60 * SECOND;
        let mut at = SECOND;
        while at < self.length {
            let key = rng.random_range(0..self.names.len());
            let mut nodes: Vec<usize> = (0..self.nodes).collect();
            while !nodes.is_empty() {
                let node = nodes.swap_remove(rng.random_range(0..nodes.len()));
                at += rng.random_range(0..=3 * ttl);
                self.faults.push(Fault { from: at, to: at, kind: FaultKind::Revoke { key, node } });
            }
            at += rng.random_range(ttl..=10 * ttl);
        }
        self.keep_apart();
    }

    /// Draws a fleet in which a majority needs every node that may vote. If the locks are
    /// exclusive, programs lock several keys at once, and single ones of them.
    fn draw_scarcity(&mut self, rng: &mut StdRng) {
        let is_single = |set: &Vec<usize>| set.len() == 1;
        if self.kind == LockKind::Exclusive && self.key_indexes.iter().all(is_single) {
            (self.names, self.key_indexes) = loop {
                let (names, key_indexes) = draw_keys(rng);
                if !key_indexes.iter().all(is_single) {
                    break (names, key_indexes);
                }
            };
        }
        if rng.random_range(0..4) > 0 {
            self.faults.clear();
        }
        for node in 0..(self.nodes - 1) / 2 {
            // After a restart, a node abstains for as long as the largest ttl.
            let (from, to) = if rng.random() { (MS, self.length) } else { (SECOND, SECOND + MS) };
            let kind = FaultKind::Restart { node, host_too: false, with_keys: false };
            self.faults.push(Fault { from, to, kind });
        }
        self.keep_apart();
    }

    fn draw_faults(&mut self, rng: &mut StdRng) {
        let kinds: Vec<u32> = (0..9).filter(|_| rng.random_range(0..10) < 4).collect();
        let often = pick(rng, &[1, 2, 4]);
        let has_restarts = kinds.contains(&7);
        // In some runs, all faults of nodes affect the same node, so that the others stay well.
        let victim = rng.random_range(0..self.nodes);
        let one_only = rng.random_range(0..10) < 4;
        let mut wall_us = vec![0_i64; self.nodes];
        for kind in kinds {
            for _ in 0..rng.random_range(1..=often) {
                let from = SECOND + rng.random_range(0..self.length);
                let node = if one_only { victim } else { rng.random_range(0..self.nodes) };
                let process = rng.random_range(0..self.processes);
                let long = pick(rng, &[50 * MS, 500 * MS, 3 * SECOND, 12 * SECOND]);
                let lasts = rng.random_range(MS..=long);
                let pairs = match rng.random_range(0..3) {
                    0 => vec![(process, node)],
                    1 => (0..self.processes).map(|process| (process, node)).collect(),
                    _ if one_only => vec![(process, node)],
                    // Partitions of any shape.
                    _ => {
                        let all = (0..self.processes)
                            .flat_map(|process| (0..self.nodes).map(move |node| (process, node)));
                        all.filter(|_| rng.random_range(0..3) == 0).collect()
                    }
                };
                let (kind, lasts) = match kind {
                    0 => {
                        let late = if rng.random() { 0 } else { rng.random_range(0..10 * SECOND) };
                        (FaultKind::Reset { pairs, node_learns_after: late }, 0)
                    }
                    1 => (FaultKind::Partition { pairs, direction: None }, lasts),
                    2 => {
                        let direction = if rng.random() { Direction::Up } else { Direction::Down };
                        (FaultKind::Partition { pairs, direction: Some(direction) }, lasts)
                    }
                    3 => {
                        let by = rng.random_range(self.round_trip..=self.round_trip * 30);
                        (FaultKind::Spike { pairs, by }, lasts)
                    }
                    4 => {
                        let service = rng.random_range(MS / 2..=40 * MS);
                        (FaultKind::SlowNode { node, service }, lasts.min(SECOND))
                    }
                    5 => (FaultKind::PauseNode { node }, lasts),
                    6 if rng.random() => (FaultKind::PauseProcess { process }, lasts),
                    6 => (FaultKind::Sleep { process }, lasts),
                    7 => {
                        let (host_too, with_keys) = (rng.random(), rng.random());
                        (FaultKind::Restart { node, host_too, with_keys }, lasts.min(5 * SECOND))
                    }
                    _ => {
                        // With restarts, a step back must be shorter than the time for which a
                        // restarted node abstains.
                        let skew = i64::try_from(self.max_clock_skew_ms).unwrap_or(0) * 1000;
                        let most = if has_restarts { 4_000_000 } else { skew / 2 };
                        let most = most.min(skew / 2);
                        let to = rng.random_range(-most..=most);
                        let by_us = to - wall_us[node];
                        wall_us[node] = to;
                        (FaultKind::StepWall { node, by_us }, 0)
                    }
                };
                self.faults.push(Fault { from, to: from + lasts, kind });
            }
        }
        self.keep_apart();
    }

    /// Drops each fault that would stop or slow down a node while another fault does so.
    fn keep_apart(&mut self) {
        self.faults.sort_by_key(|fault| fault.from);
        let mut kept: Vec<Fault> = Vec::new();
        for fault in std::mem::take(&mut self.faults) {
            let stopped = fault.kind.stopped_node();
            let collides = |other: &Fault| {
                other.to + 10 * MS >= fault.from
                    && stopped.is_some()
                    && other.kind.stopped_node() == stopped
            };
            if !kept.iter().any(collides) {
                kept.push(fault);
            }
        }
        self.faults = kept;
    }
}

impl FaultKind {
    /// Returns the node that a fault stops or slows down.
    fn stopped_node(&self) -> Option<usize> {
        match self {
            Self::SlowNode { node, .. } | Self::PauseNode { node } | Self::Restart { node, .. } => {
                Some(*node)
            }
            _ => None,
        }
    }

    /// Returns whether the fault affects the requests of this process to this node.
    fn concerns(&self, process: usize, node: usize) -> bool {
        match self {
            Self::Reset { pairs, .. }
            | Self::Partition { pairs, .. }
            | Self::Spike { pairs, .. } => pairs.contains(&(process, node)),
            Self::SlowNode { node: other, .. }
            | Self::PauseNode { node: other }
            | Self::StepWall { node: other, .. }
            | Self::Restart { node: other, .. } => *other == node,
            Self::End { .. } | Self::Revoke { .. } => true,
            Self::PauseProcess { process: other } | Self::Sleep { process: other } => {
                *other == process
            }
        }
    }
}

fn pick<T: Copy>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

fn draw_keys(rng: &mut StdRng) -> (Vec<String>, Vec<Vec<usize>>) {
    let keys = pick(rng, &[1, 1, 2, 3, 6]);
    let prefix: u32 = rng.random();
    let mut names: Vec<String> = (0..keys).map(|key| format!("key {prefix:x} {key}")).collect();
    names.sort_unstable();
    let mut key_indexes: Vec<Vec<usize>> = (0..keys).map(|key| vec![key]).collect();
    if keys > 1 && rng.random() {
        for _ in 0..rng.random_range(1..=3) {
            let set: Vec<usize> = (0..keys).filter(|_| rng.random()).collect();
            if set.len() > 1 && !key_indexes.contains(&set) {
                key_indexes.push(set);
            }
        }
    }
    (names, key_indexes)
}

/// The `names`, `key_indexes` and `any_sets` of a plan.
type DrawnKeys = (Vec<String>, Vec<Vec<usize>>, Vec<usize>);

/// Draws one to three keys for shared locks, and sometimes a set of two of them.
fn draw_shared_keys(rng: &mut StdRng) -> DrawnKeys {
    let keys = pick(rng, &[1, 1, 1, 2, 3]);
    let prefix: u32 = rng.random();
    let names = (0..keys).map(|key| format!("key {prefix:x} {key}")).collect();
    let mut key_indexes: Vec<Vec<usize>> = (0..keys).map(|key| vec![key]).collect();
    if keys > 1 && rng.random_range(0..3) == 0 {
        key_indexes.push(vec![0, 1]);
    }
    (names, key_indexes, Vec::new())
}

/// Draws the slots of a semaphore, and sometimes a second set of which a lock takes one key, single
/// slots, or a set of two.
fn draw_slots(rng: &mut StdRng) -> DrawnKeys {
    let slots = pick(rng, &[1, 2, 2, 2, 3, 3, 4, 6, 8, 12]);
    let more = pick(rng, &[0, 0, 0, 1]);
    let prefix: u32 = rng.random();
    let names = (0..slots + more).map(|key| format!("slot {prefix:x} {key:02}")).collect();
    let mut key_indexes: Vec<Vec<usize>> = vec![(0..slots).collect()];
    let mut any_sets = vec![0];
    let may_be_mixed = rng.random_range(0..10) < 6;
    if may_be_mixed && slots + more > 1 {
        if rng.random() {
            key_indexes.push((slots / 2..slots + more).collect());
            any_sets.push(1);
        }
        let singles = (0..slots + more).filter(|_| rng.random_range(0..4) == 0);
        key_indexes.extend(singles.map(|key| vec![key]).collect::<Vec<_>>());
        if slots > 2 && rng.random_range(0..4) == 0 {
            key_indexes.push(vec![0, 1]);
        }
    }
    // A program has one queue for all locks of the same keys, so no set may occur twice.
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for keys in key_indexes {
        if !sets.contains(&keys) {
            sets.push(keys);
        }
    }
    (names, sets, any_sets)
}

fn draw_paths(rng: &mut StdRng, nodes: usize, processes: usize) -> (Vec<(Ns, Ns)>, Ns) {
    let (least, most) = match rng.random_range(0..10) {
        0..5 => (50_000, 400_000),
        5..8 => (300_000, 2 * MS),
        8 => (3 * MS, 20 * MS),
        _ => (20 * MS, 125 * MS),
    };
    let far = if rng.random_range(0..4) == 0 { rng.random_range(0..nodes) } else { nodes };
    let path = |node: usize, rng: &mut StdRng| {
        let base = rng.random_range(least..=least + (most - least) / 4);
        let base = if node == far { base * 3 } else { base };
        (base, rng.random_range(0..=base))
    };
    let paths: Vec<_> = (0..processes)
        .flat_map(|_| (0..nodes).map(|node| path(node, rng)).collect::<Vec<_>>())
        .collect();
    let round_trip = paths.iter().map(|(base, jitter)| 2 * (base + jitter)).max();
    (paths, round_trip.unwrap_or(MS))
}

fn draw_habits(rng: &mut StdRng, round_trip: Ns, cycle: Ns) -> Habits {
    let least_ms = (20 * round_trip / MS).max(200);
    let ttls_ms: Vec<u64> = [200, 500, 1000, 2000, 5000, TTL_MAX_MS]
        .into_iter()
        .filter(|ms| *ms >= least_ms || *ms == TTL_MAX_MS)
        .filter(|_| rng.random_range(0..3) > 0)
        .collect();
    let ttls_ms = if ttls_ms.is_empty() { vec![TTL_MAX_MS] } else { ttls_ms };
    let hold_to = match rng.random_range(0..4) {
        0 => 0,
        1 => cycle / 20,
        2 => cycle,
        _ => ttls_ms.iter().max().copied().unwrap_or(0) * 3 * MS,
    };
    let none = pick(rng, &[0, 0, 20, 50, 100]);
    let short = (100 - none) * pick(rng, &[0, 30, 60]) / 100;
    let long = (100 - none - short) * pick(rng, &[30, 70, 100]) / 100;
    Habits {
        ttls_ms,
        hold: (0, hold_to),
        rest: (0, cycle),
        waits_percent: [none, short, long],
        renew_percent: pick(rng, &[0, 50, 100, 100]),
        extend_percent: pick(rng, &[0, 0, 20]),
        detach_percent: pick(rng, &[0, 0, 10]),
        drop_percent: pick(rng, &[0, 20, 60]),
        cancel_percent: pick(rng, &[0, 0, 10, 40]),
        at_once_percent: pick(rng, &[0, 10, 50]),
        ..Habits::default()
    }
}
