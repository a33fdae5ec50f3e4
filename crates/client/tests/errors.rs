//! Short examples of the errors of the API, in the order of src/api/error.rs. Those of `NodeError`
//! come last.
//!
//! Other files have the examples of these errors: nodes.rs of `InvalidUrl` and `SameServer`,
//! results.rs of `Denied`, `Misconfigured`, `NoModule` and `Replica`, blocking.rs of `NotAdmitted`,
//! kinds.rs of `NotShareable` and `TimedOut`, operators.rs of `InspectError`, `RevokeError`,
//! `ScanError` and the errors `Revoked`.
//!
//! These errors have no example: `NoThread`, which needs a system that cannot start a thread;
//! `QueueFull`, after which the client makes a new attempt; `AwaitsMajority`; `HeldByLostRequest`;
//! `ErrorReply`, `TtlTooLong` and `UnexpectedReply`, of which the test vectors of the protocol have
//! examples.

use std::thread;
use std::time::Duration;

use crate::common::{
    Net, PATIENCE, connect, delete, first_failure, net, patiently, quorum, wait_until_all_hold,
};
use futures_util::FutureExt as _;
use quorlock_client::{
    AcquireError, Answer, AttachError, ConnectError, ExtendError, FlushError, LockBuilder,
    LostError, NodeAnswers, NodeError, Quorum, ReleaseError, RunError,
};
use quorlock_testkit::{Direction, Inject as _, Nodes, Proxy, Server, WallClock, eventually_async};

/// Slows the network down too much for the lock on `s` that this function returns. The drift takes
/// 12 ms of the 20 ms above `min_validity`, and the network takes more than the rest.
fn too_strict(net: &Net) -> LockBuilder {
    net.delay(Direction::ToClient, Duration::from_millis(50));
    net.quorum.lock("s").ttl(Duration::from_secs(1)).min_validity(Duration::from_millis(980))
}

fn assert_all_failed(nodes: &NodeAnswers) {
    assert_eq!((nodes.0.len(), nodes.failed().count()), (3, 3), "{nodes}");
}

#[tokio::test]
async fn connect_errors_name_what_to_change() {
    let none = Quorum::connect([""; 0]).await.unwrap_err();
    assert!(matches!(none, ConnectError::NoNodes), "{none}");

    let twice = Quorum::connect(["redis://a", "redis://b", "redis://a:6379/"]).await.unwrap_err();
    let ConnectError::DuplicateNode { node } = &twice else { panic!("{twice}") };
    assert_eq!(node, "a:6379");

    let outside = thread::spawn(|| Quorum::connect(["redis://a"]).now_or_never());
    let error = outside.join().unwrap().unwrap().unwrap_err();
    assert!(matches!(error, ConnectError::NoRuntime), "{error}");

    let broken = "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n";
    let builder = Quorum::builder().node("rediss://a").root_certificates(broken);
    let error = builder.connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. }), "{error}");
}

#[tokio::test]
async fn acquire_errors_distinguish_a_held_lock_from_a_failing_quorum() {
    let net = net(3).await;
    let held = net.quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&net.nodes, "k").await;
    let error = net.quorum.lock("k").try_acquire().await.unwrap_err();
    let AcquireError::Held { nodes, .. } = &error else { panic!("{error}") };
    assert!(nodes.0.iter().any(|node| node.answer == Answer::Refused), "{nodes}");

    held.release().await.unwrap();

    let error = too_strict(&net).try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::InsufficientValidity { .. }), "{error}");
    net.heal();

    let error = net.quorum.lock("k").ttl(Duration::ZERO).acquire().await.unwrap_err();
    let AcquireError::InvalidRequest { reason } = &error else { panic!("{error}") };
    assert!(reason.contains("ttl"), "{reason}");

    net.hold(Direction::ToClient);
    let limit = Duration::from_millis(50);
    let error = net.quorum.lock("n").node_timeout(limit).try_acquire().await.unwrap_err();
    let AcquireError::NoQuorum { nodes } = &error else { panic!("{error}") };
    assert_all_failed(nodes);
    assert!(!nodes.is_permanent(), "{nodes}");
}

