//! Revoking a lock on all nodes: what is certain, whatever the holder still does.

use std::time::Duration;

use crate::support::scripted::{Client, TTL, ms, start, ticket};
use quorlock_core::NodeError;
use quorlock_core::client::limits;
use quorlock_core::operator::{
    LeaseInfo, NodeRevocation, Revocation, RevocationState, RevokeCommand, RevokeMode, RevokeReply,
};
use quorlock_core::quorum::Moment;

/// A revocation whose requests the test answers, on three nodes.
struct Operator {
    client: Client,
    now: Moment,
    revocation: Revocation,
}

/// What a node has under the key.
#[derive(Clone, Copy)]
enum Found {
    /// The lock, which an earlier REVOKE has revoked.
    Revoked,
    /// The lock, which is not revoked until the node is sent REVOKE.
    Lock,
    /// The lock of the next holder.
    Next,
    Nothing,
    /// Nothing, but the node was restarted.
    Abstains,
    Unreachable,
}

impl Operator {
    /// Sends REVOKE to all nodes.
    fn revoke(found: [Found; 3]) -> Self {
        let mut client = Client::new(3);
        let revocation = Revocation::new(RevokeMode::AtDeadline, &client.ctx(start()));
        let mut this = Self { client, now: start(), revocation };
        this.answer(found);
        this
    }

    /// Answers all requests.
    fn answer(&mut self, found: [Found; 3]) {
        while let Some(request) = self.revocation.poll() {
            let reply = reply(found[request.node], request.command == RevokeCommand::Revoke);
            let ctx = self.client.ctx(self.now);
            self.revocation.handle_reply(request.node, self.now, reply, &ctx);
        }
    }

    /// Asks the nodes again after this time. Returns the state that follows.
    fn ask_after(&mut self, pause: Duration, found: [Found; 3]) -> RevocationState {
        self.now = self.now.plus(pause);
        self.revocation.handle_timeout(&self.client.ctx(self.now));
        self.answer(found);
        self.revocation.state()
    }
}

fn reply(found: Found, revokes: bool) -> Result<RevokeReply, NodeError> {
    let lease = |fence, revoked| {
        let mut lease = LeaseInfo::default();
        (lease.fence, lease.ttl) = (Some(ticket(fence)), Some(TTL));
        (lease.held_for, lease.revoked) = (Some(Duration::ZERO), revoked);
        Some(lease)
    };
    let (lease, abstains) = match found {
        Found::Unreachable => return Err(NodeError::timed_out(ms(50))),
        Found::Revoked => (lease(1, true), None),
        Found::Lock => (lease(1, revokes), None),
        Found::Next => (lease(2, revokes), None),
        Found::Nothing => (None, None),
        Found::Abstains => (None, Some("it was restarted".to_owned())),
    };
    Ok(RevokeReply { was_locked: revokes && lease.is_some(), lease, abstains })
}

#[test]
fn revocation_is_over_by_the_deadline() {
    let mut operator = Operator::revoke([Found::Lock; 3]);
    let left = operator.revocation.remaining(operator.now);
    assert!((TTL + ms(1)..TTL + ms(20)).contains(&left), "{left:?}");
    let state = operator.ask_after(limits::PAUSE_MAX, [Found::Unreachable; 3]);
    assert_eq!(state, RevocationState::Revoked, "what was revoked stays revoked");
    let state = operator.ask_after(TTL, [Found::Unreachable; 3]);
    assert_eq!(state, RevocationState::Over);
    assert_eq!(operator.revocation.poll_timeout(), None);
    assert_eq!(operator.revocation.remaining(operator.now), Duration::ZERO);
}

/// A repair of the node where the key is free may be in flight. For the holder, the repaired node
/// and the one that the operator does not reach are a majority.
#[test]
fn node_where_the_key_is_free_confirms_no_revocation() {
    let mut operator = Operator::revoke([Found::Lock, Found::Unreachable, Found::Nothing]);
    assert_eq!(operator.revocation.nodes().nth(2), Some(&NodeRevocation::Free));
    assert_eq!(operator.revocation.state(), RevocationState::Unconfirmed);
    // The repair arrives. The node is sent REVOKE again, and refuses extensions from then on.
    let repaired = [Found::Revoked, Found::Unreachable, Found::Lock];
    assert_eq!(operator.ask_after(limits::PAUSE_MAX, repaired), RevocationState::Revoked);
}

#[test]
fn nodes_that_revoked_at_different_times_do_not_count_together() {
    let mut operator = Operator::revoke([Found::Lock, Found::Unreachable, Found::Unreachable]);
    // The revoked lease ends, and the holder, which has not heard of it, repairs the node.
    operator.ask_after(TTL, [Found::Unreachable; 3]);
    let another = [Found::Unreachable, Found::Lock, Found::Unreachable];
    let state = operator.ask_after(limits::PAUSE_MAX, another);
    assert!(matches!(operator.revocation.nodes().nth(1), Some(NodeRevocation::Revoked(_))));
    assert_ne!(state, RevocationState::Revoked, "two nodes extend the lock");
    let all = [Found::Lock, Found::Revoked, Found::Lock];
    assert_eq!(operator.ask_after(limits::PAUSE_MAX, all), RevocationState::Revoked);
}

#[test]
fn restarted_node_does_not_count_as_free() {
    let operator = Operator::revoke([Found::Abstains, Found::Abstains, Found::Lock]);
    let is_failed = |node: &&NodeRevocation| matches!(node, NodeRevocation::Failed(_));
    let failed = operator.revocation.nodes().filter(is_failed).count();
    assert_eq!((operator.revocation.state(), failed), (RevocationState::Unknown, 2));
}

#[test]
fn lock_of_the_next_holder_is_not_revoked() {
    let mut operator = Operator::revoke([Found::Lock; 3]);
    let state = operator.ask_after(limits::PAUSE_MAX, [Found::Next; 3]);
    assert_eq!(state, RevocationState::Over);
    assert!(operator.revocation.nodes().all(|node| matches!(node, NodeRevocation::Other(_))));
}
