//! Faults of masters and of the network: locks stay correct, and calls stay fast.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, assert_refused, connect, exists, masters_holding, net, patiently, quorum,
    until_held_on, until_voting, wait_until_all_hold, wait_until_free,
};
use quorlock_client::{AcquireError, ExtendError, NodeError, Quorum, ReleaseError, Released};
use quorlock_testkit::{Direction, Masters, Proxy, Server, eventually, eventually_async};
use redis::AsyncConnectionConfig;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};

/// The time limit of calls that wait for no faulty node: half of the node timeout of [`patiently`].
const AT_ONCE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn dead_minority_does_not_block_a_lock() {
    let (mut masters, quorum) = quorum(5).await;
    for dead in 0..2 {
        masters[dead].kill();
        let lock = quorum.lock("k").acquire().await.unwrap();
        let coverage = format!("{} of 5", 4 - dead);
        eventually_async(PATIENCE, &coverage, async || lock.coverage().to_string() == coverage)
            .await;
        assert_eq!(lock.release().await.unwrap(), Released::Released);
    }
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn dead_majority_is_named_and_the_other_masters_keep_nothing() {
    let (mut masters, quorum) = quorum(5).await;
    let dead: Vec<_> = (0..3).map(|index| masters[index].url()).collect();
    for index in 0..3 {
        masters[index].kill();
    }
    let started = Instant::now();
    let Err(AcquireError::NoQuorum { nodes }) = patiently(&quorum, "k").try_acquire().await else {
        panic!("no majority")
    };
    assert!(started.elapsed() < AT_ONCE);
    let named: Vec<_> = nodes.failed().map(|(node, _)| node.to_owned()).collect();
    assert_eq!(named.len(), 3, "{nodes}");
    for (url, node) in dead.iter().zip(&named) {
        assert!(url.contains(node.as_str()), "{url} is not {node}");
    }
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn paused_master_delays_nothing() {
    let (masters, quorum) = quorum(3).await;
    masters[1].pause();
    assert_no_delay(&quorum).await;
    masters[1].resume();
    quorum.flush(PATIENCE).await.unwrap();
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn master_that_refuses_connections_delays_nothing() {
    let (mut masters, quorum) = quorum(3).await;
    masters[1].kill();
    assert_no_delay(&quorum).await;
}

#[tokio::test]
async fn network_that_drops_requests_or_replies_delays_nothing() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let net = net(3).await;
        net.proxies[1].drop_bytes(direction);
        assert_no_delay(&net.quorum).await;
        wait_until_free(&net.masters, "k").await;
    }
}

#[tokio::test]
async fn master_that_answers_garbage_delays_nothing() {
    let (masters, _) = quorum(2).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let garbage = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            socket.writable().await.unwrap();
            let _ = socket.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n\x00\xff*$:");
        }
    });
    let mut urls = masters.urls();
    urls.push(garbage);
    let quorum = Quorum::connect(urls).await.unwrap();
    assert_no_delay(&quorum).await;
    wait_until_free(&masters, "k").await;
}

/// Asserts that no call waits for the faulty node: ten at once, and ten one after the other.
async fn assert_no_delay(quorum: &Quorum) {
    let started = Instant::now();
    let ten = (0..10).map(|n| {
        let builder = patiently(quorum, &format!("k{n}"));
        tokio::spawn(async move {
            let mut lock = builder.try_acquire().await.unwrap();
            lock.extend().await.unwrap();
            lock.release().await.unwrap()
        })
    });
    for lock in ten.collect::<Vec<_>>() {
        assert_eq!(lock.await.unwrap(), Released::Released);
    }
    for _ in 0..10 {
        patiently(quorum, "k").try_acquire().await.unwrap().release().await.unwrap();
    }
    let took = started.elapsed();
    assert!(took < AT_ONCE, "a call waited for the faulty node: {took:?}");
}

#[tokio::test]
async fn held_lock_is_refused_at_once_beside_a_silent_node() {
    let net = net(3).await;
    let _lock = net.quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&net.masters, "k").await;
    net.proxies[2].hold(Direction::ToClient);
    let started = Instant::now();
    assert_refused(&patiently(&net.quorum, "k").try_acquire().await);
    assert!(started.elapsed() < AT_ONCE);
}

#[tokio::test]
async fn replies_delayed_beyond_the_ttl_are_no_lock_and_leave_nothing() {
    let net = net(3).await;
    net.hold(Direction::ToClient);
    let builder = net.quorum.lock("k").ttl(Duration::from_secs(2));
    let builder = builder.node_timeout(Duration::from_millis(1900));
    let acquiring = tokio::spawn(async move { builder.try_acquire().await });
    wait_until_all_hold(&net.masters, "k").await;
    let error = acquiring.await.unwrap().unwrap_err();
    assert!(matches!(error, AcquireError::InsufficientValidity { .. }), "{error}");
    wait_until_free(&net.masters, "k").await;
    for proxy in &net.proxies {
        assert!(proxy.waiting_bytes(Direction::ToClient) > 0, "the replies were held back");
        proxy.heal();
    }
}

