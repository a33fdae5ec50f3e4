//! Fences of a quorum of real masters grow despite faults. Without faults, a lock costs one round
//! trip.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{
    Net, PATIENCE, calls, connect, info, masters_with_equal_fences, net_of, patiently, quorum,
    until_held_on, until_voting, wait_until_all_hold, wait_until_free,
};
use quorlock_client::{Fence, Quorum};
use quorlock_testkit::{Direction, Inject as _, Masters, Proxy, Server, WallClock, eventually};

fn abstains(master: &Server) -> bool {
    info::<String>(master, "lock_state") == "abstaining"
}

/// Acquires the lock, asserts that its fence is above the last one, and releases it.
async fn acquire_and_release(quorum: &Quorum, last: &mut Option<Fence>) {
    let lock = patiently(quorum, "k").acquire().await.unwrap();
    assert!(Some(lock.fence()) > *last, "{} after {last:?}", lock.fence());
    *last = Some(lock.fence());
    lock.release().await.unwrap();
}

#[tokio::test]
async fn uncontended_lock_costs_one_round_trip() {
    let Net { masters, proxies, quorum } = net_of(masters_with_equal_fences()).await;
    let mut counted = 0;
    for _ in 0..20 {
        let before: Vec<_> = proxies.iter().map(Proxy::round_trips).collect();
        let lock = patiently(&quorum, "k").try_acquire().await.unwrap();
        wait_until_all_hold(&masters, "k").await;
        until_held_on(&lock, 3).await;
        let after: Vec<_> = proxies.iter().map(Proxy::round_trips).collect();
        let round_trips: Vec<_> =
            after.iter().zip(&before).map(|(after, before)| after - before).collect();
        // A check of a connection counts as a round trip too.
        counted += u32::from(round_trips == [1, 1, 1]);
        lock.release().await.unwrap();
        wait_until_free(&masters, "k").await;
    }
    assert!(counted >= 10, "{counted} of 20 locks took one round trip");
    for master in &masters {
        assert_eq!(calls(master, "lock.acquire"), 20);
        assert_eq!(calls(master, "lock.extend"), 0, "all masters granted the same fence");
    }
}

#[tokio::test]
async fn new_masters_cost_a_client_at_most_two_extra_rounds() {
    // The fences of each master begin a minute above its own clock.
    let (masters, quorum) = quorum(3).await;
    let mut last = None;
    let mut second_rounds = 0;
    for _ in 0..10 {
        let extends = || masters.iter().map(|master| calls(master, "lock.extend")).sum::<u64>();
        let before = extends();
        acquire_and_release(&quorum, &mut last).await;
        wait_until_free(&masters, "k").await;
        second_rounds += u32::from(extends() > before);
    }
    assert!(second_rounds <= 2, "{second_rounds}");
}

#[tokio::test]
async fn fences_grow_and_no_lock_fails_beside_a_wrong_clock() {
    let clocks: Vec<_> = (0..3).map(|_| WallClock::new()).collect();
    let masters =
        Masters::start_with(3, |index, builder| builder.wall_clock(&clocks[index])).unwrap();
    let quorum = connect(masters.urls()).await;
    let mut last = None;
    for ahead_s in [10, -10, 3600, -3600] {
        clocks[1].correct();
        clocks[1].step_ms(ahead_s * 1000);
        let measured_s = || {
            let (s, _): (i64, i64) =
                redis::cmd("TIME").query(&mut masters[1].connection()).unwrap();
            let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            s - i64::try_from(here.as_secs()).unwrap()
        };
        eventually(PATIENCE, "the clock of the master is wrong", || {
            (measured_s() - ahead_s).abs() <= 1
        });
        for _ in 0..10 {
            acquire_and_release(&quorum, &mut last).await;
        }
    }
}

#[tokio::test]
async fn fences_grow_and_no_lock_fails_after_a_restart_with_a_wrong_clock() {
    for ahead_s in [10, -10, 3600, -3600] {
        let clocks: Vec<_> = (0..3).map(|_| WallClock::new()).collect();
        let mut masters =
            Masters::start_with(3, |index, builder| builder.wall_clock(&clocks[index])).unwrap();
        let quorum = connect(masters.urls()).await;
        let mut last = None;
        acquire_and_release(&quorum, &mut last).await;
        clocks[1].step_ms(ahead_s * 1000);
        // The fences of this master begin above its wrong clock, and it has forgotten its earlier
        // fences. The client acquires every lock all the same.
        masters[1].kill();
        until_voting(&quorum, 2).await;
        masters[1].restart().unwrap();
        until_voting(&quorum, 3).await;
        for _ in 0..10 {
            acquire_and_release(&quorum, &mut last).await;
        }
    }
}

#[tokio::test]
async fn masters_with_different_fences_agree_after_one_round() {
    // The last master starts later than the others, whose first fences may be equal. With the first
    // one down, a lock needs both others.
    let mut masters = Masters::start(3);
    masters[2].restart().unwrap();
    masters[0].kill();
    let quorum = Quorum::connect(masters.urls()).await.unwrap();
    let extends = || [1, 2].map(|index| calls(&masters[index], "lock.extend")).iter().sum::<u64>();
    let mut last = None;
    acquire_and_release(&quorum, &mut last).await;
    assert_eq!(extends(), 1, "only the master with the smaller fence gets an EXTEND");
    for _ in 0..10 {
        acquire_and_release(&quorum, &mut last).await;
    }
    assert_eq!(extends(), 1);
}

#[tokio::test]
async fn fences_grow_while_the_masters_restart_one_after_the_other() {
    const MAX_TTL_MS: u64 = 2000;
    let mut masters =
        Masters::start_with(3, |_, builder| builder.arg("lock.max-ttl", MAX_TTL_MS)).unwrap();
    let quorum = connect(masters.urls()).await;
    let builder = quorum.lock("k").ttl(Duration::from_millis(MAX_TTL_MS));
    let builder = builder.node_timeout(Duration::from_millis(400));
    let mut last = None;
    for restarted in [0, 1, 2, 0] {
        // With -1, a master abstains for `lock.max-ttl` after a start.
        masters[restarted].set_arg("lock.rejoin-delay", -1);
        masters[restarted].restart().unwrap();
        let mut while_abstaining = 0;
        loop {
            let abstained = abstains(&masters[restarted]);
            let lock = builder.acquire().await.unwrap();
            assert!(Some(lock.fence()) > last, "{} after {last:?}", lock.fence());
            last = Some(lock.fence());
            // On a busy machine too few nodes may answer in time. The release then continues.
            let _ = lock.release().await;
            if !abstained {
                break;
            }
            while_abstaining += u32::from(abstains(&masters[restarted]));
        }
        assert!(while_abstaining > 0, "locks were granted while the restarted node abstained");
        until_voting(&quorum, 3).await;
    }
}

#[tokio::test]
async fn late_answer_does_not_change_the_fence() {
    let net = net_of(masters_with_equal_fences()).await;
    net.proxies[2].hold(Direction::ToClient);
    let lock = patiently(&net.quorum, "k").acquire().await.unwrap();
    let fence = lock.fence();
    net.heal();
    until_held_on(&lock, 3).await;
    assert_eq!(lock.fence(), fence);
    lock.release().await.unwrap();
}
