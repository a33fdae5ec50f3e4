//! The results of calls are true, also when the process was paused or a runtime ends, and calls
//! that are dropped leave nothing.

use std::pin::pin;
use std::time::Duration;

use crate::common::{
    PATIENCE, connect, delete, exists, first_failure, net, quorum, set_user, spawn_acquire,
    until_in_line, wait_until_all_hold, wait_until_free,
};
use futures_util::poll;
use quorlock_client::{AcquireError, ExtendError, NodeError, Ownership, Quorum, ReleaseError};
use quorlock_testkit::{Direction, Nodes, Proxy, Server, calls, eventually, eventually_async};
use tokio::runtime::Runtime;
use tokio::task::yield_now;
use tokio::time::Instant;

const WRONG_PASSWORD: &str = "wr0ng";

/// Asserts that a call with a long wait fails at once, without a password in its error. Returns its
/// first failure.
async fn error_at_once(urls: impl IntoIterator<Item = String>) -> NodeError {
    let quorum = Quorum::connect(urls).await.unwrap();
    let started = Instant::now();
    let error = quorum.lock("k").wait(Duration::from_secs(60)).acquire().await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let AcquireError::NoQuorum { nodes } = &error else { panic!("{error}") };
    assert!(nodes.is_permanent(), "{error}");
    assert!(!format!("{error} {error:?}").contains(WRONG_PASSWORD), "{error:?}");
    first_failure(&error).clone()
}

#[tokio::test]
async fn permanent_errors_fail_at_once_and_are_named() {
    let node = Server::with_module().tcp().start().unwrap();
    set_user(&node, "locker", "on >pw ~* +lock.acquire +lock.extend +lock.release");
    let of = |user: &str| [node.url().replace("redis://", &format!("redis://{user}@"))];
    let error = error_at_once(of(&format!("locker:{WRONG_PASSWORD}"))).await;
    assert!(matches!(error, NodeError::Denied { .. }), "{error}");
    let error = error_at_once(of("locker:pw")).await;
    assert!(error.to_string().contains("+info"), "{error}");
    let local = Server::with_module().start().unwrap();
    let error = error_at_once([format!("{}?db=999", local.url())]).await;
    assert!(matches!(error, NodeError::Misconfigured { .. }), "{error}");

    let plain: Vec<_> = (0..2).map(|_| Server::builder().start().unwrap()).collect();
    let urls = plain.iter().map(Server::url).chain([node.url()]);
    assert_eq!(error_at_once(urls).await, NodeError::NoModule);

    let replicas: Vec<_> = (0..2).map(|_| Server::with_module().tcp().start().unwrap()).collect();
    for replica in &replicas {
        let mut follow = redis::cmd("REPLICAOF");
        follow.arg("127.0.0.1").arg(node.port()).exec(&mut replica.connection()).unwrap();
    }
    let urls = replicas.iter().map(Server::url).chain([node.url()]);
    let error = error_at_once(urls).await;
    assert_eq!(error, NodeError::Replica);
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test]
async fn dropped_wait_and_dropped_lock_are_gone_everywhere_within_100_ms() {
    let (nodes, quorum) = quorum(5).await;
    let other = connect(nodes.urls()).await;
    let (mut wait_took, mut lock_took) = (Duration::MAX, Duration::MAX);
    // On a busy machine one try may be late, but not all of them.
    for _ in 0..5 {
        let lock = quorum.lock("k").acquire().await.unwrap();
        wait_until_all_hold(&nodes, "k").await;
        let waiting = spawn_acquire(other.lock("k").wait(Duration::from_secs(60)));
        until_in_line(&nodes, 1).await;
        waiting.abort();
        let dropped = Instant::now();
        until_in_line(&nodes, 0).await;
        wait_took = wait_took.min(dropped.elapsed());
        drop(lock);
        let dropped = Instant::now();
        wait_until_free(&nodes, "k").await;
        lock_took = lock_took.min(dropped.elapsed());
    }
    let slowest = wait_took.max(lock_took);
    assert!(slowest < Duration::from_millis(100), "{wait_took:?}, {lock_took:?}");
}

