//! Locks that several clients hold at the same time.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    Net, PATIENCE, assert_refused, connect, delete_on, exists, net, quorum, spawn_acquire,
    until_in_line, wait_until_all_hold, wait_until_free,
};
use quorlock_client::{AcquireError, ExtendError, LockBuilder, Quorum};
use quorlock_testkit::Proxy;
use tokio::task::JoinHandle;

const K: &str = "k";

fn reader(quorum: &Quorum) -> LockBuilder {
    quorum.lock(K).shared().wait(PATIENCE)
}

#[tokio::test]
async fn readers_hold_a_lock_together_and_a_writer_holds_it_alone() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let first = reader(&ours).try_acquire().await.unwrap();
    let second = reader(&ours).try_acquire().await.unwrap();
    let third = reader(&theirs).try_acquire().await.unwrap();
    assert!(first.is_shared() && third.is_shared());
    for quorum in [&ours, &theirs] {
        assert_refused(&quorum.lock(K).try_acquire().await);
    }
    let readers_fence = first.fence().max(second.fence()).max(third.fence());
    for lock in [first, second, third] {
        lock.release().await.unwrap();
    }
    let writer = theirs.lock(K).acquire().await.unwrap();
    assert!(writer.fence() > readers_fence);
    assert!(!writer.is_shared());
    assert_refused(&reader(&ours).try_acquire().await);
    let fence = writer.fence();
    writer.release().await.unwrap();
    let after = reader(&ours).acquire().await.unwrap();
    assert!(after.fence() > fence);
    drop(after);
    wait_until_free(&masters, K).await;
}

#[tokio::test]
async fn waiting_readers_are_granted_together() {
    let (masters, quorum) = quorum(3).await;
    let writer = quorum.lock(K).acquire().await.unwrap();
    let readers: Vec<_> = (0..5).map(|_| spawn_acquire(reader(&quorum))).collect();
    until_in_line(&masters, 5).await;
    writer.release().await.unwrap();
    let mut held = Vec::new();
    for reader in readers {
        held.push(reader.await.unwrap());
    }
    assert_eq!(held.len(), 5);
}

#[tokio::test]
async fn reader_behind_a_waiting_writer_waits() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let first = reader(&ours).acquire().await.unwrap();
    let writer = spawn_acquire(theirs.lock(K).wait(PATIENCE));
    until_in_line(&masters, 1).await;
    assert_refused(&reader(&ours).try_acquire().await);
    let late = spawn_acquire(reader(&ours));
    until_in_line(&masters, 2).await;
    first.release().await.unwrap();
    let writer = writer.await.unwrap();
    assert!(!late.is_finished());
    let fence = writer.fence();
    drop(writer);
    assert!(late.await.unwrap().fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_readers_do_not_starve_a_writer() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let reading: Vec<_> = (0..4)
        .map(|_| {
            let builder = reader(&ours);
            tokio::spawn(async move {
                // The holds of the four readers overlap.
                loop {
                    let lock = builder.acquire().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    lock.release().await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..5 {
        theirs.lock(K).wait(PATIENCE).acquire().await.unwrap().release().await.unwrap();
    }
    assert!(!reading.iter().any(JoinHandle::is_finished), "a reader has failed");
    reading.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn downgrade_admits_readers_and_no_writer() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let mut lock = ours.lock(K).acquire().await.unwrap();
    wait_until_all_hold(&masters, K).await;
    let readers = [spawn_acquire(reader(&ours)), spawn_acquire(reader(&theirs))];
    until_in_line(&masters, 2).await;
    let fence = lock.fence();
    lock.downgrade().await.unwrap();
    assert!(lock.is_shared());
    assert_eq!(lock.fence(), fence);
    for reader in readers {
        assert!(reader.await.unwrap().fence() > fence);
    }
    assert_refused(&theirs.lock(K).try_acquire().await);
    lock.extend().await.unwrap();
    lock.release().await.unwrap();
    wait_until_free(&masters, K).await;
}

#[tokio::test]
async fn downgraded_lock_is_shared_although_no_node_answers() {
    let Net { masters: _masters, proxies, quorum } = net(3).await;
    let mut lock = quorum.lock(K).ttl(Duration::from_secs(20)).acquire().await.unwrap();
    proxies.iter().for_each(Proxy::cut);
    assert!(lock.downgrade().await.is_err());
    assert!(lock.is_shared());
    assert!(lock.remaining() > Duration::ZERO);
}

#[tokio::test]
async fn one_dead_master_of_five_changes_nothing_for_readers() {
    let (mut masters, ours) = quorum(5).await;
    let theirs = connect(masters.urls()).await;
    let mut first = reader(&ours).acquire().await.unwrap();
    masters[2].kill();
    let second = reader(&theirs).acquire().await.unwrap();
    first.extend().await.unwrap();
    assert_refused(&theirs.lock(K).try_acquire().await);
    let writer = spawn_acquire(theirs.lock(K).wait(PATIENCE));
    drop((first, second));
    writer.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn reader_is_repaired_on_a_master_that_forgot_it() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = reader(&quorum).acquire().await.unwrap();
    wait_until_all_hold(&masters, K).await;
    delete_on(&masters[0], K);
    assert!(!exists(&masters[0], K));
    lock.extend().await.unwrap();
    wait_until_all_hold(&masters, K).await;
    let fields: Vec<redis::Value> =
        redis::cmd("LOCK.INSPECT").arg(K).query(&mut masters[0].connection()).unwrap();
    assert!(fields.contains(&redis::Value::BulkString(b"shared".to_vec())), "{fields:?}");
}

#[tokio::test]
async fn attached_shared_lock_stays_shared() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let lock = reader(&ours).acquire().await.unwrap();
    let beside = reader(&theirs).acquire().await.unwrap();
    wait_until_all_hold(&masters, K).await;
    let text = lock.detach().to_secret_text();
    let attached = theirs.attach(text.parse().unwrap()).await.unwrap();
    assert!(attached.is_shared());
    drop(beside);
}

#[tokio::test]
async fn lock_of_several_keys_cannot_be_shared() {
    let (_masters, quorum) = quorum(3).await;
    let refused = quorum.lock_all(["a", "b"]).shared().try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::InvalidRequest { .. })), "{refused:?}");
    let mut both = quorum.lock_all(["a", "b"]).try_acquire().await.unwrap();
    assert!(matches!(both.downgrade().await, Err(ExtendError::NotShareable)));
    assert!(!both.is_shared());
    both.extend().await.unwrap();
}

#[tokio::test]
async fn permit_cannot_be_shared_even_after_it_was_attached() {
    let (_masters, quorum) = quorum(3).await;
    let mut permit = quorum.semaphore("k", 4).try_acquire().await.unwrap();
    assert!(matches!(permit.downgrade().await, Err(ExtendError::NotShareable)));
    let mut attached = quorum.attach(permit.detach()).await.unwrap();
    assert!(matches!(attached.downgrade().await, Err(ExtendError::NotShareable)));
    assert!(!attached.is_shared());
}
