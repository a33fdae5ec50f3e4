//! Limits of a client: calls keep to their time, slow networks need no settings, and a client with
//! no free wait connection still acquires free keys.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{PATIENCE, connect, first_failure, info, net, quorum, wait_until_all_hold};
use quorlock_client::{NodeError, Quorum};
use quorlock_testkit::{Direction, Masters, Proxy, eventually_async};
use tokio::time::Instant;

/// A quorum of three masters with this round trip and the default settings.
async fn distant_quorum(round_trip: Duration) -> (Masters, Vec<Proxy>, Quorum) {
    let masters = Masters::start(3);
    let proxies: Vec<_> = masters.iter().map(|master| Proxy::start(master.url())).collect();
    for proxy in &proxies {
        proxy.delay(Direction::ToServer, round_trip / 2);
        proxy.delay(Direction::ToClient, round_trip / 2);
    }
    let quorum = Quorum::connect(proxies.iter().map(Proxy::url)).await.unwrap();
    (masters, proxies, quorum)
}

#[tokio::test]
async fn distant_masters_need_no_settings() {
    for round_trip_ms in [60, 200, 600] {
        let (_masters, _proxies, quorum) =
            distant_quorum(Duration::from_millis(round_trip_ms)).await;
        for attempt in 0..3 {
            let lock = quorum.lock("k").acquire().await;
            let mut lock =
                lock.unwrap_or_else(|error| panic!("{round_trip_ms} ms, {attempt}: {error}"));
            lock.extend().await.unwrap();
            lock.release().await.unwrap();
        }
    }
}

/// `make test-distant` runs this test for a minute.
#[tokio::test]
async fn every_lock_is_acquired_on_masters_that_are_200_ms_away() {
    let seconds = std::env::var("QUORLOCK_DISTANT_S").map_or(2, |seconds| seconds.parse().unwrap());
    let (_masters, _proxies, quorum) = distant_quorum(Duration::from_millis(200)).await;
    let until = Instant::now() + Duration::from_secs(seconds);
    let callers = (0..4).map(|caller| {
        let quorum = quorum.clone();
        tokio::spawn(async move {
            let mut locks = 0;
            while Instant::now() < until {
                let lock = quorum.lock(format!("k{caller}")).acquire().await;
                let mut lock = lock.unwrap_or_else(|error| panic!("after {locks} locks: {error}"));
                lock.extend().await.unwrap();
                lock.release().await.unwrap();
                locks += 1;
            }
            locks
        })
    });
    let locks: u32 =
        futures_util::future::join_all(callers).await.into_iter().map(Result::unwrap).sum();
    println!("{locks} locks in {seconds} s, none refused");
    assert!(locks > 0);
}

#[tokio::test]
async fn ttl_too_short_for_distant_masters_is_reported_with_the_minimum() {
    let (_masters, _proxies, quorum) = distant_quorum(Duration::from_millis(400)).await;
    let lock = quorum.lock("k").ttl(Duration::from_secs(1)).min_validity(Duration::from_millis(1));
    let error = lock.wait(Duration::ZERO).acquire().await.unwrap_err();
    let NodeError::TooFar { ttl_needed_ms, .. } = first_failure(&error) else { panic!("{error}") };
    assert!((3000..30_000).contains(ttl_needed_ms), "{error}");
    assert!(error.to_string().contains("set a ttl of at least"), "{error}");
}

#[tokio::test]
async fn calls_keep_their_time_when_all_nodes_are_silent() {
    let net = net(3).await;
    let quorum = Quorum::connect(net.proxies.iter().map(Proxy::url)).await.unwrap();
    for held in [false, true] {
        let _lock = if held { Some(net.quorum.lock("k").acquire().await.unwrap()) } else { None };
        net.hold(Direction::ToClient);
        let mut fastest = Duration::MAX;
        // On a busy machine one try may be late, but not all of them.
        for _ in 0..5 {
            let started = Instant::now();
            quorum.lock("k").wait(Duration::from_millis(100)).acquire().await.unwrap_err();
            fastest = fastest.min(started.elapsed());
        }
        assert!(fastest < Duration::from_millis(150), "{fastest:?}");
        net.heal();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn free_keys_are_granted_while_all_wait_connections_are_taken() {
    const CONNECTIONS: usize = quorlock_core::client::limits::WAIT_CONNECTIONS_MAX;
    let (masters, holder) = quorum(1).await;
    let mut held = Vec::new();
    for key in 0..CONNECTIONS + 6 {
        let builder = holder.lock(format!("k{key}")).ttl(Duration::from_secs(30));
        held.push(builder.acquire().await.unwrap());
    }
    let late = held.split_off(CONNECTIONS);
    wait_until_all_hold(&masters, "k0").await;
    let other = connect(masters.urls()).await;
    let wait = Duration::from_secs(20);
    let mut waiting = tokio::task::JoinSet::new();
    for key in 0..CONNECTIONS {
        let lock = other.lock(format!("k{key}")).wait(wait);
        waiting.spawn(async move { lock.acquire().await.map(drop) });
    }
    eventually_async(PATIENCE * 2, "all wait connections are taken", async || {
        info::<usize>(&masters[0], "lock_waiters") == CONNECTIONS
    })
    .await;
    let mut without_connection = tokio::task::JoinSet::new();
    for key in CONNECTIONS..CONNECTIONS + 6 {
        let lock = other.lock(format!("k{key}")).wait(wait);
        without_connection.spawn(async move { lock.acquire().await });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for lock in late {
        lock.release().await.unwrap();
    }
    for lock in without_connection.join_all().await {
        lock.expect("the key is free").release().await.unwrap();
    }
    drop(held);
    for done in waiting.join_all().await {
        done.unwrap();
    }
}
