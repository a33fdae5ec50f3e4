//! The cost of waiters: commands while a lock is held, memory, and the latency of other clients.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_client::Quorum;
use quorlock_faults::harness::info;
use quorlock_testkit::{Masters, Server};
use redis::Connection;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::sleep;

use super::Effort;
use crate::probes::{
    Latencies, OTHER_FILES, Socket, apart_from_servers, raise_file_limit, used_memory, waiters,
};
use crate::quorum::start_masters;
use crate::report::{Progress, TargetRow, readable};

const NODES: usize = 5;
/// Number of waiting clients. Each has connections of its own, as a separate process would.
const CLIENTS: u32 = 64;
/// Time limit until all clients are connected or waiting.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which the lock is held while commands are counted.
const HELD_TIME: Duration = Duration::from_secs(30);
/// Largest allowed number of commands that a waiting client causes per second.
const COMMANDS_MAX: f64 = 3.0;

/// Returns the number of all commands that the servers have executed.
fn count_commands(masters: &Masters) -> anyhow::Result<u64> {
    let of =
        |server: &Server| info(&mut server.try_connection()?, "stats", "total_commands_processed");
    masters.iter().map(of).sum()
}

pub(crate) async fn measure_commands(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("commands of 64 waiting clients while a lock is held");
    let masters = start_masters(NODES)?;
    let holder = Quorum::connect(masters.urls()).await?;
    let mut lock = holder.lock("k").ttl(Duration::from_secs(10)).acquire().await?;
    lock.renew();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let quorum = Quorum::connect(masters.urls()).await?;
        clients.spawn(async move {
            let lock = quorum.lock("k").wait(Duration::from_secs(600));
            lock.acquire().await.map(drop)
        });
    }
    let asked = Instant::now();
    let all_wait = u64::from(CLIENTS) * NODES as u64;
    while masters.iter().map(waiters).sum::<anyhow::Result<u64>>()? < all_wait {
        if let Some(done) = clients.try_join_next() {
            done?.context("a waiting client failed")?;
        }
        ensure!(asked.elapsed() < PATIENCE, "{CLIENTS} clients do not all wait");
        sleep(Duration::from_millis(20)).await;
    }
    // Waits until the first requests of the clients are over.
    sleep(Duration::from_secs(2)).await;
    let (began, before) = (Instant::now(), count_commands(&masters)?);
    sleep(effort.time(HELD_TIME)).await;
    // Subtracts the commands of the counting itself: about two to each master.
    let counted = count_commands(&masters)? - before - 2 * NODES as u64;
    let seconds = began.elapsed().as_secs_f64();
    lock.release().await?;
    for done in clients.join_all().await {
        done.context("a waiting client failed")?;
    }
    let rate_per_client = f64::from(u32::try_from(counted)?) / seconds / f64::from(CLIENTS);
    Ok(vec![TargetRow {
        case: format!("commands of {CLIENTS} clients that wait for a held lock, {NODES} masters"),
        measured: format!(
            "{rate_per_client:.2} commands per client and second, including the renewal of the lock"
        ),
        target: "≤ 3 per client and second",
        met: rate_per_client <= COMMANDS_MAX,
    }])
}

const WAITERS: usize = 10_000;
/// The ttl of the lock and the limit of each wait, in milliseconds: longer than any wait takes.
const TTL_MS: u64 = 600_000;
/// Pause before a measurement, once all clients are connected or waiting.
const WARM_UP: Duration = Duration::from_secs(1);
/// How many times each of the two servers is measured. The servers take turns.
const ROUNDS: u64 = 300;
/// Number of measured commands to one server in a round.
const COMMANDS_PER_ROUND: usize = 300;
/// The first commands in a round are not measured: a server that was paused catches up first.
const WARM_UP_COMMANDS: usize = 30;
/// Largest allowed ratio of the p99 of a GET with waiters to the p99 without waiters.
const P99_RATIO_MAX: f64 = 1.2;

