use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use quorlock_client::{ExtendError, Lock, Quorum};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::cluster::MAX_TTL;
use super::history::History;

/// Clients that share their connections.
const CLIENTS_PER_GROUP: usize = 4;
/// Fewer locks than clients, so that they meet.
const KEYS: usize = 4;
const TTL_MIN: Duration = Duration::from_millis(200);
/// On a machine where a dozen programs share two processors, a master that is well may need that long.
const NODE_LIMIT: Duration = Duration::from_millis(60);

/// What the clients have done.
#[derive(Default)]
pub(super) struct Counts {
    grants: AtomicU64,
    extends: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    pub(super) fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    pub(super) fn extends(&self) -> u64 {
        self.extends.load(Ordering::Relaxed)
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// What the clients share with those who watch them.
pub(super) struct Shared {
    pub(super) history: History,
    pub(super) counts: Counts,
    /// They are to finish what they do.
    pub(super) stop: AtomicBool,
}

/// Some clients for each group of addresses, until they are told to stop.
pub(super) async fn run(seed: u64, groups: Vec<Vec<String>>, shared: &Arc<Shared>) -> Result<()> {
    let mut quorums = Vec::new();
    let mut clients = JoinSet::new();
    for urls in groups {
        let quorum = Quorum::connect(urls).await?;
        for _ in 0..CLIENTS_PER_GROUP {
            let id = clients.len();
            // Each has random numbers of its own, so that none depends on what the others come to.
            let rng = StdRng::seed_from_u64(seed ^ (id as u64 + 1) << 32);
            let client = Client { id, rng, quorum: quorum.clone(), shared: Arc::clone(shared) };
            clients.spawn(client.run());
        }
        quorums.push(quorum);
    }
    while let Some(ended) = clients.join_next().await {
        ended?;
    }
    for quorum in quorums {
        // What is still being released has ended by then.
        let _ = quorum.flush(MAX_TTL).await;
    }
    Ok(())
}

struct Client {
    id: usize,
    rng: StdRng,
    quorum: Quorum,
    shared: Arc<Shared>,
}

impl Client {
    async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let key = format!("lock {}", self.rng.random_range(0..KEYS));
            let ttl = self.up_to(TTL_MIN, MAX_TTL);
            let wanted = self.quorum.lock(&key).ttl(ttl).node_timeout(NODE_LIMIT).min_validity(ttl / 10);
            match wanted.wait(self.up_to(Duration::ZERO, ttl)).acquire().await {
                Ok(lock) => self.hold(&key, lock, ttl).await,
                // Held by another, or no majority votes: one goes on to another lock.
                Err(_) => sleep(self.up_to(Duration::ZERO, Duration::from_millis(20))).await,
            }
        }
    }

    async fn hold(&mut self, key: &str, mut lock: Lock, ttl: Duration) {
        let from = Instant::now();
        let mut until = held_until(&lock);
        let fence = lock.fence().get();
        self.shared.counts.grants.fetch_add(1, Ordering::Relaxed);
        self.shared.history.grant();

        // Most work is short, and some outlives its lock.
        while self.rng.random_bool(0.6) {
            sleep(self.up_to(Duration::ZERO, ttl / 3)).await;
            match lock.extend().await {
                Ok(()) => {
                    self.shared.counts.extends.fetch_add(1, Ordering::Relaxed);
                    until = held_until(&lock);
                }
                Err(ExtendError::Lost { .. }) => {
                    if Instant::now() < until {
                        self.shared.counts.lost.fetch_add(1, Ordering::Relaxed);
                    }
                    break;
                }
                // It is held as long as before.
                Err(_) => {}
            }
        }
        sleep(self.up_to(Duration::ZERO, ttl / 4)).await;
        self.shared.history.held(key, self.id, fence, from, until.min(Instant::now()));
        match self.rng.random_range(0..10) {
            // As a client that dies.
            0 => std::mem::forget(lock),
            1..=2 => drop(lock),
            // That nobody confirms it is none of our business: it goes on, and the lock ends.
            _ => drop(lock.release().await),
        }
    }

    fn up_to(&mut self, min: Duration, max: Duration) -> Duration {
        self.rng.random_range(min..=max)
    }
}

/// Looked at before the lock is asked, so that it is never later than the lock says.
fn held_until(lock: &Lock) -> Instant {
    let now = Instant::now();
    now + lock.remaining()
}
