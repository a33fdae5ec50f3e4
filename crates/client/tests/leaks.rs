//! Calls and locks that are dropped, cancelled or cut off at any moment leave nothing behind: no
//! key after the largest ttl, no task, no file descriptor, no waiter in a queue.
//!
//! `cargo test` runs this test for some seconds, and `make test-leaks` for a million calls.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use quorlock_client::{Lock, Quorum};
use quorlock_testkit::{Accident, Direction, Disk, Fleet, Incident, eventually_async, info};
use rand::rngs::StdRng;
use rand::{Rng, RngExt as _};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const NODES: usize = 5;
const WORKERS: usize = 64;
const KEYS: u32 = 256;
const TTL_MAX: Duration = Duration::from_secs(2);
const DEFAULT_DURATION: Duration = Duration::from_secs(6);
/// The time limit for an action that is due at once, on a busy machine. Every accident is shorter.
const SLACK: Duration = Duration::from_secs(20);

/// The calls and the locks so far, and whether the workers and the accidents stop.
#[derive(Default)]
struct Goal {
    acquires: AtomicU64,
    acquired: AtomicU64,
    is_reached: AtomicBool,
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn random_time(rng: &mut impl Rng, at_most_ms: u64) -> Duration {
    Duration::from_micros(rng.random_range(0..=at_most_ms * 1000))
}

/// One worker: acquires locks, cancels some of its calls, and ends each lock in a random way.
async fn work(quorum: Quorum, goal: Arc<Goal>) {
    let mut rng: StdRng = rand::make_rng();
    while !goal.is_reached.load(Ordering::Relaxed) {
        goal.acquires.fetch_add(1, Ordering::Relaxed);
        let key = format!("k{}", rng.random_range(0..KEYS));
        let ttl = TTL_MAX.mul_f64(rng.random_range(0.1..=1.0));
        let builder = quorum.lock(key).ttl(ttl).wait(random_time(&mut rng, 30));
        let patience =
            if rng.random_ratio(1, 3) { random_time(&mut rng, 5) } else { Duration::from_secs(60) };
        if rng.random_ratio(1, 20) {
            let time = random_time(&mut rng, 5);
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
            let patience = random_time(&mut rng, 5);
            let how = rng.random_range(0..10);
            let _ = timeout(patience, end(lock, how, &quorum)).await;
        }
    }
}

/// Ends the lock in the way with the number `how`, from 0 to 9.
async fn end(mut lock: Lock, how: u32, quorum: &Quorum) {
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
            let detached = lock.detach();
            drop(quorum.attach(detached).await);
        }
        // No process attaches the lock, so it ends by its deadline.
        _ => drop(lock.detach()),
    }
}

/// Injects accidents into a minority at a time until `stop` is set. Returns their number.
fn harm(fleet: &mut Fleet, stop: &AtomicBool) -> usize {
    let mut rng = rand::rng();
    let mut injected = 0;
    while !stop.load(Ordering::Relaxed) {
        let lasts = random_time(&mut rng, 300);
        for victim in rand::seq::index::sample(&mut rng, NODES, 2) {
            let accident = match rng.random_range(0..6) {
                0 => Accident::Kill(Disk::Kept),
                1 => Accident::Cut,
                2 => Accident::Hold(Direction::ToClient),
                3 => Accident::Hold(Direction::ToServer),
                4 => Accident::Drop(Direction::ToClient),
                _ => Accident::Delay(Direction::ToServer, random_time(&mut rng, 60)),
            };
            let incident = Incident { accident, nodes: vec![victim], network: 0, duration: SLACK };
            injected += fleet.inject(incident).unwrap();
        }
        thread::sleep(lasts);
        fleet.recover_all().unwrap();
        thread::sleep(random_time(&mut rng, 300));
    }
    injected
}

fn sum(fleet: &Fleet, count: impl Fn(&mut redis::Connection) -> u64) -> u64 {
    fleet.nodes.iter().map(|node| count(&mut node.server.connection())).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_dropped_cancelled_or_cut_off_at_any_moment_leaves_nothing() {
    let mut fleet = Fleet::start(NODES, 1, |_, builder| builder.tcp()).unwrap();
    let (descriptors_before, tasks_before) =
        (descriptors(), Handle::current().metrics().num_alive_tasks());

    let quorum = Quorum::connect(fleet.urls(0)).await.unwrap();
    let goal = Arc::new(Goal::default());
    let workers: JoinSet<_> =
        (0..WORKERS).map(|_| work(quorum.clone(), Arc::clone(&goal))).collect();
    let harming = tokio::task::spawn_blocking({
        let goal = Arc::clone(&goal);
        move || {
            let injected = harm(&mut fleet, &goal.is_reached);
            (fleet, injected)
        }
    });
    match std::env::var("QUORLOCK_LEAKS_ACQUIRES") {
        Ok(enough) => {
            let enough = enough.parse().unwrap();
            while goal.acquires.load(Ordering::Relaxed) < enough {
                sleep(Duration::from_millis(10)).await;
            }
        }
        Err(_) => sleep(DEFAULT_DURATION).await,
    }
    goal.is_reached.store(true, Ordering::Relaxed);
    workers.join_all().await;
    let (fleet, injected) = harming.await.unwrap();
    let acquires = goal.acquires.load(Ordering::Relaxed);
    let locks = goal.acquired.load(Ordering::Relaxed);
    println!("{acquires} calls, {locks} locks, {injected} accidents");
    assert!(locks > 100 && injected > 5, "too few: {locks} locks, {injected} accidents");

    quorum.flush(common::PATIENCE).await.unwrap();
    drop(quorum);
    eventually_async(TTL_MAX + SLACK, "no key is left", async || {
        sum(&fleet, |node| redis::cmd("DBSIZE").query(node).unwrap()) == 0
    })
    .await;
    eventually_async(SLACK, "no client waits", async || {
        sum(&fleet, |node| info(node, "lock", "lock_waiters").unwrap()) == 0
    })
    .await;
    eventually_async(SLACK, "no task is left", async || {
        Handle::current().metrics().num_alive_tasks() <= tasks_before
    })
    .await;
    eventually_async(SLACK, "no connection is left", async || {
        fleet.nodes.iter().all(|node| node.networks[0].connections() == 0)
    })
    .await;
    eventually_async(SLACK, "no file descriptor is left", async || {
        descriptors() <= descriptors_before
    })
    .await;
}
