//! Causes random accidents to five masters, and checks that no two clients hold a lock at a time.
//!
//! - `plan`: which accidents happen, and how often
//! - `client`: clients that acquire, extend and release locks
//!
//! The seed decides which accidents and requests happen, and in which order. Their timing differs
//! from run to run, so a seed that failed need not fail again.

mod client;
mod plan;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::runtime;

use self::client::RunState;
use self::plan::next_incident;
use crate::harness::{
    Accident, AccidentCounts, Fleet, Incident, Master, Overlap, PROGRESS_INTERVAL, Protected,
    longest_gap, now, overlaps,
};

const MASTERS: usize = 5;
/// Number of networks in front of each master. Each network has its own clients.
const NETWORKS: usize = 2;
/// `lock.max-ttl`, and so also the length of an abstention.
const MAX_TTL: Duration = Duration::from_secs(1);
/// Longest sleep of the loop that injects accidents.
const SLEEP_MAX: Duration = Duration::from_millis(20);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of the accidents and of the clients.
    pub seed: u64,
    /// How long the run injects accidents.
    pub duration: Duration,
    /// Whether masters abstain after a restart.
    pub protected: Protected,
}

/// The result of a run. `Display` writes a Markdown table and some lines.
#[derive(Debug)]
pub struct Report {
    /// The plan of the run.
    pub plan: Plan,
    /// The accidents that happened.
    pub accidents: AccidentCounts,
    /// Leases that outlived their keys, as far as the masters could still report them.
    pub saved: u64,
    /// Locks that were granted.
    pub grants: u64,
    /// Extensions of locks.
    pub extends: u64,
    /// Locks that ended earlier than their holders expected.
    pub lost: u64,
    /// The longest time without a grant.
    pub longest_gap: Duration,
    /// Locks that two clients held at the same time. The run of a baseline ends with the first.
    pub overlaps: Vec<Overlap>,
}

/// Runs a plan. Calls `progress` with the elapsed time and the number of granted locks.
///
/// # Errors
/// When a master cannot be started, stopped or queried.
pub fn run(plan: Plan, progress: impl FnMut(Duration, u64)) -> Result<Report> {
    let shared = Arc::new(RunState::default());
    let mut fleet = start(plan.protected)?;
    let urls = (0..NETWORKS).map(|network| fleet.urls(network)).collect();
    let began = now();
    let clients = thread::spawn({
        let shared = Arc::clone(&shared);
        move || -> Result<()> {
            let runtime =
                runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(client::run(plan.seed, urls, &shared))
        }
    });

    let injected = inject_accidents(&mut fleet, plan, &shared, progress);
    shared.stop.store(true, Ordering::Relaxed);
    let ended = clients.join();
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).context("clients")?;
    let (accidents, saved) = injected?;
    let grants = shared.history.grants();
    Ok(Report {
        plan,
        accidents,
        saved,
        grants: shared.grants.load(Ordering::Relaxed),
        extends: shared.extends.load(Ordering::Relaxed),
        lost: shared.lost.load(Ordering::Relaxed),
        longest_gap: longest_gap(&grants, began, now()),
        overlaps: overlaps(&grants),
    })
}

/// Starts brand-new masters, which vote at once. If `protected`, they abstain after a restart.
fn start(protected: Protected) -> Result<Fleet> {
    let fsync = ["no", "everysec", "always"];
    let policy = ["volatile-ttl", "allkeys-lru"];
    let mut fleet = Fleet::start_with_injectors(MASTERS, NETWORKS, |index, builder| {
        builder
            .arg("lock.max-ttl", MAX_TTL.as_millis())
            .arg("appendonly", "yes")
            .arg("appendfsync", fsync[index % fsync.len()])
            .arg("maxmemory-policy", policy[index % policy.len()])
    })?;
    let rejoin_delay_ms = if protected == Protected::Yes { -1 } else { 0 };
    for master in &mut fleet.masters {
        master.server.set_arg("lock.rejoin-delay", rejoin_delay_ms);
    }
    Ok(fleet)
}

/// Injects accidents as planned, and then lets all masters recover.
///
/// Returns the accidents, and the number of leases that outlived their keys.
fn inject_accidents(
    fleet: &mut Fleet,
    plan: Plan,
    shared: &RunState,
    mut progress: impl FnMut(Duration, u64),
) -> Result<(AccidentCounts, u64)> {
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let (mut counts, mut saved) = (AccidentCounts::default(), 0);
    let began = Instant::now();
    let mut report_at = began + PROGRESS_INTERVAL;
    let (pause, mut next) = next_incident(&mut rng);
    let mut next_at = began + pause;
    let is_enough =
        || plan.protected == Protected::No && !overlaps(&shared.history.grants()).is_empty();
    while began.elapsed() < plan.duration && !is_enough() {
        fleet.recover_until(Instant::now())?;
        if Instant::now() >= next_at {
            let (pause, incident) = next_incident(&mut rng);
            let incident = std::mem::replace(&mut next, incident);
            saved += saved_before(fleet, &incident);
            counts.count(incident.accident, fleet.inject(incident)?);
            next_at = Instant::now() + pause;
        }
        if Instant::now() >= report_at {
            progress(began.elapsed(), shared.grants.load(Ordering::Relaxed));
            report_at += PROGRESS_INTERVAL;
        }
        let wake_at = fleet.next_recovery().into_iter().chain([next_at]).min();
        let sleep = wake_at.map_or(SLEEP_MAX, |at| at.saturating_duration_since(Instant::now()));
        thread::sleep(sleep.min(SLEEP_MAX));
    }
    fleet.recover_all()?;
    saved += fleet.masters.iter().map(Master::saved_leases).sum::<u64>();
    Ok((counts, saved))
}

/// Returns how many saved leases the masters have counted, if the incident resets their counts.
fn saved_before(fleet: &Fleet, incident: &Incident) -> u64 {
    match incident.accident {
        Accident::Kill(_) => {
            incident.masters.iter().map(|&index| fleet.masters[index].saved_leases()).sum()
        }
        _ => 0,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let abstention = match self.plan.protected {
            Protected::Yes => "masters abstain after a restart",
            Protected::No => "lock.rejoin-delay 0",
        };
        let Self { grants, extends, lost, saved, .. } = self;
        let gap_ms = self.longest_gap.as_millis();
        writeln!(f, "seed {}, {} s, {abstention}\n", self.plan.seed, self.plan.duration.as_secs())?;
        writeln!(f, "{}", self.accidents)?;
        writeln!(f, "{grants} locks granted, {extends} extensions, {lost} locks lost;")?;
        writeln!(
            f,
            "{saved} leases whose key an accident removed; longest time without a grant {gap_ms} ms"
        )?;
        writeln!(f, "{} times two clients held the same lock", self.overlaps.len())?;
        self.overlaps.iter().try_for_each(|overlap| writeln!(f, "  {overlap}"))
    }
}
