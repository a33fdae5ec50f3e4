//! The slowest command and the longest turn of the server with a million readers or leases, or with
//! ten thousand waiters that one release serves.
//!
//! Measured as in [`bounds`](crate::bounds). The targets are no turn longer than a millisecond, and
//! no command longer than three.

use std::io::{Read as _, Write as _};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use quorlock_testkit::{Server, ServerBuilder};
use redis::cmd;

use crate::bounds::{
    Field, KEYS, LOCK_WAITERS, ObservedServer, Outcome, ROUNDS, TTL_MS, WAITERS, best_of_rounds,
    on_server,
};
use crate::probes::{Socket, connect_tcp, slowest_duration};
use crate::report::{Progress, TargetRow};

/// Number of readers of a lock, or of leases.
const MASS: usize = 1_000_000;
/// Number of commands in a batch.
const BATCH: usize = 500;
/// Time in which a server is filled.
const FILLED_WITHIN: Duration = Duration::from_secs(60);
/// Time for which readers hold the lock while writes are paused.
const PAUSED_BEFORE_END: Duration = Duration::from_millis(500);

const LONGEST_COMMAND: Duration = Duration::from_millis(3);
const LONGEST_TURN: Duration = Duration::from_millis(1);

/// The number of leases; each holder of a shared lock counts as one.
const LEASES: Field = ("lock", "lock_leases");

pub(crate) const STEPS: u64 = ROUNDS as u64;

pub(crate) fn measure(progress: &Progress) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("a million readers and leases");
    Ok(best_of_rounds(progress, round)?.into_iter().map(into_row).collect())
}

fn round() -> anyhow::Result<Vec<Outcome>> {
    let with_module = || -> ServerBuilder {
        let builder = Server::with_module().arg("lock.max-waiters", WAITERS);
        builder.arg("lock.max-ttl", TTL_MS).arg("enable-debug-command", "yes")
    };
    let mut outcomes = on_server(with_module(), readers)?;
    outcomes.extend(on_server(with_module(), ended_readers)?);
    outcomes.extend(on_server(with_module(), leases)?);
    outcomes.extend(on_server(with_module(), waiting_readers)?);
    outcomes.extend(on_server(with_module(), waiters_for_any_key)?);
    Ok(outcomes)
}

fn into_row(Outcome { case, ours, .. }: Outcome) -> TargetRow {
    TargetRow {
        case: case.into(),
        measured: ours.describe(),
        target: "no command longer than 3 ms, no turn longer than 1 ms",
        met: slowest_duration(&ours.slowest) <= LONGEST_COMMAND && ours.turn <= LONGEST_TURN,
    }
}

/// Sends [`MASS`] commands, in batches.
fn fill(server: &Server, command: impl Fn(usize) -> String) -> anyhow::Result<()> {
    let mut stream = connect_tcp(server)?;
    let mut buffer = vec![0; 64 * 1024];
    for first in (0..MASS).step_by(BATCH) {
        let commands: String = (first..first + BATCH).map(&command).collect();
        stream.write_all(commands.as_bytes())?;
        let mut answers = 0;
        while answers < BATCH {
            let read = stream.read(&mut buffer)?;
            ensure!(read > 0 && buffer[0] != b'-', "the server refused a lock");
            answers += buffer[..read].split(|byte| *byte == b'\n').count() - 1;
        }
    }
    Ok(())
}

fn readers(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server, LEASES)?;
    fill(server, |n| format!("LOCK.ACQUIRE lock reader-{n} {TTL_MS} SHARED\r\n"))?;
    let mut operator = Socket::connect(server)?;
    let deleted = observed.event(
        "`DEL` of a lock with 1,000,000 readers",
        || operator.send("DEL lock\r\n"),
        0,
    )?;
    Ok(vec![deleted])
}