#[tokio::test]
async fn client_that_slept_through_its_ttl_holds_nothing() {
    let (masters, quorum) = quorum(3).await;
    let builder = quorum.lock("k").ttl(Duration::from_secs(1));
    let mut acquiring = Box::pin(builder.try_acquire());
    // The first poll queues the requests, and the yield sends them. Then the client does nothing,
    // as when its machine sleeps.
    assert!(futures_util::poll!(acquiring.as_mut()).is_pending());
    tokio::task::yield_now().await;
    eventually(PATIENCE, "the nodes have granted", || masters_holding(&masters, "k") == 3);
    let slept = std::time::Instant::now();
    eventually(PATIENCE, "the ttl is over", || slept.elapsed() > Duration::from_secs(1));
    let error = acquiring.await.unwrap_err();
    assert!(matches!(error, AcquireError::InsufficientValidity { .. }), "{error}");
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn too_few_confirmations_leave_a_lock_held_with_its_old_deadline() {
    let net = net(3).await;
    let limit = Duration::from_secs(2);
    let builder = net.quorum.lock("k").ttl(Duration::from_secs(10)).node_timeout(limit);
    let mut lock = builder.acquire().await.unwrap();
    until_held_on(&lock, 3).await;
    net.proxies[..2].iter().for_each(|proxy| proxy.hold(Direction::ToServer));
    let before = lock.remaining();
    let Err(ExtendError::NoQuorum { nodes }) = lock.extend().await else {
        panic!("one of three answers")
    };
    assert_eq!(nodes.failed().count(), 2);
    assert!(matches!(nodes.failed().next().unwrap().1, NodeError::TimedOut { limit_ms: 2000 }));
    assert!(lock.remaining() <= before && !lock.remaining().is_zero());
    let Err(ReleaseError::NoQuorum { .. }) = lock.release().await else {
        panic!("one of three answers")
    };
    net.heal();
    wait_until_free(&net.masters, "k").await;
}

#[tokio::test]
async fn connections_recover_in_the_background_after_a_cut_network() {
    let net = net(3).await;
    net.proxies.iter().for_each(Proxy::cut);
    until_voting(&net.quorum, 0).await;
    let started = Instant::now();
    let refused = patiently(&net.quorum, "k").try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::NoQuorum { .. })), "{refused:?}");
    assert!(started.elapsed() < AT_ONCE, "the call does not wait for a connection");
    net.heal();
    until_voting(&net.quorum, 3).await;
    net.quorum.lock("k").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn restarted_master_votes_again() {
    let (mut masters, quorum) = quorum(3).await;
    masters[0].kill();
    quorum.lock("k").acquire().await.unwrap().release().await.unwrap();
    masters[0].restart().unwrap();
    masters[1].kill();
    eventually_async(PATIENCE, "a majority is back", async || {
        quorum.lock("k").wait(Duration::ZERO).acquire().await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn release_reaches_a_paused_node_when_it_resumes() {
    let (masters, quorum) = quorum(3).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    masters[2].pause();
    lock.release().await.unwrap();
    masters[2].resume();
    eventually_async(PATIENCE, "the release arrives", async || !exists(&masters[2], "k")).await;
}

#[tokio::test]
async fn dropped_acquire_on_a_faulty_network_leaves_nothing() {
    let net = net(3).await;
    net.delay(Direction::ToClient, Duration::from_millis(30));
    for n in 0..20 {
        let builder = net.quorum.lock("k").ttl(Duration::from_secs(20));
        let _ = timeout(Duration::from_millis(n * 4), builder.acquire()).await;
    }
    net.quorum.flush(PATIENCE).await.unwrap();
    assert_eq!(masters_holding(&net.masters, "k"), 0);
}

#[tokio::test]
async fn without_a_validity_check_an_expired_lock_is_granted() {
    // A client of plain SET NX PX does not check the time: its OK arrives after the key expired.
    let server = Server::builder().start().unwrap();
    let proxy = Proxy::start(server.url());
    let client = redis::Client::open(proxy.url()).unwrap();
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connecting.await.unwrap();
    proxy.hold(Direction::ToClient);
    let setting = tokio::spawn(async move {
        let mut set = redis::cmd("SET");
        set.arg(&["k", "v", "NX", "PX", "50"]).query_async::<String>(&mut connection).await
    });
    eventually_async(PATIENCE, "the key was set", async || {
        proxy.waiting_bytes(Direction::ToClient) > 0
    })
    .await;
    eventually_async(PATIENCE, "the key has expired", async || !exists(&server, "k")).await;
    proxy.heal();
    assert_eq!(setting.await.unwrap().unwrap(), "OK", "the client believes that it holds the lock");
}

#[tokio::test]
async fn release_is_repeated_through_a_new_connection() {
    let net = net(3).await;
    let lock = net.quorum.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    wait_until_all_hold(&net.masters, "k").await;
    let proxy = &net.proxies[1];
    proxy.drop_bytes(Direction::ToServer);
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    eventually_async(PATIENCE, "the request is dropped", async || {
        proxy.dropped_bytes(Direction::ToServer) > 0
    })
    .await;
    // The old connection stays open, but the proxy drops every request on it.
    until_voting(&net.quorum, 2).await;
    proxy.heal();
    wait_until_free(&net.masters, "k").await;
}

#[test]
fn release_fails_without_panic_after_the_runtime_has_ended() {
    let masters = Masters::start(3);
    let (own, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let lock =
        own.block_on(async { connect(masters.urls()).await.lock("k").acquire().await.unwrap() });
    drop(own);
    let released = other.block_on(lock.release());
    assert!(matches!(released, Err(ReleaseError::NoQuorum { .. })), "{released:?}");
}
