//! Limits of a client: calls keep to their time, slow networks need no settings, and a client with
//! no free wait connection still acquires free keys.

use std::time::Duration;

use crate::common::{first_failure, net};
use quorlock_client::{NodeError, Quorum};
use quorlock_testkit::{Direction, Nodes, Proxy};
use tokio::time::Instant;

/// A quorum of three nodes with this round trip and the default settings.
async fn distant_quorum(round_trip: Duration) -> (Nodes, Vec<Proxy>, Quorum) {
    let nodes = Nodes::start(3);
    let proxies: Vec<_> = nodes.iter().map(|node| Proxy::start(node.url())).collect();
    for proxy in &proxies {
        proxy.delay(Direction::ToServer, round_trip / 2);
        proxy.delay(Direction::ToClient, round_trip / 2);
    }
    let quorum = Quorum::connect(proxies.iter().map(Proxy::url)).await.unwrap();
    (nodes, proxies, quorum)
}

/// `make test-distant` runs this test for a minute.
#[tokio::test]
async fn every_lock_is_acquired_on_nodes_that_are_200_ms_away() {
    let seconds = std::env::var("QUORLOCK_DISTANT_S").map_or(2, |seconds| seconds.parse().unwrap());
    let (_nodes, _proxies, quorum) = distant_quorum(Duration::from_millis(200)).await;
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
async fn ttl_too_short_for_distant_nodes_is_reported_with_the_minimum() {
    let (_nodes, _proxies, quorum) = distant_quorum(Duration::from_millis(400)).await;
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
