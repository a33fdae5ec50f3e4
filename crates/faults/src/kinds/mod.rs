//! Causes accidents to five masters, and checks the holders of shared locks and semaphores.
//!
//! No writer may hold the key beside another client. No more clients than permits may hold the
//! semaphore, and no two clients the same slot.
//!
//! - `baseline`: the same clients with simpler rules
//! - `client`: the clients
//! - `history`: the violations in a history
//! - `plan`: which accidents happen, and how often
//!
//! The seed decides the accidents, their order, and the random numbers of each client, but not the
//! timing and the requests.

mod baseline;
mod client;
mod history;
mod plan;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use redis::cmd;

use self::client::RunState;
pub use self::history::{Hold, Mode};
use self::history::{count_begun, intrusions, most_at_once, shared_disorders};
use self::plan::next_incident;
use crate::harness::{
    Accident, AccidentCounts, Disk, Fleet, Grant, Overlap, Protected, disorders, longest_gap, now,
    overlaps, result_of,
};

const MASTERS: usize = 5;
/// Number of proxies in front of each master: one per network.
const NETWORKS: usize = 2;
/// `lock.max-ttl`, and so also the length of an abstention.
const MAX_TTL: Duration = Duration::from_secs(1);
/// `lock.max-clock-skew`. A restarted master begins its fences this far ahead of the wall clock,
/// which must catch up within a run.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);
/// The key, and the name of the semaphore.
const KEY: &str = "k";
pub const READERS: usize = 32;
pub const WRITERS: usize = 4;
pub const PERMITS: usize = 4;
pub const SEMAPHORE_CLIENTS: usize = 16;
/// Interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for all clients to be at work, for a lock to be granted, for a master to vote, and
/// for each mode to occur.
const LIMIT: Duration = Duration::from_secs(20);
/// Number of holds after which all clients count as connected and at work.
const AT_WORK: usize = 200;
/// Interval at which the history of a baseline is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Longest allowed wait of a writer without accidents, as a multiple of the mean.
const WAIT_RATIO_MAX: f64 = 3.0;
/// Longest allowed time without a grant while single masters are down or paused.
const STALL_MAX: Duration = Duration::from_secs(2);
/// Longest allowed wait of a client while single masters are down or paused.
const STALLED_WAIT_MAX: Duration = Duration::from_secs(3);
/// Smallest allowed rate of locks without one master, as a fraction of the rate with all.
const WITHOUT_ONE_MIN: f64 = 0.8;

/// What the clients compete for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One key, for [`READERS`] readers and [`WRITERS`] writers.
    Shared,
    /// A semaphore of [`PERMITS`] permits, for [`SEMAPHORE_CLIENTS`] clients.
    Semaphore,
}

/// What happens to the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    Calm,
    /// One master after the other is killed, and started again.
    OneDown,
    /// One master after the other is stopped by SIGSTOP, and resumed.
    OnePaused,
    Accidents,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub kind: Kind,
    pub course: Course,
    pub seed: u64,
    pub duration: Duration,
    /// Whether readers ask a majority, and a permit is a lock on a slot. Otherwise a reader asks
    /// one node, and a semaphore is a counter on each node.
    pub protected: Protected,
}

/// The result of a run. `Display` writes a Markdown table and some lines.
#[derive(Debug)]
pub struct Report {
    pub plan: Plan,
    pub accidents: AccidentCounts,
    pub holds: Vec<Hold>,
    /// How long the course took.
    pub took: Duration,
    /// Waits of writers, or of clients of the semaphore: the mean and the longest.
    pub waits: (Duration, Duration),
    /// Number of calls that ended without a lock, by reason.
    pub failed_calls: BTreeMap<&'static str, usize>,
    /// The longest time without a grant.
    pub longest_gap: Duration,
    /// The most readers (without downgraded writers), or holders of a permit, at the same time.
    pub most_at_once: usize,
    /// Two clients that held the same slot, or a writer beside another client.
    pub overlaps: Vec<Overlap>,
    /// Fences that are out of order.
    pub disorders: Vec<String>,
    /// For each master: the rate of locks without it, as a fraction of the rate with all masters.
    /// Empty unless the course is `OneDown` or `OnePaused`.
    pub without_one: Vec<f64>,
}

