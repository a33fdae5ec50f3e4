//! The life of a lock on healthy masters.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, assert_times_out, calls, connect, delete, first_failure, info, masters_holding,
    quorum, spawn_acquire, until_held_on, wait_until_all_hold, wait_until_free,
};
use futures_util::future::join_all;
use quorlock_client::{
    AcquireError, Answer, ExtendError, LockBuilder, NodeError, Quorum, Released,
};
use quorlock_testkit::{Server, eventually_async};
use tokio::task::JoinSet;
use tokio::time::Instant;

#[tokio::test]
async fn lock_is_held_on_all_masters_until_it_is_released() {
    let (masters, quorum) = quorum(3).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    until_held_on(&lock, 3).await;
    assert!(lock.remaining() > Duration::from_secs(5));
    assert_eq!(lock.release().await.unwrap(), Released::Released);
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn held_lock_is_refused_with_an_entry_for_each_node() {
    let (_masters, quorum) = quorum(3).await;
    let _lock = quorum.lock("k").acquire().await.unwrap();
    let Err(AcquireError::Held { nodes, .. }) = quorum.lock("k").try_acquire().await else {
        panic!("the lock is held")
    };
    assert_eq!(nodes.0.len(), 3, "{nodes}");
    // The refusals of a majority are enough, so one answer may be missing.
    assert!(nodes.0.iter().any(|node| node.answer == Answer::Refused), "{nodes}");
}

#[tokio::test]
async fn wait_that_timed_out_names_the_holder() {
    let (masters, quorum) = quorum(3).await;
    let held = quorum.lock("k").owner("web-3\n").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    let other = connect(masters.urls()).await;
    // On a busy machine, the nodes may answer too late to name the holder.
    let waiting = other.lock("k").wait(Duration::from_millis(300));
    eventually_async(PATIENCE, "the error names the holder", async || {
        let error = waiting.acquire().await.unwrap_err();
        let AcquireError::TimedOut { holder: Some(holder), .. } = &error else { return false };
        let text = error.to_string();
        let start = "another client still holds the lock after ";
        assert!(text.starts_with(start) && text.ends_with(" ago"), "{text}");
        assert!(text.contains(r": web-3\n, since "), "{text}");
        assert_eq!((holder.owner.as_deref(), holder.holders), (Some("web-3\n"), 1));
        holder.held_for.is_some()
    })
    .await;
    held.release().await.unwrap();
    wait_until_free(&masters, "k").await;
    assert_eq!(other.lock("k").holder().await, None);
}

#[tokio::test]
async fn holders_of_each_kind_of_lock_are_named() {
    let (masters, quorum) = quorum(3).await;
    let ours = |builder: LockBuilder| builder.owner("web-3").wait(PATIENCE);
    let _both = ours(quorum.lock_all(["a", "b"])).acquire().await.unwrap();
    let readers = [(); 2].map(|()| ours(quorum.lock("r").shared()));
    let _readers = join_all(readers.each_ref().map(LockBuilder::acquire)).await;
    let permits = [(); 2].map(|()| ours(quorum.semaphore("s", 2)));
    let _permits = join_all(permits.each_ref().map(LockBuilder::acquire)).await;
    for master in &masters {
        redis::cmd("SET").arg("f").arg("x").exec(&mut master.connection()).unwrap();
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
    let (masters, quorum) = quorum(3).await;
    for wait in [Duration::ZERO, PATIENCE] {
        quorum.lock("k").wait(wait).acquire().await.unwrap().release().await.unwrap();
    }
    let _held = quorum.lock("k").acquire().await.unwrap();
    let error = connect(masters.urls()).await.lock("k").try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Held { holder: None, .. }), "{error}");
    assert_eq!(error.to_string(), "another client holds the lock or waits for it");
    let inspections = masters.iter().map(|master| calls(master, "lock.inspect"));
    assert_eq!(inspections.sum::<u64>(), 0);
}

