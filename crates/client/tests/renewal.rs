//! Locks that are renewed in the background, and the work that runs under a lock.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{
    Net, PATIENCE, assert_refused, calls, connect, delete, delete_on, exists, masters_holding, net,
    quorum, until_held_on, wait_until_all_hold, wait_until_free,
};
use futures_util::future::try_join_all;
use quorlock_client::{LockBuilder, LockWatch, LostError, Ownership, Quorum, Released, RunError};
use quorlock_testkit::{Direction, Masters, Server, eventually_async};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

/// A ttl that is long enough for a busy machine.
const TTL: Duration = Duration::from_secs(2);

fn extends(master: &Server) -> u64 {
    calls(master, "lock.extend")
}

#[tokio::test]
async fn renewed_lock_outlives_its_ttl_many_times() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(TTL).acquire().await.unwrap();
    lock.renew();
    let started = Instant::now();
    while started.elapsed() < TTL * 4 {
        assert!(matches!(lock.ownership(), Ownership::Held(_)), "{lock:?}");
        assert_refused(&quorum.lock("k").try_acquire().await);
        sleep(Duration::from_millis(20)).await;
    }
    let extends = extends(&masters[0]);
    assert!(
        (8..=40).contains(&extends),
        "{extends} extensions in four ttls; one in each third of a ttl makes 12"
    );
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn released_lock_is_not_extended() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(TTL).acquire().await.unwrap();
    lock.renew();
    eventually_async(PATIENCE, "the lock is extended", async || extends(&masters[0]) > 0).await;
    lock.release().await.unwrap();
    let before = extends(&masters[0]);
    sleep(TTL * 2).await;
    // Renewal would send six extensions in this time. One may have been in flight at the release.
    let since = extends(&masters[0]) - before;
    assert!(since <= 1, "{since} extensions of a lock that was released");
}

#[tokio::test]
async fn renewed_lock_survives_the_loss_of_a_minority_and_no_more() {
    let (mut masters, quorum) = quorum(5).await;
    let mut lock = quorum.lock("k").ttl(TTL).acquire().await.unwrap();
    lock.renew();
    masters[0].kill();
    masters[1].pause();
    sleep(TTL * 2).await;
    assert!(matches!(lock.ownership(), Ownership::Held(_)), "{lock:?}");
    assert_eq!(lock.coverage().held, 3);
    masters[2].kill();
    let lost = timeout(PATIENCE, lock.lost()).await.expect("two of five are no majority");
    assert!(matches!(lost, LostError::Expired { .. }), "{lost}");
    masters[1].resume();
}

#[tokio::test]
async fn renewals_due_at_the_same_time_share_messages_to_a_node() {
    let net = net(3).await;
    let builders: Vec<_> =
        (0..100).map(|n| net.quorum.lock(format!("k{n}")).ttl(Duration::from_secs(6))).collect();
    let mut locks = try_join_all(builders.iter().map(LockBuilder::acquire)).await.unwrap();
    for lock in &mut locks {
        lock.renew();
    }
    let (chunks, before) = (net.proxies[0].chunks(Direction::ToServer), extends(&net.masters[0]));
    eventually_async(PATIENCE, "all locks are extended", async || {
        extends(&net.masters[0]) >= before + 100
    })
    .await;
    let chunks = net.proxies[0].chunks(Direction::ToServer) - chunks;
    assert!(chunks < 60, "{chunks} messages for 100 extensions");
}

#[tokio::test]
async fn run_returns_the_result_and_releases_the_lock() {
    let (masters, quorum) = quorum(3).await;
    let fence = quorum.lock("k").run(|lock| async move { lock.fence() }).await.unwrap();
    wait_until_free(&masters, "k").await;
    assert!(quorum.lock("k").acquire().await.unwrap().fence() > fence);
}

#[tokio::test]
async fn run_holds_the_lock_for_longer_than_its_ttl() {
    let (masters, quorum) = quorum(3).await;
    let builder = quorum.lock("k").ttl(TTL);
    let done = builder.run(async |lock| {
        sleep(TTL * 3).await;
        assert!(masters_holding(&masters, "k") >= 2);
        lock.remaining()
    });
    assert!(done.await.unwrap() > Duration::ZERO);
}

#[tokio::test]
async fn loss_drops_the_work_and_is_known_before_another_client_acquires() {
    let net = net(3).await;
    let in_use = Arc::new(());
    let users = Arc::downgrade(&in_use);
    let (show, shown) = oneshot::channel();
    let builder = net.quorum.lock("k").ttl(TTL);
    let running = tokio::spawn(async move {
        let work = async move |lock| {
            show.send(lock).unwrap();
            std::future::pending::<()>().await;
            drop(in_use);
        };
        builder.run(work).await
    });
    let lock: LockWatch = shown.await.unwrap();
    wait_until_all_hold(&net.masters, "k").await;
    net.hold(Direction::ToServer);
    let other = connect(net.masters.urls()).await;
    let next_lock = other.lock("k").acquire().await.unwrap();
    assert!(lock.ownership().is_lost());
    assert!(next_lock.fence() > lock.fence());
    let error = running.await.unwrap().unwrap_err();
    assert!(
        matches!(error, RunError::Lost { lost: LostError::Expired { .. }, finished: false }),
        "{error:?}"
    );
    assert_eq!(users.strong_count(), 0, "the work is dropped");
}

