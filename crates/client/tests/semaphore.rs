//! Semaphores, and locks on one of several keys.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{
    PATIENCE, Recorder, assert_refused, connect, delete, delete_on, masters_holding, quorum,
    spawn_acquire, until_in_line, wait_until_all_hold, wait_until_free,
};
use quorlock_client::AcquireError;
use quorlock_testkit::{Masters, Server, eventually_async};
use tokio::task::JoinSet;
use tracing::Level;

/// How often these commands were called, on all masters together.
fn calls(masters: &Masters, names: &[&str]) -> u64 {
    let of = |master: &Server| names.iter().map(|name| common::calls(master, name)).sum::<u64>();
    masters.iter().map(of).sum()
}

#[tokio::test]
async fn larger_number_of_permits_is_noticed_when_the_semaphore_is_full() {
    let (masters, theirs) = quorum(3).await;
    let ours = connect(masters.urls()).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(theirs.semaphore("s", 3).try_acquire().await.unwrap());
    }
    let warnings = Recorder::new(Level::WARN);
    let _listening = tracing::subscriber::set_default(warnings.clone());
    let inspected = || calls(&masters, &["lock.inspect"]);
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
    assert!(warned.contains("permits=2") && warned.contains("larger=3"), "{warned}");
    assert_eq!(
        inspected() - before,
        3 * 61 + 3 * 62,
        "the three calls together compare the permits once"
    );
    assert_eq!(ours.larger_permits("s", 3).await, None);
    assert_eq!(ours.larger_permits("s", 1).await, Some(3));
}

#[tokio::test]
async fn attached_permit_keeps_its_slot() {
    let (_masters, quorum) = quorum(3).await;
    let mut permit = quorum.semaphore("s", 4).acquire().await.unwrap();
    let slot = permit.slot();
    assert!(slot.is_some());
    for _ in 0..2 {
        let text = permit.detach().to_secret_text();
        permit = quorum.attach(text.parse().unwrap()).await.unwrap();
        assert_eq!(permit.slot(), slot);
    }
    let plain = quorum.lock("s:slot1").acquire().await.unwrap().detach();
    assert_eq!(quorum.attach(plain).await.unwrap().slot(), None);
}

#[tokio::test]
async fn slot_of_a_detached_permit_is_not_requested_first() {
    let (masters, quorum) = quorum(3).await;
    for n in 0..5 {
        let semaphore = quorum.semaphore(format!("s{n}"), 2);
        let permit = semaphore.acquire().await.unwrap();
        wait_until_all_hold(&masters, std::str::from_utf8(permit.key()).unwrap()).await;
        let detached = permit.detach();
        // The nodes would grant the slot of the detached permit now.
        delete(&masters, std::str::from_utf8(detached.key()).unwrap());
        let next = semaphore.acquire().await.unwrap();
        assert_ne!(next.key(), detached.key());
    }
}

#[tokio::test]
async fn permits_are_distinct_slots_and_limited_in_number() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let mut held = Vec::new();
    for turn in 0..4 {
        let quorum = if turn % 2 == 0 { &ours } else { &theirs };
        held.push(quorum.semaphore("s", 4).try_acquire().await.unwrap());
    }
    let slots: HashSet<_> = held.iter().map(|permit| permit.slot().unwrap()).collect();
    assert_eq!(slots, HashSet::from([0, 1, 2, 3]));
    for permit in &held {
        assert_eq!(permit.key(), format!("s:{:02}", permit.slot().unwrap()).as_bytes());
    }
    for quorum in [&ours, &theirs] {
        assert_refused(&quorum.semaphore("s", 4).try_acquire().await);
    }
    let freed = held.remove(2);
    let (slot, fence) = (freed.slot(), freed.fence());
    freed.release().await.unwrap();
    let next = theirs.semaphore("s", 4).try_acquire().await.unwrap();
    assert_eq!(next.slot(), slot);
    assert!(next.fence() > fence, "fences of a slot grow");
}

