use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use quorlock_testkit::{FleetNode, Injectors, Server, ServerBuilder, info};
use redis::{Cmd, Connection, FromRedisValue, Value};

use crate::wait_until;

/// Enough for a condition that must come true, even on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between two checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// How locks are acquired, extended and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMethod {
    Module,
    /// By `SET NX PX` and scripts that compare the token, as Redlock libraries do.
    SetNx,
}

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
    pub(super) method: LockMethod,
    pub(super) connection: Connection,
}

impl Node {
    /// Starts a brand-new node, which votes at once.
    pub(super) fn start(
        method: LockMethod,
        configure: impl FnOnce(ServerBuilder) -> ServerBuilder,
    ) -> Result<Self> {
        let injectors = Injectors::default();
        let server = configure(injectors.attach(Server::with_module())).start()?;
        let connection = server.try_connection()?;
        Ok(Self { inner: FleetNode::new(server, 0, injectors), method, connection })
    }

    pub(super) fn call<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T> {
        command(words).query(&mut self.connection).with_context(|| words.join(" "))
    }

    pub(super) fn acquire(&mut self, key: &str, token: &str, ttl: Duration) -> Result<Answer> {
        if self.method == LockMethod::SetNx {
            return self.set_nx(key, token, ttl);
        }
        self.ask(&["LOCK.ACQUIRE", key, token, &ms(ttl)], key, token, ttl)
    }

    /// Acquires a lock as a client without the module.
    pub(super) fn set_nx(&mut self, key: &str, token: &str, ttl: Duration) -> Result<Answer> {
        self.ask(&["SET", key, token, "NX", "PX", &ms(ttl)], key, token, ttl)
    }

    /// Acquires a lock as a reader. Without the module, the lock is a set of readers that expires.
    pub(super) fn share(&mut self, key: &str, token: &str, ttl: Duration) -> Result<Answer> {
        const SCRIPT: &str = "
            if redis.call('TYPE', KEYS[1]).ok == 'string' then return false end
            redis.call('SADD', KEYS[1], ARGV[1])
            return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
        let ms = ms(ttl);
        let words = match self.method {
            LockMethod::Module => &["LOCK.ACQUIRE", key, token, &ms, "SHARED"][..],
            LockMethod::SetNx => &["EVAL", SCRIPT, "1", key, token, &ms],
        };
        self.ask(words, key, token, ttl)
    }

    /// Acquires a lock on one of these keys. Without the module, tries one key after the other.
    pub(super) fn acquire_any(
        &mut self,
        keys: [&str; 2],
        token: &str,
        ttl: Duration,
    ) -> Result<Answer> {
        if self.method == LockMethod::Module {
            let words = ["LOCK.ACQUIREANY", "2", keys[0], keys[1], token, &ms(ttl)];
            return self.ask(&words, "", token, ttl);
        }
        match self.acquire(keys[0], token, ttl)? {
            Answer::Refused => self.acquire(keys[1], token, ttl),
            answer => Ok(answer),
        }
    }

    fn ask(&mut self, words: &[&str], key: &str, token: &str, ttl: Duration) -> Result<Answer> {
        let sent = Instant::now();
        let answer = command(words).query::<Value>(&mut self.connection);
        let answered = Instant::now();
        let held = |key: &str| {
            Answer::Granted(Held { key: key.into(), token: token.into(), sent, answered, ttl })
        };
        match answer {
            Ok(Value::Nil) => Ok(Answer::Refused),
            // LOCK.ACQUIREANY answers with the fence and the granted key.
            Ok(Value::Array(granted)) => match &granted[..] {
                [_, Value::BulkString(key)] => Ok(held(&String::from_utf8_lossy(key))),
                _ => bail!("an unexpected reply: {granted:?}"),
            },
            Ok(_) => Ok(held(key)),
            Err(error) if error.code() == Some("ABSTAIN") => {
                Ok(Answer::Abstains(error.detail().unwrap_or_default().into()))
            }
            Err(error) => Err(error).with_context(|| words.join(" ")),
        }
    }

    /// Returns `None` when the token does not hold the lock any more.
    pub(super) fn extend(&mut self, held: &Held) -> Result<Option<Held>> {
        const SCRIPT: &str = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2])";
        let (Held { key, token, .. }, ms) = (held, ms(held.ttl));
        let sent = Instant::now();
        let extended: Option<u64> =
            self.call_by_method(&["LOCK.EXTEND", key, token, &ms], SCRIPT)?;
        Ok(extended.map(|_| Held { sent, answered: Instant::now(), ..held.clone() }))
    }

    /// Returns whether the token still held the lock.
    pub(super) fn release(&mut self, Held { key, token, .. }: &Held) -> Result<bool> {
        const SCRIPT: &str =
            "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0";
        self.call_by_method(&["LOCK.RELEASE", key, token], SCRIPT)
    }

    /// Calls the module, or else a script with the same key and arguments.
    fn call_by_method<T: FromRedisValue>(&mut self, words: &[&str], script: &str) -> Result<T> {
        match self.method {
            LockMethod::Module => self.call(words),
            LockMethod::SetNx => self.call(&[&["EVAL", script, "1"], &words[1..]].concat()),
        }
    }

    /// Repeats `attempt` until it is granted. Returns `None` when no attempt is granted by `until`.
    pub(super) fn retry_until(
        &mut self,
        until: Instant,
        mut attempt: impl FnMut(&mut Self) -> Result<Answer>,
    ) -> Result<Option<Held>> {
        loop {
            let is_last = Instant::now() >= until;
            match attempt(self)? {
                Answer::Granted(held) => return Ok(Some(held)),
                _ if is_last => return Ok(None),
                _ => std::thread::sleep(CHECK_INTERVAL),
            }
        }
    }

    pub(super) fn get(&mut self, key: &str) -> Result<Option<String>> {
        self.call(&["GET", key])
    }

    /// Returns whether the key exists. For eviction, this does not count as a use of the key.
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
            let [shown_s, _us]: [i64; 2] = self.call(&["TIME"])?;
            let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
            let stepped_s = i64::try_from(since.as_secs())? + clock.ahead_ms() / 1000;
            // Whole seconds need a tolerance. It is three seconds: less than any step.
            Ok((shown_s - stepped_s).abs() < 3)
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
    let mut command = Cmd::new();
    command.arg(words);
    command
}

fn ms(ttl: Duration) -> String {
    ttl.as_millis().to_string()
}
