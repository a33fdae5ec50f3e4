//! One path for each kind of lock: of one key, of several keys, shared, of a semaphore, of any key,
//! and detached, which another process attaches.

use std::pin::pin;
use std::time::Duration;

use crate::common::{
    PATIENCE, Recorder, assert_refused, connect, nodes_holding, quorum, spawn_acquire,
    until_held_on, until_in_line, wait_until_all_hold, wait_until_free,
};
use futures_util::future::join_all;
use quorlock_client::{AcquireError, ExtendError, LockBuilder, Quorum, Released};
use quorlock_testkit::{calls, eventually_async};
use tracing::Level;

#[tokio::test]
async fn wait_that_timed_out_names_the_holder() {
    const WAIT: Duration = Duration::from_millis(300);
    let (nodes, quorum) = quorum(3).await;
    let held = quorum.lock("k").owner("web-3\n").acquire().await.unwrap();
    wait_until_all_hold(&nodes, "k").await;
    let other = connect(nodes.urls()).await;
    // On a busy machine, the nodes may answer too late to name the holder.
    let waiting = other.lock("k").wait(WAIT);
    eventually_async(PATIENCE, "the error names the holder", async || {
        let error = waiting.acquire().await.unwrap_err();
        let AcquireError::TimedOut { waited, holder, .. } = &error else { return false };
        // The call sends its last requests a few round trips before its wait ends.
        assert!(*waited >= WAIT * 9 / 10, "{error}");
        let Some(holder) = holder else { return false };
        let text = error.to_string();
        let start = "another client still holds the lock after ";
        assert!(text.starts_with(start) && text.ends_with(" ago"), "{text}");
        assert!(text.contains(r": web-3\n, since "), "{text}");
        assert_eq!((holder.owner.as_deref(), holder.holders), (Some("web-3\n"), 1));
        holder.held_for.is_some()
    })
    .await;
    held.release().await.unwrap();
    wait_until_free(&nodes, "k").await;
    assert_eq!(other.lock("k").holder().await, None);
}

#[tokio::test]
async fn holders_of_each_kind_of_lock_are_named() {
    let (nodes, quorum) = quorum(3).await;
    let ours = |builder: LockBuilder| builder.owner("web-3").wait(PATIENCE);
    let _both = ours(quorum.lock_all(["a", "b"])).acquire().await.unwrap();
    let readers = [(); 2].map(|()| ours(quorum.lock("r").shared()));
    let _readers = join_all(readers.each_ref().map(LockBuilder::acquire)).await;
    let permits = [(); 2].map(|()| ours(quorum.semaphore("s", 2)));
    let _permits = join_all(permits.each_ref().map(LockBuilder::acquire)).await;
    for node in &nodes {
        redis::cmd("SET").arg("f").arg("x").exec(&mut node.connection()).unwrap();
    }
    for (builder, names) in [
        (quorum.lock_all(["b", "c"]), "web-3, since "),
        (quorum.lock_any(["a", "b"]), "web-3, since "),
        (quorum.lock("r"), "web-3 and 1 other, since "),
        (quorum.semaphore("s", 2), "web-3 and 1 other, since "),
        (quorum.lock("f"), "a program that uses SET"),
    ] {
        eventually_async(PATIENCE, names, async || {
            let holder = builder.holder().await;
            holder.is_some_and(|holder| holder.to_string().starts_with(names))
        })
        .await;
    }
}

#[tokio::test]
async fn quick_grant_or_refusal_costs_no_inspection() {
    let (nodes, quorum) = quorum(3).await;
    for wait in [Duration::ZERO, PATIENCE] {
        quorum.lock("k").wait(wait).acquire().await.unwrap().release().await.unwrap();
    }
    let _held = quorum.lock("k").acquire().await.unwrap();
    let error = connect(nodes.urls()).await.lock("k").try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Held { holder: None, .. }), "{error}");
    assert_eq!(error.to_string(), "another client holds the lock or waits for it");
    let inspections = nodes.iter().map(|node| calls(node, "lock.inspect"));
    assert_eq!(inspections.sum::<u64>(), 0);
}

