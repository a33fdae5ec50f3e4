//! The slowest command and the longest turn of the server while ten thousand clients wait, and with
//! a million readers or leases.
//!
//! The server is stopped while an event is sent, so that it handles the whole event in one turn.
//! PINGs follow, one after another, from the same processor. Their longest round trip, without the
//! time for which the server or the benchmark waited for that processor, is an upper bound of the
//! longest turn. The best round of each event counts: other processes can only make a figure worse.

use std::mem;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use quorlock_testkit::{Server, eventually, info};
use redis::{Connection, cmd};
use rustix::thread::sched_setaffinity;

use crate::instruments::{
    OTHER_FILES, Socket, apart_from_servers, begin_slowlog, join_server, require_files,
    take_slowest, time_without_processor,
};
use crate::report::{Row, readable};

const WAITERS: usize = 10_000;
/// Number of keys. Most waiters wait for all of them at once.
const KEYS: usize = 64;
/// The oldest waiters wait only for the last of these keys. Younger ones could not pass the others
/// for long.
const SINGLES: usize = WAITERS / 10;
/// Number of clients that hang up at once.
const LEAVING: usize = 5_000;
/// Number of readers of a lock, or of leases.
const MASS: usize = 1_000_000;
/// Number of commands in a batch.
const BATCH: usize = 500;
const ROUNDS_MAX: usize = 8;
/// A ttl longer than a round.
const TTL_MS: u64 = 600_000;
/// Time after which all waits end together. All earlier events must be over by then.
const WAITS_END_AFTER: Duration = Duration::from_secs(10);
/// Time from the end of the waits to the moment in which the stopped server continues.
const STOPPED_AFTER_END: Duration = Duration::from_millis(50);
/// Time in which a server is filled with readers that end together.
const FILLED_WITHIN: Duration = Duration::from_secs(60);
/// Time for which these readers hold the lock while writes are paused.
const PAUSED_BEFORE_END: Duration = Duration::from_millis(500);
/// Number of PINGs between two reads of `INFO`.
const PINGS: usize = 100;
/// Time limit until `INFO` shows the expected number.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which PINGs go on after `INFO` shows that the event is over.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// The fields of `INFO lock` that say whether an event is over. Each holder of a shared lock counts
/// as a lease.
const LOCK_WAITERS: &str = "lock_waiters";
const LEASES: &str = "lock_leases";

/// What happens on one server, which was just started.
type Scenario = fn(&mut ObservedServer) -> anyhow::Result<()>;

/// The figures of one event.
struct Outcome {
    case: &'static str,
    /// The slowest command and its name.
    slowest: (Duration, String),
    /// The longest PING, an upper bound of the longest turn.
    turn: Duration,
}

/// What a row promises.
struct Target {
    text: &'static str,
    slowest_max: Duration,
    turn_max: Duration,
}

/// Measures events while ten thousand clients wait.
pub(crate) fn with_waiters() -> anyhow::Result<Vec<Row>> {
    let target = Target {
        text: "no command longer than 5 ms",
        slowest_max: Duration::from_millis(5),
        turn_max: Duration::MAX,
    };
    best_of_rounds(&[several_keys, one_key], &target)
}

/// Measures events with a million readers or leases, and releases that serve ten thousand waiters.
pub(crate) fn with_masses() -> anyhow::Result<Vec<Row>> {
    let target = Target {
        text: "no command longer than 3 ms, no turn longer than 1 ms",
        slowest_max: Duration::from_millis(3),
        turn_max: Duration::from_millis(1),
    };
    let scenarios: &[Scenario] =
        &[readers, ended_readers, leases, waiting_readers, waiters_for_any_key];
    best_of_rounds(scenarios, &target)
}

/// Keeps the best figure of each kind. Ends early when all targets are met.
fn best_of_rounds(scenarios: &[Scenario], target: &Target) -> anyhow::Result<Vec<Row>> {
    require_files(WAITERS)?;
    let mut rows = Vec::new();
    for scenario in scenarios {
        let mut best = outcomes_of(*scenario)?;
        for _ in 1..ROUNDS_MAX {
            if best.iter().all(|outcome| target.is_met(outcome)) {
                break;
            }
            for (best, outcome) in best.iter_mut().zip(outcomes_of(*scenario)?) {
                best.turn = best.turn.min(outcome.turn);
                best.slowest = best.slowest.clone().min(outcome.slowest);
            }
        }
        rows.extend(best.into_iter().map(|outcome| outcome.into_row(target)));
    }
    Ok(rows)
}

