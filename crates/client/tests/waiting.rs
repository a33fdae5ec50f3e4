//! Clients wait for a lock in the queue of one node, and do not poll.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{
    PATIENCE, assert_times_out, calls, connect, masters_holding, net, quorum, spawn_acquire,
    until_waiting, wait_until_all_hold, wait_until_free, waiters,
};
use quorlock_client::Lock;
use quorlock_testkit::{Direction, Masters, Proxy, eventually_async};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

fn queue_node(masters: &Masters) -> usize {
    (0..masters.len()).find(|&index| waiters(&masters[index]) > 0).expect("a client waits")
}

fn lock_commands(masters: &Masters) -> u64 {
    masters.iter().map(|master| calls(master, "lock.*")).sum()
}

#[tokio::test]
async fn waiter_waits_on_one_node_and_sends_no_commands() {
    let (masters, ours) = quorum(3).await;
    let lock = ours.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    let other = connect(masters.urls()).await;
    let waiting = spawn_acquire(other.lock("k"));
    until_waiting(&masters, 1).await;
    let before = lock_commands(&masters);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(lock_commands(&masters), before, "a waiter sends no commands");
    let fence = lock.fence();
    lock.release().await.unwrap();
    assert!(waiting.await.unwrap().fence() > fence);
}

/// Acquires a lock for another client on all masters. Also returns the index of the key's queue
/// node, which is the same for all clients.
async fn held_by_another(masters: &Masters, key: &'static str) -> (Lock, usize) {
    let (holder, probe) = (connect(masters.urls()).await, connect(masters.urls()).await);
    let lock = holder.lock(key).acquire().await.unwrap();
    wait_until_all_hold(masters, key).await;
    let waiting = spawn_acquire(probe.lock(key));
    until_waiting(masters, 1).await;
    let node = queue_node(masters);
    waiting.abort();
    until_waiting(masters, 0).await;
    (lock, node)
}