#[tokio::test]
async fn fences_grow_with_every_lock() {
    let (_masters, quorum) = quorum(3).await;
    let mut last = None;
    for _ in 0..50 {
        let lock = quorum.lock("k").acquire().await.unwrap();
        assert!(Some(lock.fence()) > last);
        last = Some(lock.fence());
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn waiter_acquires_the_lock_or_times_out() {
    let (_masters, quorum) = quorum(3).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    assert_times_out(quorum.lock("k"), Duration::from_millis(300)).await;

    let waiter = spawn_acquire(quorum.lock("k").wait(PATIENCE));
    lock.release().await.unwrap();
    drop(waiter.await.unwrap());
}

#[tokio::test]
async fn extended_lock_lasts_a_full_ttl_from_its_extension() {
    let (masters, quorum) = quorum(3).await;
    let ttl = Duration::from_secs(4);
    let mut lock = quorum.lock("k").ttl(ttl).acquire().await.unwrap();
    eventually_async(PATIENCE, "time passes", async || lock.remaining() < ttl * 95 / 100).await;
    let sent = Instant::now();
    lock.extend().await.unwrap();
    assert!(lock.remaining() + sent.elapsed() >= ttl * 98 / 100);
    lock.release().await.unwrap();
    wait_until_free(&masters, "k").await;
}

#[tokio::test]
async fn ended_lock_is_lost_and_its_release_says_so() {
    let (masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    delete(&masters, "k");
    assert!(matches!(lock.extend().await, Err(ExtendError::Lost { .. })));
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert_eq!(lock.release().await.unwrap(), Released::AlreadyOver);
}

#[tokio::test]
async fn expired_lock_cannot_be_extended() {
    let (_masters, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(Duration::from_millis(200)).acquire().await.unwrap();
    eventually_async(PATIENCE, "the lock has expired", async || lock.remaining().is_zero()).await;
    assert!(matches!(lock.extend().await, Err(ExtendError::Lost { .. })));
}

#[tokio::test]
async fn dropped_lock_is_released_everywhere_within_100_ms() {
    let (masters, quorum) = quorum(5).await;
    let mut fastest = Duration::MAX;
    // On a busy machine one try may be late, but not all of them.
    for n in 0..5 {
        let key = format!("k{n}");
        let lock = quorum.lock(&key).acquire().await.unwrap();
        wait_until_all_hold(&masters, &key).await;
        drop(lock);
        let dropped = Instant::now();
        wait_until_free(&masters, &key).await;
        fastest = fastest.min(dropped.elapsed());
    }
    assert!(fastest < Duration::from_millis(100), "took {fastest:?}");
}

#[tokio::test]
async fn acquire_dropped_at_any_point_leaves_nothing() {
    let (masters, quorum) = quorum(5).await;
    for polls in 0..40 {
        let builder = quorum.lock("k").wait(Duration::ZERO);
        let mut acquiring = Box::pin(builder.acquire());
        // Polls the future at most `polls` times, and then drops it.
        let partly_polled = std::future::poll_fn({
            let mut left = polls;
            move |cx| {
                if left == 0 {
                    return std::task::Poll::Ready(());
                }
                left -= 1;
                acquiring.as_mut().poll(cx).map(drop)
            }
        });
        partly_polled.await;
    }
    quorum.flush(PATIENCE).await.unwrap();
    assert_eq!(masters_holding(&masters, "k"), 0);
}

#[tokio::test]
async fn server_without_the_module_is_reported_without_a_token() {
    let plain = Server::builder().start().unwrap();
    let quorum = Quorum::connect([plain.url()]).await.unwrap();
    let error = quorum.lock("k").try_acquire().await.unwrap_err();
    assert_eq!(first_failure(&error), &NodeError::NoModule);
    let text = format!("{error} {error:?}");
    assert!(text.contains("loadmodule"), "{text}");
    assert!(!text.contains("with args"), "{text}");
}

#[tokio::test]
async fn invalid_quorum_or_lock_is_refused() {
    let Err(error) = Quorum::connect(["redis://user:secret@[", "x"]).await else {
        panic!("these are not URLs")
    };
    assert!(!error.to_string().contains("secret"), "{error}");

    let quorum = Quorum::connect(["redis://127.0.0.1:1"]).await.unwrap();
    for ttl in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
        let error = quorum.lock("k").ttl(ttl).try_acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::InvalidRequest { .. }), "{ttl:?}: {error}");
    }
    let error =
        quorum.lock("k").node_timeout(Duration::from_secs(60)).try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::InvalidRequest { .. }));
}

/// If the send queue of a connection were full, a RELEASE could overtake its own ACQUIRE.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_many_concurrent_tasks_are_released_on_every_node() {
    let (masters, quorum) = quorum(3).await;
    let acquire_and_release = |task| {
        let quorum = quorum.clone();
        async move {
            for _ in 0..50 {
                let builder = quorum.lock(format!("k{task}")).ttl(Duration::from_secs(60));
                let lock = builder.acquire().await.unwrap();
                assert_eq!(lock.release().await.unwrap(), Released::Released);
            }
        }
    };
    // First each caller has its own task, and then all callers share one.
    (0..200).map(acquire_and_release).collect::<JoinSet<_>>().join_all().await;
    join_all((0..200).map(acquire_and_release)).await;
    eventually_async(PATIENCE, "no key is left on any node", async || {
        masters.iter().all(|master| keys(master) == 0)
    })
    .await;
    for master in &masters {
        let refusals: u64 = info(master, "lock_refusals");
        assert_eq!(refusals, 0, "a task found its previous lock still held");
    }
}

fn keys(master: &Server) -> usize {
    redis::cmd("DBSIZE").query(&mut master.connection()).unwrap()
}
