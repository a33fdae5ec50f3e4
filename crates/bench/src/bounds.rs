//! The longest command and the longest turn of the server while ten thousand clients wait.
//!
//! The measured events are a release, a deletion, a flush, thousands of disconnections, and a
//! release at the moment in which all waits end. In one case nothing happens, for comparison.
//! The server is stopped while the event is sent, so that it handles the whole event in one turn.
//! PINGs follow, one after another. Their longest round trip is an upper bound of the longest turn.
//! If a plain server has a similar event, clients that wait in `BLPOP` are measured too.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use quorlock_testkit::{Server, ServerBuilder};
use redis::{Connection, cmd};

use crate::probes::Socket;
use crate::probes::{
    Slowest, begin_slowlog, on_separate_processors, raise_file_limit, slowest_duration,
    take_slowest,
};
use crate::report::Progress;
use crate::report::TargetRow;
use crate::report::readable;
use quorlock_faults::harness::info;

/// Number of waiters.
const WAITERS: usize = 10_000;
/// Number of keys. Most waiters wait for all of them at once.
const KEYS: usize = 64;
/// Every tenth waiter waits only for the last of these keys.
const SINGLE_EVERY: usize = 10;
/// Number of clients that hang up at once.
const LEAVING: usize = 5_000;
/// Number of open files that are not connections of waiters.
const OTHER_FILES: usize = 256;
const ROUNDS: usize = 3;
/// A ttl longer than a round.
const TTL_MS: u64 = 600_000;
/// Time after which all waits end together. All earlier events must be over by then.
const WAITS_END_AFTER: Duration = Duration::from_secs(10);
/// Time from the end of the waits to the moment in which the stopped server continues.
const STOPPED_AFTER_END: Duration = Duration::from_millis(50);
/// Number of PINGs between two reads of `INFO`, which shows when the event is over.
const PINGS: usize = 100;
/// Time limit until a field of `INFO` has the expected value.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which PINGs go on after `INFO` shows that the event is over.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// Longest allowed duration of a command.
const TARGET: Duration = Duration::from_millis(5);

const CASE_TIMED_OUT: &str =
    "then all others time out in one moment, and the lock is released in that turn";
const CASE_NOTHING: &str = "nothing happens while 10,000 wait";
const CASE_FLUSHED: &str = "then `FLUSHALL` while the others wait for this key";
const CASE_HUNG_UP: &str = "then 5,000 of the others disconnect";

/// Number of steps of [`Progress`].
pub(crate) const STEPS: u64 = ROUNDS as u64;

/// The figures of one event.
struct Outcome {
    case: &'static str,
    slowest: Slowest,
    /// The longest PING, an upper bound of the longest turn.
    turn: Duration,
    /// The slowest command and the longest PING of a plain server whose clients wait in `BLPOP`.
    /// `None` if a plain server has no similar event.
    peer: Option<(Slowest, Duration)>,
}

/// Measures each event several times.
///
/// The best figure of each kind counts: other processes can only make a figure worse.
pub(crate) fn measure(progress: &Progress) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("events while 10,000 clients wait");
    let files = raise_file_limit()?;
    let needed = WAITERS + OTHER_FILES;
    ensure!(files >= needed, "{WAITERS} connections need {needed} open files: raise `ulimit -n`");
    let mut best: Vec<Outcome> = Vec::new();
    for _ in 0..ROUNDS {
        let outcomes = round()?;
        best = if best.is_empty() {
            outcomes
        } else {
            best.into_iter().zip(outcomes).map(|(one, other)| one.best_of_each(other)).collect()
        };
        progress.step();
    }
    Ok(best.into_iter().map(Outcome::into_row).collect())
}

fn round() -> anyhow::Result<Vec<Outcome>> {
    let with_module = || {
        let builder = Server::with_module().arg("lock.max-waiters", WAITERS);
        builder.arg("lock.max-ttl", TTL_MS)
    };
    let mut outcomes = on_server(with_module(), several_keys)?;
    outcomes.extend(on_server(with_module(), one_key)?);
    for peer in on_server(Server::builder().without_module(), blpop)? {
        let alike = outcomes.iter_mut().filter(|outcome| outcome.case == peer.case);
        alike.for_each(|outcome| outcome.peer = Some((peer.slowest.clone(), peer.turn)));
    }
    Ok(outcomes)
}

fn on_server<T: Send>(
    builder: ServerBuilder,
    scenario: impl FnOnce(&Server) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let server = builder.tcp().arg("maxclients", WAITERS + OTHER_FILES).start()?;
    on_separate_processors(&[&server], || scenario(&server))
}

