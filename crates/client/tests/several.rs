//! Several keys as one lock on a quorum: all of them or none, without deadlock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{PATIENCE, all_hold, connect, holding, nothing_is_left, quorum};
use quorlock_client::{
    AcquireError, Fence, LostError, Ownership, Quorum, Released, RunError, blocking,
};
use quorlock_testkit::{Masters, eventually_async};
use tokio::task::JoinSet;
use tokio::time::timeout;

#[tokio::test]
async fn all_keys_are_held_on_all_masters_until_they_are_released_together() {
    let (masters, quorum) = quorum(3).await;
    let before = quorum.lock("b").acquire().await.unwrap();
    let fence = before.fence();
    before.release().await.unwrap();
    let mut lock = quorum.lock_all(["b", "a", "b"]).acquire().await.unwrap();
    assert!(lock.keys().eq([b"a", b"b"]));
    assert!(lock.fence() > fence);
    all_hold(&masters, "a").await;
    all_hold(&masters, "b").await;
    eventually_async(PATIENCE, "stragglers count", async || lock.coverage().held == 3).await;
    lock.extend().await.unwrap();
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    nothing_is_left(&masters, "a").await;
    nothing_is_left(&masters, "b").await;
}

#[tokio::test]
async fn no_key_is_taken_when_one_is_held() {
    let (masters, quorum) = quorum(3).await;
    let one = quorum.lock("b").acquire().await.unwrap();
    let refused = quorum.lock_all(["a", "b", "c"]).try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    let waited = quorum.lock_all(["c", "b"]).wait(Duration::from_millis(100)).acquire().await;
    assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
    nothing_is_left(&masters, "a").await;
    nothing_is_left(&masters, "c").await;
    let (a, c) = (
        quorum.lock("a").try_acquire().await.unwrap(),
        quorum.lock("c").try_acquire().await.unwrap(),
    );
    one.release().await.unwrap();
    drop((a, c));
}

#[tokio::test]
async fn holders_of_one_key_and_of_several_exclude_each_other() {
    let (_masters, ours) = quorum(3).await;
    let both = ours.lock_all(["a", "b"]).acquire().await.unwrap();
    for key in ["a", "b"] {
        let refused = ours.lock(key).try_acquire().await;
        assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    }
    let fence = both.fence();
    let waiting = tokio::spawn({
        let (one, ours) = (ours.lock("b").wait(PATIENCE), ours.clone());
        async move {
            let one = one.acquire().await.unwrap();
            (one.fence(), one, ours)
        }
    });
    both.release().await.unwrap();
    let (next, one, _ours) = waiting.await.unwrap();
    assert!(next > fence);
    one.release().await.unwrap();
}

#[tokio::test]
async fn waiter_for_several_keys_leaves_the_free_ones_to_others() {
    let (masters, ours) = quorum(3).await;
    let held = ours.lock("b").acquire().await.unwrap();
    let other = ours.clone();
    let waiting =
        tokio::spawn(async move { other.lock_all(["b", "a"]).wait(2 * PATIENCE).acquire().await });
    eventually_async(PATIENCE, "it waits on a server", async || waiters(&masters) == 1).await;
    // Also within one program, and for the holder of a key that another call waits for: otherwise
    // the two calls would wait for each other.
    let a = ours.lock("a").wait(2 * PATIENCE).acquire().await.unwrap();
    assert!(!waiting.is_finished());
    held.release().await.unwrap();
    assert!(!waiting.is_finished());
    let fence = a.fence();
    a.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().fence() > fence);
}

fn waiters(masters: &Masters) -> u64 {
    let on_one = |master: &quorlock_testkit::Server| -> u64 {
        let info: String = redis::cmd("INFO").arg("lock").query(&mut master.connection()).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("lock_waiters:")).unwrap();
        line.trim().parse().unwrap()
    };
    masters.iter().map(on_one).sum()
}

/// The resource behind the locks: the holder inside for each key, and the largest fence that it has
/// seen.
#[derive(Default)]
struct Guarded {
    inside: HashMap<&'static str, (bool, Option<Fence>)>,
}

#[tokio::test]
async fn overlapping_keys_in_opposite_orders_never_deadlock_nor_overlap() {
    const CLIENTS: usize = 3;
    const TURNS: usize = 12;
    let orders: [&[&str]; 6] =
        [&["a", "b"], &["b", "a"], &["c", "b"], &["a", "c"], &["c", "b", "a"], &["b"]];
    let masters = Masters::start(3);
    let guarded = Arc::new(Mutex::new(Guarded::default()));
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        // Each is a program of its own, whose tasks queue in it.
        let client = connect(masters.urls()).await;
        for keys in orders {
            let (client, guarded) = (client.clone(), Arc::clone(&guarded));
            tasks.spawn(async move {
                for _ in 0..TURNS {
                    let builder = client
                        .lock_all(keys)
                        .ttl(Duration::from_secs(20))
                        .wait(Duration::from_secs(60));
                    let lock = builder.acquire().await.unwrap();
                    for &key in keys {
                        let mut guarded = guarded.lock().unwrap();
                        let (inside, seen) = guarded.inside.entry(key).or_default();
                        assert!(!std::mem::replace(inside, true), "two hold {key}");
                        assert!(
                            seen.replace(lock.fence()) < Some(lock.fence()),
                            "{key}: a fence did not grow"
                        );
                    }
                    tokio::task::yield_now().await;
                    for &key in keys {
                        guarded.lock().unwrap().inside.get_mut(key).unwrap().0 = false;
                    }
                    lock.release().await.unwrap();
                }
            });
        }
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    };
    timeout(Duration::from_secs(60), all).await.expect("every client has its turns");
    for key in ["a", "b", "c"] {
        nothing_is_left(&masters, key).await;
    }
}

