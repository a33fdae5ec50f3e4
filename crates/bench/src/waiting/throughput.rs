//! How many locks on one key there are to be had in a second when many want it.

use std::time::Duration;

use quorlock_testkit::Masters;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::clock;
use super::contender::{Contender, Kind};
use super::effort::Effort;
use super::table::Row;
use super::turns::Course;
use super::worker::{Behaviour, compete};
use crate::progress::Progress;

/// How many masters there are.
const NODES: usize = 5;
/// How many clients want the lock: each with connections of its own, all in one process.
const CLIENTS: usize = 64;
/// Before anything counts.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long each kind of client is measured.
const TIME: Duration = Duration::from_secs(6);
/// How many times as many locks there should be.
const TARGET: f64 = 20.0;

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("locks per second on one key, 64 clients");
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let ours = locks_per_second(&masters, Kind::Quorlock, effort.time(TIME)).await?;
    let rslock = locks_per_second(&masters, Kind::Rslock, effort.time(TIME)).await?;
    let ratio = ours / rslock;
    Ok(vec![Row {
        case: format!("locks per second of one key on {NODES} masters, {CLIENTS} clients"),
        measured: format!("{ours:.0}, {ratio:.1} × rslock 0.10's {rslock:.1}"),
        target: "≥ 20 × rslock's",
        met: ratio >= TARGET,
    }])
}

async fn locks_per_second(masters: &Masters, kind: Kind, time: Duration) -> anyhow::Result<f64> {
    let behaviour = Behaviour { kind, key: format!("{kind}"), hold_us: 0, urls: masters.urls() };
    let (stop, stopped) = watch::channel(false);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Contender::connect(kind, &behaviour.urls).await?);
    }
    let mut tasks = JoinSet::new();
    for client in clients {
        let (behaviour, mut stopped) = (behaviour.clone(), stopped.clone());
        tasks.spawn(async move {
            let stop = async { drop(stopped.wait_for(|stopped| *stopped).await) };
            let account = compete(&client, &behaviour, stop).await;
            client.close().await;
            account
        });
    }
    sleep(WARM_UP).await;
    let from = clock::now();
    sleep(time).await;
    let to = clock::now();
    stop.send_replace(true);
    let course = Course::new(tasks.join_all().await).require_no_failure()?;
    let locks = u32::try_from(course.grants_between(from, to))?;
    {
        let mut all: Vec<(usize, super::turns::Turn)> = course
            .accounts
            .iter()
            .enumerate()
            .flat_map(|(i, a)| a.turns.iter().map(move |t| (i, *t)))
            .collect();
        all.sort_by_key(|(_, t)| t.got);
        let changes = all.windows(2).filter(|w| w[0].0 != w[1].0).count();
        let mut grants: Vec<usize> = course.accounts.iter().map(|a| a.turns.len()).collect();
        grants.sort();
        let mw = course.accounts.iter().flat_map(|a| a.waits().collect::<Vec<_>>()).max();
        let mut gaps: Vec<_> = all
            .windows(2)
            .filter(|w| w[0].0 != w[1].0)
            .map(|w| w[1].1.got.saturating_sub(w[0].1.releasing))
            .collect();
        gaps.sort();
        eprintln!(
            "DBG {kind} total {} changes {changes} grants {grants:?} maxwait {mw:?} p50 gap {:?} double {}",
            all.len(),
            gaps[gaps.len() / 2],
            course.double_grants()
        );
    }
    Ok(f64::from(locks) / (to - from).as_secs_f64())
}