#[tokio::test]
async fn extend_errors_distinguish_a_lost_lock_from_a_held_one() {
    let net = net(3).await;
    let ttl = Duration::from_secs(30);
    let builder = net.quorum.lock("k").ttl(ttl).node_timeout(Duration::from_millis(200));
    let mut lock = builder.acquire().await.unwrap();
    net.hold(Direction::ToClient);
    let error = lock.extend().await.unwrap_err();
    let ExtendError::NoQuorum { nodes } = &error else { panic!("{error}") };
    // Two failures decide the extension. The answer of the third node may be pending.
    assert!(nodes.failed().count() >= 2, "{nodes}");
    assert!(!lock.remaining().is_zero());
    net.heal();

    delete(&net.nodes, "k");
    eventually_async(PATIENCE, "an extension reports the loss", async || {
        matches!(lock.extend().await, Err(ExtendError::Lost { .. }))
    })
    .await;

    let max = ttl * 3 / 4;
    let mut short = net.quorum.lock("s").ttl(ttl).max_hold(max).acquire().await.unwrap();
    let error = short.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::HeldTooLong { max_hold } if max_hold == max), "{error}");
}

#[tokio::test]
async fn lost_errors_say_how_the_lock_ended() {
    let (nodes, quorum) = quorum(3).await;
    let ttl = Duration::from_secs(3);
    let mut ended = quorum.lock("ended").ttl(ttl).acquire().await.unwrap();
    ended.renew();
    delete(&nodes, "ended");
    let expired = quorum.lock("expired").ttl(ttl).acquire().await.unwrap();
    let mut too_long = quorum.lock("long").ttl(ttl).max_hold(ttl).acquire().await.unwrap();
    too_long.renew();

    let error = ended.lost().await;
    assert!(matches!(error, LostError::Ended { .. }), "{error}");
    let error = expired.lost().await;
    assert!(matches!(error, LostError::Expired { .. }), "{error}");
    assert!(error.to_string().contains("expired before it was extended"), "{error}");
    let error = too_long.lost().await;
    assert!(matches!(error, LostError::HeldTooLong { max_hold } if max_hold == ttl), "{error}");
}

#[tokio::test]
async fn run_errors_say_whether_the_work_was_done() {
    let (nodes, quorum) = quorum(3).await;
    let lock = quorum.lock("k").ttl(Duration::from_secs(3)).wait(Duration::ZERO);
    let stopped = lock.run(|_| async {
        delete(&nodes, "k");
        std::future::pending::<()>().await;
    });
    let error = stopped.await.unwrap_err();
    assert!(matches!(error, RunError::Lost { finished: false, .. }), "{error}");

    let too_late = lock.run(|_| async { delete(&nodes, "k") }).await.unwrap_err();
    assert!(matches!(too_late, RunError::Lost { finished: true, .. }), "{too_late}");

    let _held = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&nodes, "k").await;
    let error = lock.run(|_| async {}).await.unwrap_err();
    assert!(matches!(error, RunError::NotAcquired(AcquireError::Held { .. })), "{error}");
}

#[tokio::test]
async fn attach_errors_say_whether_the_lock_is_gone() {
    let net = net(3).await;
    let detached = net.quorum.lock("k").acquire().await.unwrap().detach();
    let other = net.quorum.lock("other").attach(detached.clone()).await.unwrap_err();
    assert!(matches!(other, AttachError::InvalidRequest { .. }), "{other}");

    net.quorum.release_detached(detached.clone()).await.unwrap();
    let gone = net.quorum.attach(detached).await.unwrap_err();
    assert!(matches!(gone, AttachError::Gone { .. }), "{gone}");

    let detached = net.quorum.lock("s").acquire().await.unwrap().detach();
    let late = too_strict(&net).attach(detached).await.unwrap_err();
    assert!(matches!(late, AttachError::InsufficientValidity { .. }), "{late}");
    net.heal();

    let detached = net.quorum.lock("n").acquire().await.unwrap().detach();
    net.hold(Direction::ToClient);
    let lock = net.quorum.lock("n").node_timeout(Duration::from_millis(50));
    let error = lock.attach(detached).await.unwrap_err();
    let AttachError::NoQuorum { nodes } = &error else { panic!("{error}") };
    assert_all_failed(nodes);
}

