//! Revoking a lock on all nodes: what is certain, and what the holder can still do.

use std::sync::Arc;
use std::time::Duration;

use crate::support::scripted::{Client, spec};
use crate::support::{MAX_TTL_MS, Server, settings};
use quorlock_core::client::{
    Acquire, Action, Command, Context, Hold, LeaseInfo, NodeError, NodeRevocation, Outcome,
    OutgoingRequest, Release, Response, Revocation, RevocationState, RevokeCommand, RevokeMode,
    RevokeReply,
};
use quorlock_core::node::{CommandError, Holder, Reply};
use quorlock_core::quorum::{Moment, Ownership};

const K: &[u8] = b"k";
const TTL_MS: u64 = 10_000;
/// The revocation repeats its request to a node within this time.
const REPEAT_MS: u64 = 300;

/// A holder, an operator, and three nodes that answer at once.
struct World {
    /// The nodes share one clock.
    nodes: Vec<Server>,
    holder_reaches: Vec<bool>,
    operator_reaches: Vec<bool>,
    client: Client,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        Self {
            nodes: (0..3).map(|_| Server::new()).collect(),
            holder_reaches: vec![true; 3],
            operator_reaches: vec![true; 3],
            client: Client::new(3),
            now_ms: 1000,
        }
    }

    fn now(&self) -> Moment {
        Moment::default().plus(Duration::from_millis(self.now_ms))
    }

    fn ctx(&mut self) -> Context<'_> {
        self.client.ctx(self.now(), self.nodes[0].now().wall_us)
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
        for node in &mut self.nodes {
            node.turn_after_ms(ms);
        }
    }

    /// A node's response to a request of the holder.
    fn answer(&mut self, OutgoingRequest { id, request, spec, .. }: &OutgoingRequest) -> Response {
        if !self.holder_reaches[id.node] {
            return Response::Failed(NodeError::timed_out(Duration::from_millis(50)));
        }
        let (node, ttl_ms) = (&mut self.nodes[id.node], spec.ttl.ms());
        let token = request.token.as_str().as_bytes();
        match request.command {
            Command::Acquire { fence } => {
                node.acquire(K, token, ttl_ms, Some(fence)).map_or(Response::No, Response::Fence)
            }
            Command::Extend { fence } => match node.extend_with(K, token, ttl_ms, fence, None) {
                Ok(Reply::Extended(fence)) => Response::Fence(fence),
                Ok(Reply::NotHeld) => Response::No,
                Err(CommandError::Revoked { left_ms }) => {
                    Response::Failed(NodeError::Revoked { left_ms })
                }
                other => panic!("{other:?}"),
            },
            Command::Release if node.release(K, token) => Response::Yes,
            Command::Release => Response::No,
            other => panic!("{other:?}"),
        }
    }

    /// Acquires a lock on all nodes that the holder reaches.
    fn acquire(&mut self) -> Hold {
        let spec = Arc::new(spec([K].into_iter().collect(), TTL_MS));
        let mut call = Acquire::new(spec, Some(Duration::ZERO), &self.ctx());
        call.begin(&mut self.ctx());
        let mut sends = Vec::new();
        loop {
            match call.poll() {
                Some(Action::Send(send)) => sends.push(send),
                Some(Action::Done(Outcome::Acquired(mut hold))) => {
                    self.deliver(&mut hold, sends);
                    return *hold;
                }
                Some(other) => panic!("{other:?}"),
                None => {
                    let sent = sends.remove(0);
                    let response = self.answer(&sent);
                    call.handle_response(sent.id, &response, &mut self.ctx());
                }
            }
        }
    }

    /// Delivers the requests of the holder, and the requests that follow from the responses.
    fn deliver(&mut self, hold: &mut Hold, mut sends: Vec<OutgoingRequest>) {
        while !sends.is_empty() {
            for sent in sends {
                let response = self.answer(&sent);
                hold.handle_response(sent.id, &response, &self.ctx());
            }
            sends = sends_of(hold);
        }
    }

    /// Runs a whole round of extensions.
    fn extend(&mut self, hold: &mut Hold) {
        hold.extend(&self.ctx());
        let sends = sends_of(hold);
        self.deliver(hold, sends);
    }

    /// Delivers a release. Returns the responses of the nodes.
    fn deliver_release(&mut self, mut release: Release) -> Vec<Response> {
        let mut responses = Vec::new();
        while let Some(action) = release.poll() {
            let Action::Send(send) = action else { continue };
            let response = self.answer(&send);
            release.handle_response(send.id, &response, &self.ctx());
            responses.push(response);
        }
        responses
    }

    /// A node's reply to the operator.
    fn reply(&mut self, node: usize, command: RevokeCommand) -> Result<RevokeReply, NodeError> {
        if !self.operator_reaches[node] {
            return Err(NodeError::timed_out(Duration::from_millis(50)));
        }
        let node = &mut self.nodes[node];
        let was_locked = match command {
            RevokeCommand::Revoke => Some(node.revoke(K).unwrap()),
            RevokeCommand::RevokeNow => Some(node.revoke_now(K).unwrap()),
            RevokeCommand::Inspect => None,
        };
        let lease = node.inspect(K).map(|inspected| {
            let mut lease = LeaseInfo::default();
            if let Holder::Lease { fence, ttl_ms, held_ms, revoked, .. } = inspected.holder {
                lease.fence = Some(fence);
                lease.ttl = Some(Duration::from_millis(ttl_ms));
                lease.held_for = Some(Duration::from_millis(held_ms));
                lease.revoked = revoked;
            }
            lease
        });
        let abstains = node.abstention().map(|_| "it was restarted".to_owned());
        Ok(RevokeReply { was_locked, lease, abstains })
    }

    /// Delivers the revocation's requests until it has none.
    fn run(&mut self, revocation: &mut Revocation) {
        while let Some(request) = revocation.poll() {
            let reply = self.reply(request.node, request.command);
            let sent = self.now();
            revocation.handle_reply(request.node, sent, reply, &self.ctx());
        }
    }

    fn revoke(&mut self) -> Revocation {
        let mut revocation = Revocation::new(RevokeMode::AtDeadline, &self.ctx());
        self.run(&mut revocation);
        revocation
    }

    fn pass_ms_and_run(&mut self, revocation: &mut Revocation, ms: u64) {
        self.pass_ms(ms);
        revocation.handle_timeout(&self.ctx());
        self.run(revocation);
    }

    fn ownership(&self, hold: &Hold) -> Ownership {
        hold.ownership(self.now())
    }

    fn is_revoked(&mut self, node: usize) -> bool {
        self.reply(node, RevokeCommand::Inspect).unwrap().lease.is_some_and(|lease| lease.revoked)
    }
}

