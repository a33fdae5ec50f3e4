//! Locks that are renewed in the background, the work that runs under a lock, and what a holder
//! learns about its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{PATIENCE, net, quorum, wait_until_all_hold, wait_until_free};
use quorlock_client::{LockWatch, LostError, Ownership, RunError};
use quorlock_testkit::{Direction, calls, eventually_async};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A ttl that is long enough for a busy machine.
const TTL: Duration = Duration::from_secs(2);

#[tokio::test]
async fn flush_does_not_wait_for_renewals() {
    let net = net(3).await;
    // More time than from one renewal to the next: a node that is silent always owes an answer.
    let builder = net.quorum.lock("k").ttl(TTL).node_timeout(TTL / 2);
    let mut lock = builder.acquire().await.unwrap();
    lock.renew();
    wait_until_all_hold(&net.nodes, "k").await;
    net.proxies[2].hold(Direction::ToClient);
    let extends = || calls(&net.nodes[2], "lock.extend");
    let before = extends();
    eventually_async(PATIENCE, "the lock is renewed", async || extends() > before).await;
    assert_eq!(net.quorum.flush(Duration::ZERO).await, Ok(()));
    assert!(matches!(lock.ownership(), Ownership::Held(_)), "{lock:?}");
}

#[tokio::test]
async fn work_is_dropped_and_not_polled_after_the_loss_of_the_lock() {
    let (_nodes, quorum) = quorum(3).await;
    let late_polls = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        let late = Arc::clone(&late_polls);
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
        let RunError::Lost { lost: LostError::Expired { .. }, finished: false } = error else {
            panic!("{error}")
        };
        assert_eq!(Arc::strong_count(&late_polls), 1, "the work is dropped");
    }
    assert_eq!(late_polls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn loss_is_reported_at_the_deadline_and_not_before() {
    let net = net(3).await;
    let mut least_late_by = Duration::MAX;
    // On a busy machine one try may be late, but not all of them.
    for n in 0..5 {
        let builder = net.quorum.lock(format!("k{n}")).ttl(Duration::from_millis(300));
        let lock = builder.acquire().await.unwrap();
        let deadline = Instant::now() + lock.remaining();
        net.hold(Direction::ToClient);
        lock.lost().await;
        assert!(Instant::now() >= deadline, "the lock was held until its deadline");
        assert!(lock.ownership().is_lost());
        least_late_by = least_late_by.min(deadline.elapsed());
        net.heal();
    }
    assert!(least_late_by < Duration::from_millis(10), "{least_late_by:?} after the deadline");
}

#[tokio::test]
async fn dropped_run_drops_the_work_and_releases_the_lock() {
    let (nodes, quorum) = quorum(3).await;
    let in_use = Arc::new(());
    let users = Arc::downgrade(&in_use);
    let (start, started) = oneshot::channel();
    let builder = quorum.lock("k").ttl(Duration::from_secs(60));
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
    wait_until_free(&nodes, "k").await;
    assert_eq!(users.strong_count(), 0, "the work is dropped");
}
