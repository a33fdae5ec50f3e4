//! Five masters, several clients that lock, extend and release, and accidents at random, from a seed.
//!
//! - `accident`: what may happen, and how often
//! - `cluster`: the masters, and what is done to them
//! - `clients`: those who want locks
//! - `history`: who believed when that it held what: two at once is the one thing that must not be
//!
//! The seed decides what is tried, and in what order. When it meets which step of which client is up to the machine, so
//! a seed that has failed need not fail again.

mod accident;
mod clients;
mod cluster;
mod history;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::runtime;

use self::clients::{Counts, Shared};
use self::cluster::Cluster;
use self::history::History;
pub use self::history::{Interval, Overlap};
use crate::Protected;

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides what is done.
    pub seed: u64,
    /// How long accidents happen.
    pub duration: Duration,
    /// Whether masters abstain after a restart.
    pub protected: Protected,
}

/// What has come of a run. Displayed, it is a table in Markdown and some lines.
#[derive(Debug)]
pub struct Report {
    /// What made it.
    pub plan: Plan,
    /// How often each accident happened.
    pub accidents: BTreeMap<&'static str, u32>,
    /// Leases of which an accident took the key, as far as the masters lived to tell.
    pub saved: u64,
    /// Locks that clients were granted.
    pub grants: u64,
    /// Times that they extended one.
    pub extends: u64,
    /// Locks that ended before their holders had expected it.
    pub lost: u64,
    /// The longest time in which nobody was granted a lock.
    pub longest_gap: Duration,
    /// Locks that two clients held at the same time. In a twin the run ends with the first.
    pub overlaps: Vec<Overlap>,
}

/// Runs, with progress in between: how long it has taken, and how many locks were granted.
///
/// # Errors
/// When a master cannot be started, stopped or spoken to.
pub fn run(plan: Plan, progress: impl FnMut(Duration, u64)) -> Result<Report> {
    let shared = Shared { history: History::new(), counts: Counts::default(), stop: AtomicBool::new(false) };
    let shared = Arc::new(shared);
    let mut cluster = Cluster::start(plan.protected)?;
    let (urls, shared_by_clients) = (cluster.urls(), Arc::clone(&shared));
    let clients = thread::spawn(move || -> Result<()> {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(clients::run(plan.seed, urls, &shared_by_clients))
    });

    let enough = || plan.protected == Protected::No && shared.history.has_overlap();
    let rng = StdRng::seed_from_u64(plan.seed);
    let happened = cluster.have_accidents(rng, plan.duration, &shared.counts, enough, progress);
    shared.stop.store(true, Ordering::Relaxed);
    let ended = clients.join();
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).context("clients")?;
    Ok(Report {
        plan,
        accidents: happened?,
        saved: cluster.saved(),
        grants: shared.counts.grants(),
        extends: shared.counts.extends(),
        lost: shared.counts.lost(),
        longest_gap: shared.history.longest_gap(Instant::now()),
        overlaps: shared.history.overlaps(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let abstaining = match self.plan.protected {
            Protected::Yes => "masters abstain after a restart",
            Protected::No => "lock.rejoin-delay 0",
        };
        writeln!(f, "seed {}, {} s, {abstaining}\n", self.plan.seed, self.plan.duration.as_secs())?;
        writeln!(f, "| accident | times |\n|---|---|")?;
        self.accidents.iter().try_for_each(|(name, times)| writeln!(f, "| {name} | {times} |"))?;
        writeln!(
            f,
            "\n{} locks granted, {} times extended, {} lost; {} leases whose key an accident took; the longest time \
             without a grant was {} ms",
            self.grants,
            self.extends,
            self.lost,
            self.saved,
            self.longest_gap.as_millis()
        )?;
        writeln!(f, "{} times two held the same lock", self.overlaps.len())?;
        self.overlaps.iter().try_for_each(|overlap| writeln!(f, "  {overlap}"))
    }
}
