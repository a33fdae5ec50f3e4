//! Calls that wait: their end, and their connections.

use std::time::Duration;

use crate::common::{
    Net, PATIENCE, connect, net, net_of, quorum, spawn_acquire, until_in_line, wait_until_all_hold,
    wait_until_free,
};
use quorlock_client::{AcquireError, Lock};
use quorlock_testkit::{Direction, Nodes, Proxy, eventually_async};

/// A time that is longer than a test.
const LONG: Duration = Duration::from_secs(60);

/// Acquires the key `k` on all nodes, for long.
async fn held_everywhere(net: &Net) -> Lock {
    let lock = net.quorum.lock("k").ttl(LONG).acquire().await.unwrap();
    wait_until_all_hold(&net.nodes, "k").await;
    lock
}

#[tokio::test]
async fn wait_connection_whose_answer_was_lost_is_closed() {
    let net = net(3).await;
    let _holder = held_everywhere(&net).await;
    let connections = net.proxies[0].connections();
    let other = connect(net.proxies.iter().map(Proxy::url)).await;
    let waiting = spawn_acquire(other.lock("k").ttl(Duration::from_secs(2)).wait(LONG));
    drop(other);
    until_in_line(&net.nodes, 1).await;
    net.proxies[0].drop_bytes(Direction::ToClient);
    // The release ends the wait on the server, and is repeated for a ttl.
    waiting.abort();
    until_in_line(&net.nodes, 0).await;
    net.heal();
    eventually_async(4 * PATIENCE, "no connection of the waiter is left", async || {
        net.proxies[0].connections() <= connections
    })
    .await;
}

#[tokio::test]
async fn wait_times_out_although_the_servers_close_idle_connections() {
    let net = net_of(Nodes::start_with(3, |_, builder| builder.arg("timeout", 1)).unwrap()).await;
    let _holder = held_everywhere(&net).await;
    let other = connect(net.nodes.urls()).await;
    for wait_ms in [300, 4000] {
        let error = other.lock("k").wait(Duration::from_millis(wait_ms)).acquire().await;
        assert!(matches!(error, Err(AcquireError::TimedOut { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn wait_without_end_stands_in_line() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let (nodes, ours) = quorum(3).await;
    let theirs = connect(nodes.urls()).await;
    for wait in [8 * DAY, 400 * 365 * DAY, Duration::MAX] {
        let held = ours.lock("k").acquire().await.unwrap();
        wait_until_all_hold(&nodes, "k").await;
        let waiting = spawn_acquire(theirs.lock("k").wait(wait));
        until_in_line(&nodes, 1).await;
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
        wait_until_free(&nodes, "k").await;
    }
}
