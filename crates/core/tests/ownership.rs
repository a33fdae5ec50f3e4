//! What a holder knows about its lock, and how it extends and repairs the lock.

use std::time::Duration;

use proptest::prelude::*;
use quorlock_core::quorum::{
    Extension, ExtensionVerdict, LossReason, Majority, Moment, Ownership, OwnershipState, Validity,
    longest_validity,
};
use quorlock_core::{ClientRule, Ttl, break_rule};

const HOUR: Duration = Duration::from_secs(3600);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(since_start_ms: u64) -> Moment {
    Moment { boot: ms(500), raw: ms(900) }.plus(ms(since_start_ms))
}

fn ttl() -> Ttl {
    Ttl::from_ms(1000).unwrap()
}

fn extended(sent_ms: u64) -> ExtensionVerdict {
    ExtensionVerdict::Extended(Validity::new(at(sent_ms), ttl()).unwrap())
}

fn state() -> OwnershipState {
    OwnershipState::new(Validity::new(at(0), ttl()).unwrap(), at(0), HOUR)
}

#[test]
fn lock_is_held_exactly_until_its_validity_ends() {
    let state = state();
    assert_eq!(state.ownership(at(0)), Ownership::Held(ms(988)));
    assert_eq!(state.ownership(at(987)), Ownership::Held(ms(1)));
    assert_eq!(state.ownership(at(988)), Ownership::Lost(LossReason::Expired));
}

#[test]
fn unconfirmed_lock_is_uncertain_until_confirmed_or_expired() {
    let mut state = state();
    state.settle(ExtensionVerdict::Uncertain, at(400));
    assert_eq!(state.ownership(at(400)), Ownership::Uncertain(ms(588)));
    state.settle(extended(500), at(510));
    assert_eq!(state.ownership(at(510)), Ownership::Held(ms(978)));
}

#[test]
fn lost_lock_stays_lost_whatever_answers_follow() {
    let mut denied = state();
    denied.settle(ExtensionVerdict::Lost, at(100));
    denied.settle(extended(100), at(110));
    assert_eq!(denied.ownership(at(110)), Ownership::Lost(LossReason::NotHeld));

    let mut late = state();
    late.settle(extended(900), at(990));
    assert_eq!(
        late.ownership(at(990)),
        Ownership::Lost(LossReason::Expired),
        "the holder may have read at 988 that the lock is lost"
    );
    assert_eq!(late.ownership(at(0)), Ownership::Lost(LossReason::Expired));
}

#[test]
fn no_extension_prolongs_a_lock_beyond_max_hold() {
    let mut state = OwnershipState::new(Validity::new(at(0), ttl()).unwrap(), at(0), ms(1200));
    assert!(state.is_extensible(at(100)));
    state.settle(extended(900), at(900));
    assert_eq!(state.ownership(at(900)), Ownership::Held(ms(300)));
    assert!(!state.is_extensible(at(900)), "an extension would gain nothing");
    assert_eq!(state.next_extension_in(at(900), ttl()), None);
    assert_eq!(state.ownership(at(1200)), Ownership::Lost(LossReason::HeldTooLong));
}

#[test]
fn lock_is_extended_at_a_third_of_the_ttl_and_more_often_in_doubt() {
    let mut state = state();
    assert_eq!(
        state.next_extension_in(at(0), ttl()),
        Some(ms(333) + Duration::from_nanos(333_333))
    );
    assert_eq!(state.next_extension_in(at(500), ttl()), Some(Duration::ZERO));
    state.settle(ExtensionVerdict::Uncertain, at(500));
    assert_eq!(state.next_extension_in(at(500), ttl()), Some(ms(100)));
}

#[test]
fn node_that_misses_the_lock_is_repaired_after_a_majority_extended_it() {
    let mut round = Extension::new(Majority::of(5).unwrap(), at(0), ttl())
        .known_to_hold(1..4)
        .known_to_miss([0, 4]);
    round.answer(0, Some(false), at(1));
    round.answer(1, Some(true), at(1));
    round.answer(2, Some(true), at(1));
    assert_eq!(round.next_repair(), None, "perhaps only two of five nodes hold the lock");
    assert!(matches!(round.answer(3, Some(true), at(1)), Some(ExtensionVerdict::Extended(_))));
    assert_eq!(round.next_repair(), Some(0));
    assert_eq!(round.next_repair(), None);
    round.answer(4, Some(false), at(2));
    assert_eq!(round.next_repair(), Some(4), "late answers count too");
}

#[test]
fn round_that_is_confirmed_too_late_repairs_nothing() {
    let mut round = Extension::new(Majority::of(3).unwrap(), at(0), ttl())
        .known_to_hold([1, 2])
        .known_to_miss([0]);
    round.answer(0, Some(false), at(1));
    round.answer(1, Some(true), at(1));
    assert_eq!(round.answer(2, Some(true), at(988)), Some(ExtensionVerdict::Uncertain));
    assert_eq!(round.next_repair(), None);
}

#[test]
fn round_whose_time_is_up_repairs_nothing() {
    let mut round = Extension::new(Majority::of(3).unwrap(), at(0), ttl())
        .known_to_hold([1, 2])
        .known_to_miss([0]);
    round.answer(0, Some(false), at(1));
    round.answer(1, Some(true), at(1));
    assert_eq!(round.expire(), Some(ExtensionVerdict::Uncertain));
    assert!(matches!(round.answer(2, Some(true), at(60)), Some(ExtensionVerdict::Extended(_))));
    assert_eq!(round.next_repair(), None);
}

