//! Growth to three million leases and back: the slowest command, the longest turn, and memory.
//!
//! One server grows with leases, the other with as many strings of `SET NX PX`. On the way back,
//! two thirds are released, and the last third expires in one moment.
//!
//! The client sends a batch of a few commands and waits for all answers, so a batch includes the
//! work that the server does between two commands. The processor time of the costliest batch is an
//! upper bound for each command and each turn, and excludes the time in which other processes run.
//! The durations of single commands, from `SLOWLOG`, include that time, as do the round trips while
//! locks expire.
//!
//! A stall that growth causes occurs at the same number of leases in each round. A stall that
//! another process causes does not. So the best round of each stretch of locks counts, and the
//! result is the figure of the worst stretch.

use std::io::{Read as _, Write as _};
use std::mem::replace;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use quorlock_testkit::Server;
use redis::{Connection, cmd};

use crate::probes::{
    apart_from_servers, begin_slowlog, connect_tcp, processor_time, slowest_duration, take_slowest,
    used_memory,
};
use crate::report::{Progress, TargetRow, readable};

/// Largest number of held locks.
const LOCKS: u32 = 3_000_000;
/// Number of locks that are released. The others expire.
const RELEASED: u32 = 2_000_000;
/// Number of locks whose memory is measured.
const MEASURED: u32 = 1_000_000;
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

/// Longest allowed command or turn.
const TARGET: Duration = Duration::from_millis(3);
/// Largest allowed memory of a lease, beyond its key.
const TARGET_BYTES: u64 = 200;

pub(crate) const STEPS: u64 = 2 * ROUNDS as u64;

/// The commands with which one of the servers locks a key.
struct Dialect {
    acquire_name: &'static str,
    release_name: &'static str,
    acquire: fn(u32, u64) -> String,
    release: fn(u32) -> String,
    start: fn() -> anyhow::Result<Server>,
}

const LEASES: Dialect = Dialect {
    acquire_name: "LOCK.ACQUIRE",
    release_name: "LOCK.RELEASE",
    acquire: |n, ttl_ms| request(&["LOCK.ACQUIRE", &key(n), &token(n), &ttl_ms.to_string()]),
    release: |n| request(&["LOCK.RELEASE", &key(n), &token(n)]),
    start: || {
        let server =
            Server::with_module().tcp().module_arg("max-ttl").module_arg(TTL_MS.to_string());
        let server = server.arg("enable-debug-command", "yes").start()?;
        // Turns off the server's own expiry search: it takes up to 25 ms, even without the module.
        cmd("DEBUG").arg("SET-ACTIVE-EXPIRE").arg(0).exec(&mut server.connection())?;
        Ok(server)
    },
};

const STRINGS: Dialect = Dialect {
    acquire_name: "SET NX PX",
    release_name: "DEL",
    acquire: |n, ttl_ms| request(&["SET", &key(n), &token(n), "NX", "PX", &ttl_ms.to_string()]),
    release: |n| request(&["DEL", &key(n)]),
    start: || Ok(Server::builder().without_module().tcp().start()?),
};

fn key(n: u32) -> String {
    format!("lock:{n:07}")
}

fn token(n: u32) -> String {
    format!("{n:032x}")
}

fn request(args: &[&str]) -> String {
    let words: Vec<_> = args.iter().map(|arg| format!("${}\r\n{arg}\r\n", arg.len())).collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}

/// The slowest command of a stretch, and the largest processor time of a batch.
#[derive(Clone, Copy)]
struct Stretch {
    command: Duration,
    batch: Duration,
}

/// The figures of one round.
struct RoundFigures {
    acquires: Vec<Stretch>,
    releases: Vec<Stretch>,
    /// The figures while the last locks expire, by the number of locks that are left. Here `batch`
    /// is the longest round trip, and `command` is not measured.
    deadlines: Vec<Stretch>,
    /// The memory of each lock, including its key.
    bytes: u64,
}

