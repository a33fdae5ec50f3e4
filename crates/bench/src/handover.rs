//! Handovers of a lock: on one node beside a PING, between clients on several nodes, between tasks
//! of one client, and between clients while a node fails.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use quorlock_client::{Quorum, ReleaseError, Released};
use quorlock_testkit::{Accident, Direction, Disk, Server};
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Effort;
use crate::clients::{FailingNodes, TTL, lock_once, start_nodes};
use crate::instruments::{Latencies, Socket};
use crate::report::{Row, readable};

/// Number of clients that compete.
const CLIENTS: usize = 16;
const KEY: &str = "orders/42";
/// Time before a measurement: all clients connect at once, and then wait in one queue.
const WARM_UP: Duration = Duration::from_secs(1);
/// Limit of each wait, longer than any that occurs.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Longest time for background releases.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// A lock from the request to the release, as its client saw it.
#[derive(Clone, Copy, Debug)]
struct Acquisition {
    client: usize,
    /// A moment before the request.
    asked: Instant,
    /// A moment after the grant.
    from: Instant,
    /// A moment before the release.
    to: Instant,
    fence: u64,
}

/// Lets clients acquire the lock again as soon as they have released it, until `meanwhile` is over.
/// Each has connections and a thread of its own, as a process would.
///
/// Returns the acquisitions in the order of the grants.
async fn compete<T>(
    urls: &[String],
    meanwhile: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(Vec<Acquisition>, T)> {
    let (stop, stopped) = watch::channel(false);
    let mut working = JoinSet::new();
    for client in 0..CLIENTS {
        let (urls, stopped) = (urls.to_vec(), stopped.clone());
        working.spawn_blocking(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(acquire_repeatedly(client, urls, stopped))
        });
    }
    let result = meanwhile.await?;
    stop.send_replace(true);
    let all = working.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let mut acquisitions = all.concat();
    acquisitions.sort_unstable_by_key(|acquisition| acquisition.from);
    Ok((acquisitions, result))
}