#[tokio::test]
async fn loss_is_reported_although_the_work_was_finished() {
    let (masters, quorum) = quorum(3).await;
    let work = async |_| {
        delete(&masters, "k");
        Err::<(), _>("the disk is full")
    };
    let error = quorum.lock("k").run(work).await.unwrap_err();
    let RunError::Lost { lost: LostError::Ended { nodes }, finished: true } = error else {
        panic!("{error:?}")
    };
    assert_eq!(nodes.0.len(), 3);

    let result = quorum.lock("k").run(async |_| Err::<(), _>("the disk is full")).await.unwrap();
    assert_eq!(result, Err("the disk is full"), "an error of the work is its result");
}

#[tokio::test]
async fn work_does_not_run_without_the_lock() {
    let (_masters, quorum) = quorum(3).await;
    let _lock = quorum.lock("k").acquire().await.unwrap();
    let ran =
        quorum.lock("k").wait(Duration::ZERO).run(async |_| unreachable!("the lock is held")).await;
    let Err(RunError::NotAcquired(_)) = ran else { panic!("{ran:?}") };
}

#[tokio::test]
async fn work_is_stopped_at_max_hold() {
    let (masters, quorum) = quorum(3).await;
    let builder = quorum.lock("k").ttl(TTL).max_hold(TTL * 2);
    let error = builder.run(async |_| std::future::pending::<()>().await).await.unwrap_err();
    assert!(
        matches!(error, RunError::Lost { lost: LostError::HeldTooLong { .. }, .. }),
        "{error:?}"
    );
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn dropped_run_drops_the_work_and_releases_the_lock() {
    let (masters, quorum) = quorum(3).await;
    let in_use = Arc::new(());
    let users = Arc::downgrade(&in_use);
    let (start, started) = oneshot::channel();
    let builder = quorum.lock("k");
    let running = tokio::spawn(async move {
        let work = async move |_| {
            start.send(()).unwrap();
            std::future::pending::<()>().await;
            drop(in_use);
        };
        builder.run(work).await
    });
    started.await.unwrap();
    running.abort();
    wait_until_free(&masters, "k").await;
    assert_eq!(users.strong_count(), 0, "the work is dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coverage_rises_again_after_a_node_comes_back() {
    let mut masters = Masters::start(5);
    masters[3].kill();
    let quorum =
        Quorum::builder().nodes(masters.urls()).node_timeout(PATIENCE).connect().await.unwrap();
    let mut lock = quorum.lock("k").ttl(TTL).acquire().await.unwrap();
    lock.renew();
    until_held_on(&lock, 4).await;
    masters[4].kill();
    until_held_on(&lock, 3).await;
    for n in [3, 4] {
        masters[n].restart().unwrap();
    }
    until_held_on(&lock, 5).await;
    assert_eq!(masters_holding(&masters, "k"), 5);
    // The two repaired nodes and one other form the remaining majority.
    masters[0].kill();
    masters[1].kill();
    sleep(TTL * 2).await;
    assert!(matches!(lock.ownership(), Ownership::Held(_)), "{lock:?}");
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn lost_lock_is_not_revived_by_repairs() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    // Only one node still holds the lock.
    delete_on(&masters[0], "k");
    delete_on(&masters[1], "k");
    lock.extend().await.unwrap_err();
    assert!(lock.ownership().is_lost());
    lock.renew();
    lock.extend().await.unwrap_err();
    assert!(!exists(&masters[0], "k") && !exists(&masters[1], "k"), "no repair revived the lock");
    assert!(
        exists(&masters[2], "k"),
        "the holder has not released the lock, since its work may still run"
    );
    drop(lock);
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn lock_released_during_its_repair_leaves_nothing() {
    let Net { masters, proxies, quorum } = net(3).await;
    for n in 0..20 {
        let key = format!("k{n}");
        let mut lock = quorum.lock(&key).ttl(Duration::from_secs(30)).acquire().await.unwrap();
        wait_until_all_hold(&masters, &key).await;
        delete_on(&masters[1], &key);
        proxies[1].delay(Direction::ToServer, Duration::from_millis(2));
        lock.extend().await.unwrap();
        sleep(Duration::from_micros(n * 300)).await;
        assert_eq!(lock.release().await.unwrap(), Released::Released);
        proxies[1].heal();
    }
    quorum.flush(PATIENCE).await.unwrap();
    for n in 0..20 {
        assert_eq!(masters_holding(&masters, &format!("k{n}")), 0);
    }
}

#[tokio::test]
async fn work_is_not_polled_after_the_loss_of_the_lock() {
    let (_masters, quorum) = quorum(3).await;
    let late = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        let late = Arc::clone(&late);
        let builder = quorum.lock("k").ttl(Duration::from_millis(200));
        let work = move |lock: LockWatch| {
            let mut blocked = false;
            std::future::poll_fn(move |cx| {
                if lock.ownership().is_lost() {
                    late.fetch_add(1, Ordering::SeqCst);
                }
                if !std::mem::replace(&mut blocked, true) {
                    // Like a paused process: no timer fires in the meantime.
                    std::thread::sleep(Duration::from_millis(400));
                }
                cx.waker().wake_by_ref();
                std::task::Poll::<()>::Pending
            })
        };
        let error = builder.run(work).await.unwrap_err();
        assert!(matches!(error, RunError::Lost { finished: false, .. }), "{error}");
    }
    assert_eq!(late.load(Ordering::SeqCst), 0);
}