/// The requests that a holder sends now. Drops its other actions.
fn sends_of(hold: &mut Hold) -> Vec<OutgoingRequest> {
    let send = |action| match action {
        Action::Send(send) => Some(send),
        _ => None,
    };
    std::iter::from_fn(|| hold.poll()).filter_map(send).collect()
}

fn failed_nodes(revocation: &Revocation) -> usize {
    revocation.nodes().filter(|node| matches!(node, NodeRevocation::Failed(_))).count()
}

#[test]
fn revocation_is_over_by_the_deadline() {
    let mut world = World::new();
    drop(world.acquire());
    let mut revocation = world.revoke();
    let left = revocation.remaining(world.now());
    assert!((10_000..10_110).contains(&left.as_millis()), "{left:?}");
    world.operator_reaches = vec![false; 3];
    world.pass_ms_and_run(&mut revocation, REPEAT_MS);
    assert_eq!(revocation.state(), RevocationState::Revoked, "what was revoked stays revoked");
    world.pass_ms_and_run(&mut revocation, TTL_MS);
    assert_eq!(revocation.state(), RevocationState::Over);
    assert_eq!(revocation.poll_timeout(), None);
    assert_eq!(revocation.remaining(world.now()), Duration::ZERO);
}

/// The holder begins to repair one node before the operator revokes the lock on another node.
///
/// The operator does not reach the third node. For the holder, the third node and the repaired
/// node are a majority.
#[test]
fn node_where_the_key_is_free_confirms_no_revocation() {
    let mut world = World::new();
    let [confirming, unreached, missed] = [0, 1, 2];
    world.nodes[missed].set(K, b"another", Some(TTL_MS));
    let mut hold = world.acquire();
    assert!(world.nodes[missed].release(K, b"another"));
    hold.extend(&world.ctx());
    for sent in sends_of(&mut hold) {
        let response = world.answer(&sent);
        hold.handle_response(sent.id, &response, &world.ctx());
    }
    let repairs = sends_of(&mut hold);
    let [repair] = &repairs[..] else { panic!("{repairs:?}") };
    assert!(matches!(repair.request.command, Command::Acquire { .. }));

    world.operator_reaches[unreached] = false;
    let mut revocation = world.revoke();
    let nodes: Vec<_> = revocation.nodes().collect();
    assert_eq!(*nodes[missed], NodeRevocation::Free);
    assert!(matches!(nodes[confirming], NodeRevocation::Revoked(_)), "{nodes:?}");
    assert_eq!(revocation.state(), RevocationState::Unconfirmed, "two of three have answered");
    // The repair arrives. The holder extends the lock, although a majority answered the operator.
    let response = world.answer(repair);
    hold.handle_response(repair.id, &response, &world.ctx());
    world.pass_ms(100);
    world.extend(&mut hold);
    assert!(matches!(world.ownership(&hold), Ownership::Held(_)), "two answers were not enough");
    // The revocation asks the repaired node again, which refuses extensions from then on.
    world.pass_ms_and_run(&mut revocation, REPEAT_MS);
    assert_eq!(revocation.state(), RevocationState::Revoked);
    world.extend(&mut hold);
    assert!(hold.is_revoked());
}

