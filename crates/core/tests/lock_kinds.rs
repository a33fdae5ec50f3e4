//! The client's state machines for shared locks and semaphores, on real nodes in memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{Client, spec};
use crate::support::world::{Path, World, sends_of};
use quorlock_core::client::{Hold, HoldAction, Keys, Mode, Outcome, Spec};
use quorlock_core::node::{self, Holder, KeyEvent};
use quorlock_core::{ClientRule, break_rule};

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
    fn try_acquire(&mut self, spec: Arc<Spec>) -> Option<Hold> {
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
    let mut lock = world.try_acquire(World::spec(Mode::Exclusive)).unwrap();
    assert!(world.try_acquire(World::spec(Mode::Shared)).is_none());
    world.downgrade(&mut lock);
    assert_eq!(lock.mode(), Mode::Shared);
    let reader = world.try_acquire(World::spec(Mode::Shared)).unwrap();
    assert!(reader.fence() > lock.fence());
    assert!(world.try_acquire(World::spec(Mode::Exclusive)).is_none());
}

/// Returns whether a repair after an unconfirmed downgrade makes a shared lock. The nodes carried
/// the downgrade out, but their answers were lost.
fn repairs_as_shared_after_a_lost_downgrade(mutant: Option<ClientRule>) -> bool {
    let mut world = World::with_varied_pauses(3);
    let mut lock = world.try_acquire(World::spec(Mode::Exclusive)).unwrap();
    world.paths = vec![Path::AnswersLost; 3];
    world.client.state.round_trips.sample(0, Duration::from_millis(1));
    break_rule(mutant);
    world.downgrade(&mut lock);
    world.pass_ms(3000);
    lock.handle_timeout(&world.ctx());
    world.paths = vec![Path::Fine; 3];
    let reader = world.try_acquire(World::spec(Mode::Shared));
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
    assert!(!repairs_as_shared_after_a_lost_downgrade(Some(ClientRule::ExclusiveUntilConfirmed)));
}

#[test]
fn downgrade_is_answered_by_its_own_round() {
    let mut world = World::with_varied_pauses(3);
    let mut lock = world.try_acquire(World::spec(Mode::Exclusive)).unwrap();
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
        (0..wanted).filter_map(|_| world.try_acquire(World::semaphore(permits))).collect();
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

#[test]
fn free_slot_is_found_although_nodes_forgot_different_slots() {
    let mut world = World::with_varied_pauses(3);
    let spec = World::semaphore(4);
    let mut acquire = |slot| world.acquire_preferring(Arc::clone(&spec), slot);
    let _held = [0, 1, 3].map(|slot| acquire(slot).unwrap());
    for (node, forgotten) in [(0, b"s:00"), (1, b"s:01")] {
        world.nodes[node].remove_key(forgotten, KeyEvent::Removed);
    }
    let found = world.acquire_preferring(spec, 0).unwrap();
    assert_eq!(found.spec().slot(), Some(2));
    assert_eq!(found.coverage(&world.client.topology), 3);
}

#[test]
fn writer_that_stands_in_line_is_passed_by_no_reader() {
    let mut world = World::with_varied_pauses(3);
    let mut reader = world.try_acquire(World::spec(Mode::Shared)).unwrap();
    let wait = Some(Duration::from_secs(5));
    let mut writer = world.begin(World::spec(Mode::Exclusive), wait, 0);
    assert!(world.run_for_ms(&mut writer, 10).is_none());
    assert!(world.try_acquire(World::spec(Mode::Shared)).is_none());
    let (_, release) = reader.release(&world.ctx());
    world.deliver_release(release);
    let outcome = world.run_for_ms(&mut writer, 10).expect("the writer is next");
    let writer = world.hold_of(writer, outcome).unwrap();
    assert!(writer.fence() > reader.fence());
    assert_eq!(writer.coverage(&world.client.topology), 3);
}

#[test]
fn calls_that_hold_different_nodes_end_their_tie() {
    let mut world = World::with_varied_pauses(3);
    let spec = World::spec(Mode::Exclusive);
    let wait = Some(Duration::from_secs(5));
    // Each call reaches another node first.
    let mut calls: Vec<_> = (0..3).map(|_| world.begin(Arc::clone(&spec), wait, 0)).collect();
    for (node, call) in calls.iter_mut().enumerate() {
        world.first = Some(node);
        assert!(world.step(call).is_none());
    }
    world.first = None;
    let holders: HashSet<_> = world.nodes.iter().map(|node| node.text(K)).collect();
    assert!(holders.len() == 3 && !holders.contains(&b""[..]), "each call holds one node");
    let mut winners = Vec::new();
    for _ in 0..100 {
        calls.retain_mut(|call| match world.run_for_ms(call, 1) {
            Some(Outcome::Acquired(hold)) => {
                winners.push(hold);
                false
            }
            Some(Outcome::Failed(failure)) => panic!("{failure:?}"),
            None => true,
        });
    }
    assert_eq!((winners.len(), calls.len()), (1, 2), "one call has the lock, and two wait");
}
