//! The machines of shared locks and of semaphores, on real nodes in memory.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::Ttl;
use quorlock_core::client::{
    Acquire, Action, Command, Context, Fleet, Hold, HoldAction, Mode, Mutant, NodeError, NodeStatus, Outcome,
    Random, Request, RequestId, Response, Spec, Topology, break_rule,
};
use quorlock_core::node::Reply;
use quorlock_core::quorum::{Majority, Moment};
use support::{Extended, Server, Verb, settings};

const K: &[u8] = b"k";
const TTL_MS: u64 = 10_000;

struct Numbers(u128);

impl Random for Numbers {
    fn bits(&mut self) -> Option<u128> {
        self.0 += 1;
        Some(self.0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 += 1;
        u64::try_from(self.0).unwrap() % end
    }
}

/// What becomes of the requests to a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Fine,
    /// Requests arrive, and their answers do not.
    AnswersLost,
}

struct World {
    nodes: Vec<Server>,
    paths: Vec<Path>,
    fleet: Fleet,
    topology: Topology,
    random: Numbers,
    now_ms: u64,
}

impl World {
    fn new(nodes: usize) -> Self {
        let status = |node: usize| NodeStatus {
            link: Ok(0),
            admission: Ok(()),
            incarnation: 0,
            identity: Some(format!("node {node}").into()),
        };
        Self {
            nodes: (0..nodes).map(|_| Server::with(settings(0))).collect(),
            paths: vec![Path::Fine; nodes],
            fleet: Fleet::new(Majority::of(nodes).unwrap()),
            topology: Topology::new((0..nodes).map(status).collect()),
            random: Numbers(0),
            now_ms: 1000,
        }
    }