#[test]
fn nodes_that_revoked_at_different_times_do_not_count_together() {
    let mut world = World::new();
    let mut hold = world.acquire();
    world.operator_reaches = vec![true, false, false];
    let mut revocation = world.revoke();
    // The holder does not learn of the revocation: node 0 is silent until its lease has ended.
    world.holder_reaches[0] = false;
    for _ in 0..4 {
        world.pass_ms_and_run(&mut revocation, TTL_MS / 3);
        world.extend(&mut hold);
    }
    world.holder_reaches[0] = true;
    world.extend(&mut hold);
    assert!(world.nodes[0].inspect(K).is_some(), "the node was repaired");
    assert!(!world.is_revoked(0));
    world.operator_reaches = vec![false, true, false];
    world.pass_ms_and_run(&mut revocation, REPEAT_MS);
    world.pass_ms_and_run(&mut revocation, REPEAT_MS);
    assert!(world.is_revoked(1) && revocation.state() != RevocationState::Revoked);
    world.extend(&mut hold);
    assert!(matches!(world.ownership(&hold), Ownership::Held(_)), "two nodes extend the lock");
    world.operator_reaches = vec![true, true, true];
    world.pass_ms_and_run(&mut revocation, REPEAT_MS);
    assert_eq!(revocation.state(), RevocationState::Revoked);
}

/// A node's answer that the lock is revoked reaches the holder after the node's lease has ended.
#[test]
fn late_answer_that_the_lock_is_revoked_prevents_the_repair() {
    let mut world = World::new();
    let mut hold = world.acquire();
    world.operator_reaches = vec![true, false, false];
    world.revoke();
    hold.extend(&world.ctx());
    let (late, in_time): (Vec<_>, Vec<_>) =
        sends_of(&mut hold).into_iter().partition(|sent| sent.id.node == 0);
    let [late] = &late[..] else { panic!("{late:?}") };
    let late_response = world.answer(late);
    assert!(matches!(late_response, Response::Failed(NodeError::Revoked { .. })));
    world.deliver(&mut hold, in_time);
    // Later rounds do not reach the node until its lease has ended.
    world.holder_reaches[0] = false;
    for _ in 0..4 {
        world.pass_ms(TTL_MS / 3);
        world.extend(&mut hold);
    }
    hold.handle_response(late.id, &late_response, &world.ctx());
    world.holder_reaches[0] = true;
    for _ in 0..2 {
        world.extend(&mut hold);
        assert_eq!(world.nodes[0].inspect(K), None, "no repair may undo the revocation");
    }
    assert!(matches!(world.ownership(&hold), Ownership::Held(_)), "two nodes extend the lock");
    // A second node revokes the lock much later, and both revocations count.
    world.operator_reaches = vec![false, true, false];
    world.revoke();
    world.extend(&mut hold);
    assert!(hold.is_revoked());
    let again = hold.renew_in(world.now()).unwrap();
    let soon = Duration::from_millis(TTL_MS / 10);
    assert!(again <= soon, "the operator may end the lock before its deadline");
}

#[test]
fn restarted_node_does_not_count_as_free() {
    let mut world = World::new();
    let _hold = world.acquire();
    for node in [0, 1] {
        world.nodes[node] = Server::with(settings(MAX_TTL_MS));
    }
    let revocation = world.revoke();
    assert_eq!((revocation.state(), failed_nodes(&revocation)), (RevocationState::Unknown, 2));
}

#[test]
fn lock_of_the_next_holder_is_not_revoked() {
    let mut world = World::new();
    let mut hold = world.acquire();
    // The next holder acquires the lock while the operator reaches no node.
    let mut revocation = world.revoke();
    world.operator_reaches = vec![false, false, false];
    let (_, release) = hold.release(&world.ctx());
    world.deliver_release(release);
    world.pass_ms(100);
    let mut next = world.acquire();
    world.operator_reaches = vec![true, true, true];
    world.pass_ms_and_run(&mut revocation, REPEAT_MS);
    assert_eq!(revocation.state(), RevocationState::Over);
    assert!(revocation.nodes().all(|node| matches!(node, NodeRevocation::Other(_))));
    world.extend(&mut next);
    assert!(matches!(world.ownership(&next), Ownership::Held(_)));
    assert!((0..3).all(|node| !world.is_revoked(node)));
}
