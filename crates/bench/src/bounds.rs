//! The longest command and the longest turn of the server while ten thousand clients wait.
//!
//! The measured events are a release, a deletion, a flush, thousands of disconnections, and a
//! release at the moment in which all waits end. In one case nothing happens, for comparison. The
//! server is stopped while the event is sent, so that it handles the whole event in one turn. PINGs
//! follow, one after another. Their longest round trip is an upper bound of the longest turn. If a
//! plain server has a similar event, clients that wait in `BLPOP` are measured too.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use quorlock_faults::harness::info;
use quorlock_testkit::{Server, ServerBuilder};
use redis::{Connection, cmd};

use crate::masses;
use crate::probes::{
    OTHER_FILES, Slowest, Socket, apart_from_servers, begin_slowlog, raise_file_limit,
    slowest_duration, take_slowest,
};
use crate::report::{Progress, TargetRow, readable};

pub(crate) const WAITERS: usize = 10_000;
/// Number of keys. Most waiters wait for all of them at once.
pub(crate) const KEYS: usize = 64;
/// The oldest waiters wait only for the last of these keys. Younger ones could not pass the others
/// for long.
const SINGLES: usize = WAITERS / 10;
/// Number of clients that hang up at once.
const LEAVING: usize = 5_000;
pub(crate) const ROUNDS: usize = 3;
/// A ttl longer than a round.
pub(crate) const TTL_MS: u64 = 600_000;
/// Time after which all waits end together. All earlier events must be over by then.
const WAITS_END_AFTER: Duration = Duration::from_secs(10);
/// Time from the end of the waits to the moment in which the stopped server continues.
const STOPPED_AFTER_END: Duration = Duration::from_millis(50);
/// Number of PINGs between two reads of `INFO`.
const PINGS: usize = 100;
/// Time limit until `INFO` shows the expected number of waiting clients.
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

/// A section and a field of `INFO`.
pub(crate) type Field = (&'static str, &'static str);
pub(crate) const LOCK_WAITERS: Field = ("lock", "lock_waiters");

pub(crate) const STEPS: u64 = ROUNDS as u64 + masses::STEPS;

/// The figures of one event.
pub(crate) struct Outcome {
    pub(crate) case: &'static str,
    pub(crate) ours: Figures,
    /// Of a plain server whose clients wait in `BLPOP`; `None` if it has no similar event.
    peer: Option<Figures>,
}

pub(crate) struct Figures {
    pub(crate) slowest: Slowest,
    /// The longest PING, an upper bound of the longest turn.
    pub(crate) turn: Duration,
}

/// Measures each event several times, and keeps the best figure of each kind: other processes can
/// only make a figure worse.
pub(crate) fn measure(progress: &Progress) -> anyhow::Result<Vec<TargetRow>> {
    progress.begin("events while 10,000 clients wait");
    let files = raise_file_limit()?;
    let needed = WAITERS + OTHER_FILES;
    ensure!(files >= needed, "{WAITERS} connections need {needed} open files: raise `ulimit -n`");
    let mut rows: Vec<_> =
        best_of_rounds(progress, round)?.into_iter().map(Outcome::into_row).collect();
    rows.extend(masses::measure(progress)?);
    Ok(rows)
}

pub(crate) fn best_of_rounds(
    progress: &Progress,
    round: impl Fn() -> anyhow::Result<Vec<Outcome>>,
) -> anyhow::Result<Vec<Outcome>> {
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
    Ok(best)
}

fn round() -> anyhow::Result<Vec<Outcome>> {
    let with_module = || {
        let builder = Server::with_module().arg("lock.max-waiters", WAITERS);
        builder.arg("lock.max-ttl", TTL_MS)
    };
    let mut outcomes = on_server(with_module(), several_keys)?;
    outcomes.extend(on_server(with_module(), one_key)?);
    for peer in on_server(Server::builder().without_module(), blpop)? {
        if let Some(alike) = outcomes.iter_mut().find(|outcome| outcome.case == peer.case) {
            alike.peer = Some(peer.ours);
        }
    }
    Ok(outcomes)
}

pub(crate) fn on_server<T: Send>(
    builder: ServerBuilder,
    scenario: impl FnOnce(&Server) -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let server = builder.tcp().arg("maxclients", WAITERS + OTHER_FILES).start()?;
    apart_from_servers(&[&server], || scenario(&server))
}

