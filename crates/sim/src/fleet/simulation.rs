//! A run, from its plan to its report.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::node::Settings;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::caller::Callers;
use super::checks::{Checks, SAMPLE_EVERY};
use super::clock::{ClientClock, MS, NodeClock, Ns, SECOND};
use super::events::{Event, Message};
use super::host::{Host, State};
use super::mutant::Broken;
use super::network::{Direction, Network, Path};
use super::plan::{COMMANDS_MAX, FaultKind, Plan, TTL_MAX_MS, WALL_OFFSET_US};
use super::process::Process;
use super::world::World;
use super::{Mutant, Report};

/// Time that a process needs to read its sockets after a pause: less than `LATE_TIMER`.
const READ_DELAY: Ns = 2 * MS;
/// Time before which no caller calls: processes connect first.
const WARM_UP: Ns = SECOND;

struct Simulation {
    world: World,
    processes: Vec<Process>,
    /// The callers of each process.
    callers: Vec<Callers>,
    /// What each process has not read yet, because it was paused.
    backlogs: Vec<Backlog>,
    checks: Checks,
    /// When all calls and all faults had ended, and the activity of the world until then.
    quiet: Option<(Ns, u64)>,
}

#[derive(Default)]
struct Backlog {
    events: VecDeque<Event>,
    /// Whether the process goes on after a pause, and has not read its sockets yet.
    is_read_later: bool,
}

/// Runs a plan. If `traced`, the report contains a trace.
pub fn run(plan: &Plan, traced: bool) -> Report {
    let _broken = Broken::new(plan.mutant);
    Simulation::new(plan, traced).run()
}

impl Simulation {
    fn new(plan: &Plan, traced: bool) -> Self {
        let plan = Arc::new(plan.clone());
        let mut rng = StdRng::seed_from_u64(plan.seed ^ 0x5eed);
        let paths = plan.paths.iter().map(|&(base, jitter)| Path::new(base, jitter)).collect();
        let settings = |node: usize| Settings {
            max_ttl: Ttl::from_ms(TTL_MAX_MS).expect("a plan has a sensible ttl"),
            rejoin_delay_ms: match plan.mutant {
                Some(Mutant::NoAbstention) => 0,
                _ => TTL_MAX_MS,
            },
            max_clock_skew_ms: plan.max_clock_skew_ms,
            max_waiters: plan.max_waiters,
            fence_stripes: 16,
            table_shards: 1,
            hash_seed: node as u64,
            defer_wakes: node % 2 == 1,
        };
        let wall_offsets = -WALL_OFFSET_US..=WALL_OFFSET_US;
        let hosts = (0..plan.nodes).map(|node| {
            let offset_us = rng.random_range(0..1_000_000_000);
            let wall_offset_us = rng.random_range(wall_offsets.clone());
            let clock = NodeClock::new(plan.node_ppm[node], offset_us, wall_offset_us);
            Host::new(node, settings(node), clock)
        });
        let hosts = hosts.collect();
        let network = Network::new(plan.nodes, paths, rng.random());
        let world = World::new(&plan, hosts, network, traced);
        let processes = (0..plan.processes).map(|index| {
            let (raw_ppm, boot_ppm) = plan.client_ppm[index];
            let offset = Duration::from_millis(rng.random_range(0..1_000_000));
            let clock =
                ClientClock::new(raw_ppm, boot_ppm, offset, rng.random_range(wall_offsets.clone()));
            let process = Process::new(index, clock, rng.random(), &world);
            (process, Callers::new(index, (0..plan.callers).map(|_| rng.random())))
        });
        let (processes, callers) = processes.unzip();
        let backlogs = (0..plan.processes).map(|_| Backlog::default()).collect();
        let checks = Checks::new(&plan);
        let mut this = Self { world, processes, callers, backlogs, checks, quiet: None };
        this.begin(&mut rng);
        this
    }

    fn begin(&mut self, rng: &mut StdRng) {
        let plan = Arc::clone(&self.world.plan);
        for (process, callers) in self.processes.iter_mut().zip(&mut self.callers) {
            process.links_time_out(&mut self.world);
            for caller in 0..plan.callers {
                let at = WARM_UP + rng.random_range(0..=plan.habits.rest.1);
                let at = plan.next_meeting(at).unwrap_or(at);
                callers.wake(caller, at, &mut self.world);
            }
        }
        for (index, fault) in plan.faults.iter().enumerate() {
            self.world.events.add(fault.from, Event::Fault { index: 2 * index });
            self.world.events.add(fault.to, Event::Fault { index: 2 * index + 1 });
        }
        self.world.events.add(WARM_UP, Event::Sample);
    }