/// Nine of ten waiters wait for 64 keys, of which 63 hold plain strings. The others wait only for
/// the last key.
fn several_keys(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server)?;
    let keys: Vec<_> = (0..KEYS).map(|n| format!("lock:{n:02}")).collect();
    let last = &keys[KEYS - 1];
    for key in &keys[..KEYS - 1] {
        cmd("SET").arg(key).arg("operator").exec(&mut observed.connection)?;
    }
    cmd("LOCK.ACQUIRE").arg(last).arg("holder").arg(TTL_MS).exec(&mut observed.connection)?;

    let mut sockets = observed.connect(WAITERS)?;
    let end = Instant::now() + WAITS_END_AFTER;
    let all = keys.join(" ");
    let (mut holder, mut operator) = (Socket::connect(server)?, Socket::connect(server)?);
    for (client, socket) in sockets.iter_mut().enumerate() {
        let wait_ms = end.saturating_duration_since(Instant::now()).as_millis();
        let terms = format!("client-{client} {TTL_MS} WAIT {wait_ms}\r\n");
        socket.send(&if is_single(client) {
            format!("LOCK.ACQUIRE {last} {terms}")
        } else {
            format!("LOCK.MACQUIRE {KEYS} {all} {terms}")
        })?;
    }
    observed.wait_for("lock", "lock_waiters", WAITERS)?;

    let release = |token: &str| format!("LOCK.RELEASE {last} {token}\r\n");
    let first_single = (0..WAITERS).find(|&client| is_single(client)).unwrap_or_default();
    let released = observed.event(
        "`LOCK.RELEASE`; 9,000 wait for 64 keys, 63 of which hold plain strings, and 1,000 for the 64th alone",
        || holder.send(&release("holder")),
        ("lock", "lock_waiters", WAITERS - 1),
    )?;
    let deleted = observed.event(
        "then `DEL` of one of the plain strings",
        || operator.send(&format!("DEL {}\r\n", keys[0])),
        ("lock", "lock_waiters", WAITERS - 1),
    )?;
    ensure!(
        Instant::now() + STOPPED_AFTER_END < end,
        "this machine is too slow: the waits end before all other events are measured"
    );
    let timed_out = observed.event(
        CASE_TIMED_OUT,
        || {
            sleep(end.saturating_duration_since(Instant::now()) + STOPPED_AFTER_END);
            holder.send(&release(&format!("client-{first_single}")))
        },
        ("lock", "lock_waiters", 0),
    )?;
    Ok(vec![released, deleted, timed_out])
}

fn is_single(client: usize) -> bool {
    client % SINGLE_EVERY == SINGLE_EVERY - 1
}

/// All clients wait for one key.
fn one_key(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server)?;
    cmd("LOCK.ACQUIRE").arg("lock").arg("holder").arg(TTL_MS).exec(&mut observed.connection)?;
    let mut sockets = observed.connect(WAITERS)?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.send(&format!("LOCK.ACQUIRE lock client-{client} {TTL_MS} WAIT {TTL_MS}\r\n"))?;
    }
    observed.wait_for("lock", "lock_waiters", WAITERS)?;

    let nothing = observed.event(CASE_NOTHING, || Ok(()), ("lock", "lock_waiters", WAITERS))?;
    let mut holder = Socket::connect(server)?;
    let released = observed.event(
        "`LOCK.RELEASE`; 10,000 wait for this key",
        || holder.send("LOCK.RELEASE lock holder\r\n"),
        ("lock", "lock_waiters", WAITERS - 1),
    )?;
    let flushed = observed.event(
        CASE_FLUSHED,
        || holder.send("FLUSHALL\r\n"),
        ("lock", "lock_waiters", WAITERS - 2),
    )?;
    let leaving = sockets.split_off(WAITERS - LEAVING);
    let hung_up = observed.event(
        CASE_HUNG_UP,
        || {
            drop(leaving);
            Ok(())
        },
        ("lock", "lock_waiters", WAITERS - LEAVING - 2),
    )?;
    Ok(vec![nothing, released, flushed, hung_up])
}

