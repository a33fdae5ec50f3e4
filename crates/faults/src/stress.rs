//! Many clients that wait for locks of one server, and everything that can end a wait: clients hang
//! up, run out of time or forget their locks, and an operator kills and unblocks them.

use std::collections::BTreeMap;
use std::ops;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use quorlock_testkit::{Server, holds_within, info};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::{Connection, RedisError, RedisResult, Value, cmd, from_redis_value, pipe};

use crate::harness::result_of;

/// Ttl and wait, longer than any client holds a lock or waits for it.
const LONG_MS: u64 = 60_000;
/// Ttl of a lock that is not released, and length of a wait that likely fails.
const SHORT_MS: ops::RangeInclusive<u64> = 1..=20;
/// Time after the end of a wait by which the client must have an answer.
const LATE_MAX: Duration = Duration::from_secs(5);
/// Longest time for which a client holds a lock that it releases.
const HOLD_MAX: Duration = Duration::from_micros(300);
/// Longest time until a client hangs up.
const HANG_UP_MAX: Duration = Duration::from_millis(2);
/// Longest pause after an intervention.
const INTERVENTION_PAUSE_MAX: Duration = Duration::from_millis(1);
/// Pause between two observations.
const OBSERVATION_PAUSE: Duration = Duration::from_micros(500);
/// Largest pause between two observations that counts: in a longer one, the observer did not run.
const GAP_MAX: Duration = Duration::from_millis(5);
/// Time in which the last locks must end, and the last clients must be unblocked.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

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

/// How a wait ended, and what was done to a client or a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Granted,
    /// The time was over, or an operator or a RELEASE with its token ended the wait.
    WithoutLock,
    /// The server closed the connection.
    CutOff,
    /// The client closed the connection.
    HungUp,
    /// The server did not answer, long after the time was over.
    Unanswered,
    /// The operator killed a connection.
    Kill,
    /// The operator unblocked a wait, with nil or an error.
    Unblocked,
    /// A RELEASE was sent to withdraw a waiter.
    Withdrawn,
    /// A lock was deleted while it was held.
    Deleted,
    /// The observer looked for free locks with waiters.
    Observed,
}

/// The result of a [`Stress`].
#[derive(Clone, Debug)]
pub struct StressOutcome {
    events: BTreeMap<Event, u64>,
    /// The longest time for which a free lock had a waiter.
    pub longest_free: Duration,
    /// Waiters at the end, as the module counts them.
    pub waiters_left: u64,
    /// Blocked clients at the end, as the server counts them.
    pub blocked_left: u64,
    pub leases_left: u64,
}

impl StressOutcome {
    pub fn times(&self, event: Event) -> u64 {
        self.events.get(&event).copied().unwrap_or_default()
    }

    /// Returns whether no unanswered wait, waiter, blocked client or lock is left.
    pub fn leaves_nothing(&self) -> bool {
        let unanswered = self.times(Event::Unanswered);
        [unanswered, self.waiters_left, self.blocked_left, self.leases_left] == [0; 4]
    }
}