fn outcomes_of(scenario: Scenario) -> anyhow::Result<Vec<Outcome>> {
    let builder = Server::with_module().tcp().arg("maxclients", WAITERS + OTHER_FILES);
    let builder = builder.arg("lock.max-waiters", WAITERS).arg("lock.max-ttl", TTL_MS);
    let server = builder.arg("enable-debug-command", "yes").start()?;
    apart_from_servers(&[&server], || {
        let mut observed = ObservedServer::new(&server)?;
        scenario(&mut observed)?;
        Ok(observed.outcomes)
    })
}

impl Target {
    fn is_met(&self, outcome: &Outcome) -> bool {
        outcome.slowest.0 <= self.slowest_max && outcome.turn <= self.turn_max
    }
}

impl Outcome {
    fn into_row(self, target: &Target) -> Row {
        let met = target.is_met(&self);
        let (slowest, name) = self.slowest;
        let (slowest, turn) = (readable(slowest), readable(self.turn));
        let figure = format!("slowest command {slowest} (`{name}`), longest turn {turn}");
        Row::of_figure(self.case, figure, target.text, met)
    }
}

/// Nine of ten waiters wait for 64 keys, of which 63 hold plain strings. The others wait only for
/// the last key.
fn several_keys(observed: &mut ObservedServer) -> anyhow::Result<()> {
    let keys: Vec<_> = (0..KEYS).map(|n| format!("lock:{n:02}")).collect();
    let last = &keys[KEYS - 1];
    for key in &keys[..KEYS - 1] {
        observed.send(&format!("SET {key} operator\r\n"))?;
    }
    observed.send(&format!("LOCK.ACQUIRE {last} holder {TTL_MS}\r\n"))?;

    let end = Instant::now() + WAITS_END_AFTER;
    let all = keys.join(" ");
    let _sockets = observed.let_all_wait(|client| {
        let wait_ms = end.saturating_duration_since(Instant::now()).as_millis();
        let terms = format!("client-{client} {TTL_MS} WAIT {wait_ms}\r\n");
        if client < SINGLES {
            format!("LOCK.ACQUIRE {last} {terms}")
        } else {
            format!("LOCK.MACQUIRE {KEYS} {all} {terms}")
        }
    })?;

    observed.event(
        "`LOCK.RELEASE`; 9,000 wait for 64 keys, 63 of which hold plain strings, and 1,000 for the 64th alone",
        &format!("LOCK.RELEASE {last} holder\r\n"),
        WAITERS - 1,
    )?;
    let deletion = format!("DEL {}\r\n", keys[0]);
    observed.event("then `DEL` of one of the plain strings", &deletion, WAITERS - 1)?;
    ensure!(
        Instant::now() + STOPPED_AFTER_END < end,
        "this machine is too slow: the waits end before all other events are measured"
    );
    observed.observe(
        "then all others time out in one moment, and the lock is released in that turn",
        |operator| {
            sleep(end.saturating_duration_since(Instant::now()) + STOPPED_AFTER_END);
            operator.send(&format!("LOCK.RELEASE {last} client-0\r\n"))
        },
        |observed| observed.has(LOCK_WAITERS, 0),
    )
}

/// All clients wait for one key.
fn one_key(observed: &mut ObservedServer) -> anyhow::Result<()> {
    observed.send(&format!("LOCK.ACQUIRE lock holder {TTL_MS}\r\n"))?;
    let mut sockets = observed.let_all_wait(|client| {
        format!("LOCK.ACQUIRE lock client-{client} {TTL_MS} WAIT {TTL_MS}\r\n")
    })?;
    observed.event("nothing happens while 10,000 wait", "", WAITERS)?;
    observed.event(
        "`LOCK.RELEASE`; 10,000 wait for this key",
        "LOCK.RELEASE lock holder\r\n",
        WAITERS - 1,
    )?;
    observed.event(
        "then `FLUSHALL` while the others wait for this key",
        "FLUSHALL\r\n",
        WAITERS - 2,
    )?;
    let leaving = sockets.split_off(WAITERS - LEAVING);
    observed.observe(
        "then 5,000 of the others disconnect",
        |_| {
            drop(leaving);
            Ok(())
        },
        |observed| observed.has(LOCK_WAITERS, WAITERS - LEAVING - 2),
    )
}

