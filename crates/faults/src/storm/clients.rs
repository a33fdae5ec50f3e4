use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use quorlock_client::{AcquireError, ExtendError, Lock, LockBuilder, Quorum};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Counts, Kind, MAX_TTL, PERMITS, Plan, READERS, WRITERS};
use crate::history::{Hold, Mode, now};

/// Time in which a healthy node answers while a dozen programs share two processors.
const NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// No wait in an orderly run takes so long.
const ORDERLY_WAIT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct RunState(Mutex<Record>);

/// What happened to the nodes, and what the clients saw.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Whether the clients have to stop.
    pub(super) is_over: bool,
    /// When the accidents began, by the clock of [`now`].
    pub(super) began: Duration,
    pub accidents: Counts,
    /// For each node: the rate of locks without it, as a fraction of the rate with all nodes.
    /// Empty unless the course is `OneDown` or `OnePaused`.
    pub without_one: Vec<f64>,
    pub holds: Vec<Hold>,
    /// How long writers and clients of the semaphore waited, from the call to the lock.
    pub(super) waits: Vec<Duration>,
    /// Calls that ended without a lock, by reason.
    pub failed_calls: Counts,
    pub(super) lost_early: usize,
}

impl RunState {
    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a hold, unless it is empty: its client knew of the lock only when the lock might
    /// have ended.
    pub(super) fn add(&self, hold: Hold) {
        if hold.from < hold.to {
            self.record().holds.push(hold);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Reader,
    Writer,
    Permit,
}

/// What clients do with a lock. Times are the longest ones.
struct Habits {
    /// Number of keys. There are fewer keys than clients, so that clients compete.
    keys: usize,
    work: Duration,
    /// The fraction of holders that work for up to [`MAX_TTL`], some for longer than the lock
    /// lasts.
    long_work: f64,
    /// The fraction of holders that extend the lock, and work again.
    extends: f64,
    /// The fraction of holders that die instead of releasing the lock.
    deaths: f64,
}

impl Kind {
    /// Returns groups of clients. The clients of a group share their connections.
    pub(super) fn groups(self) -> Vec<Vec<Role>> {
        match self {
            Self::Exclusive => vec![vec![Role::Writer; 4]; 2],
            Self::Fences => vec![vec![Role::Writer]; 8],
            Self::Shared => {
                [vec![vec![Role::Reader; 4]; READERS / 4], vec![vec![Role::Writer]; WRITERS]]
                    .concat()
            }
            Self::Permits => vec![vec![Role::Permit]; 4 * PERMITS],
        }
    }

    const fn habits(self) -> Habits {
        // Short work lets clients hold many locks, and long work lets accidents happen meanwhile.
        let short = Duration::from_millis(10);
        match self {
            Self::Exclusive => {
                let work = Duration::from_millis(400);
                Habits { keys: 4, work, long_work: 0.05, extends: 0.8, deaths: 0.05 }
            }
            Self::Fences => {
                Habits { keys: 2, work: short, long_work: 0.0, extends: 0.05, deaths: 0.005 }
            }
            Self::Shared | Self::Permits => {
                Habits { keys: 1, work: short, long_work: 0.05, extends: 0.2, deaths: 0.005 }
            }
        }
    }

    pub(super) fn key(self, rng: &mut StdRng) -> String {
        format!("lock {}", rng.random_range(0..self.habits().keys))
    }
}

/// Each client has a different sequence of random numbers.
pub(super) fn random_of(seed: u64, client: u32) -> StdRng {
    StdRng::seed_from_u64(seed ^ (u64::from(client) + 1) << 32)
}

/// Runs each group of clients in one network until the storm is over. Then waits until all locks
/// have ended, also those whose release was not confirmed, except those of dead clients.
pub(super) fn run(plan: Plan, networks: &[Vec<String>], state: &Arc<RunState>) -> Result<()> {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut quorums = Vec::new();
        let mut clients = JoinSet::new();
        let mut ids = 0..;
        for (urls, roles) in networks.iter().cycle().zip(plan.kind.groups()) {
            let quorum = Quorum::connect(urls).await?;
            for (role, id) in roles.into_iter().zip(&mut ids) {
                let (rng, quorum) = (random_of(plan.seed, id), quorum.clone());
                let state = Arc::clone(state);
                clients.spawn(Client { id, role, plan, rng, quorum, state }.run());
            }
            quorums.push(quorum);
        }
        while let Some(ended) = clients.join_next().await {
            ended?;
        }
        for quorum in quorums {
            let _ = quorum.flush(MAX_TTL).await;
        }
        Ok(())
    })
}