    fn run(mut self) -> Report {
        while let Some((at, event)) = self.world.events.pop() {
            self.world.now = at;
            self.world.report.events += 1;
            self.happen(event);
            if !self.world.notes.is_empty() {
                self.checks.check_notes(&mut self.world, &self.processes);
            }
            if self.world.report.violation.is_some() || self.finish_if_over() {
                break;
            }
        }
        Report { lasted: Duration::from_nanos(self.world.now), ..self.world.report }
    }

    fn happen(&mut self, event: Event) {
        let world = &mut self.world;
        match event {
            Event::Arrives { conn, number, message } => {
                if !world.network.arrives(conn, number, &message) {
                    return;
                }
                match message {
                    Message::Up(message) => world.arrive(conn, message),
                    Message::Down(_) => {
                        let process = world.network.connection(conn).process;
                        self.happen_in(process, Event::Arrives { conn, number, message });
                    }
                }
            }
            Event::NodeLosesConnection { conn } => world.node_loses(conn),
            Event::NodeWakes { node } => world.node_wakes(node),
            Event::NodeIsFree { node } => world.read(node),
            Event::Fault { index } => self.fault(index),
            Event::Sample => self.sample(),
            Event::ProcessLosesConnection { conn } => {
                let process = world.network.connection(conn).process;
                self.happen_in(process, event);
            }
            Event::Timer { process, .. } | Event::Caller { process, .. } => {
                self.happen_in(process, event);
            }
            Event::Reads { process } => self.read_backlog(process),
        }
    }

    /// Handles an event of a process, or defers it while the process is paused.
    fn happen_in(&mut self, process: usize, event: Event) {
        let (callers, backlog) = (&mut self.callers[process], &mut self.backlogs[process]);
        let (process, world) = (&mut self.processes[process], &mut self.world);
        let is_timer = matches!(event, Event::Timer { .. });
        if process.is_paused() || backlog.is_read_later && !is_timer {
            backlog.events.push_back(event);
            return;
        }
        match event {
            Event::Arrives { conn, message: Message::Down(message), .. } => {
                process.receive(conn, message, world);
            }
            Event::ProcessLosesConnection { conn } => {
                process.lose(conn, "the connection was reset", world);
            }
            Event::Timer { timer, .. } => process.time_out(timer, world),
            Event::Caller { caller, number, .. } => callers.act(caller, number, process, world),
            _ => {}
        }
        callers.go_on(process, world);
    }

    fn fault(&mut self, index: usize) {
        let plan = Arc::clone(&self.world.plan);
        let (fault, begins) = (&plan.faults[index / 2], index.is_multiple_of(2));
        let world = &mut self.world;
        if begins {
            trace!(world, "FAULT for {} ms: {:?}", (fault.to - fault.from) / MS, fault.kind);
        }
        match &fault.kind {
            FaultKind::Reset { pairs, node_learns_after } => {
                for &(process, node) in pairs.iter().filter(|_| begins) {
                    for conn in world.network.of_path(process, node) {
                        world.reset(conn, *node_learns_after);
                    }
                }
            }
            FaultKind::Partition { pairs, direction } => {
                for &(process, node) in pairs {
                    for way in [Direction::Up, Direction::Down] {
                        if direction.is_some_and(|direction| direction != way) {
                            continue;
                        }
                        if begins {
                            world.network.block(process, node, way);
                        } else {
                            world.unblock(process, node, way);
                        }
                    }
                }
            }
            FaultKind::Spike { pairs, by } => {
                for &(process, node) in pairs {
                    let path = world.network.path(process, node);
                    path.spike = if begins { path.spike + by } else { path.spike - by };
                }
            }
            FaultKind::SlowNode { node, service } => {
                world.hosts[*node].service = if begins { *service } else { 0 };
            }
            FaultKind::PauseNode { node } => {
                world.hosts[*node].is_paused = begins;
                if !begins {
                    trace!(world, "n{node} goes on");
                    world.read(*node);
                    world.run_turns(*node);
                }
            }
            FaultKind::Restart { node, host_too, with_keys } => {
                if begins {
                    let state = if *host_too { State::HostDown } else { State::ServerDown };
                    world.stop_node(*node, state);
                } else {
                    world.start_node(*node, *with_keys);
                }
            }
            FaultKind::End { key, nodes } if begins => world.end_lock(*key, nodes),
            FaultKind::Revoke { key, node } if begins => world.revoke_lock(*key, *node),
            FaultKind::StepWall { node, by_us } if begins => {
                world.hosts[*node].clock.wall_offset_us += by_us;
                world.claim_foreign(*node, false);
            }
            FaultKind::End { .. } | FaultKind::Revoke { .. } | FaultKind::StepWall { .. } => {}
            FaultKind::PauseProcess { process } | FaultKind::Sleep { process } => {
                let sleeps = matches!(fault.kind, FaultKind::Sleep { .. });
                self.pause(*process, begins, sleeps);
            }
        }
    }