fn readers(observed: &mut ObservedServer) -> anyhow::Result<()> {
    observed.fill(|n| format!("LOCK.ACQUIRE lock reader-{n} {TTL_MS} SHARED\r\n"))?;
    observed.event("`DEL` of a lock with 1,000,000 readers", "DEL lock\r\n", 0)
}

/// All readers but one end while writes are paused.
fn ended_readers(observed: &mut ObservedServer) -> anyhow::Result<()> {
    let end = Instant::now() + FILLED_WITHIN;
    let left_ms = || end.saturating_duration_since(Instant::now()).as_millis().max(1);
    observed.fill(|n| format!("LOCK.ACQUIRE lock reader-{n} {} SHARED\r\n", left_ms()))?;
    observed.send(&format!("LOCK.ACQUIRE lock last {TTL_MS} SHARED\r\n"))?;
    let pause_in = end.saturating_duration_since(Instant::now() + PAUSED_BEFORE_END);
    ensure!(!pause_in.is_zero(), "this machine is too slow: the readers end too early");
    sleep(pause_in);
    observed.send(&format!("CLIENT PAUSE {TTL_MS} WRITE\r\n"))?;
    sleep(2 * PAUSED_BEFORE_END);
    observed.observe(
        "`LOCK.INSPECT` and `LOCK.SCAN` in a pause of writes, after 1,000,000 readers have ended",
        |operator| operator.send("LOCK.INSPECT lock\r\nLOCK.SCAN 0 COUNT 1000\r\n"),
        |_| Ok(true),
    )?;
    observed.observe(
        "then `CLIENT UNPAUSE`: the ended readers are removed",
        |operator| operator.send("CLIENT UNPAUSE\r\n"),
        |observed| observed.has(LEASES, 1),
    )
}

fn leases(observed: &mut ObservedServer) -> anyhow::Result<()> {
    observed.fill(|n| format!("LOCK.ACQUIRE lock:{n:07} holder-{n} {TTL_MS}\r\n"))?;
    observed.observe(
        "`LOCK.SCAN` with `COUNT 1000` over 1,000,000 leases, the whole scan",
        |_| Ok(()),
        |observed| {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = cmd("LOCK.SCAN");
                let scan = scan.arg(&cursor).arg("COUNT").arg(1000);
                (cursor, _) = scan.query::<(String, redis::Value)>(&mut observed.connection)?;
                if cursor == "0" {
                    return Ok(true);
                }
            }
        },
    )?;
    cmd("DEBUG").arg("RELOAD").exec(&mut observed.connection)?;
    observed.observe("after `DEBUG RELOAD` with 1,000,000 leases", |_| Ok(()), |_| Ok(true))?;
    observed.event("then `FLUSHALL ASYNC`", "FLUSHALL ASYNC\r\n", 0)
}

fn waiting_readers(observed: &mut ObservedServer) -> anyhow::Result<()> {
    observed.send(&format!("LOCK.ACQUIRE lock holder {TTL_MS}\r\n"))?;
    let _sockets = observed.let_all_wait(|n| {
        format!("LOCK.ACQUIRE lock reader-{n} {TTL_MS} SHARED WAIT {TTL_MS}\r\n")
    })?;
    observed.event(
        "`LOCK.RELEASE`; 10,000 wait to share this key",
        "LOCK.RELEASE lock holder\r\n",
        0,
    )
}

fn waiters_for_any_key(observed: &mut ObservedServer) -> anyhow::Result<()> {
    let keys: Vec<_> = (0..KEYS).map(|n| format!("lock:{n:02}")).collect();
    let keys = format!("{KEYS} {}", keys.join(" "));
    observed.send(&format!("LOCK.MACQUIRE {keys} holder {TTL_MS}\r\n"))?;
    let _sockets = observed.let_all_wait(|n| {
        format!("LOCK.ACQUIREANY {keys} client-{n} {TTL_MS} WAIT {TTL_MS}\r\n")
    })?;
    observed.event(
        "`LOCK.MRELEASE` of 64 keys; 10,000 wait for any of them",
        &format!("LOCK.MRELEASE {keys} holder\r\n"),
        WAITERS - KEYS,
    )
}

