//! Storms: clients compete for locks of five nodes while accidents happen to the nodes.
//!
//! Each client records when it held which lock, and the history of all clients is checked. A storm
//! without the protection is a baseline, which must show the harm.
//!
//! - `accidents`: which accidents happen, and how often
//! - `baseline`: clients with simpler rules, which do harm
//! - `clients`: the clients, and what they record
//! - `outcome`: the result, and what is wrong with it
//!
//! The seed decides the accidents, their order, and the random numbers of each client, but not the
//! timing and the requests: a seed that failed need not fail again.

mod accidents;
mod baseline;
mod clients;
mod outcome;

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use quorlock_testkit::{Accident, Disk, Fleet, Server};
use redis::cmd;

use self::accidents::inject_at_random;
pub use self::clients::Record;
use self::clients::RunState;
pub use self::outcome::{Counts, Outcome};
use crate::history::{Hold, Mode, now};
use crate::{Protected, wait_until};

const NODES: usize = 5;
/// Number of proxies in front of each node: one per network.
const NETWORKS: usize = 2;
/// `lock.max-ttl`, and so also the length of an abstention.
const MAX_TTL: Duration = Duration::from_secs(1);
pub const READERS: usize = 32;
pub const WRITERS: usize = 4;
pub const PERMITS: usize = 4;
/// Interval between two checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for all clients to be at work, for a lock to be granted, for a node to vote, and
/// for each mode to occur.
const LIMIT: Duration = Duration::from_secs(20);
/// Number of holds after which all clients of an orderly storm count as connected and at work.
const AT_WORK: usize = 200;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// What the clients compete for, and which rule a baseline breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Exclusive locks. In a baseline, nodes vote at once after a restart
    Exclusive,
    /// Exclusive locks, whose fences must grow while accidents happen to single nodes. In a
    /// baseline, a client uses the largest fence of its grants, without agreement
    Fences,
    /// One key, for readers and writers. In a baseline, a reader asks only one node
    Shared,
    /// A semaphore. In a baseline, it is a counter on each node
    Permits,
}

/// What happens to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Course {
    /// No accidents
    Calm,
    /// One node after the other is killed, and started again
    OneDown,
    /// One node after the other is stopped by SIGSTOP, and resumed
    OnePaused,
    /// Accidents at random
    Accidents,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub kind: Kind,
    pub course: Course,
    pub seed: u64,
    pub duration: Duration,
    pub protected: Protected,
}

impl Plan {
    /// Returns the storms that show all about a kind of lock. The orderly ones are shorter.
    pub fn all(kind: Kind, seed: u64, duration: Duration, protected: Protected) -> Vec<Self> {
        let courses = match (kind, protected) {
            (Kind::Exclusive | Kind::Fences, _) => &[(Course::Accidents, 1)][..],
            (_, Protected::No) => &[(Course::Calm, 1)],
            (_, Protected::Yes) => &[
                (Course::Calm, 3),
                (Course::OneDown, 3),
                (Course::OnePaused, 1),
                (Course::Accidents, 1),
            ],
        };
        let plan =
            |&(course, part)| Self { kind, course, seed, duration: duration / part, protected };
        courses.iter().map(plan).collect()
    }

    /// Whether all clients work for a short time, release their locks, and wait for as long as
    /// necessary.
    fn is_orderly(&self) -> bool {
        self.course != Course::Accidents
    }

    /// Returns whether clients have held the lock in each mode that the plan requires. Under
    /// accidents, few writers acquire the lock, and chance decides which of them downgrade it.
    fn has_all_modes(&self, state: &RunState) -> bool {
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Downgraded];
        let record = state.record();
        self.kind != Kind::Shared
            || modes.iter().all(|mode| record.holds.iter().any(|hold| hold.mode == *mode))
    }
}

/// Runs a storm. Calls `progress` every ten seconds with the elapsed time and the number of holds.
///
/// The storm of a baseline ends soon after the first harm.
///
/// # Errors
/// When a node cannot be started, stopped or queried.
pub fn run(plan: Plan, progress: impl FnMut(Duration, usize)) -> Result<Outcome> {
    let state = Arc::new(RunState::default());
    let mut fleet = start(plan)?;
    let networks: Vec<_> = (0..NETWORKS).map(|network| fleet.urls(network)).collect();
    let clients = thread::spawn({
        let state = Arc::clone(&state);
        move || match (plan.protected, plan.kind) {
            (Protected::Yes, _) | (_, Kind::Exclusive) => clients::run(plan, &networks, &state),
            (Protected::No, _) => baseline::run(plan, &networks[0], &state),
        }
    });
    let ended = run_course(&mut fleet, plan, &state, progress).map(|()| now());
    state.record().is_over = true;
    clients.join().unwrap_or_else(|panic| resume_unwind(panic)).context("clients")?;
    let record = std::mem::take(&mut *state.record());
    Ok(Outcome::new(plan, record, ended?))
}