/// Similar events on a plain server.
fn blpop(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server)?;
    let mut sockets = observed.connect(WAITERS)?;
    let end = Instant::now() + WAITS_END_AFTER;
    for socket in &mut sockets {
        // Zero would wait without end.
        let wait = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.send(&format!("BLPOP list {:.3}\r\n", wait.as_secs_f64()))?;
    }
    observed.wait_for("clients", "blocked_clients", WAITERS)?;
    let nothing =
        observed.event(CASE_NOTHING, || Ok(()), ("clients", "blocked_clients", WAITERS))?;
    let mut operator = Socket::connect(server)?;
    let flushed = observed.event(
        CASE_FLUSHED,
        || operator.send("FLUSHALL\r\n"),
        ("clients", "blocked_clients", WAITERS),
    )?;
    let timed_out = observed.event(
        CASE_TIMED_OUT,
        || {
            sleep(end.saturating_duration_since(Instant::now()) + STOPPED_AFTER_END);
            Ok(())
        },
        ("clients", "blocked_clients", 0),
    )?;
    for socket in &mut sockets {
        socket.send("BLPOP list 0\r\n")?;
    }
    observed.wait_for("clients", "blocked_clients", WAITERS)?;
    let leaving = sockets.split_off(WAITERS - LEAVING);
    let hung_up = observed.event(
        CASE_HUNG_UP,
        || {
            drop(leaving);
            Ok(())
        },
        ("clients", "blocked_clients", WAITERS - LEAVING),
    )?;
    Ok(vec![nothing, flushed, timed_out, hung_up])
}

/// A server and the connection that observes it.
struct ObservedServer<'a> {
    server: &'a Server,
    connection: Connection,
    pinging: Socket,
}

impl<'a> ObservedServer<'a> {
    fn new(server: &'a Server) -> anyhow::Result<Self> {
        let mut connection = server.connection();
        begin_slowlog(&mut connection)?;
        Ok(Self { server, connection, pinging: Socket::connect(server)? })
    }

    fn connect(&self, clients: usize) -> anyhow::Result<Vec<Socket>> {
        (0..clients).map(|_| Socket::connect(self.server)).collect()
    }

    /// Waits until a field of `INFO` has this value.
    fn wait_for(&mut self, section: &str, field: &str, value: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.is(section, field, value)? {
            ensure!(began.elapsed() < PATIENCE, "{field} does not become {value}");
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn is(&mut self, section: &str, field: &str, value: usize) -> anyhow::Result<bool> {
        Ok(info(&mut self.connection, section, field)? == value as u64)
    }

    /// Lets the server handle an event in one turn, and measures that event.
    ///
    /// Sends PINGs until a field of `INFO` has this value, and then for [`AFTERWARDS`].
    fn event(
        &mut self,
        case: &'static str,
        send: impl FnOnce() -> anyhow::Result<()>,
        (section, field, value): (&str, &str, usize),
    ) -> anyhow::Result<Outcome> {
        take_slowest(&mut self.connection)?;
        self.server.pause();
        let pinged = send().and_then(|()| self.pinging.send("PING\r\n"));
        let began = Instant::now();
        self.server.resume();
        pinged?;
        self.pinging.expect("+PONG")?;
        let mut turn = began.elapsed();
        let mut done_at = None;
        while done_at.is_none_or(|at: Instant| at.elapsed() < AFTERWARDS) {
            for _ in 0..PINGS {
                let began = Instant::now();
                self.pinging.ping()?;
                turn = turn.max(began.elapsed());
            }
            if done_at.is_none() && self.is(section, field, value)? {
                done_at = Some(Instant::now());
            }
            ensure!(began.elapsed() < PATIENCE, "{field} does not become {value}");
        }
        let slowest = take_slowest(&mut self.connection)?;
        Ok(Outcome { case, slowest, turn, peer: None })
    }
}

impl Outcome {
    /// Returns the better of each figure.
    fn best_of_each(self, other: Self) -> Self {
        let better = |one: Slowest, other: Slowest| {
            if slowest_duration(&one) <= slowest_duration(&other) { one } else { other }
        };
        let peer =
            self.peer.zip(other.peer).map(|((slowest, turn), (other_slowest, other_turn))| {
                (better(slowest, other_slowest), turn.min(other_turn))
            });
        Self {
            case: self.case,
            slowest: better(self.slowest, other.slowest),
            turn: self.turn.min(other.turn),
            peer,
        }
    }

    fn into_row(self) -> TargetRow {
        let Self { case, slowest, turn, peer } = self;
        let figures = |slowest: &Slowest, turn: Duration| match slowest {
            Some((name, duration)) => {
                format!(
                    "slowest command {} (`{name}`), longest turn {}",
                    readable(*duration),
                    readable(turn)
                )
            }
            None => format!(
                "no command longer than {}, longest turn {}",
                readable(slowest_duration(&None)),
                readable(turn)
            ),
        };
        let peer =
            peer.map(|(slowest, turn)| format!("; with `BLPOP` {}", figures(&slowest, turn)));
        TargetRow {
            case: case.into(),
            measured: format!("{}{}", figures(&slowest, turn), peer.unwrap_or_default()),
            target: "no command longer than 5 ms",
            met: slowest_duration(&slowest) <= TARGET,
        }
    }
}
