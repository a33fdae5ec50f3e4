//! The client's state machines for shared locks and semaphores, on real nodes in memory.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::client::{
    Acquire, Action, Hold, HoldAction, Keys, Mode, Mutant, NodeError, Spec, break_rule,
};
use quorlock_core::node::{self, Holder, Reply};
use support::client::{Client, spec};
use support::world::{Path, World, sends_of};

const K: &[u8] = b"k";
const TTL_MS: u64 = 10_000;

impl World {
    fn with_varied_pauses(nodes: usize) -> Self {
        Self::new(Client::with_varied_pauses(nodes))
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
        self.acquire_preferring(spec, 0)
    }

    fn downgrade(&mut self, hold: &mut Hold) {
        hold.downgrade(&self.ctx());
        let sends = sends_of(hold);
        self.deliver(hold, sends);
    }

    fn is_shared_on(&mut self, node: usize) -> bool {
        let is_shared = |inspected: node::Inspected| {
            matches!(inspected.holder, Holder::Lease { mode: Mode::Shared, .. })
        };
        self.nodes[node].inspect_all_fields(K).is_some_and(is_shared)
    }
}

#[test]
fn writer_that_downgrades_its_lock_admits_readers_and_no_writer() {
    let mut world = World::with_varied_pauses(3);
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
    let mut world = World::with_varied_pauses(3);
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
    let mut world = World::with_varied_pauses(3);
    let mut lock = world.acquire(World::spec(Mode::Exclusive)).unwrap();
    let extension = lock.extend(&world.ctx());
    assert!(extension.is_some());
    assert_eq!(lock.extend(&world.ctx()), extension, "the undecided round answers both calls");
    let sends = sends_of(&mut lock);
    let downgrade = lock.downgrade(&world.ctx());
    for sent in sends.into_iter().chain(sends_of(&mut lock)) {
        assert!(lock.poll().is_none(), "only the answers to the downgrade decide it");
        let response = world.answer(&sent);
        lock.handle_response(sent.id, &response, &world.ctx());
        if let Some(HoldAction::Decided { round, .. }) = lock.poll() {
            assert!(Some(round) == downgrade && downgrade > extension);
            return;
        }
    }
    panic!("no round was decided");
}

/// How many of `wanted` clients hold a permit at once, if each permit is a key.
fn admitted(nodes: usize, permits: usize, wanted: usize) -> usize {
    let mut world = World::with_varied_pauses(nodes);
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
    let mut world = World::with_varied_pauses(3);
    let spec = World::semaphore(4);
    let deciding_node = world.client.topology.order(b"s:00")[0];
    let _forgotten = [0, 1].map(|slot| world.acquire_preferring(Arc::clone(&spec), slot).unwrap());
    world.nodes[deciding_node].clear();
    world.nodes[deciding_node].restart(0);
    let _remembered = world.acquire_preferring(Arc::clone(&spec), 3).unwrap();
    break_rule(mutant);
    let found = world.acquire_preferring(spec, 3);
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
    let mut world = World::with_varied_pauses(3);
    let _reader = world.acquire(World::spec(Mode::Shared)).unwrap();
    world.pass_ms(1);
    let queue_node = world.client.topology.order(K)[0];
    let node = &mut world.nodes[queue_node];
    let ticket = node.now().wall_us;
    assert_eq!(node.ask(&[K], b"a writer", TTL_MS, ticket, 5000), Ok(Reply::Waits));
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

/// Returns whether a writer that waits for a wait connection leaves once the node becomes silent.
fn stops_waiting_for_a_connection(world: &mut World) -> bool {
    let spec = World::spec(Mode::Exclusive);
    let mut acquire = Acquire::new(spec, Some(Duration::from_secs(60)), &world.ctx());
    acquire.begin(true, &mut world.ctx());
    let Some(Action::Wait { id }) = acquire.poll() else {
        panic!("the writer did not queue for a wait connection")
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
fn writer_without_a_connection_leaves_a_node_that_becomes_silent() {
    assert!(stops_waiting_for_a_connection(&mut World::with_varied_pauses(5)));
    // The mutant stays until the handshake with the node times out. Meanwhile no node knows that a
    // writer waits.
    break_rule(Some(Mutant::WaitsForConnectionOfSilentNode));
    let stays = !stops_waiting_for_a_connection(&mut World::with_varied_pauses(5));
    break_rule(None);
    assert!(stays);
}
