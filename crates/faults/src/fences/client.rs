//! A process that acquires locks until its input ends, and prints a line for each lock.

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
use redis::cmd;
use tokio::runtime;
use tokio::time::sleep;

use super::MAX_TTL;
use crate::harness::{Grant, NodeConnection, now};

/// The subcommand that starts this process.
pub const SUBCOMMAND: &str = "fences-client";

/// Far fewer locks than processes, so that processes compete.
const KEYS: usize = 2;
const TTL_MIN: Duration = Duration::from_millis(400);
/// Time in which a healthy node answers while a dozen programs share two processors.
const NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest work under a lock: short, so that there are many locks to compare.
const WORK_MAX: Duration = Duration::from_millis(4);

#[derive(Clone, Debug, clap::Args)]
pub struct ClientArgs {
    /// Seed of all random numbers
    #[arg(long)]
    pub(super) seed: u64,
    /// Uses the largest fence of its grants, without agreement
    #[arg(long)]
    pub(super) without_agreement: bool,
    /// The addresses of the nodes
    pub(super) urls: Vec<String>,
}

impl ClientArgs {
    /// Returns the arguments that parse to `self`.
    pub(super) fn args(&self) -> Vec<String> {
        let mut args = vec![format!("--seed={}", self.seed)];
        args.extend(self.without_agreement.then(|| "--without-agreement".into()));
        args.extend_from_slice(&self.urls);
        args
    }

    /// # Errors
    /// When the client cannot connect, or its output is closed.
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
        runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(lock_with_agreement(&self.urls, rng, &stop))
    }
}

async fn lock_with_agreement(urls: &[String], mut rng: StdRng, stop: &AtomicBool) -> Result<()> {
    let quorum = Quorum::connect(urls).await?;
    while !stop.load(Ordering::Relaxed) {
        let key = rng.random_range(0..KEYS);
        let ttl = rng.random_range(TTL_MIN..=MAX_TTL);
        let lock =
            quorum.lock(name(key)).ttl(ttl).node_timeout(NODE_TIMEOUT).min_validity(ttl / 10);
        match lock.wait(rng.random_range(Duration::ZERO..=ttl)).acquire().await {
            Ok(lock) => hold(key, lock, &mut rng).await?,
            // Held by another client, or no majority votes.
            Err(_) => sleep(rng.random_range(Duration::ZERO..=WORK_MAX)).await,
        }
    }
    // After `MAX_TTL`, all locks have ended, even those with an unconfirmed release.
    let _ = quorum.flush(MAX_TTL).await;
    Ok(())
}

async fn hold(key: usize, mut lock: Lock, rng: &mut StdRng) -> Result<()> {
    let from = now();
    // Checked after `from` was read, so that the lock was certainly held at `from`.
    if lock.remaining().is_zero() {
        return Ok(());
    }
    report(key, from, lock.fence().get())?;
    sleep(rng.random_range(Duration::ZERO..=WORK_MAX)).await;
    match rng.random_range(0..200) {
        // As if the client died: all others wait for the lock's deadline.
        0 => std::mem::forget(lock),
        1..20 => drop(lock),
        // An unconfirmed release continues in the background, so the result does not matter.
        20..30 => {
            let _ = lock.extend().await;
            let _ = lock.release().await;
        }
        _ => drop(lock.release().await),
    }
    Ok(())
}

/// Acquires each lock on a majority, without agreement on its fence.
fn lock_without_agreement(urls: &[String], mut rng: StdRng, stop: &AtomicBool) -> Result<()> {
    let mut nodes = NodeConnection::all(urls, NODE_TIMEOUT)?;
    while !stop.load(Ordering::Relaxed) {
        let key = rng.random_range(0..KEYS);
        let (key_name, token) = (name(key), rng.random::<u128>().to_string());
        let wall_us = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?;
        let sent = now();
        // In random order, so that chance decides which nodes form the majority.
        nodes.shuffle(&mut rng);
        let mut grants = Vec::new();
        for node in &mut nodes {
            let acquire = cmd("LOCK.ACQUIRE")
                .arg(&key_name)
                .arg(&token)
                .arg(MAX_TTL.as_millis())
                .arg("FENCE")
                .arg(wall_us)
                .take();
            grants.extend(node.call::<Option<u64>>(&acquire).ok().flatten());
            if grants.len() > urls.len() / 2 {
                break;
            }
        }
        let from = now();
        if let Some(&fence) = grants.iter().max()
            && grants.len() > urls.len() / 2
            && from.saturating_sub(sent) < MAX_TTL / 2
        {
            report(key, from, fence)?;
        }
        thread::sleep(rng.random_range(Duration::ZERO..=WORK_MAX));
        for node in &mut nodes {
            let _ = node.call::<u64>(cmd("LOCK.RELEASE").arg(&key_name).arg(&token));
        }
    }
    Ok(())
}

fn name(key: usize) -> String {
    format!("lock {key}")
}

fn report(key: usize, from: Duration, fence: u64) -> io::Result<()> {
    let grant = Grant { key: name(key), client: std::process::id(), from, to: from, fence };
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{grant}")?;
    stdout.flush()
}
