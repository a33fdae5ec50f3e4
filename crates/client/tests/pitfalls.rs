//! Faults that other Redlock clients had and this client does not have, one or two in each test.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, connect, delete, delete_on, exists, masters_holding, net, pttl, quorum,
    wait_until_all_hold, wait_until_free,
};
use futures_util::future::join_all;
use quorlock_client::{
    AcquireError, Answer, ExtendError, LockBuilder, LostError, Ownership, Released, RunError,
};
use quorlock_testkit::{Direction, Server, eventually_async};
use tokio::time::{Instant, timeout};

/// The time limit of an immediate decision, well below `PATIENCE` and `LONG`.
const AT_ONCE: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

/// Lets another client hold the key on this master.
fn occupy(master: &Server, key: &str, time: Duration) {
    let ms = u64::try_from(time.as_millis()).unwrap();
    let mut set = redis::cmd("SET");
    set.arg(&[key, "another", "NX", "PX"]).arg(ms).exec(&mut master.connection()).unwrap();
}

#[tokio::test]
async fn one_of_two_nodes_held_by_another_client_is_a_refusal_at_once() {
    let (masters, quorum) = quorum(2).await;
    occupy(&masters[0], "k", LONG);
    let refused = timeout(AT_ONCE, quorum.lock("k").ttl(LONG).try_acquire())
        .await
        .expect("the call does not wait");
    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    eventually_async(PATIENCE, "the other node is free again", async || !exists(&masters[1], "k"))
        .await;
}

