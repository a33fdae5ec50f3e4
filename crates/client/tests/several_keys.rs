//! One lock on several keys of a quorum: all of the keys or none, without deadlock.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{
    PATIENCE, assert_refused, assert_times_out, connect, connect_blocking, delete, delete_on,
    masters_holding, quorum, spawn_acquire, until_held_on, until_in_line, wait_until_all_hold,
    wait_until_free,
};
use quorlock_client::{AcquireError, Fence, LostError, Ownership, Released, RunError};
use quorlock_testkit::Masters;
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
    wait_until_all_hold(&masters, "a").await;
    wait_until_all_hold(&masters, "b").await;
    until_held_on(&lock, 3).await;
    lock.extend().await.unwrap();
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    wait_until_free(&masters, "a").await;
    wait_until_free(&masters, "b").await;
}

#[tokio::test]
async fn refused_lock_of_several_keys_holds_none_of_them() {
    let (masters, quorum) = quorum(3).await;
    let one = quorum.lock("b").acquire().await.unwrap();
    assert_refused(&quorum.lock_all(["a", "b", "c"]).try_acquire().await);
    assert_times_out(quorum.lock_all(["c", "b"]), Duration::from_millis(300)).await;
    wait_until_free(&masters, "a").await;
    wait_until_free(&masters, "c").await;
    let _a = quorum.lock("a").try_acquire().await.unwrap();
    let _c = quorum.lock("c").try_acquire().await.unwrap();
    one.release().await.unwrap();
}

#[tokio::test]
async fn holders_of_one_key_and_of_several_exclude_each_other() {
    let (_masters, ours) = quorum(3).await;
    let both = ours.lock_all(["a", "b"]).acquire().await.unwrap();
    for key in ["a", "b"] {
        assert_refused(&ours.lock(key).try_acquire().await);
    }
    let fence = both.fence();
    let waiting = spawn_acquire(ours.lock("b").wait(PATIENCE));
    both.release().await.unwrap();
    let one = waiting.await.unwrap();
    assert!(one.fence() > fence);
    one.release().await.unwrap();
}

#[tokio::test]
async fn waiter_for_several_keys_does_not_block_its_free_keys() {
    let (masters, ours) = quorum(3).await;
    let held = ours.lock("b").acquire().await.unwrap();
    let waiting = spawn_acquire(ours.lock_all(["b", "a"]).wait(2 * PATIENCE));
    until_in_line(&masters, 1).await;
    // The waiter does not block calls of its own program. Otherwise a program that holds `b` and
    // acquires `a` would wait for the waiter, which waits for `b`.
    let a = ours.lock("a").wait(2 * PATIENCE).acquire().await.unwrap();
    assert!(!waiting.is_finished());
    held.release().await.unwrap();
    assert!(!waiting.is_finished());
    let fence = a.fence();
    a.release().await.unwrap();
    assert!(waiting.await.unwrap().fence() > fence);
}

/// The protected resources: for each key, whether a holder works on it, and the last fence.
type Guarded = HashMap<&'static str, (bool, Option<Fence>)>;

#[tokio::test]
async fn locks_with_keys_in_opposite_orders_neither_deadlock_nor_overlap() {
    const CLIENTS: usize = 3;
    const ROUNDS: usize = 12;
    let orders: [&[&str]; 6] =
        [&["a", "b"], &["b", "a"], &["c", "b"], &["a", "c"], &["c", "b", "a"], &["b"]];
    let masters = Masters::start(3);
    let guarded = Arc::new(Mutex::new(Guarded::default()));
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        // Each client stands for one program. Its tasks share its queues.
        let client = connect(masters.urls()).await;
        for keys in orders {
            let (client, guarded) = (client.clone(), Arc::clone(&guarded));
            tasks.spawn(async move {
                for _ in 0..ROUNDS {
                    let builder = client.lock_all(keys).ttl(Duration::from_secs(20));
                    let lock = builder.wait(Duration::from_secs(60)).acquire().await.unwrap();
                    for &key in keys {
                        let mut guarded = guarded.lock().unwrap();
                        let (inside, seen) = guarded.entry(key).or_default();
                        assert!(!std::mem::replace(inside, true), "two hold {key}");
                        let last = seen.replace(lock.fence());
                        assert!(last < Some(lock.fence()), "{key}: a fence did not grow");
                    }
                    tokio::task::yield_now().await;
                    for &key in keys {
                        guarded.lock().unwrap().get_mut(key).unwrap().0 = false;
                    }
                    lock.release().await.unwrap();
                }
            });
        }
    }
    timeout(Duration::from_secs(60), tasks.join_all()).await.expect("no client waits for ever");
    for key in ["a", "b", "c"] {
        wait_until_free(&masters, key).await;
    }
}

