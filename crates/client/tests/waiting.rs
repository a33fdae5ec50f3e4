//! Waiters stand in line on all nodes, in the order of their tickets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    Net, PATIENCE, connect, net, net_of, nodes_holding, quorum, spawn_acquire, until_in_line,
    wait_until_all_hold, wait_until_free, waiters,
};
use quorlock_client::{AcquireError, Lock};
use quorlock_testkit::{Direction, Nodes, Proxy, eventually_async};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// A time that is longer than a test.
const LONG: Duration = Duration::from_secs(60);

/// Waiters for the key `k`, each of which releases the lock when it has acquired it.
struct Line {
    tasks: JoinSet<()>,
    /// The numbers of the waiters that have acquired the lock, in this order.
    acquired: Arc<Mutex<Vec<usize>>>,
}

impl Line {
    /// Starts `n` waiters. When this function returns, they stand in line on each node, in their
    /// order.
    async fn start(net: &Net, n: usize) -> Self {
        let mut this = Self { tasks: JoinSet::new(), acquired: Arc::default() };
        let earlier = waiters(&net.nodes[0]);
        for number in 0..n {
            // Each waiter is a program of its own, and hears of the earlier ones from the nodes.
            let quorum = connect(net.proxies.iter().map(Proxy::url)).await;
            let acquired = Arc::clone(&this.acquired);
            this.tasks.spawn(async move {
                let lock = quorum.lock("k").ttl(LONG).wait(LONG).acquire().await.unwrap();
                acquired.lock().unwrap().push(number);
                lock.release().await.unwrap();
            });
            until_in_line(&net.nodes, earlier + number as u64 + 1).await;
        }
        this
    }

    /// Waits until all waiters have acquired the lock, and asserts that they did so in their order.
    async fn assert_served_in_order(mut self, fault: &str) {
        let n = self.tasks.len();
        while let Some(done) = timeout(PATIENCE, self.tasks.join_next())
            .await
            .unwrap_or_else(|_| panic!("{fault}: a waiter is forgotten"))
        {
            done.unwrap();
        }
        assert_eq!(*self.acquired.lock().unwrap(), (0..n).collect::<Vec<_>>(), "{fault}");
    }
}

/// Acquires the key `k` on all nodes, for long.
async fn held_everywhere(net: &Net) -> Lock {
    let lock = net.quorum.lock("k").ttl(LONG).acquire().await.unwrap();
    wait_until_all_hold(&net.nodes, "k").await;
    lock
}

#[tokio::test]
async fn every_waiter_acquires_in_order_although_one_node_of_three_fails() {
    for fault in ["killed", "paused", "cut off", "deaf", "mute", "restarted"] {
        for failed in 0..3 {
            let mut net = net(3).await;
            let holder = held_everywhere(&net).await;
            let line = Line::start(&net, 3).await;
            match fault {
                "killed" => net.nodes[failed].kill(),
                "paused" => net.nodes[failed].pause(),
                "cut off" => net.proxies[failed].cut(),
                "deaf" => net.proxies[failed].hold(Direction::ToServer),
                "mute" => net.proxies[failed].hold(Direction::ToClient),
                _ => net.nodes[failed].restart().unwrap(),
            }
            holder.release().await.unwrap();
            line.assert_served_in_order(&format!("node {failed} is {fault}")).await;
            match fault {
                "killed" => net.nodes[failed].restart().unwrap(),
                "paused" => net.nodes[failed].resume(),
                _ => net.heal(),
            }
            eventually_async(PATIENCE, &format!("{fault}: nothing is left"), async || {
                nodes_holding(&net.nodes, "k") == 0
                    && net.nodes.iter().all(|node| waiters(node) == 0)
            })
            .await;
        }
    }
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

#[tokio::test]
async fn wait_ends_in_time_whatever_the_nodes_do() {
    let net = net(3).await;
    let _lock = net.quorum.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    wait_until_all_hold(&net.nodes, "k").await;
    let wait = Duration::from_secs(2);
    let mut fastest = Duration::MAX;
    // On a busy machine one try may be late, but not all of them.
    for _ in 0..10 {
        let quorum = connect(net.proxies.iter().map(Proxy::url)).await;
        let started = Instant::now();
        let waiting = tokio::spawn(async move { quorum.lock("k").wait(wait).acquire().await });
        until_in_line(&net.nodes, 1).await;
        net.hold(Direction::ToClient);
        waiting.await.unwrap().unwrap_err();
        fastest = fastest.min(started.elapsed());
        net.heal();
        until_in_line(&net.nodes, 0).await;
        if fastest < wait + Duration::from_millis(50) {
            return;
        }
    }
    panic!("{fastest:?}");
}

#[tokio::test]
async fn dropped_wait_leaves_all_queues_within_100_ms() {
    let (nodes, quorum) = quorum(3).await;
    let _lock = quorum.lock("k").acquire().await.unwrap();
    let other = connect(nodes.urls()).await;
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let builder = other.lock("k").wait(Duration::from_secs(60));
        let waiting = tokio::spawn(async move { builder.acquire().await });
        until_in_line(&nodes, 1).await;
        waiting.abort();
        let dropped = Instant::now();
        until_in_line(&nodes, 0).await;
        fastest = fastest.min(dropped.elapsed());
    }
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
}