#[tokio::test]
async fn refused_client_waits_for_the_answer_of_the_queue_node() {
    let net = net(3).await;
    let (lock, node) = held_by_another(&net.masters, "k").await;
    // The refusals of the other nodes arrive long before that of the queue node.
    net.proxies[node].delay(Direction::ToClient, Duration::from_millis(100));
    let waiting = spawn_acquire(net.quorum.lock("k"));
    until_waiting(&net.masters, 1).await;
    assert_eq!(queue_node(&net.masters), node);
    lock.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn client_that_the_queue_node_refused_waits_there_next_time() {
    let net = net(3).await;
    let (lock, node) = held_by_another(&net.masters, "k").await;
    lock.release().await.unwrap();
    wait_until_free(&net.masters, "k").await;

    let mut connection = net.masters[node].connection();
    let mut acquire = redis::cmd("LOCK.ACQUIRE");
    acquire.arg(&["k", "other-client", "60000"]);
    let granted: Option<u64> = acquire.query(&mut connection).unwrap();
    granted.unwrap();
    // The refusal of the queue node arrives after the grants of the other nodes.
    let proxy = &net.proxies[node];
    let answers = proxy.chunks(Direction::ToClient);
    proxy.delay(Direction::ToClient, Duration::from_millis(100));
    let lock = net.quorum.lock("k").acquire().await.unwrap();
    eventually_async(PATIENCE, "the proxy forwards the refusal", async || {
        proxy.chunks(Direction::ToClient) > answers
    })
    .await;
    // The client reads the refusal.
    tokio::time::sleep(Duration::from_millis(100)).await;
    lock.release().await.unwrap();
    eventually_async(PATIENCE, "the other nodes are free", async || {
        masters_holding(&net.masters, "k") == 1
    })
    .await;

    let waiting = spawn_acquire(net.quorum.lock("k"));
    until_waiting(&net.masters, 1).await;
    assert_eq!(queue_node(&net.masters), node);
    assert_eq!(masters_holding(&net.masters, "k"), 1, "the client asks no other node");
    let released: i64 =
        redis::cmd("LOCK.RELEASE").arg("k").arg("other-client").query(&mut connection).unwrap();
    assert_eq!(released, 1);
    waiting.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn only_one_call_of_a_program_waits_on_a_node() {
    let (masters, quorum) = quorum(3).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    let acquired = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let (quorum, acquired) = (quorum.clone(), Arc::clone(&acquired));
        tasks.spawn(async move {
            let lock = quorum.lock("k").wait(Duration::from_secs(60)).acquire().await.unwrap();
            acquired.fetch_add(1, Ordering::Relaxed);
            lock.release().await.unwrap();
        });
    }
    until_waiting(&masters, 1).await;
    lock.release().await.unwrap();
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
        assert!(masters.iter().map(waiters).max() <= Some(1));
    }
    assert_eq!(acquired.load(Ordering::Relaxed), 100);
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn programs_that_share_a_key_never_overlap_and_do_not_poll() {
    let (masters, _) = quorum(5).await;
    let inside = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let quorum = connect(masters.urls()).await;
        let inside = Arc::clone(&inside);
        tasks.spawn(async move {
            let mut last = None;
            for _ in 0..20 {
                let lock = quorum.lock("k").wait(Duration::from_secs(60)).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                assert!(Some(lock.fence()) > last);
                last = Some(lock.fence());
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                lock.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let commands = lock_commands(&masters);
    assert!(commands < 160 * 5 * 5, "{commands} commands for 160 locks on 5 masters is polling");
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn timed_out_waiter_leaves_the_queue() {
    let (masters, quorum) = quorum(3).await;
    let _lock = quorum.lock("k").acquire().await.unwrap();
    let other = connect(masters.urls()).await;
    assert_times_out(other.lock("k"), Duration::from_millis(300)).await;
    until_waiting(&masters, 0).await;
}

#[tokio::test]
async fn wait_ends_in_time_whatever_the_nodes_do() {
    let net = net(3).await;
    let _lock = net.quorum.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    wait_until_all_hold(&net.masters, "k").await;
    let wait = Duration::from_secs(2);
    let mut fastest = Duration::MAX;
    // On a busy machine one try may be late, but not all of them.
    for _ in 0..10 {
        let quorum = connect(net.proxies.iter().map(Proxy::url)).await;
        let started = Instant::now();
        let waiting = tokio::spawn(async move { quorum.lock("k").wait(wait).acquire().await });
        until_waiting(&net.masters, 1).await;
        net.hold(Direction::ToClient);
        waiting.await.unwrap().unwrap_err();
        fastest = fastest.min(started.elapsed());
        net.heal();
        until_waiting(&net.masters, 0).await;
        if fastest < wait + Duration::from_millis(50) {
            return;
        }
    }
    panic!("{fastest:?}");
}

#[tokio::test]
async fn dropped_wait_leaves_the_queue_within_100_ms() {
    let (masters, quorum) = quorum(3).await;
    let _lock = quorum.lock("k").acquire().await.unwrap();
    let other = connect(masters.urls()).await;
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let builder = other.lock("k").wait(Duration::from_secs(60));
        let waiting = tokio::spawn(async move { builder.acquire().await });
        until_waiting(&masters, 1).await;
        waiting.abort();
        let dropped = Instant::now();
        until_waiting(&masters, 0).await;
        fastest = fastest.min(dropped.elapsed());
    }
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
}

#[tokio::test]
async fn wait_dropped_at_any_moment_leaves_nothing() {
    let (masters, quorum) = quorum(3).await;
    let other = connect(masters.urls()).await;
    for n in 0..40_u64 {
        let lock = quorum.lock("k").ttl(Duration::from_secs(20)).acquire().await.unwrap();
        let builder = other.lock("k").ttl(Duration::from_secs(20)).wait(Duration::from_secs(20));
        let waiting = tokio::spawn(async move {
            timeout(Duration::from_micros(n * 150), builder.acquire()).await.is_ok()
        });
        tokio::time::sleep(Duration::from_micros(n * 100)).await;
        lock.release().await.unwrap();
        waiting.await.unwrap();
    }
    other.flush(PATIENCE).await.unwrap();
    quorum.flush(PATIENCE).await.unwrap();
    wait_until_free(&masters, "k").await;
    assert_eq!(masters.iter().map(waiters).sum::<u64>(), 0);
}

#[tokio::test]
async fn every_waiter_acquires_the_lock_although_the_queue_node_fails() {
    for fault in ["killed", "paused", "cut off"] {
        let mut net = net(3).await;
        let urls: Vec<_> = net.proxies.iter().map(Proxy::url).collect();
        let holder = net.quorum.lock("k").ttl(Duration::from_secs(30)).acquire().await.unwrap();
        wait_until_all_hold(&net.masters, "k").await;
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let quorum = connect(urls.clone()).await;
            tasks.spawn(async move {
                let lock = quorum.lock("k").wait(Duration::from_secs(30)).acquire().await.unwrap();
                lock.release().await.unwrap();
            });
        }
        until_waiting(&net.masters, 4).await;
        let failed = queue_node(&net.masters);
        match fault {
            "killed" => net.masters[failed].kill(),
            "paused" => net.masters[failed].pause(),
            _ => net.proxies[failed].cut(),
        }
        let started = Instant::now();
        holder.release().await.unwrap();
        while let Some(done) = timeout(PATIENCE, tasks.join_next())
            .await
            .unwrap_or_else(|_| panic!("{fault}: a waiter is forgotten"))
        {
            done.unwrap();
        }
        assert!(started.elapsed() < PATIENCE, "{fault}: {:?}", started.elapsed());
        if fault == "paused" {
            net.masters[failed].resume();
        }
    }
}

#[tokio::test]
async fn waiter_acquires_a_key_whose_plain_set_expires() {
    let (masters, quorum) = quorum(3).await;
    for master in &masters {
        let mut set = redis::cmd("SET");
        set.arg(&["k", "old", "PX", "300"]).exec(&mut master.connection()).unwrap();
    }
    let lock = quorum.lock("k").acquire().await.unwrap();
    assert!(masters_holding(&masters, "k") >= 2);
    lock.release().await.unwrap();
}