/// The baseline of the test above: each client acquires one lock after the other.
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
async fn deletion_of_one_key_ends_the_lock() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock_all(["a", "b"]).ttl(Duration::from_secs(3)).acquire().await.unwrap();
    wait_until_all_hold(&masters, "b").await;
    lock.renew();
    delete(&masters, "b");
    assert_eq!(masters_holding(&masters, "a"), 0);
    let lost = timeout(PATIENCE, lock.lost()).await.expect("the next renewal reports the loss");
    assert!(matches!(lost, LostError::Ended { .. }), "{lost}");
    assert_eq!(lock.ownership(), Ownership::Lost);
}

#[tokio::test]
async fn extension_repairs_a_master_that_lost_one_of_the_keys() {
    let (masters, quorum) = quorum(3).await;
    let mut lock =
        quorum.lock_all(["a", "b"]).ttl(Duration::from_secs(20)).acquire().await.unwrap();
    until_held_on(&lock, 3).await;
    delete_on(&masters[2], "b");
    lock.extend().await.unwrap();
    wait_until_all_hold(&masters, "a").await;
    wait_until_all_hold(&masters, "b").await;
    lock.release().await.unwrap();
    wait_until_free(&masters, "a").await;
    wait_until_free(&masters, "b").await;
}

#[tokio::test]
async fn detached_lock_of_several_keys_is_attached_as_one() {
    let (masters, ours) = quorum(3).await;
    let lock = ours.lock_all(["a", "b"]).acquire().await.unwrap();
    wait_until_all_hold(&masters, "b").await;
    let fence = lock.fence();
    let text = lock.detach().to_secret_text();
    let other = connect(masters.urls()).await;
    let lock = other.attach(text.parse().unwrap()).await.unwrap();
    assert!(lock.fence() > fence);
    assert!(lock.keys().eq([b"a", b"b"]));
    let again = other.attach(text.parse().unwrap()).await;
    assert!(again.is_err(), "the same text attaches at most once");
    assert!(ours.lock("a").try_acquire().await.is_err());
    lock.release().await.unwrap();
    wait_until_free(&masters, "a").await;
    wait_until_free(&masters, "b").await;
}

#[tokio::test]
async fn run_holds_all_keys_and_zero_or_65_keys_are_refused() {
    let (masters, quorum) = quorum(3).await;
    let both = quorum.lock_all(["b", "a"]);
    let held = both.run(|lock| {
        let masters = &masters;
        async move {
            wait_until_all_hold(masters, "a").await;
            lock.keys().len()
        }
    });
    assert!(matches!(held.await, Ok(2)));
    wait_until_free(&masters, "a").await;
    wait_until_free(&masters, "b").await;
    let none: Result<(), RunError> = quorum.lock_all([""; 0]).run(|_| async {}).await;
    assert!(
        matches!(none, Err(RunError::NotAcquired(AcquireError::InvalidRequest { .. }))),
        "{none:?}"
    );
    let too_many = quorum.lock_all((0..65).map(|n| n.to_string())).try_acquire().await;
    assert!(matches!(too_many, Err(AcquireError::InvalidRequest { .. })), "{too_many:?}");
}

#[tokio::test]
async fn dropped_call_leaves_the_queues_of_all_its_keys() {
    let (masters, ours) = quorum(3).await;
    let held = ours.lock("b").acquire().await.unwrap();
    let other = connect(masters.urls()).await;
    let waiting = tokio::spawn(async move { other.lock_all(["a", "b"]).acquire().await.is_ok() });
    until_in_line(&masters, 1).await;
    waiting.abort();
    until_in_line(&masters, 0).await;
    held.release().await.unwrap();
    wait_until_free(&masters, "a").await;
    wait_until_free(&masters, "b").await;
}

#[test]
fn blocking_program_locks_several_keys() {
    let masters = Masters::start(3);
    let quorum = connect_blocking(masters.urls());
    let mut lock = quorum.lock_all(["b", "a"]).acquire().unwrap();
    assert!(lock.keys().eq([b"a", b"b"]));
    lock.extend().unwrap();
    let text = lock.detach().to_secret_text();
    let lock = quorum.attach(text.parse().unwrap()).unwrap();
    assert!(lock.watch().keys().eq([b"a", b"b"]));
    assert_eq!(lock.release().unwrap(), Released::Released);
    quorum.flush(PATIENCE).unwrap();
    assert_eq!((masters_holding(&masters, "a"), masters_holding(&masters, "b")), (0, 0));
}
