//! Many clients that wait for locks of one server, and everything that can end a wait.
//!
//! - `client`: a client that waits, and may hang up, run out of time, or forget its lock
//! - `outcome`: what is counted, and what must not be left behind

mod client;
mod outcome;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_testkit::Server;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::{Connection, RedisResult, Value, cmd, from_redis_value, pipe};

use self::client::Client;
pub use self::outcome::StressOutcome;
use self::outcome::{Counters, Intervention};
use crate::harness::result_of;

/// Longest pause after an intervention.
const INTERVENTION_PAUSE_MAX: Duration = Duration::from_millis(1);
/// Pause between two observations.
const OBSERVATION_PAUSE: Duration = Duration::from_micros(500);
/// Largest pause between two observations that counts: in a longer one, the observer did not run.
const GAP_MAX: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
pub struct Stress {
    /// Number of requests of all clients together. Each request waits for a lock.
    pub rounds: u64,
    /// Number of clients, each in a thread of its own.
    pub clients: usize,
    pub keys: usize,
    /// Seed of all random numbers. The order of the threads still differs from run to run.
    pub seed: u64,
}

/// What the threads share.
struct RunState<'a> {
    stress: &'a Stress,
    server: &'a Server,
    /// Rounds that have begun, and the attempts to begin one more at the end.
    begun: AtomicU64,
    /// Set when no further round may begin.
    stop: &'a AtomicBool,
    /// Set when all clients have ended.
    over: AtomicBool,
    /// By the index of the client.
    claims: Vec<Mutex<Option<Claim>>>,
    counters: Counters,
}

/// What a client waits for or holds, and the connection on which it asked.
#[derive(Clone)]
struct Claim {
    /// The ID of its connection on the server.
    client_id: u64,
    key: String,
    token: String,
}

impl Stress {
    /// Runs until all rounds are over, or `stop` is set.
    ///
    /// # Panics
    /// When the server accepts no connection, or its answer has an unexpected form.
    pub fn run(&self, server: &Server, stop: &AtomicBool) -> StressOutcome {
        let shared = RunState {
            stress: self,
            server,
            begun: AtomicU64::new(0),
            stop,
            over: AtomicBool::new(false),
            claims: (0..self.clients).map(|_| Mutex::default()).collect(),
            counters: Counters::default(),
        };
        let longest_free = thread::scope(|scope| {
            let shared = &shared;
            let observer = scope.spawn(|| shared.observe());
            scope.spawn(|| shared.intervene());
            let clients: Vec<_> = (0..self.clients)
                .map(|index| scope.spawn(move || Client::new(shared, index).run()))
                .collect();
            let ended: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
            shared.over.store(true, Ordering::Relaxed);
            let longest_free = observer.join();
            for client in ended {
                result_of(client);
            }
            result_of(longest_free)
        });
        let rounds = shared.begun.load(Ordering::Relaxed).min(self.rounds);
        StressOutcome::new(rounds, &shared.counters, longest_free, server)
    }

    fn key(index: usize) -> String {
        format!("lock:{index}")
    }
}