#[tokio::test]
async fn grants_of_an_attempt_do_not_block_the_next() {
    let (masters, quorum) = quorum(3).await;
    let keys: Vec<_> = (0..12).map(|n| format!("k{n}")).collect();
    for key in &keys {
        occupy(&masters[0], key, LONG);
        occupy(&masters[1], key, Duration::from_millis(300));
    }
    let builders: Vec<_> =
        keys.iter().map(|key| quorum.lock(key).wait(Duration::from_millis(1500))).collect();
    let mut acquired = 0;
    for outcome in join_all(builders.iter().map(LockBuilder::acquire)).await {
        match outcome {
            Ok(_) => acquired += 1,
            // On a busy machine, a call may give way for too long.
            Err(AcquireError::TimedOut { nodes, .. } | AcquireError::NoQuorum { nodes }) => {
                let third = &nodes.0[2].answer;
                assert_ne!(*third, Answer::Refused, "no other client held this node: {nodes}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(acquired > 0);
}

#[tokio::test]
async fn grant_of_an_ended_lease_neither_counts_nor_blocks() {
    let net = net(3).await;
    occupy(&net.masters[1], "k", Duration::from_millis(550));
    net.proxies[2].hold(Direction::ToClient);
    let builder =
        net.quorum.lock("k").ttl(Duration::from_millis(300)).wait(Duration::from_millis(900));
    let acquiring = tokio::spawn(async move {
        let acquired = builder.acquire().await;
        acquired.map(|lock| (lock.remaining(), lock))
    });
    let stalled = &net.masters[2];
    eventually_async(PATIENCE, "the stalled node has granted", async || exists(stalled, "k")).await;
    eventually_async(PATIENCE, "that lease has ended", async || !exists(stalled, "k")).await;
    net.proxies[2].heal();
    match acquiring.await.unwrap() {
        Ok((remaining, _lock)) => assert!(remaining >= Duration::from_millis(100), "{remaining:?}"),
        Err(error) => {
            assert!(!matches!(error, AcquireError::InvalidRequest { .. }), "{error}");
            drop(net.quorum.lock("k").acquire().await.unwrap());
        }
    }
}

#[tokio::test]
async fn loss_is_known_within_the_ttl_and_says_whether_work_finished() {
    let (masters, quorum) = quorum(3).await;
    let ttl = Duration::from_millis(1500);
    let builder = quorum.lock("k").ttl(ttl);
    let mut deleted = None;
    let stopped = builder.run(async |_| {
        delete(&masters, "k");
        deleted = Some(Instant::now());
        std::future::pending::<()>().await;
    });
    let error = stopped.await.unwrap_err();
    assert!(
        matches!(error, RunError::Lost { lost: LostError::Ended { .. }, finished: false }),
        "{error:?}"
    );
    assert!(deleted.unwrap().elapsed() < ttl, "{:?}", deleted.unwrap().elapsed());

    let done = builder.run(async |_| {
        delete(&masters, "k");
        "a result"
    });
    let error = done.await.unwrap_err();
    assert!(matches!(error, RunError::Lost { finished: true, .. }), "{error:?}");
}

#[tokio::test]
async fn holder_learns_of_a_loss_from_the_next_extension() {
    let (masters, quorum) = quorum(3).await;
    let ttl = Duration::from_secs(3);
    let mut lock = quorum.lock("k").ttl(ttl).acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    lock.renew();
    delete(&masters, "k");
    let deleted = Instant::now();
    let lost = timeout(PATIENCE, lock.lost()).await.unwrap();
    assert!(matches!(lost, LostError::Ended { .. }), "{lost}");
    assert!(deleted.elapsed() < ttl * 2 / 3, "{:?}", deleted.elapsed());
}

#[tokio::test]
async fn validity_is_at_most_the_ttl_however_late_the_answers_are() {
    let net = net(3).await;
    let ttl = Duration::from_millis(200);
    net.delay(Direction::ToClient, Duration::from_millis(90));
    let mut acquired = 0;
    for _ in 0..5 {
        let builder = net.quorum.lock("k").ttl(ttl).node_timeout(Duration::from_millis(150));
        match builder.min_validity(Duration::ZERO).try_acquire().await {
            Ok(lock) => {
                assert!(lock.remaining() + Duration::from_millis(90) <= ttl, "{lock:?}");
                acquired += 1;
            }
            Err(error) => assert!(!matches!(error, AcquireError::InvalidRequest { .. }), "{error}"),
        }
        wait_until_free(&net.masters, "k").await;
    }
    assert!(acquired > 0, "all attempts failed");
}

#[tokio::test]
async fn late_attempt_leaves_nothing_on_any_node() {
    let net = net(3).await;
    net.delay(Direction::ToClient, Duration::from_millis(200));
    let builder = net.quorum.lock("k").ttl(LONG).node_timeout(Duration::from_millis(100));
    let error = builder.try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum { .. }), "{error}");
    wait_until_free(&net.masters, "k").await;
}

#[tokio::test]
async fn remaining_lease_of_a_lost_lock_lasts_until_its_release() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(LONG).acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    masters.iter().take(2).for_each(|master| delete_on(master, "k"));
    assert!(matches!(lock.extend().await, Err(ExtendError::Lost { .. })));
    assert!(exists(&masters[2], "k"));
    drop(lock);
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn acquire_cancelled_with_the_answer_in_flight_leaves_nothing() {
    let net = net(3).await;
    net.hold(Direction::ToClient);
    let builder = net.quorum.lock("k").ttl(LONG);
    let acquiring = tokio::spawn(async move { builder.acquire().await });
    wait_until_all_hold(&net.masters, "k").await;
    acquiring.abort();
    assert!(acquiring.await.unwrap_err().is_cancelled());
    net.heal();
    wait_until_free(&net.masters, "k").await;
}

#[tokio::test]
async fn extension_sets_the_time_left_and_does_not_add_to_it() {
    let (masters, quorum) = quorum(3).await;
    let ttl = Duration::from_secs(10);
    let mut lock = quorum.lock("k").ttl(ttl).acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    for _ in 0..3 {
        lock.extend().await.unwrap();
    }
    assert!(lock.remaining() <= ttl);
    assert!(masters.iter().all(|master| pttl(master, "k") <= ttl));
}

#[tokio::test]
async fn call_for_a_held_key_beside_a_silent_node_ends_in_time() {
    let net = net(3).await;
    occupy(&net.masters[0], "k", LONG);
    net.proxies[2].hold(Direction::ToServer);
    let limit = Duration::from_millis(300);
    let mut fastest = Duration::MAX;
    // On a busy machine one try may be late, but not all of them.
    for _ in 0..3 {
        let started = Instant::now();
        let builder = net.quorum.lock("k").ttl(LONG).node_timeout(limit);
        let error = builder.try_acquire().await.unwrap_err();
        assert!(
            matches!(error, AcquireError::Held { .. } | AcquireError::NoQuorum { .. }),
            "{error}"
        );
        fastest = fastest.min(started.elapsed());
    }
    assert!(fastest < limit * 2, "{fastest:?}");
}

#[tokio::test]
async fn lock_that_another_client_held_in_between_stays_lost() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let mut lock = ours.lock("k").ttl(Duration::from_millis(300)).acquire().await.unwrap();
    let other = theirs.lock("k").wait(PATIENCE).acquire().await.unwrap();
    assert!(other.fence() > lock.fence());
    other.release().await.unwrap();
    wait_until_free(&masters, "k").await;
    assert!(matches!(lock.extend().await, Err(ExtendError::Lost { .. })));
    assert_eq!(lock.ownership(), Ownership::Lost);
    assert_eq!(masters_holding(&masters, "k"), 0, "the lock was not acquired again");
}

#[tokio::test]
async fn refused_attempt_releases_the_grants_of_the_minority() {
    let (masters, quorum) = quorum(5).await;
    masters.iter().take(3).for_each(|master| occupy(master, "k", LONG));
    let error = quorum.lock("k").ttl(LONG).try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Held { .. }), "{error}");
    eventually_async(PATIENCE, "only the keys of the other client are left", async || {
        masters_holding(&masters, "k") == 3
    })
    .await;
}

