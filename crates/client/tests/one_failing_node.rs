//! Locks and calls after a fault: one node hangs, misses a request or has a lease that no client
//! ends, or all connections are lost.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, connect, masters_holding, net, patiently, quorum, spawn_acquire, until_in_line,
    wait_until_all_hold, wait_until_free,
};
use quorlock_client::{Lock, LockBuilder, Ownership, Quorum};
use quorlock_testkit::{Direction, Masters, eventually_async};
use tokio::time::{Instant, timeout};

/// Returns a client with the default limits, and a lock that it acquired after a wait.
async fn waited_for(
    masters: &Masters,
    configure: impl FnOnce(LockBuilder) -> LockBuilder,
) -> (Quorum, Lock) {
    let holder = connect(masters.urls()).await;
    let held = holder.lock("k").acquire().await.unwrap();
    wait_until_all_hold(masters, "k").await;
    let other = Quorum::connect(masters.urls()).await.unwrap();
    let call = spawn_acquire(configure(other.lock("k")));
    until_in_line(masters, 1).await;
    held.release().await.unwrap();
    (other, call.await.unwrap())
}

#[tokio::test]
async fn lock_after_a_wait_survives_a_pause_of_any_one_node() {
    const TTL: Duration = Duration::from_secs(2);
    for stopped in 0..5 {
        let masters = Masters::start(5);
        let (_quorum, mut lock) = waited_for(&masters, |lock| lock.ttl(TTL)).await;
        lock.renew();
        masters[stopped].pause();
        tokio::time::sleep(TTL * 3 / 2).await;
        // On a busy machine the lock may be uncertain for a moment. A lost lock stays lost.
        eventually_async(PATIENCE, &format!("held without node {stopped}"), async || {
            matches!(lock.ownership(), Ownership::Held(_))
        })
        .await;
        masters[stopped].resume();
    }
}

#[tokio::test]
async fn short_stall_of_one_node_leaves_ownership_certain() {
    const TTL: Duration = Duration::from_secs(4);
    const LIMIT: Duration = Duration::from_secs(1);
    let masters = Masters::start(5);
    let (_quorum, mut lock) = waited_for(&masters, |lock| lock.ttl(TTL).node_timeout(LIMIT)).await;
    lock.renew();
    masters[0].pause();
    // Long enough for a renewal that waits for the node.
    let until = Instant::now() + TTL / 3 + LIMIT * 3 / 2;
    while Instant::now() < until {
        assert!(matches!(lock.ownership(), Ownership::Held(_)), "{:?}", lock.ownership());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    masters[0].resume();
}

#[tokio::test]
async fn waiter_acquires_although_one_node_missed_the_release() {
    const TTL: Duration = Duration::from_secs(30);
    for missed in 0..3 {
        let net = net(3).await;
        let held = net.quorum.lock("k").ttl(TTL).acquire().await.unwrap();
        wait_until_all_hold(&net.masters, "k").await;
        let other = connect(net.masters.urls()).await;
        let call = spawn_acquire(other.lock("k").ttl(TTL));
        until_in_line(&net.masters, 1).await;
        net.proxies[missed].drop_bytes(Direction::ToServer);
        held.release().await.unwrap();
        let lock = timeout(PATIENCE, call).await.expect("the call does not wait for the ttl");
        assert!(lock.unwrap().remaining() > TTL / 2);
        net.proxies[missed].cut();
    }
}

#[tokio::test]
async fn lease_without_a_client_on_one_node_blocks_no_call() {
    let (masters, first) = quorum(3).await;
    for master in &masters {
        wait_until_free(&masters, "k").await;
        let mut orphan = master.connection();
        let token = "0123456789abcdef0123456789abcdef";
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        acquire.arg(&["k", token, "60000"]);
        let granted: Option<u64> = acquire.query(&mut orphan).unwrap();
        granted.expect("the key is free");
        let at_once = first.lock("k").try_acquire().await.expect("two of three are free");
        at_once.release().await.unwrap();
        let patient = timeout(PATIENCE, first.lock("k").acquire()).await;
        patient.expect("the call does not wait for the lease").unwrap().release().await.unwrap();
        redis::cmd("LOCK.RELEASE").arg("k").arg(token).exec(&mut orphan).unwrap();
    }
}

#[tokio::test]
async fn connections_recover_as_long_as_any_handle_lives() {
    const TTL: Duration = Duration::from_secs(3);
    let (masters, first) = quorum(3).await;
    let builder = first.lock("other").ttl(TTL);
    let mut lock = first.lock("k").ttl(TTL).acquire().await.unwrap();
    lock.renew();
    let watch = lock.watch();
    drop(first);
    for master in &masters {
        let mut kill = redis::cmd("CLIENT");
        kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
        kill.exec(&mut master.connection()).unwrap();
    }
    tokio::time::sleep(TTL * 2).await;
    assert!(matches!(lock.ownership(), Ownership::Held(_)), "{:?}", lock.ownership());
    builder.acquire().await.unwrap().release().await.unwrap();
    drop((lock, builder));
    // Only the watch keeps the connections open. The dropped lock is released through them.
    wait_until_free(&masters, "k").await;
    assert!(watch.ended().await.is_none());
}

#[tokio::test]
async fn flush_keeps_its_limit_when_a_node_stalls() {
    let net = net(3).await;
    let lock = net.quorum.lock("k").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    wait_until_all_hold(&net.masters, "k").await;
    net.proxies[0].hold(Direction::ToServer);
    drop(lock);
    let started = Instant::now();
    let error = net.quorum.flush(Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(error.pending, 1);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    eventually_async(PATIENCE, "only the stalled node has the key", async || {
        masters_holding(&net.masters, "k") == 1
    })
    .await;
    net.proxies[0].heal();
    net.quorum.flush(PATIENCE).await.unwrap();
    assert_eq!(masters_holding(&net.masters, "k"), 0);
    net.quorum.lock("k").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn local_waiters_are_served_while_one_node_hangs() {
    let net = net(5).await;
    net.masters[1].pause();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let lock = patiently(&net.quorum, "k");
        calls.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    // A call that waits for the node takes twice as long.
    timeout(PATIENCE, calls.join_all()).await.expect("no call waits for the node");
    net.masters[1].resume();
}