/// Runs a plan. During random accidents, calls `progress` with the elapsed time and the number of
/// holds.
///
/// # Errors
/// When a master cannot be started, stopped or queried.
pub fn run(plan: Plan, progress: impl FnMut(Duration, usize)) -> Result<Report> {
    let state = Arc::new(RunState::default());
    let mut fleet = start()?;
    let clients = thread::spawn({
        let state = Arc::clone(&state);
        let networks: Vec<_> = (0..NETWORKS).map(|network| fleet.urls(network)).collect();
        move || match plan.protected {
            Protected::Yes => client::run(plan, &networks, &state),
            Protected::No => baseline::run(plan.kind, plan.seed, &networks[0], &state),
        }
    });

    let outcome = run_course(&mut fleet, plan, &state, progress);
    let ended = now();
    state.stop.store(true, Ordering::Relaxed);
    result_of(clients.join()).context("clients")?;
    let CourseOutcome { began, accidents, without_one } = outcome?;
    let record = state.record().clone();
    let grants: Vec<_> = record.holds.iter().map(|hold| hold.grant.clone()).collect();
    let longest = record.waits.iter().max().copied().unwrap_or_default();
    let mean = record.waits.iter().sum::<Duration>() / u32::try_from(record.waits.len().max(1))?;
    Ok(Report {
        plan,
        accidents,
        took: ended.saturating_sub(began),
        waits: (mean, longest),
        failed_calls: record.failed_calls,
        longest_gap: longest_gap(&grants, began, ended),
        most_at_once: most_holders(plan.kind, &record.holds),
        overlaps: forbidden_overlaps(plan.kind, &record.holds, &grants),
        disorders: out_of_order(plan, &record.holds, &grants),
        without_one,
        holds: record.holds,
    })
}

struct CourseOutcome {
    began: Duration,
    accidents: AccidentCounts,
    without_one: Vec<f64>,
}

/// Waits until the clients are at work, and then runs the course of the plan.
fn run_course(
    fleet: &mut Fleet,
    plan: Plan,
    state: &RunState,
    mut progress: impl FnMut(Duration, usize),
) -> Result<CourseOutcome> {
    let started = Instant::now();
    while state.record().holds.len() < AT_WORK && !baseline_has_shown_harm(plan, state) {
        ensure!(started.elapsed() < LIMIT, "the clients are not at work");
        thread::sleep(POLL_INTERVAL);
    }
    // The first waits also open wait connections.
    state.record().waits.clear();
    let began = now();
    let (accidents, without_one) = match plan.course {
        Course::Calm => {
            run_calm(plan, state);
            (AccidentCounts::default(), Vec::new())
        }
        Course::OneDown => stop_each(fleet, plan, Accident::Kill(Disk::Kept), state)?,
        Course::OnePaused => stop_each(fleet, plan, Accident::Pause, state)?,
        Course::Accidents => {
            // The run takes longer than planned until clients have held the lock in each mode.
            let goes_on = |elapsed: Duration| {
                elapsed < plan.duration
                    || (elapsed < plan.duration + LIMIT && !has_all_modes(plan, state))
            };
            let progress = |elapsed| progress(elapsed, state.record().holds.len());
            let (accidents, _) =
                fleet.inject_at_random(plan.seed, next_incident, goes_on, progress)?;
            (accidents, Vec::new())
        }
    };
    Ok(CourseOutcome { began, accidents, without_one })
}

/// Starts brand-new masters, which vote at once, and abstain after a restart.
fn start() -> Result<Fleet> {
    let mut fleet = Fleet::start(MASTERS, NETWORKS, |_, builder| {
        builder
            .arg("lock.max-ttl", MAX_TTL.as_millis())
            .arg("lock.max-clock-skew", MAX_CLOCK_SKEW.as_millis())
            .arg("appendonly", "yes")
            .arg("appendfsync", "no")
    })?;
    for master in &mut fleet.masters {
        master.server.set_arg("lock.rejoin-delay", -1);
    }
    Ok(fleet)
}

fn run_calm(plan: Plan, state: &RunState) {
    let began = Instant::now();
    while began.elapsed() < plan.duration && !baseline_has_shown_harm(plan, state) {
        thread::sleep(CHECK_INTERVAL.min(plan.duration));
    }
}

fn baseline_has_shown_harm(plan: Plan, state: &RunState) -> bool {
    plan.protected == Protected::No && {
        let holds = state.record().holds.clone();
        match plan.kind {
            Kind::Shared => !intrusions(&holds).is_empty(),
            Kind::Semaphore => most_at_once(holds.iter()) > PERMITS,
        }
    }
}

