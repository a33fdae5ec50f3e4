//! Ten thousand clients that wait on one server: what they cost it, and everybody else.

use std::time::{Duration, Instant};

use quorlock_testkit::Server;
use redis::Connection;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::effort::Effort;
use super::info::number;
use crate::latencies::Latencies;
use crate::limits::Row;
use crate::machine;
use crate::progress::Progress;
use crate::socket::Socket;
use crate::table::readable;

/// How many wait.
const WAITERS: usize = 10_000;
/// Files that are open besides, in this process and in the server's.
const OTHER_FILES: usize = 256;
/// How long the server takes notice of its clients before anything counts.
const WARM_UP: Duration = Duration::from_secs(1);
/// How often it is the turn of the server on which many wait, and of the one on which nobody does.
const ROUNDS: u64 = 300;
/// How many commands there are in a turn.
const BLOCK: usize = 300;
/// How many come before them: a server that was stopped makes up for what it has missed.
const UNCOUNTED: usize = 30;
/// How many times as long other commands may take.
const TARGET: f64 = 1.2;

pub(crate) async fn measure(effort: Effort, progress: &Progress) -> anyhow::Result<Vec<Row>> {
    progress.begin("10,000 waiters on one server");
    let waiters = machine::raise_file_limit()?.saturating_sub(OTHER_FILES).min(WAITERS);
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
        Row {
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
        Row {
            case: "p99 of a GET beside them".into(),
            measured: format!(
                "{}, {ratio:.2} × {} without them; while the same connections were idle, {}, {idle_ratio:.2} × {}",
                readable(beside.p99()),
                readable(alone.p99()),
                readable(beside_idle.p99()),
                readable(alone_then.p99()),
            ),
            target: "≤ 1.2 × without them",
            met: ratio <= TARGET,
        },
    ])
}

fn used_memory(connection: &mut Connection) -> anyhow::Result<u64> {
    number(connection, "memory", "used_memory")
}

async fn wait_for(connection: &mut Connection, section: &str, field: &str, n: usize) -> anyhow::Result<()> {
    while number(connection, section, field)? < n as u64 {
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// How long a GET takes on each of the servers, which share one processor. The one whose turn it is not is stopped, so that
/// its own work costs nobody but its own clients.
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
    block_in_place(|| machine::apart(&servers, asking))
}

/// Each in turn gets the lock and releases it, in the order in which they came.
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