    fn ctx(&mut self) -> Context<'_> {
        Context {
            now: Moment::default().plus(Duration::from_millis(self.now_ms)),
            wall_us: self.nodes[0].now().wall_us,
            fleet: &self.fleet,
            topology: &self.topology,
            random: &mut self.random,
        }
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
        for node in &mut self.nodes {
            node.pass_ms(ms);
            node.turn();
        }
    }

    fn answer(&mut self, node: usize, spec: &Spec, request: &Request) -> Response {
        let lost = Response::Failed(NodeError::timed_out(Duration::from_millis(50)));
        match self.paths[node] {
            Path::Fine => self.execute(node, spec, request),
            Path::AnswersLost => {
                self.execute(node, spec, request);
                lost
            }
        }
    }

    fn execute(&mut self, node: usize, spec: &Spec, request: &Request) -> Response {
        let node = &mut self.nodes[node];
        let token = request.token.as_str().as_bytes();
        let keys: Vec<&[u8]> = spec.keys.iter().collect();
        match request.command {
            Command::Acquire { fence } => {
                let terms = (spec.mode, Some(fence), 0);
                match node.execute_acquire(&keys, token, spec.ttl.ms(), terms, Verb::Acquire) {
                    Ok(Reply::Granted(fence)) => Response::Fence(fence),
                    Ok(Reply::Refused) => Response::No,
                    other => panic!("{other:?}"),
                }
            }
            Command::Extend { fence } => {
                match node.extend_as(spec.mode, &keys, token, spec.ttl.ms(), fence, None) {
                    Extended::Held { fence } => Response::Fence(fence),
                    Extended::NotHeld => Response::No,
                    other => panic!("{other:?}"),
                }
            }
            Command::Release if node.release_all(&keys, token) => Response::Yes,
            Command::Release => Response::No,
            other => panic!("{other:?}"),
        }
    }

    fn spec(mode: Mode) -> Arc<Spec> {
        Arc::new(Spec {
            keys: [K].into_iter().collect(),
            ttl: Ttl::from_ms(TTL_MS).unwrap(),
            mode,
            min_validity: Duration::ZERO,
            node_timeout: None,
            max_hold: None,
            owner: None,
        })
    }

    /// One attempt.
    fn acquire(&mut self, spec: Arc<Spec>) -> Option<Hold> {
        let mut acquire = Acquire::new(spec, Some(Duration::ZERO), &self.ctx());
        acquire.handle_turn(false, &mut self.ctx());
        let mut sends: Vec<(RequestId, Request, Arc<Spec>)> = Vec::new();
        loop {
            while let Some(action) = acquire.poll() {
                match action {
                    Action::Send { id, request, .. } => {
                        sends.push((id, request, Arc::clone(acquire.spec())));
                    }
                    Action::Done(outcome) => {
                        let Outcome::Acquired(grant) = *outcome else { return None };
                        let mut hold = Hold::new(Arc::clone(acquire.spec()), grant);
                        self.deliver(&mut hold, sends);
                        return Some(hold);
                    }
                    Action::Release(mut release) => {
                        while let Some(send) = release.poll() {
                            let spec = Arc::clone(release.spec());
                            let response = self.answer(send.id.node, &spec, &send.request);
                            release.handle_response(send.id, &response, &self.ctx());
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            if sends.is_empty() {
                self.pass_ms(10);
                acquire.handle_timeout(&mut self.ctx());
                continue;
            }
            let (id, request, spec) = sends.remove(0);
            let response = self.answer(id.node, &spec, &request);
            acquire.handle_response(id, &response, &mut self.ctx());
        }
    }

    /// Delivers requests of a holder, and what it sends because of the answers.
    fn deliver(&mut self, hold: &mut Hold, sends: Vec<(RequestId, Request, Arc<Spec>)>) {
        for (id, request, spec) in sends {
            let response = self.answer(id.node, &spec, &request);
            hold.handle_response(id, &response, &self.ctx());
        }
        let sends = sends_of(hold);
        if !sends.is_empty() {
            self.deliver(hold, sends);
        }
    }

    fn extend(&mut self, hold: &mut Hold) {
        hold.extend(&self.ctx());
        let sends = sends_of(hold);
        self.deliver(hold, sends);
    }

    fn downgrade(&mut self, hold: &mut Hold) {
        hold.downgrade(&self.ctx());
        let sends = sends_of(hold);
        self.deliver(hold, sends);
    }

    fn shares(&mut self, node: usize) -> bool {
        let is_shared = |inspected: quorlock_core::node::Inspected| {
            matches!(inspected.holder, quorlock_core::node::Holder::Lease { mode: Mode::Shared, .. })
        };
        self.nodes[node].inspect_whole(K).is_some_and(is_shared)
    }
}

fn sends_of(hold: &mut Hold) -> Vec<(RequestId, Request, Arc<Spec>)> {
    let mut sends = Vec::new();
    while let Some(action) = hold.poll() {
        if let HoldAction::Send(send) = action {
            sends.push((send.id, send.request, Arc::clone(hold.spec())));
        }
    }
    sends
}

#[test]
fn a_writer_that_shares_its_lock_lets_readers_in_and_no_writer() {
    let mut world = World::new(3);
    let mut lock = world.acquire(World::spec(Mode::Exclusive)).unwrap();
    assert!(world.acquire(World::spec(Mode::Shared)).is_none());
    world.downgrade(&mut lock);
    assert_eq!(lock.mode(), Mode::Shared);
    let reader = world.acquire(World::spec(Mode::Shared)).unwrap();
    assert!(reader.fence() > lock.fence());
    assert!(world.acquire(World::spec(Mode::Exclusive)).is_none());
}

/// A node gets a lock again whose downgrade was carried out, and not confirmed. Returns whether that
/// node lets readers in.
fn repaired_after_a_lost_downgrade(mutant: Option<Mutant>) -> bool {
    let mut world = World::new(3);
    let mut lock = world.acquire(World::spec(Mode::Exclusive)).unwrap();
    world.paths = vec![Path::AnswersLost; 3];
    world.fleet.round_trips.sample(0, Duration::from_millis(1));
    break_rule(mutant);
    world.downgrade(&mut lock);
    world.pass_ms(3000);
    lock.handle_timeout(&world.ctx());
    world.paths = vec![Path::Fine; 3];
    let reader = world.acquire(World::spec(Mode::Shared));
    assert!(reader.is_some(), "the nodes have carried it out");
    drop(reader);
    world.nodes[2].clear();
    world.nodes[2].restart(0);
    world.extend(&mut lock);
    world.extend(&mut lock);
    break_rule(None);
    assert!(world.nodes[2].has(K), "it was repaired");
    world.shares(2)
}

#[test]
fn a_lock_is_repaired_as_shared_after_a_downgrade_that_nobody_confirmed() {
    assert!(repaired_after_a_lost_downgrade(None));
    // A second exclusive request for a lock that readers share.
    assert!(!repaired_after_a_lost_downgrade(Some(Mutant::ExclusiveUntilConfirmed)));
}