#[tokio::test]
async fn release_reaches_also_the_nodes_beyond_the_majority() {
    let (masters, quorum) = quorum(5).await;
    for _ in 0..10 {
        let lock = quorum.lock("k").ttl(LONG).acquire().await.unwrap();
        assert_eq!(lock.release().await.unwrap(), Released::Released);
        wait_until_free(&masters, "k").await;
    }
}

#[tokio::test]
async fn renewal_and_reports_go_on_after_an_extension_without_a_majority() {
    let net = net(3).await;
    let ttl = Duration::from_secs(3);
    let mut lock = net.quorum.lock("k").ttl(ttl).acquire().await.unwrap();
    lock.renew();
    net.proxies[..2].iter().for_each(|proxy| proxy.hold(Direction::ToServer));
    let uncertain = async || matches!(lock.ownership(), Ownership::Uncertain(_));
    eventually_async(PATIENCE, "the lock is uncertain", uncertain).await;
    net.heal();
    let confirmed = async || matches!(lock.ownership(), Ownership::Held(_));
    eventually_async(PATIENCE, "the lock is confirmed", confirmed).await;
    net.hold(Direction::ToServer);
    let lost = timeout(PATIENCE, lock.lost()).await.expect("the loss is reported");
    assert!(matches!(lost, LostError::Expired { .. }), "{lost}");
}

#[tokio::test]
async fn extension_with_a_long_time_limit_per_node_ends_without_a_majority() {
    let net = net(3).await;
    let lock = net.quorum.lock("k").ttl(Duration::from_secs(6));
    // The node timeout is longer than a third of the ttl.
    let mut lock = lock.node_timeout(Duration::from_millis(2500)).acquire().await.unwrap();
    net.proxies[..2].iter().for_each(|proxy| proxy.hold(Direction::ToServer));
    let extended = timeout(PATIENCE, lock.extend()).await.expect("the call ends");
    assert!(matches!(extended, Err(ExtendError::NoQuorum { .. })), "{extended:?}");
}