pub(crate) fn measure(progress: &Progress) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("to three million leases and back");
    let mut bests: [Option<RoundFigures>; 2] = [None, None];
    for _ in 0..ROUNDS {
        for (best, dialect) in bests.iter_mut().zip([&LEASES, &STRINGS]) {
            let server = (dialect.start)()?;
            let figures = apart_from_servers(&[&server], || dialect.run_round(&server))?;
            *best = Some(match best.take() {
                None => figures,
                Some(best) => best.best_of_each(&figures),
            });
            progress.step();
        }
    }
    let [Some(ours), Some(peer)] = bests else { unreachable!("there is a round") };
    let slowest = |case: String, ours: Duration, peer_name: &str, peer: Duration| TargetRow {
        case,
        measured: format!("{}; {peer_name} {}", readable(ours), readable(peer)),
        target: "≤ 3 ms",
        met: ours <= TARGET,
    };
    let command = |case: String, ours: &[Stretch], peer_name: &str, peer: &[Stretch]| {
        slowest(case, worst(ours, |at| at.command), peer_name, worst(peer, |at| at.command))
    };
    let batch = |case: String, ours: &[Stretch], peer: &[Stretch]| {
        slowest(case, worst(ours, |at| at.batch), "with strings", worst(peer, |at| at.batch))
    };
    let in_batch =
        format!("most processor time of a batch of {BATCH}, including other work of the server");
    let bytes = ours.bytes.saturating_sub(peer.bytes);
    Ok(vec![
        command(
            format!("slowest `{}` on the way to {LOCKS} leases", LEASES.acquire_name),
            &ours.acquires,
            STRINGS.acquire_name,
            &peer.acquires,
        ),
        batch(in_batch.clone(), &ours.acquires, &peer.acquires),
        command(
            format!("slowest `{}` of {RELEASED}", LEASES.release_name),
            &ours.releases,
            STRINGS.release_name,
            &peer.releases,
        ),
        batch(in_batch, &ours.releases, &peer.releases),
        batch(
            format!("longest `DBSIZE` while {} leases end in one moment", LOCKS - RELEASED),
            &ours.deadlines,
            &peer.deadlines,
        ),
        TargetRow {
            case: format!("memory of each of {MEASURED} leases, beyond its key"),
            measured: format!("{bytes} bytes; the key {} bytes", peer.bytes),
            target: "≤ 200 bytes",
            met: bytes <= TARGET_BYTES,
        },
    ])
}

fn worst(stretches: &[Stretch], of: impl Fn(&Stretch) -> Duration) -> Duration {
    stretches.iter().map(of).max().unwrap_or(Duration::MAX)
}