#[tokio::test]
async fn all_keys_are_held_on_all_nodes_until_they_are_released_together() {
    let (nodes, quorum) = quorum(3).await;
    let before = quorum.lock("b").acquire().await.unwrap();
    let fence = before.fence();
    before.release().await.unwrap();
    let mut lock = quorum.lock_all(["b", "a", "b"]).acquire().await.unwrap();
    assert!(lock.keys().eq([b"a", b"b"]));
    assert!(lock.fence() > fence);
    wait_until_all_hold(&nodes, "a").await;
    wait_until_all_hold(&nodes, "b").await;
    until_held_on(&lock, 3).await;
    lock.extend().await.unwrap();
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    wait_until_free(&nodes, "a").await;
    wait_until_free(&nodes, "b").await;
}

#[tokio::test]
async fn locks_that_no_node_can_grant_are_refused() {
    let (_nodes, quorum) = quorum(1).await;
    let numbered = |keys: u8| quorum.lock_all((0..keys).map(|n| [n]));
    let shared = [quorum.lock_all(["a", "b"]), quorum.lock_any(["a"]), quorum.semaphore("s", 2)];
    let permits = [0, 65, usize::MAX].map(|permits| quorum.semaphore("s", permits));
    let invalid = shared.map(LockBuilder::shared).into_iter().chain(permits);
    for lock in invalid.chain([numbered(0), numbered(65)]) {
        let refused = lock.try_acquire().await;
        assert!(matches!(refused, Err(AcquireError::InvalidRequest { .. })), "{refused:?}");
    }
    drop(numbered(64).try_acquire().await.unwrap());
    drop(quorum.semaphore("t", 64).try_acquire().await.unwrap());
}

const K: &str = "k";

fn reader(quorum: &Quorum) -> LockBuilder {
    quorum.lock(K).shared().wait(PATIENCE)
}

#[tokio::test]
async fn downgrade_admits_readers_and_a_writer_holds_the_lock_alone() {
    let (nodes, ours) = quorum(3).await;
    let theirs = connect(nodes.urls()).await;
    let mut lock = ours.lock(K).acquire().await.unwrap();
    wait_until_all_hold(&nodes, K).await;
    assert_refused(&reader(&ours).try_acquire().await);
    let readers = [spawn_acquire(reader(&ours)), spawn_acquire(reader(&theirs))];
    until_in_line(&nodes, 2).await;
    let fence = lock.fence();
    assert!(!lock.is_shared());
    lock.downgrade().await.unwrap();
    assert!(lock.is_shared());
    assert_eq!(lock.fence(), fence);
    let mut readers_fence = fence;
    for reader in join_all(readers).await {
        let reader = reader.unwrap();
        assert!(reader.is_shared() && reader.fence() > fence);
        readers_fence = readers_fence.max(reader.fence());
        assert_refused(&theirs.lock(K).try_acquire().await);
        reader.release().await.unwrap();
    }
    assert_refused(&theirs.lock(K).try_acquire().await);
    lock.extend().await.unwrap();
    lock.release().await.unwrap();
    assert!(theirs.lock(K).acquire().await.unwrap().fence() > readers_fence);
    wait_until_free(&nodes, K).await;
}

#[tokio::test]
async fn lock_of_or_on_one_of_several_keys_cannot_become_shared() {
    let (_nodes, quorum) = quorum(3).await;
    let permit = quorum.semaphore("s", 4).try_acquire().await.unwrap();
    let attached = quorum.attach(permit.detach()).await.unwrap();
    let builders =
        [quorum.lock_all(["a", "b"]), quorum.semaphore("s", 4), quorum.semaphore("t", 1)];
    let acquired = join_all(builders.each_ref().map(LockBuilder::try_acquire)).await;
    for mut lock in acquired.into_iter().map(Result::unwrap).chain([attached]) {
        assert!(matches!(lock.downgrade().await, Err(ExtendError::NotShareable)));
        assert!(!lock.is_shared());
        lock.extend().await.unwrap();
    }
}