impl RunState<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn begin_round(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
            && self.begun.fetch_add(1, Ordering::Relaxed) < self.stress.rounds
    }

    fn set_claim(&self, client: usize, claim: Option<Claim>) {
        *self.claims[client].lock().unwrap_or_else(PoisonError::into_inner) = claim;
    }

    fn present_claim(&self, client: usize) -> Option<Claim> {
        self.claims[client].lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends waits and locks from a connection of its own, until all clients have ended.
    fn intervene(&self) {
        let mut rng = SmallRng::seed_from_u64(!self.stress.seed);
        let mut connection = self.server.connection();
        while !self.is_over() {
            let victim = rng.random_range(0..self.stress.clients);
            if let Some(Claim { client_id, key, token }) = self.present_claim(victim) {
                let unblock =
                    |how: &str| cmd("CLIENT").arg("UNBLOCK").arg(client_id).arg(how).take();
                let kill = cmd("CLIENT").arg("KILL").arg("ID").arg(client_id).take();
                let (intervention, command) = match rng.random_range(0..100) {
                    0..40 => (Intervention::Kill, kill),
                    40..55 => (Intervention::Unblock, unblock("TIMEOUT")),
                    55..70 => (Intervention::Unblock, unblock("ERROR")),
                    70..85 => {
                        (Intervention::Withdraw, cmd("LOCK.RELEASE").arg(&key).arg(&token).take())
                    }
                    _ => (Intervention::Delete, cmd("DEL").arg(&key).take()),
                };
                let reply =
                    command.query::<Value>(&mut connection).expect("no command kills this client");
                // The reply to a RELEASE that withdraws a waiter is 0, and so is the reply to one
                // that finds nothing.
                if intervention == Intervention::Withdraw || reply == Value::Int(1) {
                    self.counters.count_intervention(intervention);
                }
            }
            thread::sleep(rng.random_range(Duration::ZERO..=INTERVENTION_PAUSE_MAX));
        }
    }

    /// Returns the longest time for which some lock was free although a client waited for it.
    ///
    /// A series of such observations, of one lock or of several, counts from the answer to the
    /// first one to the request of the last one. A single observation counts as no time: it may
    /// come just after a lock has ended, and the server grants the lock to the next waiter only at
    /// the end of its turn.
    fn observe(&self) -> Duration {
        let mut connection = self.server.connection();
        // When the last answer of a series arrived, and the time since its first answer.
        let mut series: Option<(Instant, Duration)> = None;
        let mut longest = Duration::ZERO;
        while !self.is_over() {
            let sent = Instant::now();
            let has_waiter = has_waiter_for_free_lock(&mut connection, self.stress.keys);
            if has_waiter.expect("no command kills this client") {
                let answered = Instant::now();
                let free = series.map(|(last, free)| free + (sent - last).min(GAP_MAX));
                longest = longest.max(free.unwrap_or_default());
                series =
                    Some((answered, free.map_or(Duration::ZERO, |free| free + (answered - sent))));
            } else {
                series = None;
            }
            self.counters.count_observation();
            thread::sleep(OBSERVATION_PAUSE);
        }
        longest
    }
}

/// Whether `INFO lock` counts more waiters than `LOCK.INSPECT` shows for the held locks. Both are
/// read in one transaction, and so at one moment.
fn has_waiter_for_free_lock(connection: &mut Connection, keys: usize) -> RedisResult<bool> {
    let mut transaction = pipe();
    transaction.atomic().add_command(cmd("INFO").arg("lock").take());
    for index in 0..keys {
        transaction.add_command(cmd("LOCK.INSPECT").arg(Stress::key(index)).take());
    }
    let mut answers = transaction.query::<Vec<Value>>(connection)?.into_iter();
    let info: String = answers.next().map(from_redis_value).transpose()?.unwrap_or_default();
    let waiters = info.lines().find_map(|line| line.strip_prefix("lock_waiters:"));
    let waiters: u64 = waiters
        .and_then(|waiters| waiters.trim().parse().ok())
        .expect("INFO lock has the number of waiters");
    let for_held_locks: u64 = answers.map(|inspected| waiters_of(&inspected)).sum();
    Ok(waiters > for_held_locks)
}

/// Returns the number of waiters for a lock, or 0 when it is free.
fn waiters_of(inspected: &Value) -> u64 {
    let Value::Array(fields) = inspected else { return 0 };
    let is_waiters =
        |field: &[Value]| matches!(&field[0], Value::BulkString(name) if name == b"waiters");
    let waiters = fields.chunks_exact(2).find(|field| is_waiters(field)).map(|field| &field[1]);
    match waiters {
        Some(Value::Int(waiters)) => u64::try_from(*waiters).unwrap_or_default(),
        _ => panic!("LOCK.INSPECT answered {inspected:?}"),
    }
}
