//! The client's state machines for shared locks and semaphores, on real nodes in memory.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, Command, Context, Hold, HoldAction, Keys, Mode, Mutant, NodeError, Outcome,
    Request, RequestId, Response, Spec, break_rule,
};
use quorlock_core::node::Reply;
use quorlock_core::quorum::Moment;
use support::client::{Client, spec};
use support::{AcquireCommand, ExtendReply, Server, settings};

const K: &[u8] = b"k";
const TTL_MS: u64 = 10_000;

/// What the network does to the requests to a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Fine,
    /// Requests arrive, and their answers do not.
    AnswersLost,
}

struct World {
    nodes: Vec<Server>,
    paths: Vec<Path>,
    /// The node that answers last. With `None`, the nodes answer in the order of the requests.
    slowest: Option<usize>,
    client: Client,
    now_ms: u64,
}

impl World {
    fn new(nodes: usize) -> Self {
        Self {
            nodes: (0..nodes).map(|_| Server::with(settings(0))).collect(),
            paths: vec![Path::Fine; nodes],
            slowest: None,
            client: Client::with_varied_pauses(nodes),
            now_ms: 1000,
        }
    }

    fn ctx(&mut self) -> Context<'_> {
        let now = Moment::default().plus(Duration::from_millis(self.now_ms));
        self.client.ctx(now, self.nodes[0].now().wall_us)
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
            Command::Acquire { fence } | Command::AcquireAny { fence } => {
                let command = match request.command {
                    Command::AcquireAny { .. } => AcquireCommand::AcquireAny,
                    _ => AcquireCommand::Acquire,
                };
                let terms = (spec.mode, Some(fence), 0);
                match node.execute_acquire(&keys, token, spec.ttl.ms(), terms, command) {
                    Ok(Reply::Granted(fence)) => Response::Fence(fence),
                    Ok(Reply::GrantedOne { fence, key }) => {
                        Response::FenceAndKey { fence, waited: Duration::ZERO, key }
                    }
                    Ok(Reply::Refused) => Response::No,
                    other => panic!("{other:?}"),
                }
            }
            Command::Inspect => match node.inspect_all_fields(keys[0]) {
                Some(_) => Response::Yes,
                None => Response::No,
            },
            Command::Extend { fence } => {
                match node.extend_as(spec.mode, &keys, token, spec.ttl.ms(), fence, None) {
                    ExtendReply::Held { fence } => Response::Fence(fence),
                    ExtendReply::NotHeld => Response::No,
                    other => panic!("{other:?}"),
                }
            }
            Command::Release if node.release_all(&keys, token) => Response::Yes,
            Command::Release => Response::No,
            other => panic!("{other:?}"),
        }
    }

    fn spec(mode: Mode) -> Arc<Spec> {
        Arc::new(Spec { mode, ..spec([K].into_iter().collect(), TTL_MS) })
    }

    fn semaphore(permits: usize) -> Arc<Spec> {
        let slots: Keys = (0..permits).map(|slot| format!("s:{slot:02}")).collect();
        Arc::new(Spec { any: Some(slots.clone()), ..spec(slots, TTL_MS) })
    }

    /// Makes a call that does not wait. Returns `None` unless it acquires the lock.
    fn acquire(&mut self, spec: Arc<Spec>) -> Option<Hold> {
        self.acquire_slot(spec, 0)
    }

    /// Makes a call that does not wait, and asks for `slot` first.
    fn acquire_slot(&mut self, spec: Arc<Spec>, slot: usize) -> Option<Hold> {
        let mut acquire = Acquire::new(spec, Some(Duration::ZERO), &self.ctx());
        acquire.prefer_slot(slot);
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
            let is_quick =
                |(id, ..): &(RequestId, Request, Arc<Spec>)| Some(id.node) != self.slowest;
            let first = sends.iter().position(is_quick).unwrap_or(0);
            let (id, request, spec) = sends.remove(first);
            let response = self.answer(id.node, &spec, &request);
            acquire.handle_response(id, &response, &mut self.ctx());
        }
    }

    /// Delivers a holder's requests, and the requests that follow from the responses.
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

    /// Returns whether the lock on this node is shared.
    fn is_shared_on(&mut self, node: usize) -> bool {
        let is_shared = |inspected: quorlock_core::node::Inspected| {
            matches!(
                inspected.holder,
                quorlock_core::node::Holder::Lease { mode: Mode::Shared, .. }
            )
        };
        self.nodes[node].inspect_all_fields(K).is_some_and(is_shared)
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
fn writer_that_downgrades_its_lock_admits_readers_and_no_writer() {
    let mut world = World::new(3);
    let mut lock = world.acquire(World::spec(Mode::Exclusive)).unwrap();
    assert!(world.acquire(World::spec(Mode::Shared)).is_none());
    world.downgrade(&mut lock);
    assert_eq!(lock.mode(), Mode::Shared);
    let reader = world.acquire(World::spec(Mode::Shared)).unwrap();
    assert!(reader.fence() > lock.fence());
    assert!(world.acquire(World::spec(Mode::Exclusive)).is_none());
}

/// Returns whether a repair after an unconfirmed downgrade makes a shared lock. The nodes carried
/// the downgrade out, but their answers were lost.
fn repairs_as_shared_after_a_lost_downgrade(mutant: Option<Mutant>) -> bool {
    let mut world = World::new(3);
    let mut lock = world.acquire(World::spec(Mode::Exclusive)).unwrap();
    world.paths = vec![Path::AnswersLost; 3];
    world.client.state.round_trips.sample(0, Duration::from_millis(1));
    break_rule(mutant);
    world.downgrade(&mut lock);
    world.pass_ms(3000);
    lock.handle_timeout(&world.ctx());
    world.paths = vec![Path::Fine; 3];
    let reader = world.acquire(World::spec(Mode::Shared));
    assert!(reader.is_some(), "the nodes have carried the downgrade out");
    world.nodes[2].clear();
    world.nodes[2].restart(0);
    world.extend(&mut lock);
    world.extend(&mut lock);
    break_rule(None);
    assert!(world.nodes[2].has(K), "the node was repaired");
    world.is_shared_on(2)
}

#[test]
fn lock_is_repaired_as_shared_after_an_unconfirmed_downgrade() {
    assert!(repairs_as_shared_after_a_lost_downgrade(None));
    // The mutant makes the lock exclusive on this node, while a reader shares it on the others.
    assert!(!repairs_as_shared_after_a_lost_downgrade(Some(Mutant::ExclusiveUntilConfirmed)));
}

#[test]
fn downgrade_is_answered_by_its_own_round() {
    let mut world = World::new(3);
    let mut lock = world.acquire(World::spec(Mode::Exclusive)).unwrap();
    let extension = lock.extend(&world.ctx());
    assert!(extension.is_some());
    assert_eq!(lock.extend(&world.ctx()), extension, "the undecided round answers both calls");
    let sends = sends_of(&mut lock);
    let downgrade = lock.downgrade(&world.ctx());
    for (id, request, spec) in sends.into_iter().chain(sends_of(&mut lock)) {
        assert!(lock.poll().is_none(), "only the answers to the downgrade decide it");
        let response = world.answer(id.node, &spec, &request);
        lock.handle_response(id, &response, &world.ctx());
        if let Some(HoldAction::Decided { round, .. }) = lock.poll() {
            assert!(Some(round) == downgrade && downgrade > extension);
            return;
        }
    }
    panic!("no round was decided");
}

/// How many of `wanted` clients hold a permit at once, if each permit is a key.
fn admitted(nodes: usize, permits: usize, wanted: usize) -> usize {
    let mut world = World::new(nodes);
    let held: Vec<_> =
        (0..wanted).filter_map(|_| world.acquire(World::semaphore(permits))).collect();
    let slots: HashSet<_> = held.iter().map(|hold| hold.spec().slot().unwrap()).collect();
    assert_eq!(slots.len(), held.len(), "no two clients hold one slot");
    held.len()
}

/// How many of `wanted` clients hold a permit at once, if each node only counts permits.
///
/// A client takes a permit on each node of a majority: the nodes that have the most permits left.
fn admitted_by_counters(nodes: usize, permits: usize, wanted: usize) -> usize {
    let mut counters = vec![0; nodes];
    let admit = |_: &usize| {
        let mut nodes_with_room: Vec<_> =
            (0..nodes).filter(|&node| counters[node] < permits).collect();
        nodes_with_room.sort_by_key(|&node| counters[node]);
        nodes_with_room.truncate(nodes / 2 + 1);
        let admits = nodes_with_room.len() > nodes / 2;
        for node in nodes_with_room.into_iter().filter(|_| admits) {
            counters[node] += 1;
        }
        admits
    };
    (0..wanted).filter(admit).count()
}

#[test]
fn semaphore_of_keys_admits_exactly_its_permits_and_counters_more() {
    for (nodes, permits) in [(3, 1), (3, 2), (3, 4), (5, 2), (5, 3), (5, 5)] {
        assert_eq!(admitted(nodes, permits, permits + 2), permits, "{nodes} nodes");
    }
    assert_eq!(admitted_by_counters(5, 2, 4), 3, "three clients for two permits");
    assert_eq!(admitted_by_counters(3, 4, 6), 6);
}

/// Returns whether a call that does not wait finds the only free slot, although the deciding node
/// has forgotten two of the slots that are held.
fn finds_the_free_slot(mutant: Option<Mutant>) -> bool {
    let mut world = World::new(3);
    let spec = World::semaphore(4);
    let deciding_node = world.client.topology.order(b"s:00")[0];
    let _forgotten = [0, 1].map(|slot| world.acquire_slot(Arc::clone(&spec), slot).unwrap());
    world.nodes[deciding_node].clear();
    world.nodes[deciding_node].restart(0);
    let _remembered = world.acquire_slot(Arc::clone(&spec), 3).unwrap();
    break_rule(mutant);
    let found = world.acquire_slot(spec, 3);
    break_rule(None);
    found.is_some_and(|hold| hold.spec().slot() == Some(2))
}

#[test]
fn slot_that_the_deciding_node_forgot_is_not_asked_for_again() {
    assert!(finds_the_free_slot(None));
    assert!(!finds_the_free_slot(Some(Mutant::TakenSlotAskedAgain)));
}

/// Returns whether a reader acquires the lock before a writer that waits behind an earlier reader.
///
/// The writer waits on the queue node, which answers last.
fn passes_a_waiting_writer(mutant: Option<Mutant>) -> bool {
    let mut world = World::new(3);
    let _reader = world.acquire(World::spec(Mode::Shared)).unwrap();
    world.pass_ms(1);
    let queue_node = world.client.topology.order(K)[0];
    let _ = world.nodes[queue_node].acquire_or_wait(K, b"a writer", TTL_MS, 5000);
    world.pass_ms(1);
    world.slowest = Some(queue_node);
    break_rule(mutant);
    let newcomer = world.acquire(World::spec(Mode::Shared));
    break_rule(None);
    newcomer.is_some()
}

#[test]
fn reader_awaits_the_answer_of_the_node_on_which_a_writer_waits() {
    assert!(!passes_a_waiting_writer(None));
    assert!(passes_a_waiting_writer(Some(Mutant::ReaderOutrunsWriter)));
}

/// Returns whether a writer that waits for a seat on a node leaves once the node becomes silent.
fn stops_waiting_for_a_seat(world: &mut World) -> bool {
    let spec = World::spec(Mode::Exclusive);
    let mut acquire = Acquire::new(spec, Some(Duration::from_secs(60)), &world.ctx());
    acquire.handle_turn(true, &mut world.ctx());
    let Some(Action::Wait { id }) = acquire.poll() else {
        panic!("the writer did not queue for a seat")
    };
    world.client.disconnect(id.node, NodeError::timed_out(Duration::from_millis(400)));
    let mut has_left = false;
    for _ in 0..300 {
        world.pass_ms(10);
        acquire.handle_timeout(&mut world.ctx());
        while let Some(action) = acquire.poll() {
            has_left |= matches!(action, Action::StopWaiting { id: left } if left == id);
        }
    }
    has_left
}

#[test]
fn writer_without_a_seat_leaves_a_node_that_becomes_silent() {
    assert!(stops_waiting_for_a_seat(&mut World::new(5)));
    // The mutant stays until the handshake with the node times out. Meanwhile no node knows that a
    // writer waits.
    break_rule(Some(Mutant::WaitsForSeatOfSilentNode));
    let stays = !stops_waiting_for_a_seat(&mut World::new(5));
    break_rule(None);
    assert!(stays);
}