#[test]
fn repair_needs_a_majority_of_nodes_that_were_known_to_hold_the_lock() {
    let round = || Extension::new(Majority::of(3).unwrap(), at(0), ttl()).known_to_miss([0]);
    // A node that was not known to hold the lock may confirm only because an old ACQUIRE reached it
    // after an operator had deleted the lock. A repair would then revive the lock.
    let mut unknown = round().known_to_hold([1]);
    let mut known = round().known_to_hold([1, 2]);
    for (round, repaired) in [(&mut unknown, None), (&mut known, Some(0))] {
        round.answer(1, Some(true), at(1));
        round.answer(0, Some(false), at(1));
        assert!(matches!(round.answer(2, Some(true), at(1)), Some(ExtensionVerdict::Extended(_))));
        assert_eq!(round.next_repair(), repaired);
    }
}

#[test]
fn first_refusal_of_a_node_repairs_nothing() {
    let repaired = || {
        let mut round =
            Extension::new(Majority::of(3).unwrap(), at(0), ttl()).known_to_hold([0, 1, 2]);
        round.answer(0, Some(true), at(1));
        round.answer(1, Some(true), at(1));
        round.answer(2, Some(false), at(1));
        round.next_repair()
    };
    assert_eq!(repaired(), None);
    break_rule(Some(ClientRule::RepairOnFirstRefusal));
    assert_eq!(repaired(), Some(2), "the mutant is caught");
    break_rule(None);
}

#[test]
fn node_is_repaired_only_if_it_was_known_to_miss_the_lock() {
    let round = || Extension::new(Majority::of(3).unwrap(), at(0), ttl()).known_to_hold([0, 1]);
    // A repair would revive the lock if an operator deleted it after nodes 0 and 1 confirmed.
    let mut unknown = round();
    let mut known = round().known_to_miss([2]);
    for (round, repaired) in [(&mut unknown, None), (&mut known, Some(2))] {
        round.answer(0, Some(true), at(1));
        assert!(matches!(round.answer(1, Some(true), at(1)), Some(ExtensionVerdict::Extended(_))));
        round.answer(2, Some(false), at(900));
        assert_eq!(round.next_repair(), repaired);
    }
}

#[derive(Clone, Copy, Debug)]
enum Node {
    Holds,
    Misses,
    Silent,
}

proptest! {
    /// Random nodes and random orders of their answers.
    ///
    /// A node is repaired only if it reported the lock missing, both before and in this round. In
    /// addition, a majority of all nodes, each known to hold the lock, must have confirmed it.
    #[test]
    fn repair_never_revives_a_lost_lock(
        nodes in prop::collection::vec(prop_oneof![Just(Node::Holds), Just(Node::Misses), Just(Node::Silent)], 1..=9)
            .prop_flat_map(|nodes| Just(nodes.into_iter().enumerate().collect::<Vec<_>>()).prop_shuffle()),
        known in prop::collection::vec(prop::bool::weighted(0.8), 9),
        missing in prop::collection::vec(prop::bool::ANY, 9),
    ) {
        let majority = Majority::of(nodes.len()).unwrap();
        let known_nodes = (0..nodes.len()).filter(|&node| known[node]);
        let missing_nodes = (0..nodes.len()).filter(|&node| missing[node]);
        let mut round = Extension::new(majority, at(0), ttl())
            .known_to_hold(known_nodes)
            .known_to_miss(missing_nodes);
        let mut decided = None;
        let (mut extends, mut confirmed) = (0, 0);
        for &(node, what) in &nodes {
            let held = match what { Node::Holds => Some(true), Node::Misses => Some(false), Node::Silent => None };
            extends += usize::from(held == Some(true));
            confirmed += usize::from(held == Some(true) && known[node]);
            decided = decided.or(round.answer(node, held, at(1)));
            while let Some(repaired) = round.next_repair() {
                prop_assert!(confirmed >= majority.size() && missing[repaired]);
                prop_assert!(nodes.iter().any(|(node, what)| *node == repaired && matches!(what, Node::Misses)));
            }
        }
        prop_assert_eq!(matches!(decided, Some(ExtensionVerdict::Extended(_))), extends >= majority.size());
    }

    /// Random rounds: a lost lock stays lost.
    ///
    /// The lock is never held for longer than the last confirmed round allows, nor beyond
    /// `max_hold`.
    #[test]
    fn no_sequence_of_rounds_revives_a_lost_lock(
        rounds in prop::collection::vec((0..2000_u64, 0..100_u64, 0..3_u8), 0..20),
        max_hold_ms in 1..5000_u64,
    ) {
        let mut state = OwnershipState::new(Validity::new(at(0), ttl()).unwrap(), at(0), ms(max_hold_ms));
        let (mut now, mut confirmed, mut lost) = (0, 0, false);
        for (pause, took, what) in rounds {
            let sent = now + pause;
            lost |= state.remaining(at(sent)).is_none();
            now = sent + took;
            let verdict = match what { 0 => extended(sent), 1 => ExtensionVerdict::Uncertain, _ => ExtensionVerdict::Lost };
            state.settle(verdict, at(now));
            lost |= verdict == ExtensionVerdict::Lost;
            if verdict == extended(sent) { confirmed = sent; }
            if let Some(left) = state.remaining(at(now)) {
                prop_assert!(!lost);
                prop_assert!(ms(now) + left <= ms(confirmed) + longest_validity(ttl()));
                prop_assert!(ms(now) + left <= ms(max_hold_ms));
            } else {
                lost = true;
            }
        }
    }
}
