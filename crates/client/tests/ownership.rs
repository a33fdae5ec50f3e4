//! Ownership: what a holder learns about its lock, whatever the nodes and the network do.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, calls, delete, net, quorum, until_held_on, wait_until_all_hold, wait_until_free,
};
use futures_util::FutureExt as _;
use quorlock_client::{ExtendError, LostError, Ownership, Released};
use quorlock_testkit::Direction;
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn lock_is_held_then_uncertain_then_lost_when_all_nodes_fall_silent() {
    let net = net(3).await;
    let mut lock = net.quorum.lock("k").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let Ownership::Held(until) = lock.ownership() else { panic!("{lock:?}") };
    assert!(until.remaining() > Duration::from_millis(100));
    net.hold(Direction::ToClient);
    assert!(matches!(lock.extend().await, Err(ExtendError::NoQuorum { .. })));
    let Ownership::Uncertain(uncertain_until) = lock.ownership() else { panic!("{lock:?}") };
    assert!(uncertain_until.remaining() <= until.remaining() + Duration::from_millis(1));
    let lost = timeout(PATIENCE, lock.lost()).await.expect("a loss is noticed without nodes");
    assert!(matches!(lost, LostError::Expired { .. }), "{lost}");
    assert_eq!(lock.ownership(), Ownership::Lost);
    assert_eq!(lock.remaining(), Duration::ZERO);
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
async fn lock_ended_by_an_operator_is_lost_at_the_next_extension_and_stays_lost() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    delete(&masters, "k");
    assert!(!lock.ownership().is_lost(), "the client has not asked the nodes yet");
    assert!(matches!(lock.extend().await, Err(ExtendError::Lost { .. })));
    let lost = timeout(PATIENCE, lock.lost()).await.unwrap();
    assert!(matches!(lost, LostError::Ended { .. }), "{lost}");
    assert!(matches!(lock.extend().await, Err(ExtendError::Lost { .. })));
    assert!(lock.ownership().is_lost());
}

#[tokio::test]
async fn release_of_an_ended_lock_succeeds_and_is_not_repeated() {
    let net = net(3).await;
    let lock = net.quorum.lock("k").ttl(Duration::from_millis(200)).acquire().await.unwrap();
    lock.lost().await;
    // On a busy machine, `acquire` may have released earlier attempts.
    net.quorum.flush(PATIENCE).await.unwrap();
    let releases = || net.masters.iter().map(|master| calls(master, "lock.release"));
    let before: Vec<_> = releases().collect();
    net.hold(Direction::ToServer);
    let outcome = lock.release().now_or_never().expect("the release waits for no node");
    assert_eq!(outcome.unwrap(), Released::AlreadyOver);
    net.heal();
    net.quorum.flush(PATIENCE).await.unwrap();
    assert!(releases().zip(before).all(|(after, before)| after <= before + 1));
}

#[tokio::test]
async fn release_during_an_extension_is_no_loss() {
    let net = net(3).await;
    for n in 0..20 {
        let key = format!("k{n}");
        let mut lock = net.quorum.lock(&key).ttl(Duration::from_secs(10)).acquire().await.unwrap();
        let watch = lock.watch();
        net.delay(Direction::ToClient, Duration::from_millis(5));
        // The extension is sent, and its answers arrive after the release.
        let _ = timeout(Duration::from_millis(n % 4), lock.extend()).await;
        let ended = tokio::spawn(async move { watch.ended().await });
        assert_eq!(lock.release().await.unwrap(), Released::Released);
        assert!(ended.await.unwrap().is_none(), "the lock was released, not lost");
        net.heal();
        wait_until_free(&net.masters, &key).await;
    }
}

#[tokio::test]
async fn dropped_lock_reports_no_loss() {
    let (_masters, quorum) = quorum(3).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    let watch = lock.watch();
    let lost = tokio::spawn({
        let watch = watch.clone();
        async move { watch.lost().await }
    });
    // The task waits for the loss.
    tokio::task::yield_now().await;
    drop(lock);
    assert!(timeout(PATIENCE, watch.ended()).await.unwrap().is_none());
    assert!(watch.ownership().is_lost(), "the lock is not held any more");
    tokio::task::yield_now().await;
    assert!(!lost.is_finished());
    lost.abort();
}

#[tokio::test]
async fn extension_never_goes_beyond_max_hold() {
    let (_masters, quorum) = quorum(3).await;
    let builder = quorum.lock("k").ttl(Duration::from_secs(5)).max_hold(Duration::from_secs(3));
    let mut lock = builder.acquire().await.unwrap();
    assert!(lock.remaining() <= Duration::from_secs(3));
    let Err(ExtendError::HeldTooLong { max_hold }) = lock.extend().await else {
        panic!("the extension would exceed max_hold")
    };
    assert_eq!(max_hold, Duration::from_secs(3));
    assert!(!lock.ownership().is_lost(), "the lock is held until max_hold is over");

    let short = quorum.lock("s").ttl(Duration::from_secs(1)).max_hold(Duration::from_millis(600));
    let short = short.acquire().await.unwrap();
    let lost = timeout(PATIENCE, short.lost()).await.unwrap();
    assert!(matches!(lost, LostError::HeldTooLong { .. }), "{lost}");
}

#[tokio::test]
async fn restarted_node_does_not_count_until_it_has_the_lock_again() {
    let (mut masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    until_held_on(&lock, 3).await;
    masters[1].restart().unwrap();
    until_held_on(&lock, 2).await;
    lock.extend().await.unwrap();
    until_held_on(&lock, 3).await;
    lock.release().await.unwrap();
    wait_until_free(&masters, "k").await;
}
