//! What the nodes say about a key, on real nodes.

use std::time::Duration;

use crate::common::{
    PATIENCE, connect, nodes_with_equal_fences, quorum, wait_until_all_hold, wait_until_free,
};
use quorlock_client::{InspectError, LockState, NodeError};
use quorlock_testkit::{Direction, Proxy, eventually_async};

#[tokio::test]
async fn held_lock_is_described_and_a_released_lock_is_free() {
    let (nodes, quorum) = quorum(3).await;
    assert_eq!(quorum.inspect("k").await.unwrap().state, LockState::Free);
    let lock =
        quorum.lock("k").ttl(Duration::from_secs(20)).owner("web-3").acquire().await.unwrap();
    wait_until_all_hold(&nodes, "k").await;
    let inspection = quorum.inspect("k").await.unwrap();
    let LockState::Held(held) = &inspection.state else { panic!("{inspection}") };
    assert_eq!((held.fence, held.owner.as_deref()), (lock.fence(), Some("web-3")));
    assert!(
        held.at_most > Duration::from_secs(15) && held.at_most <= Duration::from_secs(20),
        "{held:?}"
    );
    assert!(inspection.holding_nodes().count() >= 2, "{inspection}");
    let text = inspection.to_string();
    assert!(text.starts_with("held by web-3, fence ") && text.lines().count() == 4, "{text}");
    lock.release().await.unwrap();
    wait_until_free(&nodes, "k").await;
    assert_eq!(quorum.inspect("k").await.unwrap().state, LockState::Free);
}

#[tokio::test]
async fn waiters_and_keys_are_counted() {
    let (nodes, quorum) = quorum(3).await;
    let lock = quorum.lock_all(["a", "b"]).acquire().await.unwrap();
    wait_until_all_hold(&nodes, "a").await;
    let waiting = tokio::spawn({
        let quorum = connect(nodes.urls()).await;
        async move { quorum.lock("a").acquire().await.unwrap().release().await }
    });
    eventually_async(PATIENCE, "each node has the waiter", async || {
        let inspection = quorum.inspect("a").await.unwrap();
        let leases = inspection.nodes.iter().filter_map(|node| node.lease.as_ref().ok()?.as_ref());
        leases.filter(|lease| (lease.keys, lease.waiters) == (2, 1)).count() == 3
    })
    .await;
    lock.release().await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn one_silent_node_is_an_error_of_that_node_only() {
    let nodes = nodes_with_equal_fences();
    let proxy = Proxy::start(nodes[1].url());
    let quorum = connect([nodes[0].url(), proxy.url(), nodes[2].url()]).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&nodes, "k").await;
    proxy.hold(Direction::ToClient);
    let inspection = quorum.inspect("k").await.unwrap();
    let LockState::Held(held) = &inspection.state else { panic!("{inspection}") };
    assert_eq!(held.fence, lock.fence());
    assert_eq!(held.nodes, [0, 2]);
    assert!(matches!(inspection.nodes[1].lease, Err(NodeError::TimedOut { .. })), "{inspection}");
}

#[tokio::test]
async fn key_is_unclear_without_a_majority_and_unknown_without_an_answer() {
    let (mut nodes, quorum) = quorum(3).await;
    nodes[0].kill();
    nodes[1].kill();
    let inspection = quorum.inspect("k").await.unwrap();
    assert_eq!(inspection.state, LockState::Unclear, "{inspection}");
    assert_eq!(inspection.nodes[2].lease, Ok(None), "{inspection}");
    nodes[2].kill();
    let InspectError::NoAnswer { nodes } = quorum.inspect("k").await.unwrap_err() else {
        panic!("no node answers")
    };
    assert_eq!(nodes.failed().count(), 3, "{nodes}");
}

#[tokio::test]
async fn default_owner_names_this_process() {
    let (_nodes, quorum) = quorum(3).await;
    let _lock = quorum.lock("k").acquire().await.unwrap();
    let inspection = quorum.inspect("k").await.unwrap();
    let LockState::Held(held) = &inspection.state else { panic!("{inspection}") };
    let owner = held.owner.as_deref().unwrap();
    assert!(owner.ends_with(&format!(":{}", std::process::id())), "{owner}");
}
