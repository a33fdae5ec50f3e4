use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::{Connection, RedisError, Value, cmd};

use super::outcome::Event;
use super::{Doing, Shared, Stress};

/// Longer than any lock is held or waited for.
const LONG_MS: u64 = 20_000;
/// A lock that nobody releases, and a wait that is likely to be in vain, in milliseconds.
const SHORT_MS: std::ops::RangeInclusive<u64> = 1..=20;
/// How much later than its wait is over a client must have been answered.
const LATE_MAX: Duration = Duration::from_secs(5);
/// The longest that a lock is held, if it is released.
const HOLD_MAX: Duration = Duration::from_micros(300);
/// After this long those hang up who are not patient.
const HANG_UP_MAX: Duration = Duration::from_millis(2);

/// How a round is to go, if nothing comes in between.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// Waits for as long as it takes, and releases the lock.
    Patient,
    /// Waits for a short time.
    Hurried,
    /// Waits for as long as it takes, and forgets the lock: its deadline ends it.
    Forgetful,
    /// Hangs up while it waits, and tells the server so through another connection.
    HangsUp,
    /// Hangs up while it waits, and tells nobody. If the lock was its own by then, a deadline ends it.
    Vanishes,
}

/// One client and its connection.
pub(super) struct Client<'a> {
    shared: &'a Shared<'a>,
    index: usize,
    dice: SmallRng,
    connection: Option<(u64, Connection)>,
}

impl<'a> Client<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, index: usize) -> Self {
        let seed = shared.stress.seed.wrapping_add(index as u64);
        Self { shared, index, dice: SmallRng::seed_from_u64(seed), connection: None }
    }

    /// Round after round.
    pub(super) fn run(mut self) {
        while self.shared.begin_round() {
            self.round();
        }
    }

    fn round(&mut self) {
        let plan = match self.dice.random_range(0..100) {
            0..10 => Plan::Hurried,
            10..15 => Plan::Forgetful,
            15..20 => Plan::HangsUp,
            20..25 => Plan::Vanishes,
            _ => Plan::Patient,
        };
        let key = Stress::key(self.dice.random_range(0..self.shared.stress.keys));
        let token = format!("{:032x}", self.dice.random::<u128>());
        let is_short = matches!(plan, Plan::Forgetful | Plan::Vanishes);
        let ttl_ms = if is_short { self.dice.random_range(SHORT_MS) } else { LONG_MS };
        let wait_ms = if plan == Plan::Hurried { self.dice.random_range(SHORT_MS) } else { LONG_MS };
        let patience = match plan {
            Plan::HangsUp | Plan::Vanishes => self.dice.random_range(Duration::from_micros(50)..=HANG_UP_MAX),
            _ => Duration::from_millis(wait_ms) + LATE_MAX,
        };

        let (client_id, connection) = self.connection();
        let ask = cmd("LOCK.ACQUIRE").arg(&key).arg(&token).arg(ttl_ms).arg("WAIT").arg(wait_ms).take();
        connection.set_read_timeout(Some(patience)).expect("it is not zero");
        self.shared.set_doing(self.index, Some(Doing { client_id, key: key.clone(), token: token.clone() }));
        let asked = Instant::now();
        let (_, connection) = self.connection.as_mut().expect("made above");
        let answer = ask.query::<Value>(connection);
        let event = self.event(plan, answer, asked.elapsed() >= patience);
        self.shared.tally.count(event);
        if event == Event::Granted && !is_short {
            self.hold();
        }
        // A client that does not know whether it was granted the lock gives it back.
        let may_hold = matches!(event, Event::Granted | Event::CutOff | Event::HungUp | Event::Unanswered);
        if may_hold && !is_short {
            self.release(&key, &token);
        }
        self.shared.set_doing(self.index, None);
    }

    /// What a wait came to. A connection that failed is closed.
    fn event(&mut self, plan: Plan, answer: Result<Value, RedisError>, is_late: bool) -> Event {
        match answer {
            Ok(Value::Array(_)) => Event::Granted,
            Ok(Value::Nil) => Event::OutOfTime,
            Ok(other) => panic!("the server answered {other:?}"),
            Err(error) if error.code() == Some("UNBLOCKED") => Event::Unblocked,
            Err(error) if error.is_io_error() || error.is_unrecoverable_error() => {
                self.connection = None;
                match plan {
                    Plan::HangsUp | Plan::Vanishes if error.is_timeout() => Event::HungUp,
                    _ if error.is_timeout() && is_late => Event::Unanswered,
                    _ => Event::CutOff,
                }
            }
            Err(error) => panic!("the server answered {error}"),
        }
    }

    fn hold(&mut self) {
        let hold = self.dice.random_range(Duration::ZERO..=HOLD_MAX);
        // As often not at all: what follows at once is more likely to coincide with something.
        if self.dice.random() {
            thread::sleep(hold);
        }
    }

    /// Until it is answered: whoever is killed in between tries again.
    fn release(&mut self, key: &str, token: &str) {
        loop {
            let (_, connection) = self.connection();
            connection.set_read_timeout(Some(LATE_MAX)).expect("it is not zero");
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
            let id = cmd("CLIENT").arg("ID").query(&mut connection).expect("nobody knows it yet");
            (id, connection)
        });
        (*id, connection)
    }
}