pub(crate) async fn measure_many_waiters(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("10,000 waiters on one server");
    let waiter_count = raise_file_limit()?.saturating_sub(OTHER_FILES).min(WAITERS);
    let start = || {
        let builder = Server::with_module().tcp().arg("maxclients", WAITERS + OTHER_FILES);
        builder.arg("lock.max-waiters", WAITERS).arg("lock.max-ttl", TTL_MS).start()
    };
    let (server_with, server_without) = (start()?, start()?);

    let connection = &mut server_with.connection();
    let memory_before = used_memory(connection)?;
    let mut sockets = Socket::connect_many(&server_with, waiter_count + 1)?;
    wait_for(connection, "clients", "connected_clients", waiter_count + 2).await?;
    let memory_connected = used_memory(connection)?;
    sleep(WARM_UP).await;
    let (with_idle, without_idle) = measure_gets(&server_with, &server_without, effort)?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.ask_for_the_lock_for(client, TTL_MS)?;
        if client == 0 {
            socket.read_grant()?;
        }
    }
    wait_for(connection, "lock", "lock_waiters", waiter_count).await?;
    let memory_waiting = used_memory(connection)?;
    sleep(WARM_UP).await;
    let (with_waiters, without_waiters) = measure_gets(&server_with, &server_without, effort)?;
    let drain_started = Instant::now();
    drain(&mut sockets)?;
    let drain_time = drain_started.elapsed();

    let kb_per_waiter = |from: u64, to: u64| to.saturating_sub(from) / waiter_count as u64 / 1024;
    let ratio = with_waiters.p99().div_duration_f64(without_waiters.p99());
    let idle_ratio = with_idle.p99().div_duration_f64(without_idle.p99());
    Ok(vec![
        TargetRow {
            case: format!("memory of each of {waiter_count} waiters on one server"),
            measured: format!(
                "{} KB, and {} KB for its connection; all waiters acquired and released the lock within {}",
                kb_per_waiter(memory_connected, memory_waiting),
                kb_per_waiter(memory_before, memory_connected),
                readable(drain_time),
            ),
            target: "10,000 waiters",
            met: waiter_count == WAITERS,
        },
        TargetRow {
            case: format!("p99 of a GET on a server with {waiter_count} waiters"),
            measured: format!(
                "{}, {ratio:.2} × the {} without waiters; {} with as many idle connections, {idle_ratio:.2} × the {} \
                 without them",
                readable(with_waiters.p99()),
                readable(without_waiters.p99()),
                readable(with_idle.p99()),
                readable(without_idle.p99()),
            ),
            target: "≤ 1.2 × without waiters",
            met: ratio <= P99_RATIO_MAX,
        },
    ])
}

/// Waits until a field of `INFO` has at least this value.
async fn wait_for(
    connection: &mut Connection,
    section: &str,
    field: &str,
    at_least: usize,
) -> anyhow::Result<()> {
    let began = Instant::now();
    while info(connection, section, field)? < at_least as u64 {
        ensure!(began.elapsed() < PATIENCE, "{field} does not reach {at_least}");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Measures GET on both servers, which share one processor.
///
/// While one server is measured, the other one is paused, so that the work of one server cannot
/// delay the clients of the other.
fn measure_gets(
    with: &Server,
    without: &Server,
    effort: Effort,
) -> anyhow::Result<(Latencies, Latencies)> {
    let servers = [with, without];
    let measuring = || {
        let mut sockets = [Socket::connect(with)?, Socket::connect(without)?];
        let mut latencies = [Latencies::new(), Latencies::new()];
        for _ in 0..effort.count(ROUNDS) {
            for measured in 0..servers.len() {
                servers[1 - measured].pause();
                for command in 0..WARM_UP_COMMANDS + COMMANDS_PER_ROUND {
                    let started = Instant::now();
                    sockets[measured].send("GET orders/43\r\n")?;
                    sockets[measured].expect("$-1")?;
                    if command >= WARM_UP_COMMANDS {
                        latencies[measured].record(started.elapsed());
                    }
                }
                servers[1 - measured].resume();
            }
        }
        let [with, without] = latencies;
        anyhow::Ok((with, without))
    };
    block_in_place(|| apart_from_servers(&servers, measuring))
}

/// Lets each client acquire and release the lock, in the order of their requests.
fn drain(sockets: &mut [Socket]) -> anyhow::Result<()> {
    for client in 0..sockets.len() {
        sockets[client].release(client)?;
        sockets[client].expect(":1")?;
        if let Some(next) = sockets.get_mut(client + 1) {
            next.read_grant()?;
        }
    }
    Ok(())
}