/// Nine of ten waiters wait for 64 keys, of which 63 hold plain strings. The others wait only for
/// the last key.
fn several_keys(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server, LOCK_WAITERS)?;
    let keys: Vec<_> = (0..KEYS).map(|n| format!("lock:{n:02}")).collect();
    let last = &keys[KEYS - 1];
    for key in &keys[..KEYS - 1] {
        cmd("SET").arg(key).arg("operator").exec(&mut observed.connection)?;
    }
    cmd("LOCK.ACQUIRE").arg(last).arg("holder").arg(TTL_MS).exec(&mut observed.connection)?;

    let mut sockets = Socket::connect_many(server, WAITERS)?;
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
    observed.wait_for(WAITERS)?;

    let release = |token: &str| format!("LOCK.RELEASE {last} {token}\r\n");
    let released = observed.event(
        "`LOCK.RELEASE`; 9,000 wait for 64 keys, 63 of which hold plain strings, and 1,000 for the 64th alone",
        || holder.send(&release("holder")),
        WAITERS - 1,
    )?;
    let deleted = observed.event(
        "then `DEL` of one of the plain strings",
        || operator.send(&format!("DEL {}\r\n", keys[0])),
        WAITERS - 1,
    )?;
    ensure!(
        Instant::now() + STOPPED_AFTER_END < end,
        "this machine is too slow: the waits end before all other events are measured"
    );
    let timed_out = observed.event(
        CASE_TIMED_OUT,
        || {
            sleep(end.saturating_duration_since(Instant::now()) + STOPPED_AFTER_END);
            holder.send(&release("client-0"))
        },
        0,
    )?;
    Ok(vec![released, deleted, timed_out])
}

fn is_single(client: usize) -> bool {
    client < SINGLES
}

/// All clients wait for one key.
fn one_key(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server, LOCK_WAITERS)?;
    cmd("LOCK.ACQUIRE").arg("lock").arg("holder").arg(TTL_MS).exec(&mut observed.connection)?;
    let mut sockets = Socket::connect_many(server, WAITERS)?;
    for (client, socket) in sockets.iter_mut().enumerate() {
        socket.send(&format!("LOCK.ACQUIRE lock client-{client} {TTL_MS} WAIT {TTL_MS}\r\n"))?;
    }
    observed.wait_for(WAITERS)?;

    let nothing = observed.event(CASE_NOTHING, || Ok(()), WAITERS)?;
    let mut holder = Socket::connect(server)?;
    let released = observed.event(
        "`LOCK.RELEASE`; 10,000 wait for this key",
        || holder.send("LOCK.RELEASE lock holder\r\n"),
        WAITERS - 1,
    )?;
    let flushed = observed.event(CASE_FLUSHED, || holder.send("FLUSHALL\r\n"), WAITERS - 2)?;
    let hung_up = observed.hang_up(&mut sockets, WAITERS - LEAVING - 2)?;
    Ok(vec![nothing, released, flushed, hung_up])
}

/// Similar events on a plain server.
fn blpop(server: &Server) -> anyhow::Result<Vec<Outcome>> {
    let mut observed = ObservedServer::new(server, ("clients", "blocked_clients"))?;
    let mut sockets = Socket::connect_many(server, WAITERS)?;
    let end = Instant::now() + WAITS_END_AFTER;
    for socket in &mut sockets {
        // Zero would wait without end.
        let wait = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.send(&format!("BLPOP list {:.3}\r\n", wait.as_secs_f64()))?;
    }
    observed.wait_for(WAITERS)?;
    let nothing = observed.event(CASE_NOTHING, || Ok(()), WAITERS)?;
    let mut operator = Socket::connect(server)?;
    let flushed = observed.event(CASE_FLUSHED, || operator.send("FLUSHALL\r\n"), WAITERS)?;
    let timed_out = observed.event(
        CASE_TIMED_OUT,
        || {
            sleep(end.saturating_duration_since(Instant::now()) + STOPPED_AFTER_END);
            Ok(())
        },
        0,
    )?;
    for socket in &mut sockets {
        socket.send("BLPOP list 0\r\n")?;
    }
    observed.wait_for(WAITERS)?;
    let hung_up = observed.hang_up(&mut sockets, WAITERS - LEAVING)?;
    Ok(vec![nothing, flushed, timed_out, hung_up])
}

