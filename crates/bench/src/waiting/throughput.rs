//! How soon many clients who wait for one key have all had it.

use std::time::Duration;

use quorlock_testkit::Masters;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::clock;
use super::contender::{Contender, Kind};
use super::effort::Effort;
use super::table::Row;
use super::worker::{Behaviour, take_turn};
use crate::progress::Progress;

/// How many masters there are.
const NODES: usize = 5;
/// How many clients wait for the lock: each with connections of its own, all in one process.
const CLIENTS: usize = 64;
/// How long somebody else holds it at first, until all clients wait for it.
const ALL_WAIT: Duration = Duration::from_millis(500);
/// How long each kind of client is measured.
const TIME: Duration = Duration::from_secs(8);
/// How many times as many locks there should be.
const TARGET: f64 = 20.0;

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("locks per second on one key, 64 clients");
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let ours = locks_per_second(&masters, Kind::Quorlock, effort.time(TIME)).await?;
    let rslock = locks_per_second(&masters, Kind::Rslock, effort.time(TIME)).await?;
    let ratio = ours / rslock;
    Ok(vec![Row {
        case: format!("locks per second of one key on {NODES} masters, until {CLIENTS} who wait have had it"),
        measured: format!("{ours:.0}, {ratio:.1} × rslock 0.10's {rslock:.0}"),
        target: "≥ 20 × rslock's",
        met: ratio >= TARGET,
    }])
}

/// From the release of somebody else to the last grant, again and again.
async fn locks_per_second(masters: &Masters, kind: Kind, time: Duration) -> anyhow::Result<f64> {
    let behaviour = Behaviour { kind, key: format!("{kind}"), hold_us: 0, urls: masters.urls() };
    let first = Contender::connect(kind, &behaviour.urls).await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Contender::connect(kind, &behaviour.urls).await?);
    }
    let (mut locks, mut took) = (0_u32, Duration::ZERO);
    let until = Instant::now() + time;
    while Instant::now() < until {
        let held = first.acquire(&behaviour.key).await?;
        let mut tasks = JoinSet::new();
        for client in &clients {
            let (client, behaviour) = (client.clone(), behaviour.clone());
            tasks.spawn(async move { take_turn(&client, &behaviour).await });
        }
        sleep(ALL_WAIT).await;
        let released = clock::now();
        held.release().await?;
        let turns = tasks.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let last = turns.iter().map(|turn| turn.got).max().unwrap_or(released);
        took += last.saturating_sub(released);
        locks += u32::try_from(turns.len())?;
    }
    for client in clients {
        client.close().await;
    }
    Ok(f64::from(locks) / took.as_secs_f64())
}