#[tokio::test]
async fn release_and_flush_errors_leave_releases_in_the_background() {
    let net = net(3).await;
    let lock = net.quorum.lock("k").ttl(Duration::from_secs(2));
    let lock = lock.node_timeout(Duration::from_millis(100)).acquire().await.unwrap();
    net.hold(Direction::ToClient);
    let ReleaseError::NoQuorum { nodes } = lock.release().await.unwrap_err() else {
        panic!("no node answers")
    };
    assert_all_failed(&nodes);
    let FlushError { pending } = net.quorum.flush(Duration::from_millis(10)).await.unwrap_err();
    assert_eq!(pending, 1);
    net.heal();
    net.quorum.flush(PATIENCE).await.unwrap();
}

async fn node_error(quorum: &Quorum) -> NodeError {
    first_failure(&patiently(quorum, "k").try_acquire().await.unwrap_err()).clone()
}

#[tokio::test]
async fn node_that_cannot_be_reached_in_time_is_down_silent_or_too_far() {
    let down = Quorum::connect(["redis+unix:///there/is/no/such/socket"]).await.unwrap();
    assert!(matches!(node_error(&down).await, NodeError::Down { .. }));

    let net = net(1).await;
    let quorum = Quorum::connect([net.proxies[0].url()]).await.unwrap();
    patiently(&quorum, "warm").acquire().await.unwrap().release().await.unwrap();
    net.hold(Direction::ToClient);
    let error = quorum.lock("k").try_acquire().await.unwrap_err();
    let error = first_failure(&error);
    assert!(matches!(error, NodeError::TimedOut { limit_ms: 50..=2500 }), "{error}");
    net.heal();

    let far = Proxy::start(net.nodes[0].url());
    far.delay(Direction::ToClient, Duration::from_millis(120));
    let quorum = Quorum::connect([far.url()]).await.unwrap();
    let lock =
        quorum.lock("k").ttl(Duration::from_millis(200)).min_validity(Duration::from_millis(1));
    let error = lock.try_acquire().await.unwrap_err();
    let NodeError::TooFar { limit_ms, ttl_needed_ms, .. } = first_failure(&error) else {
        panic!("{error}")
    };
    assert_eq!(*limit_ms, 50);
    assert!(*ttl_needed_ms >= 960, "{error}");
    assert!(error.to_string().contains("set a ttl of at least"), "{error}");
}

#[tokio::test]
async fn node_of_a_cluster_is_named_with_its_mode() {
    let cluster = Server::builder().arg("cluster-enabled", "yes").start().unwrap();
    let quorum = Quorum::connect([cluster.url()]).await.unwrap();
    assert_eq!(node_error(&quorum).await, NodeError::WrongMode { mode: "cluster".into() });
}

#[tokio::test]
async fn node_whose_clock_is_far_behind_is_named() {
    let ahead = WallClock::new();
    ahead.step_ms(3_600_000);
    let with_wrong_clock = Server::with_module().wall_clock(&ahead).start().unwrap();
    let behind = Server::with_module().start().unwrap();
    let quorum = connect([with_wrong_clock.url(), behind.url()]).await;
    // Both nodes must store one fence. The fences of the first node are too large for the second.
    let error = node_error(&quorum).await;
    assert!(matches!(error, NodeError::ClockBehind { .. }), "{error}");
}

/// Longer than any test takes.
const LONG_MS: u64 = 100_000;

#[tokio::test]
async fn abstaining_majority_is_named_with_the_answer_of_each_node() {
    let nodes = Nodes::start_with(5, |index, builder| {
        if index < 3 { builder.arg("lock.rejoin-delay", LONG_MS) } else { builder }
    });
    let nodes = nodes.unwrap();
    let quorum = connect(nodes.urls()).await;
    let error = patiently(&quorum, "k").try_acquire().await.unwrap_err();
    let said = error.to_string();
    let AcquireError::NoQuorum { nodes: answers } = error else { panic!("{error}") };
    let failed: Vec<_> = answers.failed().collect();
    assert_eq!(failed.len(), 3, "{answers}");
    for ((node, error), url) in failed.into_iter().zip(nodes.urls()) {
        assert!(url.contains(node), "{url} is not {node}");
        let NodeError::Abstains { reason } = error else { panic!("{node}: {error}") };
        let (ms, why) = reason.split_once(' ').unwrap();
        assert!((1..=LONG_MS).contains(&ms.parse::<u64>().unwrap()), "{reason}");
        assert!(why.starts_with("start: "), "{reason}");
        // Nodes with the same answer share a line.
        assert!(said.contains(&format!(": abstains: {reason}")) && said.contains(node), "{said}");
    }
}
