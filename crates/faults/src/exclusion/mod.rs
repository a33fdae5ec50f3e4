//! Causes random accidents to five masters, and checks that no two clients hold a lock at a time.
//!
//! - `plan`: which accidents happen, and how often
//! - `client`: clients that acquire, extend and release locks
//!
//! The seed decides the accidents, their order, and the random numbers of each client, but not the
//! timing and the requests: a seed that failed need not fail again.

mod client;
mod plan;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use self::client::RunState;
use self::plan::next_incident;
use crate::harness::{
    AccidentCounts, Fleet, Overlap, Protected, longest_gap, now, overlaps, result_of,
};

const MASTERS: usize = 5;
/// Number of networks in front of each master. Each network has its own clients.
const NETWORKS: usize = 2;
/// `lock.max-ttl`, and so also the length of an abstention.
const MAX_TTL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub duration: Duration,
    /// Whether masters abstain after a restart.
    pub protected: Protected,
}

/// The result of a run. `Display` writes a Markdown table and some lines.
#[derive(Debug)]
pub struct Report {
    pub plan: Plan,
    pub accidents: AccidentCounts,
    /// Leases that outlived their mirrors, as the masters counted them. The counts of a master that
    /// was paused before it was killed are missing.
    pub saved: u64,
    pub grants: u64,
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
pub fn run(plan: Plan, mut progress: impl FnMut(Duration, u64)) -> Result<Report> {
    let shared = Arc::new(RunState::default());
    let mut fleet = start(plan.protected)?;
    let networks: Vec<_> = (0..NETWORKS).map(|network| fleet.urls(network)).collect();
    let began = now();
    let clients = thread::spawn({
        let shared = Arc::clone(&shared);
        move || client::run(plan.seed, &networks, &shared)
    });

    let is_enough =
        || plan.protected == Protected::No && !overlaps(&shared.history.grants()).is_empty();
    let injected = fleet.inject_at_random(
        plan.seed,
        next_incident,
        |elapsed| elapsed < plan.duration && !is_enough(),
        |elapsed| progress(elapsed, shared.grants.load(Ordering::Relaxed)),
    );
    shared.stop.store(true, Ordering::Relaxed);
    result_of(clients.join()).context("clients")?;
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
            "{saved} leases that outlived their mirrors; longest time without a grant {gap_ms} ms"
        )?;
        writeln!(f, "two clients held the same lock {} times", self.overlaps.len())?;
        self.overlaps.iter().try_for_each(|overlap| writeln!(f, "  {overlap}"))
    }
}
