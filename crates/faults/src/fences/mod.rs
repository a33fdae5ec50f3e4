//! Causes accidents to each of five masters, and checks that the fences of each key grow.
//!
//! - `client`: a process that acquires locks and reports their fences
//!
//! The seed decides the accidents of each master, and the random numbers of each process, but not
//! the timing and the requests.

mod client;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

pub use self::client::{ClientArgs, SUBCOMMAND};
use crate::harness::{
    Accident, AccidentCounts, Disk, Disorder, Grant, Node, PROGRESS_INTERVAL, Process, Protected,
    disorders, longest_gap, now, result_of,
};

const MASTERS: usize = 5;
/// Number of processes that compete for locks.
pub const PROCESSES: usize = 8;
/// `lock.max-ttl`, and so also the length of an abstention.
const MAX_TTL: Duration = Duration::from_secs(1);
/// `lock.max-clock-skew`. A restarted master begins its fences this far ahead of the wall clock,
/// which must catch up within a run.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);
/// Interval at which the grants are read and checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time between the recovery of a master and its next accident.
const CALM_MAX: Duration = Duration::from_secs(3);
/// Longest time until the recovery from an accident begins.
const DURATION_MAX: Duration = Duration::from_millis(700);
/// Clock steps in seconds, all of them beyond [`MAX_CLOCK_SKEW`].
const STEPS_S: [i64; 4] = [10, -10, 3600, -3600];
/// Interval at which [`pause`] checks whether the run is over.
const STOP_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for a process that was told to end.
const END_LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub duration: Duration,
    /// Whether nodes agree on a fence. Otherwise a client uses the largest fence of its grants.
    pub protected: Protected,
    /// The program to start as a client, with [`SUBCOMMAND`] as its first argument.
    pub program: PathBuf,
}

/// The result of a run. `Display` writes a Markdown table and some lines.
#[derive(Debug)]
pub struct Report {
    pub plan: Plan,
    pub accidents: AccidentCounts,
    /// Number of locks that were reported, each with its fence.
    pub fences: usize,
    /// How long the run took. The run of a baseline ends early.
    pub took: Duration,
    /// The longest time without a grant.
    pub longest_gap: Duration,
    /// Fences that are not larger than an earlier one. The run of a baseline ends soon after the
    /// first.
    pub disorders: Vec<Disorder>,
}