/// Returns whether clients have held the lock in each mode that the plan requires.
///
/// Under accidents, few writers acquire the lock, and chance decides which of them downgrade it.
fn has_all_modes(plan: Plan, state: &RunState) -> bool {
    let modes: &[Mode] = match plan.kind {
        Kind::Shared if plan.protected == Protected::Yes => {
            &[Mode::Exclusive, Mode::Shared, Mode::Downgraded]
        }
        _ => &[],
    };
    let record = state.record();
    modes.iter().all(|mode| record.holds.iter().any(|hold| hold.mode == *mode))
}

/// Stops one master after the other. Returns the accidents, and for each master the rate of locks
/// without it, as a fraction of the rate before.
fn stop_each(
    fleet: &mut Fleet,
    plan: Plan,
    accident: Accident,
    state: &RunState,
) -> Result<(AccidentCounts, Vec<f64>)> {
    let part = plan.duration / u32::try_from(2 * MASTERS)?;
    let per_part = || {
        let from = now();
        thread::sleep(part);
        count_begun(&state.record().holds, from, now())
    };
    let (mut counts, mut ratios) = (AccidentCounts::default(), Vec::new());
    for master in &mut fleet.masters {
        let started = Instant::now();
        let before = loop {
            match per_part() {
                0 => ensure!(started.elapsed() < LIMIT, "no lock was granted before the accident"),
                count => break count,
            }
        };
        ensure!(master.inject(accident, 0)?, "the accident was not injected");
        counts.count(accident, 1);
        let without = per_part();
        master.recover(accident, 0)?;
        let recovered = Instant::now();
        while !votes(&master.server)? {
            ensure!(recovered.elapsed() < LIMIT, "a master does not vote again");
            thread::sleep(POLL_INTERVAL);
        }
        ratios.push(ratio(without, before));
    }
    Ok((counts, ratios))
}

fn votes(server: &quorlock_testkit::Server) -> Result<bool> {
    let info: String = cmd("INFO").arg("lock").query(&mut server.try_connection()?)?;
    Ok(info.contains("lock_state:voting"))
}

#[expect(clippy::cast_precision_loss, reason = "the counts are far below 2^52")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

fn most_holders(kind: Kind, holds: &[Hold]) -> usize {
    most_at_once(holds.iter().filter(|hold| kind == Kind::Semaphore || hold.mode == Mode::Shared))
}

fn forbidden_overlaps(kind: Kind, holds: &[Hold], grants: &[Grant]) -> Vec<Overlap> {
    match kind {
        Kind::Shared => intrusions(holds),
        Kind::Semaphore => overlaps(grants),
    }
}

fn out_of_order(plan: Plan, holds: &[Hold], grants: &[Grant]) -> Vec<String> {
    match plan.kind {
        // A baseline has no fences.
        _ if plan.protected == Protected::No => Vec::new(),
        Kind::Shared => shared_disorders(holds).iter().map(ToString::to_string).collect(),
        Kind::Semaphore => disorders(grants).iter().map(ToString::to_string).collect(),
    }
}

impl Report {
    /// Returns the longest wait as a multiple of the mean; infinite if no call waited.
    pub fn wait_ratio(&self) -> f64 {
        let (mean, longest) = self.waits;
        if mean.is_zero() { f64::INFINITY } else { longest.as_secs_f64() / mean.as_secs_f64() }
    }

    #[expect(clippy::cast_precision_loss, reason = "there are few masters")]
    pub fn mean_without_one(&self) -> f64 {
        self.without_one.iter().sum::<f64>() / self.without_one.len() as f64
    }

    /// Returns the harm: violations that no accident excuses.
    pub fn harm(&self) -> Vec<String> {
        let mut harm: Vec<_> = self.overlaps.iter().map(ToString::to_string).collect();
        if self.plan.kind == Kind::Semaphore && self.most_at_once > PERMITS {
            let holders = self.most_at_once;
            harm.push(format!("{holders} clients held {PERMITS} permits at the same time"));
        }
        harm.extend(self.disorders.iter().cloned());
        harm
    }

