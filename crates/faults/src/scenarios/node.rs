use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use quorlock_testkit::{Server, ServerBuilder};
use redis::{Cmd, Connection, FromRedisValue, RedisResult, Value, cmd, pipe};

use crate::harness::{Injectors, Master, info};

/// Enough for a condition that must come true, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between two checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// How locks are acquired, extended and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMethod {
    Module,
    /// By `SET NX PX` and scripts that compare the token, as Redlock libraries do.
    SetNx,
}

/// A lock as its holder knows it.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) key: String,
    pub(crate) token: String,
    /// The server granted or extended the lock between `sent` and `answered`.
    sent: Instant,
    answered: Instant,
    ttl: Duration,
}

impl Held {
    pub(crate) fn under(&self, key: &str) -> Self {
        Self { key: key.into(), ..self.clone() }
    }

    /// No other client may be granted the lock before this time.
    pub(crate) fn must_last_until(&self) -> Instant {
        self.sent + self.ttl
    }

    pub(crate) fn must_end_by(&self) -> Instant {
        self.answered + self.ttl
    }
}

/// The answer of a server to a request for a lock.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Granted(Held),
    Refused,
    /// Carries the server's reason.
    Abstains(String),
}

/// A server with the module, whose wall clock can be stepped and whose power can be cut.
pub(crate) struct Node {
    pub(crate) master: Master,
    connection: Connection,
}

impl Answer {
    pub(crate) fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }
}