async fn acquire_repeatedly(
    client: usize,
    urls: Vec<String>,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<Vec<Acquisition>> {
    let quorum = Quorum::connect(urls).await?;
    let builder = quorum.lock(KEY).ttl(TTL).wait(WAIT_MAX);
    let mut acquisitions = Vec::new();
    let mut stop = pin!(stopped.wait_for(|stop| *stop));
    loop {
        let asked = Instant::now();
        let lock = tokio::select! {
            biased;
            _ = &mut stop => break,
            lock = builder.acquire() => lock?,
        };
        let from = Instant::now();
        sleep(HOLD).await;
        let (fence, to) = (lock.fence().get(), Instant::now());
        match lock.release().await {
            // An unconfirmed release goes on in the background, and delays the next grant.
            Ok(Released::Released) | Err(ReleaseError::NoQuorum { .. }) => {}
            Ok(Released::AlreadyOver) => bail!("the lock ended before it was released"),
            Err(error) => return Err(error.into()),
        }
        acquisitions.push(Acquisition { client, asked, from, to, fence });
    }
    let _ = quorum.flush(FLUSH_LIMIT).await;
    Ok(acquisitions)
}

/// Largest allowed p50 of the handovers between clients: this many times the p50 of a PING to one
/// idle node, and the constant part.
const HANDOVER_PER_PING: f64 = 1.6;
const HANDOVER_CONSTANT: Duration = Duration::from_micros(100);
/// Largest allowed ratio of the grants of the clients that got most and fewest.
const UNFAIRNESS_MAX: f64 = 1.05;
const COMPETING_FOR: Duration = Duration::from_secs(12);
const PINGS: u32 = 500;
const TASKS: usize = 64;
/// The rate of the tasks with the waiting before tickets, on a similar machine.
const TASKS_PER_S_MIN: u32 = 1486;

/// Measures handovers on three and on five nodes, and how even they are.
pub(crate) async fn between_clients(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for count in [3, 5] {
        let nodes = start_nodes(count)?;
        let time = WARM_UP + effort.time(COMPETING_FOR);
        let competing = async {
            sleep(time).await;
            Ok(())
        };
        let (acquisitions, ()) = compete(&nodes.urls(), competing).await?;
        let (mut handovers, mut pings) = (Latencies::new(), Latencies::new());
        for pair in acquisitions.windows(2).filter(|pair| pair[1].asked < pair[0].to) {
            handovers.record(pair[1].from.saturating_duration_since(pair[0].to));
        }
        let mut pinging = Socket::connect(&nodes[0])?;
        for _ in 0..PINGS {
            // The node and this client are as idle before a PING as before a handover.
            sleep(HOLD).await;
            let started = Instant::now();
            pinging.ping()?;
            pings.record(started.elapsed());
        }
        let (handover, ping) = (handovers.p50(), pings.p50());
        rows.push(Row::of_figure(
            format!("handover on {count} nodes, {CLIENTS} clients, p50"),
            format!("{}, PING {}", readable(handover), readable(ping)),
            "≤ 1.6 × a PING + 100 µs",
            handover <= ping.mul_f64(HANDOVER_PER_PING) + HANDOVER_CONSTANT,
        ));
        let grants = (0..CLIENTS).map(|client| {
            acquisitions.iter().filter(|acquisition| acquisition.client == client).count()
        });
        let (fewest, most) = (grants.clone().min().unwrap_or(0), grants.max().unwrap_or(0));
        let (fewest, most) = (u32::try_from(fewest)?, u32::try_from(most)?);
        rows.push(Row::of_figure(
            format!("grants of {CLIENTS} clients on {count} nodes, fewest and most"),
            format!("{fewest} and {most}"),
            "≤ 1.05 × the fewest",
            f64::from(most) <= UNFAIRNESS_MAX * f64::from(fewest),
        ));
    }
    Ok(rows)
}

/// Measures the rate of one lock for which tasks of one client compete.
pub(crate) async fn between_tasks(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let nodes = start_nodes(FailingNodes::NODES)?;
    let quorum = Quorum::connect(nodes.urls()).await?;
    let time = effort.time(COMPETING_FOR);
    let until = Instant::now() + time;
    let mut working = JoinSet::new();
    for _ in 0..TASKS {
        let builder = quorum.lock(KEY).ttl(TTL).wait(WAIT_MAX);
        working.spawn(async move {
            let mut locks = 0;
            while Instant::now() < until {
                lock_once(&builder).await?;
                locks += 1;
            }
            anyhow::Ok(locks)
        });
    }
    let locks: u32 = working.join_all().await.into_iter().sum::<anyhow::Result<_>>()?;
    let rate = f64::from(locks) / time.as_secs_f64();
    Ok(vec![Row::of_figure(
        format!("one lock on {} nodes, {TASKS} tasks of one client", FailingNodes::NODES),
        format!("{rate:.0} locks/s"),
        "≥ 1486 locks/s, as before tickets",
        rate >= f64::from(TASKS_PER_S_MIN),
    )])
}

/// Time for which each of several clients holds the lock.
const HOLD: Duration = Duration::from_millis(5);
/// Time from the failure of the node to its recovery.
const FAILED_FOR: Duration = Duration::from_secs(10);
/// Longest allowed time from a release to the next grant.
const STALL_MAX: Duration = Duration::from_millis(50);
const ACCIDENTS: [(Accident, &str); 5] = [
    (Accident::Kill(Disk::Kept), "killed"),
    (Accident::Pause, "paused"),
    (Accident::Cut, "cut off"),
    (Accident::Drop(Direction::ToServer), "sent nothing"),
    (Accident::Drop(Direction::ToClient), "not heard"),
];

/// Lets one node fail while clients wait.
pub(crate) async fn with_a_lost_node(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (accident, name) in ACCIDENTS {
        let mut nodes = FailingNodes::start(matches!(accident, Accident::Cut | Accident::Drop(_)))?;
        let urls = nodes.urls();
        let failing = async {
            sleep(WARM_UP).await;
            let failed = Instant::now();
            nodes.inject(accident)?;
            sleep(effort.time(FAILED_FOR)).await;
            let recovered = Instant::now();
            nodes.recover(accident)?;
            Ok((failed, recovered))
        };
        let (acquisitions, (failed, recovered)) = compete(&urls, failing).await?;
        rows.push(row_of_a_lost_node(name, &acquisitions, failed, recovered));
    }
    Ok(rows)
}

fn row_of_a_lost_node(
    name: &str,
    acquisitions: &[Acquisition],
    failed: Instant,
    recovered: Instant,
) -> Row {
    let during: Vec<_> = acquisitions
        .iter()
        .filter(|acquisition| (failed..recovered).contains(&acquisition.from))
        .collect();
    let served = (0..CLIENTS)
        .filter(|client| {
            during.iter().any(|served| served.client == *client && served.asked > failed)
        })
        .count();
    // A free lock at the end of the failure counts too.
    let free_at_the_end = during
        .last()
        .map_or(recovered - failed, |last| recovered.saturating_duration_since(last.to));
    let pairs = || acquisitions.windows(2).map(|pair| (pair[0], pair[1]));
    let stall = pairs()
        .filter(|(_, next)| (failed..recovered).contains(&next.from))
        .map(|(last, next)| next.from.saturating_duration_since(last.to))
        .chain([free_at_the_end])
        .max()
        .unwrap_or_default();
    let violations =
        pairs().filter(|(last, next)| next.from < last.to || next.fence <= last.fence).count();
    Row::of_figure(
        format!("one node of {} is {name} while {CLIENTS} wait", FailingNodes::NODES),
        format!(
            "{served} of {CLIENTS} served, longest stall {}, longest wait {}, {violations} violations",
            readable(stall),
            readable(
                during.iter().map(|served| served.from - served.asked).max().unwrap_or_default()
            ),
        ),
        "all served, no stall > 50 ms, no violation",
        served == CLIENTS && stall <= STALL_MAX && violations == 0,
    )
}

/// A ttl and a wait longer than a handover on one node takes.
const TTL_MS: u64 = 60_000;
const ROUNDS: u32 = 400;
/// Number of rounds that do not count, before the [`ROUNDS`] that do.
const WARM_UP_ROUNDS: u32 = 20;
/// Number of handovers, and then of PINGs, in a round.
const EVENTS_PER_ROUND: u32 = 64;
/// Largest allowed ratio of the p50 of a handover to that of a PING.
const PING_RATIO_MAX: f64 = 1.3;
/// Largest allowed difference between these p50s.
const BEYOND_PING_MAX: Duration = Duration::from_micros(15);

/// Measures handovers on one node, through plain sockets, beside PINGs.
pub(crate) fn on_one_node(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let server = Server::with_module().tcp().start()?;
    let mut pinging = Socket::connect(&server)?;
    let mut sockets = Socket::connect_many(&server, CLIENTS + 1)?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.ask_for_the_lock(client, TTL_MS)?;
    }
    sockets.first_mut().context("there are sockets")?.read_grant()?;

    let (mut handovers, mut pings) = (Latencies::new(), Latencies::new());
    let mut holder = 0;
    for round in 0..effort.count(ROUNDS) + WARM_UP_ROUNDS {
        if round == WARM_UP_ROUNDS {
            (handovers, pings) = (Latencies::new(), Latencies::new());
        }
        for _ in 0..EVENTS_PER_ROUND {
            let next = (holder + 1) % sockets.len();
            let started = Instant::now();
            sockets[holder].send(&format!("LOCK.RELEASE {KEY} {holder:032x}\r\n"))?;
            sockets[next].read_grant()?;
            handovers.record(started.elapsed());
            // The previous holder requests the lock again. The PING waits until the server has
            // queued this request, so that the queue is full at the next handover.
            sockets[holder].expect(":1")?;
            sockets[holder].ask_for_the_lock(holder, TTL_MS)?;
            pinging.ping()?;
            holder = next;
        }
        for _ in 0..EVENTS_PER_ROUND {
            let started = Instant::now();
            pinging.ping()?;
            pings.record(started.elapsed());
        }
    }

    let (handover, ping) = (handovers.p50(), pings.p50());
    let (ratio, beyond) = (handover.div_duration_f64(ping), handover.saturating_sub(ping));
    Ok(vec![
        Row::of_figure(
            format!("handover on one node, {CLIENTS} waiters, p50"),
            format!("{}, {ratio:.2} × a PING's {}", readable(handover), readable(ping)),
            "≤ 1.3 × a PING",
            ratio <= PING_RATIO_MAX,
        ),
        Row::of_figure(
            "difference between that handover and a PING, p50",
            readable(beyond),
            "≤ 15 µs",
            beyond <= BEYOND_PING_MAX,
        ),
    ])
}
