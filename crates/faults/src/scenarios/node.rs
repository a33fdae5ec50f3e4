use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quorlock_testkit::{FleetNode, Server, ServerBuilder, info};
use redis::{Cmd, Connection, FromRedisValue, Value};

use crate::wait_until;

/// Enough for a condition that must come true, even on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between two checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A lock as its holder knows it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) key: String,
    token: String,
    /// The server granted or extended the lock between `sent` and `answered`.
    sent: Instant,
    answered: Instant,
    ttl: Duration,
}

impl Held {
    /// No other client may be granted the lock before this time.
    pub(super) fn must_last_until(&self) -> Instant {
        self.sent + self.ttl
    }

    pub(super) fn must_end_by(&self) -> Instant {
        self.answered + self.ttl
    }
}

/// The answer of a server to a request for a lock.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Granted(Held),
    Refused,
    /// Carries the server's reason.
    Abstains(String),
}

impl Answer {
    pub(super) fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }

    /// Fails if the lock, which is free, is not granted.
    pub(super) fn granted(self) -> Result<Held> {
        match self {
            Self::Granted(held) => Ok(held),
            other => bail!("a free lock was not granted: {other:?}"),
        }
    }
}

/// A server with the module, whose wall clock can be stepped and whose power can be cut.
pub(super) struct Node {
    pub(super) inner: FleetNode,
    pub(super) connection: Connection,
}

impl Node {
    /// Starts a brand-new node, which votes at once.
    pub(super) fn start(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Result<Self> {
        let inner = FleetNode::start(configure(Server::with_module()), 0)?;
        let connection = inner.server.try_connection()?;
        Ok(Self { inner, connection })
    }

    pub(super) fn call<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T> {
        command(words).query(&mut self.connection).with_context(|| words.join(" "))
    }

    pub(super) fn acquire(&mut self, key: &str, token: &str, ttl: Duration) -> Result<Answer> {
        self.ask(&["LOCK.ACQUIRE", key, token, &ms(ttl)], key, token, ttl)
    }

    /// Acquires a lock as a client without the module.
    pub(super) fn set_nx(&mut self, key: &str, token: &str, ttl: Duration) -> Result<Answer> {
        self.ask(&["SET", key, token, "NX", "PX", &ms(ttl)], key, token, ttl)
    }

    fn ask(&mut self, words: &[&str], key: &str, token: &str, ttl: Duration) -> Result<Answer> {
        let sent = Instant::now();
        let answer = command(words).query::<Value>(&mut self.connection);
        let answered = Instant::now();
        match answer {
            Ok(Value::Nil) => Ok(Answer::Refused),
            Ok(_) => {
                let (key, token) = (key.into(), token.into());
                Ok(Answer::Granted(Held { key, token, sent, answered, ttl }))
            }
            Err(error) if error.code() == Some("ABSTAIN") => {
                Ok(Answer::Abstains(error.detail().unwrap_or_default().into()))
            }
            Err(error) => Err(error).with_context(|| words.join(" ")),
        }
    }

    /// Returns `None` when the token does not hold the lock any more.
    pub(super) fn extend(&mut self, held: &Held) -> Result<Option<Held>> {
        let sent = Instant::now();
        let extended: Option<u64> =
            self.call(&["LOCK.EXTEND", &held.key, &held.token, &ms(held.ttl)])?;
        Ok(extended.map(|_| Held { sent, answered: Instant::now(), ..held.clone() }))
    }

    /// Returns whether the token still held the lock.
    pub(super) fn release(&mut self, Held { key, token, .. }: &Held) -> Result<bool> {
        self.call(&["LOCK.RELEASE", key, token])
    }

    /// Asks for a lock until it is granted. Returns false if it is not granted by this time.
    pub(super) fn acquire_until(
        &mut self,
        until: Instant,
        key: &str,
        ttl: Duration,
    ) -> Result<bool> {
        loop {
            // Read before the last attempt, so that it begins at this time or later.
            let is_last = Instant::now() >= until;
            let is_granted = self.acquire(key, "another", ttl)?.is_granted();
            if is_granted || is_last {
                return Ok(is_granted);
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }

    pub(super) fn get(&mut self, key: &str) -> Result<Option<String>> {
        self.call(&["GET", key])
    }

    pub(super) fn exists(&mut self, key: &str) -> Result<bool> {
        self.call(&["EXISTS", key])
    }

    pub(super) fn info(&mut self, section: &str, field: &str) -> Result<u64> {
        info(&mut self.connection, section, field)
    }

    /// Steps the wall clock, and waits until the server shows the step.
    pub(super) fn step_clock(&mut self, by_s: i64) -> Result<()> {
        let clock = self.inner.injectors.clock.clone();
        clock.step_ms(by_s * 1000);
        wait_until(PATIENCE, "the server shows the step", || {
            let (shown_s, _us): (u64, u64) = self.call(&["TIME"])?;
            // Whole seconds need a tolerance. It is three seconds: less than any step.
            Ok(shown_s.abs_diff(clock.time_us() / 1_000_000) < 3)
        })
    }

    /// Starts the server again, with this `lock.rejoin-delay`.
    pub(super) fn restart(&mut self, rejoin_delay_ms: i64) -> Result<()> {
        self.inner.server.set_arg("lock.rejoin-delay", rejoin_delay_ms);
        self.inner.restart()?;
        self.connection = self.inner.server.try_connection()?;
        Ok(())
    }
}

fn command(words: &[&str]) -> Cmd {
    Cmd::new().arg(words).take()
}

fn ms(ttl: Duration) -> String {
    ttl.as_millis().to_string()
}
