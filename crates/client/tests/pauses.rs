//! Pauses of the process itself, in which no node is silent, and runtimes that end.

use std::time::Duration;

use crate::common::{
    Net, PATIENCE, calls, connect, exists, net, nodes_holding, quorum, wait_until_free,
};
use quorlock_client::{AcquireError, ExtendError, Ownership, ReleaseError};
use quorlock_testkit::{Direction, Nodes, Server, eventually};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

/// The time limit of a node: longer than the steps of a test before its pause.
const LIMIT: Duration = Duration::from_millis(700);

/// Waits until all nodes have carried out a request, while the proxies hold their answers. Then
/// stops the only thread of the runtime for this long. Meanwhile, the answers arrive.
async fn pause_before_the_answers(net: &Net, is_done: impl Fn(&Server) -> bool, lasts: Duration) {
    while !net.nodes.iter().all(&is_done) {
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
    pause_before_the_answers(&net, |node| exists(node, "k"), LIMIT * 2).await;
    drop(call.await.unwrap().unwrap());
}

#[tokio::test]
async fn lock_that_a_majority_extended_during_a_pause_is_extended() {
    let net = net(3).await;
    let ttl = Duration::from_secs(6);
    let mut lock = net.quorum.lock("k").ttl(ttl).node_timeout(LIMIT).acquire().await.unwrap();
    net.hold(Direction::ToClient);
    let extending = tokio::spawn(async move { lock.extend().await.map(|()| lock) });
    pause_before_the_answers(&net, |node| calls(node, "lock.extend") > 0, ttl / 2).await;
    let lock = extending.await.unwrap().unwrap();
    assert!(matches!(lock.ownership(), Ownership::Held(_)), "{lock:?}");
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
    let is_sent = || calls(&net.nodes[0], "lock.extend") > 0;
    eventually(PATIENCE, "the extension is sent", is_sent);
    drop(first);
    let error = extending.join().unwrap().unwrap_err();
    assert!(matches!(error, ExtendError::RuntimeEnded), "{error}");
}

#[tokio::test]
async fn client_that_slept_through_its_ttl_holds_nothing() {
    let (nodes, quorum) = quorum(3).await;
    let builder = quorum.lock("k").ttl(Duration::from_secs(1));
    let mut acquiring = Box::pin(builder.try_acquire());
    // The first poll queues the requests, and the yield sends them. Then the client does nothing,
    // as when its machine sleeps.
    assert!(futures_util::poll!(acquiring.as_mut()).is_pending());
    tokio::task::yield_now().await;
    eventually(PATIENCE, "the nodes have granted", || nodes_holding(&nodes, "k") == 3);
    let slept = std::time::Instant::now();
    eventually(PATIENCE, "the ttl is over", || slept.elapsed() > Duration::from_secs(1));
    let error = acquiring.await.unwrap_err();
    assert!(matches!(error, AcquireError::InsufficientValidity { .. }), "{error}");
    wait_until_free(&nodes, "k").await;
}

#[test]
fn release_fails_without_panic_after_the_runtime_has_ended() {
    let nodes = Nodes::start(3);
    let (own, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let lock =
        own.block_on(async { connect(nodes.urls()).await.lock("k").acquire().await.unwrap() });
    drop(own);
    let released = other.block_on(lock.release());
    assert!(matches!(released, Err(ReleaseError::NoQuorum { .. })), "{released:?}");
}
