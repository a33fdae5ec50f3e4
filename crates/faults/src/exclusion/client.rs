use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use quorlock_client::{ExtendError, Lock, Quorum};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::MAX_TTL;
use crate::harness::{Grant, History, held_span, held_until, now, random_of, run_clients};

/// These clients share their connections.
const CLIENTS_PER_NETWORK: usize = 4;
/// Fewer locks than clients, so that clients compete.
const KEYS: usize = 4;
const TTL_MIN: Duration = Duration::from_millis(200);
/// Time in which a healthy node answers while a dozen programs share two processors.
const NODE_TIMEOUT: Duration = Duration::from_millis(60);

#[derive(Default)]
pub(super) struct RunState {
    pub(super) history: History,
    pub(super) grants: AtomicU64,
    pub(super) extends: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) stop: AtomicBool,
}

/// Runs clients in each network until `shared.stop` is set.
pub(super) fn run(seed: u64, networks: &[Vec<String>], shared: &Arc<RunState>) -> Result<()> {
    let groups = networks.iter().map(|urls| (urls, vec![(); CLIENTS_PER_NETWORK]));
    run_clients(groups, MAX_TTL, |id, (), quorum| {
        Client { id, rng: random_of(seed, id), quorum, shared: Arc::clone(shared) }.run()
    })
}

struct Client {
    id: u32,
    rng: StdRng,
    quorum: Quorum,
    shared: Arc<RunState>,
}

impl Client {
    async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let key = format!("lock {}", self.rng.random_range(0..KEYS));
            let ttl = self.time_between(TTL_MIN, MAX_TTL);
            let lock =
                self.quorum.lock(&key).ttl(ttl).node_timeout(NODE_TIMEOUT).min_validity(ttl / 10);
            match lock.wait(self.time_between(Duration::ZERO, ttl)).acquire().await {
                Ok(lock) => self.hold(key, lock, ttl).await,
                // Held by another client, or no majority votes: the client draws a lock again.
                Err(_) => sleep(self.time_between(Duration::ZERO, Duration::from_millis(20))).await,
            }
        }
    }

    async fn hold(&mut self, key: String, mut lock: Lock, ttl: Duration) {
        let Some((from, mut until)) = held_span(&lock) else { return };
        let fence = lock.fence().get();
        self.shared.grants.fetch_add(1, Ordering::Relaxed);

        // Most clients work for a short time, and some for longer than the ttl.
        while self.rng.random_bool(0.6) {
            sleep(self.time_between(Duration::ZERO, ttl / 3)).await;
            match lock.extend().await {
                Ok(()) => {
                    self.shared.extends.fetch_add(1, Ordering::Relaxed);
                    until = held_until(&lock);
                }
                Err(ExtendError::Lost { .. }) => {
                    if now() < until {
                        self.shared.lost.fetch_add(1, Ordering::Relaxed);
                    }
                    break;
                }
                // The validity is the same as before.
                Err(_) => {}
            }
        }
        sleep(self.time_between(Duration::ZERO, ttl / 4)).await;
        self.shared.history.add(Grant { key, client: self.id, from, to: until.min(now()), fence });
        match self.rng.random_range(0..10) {
            // As if the client died: all others wait for the lock's deadline.
            0 => std::mem::forget(lock),
            1..=2 => drop(lock),
            // An unconfirmed release continues in the background, so the result does not matter.
            _ => drop(lock.release().await),
        }
    }

    fn time_between(&mut self, min: Duration, max: Duration) -> Duration {
        self.rng.random_range(min..=max)
    }
}