/// Runs a plan. Calls `progress` with the elapsed time and the number of reported locks.
///
/// # Errors
/// When a master cannot be started, stopped or queried, or a process ends too early.
pub fn run(plan: Plan, mut progress: impl FnMut(Duration, usize)) -> Result<Report> {
    let mut nodes = (0..MASTERS).map(start).collect::<Result<Vec<_>>>()?;
    let urls: Vec<_> = nodes.iter().map(|node| node.master.server.url()).collect();
    let mut processes = (0..PROCESSES as u64)
        .map(|id| {
            let client = ClientArgs {
                // Each process has a sequence of random numbers of its own.
                seed: plan.seed ^ (id + 1) << 32,
                without_agreement: plan.protected == Protected::No,
                urls: urls.clone(),
            };
            Process::start(&plan.program, [SUBCOMMAND.to_owned()].into_iter().chain(client.args()))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut grants = Vec::new();
    let stop = AtomicBool::new(false);
    let (began, began_at) = (Instant::now(), now());
    let accidents = thread::scope(|scope| {
        let injectors: Vec<_> = (0..)
            .zip(&mut nodes)
            .map(|(index, node)| {
                let rng = StdRng::seed_from_u64(plan.seed ^ index);
                let stop = &stop;
                scope.spawn(move || inject_accidents(node, rng, stop))
            })
            .collect();
        let mut report_at = PROGRESS_INTERVAL;
        let mut grants_read = Ok(());
        while began.elapsed() < plan.duration
            && !injectors.iter().any(thread::ScopedJoinHandle::is_finished)
        {
            grants_read =
                processes.iter().try_for_each(|process| read_grants(process, &mut grants));
            let is_enough = plan.protected == Protected::No && !disorders(&grants).is_empty();
            if is_enough || grants_read.is_err() {
                break;
            }
            if began.elapsed() >= report_at {
                progress(began.elapsed(), grants.len());
                report_at += PROGRESS_INTERVAL;
            }
            thread::sleep(CHECK_INTERVAL);
        }
        stop.store(true, Ordering::Relaxed);
        let mut accidents = AccidentCounts::default();
        for injector in injectors {
            accidents.add(&result_of(injector.join())?);
        }
        grants_read.map(|()| accidents)
    })?;
    let (took, ended_at) = (began.elapsed(), now());
    processes.iter_mut().for_each(Process::end_input);
    for process in processes {
        while let Some(line) = process.next_line(END_LIMIT)? {
            grants.push(line.parse()?);
        }
        process.wait()?;
    }
    Ok(Report {
        accidents,
        fences: grants.len(),
        took,
        longest_gap: longest_gap(&grants, began_at, ended_at),
        disorders: disorders(&grants),
        plan,
    })
}

fn read_grants(process: &Process, grants: &mut Vec<Grant>) -> Result<()> {
    for line in process.lines_so_far() {
        grants.push(line.parse()?);
    }
    Ok(())
}

/// Starts a brand-new master, which votes at once, and abstains after a restart. Masters with an
/// odd index write an append-only file.
fn start(index: usize) -> Result<Node> {
    let appendonly = if index.is_multiple_of(2) { "no" } else { "yes" };
    let mut node = Node::start(|builder| {
        builder
            .arg("lock.max-ttl", MAX_TTL.as_millis())
            .arg("lock.max-clock-skew", MAX_CLOCK_SKEW.as_millis())
            .arg("appendonly", appendonly)
    })?;
    node.master.server.set_arg("lock.rejoin-delay", -1);
    Ok(node)
}

/// Injects accidents into one master until the run is over.
///
/// The master recovers from each accident before the next, so that it never starts with a wrong
/// clock: a master that has forgotten its fences would then grant smaller ones. The accidents of
/// different masters are independent.
fn inject_accidents(node: &mut Node, mut rng: StdRng, stop: &AtomicBool) -> Result<AccidentCounts> {
    let mut counts = AccidentCounts::default();
    loop {
        sleep_unless_over(rng.random_range(Duration::ZERO..=CALM_MAX), stop);
        if stop.load(Ordering::Relaxed) {
            return Ok(counts);
        }
        let duration = rng.random_range(Duration::ZERO..=DURATION_MAX);
        let accident = match rng.random_range(0..10) {
            0..3 => Accident::Kill(Disk::Kept),
            3..5 => Accident::Shutdown,
            5..7 => Accident::Pause,
            _ => Accident::ClockStep { by_s: *STEPS_S.choose(&mut rng).unwrap_or(&STEPS_S[0]) },
        };
        if let Accident::ClockStep { by_s } = accident {
            node.step_clock(by_s)?;
            thread::sleep(duration);
            node.step_clock(-by_s)?;
        } else {
            ensure!(node.master.inject(accident, 0)?, "the accident was not injected");
            if accident == Accident::Pause {
                thread::sleep(duration);
                node.master.recover(accident, 0)?;
            } else {
                start_again(node, duration)?;
            }
        }
        counts.count(accident, 1);
    }
}

/// Starts a master that is down, and waits until it votes.
fn start_again(node: &mut Node, after: Duration) -> Result<()> {
    // Half of the restarts happen at once, while clients still hold locks that the master forgot.
    if after > DURATION_MAX / 2 {
        thread::sleep(after);
    }
    let started = Instant::now();
    node.restart(-1)?;
    node.eventually("the restarted master votes", |node| {
        Ok(node.call::<String>(&["INFO", "lock"])?.contains("lock_state:voting"))
    })?;
    ensure!(started.elapsed() >= MAX_TTL, "the restarted master did not abstain");
    Ok(())
}

/// Sleeps for `time`, or until the run is over.
fn sleep_unless_over(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        thread::sleep(STOP_INTERVAL);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agreement = match self.plan.protected {
            Protected::Yes => "nodes agree on fences",
            Protected::No => "clients use the largest fence of their grants",
        };
        let (seed, seconds) = (self.plan.seed, self.took.as_secs());
        let (fences, gap_ms) = (self.fences, self.longest_gap.as_millis());
        writeln!(
            f,
            "seed {seed}, {seconds} s, {MASTERS} masters, {PROCESSES} processes, {agreement}\n"
        )?;
        writeln!(f, "{}", self.accidents)?;
        writeln!(
            f,
            "{fences} locks, each with its fence; longest time without a grant {gap_ms} ms"
        )?;
        writeln!(f, "{} fences that are not larger than an earlier one", self.disorders.len())?;
        self.disorders.iter().take(10).try_for_each(|disorder| writeln!(f, "  {disorder}"))
    }
}
