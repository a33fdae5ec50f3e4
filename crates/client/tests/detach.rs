//! Detached locks, which another process attaches.

use std::time::Duration;

use crate::common::{
    assert_refused, connect, quorum, until_held_on, wait_until_all_hold, wait_until_free,
};
use quorlock_client::{AttachError, DetachedLock, ExtendError, Released};
use tokio::task::JoinSet;

#[tokio::test]
async fn detached_lock_is_attached_from_its_text_and_is_never_free() {
    let (nodes, giver) = quorum(3).await;
    let taker = connect(nodes.urls()).await;
    let lock = giver.lock("orders/42").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    let (fence, watch) = (lock.fence(), lock.watch());
    wait_until_all_hold(&nodes, "orders/42").await;
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
    wait_until_free(&nodes, "orders/42").await;
}

#[tokio::test]
async fn text_of_an_attached_or_ended_lock_is_refused() {
    let (nodes, quorum) = quorum(3).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&nodes, "k").await;
    let text = lock.detach().to_secret_text();
    let attached = quorum.attach(text.parse().unwrap()).await.unwrap();
    let again = quorum.attach(text.parse().unwrap()).await;
    assert!(matches!(again, Err(AttachError::Gone { .. })), "{again:?}");
    assert_eq!(attached.release().await.unwrap(), Released::Released);
    let late = quorum.attach(text.parse().unwrap()).await;
    assert!(matches!(late, Err(AttachError::Gone { .. })), "{late:?}");
    wait_until_free(&nodes, "k").await;
}

#[tokio::test]
async fn at_most_one_process_attaches_the_same_text() {
    let (nodes, giver) = quorum(5).await;
    let takers = [connect(nodes.urls()).await, connect(nodes.urls()).await];
    let mut attached = 0;
    for n in 0..20 {
        let key = format!("k{n}");
        let lock = giver.lock(&key).acquire().await.unwrap();
        wait_until_all_hold(&nodes, &key).await;
        let text = lock.detach().to_secret_text();
        let mut attaching = JoinSet::new();
        for taker in takers.clone() {
            let detached: DetachedLock = text.parse().unwrap();
            attaching.spawn(async move { taker.attach(detached).await });
        }
        let locks: Vec<_> = attaching.join_all().await.into_iter().flatten().collect();
        assert!(locks.len() <= 1, "{locks:?}");
        attached += locks.len();
    }
    assert!(attached > 0);
}

#[tokio::test]
async fn description_for_another_process_releases_the_lock_that_is_still_held() {
    let (nodes, holder) = quorum(3).await;
    let other = connect(nodes.urls()).await;
    let mut lock = holder.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&nodes, "k").await;
    let text = lock.to_detached().to_secret_text();
    lock.extend().await.unwrap();
    assert_eq!(other.release_detached(text.parse().unwrap()).await.unwrap(), Released::Released);
    wait_until_free(&nodes, "k").await;
    let extended = lock.extend().await;
    assert!(matches!(extended, Err(ExtendError::Lost { .. })), "{extended:?}");
}
