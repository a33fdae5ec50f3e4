//! Shared locks and semaphores beside an exclusive lock, on five nodes.

use std::iter::repeat_n;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use quorlock_client::{AcquireError, LockBuilder, Quorum};
use quorlock_testkit::Nodes;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Effort;
use crate::clients::{lock_once, start_nodes};
use crate::instruments::Latencies;
use crate::report::Row;

const NODES: usize = 5;
const PERMITS: usize = 4;
/// Number of permits that another client holds.
const TAKEN: usize = PERMITS / 2;
/// A ttl longer than a measurement of latencies.
const TTL: Duration = Duration::from_secs(60);

/// Number of rounds for the latencies.
const ROUNDS: u32 = 400;
/// These rounds do not count, because connections open in them.
const WARM_UP_ROUNDS: u32 = 20;
/// Number of locks of each kind in a round.
const LOCKS: u32 = 10;
/// Largest allowed ratio of the time of a permit to the time of an exclusive lock.
const PERMIT_RATIO_MAX: f64 = 1.15;

/// Number of clients that compete, each with connections of its own.
const CLIENTS: usize = 64;
/// Time for which each client holds a lock.
const HELD: Duration = Duration::from_millis(50);
/// Number of rounds for the locks per second. Their mean counts.
const RATE_ROUNDS: u32 = 2;
/// Duration of each kind in such a round.
const RATE_TIME: Duration = Duration::from_secs(6);
/// Smallest allowed ratio of the permits per second to the exclusive locks per second.
const PERMITS_RATIO_MIN: f64 = 3.5;

pub(crate) async fn measure(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let nodes = start_nodes(NODES)?;
    let mut rows = latencies(&nodes, effort).await?;
    rows.extend(rates(&nodes, effort).await?);
    Ok(rows)
}

/// Measures each kind in turn, while another client holds half of the permits and a shared lock.
async fn latencies(nodes: &Nodes, effort: Effort) -> anyhow::Result<Vec<Row>> {
    let quorum = Quorum::connect(nodes.urls()).await?;
    let other = Quorum::connect(nodes.urls()).await?;
    let semaphore = |quorum: &Quorum| quorum.semaphore("encoder", PERMITS).ttl(TTL);
    let report = |quorum: &Quorum| quorum.lock("report").shared().ttl(TTL);
    let mut held = Vec::new();
    for builder in repeat_n(semaphore(&other), TAKEN).chain([report(&other)]) {
        let mut lock = builder.acquire().await?;
        lock.renew();
        held.push(lock);
    }

    let kinds = [quorum.lock("orders/42").ttl(TTL), semaphore(&quorum), report(&quorum)];
    let mut took = kinds.each_ref().map(|_| Latencies::new());
    for round in 0..WARM_UP_ROUNDS + effort.count(ROUNDS) {
        for (kind, took) in kinds.iter().zip(&mut took) {
            for _ in 0..LOCKS {
                let started = Instant::now();
                lock_once(kind).await?;
                if round >= WARM_UP_ROUNDS {
                    took.record(started.elapsed());
                }
            }
        }
    }
    for lock in held {
        lock.release().await?;
    }
    let [exclusive, permit, shared] = took.each_ref().map(Latencies::p50);
    let row = |case: &str, ours, ratio_max| {
        let case = format!("{case}, {NODES} nodes");
        Row::of_times(case, ours, "exclusive lock", exclusive, ratio_max)
    };
    let beside_taken = format!("a permit while {TAKEN} of {PERMITS} are taken");
    Ok(vec![
        row(&beside_taken, permit, Some(PERMIT_RATIO_MAX)),
        row("a shared lock beside another reader", shared, None),
    ])
}

/// Measures permits and shared locks beside exclusive locks that are held for the same time.
async fn rates(nodes: &Nodes, effort: Effort) -> anyhow::Result<[Row; 2]> {
    let clients = try_join_all((0..CLIENTS).map(|_| Quorum::connect(nodes.urls()))).await?;
    let kinds: [fn(&Quorum) -> LockBuilder; 3] = [
        |quorum| quorum.lock("one"),
        |quorum| quorum.semaphore("four", PERMITS),
        |quorum| quorum.lock("all").shared(),
    ];
    let mut per_second = [0.0; 3];
    for _ in 0..RATE_ROUNDS {
        for (of, per_second) in kinds.iter().zip(&mut per_second) {
            let began = Instant::now();
            let until = began + effort.time(RATE_TIME);
            let locks = count_locks(&clients, until, of).await?;
            *per_second += f64::from(locks) / began.elapsed().as_secs_f64();
        }
    }
    let [exclusive, permits, readers] = per_second.map(|sum| sum / f64::from(RATE_ROUNDS));
    let (for_permits, for_readers) = (permits / exclusive, readers / exclusive);
    let ms = HELD.as_millis();
    Ok([
        Row::of_figure(
            format!("{CLIENTS} clients for {PERMITS} permits, each held for {ms} ms"),
            format!(
                "{permits:.1} per second, {for_permits:.2} × one exclusive lock's {exclusive:.1}"
            ),
            "≥ 3.5 × the exclusive lock's",
            for_permits >= PERMITS_RATIO_MIN,
        ),
        Row::of_figure(
            format!("{CLIENTS} readers, each of which holds the lock for {ms} ms"),
            format!(
                "{readers:.0} per second, {for_readers:.0} × one exclusive lock's {exclusive:.1}"
            ),
            "more per second than with 4 permits",
            for_readers > for_permits,
        ),
    ])
}

/// Lets all clients compete until then, and returns how many locks they acquired.
async fn count_locks(
    clients: &[Quorum],
    until: Instant,
    of: impl Fn(&Quorum) -> LockBuilder,
) -> anyhow::Result<u32> {
    let mut running = JoinSet::new();
    for quorum in clients {
        let builder = of(quorum);
        running.spawn(async move {
            let mut locks = 0;
            while Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                let lock = match builder.clone().wait(left).acquire().await {
                    Ok(lock) => lock,
                    // Clients that still wait at the end give up, with or without some nodes.
                    Err(AcquireError::TimedOut { .. } | AcquireError::Held { .. }) => break,
                    Err(AcquireError::NoQuorum { .. }) if Instant::now() >= until => break,
                    Err(error) => return Err(error.into()),
                };
                locks += 1;
                sleep(HELD).await;
                // An unconfirmed release goes on in the background.
                let _ = lock.release().await;
            }
            anyhow::Ok(locks)
        });
    }
    running.join_all().await.into_iter().sum()
}
