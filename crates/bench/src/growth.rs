//! Growth to three million leases and back: the costliest commands, and the longest turn.
//!
//! On the way back, two thirds of the leases are released, and the last third expires at once.
//!
//! The client sends a batch of a few commands and waits for all answers, so a batch includes the
//! work that the server does between two commands. The processor time of the costliest batch is an
//! upper bound for each command and each turn, and excludes the time in which other processes run.
//! The round trips while locks expire include that time.
//!
//! A stall that growth causes occurs at the same number of leases in each round. A stall that
//! another process causes does not. So the best round of each stretch of locks counts, and the
//! result is the figure of the worst stretch.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_testkit::Server;
use redis::cmd;

use crate::instruments::{Socket, apart_from_servers, processor_time};
use crate::report::{Row, readable};

/// Largest number of held locks.
const LOCKS: u32 = 3_000_000;
/// Number of locks that are released. The others expire.
const RELEASED: u32 = 2_000_000;
/// Number of locks in a stretch.
const STRETCH: u32 = 50_000;
/// Number of commands in a batch.
const BATCH: u32 = 16;
const ROUNDS: usize = 3;
/// Ttl of the locks that are released.
const TTL_MS: u64 = 3_600_000;
/// Least time from the last release to the expiry of the other locks, if the machine stays as fast.
const SLACK: Duration = Duration::from_secs(3);
/// Time limit for the server to remove the expired locks.
const PATIENCE: Duration = Duration::from_secs(120);

/// Longest allowed batch or turn.
const LONGEST: Duration = Duration::from_millis(3);

/// The figures of one round: the largest processor time of a batch of acquires, and of releases,
/// for each stretch, and the longest round trip while the last locks expire, by the number of locks
/// that are left.
type Figures = [Vec<Duration>; 3];

pub(crate) fn measure() -> anyhow::Result<Vec<Row>> {
    let mut best = run_round()?;
    for _ in 1..ROUNDS {
        for (best, other) in best.iter_mut().flatten().zip(run_round()?.iter().flatten()) {
            *best = (*best).min(*other);
        }
    }
    let [acquires, releases, deadlines] = &best;
    let row = |case: String, stretches: &[Duration]| {
        let worst = stretches.iter().max().copied().unwrap_or_default();
        Row::of_figure(case, readable(worst), "≤ 3 ms", worst <= LONGEST)
    };
    let in_batch = format!("most processor time of {BATCH} commands and the server's other work");
    Ok(vec![
        row(format!("{in_batch}, on the way to {LOCKS} leases"), acquires),
        row(format!("{in_batch}, {RELEASED} releases"), releases),
        row(
            format!("longest `DBSIZE` while {} leases end in one moment", LOCKS - RELEASED),
            deadlines,
        ),
    ])
}

fn acquire(n: u32, ttl_ms: u64) -> String {
    format!("LOCK.ACQUIRE lock:{n:07} {n:032x} {ttl_ms}\r\n")
}

fn run_round() -> anyhow::Result<Figures> {
    let server = Server::with_module().tcp().arg("lock.max-ttl", TTL_MS);
    let server = server.arg("enable-debug-command", "yes").start()?;
    // Turns off the server's own expiry search: it takes up to 25 ms, even without the module.
    cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).exec(&mut server.connection())?;
    apart_from_servers(&[&server], || grow_and_shrink(&server))
}

fn grow_and_shrink(server: &Server) -> anyhow::Result<Figures> {
    let mut socket = Socket::connect(server)?;
    let stretches = |locks: std::ops::Range<u32>| locks.step_by(STRETCH as usize);
    let began = Instant::now();
    let mut acquires = Vec::new();
    for first in stretches(0..RELEASED) {
        acquires.push(stretch(server, &mut socket, first, |n| acquire(n, TTL_MS))?);
    }
    // A million acquires and two million releases follow: 1.5 times as many commands as so far,
    // for which twice the time suffices.
    let end = Instant::now() + 2 * began.elapsed() + SLACK;
    let left_ms = || u64::try_from(end.saturating_duration_since(Instant::now()).as_millis());
    for first in stretches(RELEASED..LOCKS) {
        acquires.push(stretch(server, &mut socket, first, |n| {
            acquire(n, left_ms().unwrap_or(TTL_MS).clamp(1, TTL_MS))
        })?);
    }
    let releases = stretches(0..RELEASED)
        .map(|first| {
            stretch(server, &mut socket, first, |n| {
                format!("LOCK.RELEASE lock:{n:07} {n:032x}\r\n")
            })
        })
        .collect::<anyhow::Result<_>>()?;
    ensure!(
        Instant::now() < end,
        "this machine became too slow for the last locks to end together"
    );
    Ok([acquires, releases, until_all_have_ended(&mut socket, end)?])
}

/// Sends a command for each lock of a stretch, in batches. Returns the largest processor time of
/// the server for a batch.
fn stretch(
    server: &Server,
    socket: &mut Socket,
    first: u32,
    command: impl Fn(u32) -> String,
) -> anyhow::Result<Duration> {
    let (mut most, mut before) = (Duration::ZERO, processor_time(server)?);
    for first in (first..first + STRETCH).step_by(BATCH as usize) {
        socket.send(&(first..first + BATCH).map(&command).collect::<String>())?;
        socket.expect_done(BATCH as usize)?;
        let now = processor_time(server)?;
        most = most.max(now.saturating_sub(before));
        before = now;
    }
    Ok(most)
}

/// Polls the number of keys until it is zero.
///
/// The server also works between two requests, so its processor time is not that of the request.
/// Only the round trip counts here.
fn until_all_have_ended(socket: &mut Socket, end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut longest = vec![Duration::ZERO; (LOCKS - RELEASED).div_ceil(STRETCH) as usize + 1];
    loop {
        let asked = Instant::now();
        socket.send("DBSIZE\r\n")?;
        let left: u32 = socket.read_line()?.trim_start_matches(':').parse().context("DBSIZE")?;
        let at = (left.div_ceil(STRETCH) as usize).min(longest.len() - 1);
        longest[at] = longest[at].max(asked.elapsed());
        if left == 0 {
            return Ok(longest);
        }
        ensure!(Instant::now() < end + PATIENCE, "{left} locks have not ended");
    }
}