#[tokio::test]
async fn invalid_semaphore_is_refused() {
    let (_masters, quorum) = quorum(1).await;
    for permits in [0, 65, usize::MAX] {
        let refused = quorum.semaphore("s", permits).try_acquire().await;
        let Err(AcquireError::InvalidRequest { reason }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("1 to 64"), "{reason}");
    }
    let refused = quorum.semaphore("s", 2).shared().try_acquire().await;
    assert!(matches!(refused, Err(AcquireError::InvalidRequest { .. })), "{refused:?}");
    let mut only = quorum.semaphore("s", 1).try_acquire().await.unwrap();
    assert!(only.downgrade().await.is_err());
    drop(quorum.semaphore("t", 64).try_acquire().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_never_hold_more_permits_than_there_are() {
    const PERMITS: usize = 3;
    let (masters, ours) = quorum(5).await;
    let theirs = connect(masters.urls()).await;
    let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..12 {
        let quorum = if task % 2 == 0 { ours.clone() } else { theirs.clone() };
        let (held, most) = (Arc::clone(&held), Arc::clone(&most));
        tasks.spawn(async move {
            for _ in 0..15 {
                let builder = quorum.semaphore("s", PERMITS).wait(Duration::from_secs(30));
                let permit = builder.acquire().await.unwrap();
                most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                held.fetch_sub(1, Ordering::SeqCst);
                permit.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let most = most.load(Ordering::SeqCst);
    assert!((2..=PERMITS).contains(&most), "{most} at a time");
    for slot in 0..PERMITS {
        wait_until_free(&masters, &format!("s:{slot:02}")).await;
    }
}

#[tokio::test]
async fn permit_is_handed_over_to_a_waiter_that_does_not_poll() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let first = ours.semaphore("s", 2).acquire().await.unwrap();
    let second = ours.semaphore("s", 2).acquire().await.unwrap();
    let before = calls(&masters, &["lock.acquire*"]);
    let waiter = spawn_acquire(theirs.semaphore("s", 2).wait(PATIENCE));
    until_in_line(&masters, 1).await;
    let slot = second.slot();
    second.release().await.unwrap();
    let granted = waiter.await.unwrap();
    assert_eq!(granted.slot(), slot);
    // On each node the first question and the wait, and a few more in an unlucky order of grants.
    let requests = calls(&masters, &["lock.acquire*"]) - before;
    assert!((5..=20).contains(&requests), "{requests}");
    drop(first);
}

#[tokio::test]
async fn slot_of_a_dead_holder_is_free_by_its_deadline() {
    let (_masters, quorum) = quorum(3).await;
    let ttl = Duration::from_secs(3);
    let dead = quorum.semaphore("s", 1).ttl(ttl).acquire().await.unwrap();
    // No client releases or extends the lock from now on.
    std::mem::forget(dead);
    assert_refused(&quorum.semaphore("s", 1).try_acquire().await);
    let next = quorum.semaphore("s", 1).wait(PATIENCE).acquire().await.unwrap();
    assert_eq!(next.slot(), Some(0));
}

#[tokio::test]
async fn dropped_permit_and_dropped_wait_leave_nothing() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let held = ours.semaphore("s", 1).acquire().await.unwrap();
    let waiter = spawn_acquire(theirs.semaphore("s", 1).wait(PATIENCE));
    until_in_line(&masters, 1).await;
    waiter.abort();
    until_in_line(&masters, 0).await;
    drop(held);
    wait_until_free(&masters, "s:00").await;
    assert!(theirs.semaphore("s", 1).try_acquire().await.is_ok());
}

#[tokio::test]
async fn one_dead_master_of_five_changes_nothing_for_permits() {
    for dead in 0..5 {
        let (mut masters, ours) = quorum(5).await;
        let theirs = connect(masters.urls()).await;
        let first = ours.semaphore("s", 2).acquire().await.unwrap();
        masters[dead].kill();
        let second = theirs.semaphore("s", 2).acquire().await.unwrap();
        assert_refused(&theirs.semaphore("s", 2).try_acquire().await);
        let waiter = spawn_acquire(theirs.semaphore("s", 2).wait(PATIENCE));
        until_in_line(&masters, 1).await;
        first.release().await.unwrap();
        let third = waiter.await.unwrap();
        assert_ne!(second.slot(), third.slot());
    }
}

#[tokio::test]
async fn slot_that_one_node_lost_is_not_granted_twice() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    for master in &masters {
        let first = ours.semaphore("s", 2).acquire().await.unwrap();
        let slot = std::str::from_utf8(first.key()).unwrap();
        wait_until_all_hold(&masters, slot).await;
        delete_on(master, slot);
        let second = theirs.semaphore("s", 2).wait(PATIENCE).acquire().await.unwrap();
        assert_ne!(first.slot(), second.slot());
        let refused = theirs.semaphore("s", 2).try_acquire().await;
        assert!(refused.is_err(), "{refused:?}");
        first.release().await.unwrap();
        second.release().await.unwrap();
    }
}

#[tokio::test]
async fn lock_on_any_key_excludes_other_locks_on_that_key() {
    let (masters, ours) = quorum(3).await;
    let theirs = connect(masters.urls()).await;
    let east = theirs.lock("east").acquire().await.unwrap();
    let any = ours.lock_any(["west", "east"]).acquire().await.unwrap();
    assert_eq!(any.key(), b"west");
    assert_refused(&ours.lock_any(["east", "west"]).try_acquire().await);
    let waiter = spawn_acquire(ours.lock_any(["west", "east"]).wait(PATIENCE));
    until_in_line(&masters, 1).await;
    east.release().await.unwrap();
    let mut east = waiter.await.unwrap();
    assert_eq!(east.key(), b"east");
    east.extend().await.unwrap();
    let attached = theirs.attach(east.detach()).await.unwrap();
    assert_eq!((attached.key(), attached.slot()), (&b"east"[..], Some(0)));
    assert_eq!(masters_holding(&masters, "west"), 3);
}