#[tokio::test]
async fn larger_number_of_permits_is_noticed_when_the_semaphore_is_full() {
    let (nodes, theirs) = quorum(3).await;
    let ours = connect(nodes.urls()).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(theirs.semaphore("s", 3).try_acquire().await.unwrap());
    }
    let warnings = Recorder::new(Level::WARN);
    let _listening = warnings.listen();
    let inspected = || nodes.iter().map(|node| calls(node, "lock.inspect")).sum::<u64>();
    let before = inspected();
    assert!(theirs.semaphore("s", 3).try_acquire().await.is_err());
    let by_then = inspected() - before;
    // A client inspects the slots beyond its number of permits, up to the slot 63, on each of the 3
    // nodes: 61 slots if its semaphore has 3 permits, and 62 if it has 2.
    eventually_async(PATIENCE, "the slots are inspected", async || inspected() >= before + 3 * 61)
        .await;
    assert!(by_then <= 3 * 61 && warnings.text().is_empty(), "{}", warnings.text());
    for _ in 0..3 {
        assert!(ours.semaphore("s", 2).try_acquire().await.is_err());
    }
    eventually_async(PATIENCE, "a warning", async || !warnings.text().is_empty()).await;
    let warned = warnings.text();
    assert_eq!(warned.matches("larger number of permits").count(), 1, "{warned}");
    assert!(warned.contains("permits: 2") && warned.contains("larger: 3"), "{warned}");
    assert_eq!(
        inspected() - before,
        3 * 61 + 3 * 62,
        "the three calls together compare the permits once"
    );
    assert_eq!(ours.larger_permits("s", 3).await, None);
    assert_eq!(ours.larger_permits("s", 1).await, Some(3));
}

#[tokio::test]
async fn attached_lock_keeps_its_slot_and_its_mode() {
    let (_nodes, quorum) = quorum(3).await;
    let mut permit = quorum.semaphore("s", 4).acquire().await.unwrap();
    let slot = permit.slot();
    assert_eq!(permit.key(), format!("s:{:02}", slot.unwrap()).as_bytes());
    for _ in 0..2 {
        let text = permit.detach().to_secret_text();
        permit = quorum.attach(text.parse().unwrap()).await.unwrap();
        assert_eq!(permit.slot(), slot);
    }
    let plain = quorum.lock("s:slot1").acquire().await.unwrap().detach();
    assert_eq!(quorum.attach(plain).await.unwrap().slot(), None);

    let text = reader(&quorum).acquire().await.unwrap().detach().to_secret_text();
    assert!(quorum.attach(text.parse().unwrap()).await.unwrap().is_shared());
}

#[tokio::test]
async fn lock_on_any_key_excludes_other_locks_on_that_key() {
    let (nodes, ours) = quorum(3).await;
    let theirs = connect(nodes.urls()).await;
    let east = theirs.lock("east").acquire().await.unwrap();
    let any = ours.lock_any(["west", "east"]).acquire().await.unwrap();
    assert_eq!(any.key(), b"west");
    assert_refused(&ours.lock_any(["east", "west"]).try_acquire().await);
    let waiter = spawn_acquire(ours.lock_any(["west", "east"]).wait(PATIENCE));
    until_in_line(&nodes, 1).await;
    east.release().await.unwrap();
    let mut east = waiter.await.unwrap();
    assert_eq!(east.key(), b"east");
    east.extend().await.unwrap();
    let attached = theirs.attach(east.detach()).await.unwrap();
    assert_eq!((attached.key(), attached.slot()), (&b"east"[..], Some(0)));
    assert_eq!(nodes_holding(&nodes, "west"), 3);
}

#[tokio::test]
async fn detached_lock_is_attached_from_its_text_and_is_never_free() {
    let (nodes, giver) = quorum(3).await;
    let taker = connect(nodes.urls()).await;
    let lock = giver.lock("orders/42").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    let (fence, watch) = (lock.fence(), lock.watch());
    wait_until_all_hold(&nodes, "orders/42").await;
    let text = lock.detach().to_secret_text();
    assert!(watch.ended().await.is_none(), "no loss is reported");
    assert!(futures_util::poll!(pin!(watch.lost())).is_pending());
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
