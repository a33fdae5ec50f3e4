//! Fences over a quorum of real masters: one round trip without faults, and growing with any fault.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod common;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{PATIENCE, all_hold, connect, connected, nothing_is_left};
use quorlock_client::{Fence, LockBuilder, Quorum};
use quorlock_testkit::{
    Direction, Inject as _, Masters, Proxy, Server, WallClock, eventually, eventually_async,
};

/// Long enough that a slow machine does not fail these tests.
fn patiently(quorum: &Quorum) -> LockBuilder {
    quorum.lock("k").ttl(Duration::from_secs(30)).node_timeout(Duration::from_secs(4))
}

/// How often a master has carried out a command.
fn calls(master: &Server, command: &str) -> u64 {
    let info: String =
        redis::cmd("INFO").arg("commandstats").query(&mut master.connection()).unwrap();
    let line =
        info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

fn abstains(master: &Server) -> bool {
    let info: String = redis::cmd("INFO").arg("lock").query(&mut master.connection()).unwrap();
    info.contains("lock_state:abstaining")
}

/// Acquires the lock, checks its fence against the last one, and releases it.
async fn take(quorum: &Quorum, last: &mut Option<Fence>) {
    let lock = patiently(quorum).acquire().await.unwrap();
    assert!(Some(lock.fence()) > *last, "{} after {last:?}", lock.fence());
    *last = Some(lock.fence());
    lock.release().await.unwrap();
}

#[tokio::test]
async fn uncontended_lock_costs_one_round_trip() {
    // What a start adds to the counters would take as long to pass as this says.
    let masters =
        Masters::start_with(3, |_, builder| builder.arg("lock.max-clock-skew", 1)).unwrap();
    let proxies: Vec<_> = masters.iter().map(|master| Proxy::start(master.url())).collect();
    let quorum = connect(proxies.iter().map(Proxy::url)).await;
    let mut counted = 0;
    for _ in 0..20 {
        let before: Vec<_> = proxies.iter().map(Proxy::round_trips).collect();
        let lock = patiently(&quorum).try_acquire().await.unwrap();
        all_hold(&masters, "k").await;
        eventually_async(PATIENCE, "all have answered", async || lock.coverage().held == 3).await;
        let after: Vec<_> = proxies.iter().map(Proxy::round_trips).collect();
        let round_trips: Vec<_> =
            after.iter().zip(&before).map(|(after, before)| after - before).collect();
        // The client sometimes checks a connection, which counts as well.
        counted += u32::from(round_trips == [1, 1, 1]);
        lock.release().await.unwrap();
        nothing_is_left(&masters, "k").await;
    }
    assert!(counted >= 10, "{counted} of 20 locks took one round trip");
    for master in &masters {
        assert_eq!(calls(master, "lock.acquire"), 20);
        assert_eq!(calls(master, "lock.extend"), 0, "nobody had to be told a fence");
    }
}

#[tokio::test]
async fn new_masters_cost_a_client_at_most_two_extra_rounds() {
    // Each of them counts from its own clock and a minute more.
    let masters = Masters::start(3);
    let quorum = connect(masters.urls()).await;
    let mut last = None;
    let mut second_rounds = 0;
    for _ in 0..10 {
        let told = || masters.iter().map(|master| calls(master, "lock.extend")).sum::<u64>();
        let before = told();
        take(&quorum, &mut last).await;
        nothing_is_left(&masters, "k").await;
        second_rounds += u32::from(told() > before);
    }
    assert!(second_rounds <= 2, "{second_rounds}");
}

#[tokio::test]
async fn master_with_a_wrong_clock_costs_no_lock_and_fences_grow() {
    let clocks: Vec<_> = (0..3).map(|_| WallClock::new()).collect();
    let masters =
        Masters::start_with(3, |index, builder| builder.wall_clock(&clocks[index])).unwrap();
    let quorum = connect(masters.urls()).await;
    let mut last = None;
    for ahead_s in [10, -10, 3600, -3600] {
        clocks[1].set_right();
        clocks[1].step_ms(ahead_s * 1000);
        let shows_s = || {
            let (s, _): (i64, i64) =
                redis::cmd("TIME").query(&mut masters[1].connection()).unwrap();
            s - i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
                .unwrap()
        };
        eventually(PATIENCE, "its clock is wrong", || (shows_s() - ahead_s).abs() <= 1);
        for _ in 0..10 {
            take(&quorum, &mut last).await;
        }
    }
}

#[tokio::test]
async fn master_restarted_with_a_wrong_clock_costs_no_lock_and_fences_grow() {
    for ahead_s in [10, -10, 3600, -3600] {
        let clocks: Vec<_> = (0..3).map(|_| WallClock::new()).collect();
        let mut masters =
            Masters::start_with(3, |index, builder| builder.wall_clock(&clocks[index])).unwrap();
        let quorum = connect(masters.urls()).await;
        let mut last = None;
        take(&quorum, &mut last).await;
        clocks[1].step_ms(ahead_s * 1000);
        // Its counters begin where its clock is. As it knows nothing of the time before, it must
        // not be needed.
        masters[1].restart().unwrap();
        eventually_async(PATIENCE, "the client is back", async || connected(&quorum) == (3, 3))
            .await;
        for _ in 0..10 {
            take(&quorum, &mut last).await;
        }
    }
}

#[tokio::test]
async fn masters_with_different_fences_agree_after_one_round() {
    // Each began to count at a different moment. Without the third one, a lock needs both.
    let mut masters = Masters::start(3);
    masters[0].kill();
    let quorum = Quorum::connect(masters.urls()).await.unwrap();
    let told = || [1, 2].map(|index| calls(&masters[index], "lock.extend")).iter().sum::<u64>();
    let mut last = None;
    take(&quorum, &mut last).await;
    assert_eq!(told(), 1, "the one that was behind");
    for _ in 0..10 {
        take(&quorum, &mut last).await;
    }
    assert_eq!(told(), 1);
}

#[tokio::test]
async fn fences_grow_while_the_masters_restart_one_after_the_other() {
    const MAX_TTL_MS: u64 = 1000;
    let mut masters =
        Masters::start_with(3, |_, builder| builder.arg("lock.max-ttl", MAX_TTL_MS)).unwrap();
    let quorum = connect(masters.urls()).await;
    let builder = quorum
        .lock("k")
        .ttl(Duration::from_millis(MAX_TTL_MS))
        .node_timeout(Duration::from_millis(400));
    let mut last = None;
    for restarted in [0, 1, 2, 0] {
        // From now on it is not brand-new, and abstains for the longest ttl.
        masters[restarted].set_arg("lock.rejoin-delay", -1);
        masters[restarted].restart().unwrap();
        let mut while_abstaining = 0;
        loop {
            let abstained = abstains(&masters[restarted]);
            let lock = builder.acquire().await.unwrap();
            assert!(Some(lock.fence()) > last, "{} after {last:?}", lock.fence());
            last = Some(lock.fence());
            lock.release().await.unwrap();
            if !abstained {
                break;
            }
            while_abstaining += u32::from(abstains(&masters[restarted]));
        }
        assert!(while_abstaining > 0, "it has abstained, and locks were taken");
        eventually_async(PATIENCE, "the client is back", async || connected(&quorum) == (3, 3))
            .await;
    }
}

#[tokio::test]
async fn answer_after_the_grant_changes_nothing() {
    let masters =
        Masters::start_with(3, |_, builder| builder.arg("lock.max-clock-skew", 1)).unwrap();
    let proxies: Vec<_> = masters.iter().map(|master| Proxy::start(master.url())).collect();
    let quorum = connect(proxies.iter().map(Proxy::url)).await;
    proxies[2].hold(Direction::ToClient);
    let lock = patiently(&quorum).acquire().await.unwrap();
    let fence = lock.fence();
    proxies[2].heal();
    eventually_async(PATIENCE, "the straggler counts", async || lock.coverage().held == 3).await;
    assert_eq!(lock.fence(), fence);
    lock.release().await.unwrap();
}