    fn pause(&mut self, index: usize, begins: bool, sleeps: bool) {
        let (process, backlog) = (&mut self.processes[index], &mut self.backlogs[index]);
        let clock = &mut process.inputs.clock;
        match (sleeps, begins) {
            (true, true) => clock.sleep(self.world.now),
            (true, false) => clock.wake(self.world.now),
            _ => {}
        }
        if begins {
            process.facts.pauses += 1;
            return;
        }
        process.facts.pauses -= 1;
        process.facts.resumed_at = self.world.now;
        if !process.is_paused() {
            trace!(self.world, "p{index} goes on");
            // A runtime handles the timers before it has read the sockets.
            let is_timer = |event: &Event| matches!(event, Event::Timer { .. });
            let (timers, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut backlog.events).into_iter().partition(is_timer);
            *backlog = Backlog { events: others.into(), is_read_later: true };
            self.world.events.add(self.world.now + READ_DELAY, Event::Reads { process: index });
            for event in timers {
                self.happen_in(index, event);
            }
        }
    }

    /// Handles what arrived while the process was paused, or since it goes on.
    fn read_backlog(&mut self, index: usize) {
        if self.processes[index].is_paused() {
            return;
        }
        for event in std::mem::take(&mut self.backlogs[index]).events {
            self.happen_in(index, event);
        }
    }

    fn sample(&mut self) {
        self.checks.sample(&mut self.world, &self.processes);
        let plan = Arc::clone(&self.world.plan);
        let world = &mut self.world;
        let is_over = world.now >= WARM_UP + plan.length || world.report.commands >= COMMANDS_MAX;
        if is_over && world.ended_at.is_none() {
            trace!(world, "no more calls are made");
            world.ended_at = Some(world.now);
        }
        if world.ended_at.is_some() && world.now >= plan.faults_end() {
            for (process, callers) in self.processes.iter_mut().zip(&mut self.callers) {
                if !process.is_paused() {
                    callers.end(process, &mut self.world);
                    callers.go_on(process, &mut self.world);
                }
            }
            if self.quiet.is_none() && self.callers.iter().all(Callers::are_finished) {
                trace!(self.world, "all calls are over");
                self.quiet = Some((self.world.now, self.world.activity));
            }
        }
        let next = self.world.now + SAMPLE_EVERY;
        self.world.events.add(next, Event::Sample);
    }

    fn finish_if_over(&mut self) -> bool {
        let plan = &self.world.plan;
        let longest = TTL_MAX_MS * MS;
        if let Some((quiet_at, activity_before)) = self.quiet {
            // A request may be in flight for long, and be granted after all calls have ended.
            let last_grant_at = quiet_at.max(self.world.last_lease_at);
            if self.world.now >= last_grant_at + longest * 102 / 100 + 3 * SECOND {
                Checks::check_end(&mut self.world, &self.processes);
                let seconds = (self.world.now - quiet_at) / SECOND + 1;
                let paths = self.world.plan.nodes * self.world.plan.processes;
                let sources = (paths + 4) as u64;
                let activity = self.world.activity - activity_before;
                // The limit is high because a RELEASE that may have overtaken its ACQUIRE is
                // repeated until the ttl is over.
                if activity > 1000 * sources + seconds * sources * 2 {
                    self.world.violate(format!(
                        "{activity} timers and messages in {seconds} idle seconds"
                    ));
                }
                return true;
            }
        } else if let Some(ended_at) = self.world.ended_at
            && self.world.now > ended_at.max(plan.faults_end()) + 120 * SECOND
        {
            let busy = self.processes.iter().find(|process| !process.is_idle());
            let what = busy.map(|process| &process.shard);
            self.world.violate(format!("calls do not end: {what:?}"));
            return true;
        }
        false
    }
}