/// The harm that the test before prevents: one lock after the other, in opposite orders.
#[tokio::test]
async fn single_locks_in_opposite_orders_deadlock() {
    let masters = Masters::start(3);
    let both_hold_one = Arc::new(tokio::sync::Barrier::new(2));
    let mut tasks = JoinSet::new();
    for keys in [["a", "b"], ["b", "a"]] {
        let (client, both_hold_one) = (connect(masters.urls()).await, Arc::clone(&both_hold_one));
        tasks.spawn(async move {
            let _first = client.lock(keys[0]).acquire().await.unwrap();
            both_hold_one.wait().await;
            let second = client.lock(keys[1]).wait(Duration::from_millis(500)).acquire().await;
            both_hold_one.wait().await;
            second.is_err()
        });
    }
    assert_eq!(tasks.join_all().await, [true, true]);
}

#[tokio::test]
async fn end_of_one_key_ends_the_lock() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock_all(["a", "b"]).ttl(Duration::from_secs(3)).acquire().await.unwrap();
    all_hold(&masters, "b").await;
    lock.renew();
    for master in &masters {
        redis::cmd("DEL").arg("b").exec(&mut master.connection()).unwrap();
    }
    assert_eq!(holding(&masters, "a"), 0);
    let lost = timeout(PATIENCE, lock.lost()).await.expect("the next extension tells");
    assert!(matches!(lost, LostError::Ended { .. }), "{lost}");
    assert_eq!(lock.ownership(), Ownership::Lost);
}

#[tokio::test]
async fn extension_repairs_a_master_that_lost_one_of_the_keys() {
    let (masters, quorum) = quorum(3).await;
    let mut lock =
        quorum.lock_all(["a", "b"]).ttl(Duration::from_secs(20)).acquire().await.unwrap();
    eventually_async(PATIENCE, "all of them have it", async || lock.coverage().held == 3).await;
    redis::cmd("DEL").arg("b").exec(&mut masters[2].connection()).unwrap();
    lock.extend().await.unwrap();
    eventually_async(PATIENCE, "it is repaired", async || {
        holding(&masters, "a") == 3 && holding(&masters, "b") == 3
    })
    .await;
    lock.release().await.unwrap();
    nothing_is_left(&masters, "a").await;
    nothing_is_left(&masters, "b").await;
}

#[tokio::test]
async fn lock_of_several_keys_is_handed_over_as_one() {
    let (masters, ours) = quorum(3).await;
    let lock = ours.lock_all(["a", "b"]).acquire().await.unwrap();
    all_hold(&masters, "b").await;
    let fence = lock.fence();
    let text = lock.detach().to_secret_text();
    let other = connect(masters.urls()).await;
    let lock = other.attach(text.parse().unwrap()).await.unwrap();
    assert!(lock.fence() > fence);
    assert!(lock.keys().eq([b"a", b"b"]));
    assert!(
        other.attach(text.parse().unwrap()).await.is_err(),
        "of all who resume it one at most succeeds"
    );
    assert!(ours.lock("a").try_acquire().await.is_err());
    lock.release().await.unwrap();
    nothing_is_left(&masters, "a").await;
    nothing_is_left(&masters, "b").await;
}

#[tokio::test]
async fn run_works_under_several_keys() {
    let (masters, quorum) = quorum(3).await;
    let both = quorum.lock_all(["b", "a"]);
    let held = both.run(|lock| {
        let masters = &masters;
        async move {
            all_hold(masters, "a").await;
            lock.keys().len()
        }
    });
    assert!(matches!(held.await, Ok(2)));
    nothing_is_left(&masters, "a").await;
    nothing_is_left(&masters, "b").await;
    let none: Result<(), RunError> = quorum.lock_all([""; 0]).run(|_| async {}).await;
    assert!(
        matches!(none, Err(RunError::NotAcquired(AcquireError::InvalidRequest { .. }))),
        "{none:?}"
    );
    let too_many = quorum.lock_all((0..65).map(|n| n.to_string())).try_acquire().await;
    assert!(matches!(too_many, Err(AcquireError::InvalidRequest { .. })), "{too_many:?}");
}

#[tokio::test]
async fn caller_dropped_while_it_waits_leaves_all_queues() {
    let (masters, ours): (Masters, Quorum) = quorum(3).await;
    let held = ours.lock("b").acquire().await.unwrap();
    let other = connect(masters.urls()).await;
    let waiting = tokio::spawn(async move { other.lock_all(["a", "b"]).acquire().await.is_ok() });
    eventually_async(PATIENCE, "it waits on a server", async || waiters(&masters) == 1).await;
    waiting.abort();
    eventually_async(PATIENCE, "nobody waits", async || waiters(&masters) == 0).await;
    held.release().await.unwrap();
    nothing_is_left(&masters, "a").await;
    nothing_is_left(&masters, "b").await;
}

#[test]
fn blocking_program_locks_several_keys() {
    let masters = Masters::start(3);
    let quorum = blocking::Quorum::connect(masters.urls()).unwrap();
    let mut lock = quorum.lock_all(["b", "a"]).acquire().unwrap();
    assert!(lock.keys().eq([b"a", b"b"]));
    lock.extend().unwrap();
    let text = lock.detach().to_secret_text();
    let lock = quorum.attach(text.parse().unwrap()).unwrap();
    assert!(lock.watch().keys().eq([b"a", b"b"]));
    assert_eq!(lock.release().unwrap(), Released::Released);
    quorum.flush(PATIENCE).unwrap();
    assert_eq!((holding(&masters, "a"), holding(&masters, "b")), (0, 0));
}