#[tokio::test]
async fn call_that_was_paused_reads_the_grants_before_it_gives_up() {
    // Longer than the steps of this test before the pause.
    const LIMIT: Duration = Duration::from_millis(700);
    let net = net(3).await;
    let lock = net.quorum.lock("k").node_timeout(LIMIT);
    net.hold(Direction::ToClient);
    let call = tokio::spawn(async move { lock.try_acquire().await });
    while !net.nodes.iter().all(|node| exists(node, "k")) {
        tokio::task::yield_now().await;
    }
    // The only thread of the runtime stops. Meanwhile, the answers arrive.
    net.heal();
    std::thread::sleep(LIMIT * 2);
    drop(call.await.unwrap().unwrap());
}

#[test]
fn extension_fails_when_its_runtime_ends_meanwhile() {
    let (first, second) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let (net, mut lock) = first.block_on(async {
        let net = net(3).await;
        let lock = net.quorum.lock("k").acquire().await.unwrap();
        (net, lock)
    });
    net.hold(Direction::ToClient);
    let extending = std::thread::spawn(move || second.block_on(lock.extend()));
    let is_sent = || calls(&net.nodes[0], "lock.extend") > 0;
    eventually(PATIENCE, "the extension is sent", is_sent);
    drop(first);
    let error = extending.join().unwrap().unwrap_err();
    assert!(matches!(error, ExtendError::RuntimeEnded), "{error}");
}

#[test]
fn calls_fail_without_panic_after_the_runtime_has_ended() {
    let nodes = Nodes::start(3);
    let (own, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let mut lock =
        own.block_on(async { connect(nodes.urls()).await.lock("k").acquire().await.unwrap() });
    drop(own);
    let extended = other.block_on(lock.extend());
    assert!(
        matches!(extended, Err(ExtendError::RuntimeEnded)),
        "no node is to blame: {extended:?}"
    );
    let released = other.block_on(lock.release());
    assert!(matches!(released, Err(ReleaseError::NoQuorum { .. })), "{released:?}");
}

#[tokio::test]
async fn extension_that_a_majority_confirms_late_is_no_error() {
    let net = net(3).await;
    let mut lock =
        net.quorum.lock("k").node_timeout(Duration::from_millis(100)).acquire().await.unwrap();
    let watch = lock.watch();
    net.hold(Direction::ToClient);
    let mut extending = pin!(lock.extend());
    assert!(poll!(&mut extending).is_pending());
    eventually_async(PATIENCE, "the time of the nodes is over", async || {
        matches!(watch.ownership(), Ownership::Uncertain(_))
    })
    .await;
    net.heal();
    eventually_async(PATIENCE, "the late answers count", async || {
        matches!(watch.ownership(), Ownership::Held(_))
    })
    .await;
    // The caller reads the first verdict only now.
    extending.await.unwrap();
}

/// Without time, only the verdict can end the wait for the loss.
#[tokio::test]
async fn loss_is_told_with_the_verdict() {
    let (nodes, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").acquire().await.unwrap();
    let watch = lock.watch();
    let losing = tokio::spawn(async move { watch.lost().await });
    delete(&nodes, "k");
    tokio::time::pause();
    // Time stands still as long as a task runs.
    let running = tokio::spawn(async {
        loop {
            yield_now().await;
        }
    });
    lock.extend().await.unwrap_err();
    for _ in 0..100 {
        yield_now().await;
    }
    assert!(losing.is_finished());
    running.abort();
    tokio::time::resume();
}

#[tokio::test]
async fn wait_ends_in_time_although_the_node_is_silent() {
    const WAIT: Duration = Duration::from_millis(300);
    let net = net(1).await;
    let _held = net.quorum.lock("k").acquire().await.unwrap();
    let mut least = Duration::MAX;
    // On a busy machine one try may be late, but not all of them.
    for _ in 0..5 {
        let quorum = connect(net.proxies.iter().map(Proxy::url)).await;
        net.hold(Direction::ToClient);
        let started = Instant::now();
        // The node still owes the answer to a second request when the wait ends.
        let builder = quorum.lock("k").wait(WAIT).node_timeout(WAIT * 2 / 3);
        builder.acquire().await.unwrap_err();
        assert!(started.elapsed() >= WAIT, "{:?}", started.elapsed());
        least = least.min(started.elapsed());
        net.heal();
    }
    assert!(least < WAIT + Duration::from_millis(50), "{least:?}");
}
