//! Who was granted a lock after a wait asks no more masters than it takes, and the others when that is not enough, or when the
//! lock is held for a while.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::Duration;

use common::{Net, PATIENCE, all_hold, connect, holding, net, nothing_is_left, quorum};
use quorlock_client::{Lock, Quorum, Released};
use quorlock_core::quorum::order;
use quorlock_testkit::{Direction, Masters, Proxy, Server, eventually_async};
use tokio::time::{Instant, sleep};

/// How many ACQUIREs, with or without WAIT, a master has carried out.
fn acquires_on(master: &Server) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut master.connection()).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_lock.acquire:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// How many all of them have.
fn acquires(masters: &Masters) -> u64 {
    masters.iter().map(acquires_on).sum()
}

/// The masters in the order that all clients have for the key, by index.
fn order_of(masters: &Masters, key: &str) -> Vec<usize> {
    let run_ids: Vec<String> = masters
        .iter()
        .map(|master| {
            let info: String = redis::cmd("INFO").arg("server").query(&mut master.connection()).unwrap();
            info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().trim().to_owned()
        })
        .collect();
    order(key.as_bytes(), run_ids.iter().map(String::as_bytes))
}

/// Waits while somebody else has the lock, until that one gives it back; and what happens just before.
async fn wait_for(masters: &Masters, waiting: &Quorum, key: &'static str, before: impl FnOnce()) -> Lock {
    let holder = connect(masters.urls()).await;
    let lock = holder.lock(key).ttl(Duration::from_secs(60)).acquire().await.unwrap();
    all_hold(masters, key).await;
    let waits = tokio::spawn({
        let waiting = waiting.clone();
        async move { waiting.lock(key).ttl(Duration::from_secs(60)).acquire().await.unwrap() }
    });
    eventually_async(PATIENCE, "it waits", async || {
        masters.iter().any(|master| {
            let info: String = redis::cmd("INFO").arg("lock").query(&mut master.connection()).unwrap();
            info.contains("lock_waiters:1")
        })
    })
    .await;
    before();
    lock.release().await.unwrap();
    waits.await.unwrap()
}

#[tokio::test]
async fn a_lock_that_is_handed_over_and_given_back_at_once_costs_two_commands_on_each_of_a_majority() {
    const TURNS: u64 = 50;
    let (masters, first) = quorum(5).await;
    let second = connect(masters.urls()).await;
    let turns = async |quorum: &Quorum| {
        for _ in 0..TURNS {
            quorum.lock("k").acquire().await.unwrap().release().await.unwrap();
        }
    };
    // Three for each lock. Of all masters it would be five; and so it is of who is alone for a moment.
    eventually_async(PATIENCE, "the machine is not too slow for that", async || {
        let before = acquires(&masters);
        tokio::join!(turns(&first), turns(&second));
        acquires(&masters) - before < 2 * TURNS * 9 / 2
    })
    .await;
    nothing_is_left(&masters, "k").await;
}

#[tokio::test]
async fn a_lock_that_is_held_for_a_while_is_taken_to_all_masters_and_outlives_the_first_ones() {
    let (mut masters, waiting) = quorum(5).await;
    let mut lock = wait_for(&masters, &waiting, "k", || ()).await;
    all_hold(&masters, "k").await;
    eventually_async(PATIENCE, "it is known", async || lock.coverage().held == 5).await;
    let order = order_of(&masters, "k");
    masters[order[1]].kill();
    masters[order[2]].kill();
    lock.extend().await.unwrap();
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    nothing_is_left(&masters, "k").await;
}

#[tokio::test]
async fn a_master_that_does_not_answer_is_made_up_for_by_those_that_were_not_asked() {
    let Net { masters, proxies, .. } = net(5).await;
    let urls = proxies.iter().map(Proxy::url);
    let waiting = Quorum::builder().nodes(urls).node_limit(PATIENCE).connect().await.unwrap();
    eventually_async(PATIENCE, "it is connected", async || waiting.connected() == (5, 5)).await;
    let order = order_of(&masters, "k");
    let mut released = None;
    let lock = wait_for(&masters, &waiting, "k", || {
        proxies[order[1]].drop_bytes(Direction::ToServer);
        released = Some(Instant::now());
    })
    .await;
    assert!(released.unwrap().elapsed() < PATIENCE / 2, "the master's time limit is not waited for");
    proxies[order[1]].heal();
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    waiting.close().await;
    nothing_is_left(&masters, "k").await;
}

#[tokio::test]
async fn a_lock_that_is_given_back_while_it_is_taken_to_the_others_leaves_nothing() {
    let Net { masters, proxies, quorum: waiting } = net(5).await;
    let order = order_of(&masters, "k");
    for held_for_ms in [0, 5, 10, 15, 20, 25, 60] {
        let lock = wait_for(&masters, &waiting, "k", || {
            for &late in &order[3..] {
                proxies[late].delay(Direction::ToServer, Duration::from_millis(30));
            }
        })
        .await;
        sleep(Duration::from_millis(held_for_ms)).await;
        assert_eq!(lock.release().await.unwrap(), Released::Released);
        proxies.iter().for_each(Proxy::heal);
        nothing_is_left(&masters, "k").await;
        // What is on its way has arrived.
        sleep(Duration::from_millis(60)).await;
        nothing_is_left(&masters, "k").await;
    }
}