/// A server, the connections that observe it, and what was observed.
struct ObservedServer<'a> {
    server: &'a Server,
    connection: Connection,
    operator: Socket,
    pinging: Socket,
    outcomes: Vec<Outcome>,
}

impl<'a> ObservedServer<'a> {
    fn new(server: &'a Server) -> anyhow::Result<Self> {
        let mut connection = server.connection();
        begin_slowlog(&mut connection)?;
        let (operator, pinging) = (Socket::connect(server)?, Socket::connect(server)?);
        Ok(Self { server, connection, operator, pinging, outcomes: Vec::new() })
    }

    /// Sends a command that succeeds.
    fn send(&mut self, command: &str) -> anyhow::Result<()> {
        let args: Vec<_> = command.split_whitespace().collect();
        let (name, args) = args.split_first().expect("a command has a name");
        Ok(cmd(name).arg(args).exec(&mut self.connection)?)
    }

    /// Sends [`MASS`] commands that acquire a lock.
    fn fill(&self, command: impl Fn(usize) -> String) -> anyhow::Result<()> {
        let mut socket = Socket::connect(self.server)?;
        for first in (0..MASS).step_by(BATCH) {
            socket.send(&(first..first + BATCH).map(&command).collect::<String>())?;
            socket.expect_done(BATCH)?;
        }
        Ok(())
    }

    /// Connects [`WAITERS`] clients, and returns them when all of them wait.
    fn let_all_wait(&mut self, command: impl Fn(usize) -> String) -> anyhow::Result<Vec<Socket>> {
        let mut sockets = Socket::connect_many(self.server, WAITERS)?;
        for (client, socket) in sockets.iter_mut().enumerate() {
            socket.send(&command(client))?;
        }
        eventually(PATIENCE, "all clients wait", || {
            self.has(LOCK_WAITERS, WAITERS).is_ok_and(|all_wait| all_wait)
        });
        Ok(sockets)
    }

    fn has(&mut self, field: &str, value: usize) -> anyhow::Result<bool> {
        Ok(info(&mut self.connection, "lock", field)? == value as u64)
    }

    /// Observes a command of an operator, until this many clients wait. If none waits already,
    /// observes until there are no leases.
    fn event(&mut self, case: &'static str, command: &str, waiters: usize) -> anyhow::Result<()> {
        let field = if self.has(LOCK_WAITERS, 0)? { LEASES } else { LOCK_WAITERS };
        self.observe(
            case,
            |operator| operator.send(command),
            |observed| observed.has(field, waiters),
        )
    }

    /// Lets the server handle an event in one turn, and measures that event.
    ///
    /// Sends PINGs until the event `is_over`, and then for [`AFTERWARDS`].
    fn observe(
        &mut self,
        case: &'static str,
        send: impl FnOnce(&mut Socket) -> anyhow::Result<()>,
        mut is_over: impl FnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        take_slowest(&mut self.connection)?;
        let apart = join_server(self.server)?;
        self.server.pause();
        let pinged = send(&mut self.operator).and_then(|()| self.pinging.send("PING\r\n"));
        let began = Instant::now();
        let mut waited = time_without_processor(self.server)?;
        self.server.resume();
        pinged?;
        self.pinging.expect("+PONG")?;
        let mut turn = self.turn_since(began, &mut waited)?;
        let mut over_at = None;
        while over_at.is_none_or(|at: Instant| at.elapsed() < AFTERWARDS) {
            for _ in 0..PINGS {
                let pinged = Instant::now();
                self.pinging.ping()?;
                turn = turn.max(self.turn_since(pinged, &mut waited)?);
            }
            if over_at.is_none() && is_over(self)? {
                over_at = Some(Instant::now());
            }
            ensure!(began.elapsed() < PATIENCE, "{case}: this is not over in time");
        }
        sched_setaffinity(None, &apart)?;
        let slowest = take_slowest(&mut self.connection)?;
        self.outcomes.push(Outcome { case, slowest, turn });
        Ok(())
    }

    /// Returns the time since a PING, without the time for which there was no processor since
    /// `waited` was read.
    fn turn_since(&self, pinged: Instant, waited: &mut Duration) -> anyhow::Result<Duration> {
        let elapsed = pinged.elapsed();
        let before = mem::replace(waited, time_without_processor(self.server)?);
        Ok(elapsed.saturating_sub(waited.saturating_sub(before)))
    }
}