/// All readers but one end while writes are paused.
fn ended_readers(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server, LEASES)?;
    let end = Instant::now() + FILLED_WITHIN;
    let left_ms = || end.saturating_duration_since(Instant::now()).as_millis().max(1);
    fill(server, |n| format!("LOCK.ACQUIRE lock reader-{n} {} SHARED\r\n", left_ms()))?;
    let last = || cmd("LOCK.ACQUIRE").arg("lock").arg("last").arg(TTL_MS).arg("SHARED").take();
    last().exec(&mut observed.connection)?;
    let pause_in = end.saturating_duration_since(Instant::now() + PAUSED_BEFORE_END);
    ensure!(!pause_in.is_zero(), "this machine is too slow: the readers end too early");
    sleep(pause_in);
    cmd("CLIENT").arg("PAUSE").arg(TTL_MS).arg("WRITE").exec(&mut observed.connection)?;
    sleep(2 * PAUSED_BEFORE_END);
    let mut operator = Socket::connect(server)?;
    let inspected = observed.observe(
        "`LOCK.INSPECT` and `LOCK.SCAN` in a pause of writes, after 1,000,000 readers have ended",
        || operator.send("LOCK.INSPECT lock\r\nLOCK.SCAN 0 COUNT 1000\r\n"),
        |_| Ok(true),
    )?;
    let removed = observed.event(
        "then `CLIENT UNPAUSE`: the ended readers are removed",
        || operator.send("CLIENT UNPAUSE\r\n"),
        1,
    )?;
    Ok(vec![inspected, removed])
}

fn leases(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server, LEASES)?;
    fill(server, |n| format!("LOCK.ACQUIRE lock:{n:07} holder-{n} {TTL_MS}\r\n"))?;
    let mut connection = server.connection();
    let scanned = observed.observe(
        "`LOCK.SCAN` with `COUNT 1000` over 1,000,000 leases, the whole scan",
        || Ok(()),
        |_| {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = cmd("LOCK.SCAN");
                let reply: (String, redis::Value) =
                    scan.arg(&cursor).arg("COUNT").arg(1000).query(&mut connection)?;
                cursor = reply.0;
                if cursor == "0" {
                    return Ok(true);
                }
            }
        },
    )?;
    cmd("DEBUG").arg("RELOAD").exec(&mut observed.connection)?;
    let reloaded =
        observed.observe("after `DEBUG RELOAD` with 1,000,000 leases", || Ok(()), |_| Ok(true))?;
    let mut operator = Socket::connect(server)?;
    let flushed =
        observed.event("then `FLUSHALL ASYNC`", || operator.send("FLUSHALL ASYNC\r\n"), 0)?;
    Ok(vec![scanned, reloaded, flushed])
}

fn waiting_readers(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server, LOCK_WAITERS)?;
    cmd("LOCK.ACQUIRE").arg("lock").arg("holder").arg(TTL_MS).exec(&mut observed.connection)?;
    let mut sockets = Socket::connect_many(server, WAITERS)?;
    for (n, socket) in sockets.iter_mut().enumerate() {
        socket.send(&format!("LOCK.ACQUIRE lock reader-{n} {TTL_MS} SHARED WAIT {TTL_MS}\r\n"))?;
    }
    observed.wait_for(WAITERS)?;
    let mut holder = Socket::connect(server)?;
    let released = observed.event(
        "`LOCK.RELEASE`; 10,000 wait to share this key",
        || holder.send("LOCK.RELEASE lock holder\r\n"),
        0,
    )?;
    Ok(vec![released])
}

fn waiters_for_any_key(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server, LOCK_WAITERS)?;
    let keys: Vec<_> = (0..KEYS).map(|n| format!("lock:{n:02}")).collect();
    let keys = format!("{KEYS} {}", keys.join(" "));
    let mut holder = Socket::connect(server)?;
    holder.send(&format!("LOCK.MACQUIRE {keys} holder {TTL_MS}\r\n"))?;
    let mut sockets = Socket::connect_many(server, WAITERS)?;
    for (n, socket) in sockets.iter_mut().enumerate() {
        socket.send(&format!("LOCK.ACQUIREANY {keys} client-{n} {TTL_MS} WAIT {TTL_MS}\r\n"))?;
    }
    observed.wait_for(WAITERS)?;
    let released = observed.event(
        "`LOCK.MRELEASE` of 64 keys; 10,000 wait for any of them",
        || holder.send(&format!("LOCK.MRELEASE {keys} holder\r\n")),
        WAITERS - KEYS,
    )?;
    Ok(vec![released])
}