/// A server and the connections that observe it.
pub(crate) struct ObservedServer<'a> {
    server: &'a Server,
    pub(crate) connection: Connection,
    pinging: Socket,
    /// The field with the number of waiting clients.
    waiting: Field,
}

impl<'a> ObservedServer<'a> {
    pub(crate) fn new(server: &'a Server, waiting: Field) -> anyhow::Result<Self> {
        let mut connection = server.connection();
        begin_slowlog(&mut connection)?;
        Ok(Self { server, connection, pinging: Socket::connect(server)?, waiting })
    }

    /// Waits until this number of clients wait.
    pub(crate) fn wait_for(&mut self, waiters: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.has(waiters)? {
            self.ensure_in_time(began, waiters)?;
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn has(&mut self, waiters: usize) -> anyhow::Result<bool> {
        let (section, field) = self.waiting;
        Ok(info(&mut self.connection, section, field)? == waiters as u64)
    }

    fn ensure_in_time(&self, began: Instant, waiters: usize) -> anyhow::Result<()> {
        let (_, field) = self.waiting;
        ensure!(began.elapsed() < PATIENCE, "{field} does not become {waiters}");
        Ok(())
    }

    /// Disconnects [`LEAVING`] clients, after which `left` clients wait.
    fn hang_up(&mut self, sockets: &mut Vec<Socket>, left: usize) -> anyhow::Result<Outcome> {
        let leaving = sockets.split_off(WAITERS - LEAVING);
        let hang_up = || {
            drop(leaving);
            Ok(())
        };
        self.event(CASE_HUNG_UP, hang_up, left)
    }

    /// As [`Self::observe`], until `left` clients wait.
    pub(crate) fn event(
        &mut self,
        case: &'static str,
        send: impl FnOnce() -> anyhow::Result<()>,
        left: usize,
    ) -> anyhow::Result<Outcome> {
        self.observe(case, send, |observed| observed.has(left))
    }

    /// Lets the server handle an event in one turn, and measures that event.
    ///
    /// Sends PINGs until the event `is_over`, and then for [`AFTERWARDS`].
    pub(crate) fn observe(
        &mut self,
        case: &'static str,
        send: impl FnOnce() -> anyhow::Result<()>,
        mut is_over: impl FnMut(&mut Self) -> anyhow::Result<bool>,
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
            if done_at.is_none() && is_over(self)? {
                done_at = Some(Instant::now());
            }
            ensure!(began.elapsed() < PATIENCE, "{case}: this is not over in time");
        }
        let slowest = take_slowest(&mut self.connection)?;
        Ok(Outcome { case, ours: Figures { slowest, turn }, peer: None })
    }
}

impl Figures {
    fn best_of_each(self, other: Self) -> Self {
        let is_slower = slowest_duration(&self.slowest) > slowest_duration(&other.slowest);
        Self {
            slowest: if is_slower { other.slowest } else { self.slowest },
            turn: self.turn.min(other.turn),
        }
    }

    pub(crate) fn describe(&self) -> String {
        let longest = readable(slowest_duration(&self.slowest));
        let command = match &self.slowest {
            Some((name, _)) => format!("slowest command {longest} (`{name}`)"),
            None => format!("no command longer than {longest}"),
        };
        format!("{command}, longest turn {}", readable(self.turn))
    }
}

impl Outcome {
    fn best_of_each(self, other: Self) -> Self {
        Self {
            case: self.case,
            ours: self.ours.best_of_each(other.ours),
            peer: self.peer.zip(other.peer).map(|(one, other)| one.best_of_each(other)),
        }
    }

    fn into_row(self) -> TargetRow {
        let peer = self.peer.map(|peer| format!("; with `BLPOP` {}", peer.describe()));
        TargetRow {
            case: self.case.into(),
            measured: format!("{}{}", self.ours.describe(), peer.unwrap_or_default()),
            target: "no command longer than 5 ms",
            met: slowest_duration(&self.ours.slowest) <= TARGET,
        }
    }
}
