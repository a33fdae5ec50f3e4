//! Locks that are renewed in the background, the work that runs under a lock, and what a holder
//! learns about its lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::common::{PATIENCE, calls, connect, net, quorum, wait_until_all_hold, wait_until_free};
use quorlock_client::{LockBuilder, LockWatch, LostError, Ownership, RunError};
use quorlock_testkit::{Direction, Server, eventually_async};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A ttl that is long enough for a busy machine.
const TTL: Duration = Duration::from_secs(2);

fn extends(node: &Server) -> u64 {
    calls(node, "lock.extend")
}

#[tokio::test]
async fn flush_does_not_wait_for_renewals() {
    let net = net(3).await;
    // More time than from one renewal to the next: a node that is silent always owes an answer.
    let builder = net.quorum.lock("k").ttl(TTL).node_timeout(TTL / 2);
    let mut lock = builder.acquire().await.unwrap();
    lock.renew();
    wait_until_all_hold(&net.nodes, "k").await;
    net.proxies[2].hold(Direction::ToClient);
    let unanswered = extends(&net.nodes[2]) + 1;
    eventually_async(PATIENCE, "the lock is renewed", async || {
        extends(&net.nodes[2]) >= unanswered
    })
    .await;
    assert_eq!(net.quorum.flush(Duration::ZERO).await, Ok(()));
    assert!(matches!(lock.ownership(), Ownership::Held(_)), "{lock:?}");
}

/// Begins work under a lock that never ends by itself. Also returns the lock, and what the work
/// uses until it is dropped.
async fn run_for_ever(
    builder: LockBuilder,
) -> (JoinHandle<Result<(), RunError>>, LockWatch, Weak<()>) {
    let in_use = Arc::new(());
    let users = Arc::downgrade(&in_use);
    let (show, shown) = oneshot::channel();
    let work = async move |lock| {
        show.send(lock).unwrap();
        std::future::pending::<()>().await;
        drop(in_use);
    };
    let running = tokio::spawn(async move { builder.run(work).await });
    (running, shown.await.unwrap(), users)
}

#[tokio::test]
async fn loss_drops_the_work_and_is_known_before_another_client_acquires() {
    let net = net(3).await;
    let (running, lock, users) = run_for_ever(net.quorum.lock("k").ttl(TTL)).await;
    wait_until_all_hold(&net.nodes, "k").await;
    net.hold(Direction::ToServer);
    let other = connect(net.nodes.urls()).await;
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
async fn work_is_not_polled_after_the_loss_of_the_lock() {
    let (_nodes, quorum) = quorum(3).await;
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
    let (running, _, users) = run_for_ever(quorum.lock("k").ttl(Duration::from_secs(60))).await;
    running.abort();
    wait_until_free(&nodes, "k").await;
    assert_eq!(users.strong_count(), 0, "the work is dropped");
}
