use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::{Connection, RedisError, Value, cmd};

use super::outcome::WaitEnd;
use super::{Claim, RunState, Stress};

/// Ttl and wait, longer than any client holds a lock or waits for it.
const LONG_MS: u64 = 60_000;
/// Ttl of a lock that is not released, and length of a wait that likely fails.
const SHORT_MS: std::ops::RangeInclusive<u64> = 1..=20;
/// Time after the end of a wait by which the client must have an answer.
const LATE_MAX: Duration = Duration::from_secs(5);
/// Longest time for which a client holds a lock that it releases.
const HOLD_MAX: Duration = Duration::from_micros(300);
/// Longest time until a client hangs up.
const HANG_UP_MAX: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// Waits for as long as necessary, and releases the lock.
    Patient,
    Hurried,
    /// Waits for as long as necessary, and forgets the lock: its deadline ends it.
    Forgetful,
    /// Hangs up while it waits, and releases through another connection.
    HangsUp,
    /// Hangs up while it waits, and does not release the lock: its deadline ends it, if granted.
    Vanishes,
}

pub(super) struct Client<'a> {
    shared: &'a RunState<'a>,
    index: usize,
    rng: SmallRng,
    /// The connection, and its ID on the server. `None` before the first use and after a failure.
    connection: Option<(u64, Connection)>,
}

impl<'a> Client<'a> {
    pub(super) fn new(shared: &'a RunState<'a>, index: usize) -> Self {
        let seed = shared.stress.seed.wrapping_add(index as u64);
        Self { shared, index, rng: SmallRng::seed_from_u64(seed), connection: None }
    }

    pub(super) fn run(mut self) {
        while self.shared.begin_round() {
            self.round();
        }
    }

    fn round(&mut self) {
        let plan = match self.rng.random_range(0..100) {
            0..10 => Plan::Hurried,
            10..15 => Plan::Forgetful,
            15..20 => Plan::HangsUp,
            20..25 => Plan::Vanishes,
            _ => Plan::Patient,
        };
        let key = Stress::key(self.rng.random_range(0..self.shared.stress.keys));
        let token = format!("{:032x}", self.rng.random::<u128>());
        let is_short = matches!(plan, Plan::Forgetful | Plan::Vanishes);
        let ttl_ms = if is_short { self.rng.random_range(SHORT_MS) } else { LONG_MS };
        let wait_ms = if plan == Plan::Hurried { self.rng.random_range(SHORT_MS) } else { LONG_MS };
        let patience = match plan {
            Plan::HangsUp | Plan::Vanishes => {
                self.rng.random_range(Duration::from_micros(50)..=HANG_UP_MAX)
            }
            _ => Duration::from_millis(wait_ms) + LATE_MAX,
        };

        let (client_id, connection) = self.connection();
        let ask =
            cmd("LOCK.ACQUIRE").arg(&key).arg(&token).arg(ttl_ms).arg("WAIT").arg(wait_ms).take();
        connection.set_read_timeout(Some(patience)).expect("the timeout is not zero");
        let claim = Claim { client_id, key: key.clone(), token: token.clone() };
        self.shared.set_claim(self.index, Some(claim));
        let asked = Instant::now();
        let (_, connection) = self.connection.as_mut().expect("the connection was opened above");
        let answer = ask.query::<Value>(connection);
        let end = self.classify(plan, answer, asked.elapsed() >= patience);
        self.shared.counters.count_end(end);
        if end == WaitEnd::Granted && !is_short {
            self.hold();
        }
        // A client that was granted the lock, or cannot know whether it was, releases the lock.
        if !is_short && !matches!(end, WaitEnd::Nil | WaitEnd::Unblocked) {
            self.release(&key, &token);
        }
        self.shared.set_claim(self.index, None);
    }

    /// Returns how a wait ended, and closes a connection that failed.
    fn classify(
        &mut self,
        plan: Plan,
        answer: Result<Value, RedisError>,
        is_late: bool,
    ) -> WaitEnd {
        match answer {
            Ok(Value::Array(_)) => WaitEnd::Granted,
            Ok(Value::Nil) => WaitEnd::Nil,
            Ok(other) => panic!("the server answered {other:?}"),
            Err(error) if error.code() == Some("UNBLOCKED") => WaitEnd::Unblocked,
            Err(error) if error.is_io_error() || error.is_unrecoverable_error() => {
                self.connection = None;
                match plan {
                    Plan::HangsUp | Plan::Vanishes if error.is_timeout() => WaitEnd::HungUp,
                    _ if error.is_timeout() && is_late => WaitEnd::Unanswered,
                    _ => WaitEnd::CutOff,
                }
            }
            Err(error) => panic!("the server answered {error}"),
        }
    }

    fn hold(&mut self) {
        let hold = self.rng.random_range(Duration::ZERO..=HOLD_MAX);
        // Half of the rounds do not sleep: an immediate release more likely meets an intervention.
        if self.rng.random() {
            thread::sleep(hold);
        }
    }

    /// Releases the lock. Retries when an intervention kills the connection.
    fn release(&mut self, key: &str, token: &str) {
        loop {
            let (_, connection) = self.connection();
            connection.set_read_timeout(Some(LATE_MAX)).expect("the timeout is not zero");
            let released = cmd("LOCK.RELEASE").arg(key).arg(token).query::<bool>(connection);
            if released.is_ok() {
                return;
            }
            self.connection = None;
        }
    }

    fn connection(&mut self) -> (u64, &mut Connection) {
        let server = self.shared.server;
        let (id, connection) = self.connection.get_or_insert_with(|| {
            let mut connection = server.connection();
            let id = cmd("CLIENT")
                .arg("ID")
                .query(&mut connection)
                .expect("a new connection is not killed");
            (id, connection)
        });
        (*id, connection)
    }
}
