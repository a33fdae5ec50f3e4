//! A process that takes locks and tells of it, one line for each, until its input ends.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use quorlock_client::{Lock, Quorum};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use redis::{Client, Cmd, Connection, FromRedisValue, RedisResult, cmd};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime;
use tokio::time::sleep;

use super::MAX_TTL;
use super::account::Grant;

/// The subcommand of a process that takes locks.
pub const NAME: &str = "fences-client";

/// Far fewer locks than processes, so that they meet.
const KEYS: usize = 2;
const TTL_MIN: Duration = Duration::from_millis(400);
/// On a machine where a dozen programs share two processors, a master that is well may need that long.
const NODE_LIMIT: Duration = Duration::from_millis(100);
/// Most work is short, or there would be few locks to look at.
const WORK_MAX: Duration = Duration::from_millis(4);

/// What such a process does. Also its command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Behaviour {
    /// Decides what it does
    #[arg(long)]
    pub(super) seed: u64,
    /// Takes the largest fence that the nodes gave it
    #[arg(long)]
    pub(super) without_agreement: bool,
    /// The nodes
    pub(super) urls: Vec<String>,
}

impl Behaviour {
    /// The arguments that make this.
    pub(super) fn args(&self) -> Vec<String> {
        let mut args = vec![format!("--seed={}", self.seed)];
        args.extend(self.without_agreement.then(|| "--without-agreement".into()));
        args.extend_from_slice(&self.urls);
        args
    }

    /// The whole life of such a process.
    ///
    /// # Errors
    /// When it cannot begin, or nobody listens to it any more.
    pub fn run(&self) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            stopped.store(true, Ordering::Relaxed);
        });
        let rng = StdRng::seed_from_u64(self.seed);
        if self.without_agreement {
            return lock_without_agreement(&self.urls, rng, &stop);
        }
        runtime::Builder::new_current_thread().enable_all().build()?.block_on(lock(&self.urls, rng, &stop))
    }
}

async fn lock(urls: &[String], mut rng: StdRng, stop: &AtomicBool) -> Result<()> {
    let quorum = Quorum::connect(urls).await?;
    while !stop.load(Ordering::Relaxed) {
        let key = rng.random_range(0..KEYS);
        let ttl = rng.random_range(TTL_MIN..=MAX_TTL);
        let wanted = quorum.lock(name(key)).ttl(ttl).node_timeout(NODE_LIMIT).min_validity(ttl / 10);
        let wanted = wanted.wait(rng.random_range(Duration::ZERO..=ttl));
        match wanted.acquire().await {
            Ok(lock) => hold(key, lock, &mut rng).await?,
            // Held by another, or no majority votes.
            Err(_) => sleep(rng.random_range(Duration::ZERO..=WORK_MAX)).await,
        }
    }
    // What is still being released has ended by then.
    let _ = quorum.flush(MAX_TTL).await;
    Ok(())
}

async fn hold(key: usize, mut lock: Lock, rng: &mut StdRng) -> Result<()> {
    let reported = now();
    // In this order: it is held when it is reported, whatever came between.
    if lock.remaining().is_zero() {
        return Ok(());
    }
    tell(Grant { key, reported, fence: lock.fence().get() })?;
    sleep(rng.random_range(Duration::ZERO..=WORK_MAX)).await;
    match rng.random_range(0..200) {
        // As a client that dies. Everybody waits for that one.
        0 => std::mem::forget(lock),
        1..20 => drop(lock),
        // That nobody confirms it is none of our business: it goes on, and the lock ends.
        20..30 => {
            let _ = lock.extend().await;
            let _ = lock.release().await;
        }
        _ => drop(lock.release().await),
    }
    Ok(())
}

/// A majority of the nodes must grant, and that is all.
fn lock_without_agreement(urls: &[String], mut rng: StdRng, stop: &AtomicBool) -> Result<()> {
    let mut nodes = urls.iter().map(|url| Plain::new(url)).collect::<RedisResult<Vec<_>>>()?;
    let ttl_ms = u64::try_from(MAX_TTL.as_millis())?;
    while !stop.load(Ordering::Relaxed) {
        let key = rng.random_range(0..KEYS);
        let (key_name, token) = (name(key), rng.random::<u128>().to_string());
        let wall_us = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?;
        let sent = now();
        // One after the other, so that it is up to chance which of them make the majority.
        nodes.shuffle(&mut rng);
        let mut grants = Vec::new();
        for node in &mut nodes {
            let acquire =
                cmd("LOCK.ACQUIRE").arg(&key_name).arg(&token).arg(ttl_ms).arg("FENCE").arg(wall_us).take();
            grants.extend(node.call::<Option<u64>>(&acquire).ok().flatten());
            if grants.len() > urls.len() / 2 {
                break;
            }
        }
        let reported = now();
        if let Some(&fence) = grants.iter().max()
            && grants.len() > urls.len() / 2
            && reported.saturating_sub(sent) < MAX_TTL / 2
        {
            tell(Grant { key, reported, fence })?;
        }
        thread::sleep(rng.random_range(Duration::ZERO..=WORK_MAX));
        for node in &mut nodes {
            let _ = node.call::<u64>(cmd("LOCK.RELEASE").arg(&key_name).arg(&token));
        }
    }
    Ok(())
}

/// A connection that is made again when it is needed.
struct Plain {
    client: Client,
    connection: Option<Connection>,
}

impl Plain {
    fn new(url: &str) -> RedisResult<Self> {
        Ok(Self { client: Client::open(url)?, connection: None })
    }

    fn call<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.client.get_connection_with_timeout(NODE_LIMIT)?,
        };
        connection.set_read_timeout(Some(NODE_LIMIT))?;
        let answer = command.query(&mut connection);
        // After a timeout, the answer to this would be taken for the next one's.
        if !answer.as_ref().is_err_and(|error: &redis::RedisError| error.is_io_error()) {
            self.connection = Some(connection);
        }
        answer
    }
}

fn name(key: usize) -> String {
    format!("lock {key}")
}

/// The one clock that all processes share.
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn tell(grant: Grant) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{grant}")?;
    stdout.flush()
}
