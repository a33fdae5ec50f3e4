//! Detached locks, which another process attaches.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    Net, PATIENCE, assert_refused, connect, exists, net, patiently, quorum, until_held_on,
    until_voting, wait_until_all_hold, wait_until_free,
};
use quorlock_client::{AttachError, DetachedLock, ExtendError, Released};
use quorlock_testkit::{Masters, eventually_async};
use tokio::task::JoinSet;

#[tokio::test]
async fn detached_lock_is_attached_from_its_text_and_is_never_free() {
    let (masters, giver) = quorum(3).await;
    let taker = connect(masters.urls()).await;
    let lock = giver.lock("orders/42").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    let (fence, watch) = (lock.fence(), lock.watch());
    wait_until_all_hold(&masters, "orders/42").await;
    let text = lock.detach().to_secret_text();
    assert!(watch.ended().await.is_none(), "no loss is reported");
    assert!(watch.ownership().is_lost());
    assert_refused(&giver.lock("orders/42").try_acquire().await);

    let mut lock = taker.attach(text.parse().unwrap()).await.unwrap();
    assert_eq!(lock.key(), b"orders/42");
    assert!(lock.fence() > fence);
    assert!(lock.remaining() > Duration::from_secs(9));
    until_held_on(&lock, 3).await;
    lock.extend().await.unwrap();
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    wait_until_free(&masters, "orders/42").await;
}

#[tokio::test]
async fn node_with_larger_fences_gets_the_new_token_too() {
    let mut masters = Masters::start(3);
    // Fences begin above the clock at the start, so the restarted server has the largest ones.
    masters[2].restart().unwrap();
    let quorum = connect(masters.urls()).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    let fence = lock.fence();
    wait_until_all_hold(&masters, "k").await;
    let lock = quorum.attach(lock.detach()).await.unwrap();
    assert!(lock.fence() > fence);
    until_held_on(&lock, 3).await;
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn at_most_one_process_attaches_the_same_text() {
    let (masters, giver) = quorum(5).await;
    let mut quorums = Vec::new();
    for _ in 0..4 {
        quorums.push(connect(masters.urls()).await);
    }
    let mut attached = 0;
    for n in 0..20 {
        let key = format!("k{n}");
        let lock = giver.lock(&key).acquire().await.unwrap();
        wait_until_all_hold(&masters, &key).await;
        let text = lock.detach().to_secret_text();
        let mut tasks = JoinSet::new();
        for quorum in quorums.clone() {
            let detached: DetachedLock = text.parse().unwrap();
            tasks.spawn(async move { quorum.attach(detached).await });
        }
        let mut locks = Vec::new();
        for outcome in tasks.join_all().await {
            match outcome {
                Ok(lock) => locks.push(lock),
                Err(error) => assert!(matches!(error, AttachError::Gone { .. }), "{error}"),
            }
        }
        assert!(locks.len() <= 1, "{locks:?}");
        if let Some(lock) = locks.pop() {
            attached += 1;
            assert_eq!(lock.release().await.unwrap(), Released::Released);
        }
        wait_until_free(&masters, &key).await;
    }
    assert!(attached > 0);
}

#[tokio::test]
async fn text_of_an_attached_or_ended_lock_is_refused() {
    let (masters, quorum) = quorum(3).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    let text = lock.detach().to_secret_text();
    let attached = quorum.attach(text.parse().unwrap()).await.unwrap();
    let again = quorum.attach(text.parse().unwrap()).await;
    assert!(matches!(again, Err(AttachError::Gone { .. })), "{again:?}");
    assert_eq!(attached.release().await.unwrap(), Released::Released);
    let late = quorum.attach(text.parse().unwrap()).await;
    assert!(matches!(late, Err(AttachError::Gone { .. })), "{late:?}");
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn description_for_another_process_releases_the_lock_that_is_still_held() {
    let (masters, holder) = quorum(3).await;
    let other = connect(masters.urls()).await;
    let mut lock = holder.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    let text = lock.to_detached().to_secret_text();
    lock.extend().await.unwrap();
    assert_eq!(other.release_detached(text.parse().unwrap()).await.unwrap(), Released::Released);
    wait_until_free(&masters, "k").await;
    let extended = lock.extend().await;
    assert!(matches!(extended, Err(ExtendError::Lost { .. })), "{extended:?}");
}

#[tokio::test]
async fn lock_that_is_never_attached_ends_by_its_deadline() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(Duration::from_millis(400)).acquire().await.unwrap();
    lock.renew();
    let detached = lock.detach();
    wait_until_free(&masters, "k").await;
    let late = patiently(&quorum, "k").attach(detached).await;
    assert!(matches!(late, Err(AttachError::Gone { .. })), "{late:?}");
}

#[tokio::test]
async fn lock_held_on_a_bare_majority_can_be_attached_and_is_repaired() {
    let (mut masters, quorum) = quorum(3).await;
    masters[2].kill();
    let detached = quorum.lock("k").acquire().await.unwrap().detach();
    let mut lock = quorum.attach(detached).await.unwrap();
    masters[2].restart().unwrap();
    until_voting(&quorum, 3).await;
    lock.extend().await.unwrap();
    until_held_on(&lock, 3).await;
    assert_eq!(lock.release().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn node_cut_off_during_the_attachment_forgets_the_old_token() {
    let Net { masters, proxies, quorum } = net(3).await;
    let lock = quorum.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    let detached = lock.detach();
    // The node is cut off before the attachment, so that it gets no request for the new token.
    proxies[2].cut();
    until_voting(&quorum, 2).await;
    let mut lock = quorum.attach(detached).await.unwrap();
    proxies[2].heal();
    eventually_async(PATIENCE, "the old token is gone", async || !exists(&masters[2], "k")).await;
    eventually_async(PATIENCE, "the node is repaired", async || {
        lock.extend().await.unwrap();
        lock.coverage().held == 3
    })
    .await;
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn attachment_to_another_key_is_refused_and_the_lock_stays_attachable() {
    let (_masters, quorum) = quorum(3).await;
    let detached = quorum.lock("a").acquire().await.unwrap().detach();
    let text = detached.to_secret_text();
    let error = quorum.lock("b").attach(detached).await.unwrap_err();
    assert!(matches!(error, AttachError::InvalidRequest { .. }), "{error}");
    drop(quorum.attach(text.parse().unwrap()).await.unwrap());
}