#[tokio::test]
async fn a_lock_that_the_others_never_had_is_released_although_a_master_does_not_answer() {
    let Net { masters, proxies, quorum: waiting } = net(5).await;
    let lock = wait_for(&masters, &waiting, "k", || ()).await;
    // Before it is taken to the others, most likely: that takes the answers of all who were asked.
    proxies[order_of(&masters, "k")[1]].drop_bytes(Direction::ToServer);
    assert_eq!(lock.release().await.unwrap(), Released::Released, "four of five do not have it any more");
    proxies.iter().for_each(Proxy::heal);
    nothing_is_left(&masters, "k").await;
}

#[tokio::test]
async fn a_lock_that_waited_on_a_master_that_was_started_again_is_taken_to_all_masters() {
    let (mut masters, waiting) = quorum(5).await;
    let before = order_of(&masters, "k")[0];
    masters[before].kill();
    eventually_async(PATIENCE, "it is noticed", async || waiting.connected() == (5, 4)).await;
    masters[before].restart().unwrap();
    eventually_async(PATIENCE, "it is back", async || waiting.connected() == (5, 5)).await;
    // A key for which it decides.
    let key = (0..1000).map(|n| format!("k{n}")).find(|key| order_of(&masters, key)[0] == before).unwrap();
    let key: &'static str = key.leak();
    let lock = wait_for(&masters, &waiting, key, || ()).await;
    all_hold(&masters, key).await;
    eventually_async(PATIENCE, "it is known", async || lock.coverage().held == 5).await;
    lock.release().await.unwrap();
    nothing_is_left(&masters, key).await;
}

#[tokio::test]
async fn a_lock_is_kept_although_a_master_that_has_it_is_away_for_a_while() {
    let Net { masters, proxies, quorum: waiting } = net(3).await;
    // Wherever the one that is away and the one that was not asked are in the list.
    for key in ["a", "b", "c", "d", "e", "f"] {
        let order = order_of(&masters, key);
        let mut lock = wait_for(&masters, &waiting, key, || ()).await;
        proxies[order[1]].drop_bytes(Direction::ToServer);
        lock.keep_alive();
        eventually_async(PATIENCE, "it is noticed", async || waiting.connected() == (3, 2)).await;
        proxies[order[1]].heal();
        all_hold(&masters, key).await;
        assert!(lock.extend().await.is_ok());
        lock.release().await.unwrap();
        nothing_is_left(&masters, key).await;
    }
}

#[tokio::test]
async fn whoever_extends_the_lock_at_once_takes_it_to_all_masters() {
    let Net { masters, proxies, quorum: waiting } = net(5).await;
    let order = order_of(&masters, "k");
    let mut lock = wait_for(&masters, &waiting, "k", || {
        for &late in &order[3..] {
            proxies[late].delay(Direction::ToServer, Duration::from_millis(60));
        }
    })
    .await;
    lock.extend().await.unwrap();
    all_hold(&masters, "k").await;
    eventually_async(PATIENCE, "it is known", async || lock.coverage().held == 5).await;
    lock.release().await.unwrap();
    proxies.iter().for_each(Proxy::heal);
    nothing_is_left(&masters, "k").await;
}

#[tokio::test]
async fn a_lock_that_was_lost_before_it_was_taken_to_the_others_stays_lost() {
    let (masters, waiting) = quorum(3).await;
    let lock = wait_for(&masters, &waiting, "k", || ()).await;
    let first = order_of(&masters, "k")[0];
    redis::cmd("DEL").arg("k").exec(&mut masters[first].connection()).unwrap();
    let other = connect(masters.urls()).await;
    // It was taken to the third one in time, or it is lost.
    match other.lock("k").try_acquire().await {
        Err(_) => assert!(holding(&masters, "k") >= 2),
        Ok(others) => {
            assert!(others.fence() > lock.fence());
            others.release().await.unwrap();
            let mut lock = lock;
            assert!(lock.extend().await.is_err(), "it was another's meanwhile");
        }
    }
}

#[tokio::test]
async fn nobody_who_closes_the_client_waits_until_a_lock_is_taken_to_the_others() {
    let Net { masters, proxies, quorum: waiting } = net(5).await;
    let order = order_of(&masters, "k");
    let lock = wait_for(&masters, &waiting, "k", || {
        order[3..].iter().for_each(|&late| proxies[late].drop_bytes(Direction::ToServer));
    })
    .await;
    sleep(Duration::from_millis(50)).await;
    let closing = Instant::now();
    waiting.close().await;
    assert!(closing.elapsed() < PATIENCE / 2, "the lock lasts for a minute");
    proxies.iter().for_each(Proxy::heal);
    lock.release().await.unwrap();
    nothing_is_left(&masters, "k").await;
}

#[tokio::test]
async fn where_masters_are_far_away_all_of_them_are_asked_at_once() {
    const WAY: Duration = Duration::from_millis(100);
    let Net { masters, proxies, .. } = net(5).await;
    for proxy in &proxies {
        proxy.delay(Direction::ToServer, WAY);
        proxy.delay(Direction::ToClient, WAY);
    }
    let urls = proxies.iter().map(Proxy::url);
    let waiting = Quorum::builder().nodes(urls).node_limit(7 * WAY).connect().await.unwrap();
    eventually_async(PATIENCE, "it is connected", async || waiting.connected() == (5, 5)).await;
    let order = order_of(&masters, "k");
    let queue_node = acquires_on(&masters[order[0]]);
    let lock = wait_for(&masters, &waiting, "k", || proxies[order[1]].hold(Direction::ToClient)).await;
    // The holder's, the refused one, and the one that waited: there was no time to ask first some and then others.
    assert_eq!(acquires_on(&masters[order[0]]) - queue_node, 3, "and one of them is silent");
    proxies.iter().for_each(Proxy::heal);
    lock.release().await.unwrap();
    nothing_is_left(&masters, "k").await;
}
