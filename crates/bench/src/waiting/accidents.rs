//! Waiters of which one node fails, and waiters that are cut off, hang up or time out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorlock_faults::harness::{Accident, Disk, Fleet, now};
use quorlock_faults::stress::Stress;
use quorlock_testkit::{Direction, Server};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Effort;
use super::clients::Kind;
use super::handover::PROCESSES;
use super::processes::{Behaviour, Crowd};
use super::timeline::{ClientReport, Timeline};
use crate::report::{Progress, TargetRow, readable};

const NODES: usize = 3;
/// Time for which a process holds the lock.
const HOLD: Duration = Duration::from_millis(5);
/// Time before the node fails.
const BEFORE: Duration = Duration::from_secs(1);
/// Time from the failure of the node to its recovery.
const AFTER: Duration = Duration::from_secs(10);
/// Longest allowed time from a release to the next grant.
const STALL_MAX: Duration = Duration::from_millis(50);
/// The index of the node that fails. Waiters stand in line on all nodes alike.
const FAILING: usize = 0;

pub(crate) async fn measure_lost_node(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    let mut rows = Vec::new();
    let (to, from) = (Accident::Drop(Direction::ToServer), Accident::Drop(Direction::ToClient));
    for loss in [Accident::Kill(Disk::Kept), Accident::Pause, Accident::Cut, to, from] {
        progress.begin("one node fails");
        rows.push(measure_loss(loss, effort).await?);
    }
    Ok(rows)
}

async fn measure_loss(loss: Accident, effort: Effort) -> anyhow::Result<TargetRow> {
    let mut fleet = Fleet::start(NODES, 1, |_, builder| builder.tcp())?;
    let behaviour = Behaviour {
        kind: Kind::Quorlock,
        key: "orders/42".into(),
        hold_us: u64::try_from(HOLD.as_micros())?,
        urls: fleet.urls(0),
    };
    let mut crowd = Crowd::start(PROCESSES, &behaviour)?;
    crowd.go()?;
    sleep(BEFORE).await;

    let gone_at = now();
    fleet.masters[FAILING].inject(loss, 0)?;
    sleep(effort.time(AFTER)).await;
    let until = now();
    // The node recovers first: an ending client waits up to 10 s for its releases to be confirmed.
    fleet.masters[FAILING].recover(loss, 0)?;
    let timeline = crowd.stop()?;
    Ok(row(loss, &timeline, gone_at, until))
}

fn row(loss: Accident, timeline: &Timeline, gone_at: Duration, until: Duration) -> TargetRow {
    let stall = timeline.longest_stall_between(gone_at, until);
    let served = timeline
        .reports
        .iter()
        .filter(|report| report.acquisitions.iter().any(|acquisition| acquisition.asked > gone_at));
    let (served, violations) = (served.count(), timeline.violations());
    let waits = timeline.reports.iter().flat_map(ClientReport::waits);
    let mut measured = format!(
        "{served} of {PROCESSES} served, longest stall {}, longest wait {}, {violations} violations",
        readable(stall),
        readable(waits.max().unwrap_or_default()),
    );
    let failure = timeline.any_failure();
    if let Some(failure) = failure {
        measured = format!("{measured}; failed: {failure}");
    }
    TargetRow {
        case: format!("one node of {NODES} is {} while {PROCESSES} wait", name(loss)),
        measured,
        target: "all served, no stall > 50 ms, no violation",
        met: served == PROCESSES && stall <= STALL_MAX && violations == 0 && failure.is_none(),
    }
}

fn name(loss: Accident) -> &'static str {
    match loss {
        Accident::Kill(_) => "killed",
        Accident::Pause => "paused",
        Accident::Cut => "cut off",
        Accident::Drop(Direction::ToServer) => "sent nothing",
        Accident::Drop(Direction::ToClient) => "not heard",
        other => other.name(),
    }
}

/// How many times the clients request a lock and wait, in total.
const ROUNDS: u64 = 100_000;
const CLIENTS: usize = 64;
const KEYS: usize = 4;
/// Longest allowed time for which a key is free although a client waits for it.
const FREE_MAX: Duration = Duration::from_millis(50);

pub(crate) async fn measure_stress(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("waiters that are cut off, hang up or time out");
    let stress = Stress { rounds: effort.count(ROUNDS), clients: CLIENTS, keys: KEYS, seed: 42 };
    let stop = StopOnDrop(Arc::default());
    let stopped = Arc::clone(&stop.0);
    let started = Instant::now();
    let outcome = spawn_blocking(move || {
        let server = Server::with_module().start()?;
        anyhow::Ok(stress.run(&server, &stopped))
    })
    .await??;
    let took = started.elapsed();
    Ok(vec![TargetRow {
        case: format!("{} waits: {outcome}", outcome.rounds),
        measured: format!(
            "a free key had a waiter for {} at most; {} waiters, {} blocked clients and {} locks left, {} not \
             answered; in {}",
            readable(outcome.longest_free),
            outcome.waiters_left,
            outcome.blocked_left,
            outcome.leases_left,
            outcome.unanswered,
            readable(took),
        ),
        target: "≤ 50 ms; nothing left",
        met: outcome.longest_free <= FREE_MAX && outcome.leaves_nothing(),
    }])
}

/// Ends the clients when the measurement is interrupted.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