/// What the threads share.
struct RunState<'a> {
    stress: &'a Stress,
    server: &'a Server,
    /// Rounds that have begun, and the attempts to begin one more.
    begun: AtomicU64,
    /// Set when all clients have ended.
    over: AtomicBool,
    /// By the index of the client.
    claims: Vec<Mutex<Option<Claim>>>,
    events: Mutex<BTreeMap<Event, u64>>,
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
    /// Runs until all rounds are over.
    ///
    /// # Panics
    /// When the server accepts no connection, or its answer has an unexpected form.
    pub fn run(&self, server: &Server) -> StressOutcome {
        let shared = RunState {
            stress: self,
            server,
            begun: AtomicU64::new(0),
            over: AtomicBool::new(false),
            claims: (0..self.clients).map(|_| Mutex::default()).collect(),
            events: Mutex::default(),
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
            ended.into_iter().for_each(result_of);
            result_of(longest_free)
        });
        let mut connection = server.connection();
        let fields =
            [("lock", "lock_waiters"), ("clients", "blocked_clients"), ("lock", "lock_leases")];
        let mut left = || {
            fields.map(|(section, field)| {
                info(&mut connection, section, field).expect("a running server answers")
            })
        };
        holds_within(SETTLE_LIMIT, || left() == [0; 3]);
        let [waiters_left, blocked_left, leases_left] = left();
        let events = lock(&shared.events).clone();
        StressOutcome { events, longest_free, waiters_left, blocked_left, leases_left }
    }

    fn key(index: usize) -> String {
        format!("lock:{index}")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunState<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn count(&self, event: Event) {
        *lock(&self.events).entry(event).or_default() += 1;
    }

    /// Ends waits and locks from a connection of its own, until all clients have ended.
    fn intervene(&self) {
        let mut rng = SmallRng::seed_from_u64(!self.stress.seed);
        let mut connection = self.server.connection();
        while !self.is_over() {
            let victim = &self.claims[rng.random_range(0..self.stress.clients)];
            let claim = lock(victim).clone();
            if let Some(Claim { client_id, key, token }) = claim {
                let unblock =
                    |how: &str| cmd("CLIENT").arg("UNBLOCK").arg(client_id).arg(how).take();
                let kill = cmd("CLIENT").arg("KILL").arg("ID").arg(client_id).take();
                let withdraw = cmd("LOCK.RELEASE").arg(&key).arg(&token).take();
                let (event, command) = match rng.random_range(0..100) {
                    0..40 => (Event::Kill, kill),
                    40..55 => (Event::Unblocked, unblock("TIMEOUT")),
                    55..70 => (Event::Unblocked, unblock("ERROR")),
                    70..85 => (Event::Withdrawn, withdraw),
                    _ => (Event::Deleted, cmd("DEL").arg(&key).take()),
                };
                let reply =
                    command.query::<Value>(&mut connection).expect("no command kills this client");
                // The reply to a RELEASE that withdraws a waiter is 0, and so is the reply to one
                // that finds nothing.
                if event == Event::Withdrawn || reply == Value::Int(1) {
                    self.count(event);
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
            self.count(Event::Observed);
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
    let mut for_held_locks = 0;
    for inspected in answers {
        // Nil for a free lock.
        let fields: Option<BTreeMap<String, Value>> = from_redis_value(inspected)?;
        let waiters = fields.and_then(|mut fields| fields.remove("waiters"));
        for_held_locks += waiters.map(from_redis_value::<u64>).transpose()?.unwrap_or_default();
    }
    Ok(waiters > for_held_locks)
}

struct Client<'a> {
    shared: &'a RunState<'a>,
    index: usize,
    rng: SmallRng,
    /// The connection, and its ID on the server. `None` before the first use and after a failure.
    connection: Option<(u64, Connection)>,
}

impl<'a> Client<'a> {
    fn new(shared: &'a RunState<'a>, index: usize) -> Self {
        let seed = shared.stress.seed.wrapping_add(index as u64);
        Self { shared, index, rng: SmallRng::seed_from_u64(seed), connection: None }
    }

    fn run(mut self) {
        let RunState { begun, stress, .. } = self.shared;
        while begun.fetch_add(1, Ordering::Relaxed) < stress.rounds {
            self.round();
        }
    }

    fn round(&mut self) {
        // Whether the client waits only for a short time, whether it forgets the lock, which then
        // ends by its deadline, and whether it hangs up while it waits.
        let (is_hurried, forgets, hangs_up) = match self.rng.random_range(0..100) {
            0..10 => (true, false, false),
            10..15 => (false, true, false),
            15..20 => (false, false, true),
            20..25 => (false, true, true),
            _ => (false, false, false),
        };
        let key = Stress::key(self.rng.random_range(0..self.shared.stress.keys));
        let token = format!("{:032x}", self.rng.random::<u128>());
        let ttl_ms = if forgets { self.rng.random_range(SHORT_MS) } else { LONG_MS };
        let wait_ms = if is_hurried { self.rng.random_range(SHORT_MS) } else { LONG_MS };
        let patience = if hangs_up {
            self.rng.random_range(Duration::from_micros(50)..=HANG_UP_MAX)
        } else {
            Duration::from_millis(wait_ms) + LATE_MAX
        };

        let claims = &self.shared.claims[self.index];
        let (client_id, connection) = self.connection();
        connection.set_read_timeout(Some(patience)).expect("the timeout is not zero");
        *lock(claims) = Some(Claim { client_id, key: key.clone(), token: token.clone() });
        let asked = Instant::now();
        let (_, connection) = self.connection.as_mut().expect("the connection was opened above");
        let answer = cmd("LOCK.ACQUIRE")
            .arg(&key)
            .arg(&token)
            .arg(ttl_ms)
            .arg("WAIT")
            .arg(wait_ms)
            .query::<Value>(connection);
        let end = self.classify(hangs_up, answer, asked.elapsed() >= patience);
        self.shared.count(end);
        // Half of the holders do not sleep: an immediate release more likely meets an intervention.
        if end == Event::Granted && !forgets && self.rng.random() {
            thread::sleep(self.rng.random_range(Duration::ZERO..=HOLD_MAX));
        }
        // A client that was granted the lock, or cannot know whether it was, releases the lock.
        if !forgets && end != Event::WithoutLock {
            self.release(&key, &token);
        }
        *lock(claims) = None;
    }

    /// Returns how a wait ended, and closes a connection that failed.
    fn classify(&mut self, hangs_up: bool, answer: RedisResult<Value>, is_late: bool) -> Event {
        let is_broken = |error: &RedisError| error.is_io_error() || error.is_unrecoverable_error();
        match answer {
            Ok(Value::Array(_)) => Event::Granted,
            Ok(Value::Nil) => Event::WithoutLock,
            Ok(other) => panic!("the server answered {other:?}"),
            Err(error) if error.code() == Some("UNBLOCKED") => Event::WithoutLock,
            Err(error) if is_broken(&error) => {
                self.connection = None;
                match error.is_timeout() {
                    true if hangs_up => Event::HungUp,
                    true if is_late => Event::Unanswered,
                    _ => Event::CutOff,
                }
            }
            Err(error) => panic!("the server answered {error}"),
        }
    }

    /// Releases the lock. Retries when an intervention kills the connection.
    fn release(&mut self, key: &str, token: &str) {
        loop {
            let (_, connection) = self.connection();
            connection.set_read_timeout(Some(LATE_MAX)).expect("the timeout is not zero");
            if cmd("LOCK.RELEASE").arg(key).arg(token).query::<bool>(connection).is_ok() {
                return;
            }
            self.connection = None;
        }
    }

    fn connection(&mut self) -> (u64, &mut Connection) {
        let server = self.shared.server;
        let (id, connection) = self.connection.get_or_insert_with(|| {
            let mut connection = server.connection();
            let id = cmd("CLIENT").arg("ID").query(&mut connection);
            (id.expect("a new connection is not killed"), connection)
        });
        (*id, connection)
    }
}
