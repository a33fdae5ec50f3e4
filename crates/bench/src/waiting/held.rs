//! What many waiting processes cost the masters while a lock is held.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use quorlock_client::Quorum;
use quorlock_testkit::Masters;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::effort::Effort;
use super::info::{number, waiters};
use crate::limits::Row;
use crate::progress::Progress;

/// How many masters there are.
const NODES: usize = 5;
/// How many processes wait: each has connections of its own.
const WAITERS: u32 = 64;
/// How long the lock is held while commands are counted.
const TIME: Duration = Duration::from_secs(30);
/// How many commands each of them may send in a second.
const TARGET: f64 = 2.0;

/// All commands that the servers have executed, of whatever kind.
fn commands(masters: &Masters) -> anyhow::Result<u64> {
    let of = |server: &quorlock_testkit::Server| {
        number(&mut server.try_connection()?, "stats", "total_commands_processed")
    };
    masters.iter().map(of).sum()
}

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("commands of 64 waiting processes while a lock is held");
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let holder = Quorum::connect(masters.urls()).await?;
    let mut lock = holder.lock("k").ttl(Duration::from_secs(10)).acquire().await?;
    lock.renew();
    let mut clients = JoinSet::new();
    for _ in 0..WAITERS {
        let quorum = Quorum::connect(masters.urls()).await?;
        clients.spawn(async move {
            let lock = quorum.lock("k").wait(Duration::from_secs(600));
            lock.acquire().await.map(drop)
        });
    }
    loop {
        let all: u64 = masters.iter().map(waiters).sum::<anyhow::Result<_>>()?;
        if all == u64::from(WAITERS) {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    // What they asked when they began is over.
    sleep(Duration::from_secs(2)).await;
    let (began, before) = (Instant::now(), commands(&masters)?);
    sleep(effort.time(TIME)).await;
    // Two commands of ours for each master belong to the counting.
    let counted = commands(&masters)? - before - 2 * NODES as u64;
    let seconds = began.elapsed().as_secs_f64();
    lock.release().await?;
    for done in clients.join_all().await {
        done.context("a client that waited")?;
    }
    let each = f64::from(u32::try_from(counted)?) / seconds / f64::from(WAITERS);
    Ok(vec![Row {
        case: format!("commands of {WAITERS} processes that wait for a held lock, {NODES} masters"),
        measured: format!("{each:.2} for each process and second, renewal of the lock included"),
        target: "≤ 2 for each",
        met: each <= TARGET,
    }])
}