impl RoundFigures {
    fn best_of_each(self, other: &Self) -> Self {
        let better = |these: Vec<Stretch>, those: &[Stretch]| -> Vec<Stretch> {
            these.into_iter().zip(those).map(|(this, that)| this.best_of_each(that)).collect()
        };
        Self {
            acquires: better(self.acquires, &other.acquires),
            releases: better(self.releases, &other.releases),
            deadlines: better(self.deadlines, &other.deadlines),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

impl Stretch {
    const NOTHING: Self = Self { command: Duration::ZERO, batch: Duration::ZERO };

    fn best_of_each(self, other: &Self) -> Self {
        Self { command: self.command.min(other.command), batch: self.batch.min(other.batch) }
    }
}

impl Dialect {
    fn run_round(&self, server: &Server) -> anyhow::Result<RoundFigures> {
        let connection = &mut server.connection();
        let mut client = Client::connect(server)?;
        begin_slowlog(connection)?;
        let memory = used_memory(connection)?;
        let began = Instant::now();
        let mut acquires = Vec::new();
        let mut bytes = 0;
        for first in (0..RELEASED).step_by(STRETCH as usize) {
            acquires.push(client.stretch(connection, first, |n| (self.acquire)(n, TTL_MS))?);
            if first + STRETCH == MEASURED {
                bytes = used_memory(connection)?.saturating_sub(memory) / u64::from(MEASURED);
            }
        }
        // A million acquires and two million releases follow: 1.5 times as many commands as so far,
        // for which twice the time suffices.
        let end = Instant::now() + 2 * began.elapsed() + SLACK;
        for first in (RELEASED..LOCKS).step_by(STRETCH as usize) {
            let left_ms =
                || u64::try_from(end.saturating_duration_since(Instant::now()).as_millis());
            acquires.push(client.stretch(connection, first, |n| {
                (self.acquire)(n, left_ms().unwrap_or(TTL_MS).clamp(1, TTL_MS))
            })?);
        }
        let mut releases = Vec::new();
        for first in (0..RELEASED).step_by(STRETCH as usize) {
            releases.push(client.stretch(connection, first, self.release)?);
        }
        ensure!(
            Instant::now() < end,
            "this machine became too slow for the last locks to end together"
        );
        let deadlines = client.until_all_have_ended(connection, end)?;
        Ok(RoundFigures { acquires, releases, deadlines, bytes })
    }
}

/// The client that sends all commands.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    server_pid: u32,
    /// The server's processor time so far.
    spent: Duration,
}

impl Client {
    fn connect(server: &Server) -> anyhow::Result<Self> {
        let (stream, server_pid) = (connect_tcp(server)?, server.pid());
        let spent = processor_time(server_pid)?;
        Ok(Self { stream, buffer: vec![0; 4096], server_pid, spent })
    }

    /// Sends a command for each lock of a stretch, in batches.
    fn stretch(
        &mut self,
        connection: &mut Connection,
        first: u32,
        command: impl Fn(u32) -> String,
    ) -> anyhow::Result<Stretch> {
        let mut most = Duration::ZERO;
        for first in (first..first + STRETCH).step_by(BATCH as usize) {
            let requests: String = (first..first + BATCH).map(&command).collect();
            let (spent, answers) = self.ask(&requests, BATCH as usize)?;
            // An error, a null, or a zero is a refusal.
            let is_done =
                |line: &str| line.starts_with('+') || line.starts_with(':') && line != ":0";
            ensure!(
                answers.lines().all(is_done),
                "the server answered lock commands with {answers:?}"
            );
            most = most.max(spent);
        }
        Ok(Stretch { command: slowest_duration(&take_slowest(connection)?), batch: most })
    }

    /// Polls the number of keys until it is zero.
    fn until_all_have_ended(
        &mut self,
        connection: &mut Connection,
        end: Instant,
    ) -> anyhow::Result<Vec<Stretch>> {
        let mut stretches =
            vec![Stretch::NOTHING; (LOCKS - RELEASED).div_ceil(STRETCH) as usize + 1];
        loop {
            // The server also works between two requests of this client, so its processor time is
            // not that of the request. Only the round trip counts here.
            let asked = Instant::now();
            let (_, answer) = self.ask("DBSIZE\r\n", 1)?;
            let took = asked.elapsed();
            let left: u32 = answer.trim_start_matches(':').trim().parse().context("DBSIZE")?;
            let at = (left.div_ceil(STRETCH) as usize).min(stretches.len() - 1);
            stretches[at].batch = stretches[at].batch.max(took);
            if left == 0 {
                break;
            }
            ensure!(Instant::now() < end + PATIENCE, "{left} locks have not ended");
        }
        take_slowest(connection)?;
        Ok(stretches)
    }

    /// Returns the server's processor time since the last call, and the answers, one per line.
    fn ask(&mut self, requests: &str, answers: usize) -> anyhow::Result<(Duration, &str)> {
        self.stream.write_all(requests.as_bytes())?;
        let (mut seen, mut end) = (0, 0);
        while seen < answers {
            let read = self.stream.read(&mut self.buffer[end..])?;
            ensure!(read > 0, "the server hung up");
            seen += self.buffer[end..end + read].split(|byte| *byte == b'\n').count() - 1;
            end += read;
        }
        let before = replace(&mut self.spent, processor_time(self.server_pid)?);
        Ok((self.spent.saturating_sub(before), str::from_utf8(&self.buffer[..end])?))
    }
}
