//! A thousand tasks of one process that want the same key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use quorlock_client::Quorum;
use quorlock_testkit::Masters;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::effort::Effort;
use super::info::waiters;
use super::ratio;
use crate::limits::Row;
use crate::progress::Progress;

/// How many masters there are.
const NODES: usize = 5;
/// How many tasks there are.
const MANY: usize = 1000;
/// With how many they are compared.
const FEW: usize = 16;
/// How often it is the turn of the many, and of the few.
const ROUNDS: u64 = 6;
/// How long a turn takes.
const TURN: Duration = Duration::from_secs(1);
/// How long somebody else holds the lock meanwhile, so that one has to wait on a server.
const OTHERS_HOLD: Duration = Duration::from_millis(200);
/// What part of their throughput the many must reach.
const TARGET: f64 = 0.8;
/// The key.
const KEY: &str = "orders/42";
/// Longer than anybody waits.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("1,000 tasks of one process");
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let quorum = Quorum::connect(masters.urls()).await?;
    let other = Quorum::connect(masters.urls()).await?;

    let (mut many, mut few) = (Vec::new(), Vec::new());
    let turn = effort.time(TURN);
    for _ in 0..ROUNDS {
        few.push(locks(&quorum, FEW, turn).await?);
        many.push(locks(&quorum, MANY, turn).await?);
    }
    let waiting = most_waiting(&quorum, &other, &masters).await?;

    let median = |mut locks: Vec<u64>| {
        locks.sort_unstable();
        locks[locks.len() / 2]
    };
    let (many, few) = (median(many), median(few));
    let (part, seconds) = (ratio(many, few), turn.as_secs_f64());
    let per_second = |locks| ratio(locks, 1) / seconds;
    Ok(vec![
        Row {
            case: format!("locks per second, {MANY} tasks of one process on {NODES} masters"),
            measured: format!("{:.0}, {part:.2} × those of {FEW} tasks", per_second(many)),
            target: "≥ 0.8 × those of 16 tasks",
            met: part >= TARGET,
        },
        Row {
            case: format!("the most connections on which {MANY} tasks wait on one master"),
            measured: format!("{waiting}"),
            target: "1",
            met: waiting == 1,
        },
    ])
}

/// How many locks so many tasks get.
async fn locks(quorum: &Quorum, tasks: usize, time: Duration) -> anyhow::Result<u64> {
    let got = Arc::new(AtomicU64::new(0));
    let mut running = JoinSet::new();
    let until = Instant::now() + time;
    for _ in 0..tasks {
        let (quorum, got) = (quorum.clone(), Arc::clone(&got));
        running.spawn(async move {
            while Instant::now() < until {
                // In a turn that is over, those who still wait go.
                let left = until.saturating_duration_since(Instant::now());
                let Ok(lock) = quorum.lock(KEY).wait(left).acquire().await else { break };
                got.fetch_add(1, Ordering::Relaxed);
                lock.release().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(got.load(Ordering::Relaxed))
}

/// The largest number of waiters on one node while somebody else takes the lock in between, again and again.
async fn most_waiting(quorum: &Quorum, other: &Quorum, masters: &Masters) -> anyhow::Result<u64> {
    let over = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for _ in 0..MANY {
        let (quorum, over) = (quorum.clone(), Arc::clone(&over));
        running.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                quorum.lock(KEY).wait(PATIENCE).acquire().await?.release().await?;
            }
            anyhow::Ok(())
        });
    }
    let mut most = 0;
    for _ in 0..5 {
        let lock = other.lock(KEY).wait(PATIENCE).acquire().await?;
        let until = Instant::now() + OTHERS_HOLD;
        while Instant::now() < until {
            for master in masters {
                most = most.max(waiters(master)?);
            }
            sleep(Duration::from_millis(1)).await;
        }
        lock.release().await?;
    }
    over.store(true, Ordering::Relaxed);
    while let Some(done) = running.join_next().await {
        done.context("a task")??;
    }
    Ok(most)
}
