//! The connections of a client recover after faults, and calls that wait survive them.

use std::time::Duration;

use crate::common::{
    Net, PATIENCE, connect, net, net_of, quorum, spawn_acquire, until_held_on, until_in_line,
    wait_until_all_hold, wait_until_free,
};
use quorlock_client::{AcquireError, Lock, Ownership, Quorum};
use quorlock_testkit::{Direction, Nodes, Proxy, calls, eventually_async};
use tokio::time::{Instant, sleep, timeout};

#[tokio::test]
async fn connections_recover_as_long_as_any_handle_lives() {
    const TTL: Duration = Duration::from_secs(3);
    let (nodes, first) = quorum(3).await;
    let builder = first.lock("other").ttl(TTL);
    let mut lock = first.lock("k").ttl(TTL).acquire().await.unwrap();
    lock.renew();
    let watch = lock.watch();
    drop(first);
    for node in &nodes {
        let mut kill = redis::cmd("CLIENT");
        kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
        kill.exec(&mut node.connection()).unwrap();
    }
    let extended = || calls(&nodes[0], "lock.extend");
    let before = extended();
    sleep(TTL * 2).await;
    let in_two_ttls = extended() - before;
    // One in each third of a ttl makes 6.
    assert!((5..=12).contains(&in_two_ttls), "{in_two_ttls} extensions");
    assert!(matches!(lock.ownership(), Ownership::Held(_)), "{:?}", lock.ownership());
    builder.acquire().await.unwrap().release().await.unwrap();
    let waiting = tokio::spawn({
        let watch = watch.clone();
        async move { watch.ended().await }
    });
    tokio::task::yield_now().await;
    drop((lock, builder));
    // Only the watch keeps the connections open. The dropped lock is released through them.
    wait_until_free(&nodes, "k").await;
    assert!(watch.ended().await.is_none());
    assert!(waiting.is_finished());
}

async fn all_grant(quorum: &Quorum) -> bool {
    let limit = Duration::from_millis(200);
    let Ok(lock) = quorum.lock("all").node_timeout(limit).try_acquire().await else { return false };
    let all = timeout(limit, until_held_on(&lock, 3)).await.is_ok();
    lock.release().await.is_ok() && all
}

/// Asserts that all nodes vote again within a second after `heal`.
async fn assert_fast_recovery(quorum: &Quorum, harm: impl Fn(), heal: impl Fn()) {
    let mut fastest = Duration::MAX;
    // On a busy machine one try may be late, but not all of them.
    for _ in 0..3 {
        harm();
        let is_out = async || !all_grant(quorum).await;
        eventually_async(PATIENCE, "the node does not take part", is_out).await;
        sleep(Duration::from_secs(1)).await;
        heal();
        let healed = Instant::now();
        let is_back = async || all_grant(quorum).await;
        eventually_async(PATIENCE * 2, "the node takes part again", is_back).await;
        fastest = fastest.min(healed.elapsed());
        if fastest < Duration::from_secs(1) {
            return;
        }
    }
    panic!("{fastest:?}");
}

#[tokio::test]
async fn node_votes_again_within_a_second_after_a_fault() {
    let net = net(3).await;
    let (node, proxy) = (&net.nodes[1], &net.proxies[1]);
    assert_fast_recovery(&net.quorum, || proxy.cut(), || proxy.heal()).await;
    assert_fast_recovery(&net.quorum, || node.pause(), || node.resume()).await;
    // A connection that lost some bytes stays open, but is not usable any more.
    let drop_bytes = || proxy.drop_bytes(Direction::ToClient);
    assert_fast_recovery(&net.quorum, drop_bytes, || proxy.heal()).await;
}

/// A time that is longer than a test.
const LONG: Duration = Duration::from_secs(60);

/// Acquires the key `k` on all nodes, for long.
async fn held_everywhere(net: &Net) -> Lock {
    let lock = net.quorum.lock("k").ttl(LONG).acquire().await.unwrap();
    wait_until_all_hold(&net.nodes, "k").await;
    lock
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

#[tokio::test]
async fn waiters_are_served_in_order_although_one_node_fails() {
    for fault in ["killed", "cut off", "deaf", "mute"] {
        let mut net = net(3).await;
        let holder = held_everywhere(&net).await;
        let mut waiting = Vec::new();
        for number in 1..=2 {
            // Each waiter is a program of its own, and hears of the other one from the nodes.
            let quorum = connect(net.proxies.iter().map(Proxy::url)).await;
            waiting.push(spawn_acquire(quorum.lock("k").ttl(LONG).wait(LONG)));
            until_in_line(&net.nodes, number).await;
        }
        match fault {
            "killed" => net.nodes[1].kill(),
            "cut off" => net.proxies[1].cut(),
            "deaf" => net.proxies[1].hold(Direction::ToServer),
            _ => net.proxies[1].hold(Direction::ToClient),
        }
        holder.release().await.unwrap();
        for waiter in waiting {
            let lock = timeout(PATIENCE, waiter).await;
            let lock = lock.unwrap_or_else(|_| panic!("{fault}: a waiter is forgotten")).unwrap();
            lock.release().await.unwrap();
        }
        net.heal();
        wait_until_free(&net.nodes, "k").await;
        until_in_line(&net.nodes, 0).await;
    }
}

#[tokio::test]
async fn renewed_lock_is_put_back_on_a_node_that_was_restarted() {
    let (mut nodes, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    lock.renew();
    until_held_on(&lock, 3).await;
    nodes[1].kill();
    until_held_on(&lock, 2).await;
    nodes[1].restart().unwrap();
    wait_until_all_hold(&nodes, "k").await;
    until_held_on(&lock, 3).await;
}
