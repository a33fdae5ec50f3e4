//! Pauses of the process itself: time in which it did not run is no node's silence.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{Net, PATIENCE, calls, exists, net};
use quorlock_client::{ExtendError, FlushError, Ownership, Quorum};
use quorlock_testkit::{Direction, Masters, Server, eventually, eventually_async};
use tokio::runtime::Builder;
use tokio::task::yield_now;

/// The time limit of a node: longer than the steps of a test before its pause.
const LIMIT: Duration = Duration::from_millis(700);

/// Waits until all nodes have carried out a request, while the proxies hold their answers. Then
/// stops the only thread of the runtime for this long. Meanwhile, the answers arrive.
async fn pause_before_the_answers(net: &Net, is_done: impl Fn(&Server) -> bool, lasts: Duration) {
    while !net.masters.iter().all(&is_done) {
        yield_now().await;
    }
    net.heal();
    std::thread::sleep(lasts);
}

#[tokio::test]
async fn call_that_was_paused_reads_the_grants_before_it_gives_up() {
    let net = net(3).await;
    let lock = net.quorum.lock("k").node_timeout(LIMIT);
    net.hold(Direction::ToClient);
    let call = tokio::spawn(async move { lock.try_acquire().await });
    pause_before_the_answers(&net, |master| exists(master, "k"), LIMIT * 2).await;
    drop(call.await.unwrap().unwrap());
}

#[tokio::test]
async fn lock_that_a_majority_extended_during_a_pause_is_extended() {
    let net = net(3).await;
    let ttl = Duration::from_secs(6);
    let mut lock = net.quorum.lock("k").ttl(ttl).node_timeout(LIMIT).acquire().await.unwrap();
    net.hold(Direction::ToClient);
    let extending = tokio::spawn(async move { lock.extend().await.map(|()| lock) });
    pause_before_the_answers(&net, |master| calls(master, "lock.extend") > 0, ttl / 2).await;
    let lock = extending.await.unwrap().unwrap();
    assert!(matches!(lock.ownership(), Ownership::Held(_)), "{lock:?}");
}

#[tokio::test]
async fn flush_does_not_wait_for_renewals() {
    let net = net(3).await;
    let mut locks = Vec::new();
    for n in 0..30 {
        let mut lock =
            net.quorum.lock(format!("k{n}")).ttl(Duration::from_secs(2)).acquire().await.unwrap();
        lock.renew();
        locks.push(lock);
    }
    // Each round of renewals now awaits an answer that does not arrive.
    net.proxies[2].hold(Direction::ToClient);
    let extends = || calls(&net.masters[0], "lock.extend");
    eventually_async(PATIENCE, "locks are renewed", async || extends() > 30).await;
    assert_eq!(net.quorum.flush(PATIENCE / 10).await, Ok(()));
    drop(locks.pop());
    let pending = net.quorum.flush(PATIENCE / 10).await;
    assert_eq!(pending, Err(FlushError { pending: 1 }), "one release awaits the third node");
    net.heal();
    assert_eq!(net.quorum.flush(PATIENCE).await, Ok(()));
}

#[test]
fn extension_without_its_runtime_blames_no_node() {
    let masters = Masters::start(3);
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (_quorum, mut lock) = first.block_on(async {
        let quorum = Quorum::connect(masters.urls()).await.unwrap();
        let lock = quorum.lock("k").acquire().await.unwrap();
        (quorum, lock)
    });
    drop(first);
    let error = runtime().block_on(lock.extend()).unwrap_err();
    assert!(matches!(error, ExtendError::RuntimeEnded), "{error}");
}

#[test]
fn extension_fails_when_its_runtime_ends_meanwhile() {
    let first = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (net, mut lock) = first.block_on(async {
        let net = net(3).await;
        let lock = net.quorum.lock("k").acquire().await.unwrap();
        (net, lock)
    });
    net.hold(Direction::ToClient);
    let extending = std::thread::spawn(move || {
        let second = Builder::new_current_thread().enable_all().build().unwrap();
        second.block_on(lock.extend())
    });
    let is_sent = || calls(&net.masters[0], "lock.extend") > 0;
    eventually(PATIENCE, "the extension is sent", is_sent);
    drop(first);
    let error = extending.join().unwrap().unwrap_err();
    assert!(matches!(error, ExtendError::RuntimeEnded), "{error}");
}