/// Starts brand-new nodes, which vote at once. Unless the plan is the baseline of
/// [`Kind::Exclusive`], they abstain after a restart.
fn start(plan: Plan) -> Result<Fleet> {
    const FSYNC: [&str; 3] = ["no", "everysec", "always"];
    const POLICY: [&str; 2] = ["volatile-ttl", "allkeys-lru"];
    let mut fleet = Fleet::start(NODES, NETWORKS, |index, builder| {
        let builder = builder.arg("lock.max-ttl", MAX_TTL.as_millis()).arg("appendonly", "yes");
        match plan.kind {
            Kind::Exclusive => builder
                .arg("appendfsync", FSYNC[index % FSYNC.len()])
                .arg("maxmemory-policy", POLICY[index % POLICY.len()]),
            // A restarted node begins its fences this far ahead of the wall clock, which must
            // catch up within a run.
            _ => builder.arg("appendfsync", "no").arg("lock.max-clock-skew", 2000),
        }
    })?;
    let votes_at_once = (plan.kind, plan.protected) == (Kind::Exclusive, Protected::No);
    for node in &mut fleet.nodes {
        node.server.set_arg("lock.rejoin-delay", if votes_at_once { 0 } else { -1 });
    }
    Ok(fleet)
}

fn run_course(
    fleet: &mut Fleet,
    plan: Plan,
    state: &RunState,
    mut progress: impl FnMut(Duration, usize),
) -> Result<()> {
    let shows_harm = || {
        let holds = || state.record().holds.clone();
        plan.protected == Protected::No && !outcome::harm(plan, &holds()).is_empty()
    };
    if plan.is_orderly() {
        wait_until(LIMIT, "the clients are at work", || {
            Ok(state.record().holds.len() >= AT_WORK || shows_harm())
        })?;
        // The first waits also open wait connections.
        state.record().waits.clear();
    }
    state.record().began = now();
    let mut report_at = PROGRESS_INTERVAL;
    let goes_on = |elapsed: Duration| {
        if elapsed >= report_at {
            progress(elapsed, state.record().holds.len());
            report_at += PROGRESS_INTERVAL;
        }
        let needs_modes = elapsed < plan.duration + LIMIT
            && plan.protected == Protected::Yes
            && !plan.has_all_modes(state);
        (elapsed < plan.duration || needs_modes) && !shows_harm()
    };
    match plan.course {
        Course::OneDown => stop_each(fleet, plan, Accident::Kill(Disk::Kept), state),
        Course::OnePaused => stop_each(fleet, plan, Accident::Pause, state),
        Course::Calm | Course::Accidents => inject_at_random(fleet, plan, state, goes_on),
    }
}

/// Stops one node after the other, and compares the rates of locks with it and without it.
fn stop_each(fleet: &mut Fleet, plan: Plan, accident: Accident, state: &RunState) -> Result<()> {
    let part = plan.duration / u32::try_from(2 * NODES)?;
    let count_in_part = || {
        let from = now();
        thread::sleep(part);
        let record = state.record();
        u32::try_from(record.holds.iter().filter(|hold| (from..now()).contains(&hold.from)).count())
    };
    for node in &mut fleet.nodes {
        let started = Instant::now();
        let before = loop {
            match count_in_part()? {
                0 => ensure!(started.elapsed() < LIMIT, "no lock was granted before the accident"),
                count => break count,
            }
        };
        ensure!(node.inject(accident, 0)?, "the accident was not injected");
        let stopped_at = now();
        let without = count_in_part()?;
        wait_until(LIMIT, "clients are granted two locks without the node", || {
            let has_locked = |mode| has_locked_twice(&state.record().holds, mode, stopped_at);
            Ok(has_locked(Mode::Exclusive)
                && (plan.kind != Kind::Shared || has_locked(Mode::Shared)))
        })?;
        node.recover(accident, 0)?;
        wait_until(LIMIT, "a node votes again", || votes(&node.server))?;
        let mut record = state.record();
        record.accidents.add(accident.name(), 1);
        record.without_one.push(f64::from(without) / f64::from(before));
    }
    Ok(())
}

/// Returns whether a client was granted two locks of this mode after this time: the nodes may have
/// granted the first of them before.
fn has_locked_twice(holds: &[Hold], mode: Mode, since: Duration) -> bool {
    let mut clients = BTreeSet::new();
    let later = holds.iter().filter(|hold| hold.from > since && hold.mode == mode);
    later.map(|hold| hold.client).any(|client| !clients.insert(client))
}

fn votes(server: &Server) -> Result<bool> {
    let info: String = cmd("INFO").arg("lock").query(&mut server.try_connection()?)?;
    Ok(info.contains("lock_state:voting"))
}
