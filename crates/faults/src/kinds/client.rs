use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use quorlock_client::{AcquireError, Lock, LockBuilder, Quorum};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::history::{Hold, Mode};
use super::{Course, KEY, Kind, MAX_TTL, PERMITS, Plan, READERS, SEMAPHORE_CLIENTS, WRITERS};
use crate::harness::{Grant, held_span, held_until, now, random_of, run_clients};

/// These readers share their connections.
const READERS_PER_QUORUM: usize = 4;
const TTL_MIN: Duration = Duration::from_millis(400);
/// Time in which a healthy node answers while a dozen programs share two processors.
const NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest work of most holders: short, so that there are many holds to compare.
const WORK_MAX: Duration = Duration::from_millis(10);
/// The fraction of holders that work for much longer, some of them longer than their locks last.
const LONG_WORK: f64 = 0.05;
/// The fraction of holders that die instead of releasing the lock.
const DEATHS: f64 = 0.005;
/// The fraction of writers that become readers.
const DOWNGRADES: f64 = 0.25;
/// No wait in an orderly run takes so long.
const ORDERLY_WAIT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct RunState {
    pub(super) record: Mutex<Record>,
    pub(super) stop: AtomicBool,
}

/// What the clients saw.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) holds: Vec<Hold>,
    /// How long writers and clients of the semaphore waited, from the call to the lock.
    pub(super) waits: Vec<Duration>,
    /// Number of calls that ended without a lock, by reason.
    pub(super) failed_calls: BTreeMap<&'static str, usize>,
}

impl RunState {
    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Reader,
    Writer,
    Semaphore,
}

/// Runs each client of the plan in one network until `state.stop` is set.
pub(super) fn run(plan: Plan, networks: &[Vec<String>], state: &Arc<RunState>) -> Result<()> {
    let roles = match plan.kind {
        Kind::Shared => [
            vec![vec![Role::Reader; READERS_PER_QUORUM]; READERS / READERS_PER_QUORUM],
            vec![vec![Role::Writer]; WRITERS],
        ]
        .concat(),
        Kind::Semaphore => vec![vec![Role::Semaphore]; SEMAPHORE_CLIENTS],
    };
    let orderly = plan.course != Course::Accidents;
    run_clients(networks.iter().cycle().zip(roles), MAX_TTL, |id, role, quorum| {
        let (rng, state) = (random_of(plan.seed, id), Arc::clone(state));
        Client { id, role, rng, quorum, state, orderly }.run()
    })
}

struct Client {
    id: u32,
    role: Role,
    rng: StdRng,
    quorum: Quorum,
    state: Arc<RunState>,
    /// Whether all clients work for a short time, release their locks, and wait for as long as
    /// necessary.
    orderly: bool,
}

impl Client {
    async fn run(mut self) {
        while !self.state.is_over() {
            let asked = now();
            match self.builder().acquire().await {
                Ok(lock) => self.hold(lock, asked).await,
                Err(error) => {
                    let reason = match error {
                        AcquireError::Held { .. } | AcquireError::TimedOut { .. } => "held",
                        AcquireError::NoQuorum { .. } => "no quorum",
                        AcquireError::InsufficientValidity { .. } => "too late",
                        _ => "invalid",
                    };
                    *self.state.record().failed_calls.entry(reason).or_default() += 1;
                    sleep(self.up_to(WORK_MAX)).await;
                }
            }
        }
    }

    fn builder(&mut self) -> LockBuilder {
        let lock = match self.role {
            Role::Reader => self.quorum.lock(KEY).shared(),
            Role::Writer => self.quorum.lock(KEY),
            Role::Semaphore => self.quorum.semaphore(KEY, PERMITS),
        };
        let ttl = self.rng.random_range(TTL_MIN..=MAX_TTL);
        let lock = lock.ttl(ttl).node_timeout(NODE_TIMEOUT).min_validity(ttl / 10);
        lock.wait(if self.orderly { ORDERLY_WAIT } else { self.up_to(2 * ttl) })
    }

    async fn hold(&mut self, mut lock: Lock, asked: Duration) {
        let Some((from, mut until)) = held_span(&lock) else { return };
        if self.role != Role::Reader {
            self.state.record().waits.push(from.saturating_sub(asked));
        }
        self.work().await;
        if !self.orderly && self.rng.random_bool(0.2) {
            if lock.extend().await.is_ok() {
                until = held_until(&lock);
            }
            self.work().await;
        }
        let mode = if self.role == Role::Reader { Mode::Shared } else { Mode::Exclusive };
        let mut to = until.min(now());
        self.add(&lock, mode, from, to);
        if self.role == Role::Writer && self.rng.random_bool(DOWNGRADES) {
            if lock.downgrade().await.is_ok() {
                until = held_until(&lock);
            }
            self.work().await;
            let from = to;
            to = until.min(now());
            self.add(&lock, Mode::Downgraded, from, to);
        }
        // An unconfirmed release continues in the background, so the result does not matter.
        match self.rng.random_range(0.0..1.0) {
            // As if the client died: its leases last until their deadlines.
            ..DEATHS if !self.orderly => std::mem::forget(lock),
            ..0.1 => drop(lock),
            _ => drop(lock.release().await),
        }
    }

    fn add(&self, lock: &Lock, mode: Mode, from: Duration, to: Duration) {
        let key = String::from_utf8_lossy(lock.key()).into_owned();
        let grant = Grant { key, client: self.id, from, to, fence: lock.fence().get() };
        self.state.record().holds.push(Hold { mode, grant });
    }

    async fn work(&mut self) {
        let is_long = !self.orderly && self.rng.random_bool(LONG_WORK);
        sleep(self.up_to(if is_long { MAX_TTL } else { WORK_MAX })).await;
    }

    fn up_to(&mut self, max: Duration) -> Duration {
        self.rng.random_range(Duration::ZERO..=max)
    }
}
