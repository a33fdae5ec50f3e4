//! Five masters, eight processes that lock, and accidents of single masters: every fence must be larger than the one
//! before it.
//!
//! - `account`: which fences were reported when, and whether they grow
//! - `client`: a process that takes locks and tells of it
//! - `fleet`: all of these processes
//! - `accidents`: what happens to a master
//!
//! The seed decides what is tried, and in what order. When it meets which step of which process is up to the machine.

mod accidents;
mod account;
mod client;
mod fleet;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

pub use self::account::{Disorder, Grant};
pub use self::client::{Behaviour, NAME};
use self::fleet::Fleet;
use crate::Protected;
use crate::node::Node;

const MASTERS: usize = 5;
/// Processes that want locks.
pub const PROCESSES: usize = 8;
/// What masters grant at most, and for how long they abstain.
const MAX_TTL: Duration = Duration::from_secs(1);
/// So little that a master which has started again is ahead of the others for a while, and not for the whole run.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);
/// How often it is looked how far the run has come.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides what is done.
    pub seed: u64,
    /// How long accidents happen.
    pub duration: Duration,
    /// Whether the nodes agree on a fence. Otherwise a client takes the largest that the nodes gave it.
    pub protected: Protected,
    /// The program that is a client when its first argument is [`NAME`].
    pub program: PathBuf,
}

/// What has come of a run. Displayed, it is a table in Markdown and some lines.
#[derive(Debug)]
pub struct Report {
    /// What made it.
    pub plan: Plan,
    /// How often each accident happened.
    pub accidents: BTreeMap<&'static str, u32>,
    /// Locks that were reported, each with its fence.
    pub fences: usize,
    /// How long it took. A twin ends early.
    pub took: Duration,
    /// The longest time in which no lock was reported, from the beginning to the end.
    pub longest_gap: Duration,
    /// Fences that are not larger than the one before. In a twin the run ends soon after the first.
    pub disorders: Vec<Disorder>,
}

/// Runs, with progress in between: how long it has taken, and how many locks were reported.
///
/// # Errors
/// When a master cannot be started, stopped or spoken to, or a process ends before it is told to.
pub fn run(plan: Plan, mut progress: impl FnMut(Duration, usize)) -> Result<Report> {
    let mut nodes = (0..MASTERS).map(start).collect::<Result<Vec<_>>>()?;
    let urls: Vec<_> = nodes.iter().map(|node| node.server.url()).collect();
    let mut fleet = Fleet::start(&plan, &urls)?;
    let stop = AtomicBool::new(false);
    let (began, began_at) = (Instant::now(), client::now());
    let happened = thread::scope(|scope| {
        let lives: Vec<_> = (0..)
            .zip(&mut nodes)
            .map(|(index, node)| {
                let rng = StdRng::seed_from_u64(plan.seed ^ index);
                let stop = &stop;
                scope.spawn(move || accidents::happen_to(node, rng, stop))
            })
            .collect();
        let mut report_at = PROGRESS_EVERY;
        while began.elapsed() < plan.duration && !lives.iter().any(thread::ScopedJoinHandle::is_finished) {
            if plan.protected == Protected::No && !account::disorders(&fleet.grants()).is_empty() {
                break;
            }
            if began.elapsed() >= report_at {
                progress(began.elapsed(), fleet.grants().len());
                report_at += PROGRESS_EVERY;
            }
            thread::sleep(LOOK_EVERY);
        }
        stop.store(true, Ordering::Relaxed);
        let ended = lives.into_iter().map(thread::ScopedJoinHandle::join);
        ended
            .map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<Vec<_>>>()
    });
    let (took, ended_at) = (began.elapsed(), client::now());
    let grants = fleet.stop()?;
    let mut accidents = BTreeMap::new();
    for (name, times) in happened?.into_iter().flatten() {
        *accidents.entry(name).or_default() += times;
    }
    Ok(Report {
        accidents,
        fences: grants.len(),
        took,
        longest_gap: account::longest_gap(&grants, began_at, ended_at),
        disorders: account::disorders(&grants),
        plan,
    })
}

/// Brand-new, but not after a restart. Half of them have a disk that they find again then.
fn start(index: usize) -> Result<Node> {
    let appendonly = if index.is_multiple_of(2) { "no" } else { "yes" };
    let mut node = Node::start(|builder| {
        builder
            .arg("lock.max-ttl", MAX_TTL.as_millis())
            .arg("lock.max-clock-skew", MAX_CLOCK_SKEW.as_millis())
            .arg("appendonly", appendonly)
    })?;
    node.server.set_arg("lock.rejoin-delay", -1);
    Ok(node)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agreement = match self.plan.protected {
            Protected::Yes => "fences are agreed on",
            Protected::No => "the largest fence of the grants is used",
        };
        let seconds = self.took.as_secs();
        writeln!(
            f,
            "seed {}, {seconds} s, {MASTERS} masters, {PROCESSES} processes, {agreement}\n",
            self.plan.seed
        )?;
        writeln!(f, "| accident | times |\n|---|---|")?;
        self.accidents.iter().try_for_each(|(name, times)| writeln!(f, "| {name} | {times} |"))?;
        writeln!(
            f,
            "\n{} locks, each with its fence; the longest time without one was {} ms",
            self.fences,
            self.longest_gap.as_millis()
        )?;
        writeln!(f, "{} fences that are not larger than the one before", self.disorders.len())?;
        self.disorders.iter().take(10).try_for_each(|disorder| writeln!(f, "  {disorder}"))
    }
}
