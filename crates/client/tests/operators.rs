//! Locks that an operator inspects, revokes or lists, on real nodes.

use std::time::Duration;

use crate::common::{
    PATIENCE, connect, connect_blocking, nodes_with_equal_fences, quorum, wait_until_all_hold,
    wait_until_free,
};
use quorlock_client::{
    Answer, ExtendError, InspectError, LockState, LostError, NodeError, NodeRevocation, Ownership,
    RevocationState, RevokeError, ScanError,
};
use quorlock_testkit::{Direction, Nodes, Proxy};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(2);

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn revoked_lock_lasts_until_its_deadline_and_not_longer() {
    let (nodes, quorum) = quorum(3).await;
    let mut lock = quorum.lock("k").ttl(TTL).owner("web-3").acquire().await.unwrap();
    lock.renew();
    wait_until_all_hold(&nodes, "k").await;
    let operator = connect(nodes.urls()).await;
    let mut revocation = operator.revoke("k").await.unwrap();
    let report = revocation.report();
    assert_eq!(report.state, RevocationState::Revoked);
    assert!(report.remaining <= TTL + TTL / 50, "{report:?}");
    for node in &report.nodes {
        let NodeRevocation::Revoked(lease) = &node.result else { panic!("{report:?}") };
        assert_eq!((lease.owner.as_deref(), lease.revoked), (Some("web-3"), true));
    }
    let error = lock.extend().await.unwrap_err();
    let ExtendError::Revoked { nodes: answers } = &error else { panic!("{error}") };
    let is_told = |node: &quorlock_client::NodeAnswer| match node.answer {
        Answer::Failed(NodeError::Revoked { left_ms }) => left_ms <= 2000,
        _ => false,
    };
    assert!(answers.0.iter().filter(|node| is_told(node)).count() >= 2, "{answers}");
    assert!(matches!(lock.ownership(), Ownership::Uncertain(_)), "{:?}", lock.ownership());
    let left = lock.remaining();
    assert!(!left.is_zero());
    let lost = timeout(left + Duration::from_secs(1), lock.lost())
        .await
        .expect("the lock is lost at its deadline");
    assert!(matches!(lost, LostError::Revoked { .. }), "{lost}");
    timeout(PATIENCE, revocation.ended()).await.expect("the lock is over by its deadline");
    assert_eq!(revocation.report().state, RevocationState::Over);
    operator.lock("k").acquire().await.unwrap().release().await.unwrap();
}

#[test]
fn blocking_calls_revoke_and_list() {
    let nodes = Nodes::start(3);
    let quorum = connect_blocking(nodes.urls());
    let locks = [("a", TTL * 2), ("b", LONG)]
        .map(|(key, ttl)| quorum.lock(key).ttl(ttl).acquire().unwrap());
    let list = quorum.scan("[a-b]", 1).unwrap();
    assert_eq!((list.locks.len(), list.is_truncated), (1, true));

    let mut revocation = quorum.revoke("a").unwrap();
    assert!(!revocation.ended(Duration::ZERO));
    assert_eq!(revocation.report().state, RevocationState::Revoked);
    assert!(revocation.ended(PATIENCE));
    assert!(quorum.revoke_now("b").unwrap().ended(PATIENCE));
    drop(locks);
}

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

    let _lock = quorum.lock("k").acquire().await.unwrap();
    let LockState::Held(held) = quorum.inspect("k").await.unwrap().state else { panic!("free") };
    let (owner, this_process) = (held.owner.unwrap(), format!(":{}", std::process::id()));
    assert!(owner.ends_with(&this_process), "{owner}");
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
async fn key_is_unclear_without_a_majority_and_calls_fail_without_an_answer() {
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
    let error = quorum.revoke("k").await.err().expect("no node answers");
    let RevokeError::NoAnswer { nodes } = &error else { panic!("{error}") };
    assert_eq!(nodes.failed().count(), 3, "{nodes}");
    let error = quorum.scan("*", 10).await.unwrap_err();
    let ScanError::NoAnswer { nodes } = &error else { panic!("{error}") };
    assert_eq!(nodes.failed().count(), 3, "{nodes}");
}
