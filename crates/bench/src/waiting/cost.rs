//! The cost of waiters: commands while a lock is held, memory, and the latency of other clients.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use quorlock_client::Quorum;
use quorlock_faults::harness::info;
use quorlock_testkit::{Masters, Server};
use redis::Connection;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::sleep;

use super::Effort;
use crate::probes::{Latencies, Socket, apart, raise_file_limit, waiters};
use crate::report::{Limit, Progress, readable};

/// Number of masters.
const NODES: usize = 5;
/// Number of waiting processes. Each has connections of its own.
const PROCESSES: u32 = 64;
/// Time for which the lock is held while commands are counted.
const HELD_TIME: Duration = Duration::from_secs(30);
/// Largest number of commands of a process in a second.
const COMMANDS_MAX: f64 = 2.0;

/// Returns the number of all commands that the servers have executed.
fn commands(masters: &Masters) -> anyhow::Result<u64> {
    let of = |server: &quorlock_testkit::Server| {
        info(&mut server.try_connection()?, "stats", "total_commands_processed")
    };
    masters.iter().map(of).sum()
}

pub(crate) async fn measure_commands(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<Limit>> {
    progress.begin("commands of 64 waiting processes while a lock is held");
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp())?;
    let holder = Quorum::connect(masters.urls()).await?;
    let mut lock = holder.lock("k").ttl(Duration::from_secs(10)).acquire().await?;
    lock.renew();
    let mut clients = JoinSet::new();
    for _ in 0..PROCESSES {
        let quorum = Quorum::connect(masters.urls()).await?;
        clients.spawn(async move {
            let lock = quorum.lock("k").wait(Duration::from_secs(600));
            lock.acquire().await.map(drop)
        });
    }
    loop {
        let all: u64 = masters.iter().map(waiters).sum::<anyhow::Result<_>>()?;
        if all == u64::from(PROCESSES) {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    // The first requests of the clients are over.
    sleep(Duration::from_secs(2)).await;
    let (began, before) = (Instant::now(), commands(&masters)?);
    sleep(effort.time(HELD_TIME)).await;
    // Two commands for each master belong to the counting.
    let counted = commands(&masters)? - before - 2 * NODES as u64;
    let seconds = began.elapsed().as_secs_f64();
    lock.release().await?;
    for done in clients.join_all().await {
        done.context("a client that waited")?;
    }
    let each = f64::from(u32::try_from(counted)?) / seconds / f64::from(PROCESSES);
    Ok(vec![Limit {
        case: format!(
            "commands of {PROCESSES} processes that wait for a held lock, {NODES} masters"
        ),
        measured: format!("{each:.2} for each process and second, renewal of the lock included"),
        target: "≤ 2 for each",
        met: each <= COMMANDS_MAX,
    }])
}

/// Number of waiters.
const WAITERS: usize = 10_000;
/// Other open files of this process and of the server's.
const OTHER_FILES: usize = 256;
/// Time for the server to accept its clients before the measurement.
const WARM_UP: Duration = Duration::from_secs(1);
/// Number of turns of the server with waiters, and of the one without.
const ROUNDS: u64 = 300;
/// Number of commands in a turn.
const BLOCK: usize = 300;
/// Commands before them: a server that was stopped catches up.
const UNCOUNTED: usize = 30;
/// Largest ratio for other commands.
const P99_RATIO_MAX: f64 = 1.2;

pub(crate) async fn measure_many(
    effort: Effort,
    progress: &Progress,
) -> anyhow::Result<Vec<Limit>> {
    progress.begin("10,000 waiters on one server");
    let waiters = raise_file_limit()?.saturating_sub(OTHER_FILES).min(WAITERS);
    let start = || {
        let builder = Server::with_module().tcp().arg("maxclients", WAITERS + OTHER_FILES);
        builder.arg("lock.max-waiters", WAITERS).start()
    };
    let (with, without) = (start()?, start()?);

    let connection = &mut with.connection();
    let at_first = used_memory(connection)?;
    let mut sockets = Vec::new();
    for _ in 0..=waiters {
        sockets.push(Socket::connect(&with)?);
    }
    wait_for(connection, "clients", "connected_clients", waiters + 2).await?;
    let connected = used_memory(connection)?;
    sleep(WARM_UP).await;
    let (beside_idle, alone_then) = gets(&with, &without, effort)?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.ask_for_the_lock(client)?;
        if client == 0 {
            socket.read_grant()?;
        }
    }
    wait_for(connection, "lock", "lock_waiters", waiters).await?;
    let waiting = used_memory(connection)?;
    sleep(WARM_UP).await;
    let (beside, alone) = gets(&with, &without, effort)?;
    let drained = Instant::now();
    drain(&mut sockets)?;
    let drained = drained.elapsed();

    let each = |from: u64, to: u64| to.saturating_sub(from) / waiters as u64 / 1024;
    let ratio = beside.p99().as_secs_f64() / alone.p99().as_secs_f64();
    let idle_ratio = beside_idle.p99().as_secs_f64() / alone_then.p99().as_secs_f64();
    Ok(vec![
        Limit {
            case: format!("memory of each of {waiters} waiters on one server"),
            measured: format!(
                "{} KB, besides {} KB for its connection; the lock went through all of their hands in {}",
                each(connected, waiting),
                each(at_first, connected),
                readable(drained),
            ),
            target: "printed",
            met: waiters == WAITERS,
        },
        Limit {
            case: "p99 of a GET beside them".into(),
            measured: format!(
                "{}, {ratio:.2} × {} without them; while the same connections were idle, {}, {idle_ratio:.2} × {}",
                readable(beside.p99()),
                readable(alone.p99()),
                readable(beside_idle.p99()),
                readable(alone_then.p99()),
            ),
            target: "≤ 1.2 × without them",
            met: ratio <= P99_RATIO_MAX,
        },
    ])
}

fn used_memory(connection: &mut Connection) -> anyhow::Result<u64> {
    info(connection, "memory", "used_memory")
}

async fn wait_for(
    connection: &mut Connection,
    section: &str,
    field: &str,
    n: usize,
) -> anyhow::Result<()> {
    while info(connection, section, field)? < n as u64 {
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Measures GET on both servers, which share one processor.
///
/// The server whose turn it is not is stopped, so that its own work delays only its own clients.
fn gets(with: &Server, without: &Server, effort: Effort) -> anyhow::Result<(Latencies, Latencies)> {
    let servers = [with, without];
    let asking = || {
        let mut sockets = [Socket::connect(with)?, Socket::connect(without)?];
        let mut latencies = [Latencies::new(), Latencies::new()];
        for _ in 0..effort.count(ROUNDS) {
            for turn in 0..servers.len() {
                servers[1 - turn].pause();
                for get in 0..UNCOUNTED + BLOCK {
                    let started = Instant::now();
                    sockets[turn].send("GET orders/43\r\n")?;
                    sockets[turn].expect("$-1")?;
                    if get >= UNCOUNTED {
                        latencies[turn].record(started.elapsed());
                    }
                }
                servers[1 - turn].resume();
            }
        }
        let [with, without] = latencies;
        anyhow::Ok((with, without))
    };
    block_in_place(|| apart(&servers, asking))
}

/// Each client in turn is granted the lock and releases it, in the order of requests.
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