struct Client {
    id: u32,
    role: Role,
    plan: Plan,
    rng: StdRng,
    quorum: Quorum,
    state: Arc<RunState>,
}

impl Client {
    async fn run(mut self) {
        while !self.state.record().is_over {
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
                    self.state.record().failed_calls.add(reason, 1);
                    sleep(self.up_to(Duration::from_millis(10))).await;
                }
            }
        }
    }

    fn builder(&mut self) -> LockBuilder {
        let key = self.plan.kind.key(&mut self.rng);
        let lock = match self.role {
            Role::Reader => self.quorum.lock(key).shared(),
            Role::Writer => self.quorum.lock(key),
            Role::Permit => self.quorum.semaphore(key, PERMITS),
        };
        let ttl = self.rng.random_range(MAX_TTL / 2..=MAX_TTL);
        let lock = lock.ttl(ttl).node_timeout(NODE_TIMEOUT).min_validity(ttl / 10);
        lock.wait(if self.plan.is_orderly() { ORDERLY_WAIT } else { self.up_to(4 * ttl) })
    }

    async fn hold(&mut self, mut lock: Lock, asked: Duration) {
        // `until` is read before `from`. A lock that has ended has no time left, so its `until` is
        // not after `from`.
        let mut until = held_until(&lock);
        let from = now();
        if self.role != Role::Reader {
            self.state.record().waits.push(from.saturating_sub(asked));
        }
        let Habits { extends, deaths, .. } = self.plan.kind.habits();
        let is_orderly = self.plan.is_orderly();
        self.work().await;
        while !is_orderly && self.rng.random_bool(extends) {
            match lock.extend().await {
                Ok(()) => until = held_until(&lock),
                Err(ExtendError::Lost { .. }) => {
                    self.state.record().lost_early += usize::from(now() < until);
                    break;
                }
                // The validity is the same as before.
                Err(_) => {}
            }
            self.work().await;
        }
        let mode = if self.role == Role::Reader { Mode::Shared } else { Mode::Exclusive };
        let mut to = until.min(now());
        self.add(&lock, mode, from, to);
        if self.plan.kind == Kind::Shared && self.role == Role::Writer && self.rng.random_bool(0.5)
        {
            if lock.downgrade().await.is_ok() {
                until = held_until(&lock);
            }
            self.work().await;
            let from = to;
            to = until.min(now());
            self.add(&lock, Mode::Downgraded, from, to);
        }
        // An unconfirmed release continues in the background, so the result does not matter.
        let ending = self.rng.random_range(0.0..1.0);
        if !is_orderly && ending < deaths {
            // All others wait for the lock's deadline.
            std::mem::forget(lock);
        } else if ending < deaths + 0.1 {
            drop(lock);
        } else {
            drop(lock.release().await);
        }
    }

    fn add(&self, lock: &Lock, mode: Mode, from: Duration, to: Duration) {
        let key = String::from_utf8_lossy(lock.key()).into_owned();
        let (client, fence) = (self.id, lock.fence().get());
        self.state.add(Hold { key, mode, client, from, to, fence });
    }

    async fn work(&mut self) {
        let Habits { work, long_work, .. } = self.plan.kind.habits();
        let is_long = !self.plan.is_orderly() && self.rng.random_bool(long_work);
        sleep(self.up_to(if is_long { MAX_TTL } else { work })).await;
    }

    fn up_to(&mut self, max: Duration) -> Duration {
        self.rng.random_range(Duration::ZERO..=max)
    }
}

/// Returns the end of the lock's validity, by the clock of [`now`].
fn held_until(lock: &Lock) -> Duration {
    // The clock is read first, so that the result is not after the end of the validity.
    let now = now();
    now + lock.remaining()
}

#[cfg(test)]
mod tests {
    use quorlock_testkit::{Server, eventually_async};

    use super::*;

    #[tokio::test]
    async fn hold_of_a_lost_lock_is_not_recorded() {
        let server = Server::with_module().start().unwrap();
        let quorum = Quorum::connect([server.url()]).await.unwrap();
        let lock = quorum.lock("k").ttl(Duration::from_secs(1)).acquire().await.unwrap();
        let state = RunState::default();
        let holds_recorded_with = |to: Duration| {
            let (key, mode, from) = ("k".into(), Mode::Exclusive, now());
            state.add(Hold { key, mode, client: 1, from, to, fence: 1 });
            state.record().holds.len()
        };
        assert_eq!(holds_recorded_with(held_until(&lock)), 1);
        let limit = Duration::from_secs(10);
        eventually_async(limit, "the lock has ended", async || lock.remaining().is_zero()).await;
        assert_eq!(holds_recorded_with(held_until(&lock)), 1);
    }
}