impl Node {
    /// Starts a brand-new node, which votes at once.
    pub(crate) fn start(configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Result<Self> {
        let injectors = Injectors::default();
        let server = configure(injectors.attach(Server::with_module())).start()?;
        let connection = server.try_connection()?;
        Ok(Self { master: Master::new(server, 0, Some(injectors)), connection })
    }

    pub(crate) fn call<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T> {
        command(words).query(&mut self.connection).with_context(|| words.join(" "))
    }

    /// Sends several commands in one packet. The server executes nothing else between them.
    pub(crate) fn call_all(&mut self, commands: &[&[&str]]) -> Result<Vec<RedisResult<Value>>> {
        let mut packed = Vec::new();
        for words in commands {
            command(words).write_packed_command(&mut packed);
        }
        self.connection.send_packed_command(&packed)?;
        Ok(commands
            .iter()
            .map(|_| self.connection.recv_response().and_then(Value::extract_error))
            .collect())
    }

    pub(crate) fn set_config(&mut self, name: &str, value: &str) -> Result<()> {
        self.call::<String>(&["CONFIG", "SET", name, value]).map(drop)
    }

    pub(crate) fn set_all(
        &mut self,
        keys: impl Iterator<Item = String>,
        value: &str,
        expire_after: Duration,
    ) -> Result<()> {
        let mut pipeline = pipe();
        for key in keys {
            pipeline.cmd("SET").arg(key).arg(value).arg("EX").arg(expire_after.as_secs()).ignore();
        }
        pipeline.exec(&mut self.connection).context("SET, many times")
    }

    /// Acquires many locks, and returns how many were granted.
    pub(crate) fn acquire_all(
        &mut self,
        keys: impl Iterator<Item = String>,
        token: &str,
        ttl: Duration,
    ) -> Result<usize> {
        let mut pipeline = pipe();
        for key in keys {
            pipeline.cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(ttl.as_millis());
        }
        let answers: Vec<Option<u64>> =
            pipeline.query(&mut self.connection).context("LOCK.ACQUIRE, many times")?;
        Ok(answers.into_iter().flatten().count())
    }

    /// Restores a result of `DUMP` under a key, and replaces what is there.
    pub(crate) fn restore(&mut self, key: &str, dumped: &[u8], ttl: Duration) -> Result<()> {
        cmd("RESTORE")
            .arg(key)
            .arg(ttl.as_millis())
            .arg(dumped)
            .arg("REPLACE")
            .exec(&mut self.connection)
            .context("RESTORE")
    }

    pub(crate) fn acquire(
        &mut self,
        method: LockMethod,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Answer> {
        let ms = ttl.as_millis();
        let command = match method {
            LockMethod::Module => cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(ms).take(),
            LockMethod::SetNx => cmd("SET").arg(key).arg(token).arg("NX").arg("PX").arg(ms).take(),
        };
        self.ask(&command, key, token, ttl).with_context(|| format!("{method:?}: acquire {key}"))
    }

    /// Acquires a lock as a reader. Without the module, the lock is a set of readers that expires.
    pub(crate) fn share(
        &mut self,
        method: LockMethod,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Answer> {
        const SCRIPT: &str = "
            if redis.call('TYPE', KEYS[1]).ok == 'string' then return false end
            redis.call('SADD', KEYS[1], ARGV[1])
            return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
        let ms = ttl.as_millis();
        let command = match method {
            LockMethod::Module => {
                cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(ms).arg("SHARED").take()
            }
            LockMethod::SetNx => cmd("EVAL").arg(SCRIPT).arg(1).arg(key).arg(token).arg(ms).take(),
        };
        self.ask(&command, key, token, ttl).with_context(|| format!("{method:?}: share {key}"))
    }

    /// Acquires a lock on one of these keys. Without the module, tries one key after the other.
    pub(crate) fn acquire_any(
        &mut self,
        method: LockMethod,
        keys: &[&str],
        token: &str,
        ttl: Duration,
    ) -> Result<Answer> {
        if method == LockMethod::SetNx {
            for key in keys {
                if let granted @ Answer::Granted(_) = self.acquire(method, key, token, ttl)? {
                    return Ok(granted);
                }
            }
            return Ok(Answer::Refused);
        }
        let ms = ttl.as_millis();
        let command = cmd("LOCK.ACQUIREANY").arg(keys.len()).arg(keys).arg(token).arg(ms).take();
        self.ask(&command, "", token, ttl).context("acquire any")
    }

    fn ask(&mut self, command: &Cmd, key: &str, token: &str, ttl: Duration) -> Result<Answer> {
        let sent = Instant::now();
        let answer = command.query::<Value>(&mut self.connection);
        let answered = Instant::now();
        let key = match &answer {
            // LOCK.ACQUIREANY answers with the fence and the granted key.
            Ok(Value::Array(granted)) => match &granted[..] {
                [_, Value::BulkString(key)] => String::from_utf8_lossy(key).into_owned(),
                _ => bail!("an unexpected reply: {granted:?}"),
            },
            _ => key.into(),
        };
        match answer {
            Ok(Value::Nil) => Ok(Answer::Refused),
            Ok(_) => Ok(Answer::Granted(Held { key, token: token.into(), sent, answered, ttl })),
            Err(error) if error.code() == Some("ABSTAIN") => {
                Ok(Answer::Abstains(error.detail().unwrap_or_default().into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Fails if the lock is not granted.
    pub(crate) fn acquire_free(
        &mut self,
        method: LockMethod,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<Held> {
        match self.acquire(method, key, token, ttl)? {
            Answer::Granted(held) => Ok(held),
            other => bail!("the free lock {key} was not granted: {other:?}"),
        }
    }

    /// Returns `None` when the token does not hold the lock any more.
    pub(crate) fn extend(&mut self, method: LockMethod, held: &Held) -> Result<Option<Held>> {
        const SCRIPT: &str = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2])";
        let ms = held.ttl.as_millis();
        let command = match method {
            LockMethod::Module => cmd("LOCK.EXTEND").arg(&held.key).arg(&held.token).arg(ms).take(),
            LockMethod::SetNx => {
                cmd("EVAL").arg(SCRIPT).arg(1).arg(&held.key).arg(&held.token).arg(ms).take()
            }
        };
        let sent = Instant::now();
        let extended = command.query::<Option<u64>>(&mut self.connection).context("extend")?;
        Ok(extended.map(|_| Held { sent, answered: Instant::now(), ..held.clone() }))
    }

    /// Returns whether the token still held the lock.
    pub(crate) fn release(&mut self, method: LockMethod, held: &Held) -> Result<bool> {
        const SCRIPT: &str =
            "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0";
        let command = match method {
            LockMethod::Module => cmd("LOCK.RELEASE").arg(&held.key).arg(&held.token).take(),
            LockMethod::SetNx => {
                cmd("EVAL").arg(SCRIPT).arg(1).arg(&held.key).arg(&held.token).take()
            }
        };
        command.query(&mut self.connection).context("release")
    }

    /// Returns `None` when the lock is not granted by `until`.
    pub(crate) fn acquire_until(
        &mut self,
        method: LockMethod,
        key: &str,
        token: &str,
        ttl: Duration,
        until: Instant,
    ) -> Result<Option<Held>> {
        self.retry_until(until, |node| node.acquire(method, key, token, ttl))
    }

    /// Repeats `attempt` until it is granted. Returns `None` when no attempt is granted by `until`.
    pub(crate) fn retry_until(
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

    pub(crate) fn get(&mut self, key: &str) -> Result<Option<String>> {
        self.call(&["GET", key])
    }

    /// Returns whether the key exists. For eviction, this does not count as a use of the key.
    pub(crate) fn exists(&mut self, key: &str) -> Result<bool> {
        self.call(&["EXISTS", key])
    }

    pub(crate) fn info(&mut self, section: &str, field: &str) -> Result<u64> {
        info(&mut self.connection, section, field)
    }

    pub(crate) fn leases(&mut self) -> Result<u64> {
        self.info("lock", "lock_leases")
    }

    pub(crate) fn is_valkey(&mut self) -> Result<bool> {
        Ok(self.call::<String>(&["INFO", "server"])?.contains("valkey_version:"))
    }

    /// Steps the wall clock, and waits until the server shows the step.
    pub(crate) fn step_clock(&mut self, by_s: i64) -> Result<()> {
        let before = self.time_s()?;
        let began = Instant::now();
        self.master.injectors()?.clock.step_ms(by_s * 1000);
        self.eventually("the server shows the step", |node| {
            let shown = node.time_s()? - before;
            let passed = i64::try_from(began.elapsed().as_secs())?;
            // Whole seconds need a tolerance. It is three seconds: less than any step.
            Ok((shown - passed - by_s).abs() < 3)
        })
    }

    fn time_s(&mut self) -> Result<i64> {
        let [seconds, _us]: [i64; 2] = self.call(&["TIME"])?;
        Ok(seconds)
    }

    /// Starts the server again, with this `lock.rejoin-delay`.
    pub(crate) fn restart(&mut self, rejoin_delay_ms: i64) -> Result<()> {
        self.master.server.set_arg("lock.rejoin-delay", rejoin_delay_ms);
        self.master.restart()?;
        self.connection = self.master.server.try_connection()?;
        Ok(())
    }

    /// Returns how often the server has synced a file.
    pub(crate) fn syncs(&self) -> Result<usize> {
        Ok(self.master.injectors()?.power.syncs())
    }

    /// Fails when `happened` does not return true within [`PATIENCE`].
    pub(crate) fn eventually(
        &mut self,
        what: &str,
        mut happened: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let started = Instant::now();
        while !happened(self)? {
            ensure!(started.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
            std::thread::sleep(CHECK_INTERVAL);
        }
        Ok(())
    }
}

fn command(words: &[&str]) -> Cmd {
    words.iter().fold(Cmd::new(), |mut command, word| command.arg(word).take())
}
