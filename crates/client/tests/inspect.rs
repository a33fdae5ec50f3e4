//! What the nodes say about a key, on real masters.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, connect, connect_blocking, delete_on, exists, masters_with_equal_fences, patiently,
    quorum, wait_until_all_hold, wait_until_free,
};
use quorlock_client::{Fence, InspectError, Inspection, LockState, NodeError};
use quorlock_testkit::{Direction, Masters, Proxy, eventually_async};

#[tokio::test]
async fn held_lock_is_described_and_a_released_lock_is_free() {
    let (masters, quorum) = quorum(3).await;
    assert_eq!(quorum.inspect("k").await.unwrap().state, LockState::Free);
    let lock =
        quorum.lock("k").ttl(Duration::from_secs(20)).owner("web-3").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
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
    wait_until_free(&masters, "k").await;
    assert_eq!(quorum.inspect("k").await.unwrap().state, LockState::Free);
}

#[tokio::test]
async fn node_that_was_repaired_after_a_del_counts_as_holding() {
    let masters = masters_with_equal_fences();
    let (fence, inspection) = inspect_repaired(&masters).await;
    let LockState::Held(held) = &inspection.state else { panic!("{inspection}") };
    assert_eq!((&held.nodes[..], held.fence), (&[0, 1, 2][..], fence), "{inspection}");
    let repaired = inspection.nodes[1].lease.as_ref().unwrap().as_ref().unwrap();
    assert!(repaired.fence > Some(fence), "a node never grants a fence twice: {inspection}");

    // The fences of new masters differ, so that after the repair no majority has one in common.
    let (_, inspection) = inspect_repaired(&Masters::start(3)).await;
    assert_eq!(inspection.holding_nodes().count(), 3, "{inspection}");
}

/// Acquires a lock, deletes it on the second node, and inspects it after the repair. Returns the
/// fence of the lock, too.
async fn inspect_repaired(masters: &Masters) -> (Fence, Inspection) {
    let quorum = connect(masters.urls()).await;
    let mut lock = patiently(&quorum, "k").acquire().await.unwrap();
    wait_until_all_hold(masters, "k").await;
    delete_on(&masters[1], "k");
    eventually_async(PATIENCE, "an extension repairs the node", async || {
        lock.extend().await.unwrap();
        exists(&masters[1], "k")
    })
    .await;
    (lock.fence(), quorum.inspect("k").await.unwrap())
}

#[tokio::test]
async fn waiters_and_keys_are_counted() {
    let (masters, quorum) = quorum(3).await;
    let lock = quorum.lock_all(["a", "b"]).acquire().await.unwrap();
    wait_until_all_hold(&masters, "a").await;
    let waiting = tokio::spawn({
        let quorum = connect(masters.urls()).await;
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
    let masters = masters_with_equal_fences();
    let proxy = Proxy::start(masters[1].url());
    let quorum = connect([masters[0].url(), proxy.url(), masters[2].url()]).await;
    let lock = quorum.lock("k").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    proxy.hold(Direction::ToClient);
    let inspection = quorum.inspect("k").await.unwrap();
    let LockState::Held(held) = &inspection.state else { panic!("{inspection}") };
    assert_eq!(held.fence, lock.fence());
    assert_eq!(held.nodes, [0, 2]);
    assert!(matches!(inspection.nodes[1].lease, Err(NodeError::TimedOut { .. })), "{inspection}");
}

#[tokio::test]
async fn key_is_unclear_without_a_majority_and_unknown_without_an_answer() {
    let (mut masters, quorum) = quorum(3).await;
    masters[0].kill();
    masters[1].kill();
    let inspection = quorum.inspect("k").await.unwrap();
    assert_eq!(inspection.state, LockState::Unclear, "{inspection}");
    assert_eq!(inspection.nodes[2].lease, Ok(None), "{inspection}");
    masters[2].kill();
    let InspectError::NoAnswer { nodes } = quorum.inspect("k").await.unwrap_err() else {
        panic!("no node answers")
    };
    assert_eq!(nodes.failed().count(), 3, "{nodes}");
}

#[tokio::test]
async fn node_that_forgot_a_lock_does_not_call_it_free() {
    let (mut masters, quorum) = quorum(3).await;
    let _lock =
        quorum.lock("k").ttl(Duration::from_secs(30)).owner("web-3").acquire().await.unwrap();
    wait_until_all_hold(&masters, "k").await;
    for forgetful in [0, 1] {
        masters[forgetful].set_arg("lock.rejoin-delay", 30_000);
        masters[forgetful].restart().unwrap();
    }
    eventually_async(PATIENCE, "both abstain", async || {
        let nodes = quorum.inspect("k").await.unwrap().nodes;
        nodes[..2].iter().all(|node| matches!(node.lease, Err(NodeError::Abstains { .. })))
    })
    .await;
    let inspection = quorum.inspect("k").await.unwrap();
    assert_eq!(inspection.state, LockState::Unclear, "{inspection}");
    let still_held = inspection.nodes[2].lease.as_ref().unwrap().as_ref().unwrap();
    assert_eq!(still_held.owner.as_deref(), Some("web-3"));
}

#[tokio::test]
async fn key_of_another_program_has_no_fence_and_is_unclear() {
    let (masters, quorum) = quorum(3).await;
    for master in &masters {
        redis::cmd("SET").arg("k").arg("x").exec(&mut master.connection()).unwrap();
    }
    let inspection = quorum.inspect("k").await.unwrap();
    assert_eq!(inspection.state, LockState::Unclear);
    for node in &inspection.nodes {
        let lease = node.lease.as_ref().unwrap().as_ref().unwrap();
        assert_eq!((lease.fence, lease.ttl), (None, None));
    }
}

#[tokio::test]
async fn default_owner_names_this_process() {
    let (_masters, quorum) = quorum(3).await;
    let _lock = quorum.lock("k").acquire().await.unwrap();
    let inspection = quorum.inspect("k").await.unwrap();
    let LockState::Held(held) = &inspection.state else { panic!("{inspection}") };
    let owner = held.owner.as_deref().unwrap();
    assert!(owner.ends_with(&format!(":{}", std::process::id())), "{owner}");
}

#[test]
fn blocking_quorum_inspects_too() {
    let masters = Masters::start(3);
    let quorum = connect_blocking(masters.urls());
    let lock = quorum.lock("k").acquire().unwrap();
    let LockState::Held(held) = quorum.inspect("k").unwrap().state else {
        panic!("the lock is held")
    };
    assert_eq!(held.fence, lock.fence());
}