    /// Returns what is wrong with the run.
    ///
    /// For a baseline, that is the absence of harm. Otherwise it is harm, a run in which no two
    /// clients shared the lock or the semaphore, and a run without the planned accidents. Unless
    /// accidents are random, calls without a lock, long waits and a low rate are wrong too.
    pub fn complaints(&self) -> Vec<String> {
        let Plan { kind, course, seed, protected, .. } = self.plan;
        let mut complaints = Vec::new();
        let harm = self.harm();
        match (protected, harm.first()) {
            (Protected::Yes, Some(first)) => complaints.push(format!("{first}; seed {seed}")),
            (Protected::No, None) => {
                complaints.push("no harm without the protection: the run proves nothing".into());
            }
            _ => {}
        }
        if protected == Protected::No {
            return complaints;
        }
        if self.most_at_once < 2 {
            complaints
                .push("there were no two holders at the same time: the run proves nothing".into());
        }
        if course != Course::Calm && self.accidents.is_empty() {
            complaints.push("no accident was injected: the run proves nothing".into());
        }
        if course != Course::Accidents && !self.failed_calls.is_empty() {
            complaints.push(format!("calls without a lock: {:?}", self.failed_calls));
        }
        if course == Course::Calm && kind == Kind::Shared && self.wait_ratio() > WAIT_RATIO_MAX {
            complaints.push(format!("a writer waited {:.1} × the mean", self.wait_ratio()));
        }
        if matches!(course, Course::OneDown | Course::OnePaused) {
            if self.longest_gap > STALL_MAX {
                complaints.push(format!("no lock was granted for {:?}", self.longest_gap));
            }
            if self.waits.1 > STALLED_WAIT_MAX {
                complaints.push(format!("a client waited for {:?}", self.waits.1));
            }
            let ratio = self.mean_without_one();
            if ratio < WITHOUT_ONE_MIN {
                complaints.push(format!(
                    "with one master down or paused, only {ratio:.2} × as many locks per second"
                ));
            }
        }
        complaints
    }

    pub fn count(&self, mode: Mode) -> usize {
        self.holds.iter().filter(|hold| hold.mode == mode).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, most_at_once, .. } = self;
        let who = match plan.kind {
            Kind::Shared => format!("{READERS} readers and {WRITERS} writers of one key"),
            Kind::Semaphore => format!("{SEMAPHORE_CLIENTS} clients for {PERMITS} permits"),
        };
        let course = match plan.course {
            Course::Calm => "no accidents",
            Course::OneDown => "one master down at a time",
            Course::OnePaused => "one master paused at a time",
            Course::Accidents => "accidents",
        };
        let rule = match (plan.protected, plan.kind) {
            (Protected::Yes, _) => "",
            (Protected::No, Kind::Shared) => ", a reader asks one node",
            (Protected::No, Kind::Semaphore) => ", a counter on each node",
        };
        let (seed, seconds) = (plan.seed, self.took.as_secs_f64());
        writeln!(f, "{who}{rule}: {MASTERS} masters, {course}, {seconds:.0} s, seed {seed}\n")?;
        if !self.accidents.is_empty() {
            writeln!(f, "{}", self.accidents)?;
        }
        let (holds, holders) = match plan.kind {
            Kind::Shared => {
                let [writers, downgraded, readers] =
                    [Mode::Exclusive, Mode::Downgraded, Mode::Shared].map(|mode| self.count(mode));
                let writers =
                    format!("{writers} holds of writers, {downgraded} of them downgraded");
                (format!("{writers}, {readers} of readers"), "readers")
            }
            Kind::Semaphore => (format!("{} holds", self.holds.len()), "holders"),
        };
        writeln!(f, "{holds}, up to {most_at_once} {holders} at the same time")?;
        let (mean, longest) = self.waits;
        if !longest.is_zero() {
            let waiter = if plan.kind == Kind::Shared { "a writer" } else { "a client" };
            writeln!(
                f,
                "{waiter} waited {:.1} ms on average and {:.1} ms at most ({:.1} ×)",
                mean.as_secs_f64() * 1e3,
                longest.as_secs_f64() * 1e3,
                self.wait_ratio()
            )?;
        }
        if !self.without_one.is_empty() {
            let each: Vec<_> = self.without_one.iter().map(|ratio| format!("{ratio:.2}")).collect();
            writeln!(
                f,
                "locks per second with one master down or paused: {:.2} × those with all ({})",
                self.mean_without_one(),
                each.join(", ")
            )?;
        }
        writeln!(
            f,
            "calls without a lock: {:?}; longest time without a grant {} ms",
            self.failed_calls,
            self.longest_gap.as_millis()
        )?;
        let harm = self.harm();
        writeln!(f, "{} violations", harm.len())?;
        harm.iter().take(10).try_for_each(|harm| writeln!(f, "  {harm}"))
    }
}
