//! Nothing is left behind, whatever is dropped, cancelled, killed or cut, at any moment: no key after the largest ttl, no
//! task, no file descriptor, no waiter in a queue.
//!
//! `cargo test` runs it for some seconds, and `make test-leaks` for a million acquires.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use quorlock_client::{Lock, Quorum};
use quorlock_testkit::{Direction, Masters, Proxy, eventually_async};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng, RngExt as _};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const NODES: usize = 5;
const WORKERS: usize = 64;
const KEYS: u32 = 256;
const TTL_MAX: Duration = Duration::from_secs(2);
/// The default length of the test.
const BRIEFLY: Duration = Duration::from_secs(6);
/// How long a busy machine may take for an action that is due at once.
const SLACK: Duration = Duration::from_secs(20);

/// When the test ends.
struct Goal {
    acquires: AtomicU64,
    acquired: AtomicU64,
    /// From the environment.
    enough: Option<u64>,
    began: Instant,
}

impl Goal {
    fn is_reached(&self) -> bool {
        match self.enough {
            Some(enough) => self.acquires.load(Ordering::Relaxed) >= enough,
            None => self.began.elapsed() >= BRIEFLY,
        }
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn millis(rng: &mut impl Rng, at_most: u64) -> Duration {
    Duration::from_micros(rng.random_range(0..=at_most * 1000))
}

/// One worker: acquires, and ends the lock in one of many ways.
async fn work(quorum: Quorum, goal: Arc<Goal>) {
    let mut rng: StdRng = rand::make_rng();
    while !goal.is_reached() {
        goal.acquires.fetch_add(1, Ordering::Relaxed);
        let key = format!("k{}", rng.random_range(0..KEYS));
        let ttl = TTL_MAX.mul_f64(rng.random_range(0.1..=1.0));
        let builder = quorum.lock(key).ttl(ttl).wait(millis(&mut rng, 30));
        let patience = if rng.random_ratio(1, 3) { millis(&mut rng, 5) } else { Duration::from_secs(60) };
        if rng.random_ratio(1, 20) {
            let time = millis(&mut rng, 5);
            let _ = timeout(patience, builder.run(async |_| sleep(time).await)).await;
            continue;
        }
        let acquired = if rng.random() {
            timeout(patience, builder.acquire()).await
        } else {
            timeout(patience, builder.try_acquire()).await
        };
        if let Ok(Ok(lock)) = acquired {
            goal.acquired.fetch_add(1, Ordering::Relaxed);
            let patience = millis(&mut rng, 5);
            let how = rng.random_range(0..10);
            let _ = timeout(patience, let_go(lock, how, &quorum)).await;
        }
    }
}

async fn let_go(mut lock: Lock, how: u32, quorum: &Quorum) {
    match how {
        0..3 => drop(lock),
        3..6 => drop(lock.release().await),
        6 => {
            let _ = lock.extend().await;
            let _ = lock.release().await;
        }
        7 => {
            lock.renew();
            sleep(Duration::from_millis(2)).await;
        }
        8 => {
            let handover = lock.detach();
            drop(quorum.attach(handover).await);
        }
        // No process attaches it, so that it ends by its deadline.
        _ => drop(lock.detach()),
    }
}

/// Kills masters and spoils networks, of a minority at a time, until told to stop.
fn harm(mut masters: Masters, proxies: &[Proxy], stop: &AtomicBool) -> (Masters, u64) {
    let mut rng = rand::rng();
    let mut harmed = 0;
    while !stop.load(Ordering::Relaxed) {
        let victims: Vec<_> = (0..NODES).collect::<Vec<_>>().sample(&mut rng, 2).copied().collect();
        for &victim in &victims {
            harmed += 1;
            match rng.random_range(0..6) {
                0 => masters[victim].kill(),
                1 => proxies[victim].cut(),
                2 => proxies[victim].hold(Direction::ToClient),
                3 => proxies[victim].hold(Direction::ToServer),
                4 => proxies[victim].drop_bytes(Direction::ToClient),
                _ => proxies[victim].delay(Direction::ToServer, millis(&mut rng, 60)),
            }
        }
        thread::sleep(millis(&mut rng, 300));
        for victim in victims {
            proxies[victim].heal();
            if !masters[victim].is_running() {
                masters[victim].restart().unwrap();
            }
        }
        thread::sleep(millis(&mut rng, 300));
    }
    (masters, harmed)
}

fn keys(masters: &Masters) -> u64 {
    let count = |master: &quorlock_testkit::Server| {
        redis::cmd("DBSIZE").query::<u64>(&mut master.connection()).unwrap()
    };
    masters.iter().map(count).sum()
}

fn waiters(masters: &Masters) -> u64 {
    let count = |master: &quorlock_testkit::Server| {
        let info: String = redis::cmd("INFO").arg("lock").query(&mut master.connection()).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("lock_waiters:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    masters.iter().map(count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_dropped_cancelled_or_cut_off_at_any_moment_leaves_nothing() {
    let masters = Masters::start_with(NODES, |_, builder| builder.tcp()).unwrap();
    let proxies: Vec<_> = masters.iter().map(|master| Proxy::start(master.url())).collect();
    let (descriptors_before, tasks_before) = (descriptors(), Handle::current().metrics().num_alive_tasks());

    let quorum = Quorum::connect(proxies.iter().map(Proxy::url)).await.unwrap();
    let enough = std::env::var("QUORLOCK_LEAKS_ACQUIRES").ok().map(|n| n.parse().unwrap());
    let goal = Arc::new(Goal {
        acquires: AtomicU64::new(0),
        acquired: AtomicU64::new(0),
        enough,
        began: Instant::now(),
    });
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(quorum.clone(), Arc::clone(&goal)));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let harming = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            let (masters, harmed) = harm(masters, &proxies, &stop);
            (masters, proxies, harmed)
        })
    };
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let (masters, proxies, harmed) = tokio::task::spawn_blocking(|| harming.join().unwrap()).await.unwrap();
    let acquires = goal.acquires.load(Ordering::Relaxed);
    let locks = goal.acquired.load(Ordering::Relaxed);
    println!("{acquires} acquires, of which {locks} locks, and {harmed} times a node was harmed");
    assert!(locks > 100 && harmed > 5, "{locks} locks, {harmed} times harmed: that is no test");

    quorum.flush(common::PATIENCE).await.unwrap();
    drop(quorum);
    eventually_async(TTL_MAX + SLACK, "no key is left", async || keys(&masters) == 0).await;
    eventually_async(SLACK, "nobody waits", async || waiters(&masters) == 0).await;
    eventually_async(SLACK, "no task is left", async || {
        Handle::current().metrics().num_alive_tasks() <= tasks_before
    })
    .await;
    eventually_async(SLACK, "no connection is left", async || {
        proxies.iter().all(|proxy| proxy.connections() == 0)
    })
    .await;
    eventually_async(SLACK, "no file descriptor is left", async || descriptors() <= descriptors_before).await;
}
