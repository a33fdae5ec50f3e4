//! The promises of attempts over N nodes, and what a holder knows about its lock and how it extends
//! and repairs it. The vectors of the protocol have the other decisions.

use std::time::Duration;

use crate::support::scripted::ms;
use proptest::prelude::*;
use quorlock_core::quorum::{
    Acquisition, Extension, ExtensionVerdict, FenceAnswer, KnownBefore, Loss, LossReason, Majority,
    Moment, Ownership, OwnershipState, Step, Validity,
};
use quorlock_core::{ClientRule, Fence, Ttl, break_rule};

fn start() -> Moment {
    Moment { boot: ms(500), raw: ms(900) }
}

fn at(since_start_ms: u64) -> Moment {
    start().plus(ms(since_start_ms))
}

fn fence(n: u64) -> Fence {
    Fence::new(n).unwrap()
}

/// An attempt whose lock needs a validity of at least half the ttl.
fn attempt(nodes: usize, ttl_ms: u64) -> Acquisition {
    let majority = Majority::of(nodes).unwrap();
    let validity = Validity::new(at(0), Ttl::from_ms(ttl_ms).unwrap());
    Acquisition::lasting(majority, validity, ms(ttl_ms / 2))
}

/// An attempt in which the first nodes have granted these fences after 1 ms.
fn granted(nodes: usize, ttl_ms: u64, fences: &[u64]) -> Acquisition {
    let mut attempt = attempt(nodes, ttl_ms);
    for (node, &answer) in fences.iter().enumerate() {
        attempt.vote(node, Some(fence(answer)), at(1));
    }
    attempt
}

/// The fence of the lock, if the next step wins it.
fn won(attempt: &mut Acquisition) -> Option<Fence> {
    match attempt.poll() {
        Some(Step::Won(win)) => Some(win.fence),
        _ => None,
    }
}

fn store(node: usize, n: u64) -> Step {
    Step::StoreFence { node, fence: fence(n) }
}

fn lost(loss: Loss) -> Step {
    Step::Lost(loss)
}

#[test]
fn late_grant_of_the_same_fence_wins_before_the_fence_is_stored() {
    let mut attempt = granted(3, 10_000, &[7, 9]);
    assert_eq!(attempt.poll(), Some(store(0, 9)));
    attempt.vote(2, Some(fence(9)), at(2));
    assert_eq!(won(&mut attempt), Some(fence(9)));
    attempt.fence_answer(0, FenceAnswer::Failed, at(3));
    assert_eq!(attempt.poll(), None, "the attempt is decided once");
}

#[test]
fn fence_answer_without_a_request_changes_nothing() {
    let mut attempt = granted(3, 10_000, &[7]);
    attempt.fence_answer(0, FenceAnswer::Stored(fence(9)), at(1));
    attempt.fence_answer(1, FenceAnswer::Stored(fence(9)), at(1));
    attempt.fence_answer(7, FenceAnswer::Stored(fence(9)), at(1));
    attempt.vote(1, Some(fence(7)), at(1));
    assert_eq!(won(&mut attempt), Some(fence(7)));
}

#[test]
fn attempt_whose_fence_request_is_unanswered_is_lost() {
    for (ends_ms, loss) in [(50, Loss::NoQuorum), (600, Loss::TooLate)] {
        let mut attempt = granted(3, 1000, &[7, 9]);
        assert_eq!(attempt.poll(), Some(store(0, 9)));
        attempt.expire(at(ends_ms));
        assert_eq!(attempt.poll(), Some(lost(loss)));
    }
    // Three of the five nodes could still store fence 9, but no time is left to ask node 2.
    let mut attempt = granted(5, 1000, &[5, 5, 6, 9, 9]);
    assert_eq!([attempt.poll(), attempt.poll()], [Some(store(0, 6)), Some(store(1, 6))]);
    attempt.expire(at(50));
    assert_eq!(attempt.poll(), Some(lost(Loss::NoQuorum)));
}

#[test]
fn attempt_that_cannot_be_in_time_is_lost_before_all_have_answered() {
    let mut attempt = attempt(5, 1000);
    attempt.vote(0, Some(fence(7)), at(600));
    assert_eq!(attempt.poll(), Some(lost(Loss::TooLate)));
}

#[test]
fn attempt_with_less_than_the_minimal_validity_is_lost_at_the_first_vote() {
    let majority = Majority::of(3).unwrap();
    let validity = Validity::after_wait(at(0), ms(700), Ttl::from_ms(1000).unwrap());
    let fence_at = |moment| {
        let mut attempt = Acquisition::lasting(majority, validity, ms(500));
        attempt.vote(0, Some(fence(5)), moment);
        attempt.vote(1, Some(fence(5)), moment);
        attempt.poll()
    };
    assert!(matches!(fence_at(at(1100)), Some(Step::Won(_))), "1700 − 1100 − 19 ms are left");
    assert_eq!(fence_at(at(1200)), Some(lost(Loss::TooLate)));
    let mut without = Acquisition::lasting(majority, None, Duration::ZERO);
    without.vote(0, Some(fence(5)), at(0));
    assert_eq!(without.poll(), Some(lost(Loss::TooLate)));
}

fn ttl() -> Ttl {
    Ttl::from_ms(1000).unwrap()
}

fn extended(sent_ms: u64) -> ExtensionVerdict {
    ExtensionVerdict::Extended(Validity::new(at(sent_ms), ttl()).unwrap())
}

/// A lock that may be held for an hour.
fn state() -> OwnershipState {
    OwnershipState::new(Validity::new(at(0), ttl()).unwrap(), at(0), ms(3_600_000))
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

/// A round of three nodes, in which node 0 misses the lock, node 1 has extended it, and node 2 has
/// not answered.
fn round_that_awaits_node_2() -> Extension {
    let before = |node| if node == 0 { KnownBefore::Missing } else { KnownBefore::Held };
    let mut round = Extension::new(Majority::of(3).unwrap(), at(0), ttl(), before);
    round.answer(0, Some(false), at(1));
    round.answer(1, Some(true), at(1));
    round
}

#[test]
fn round_that_is_confirmed_too_late_repairs_nothing() {
    let mut round = round_that_awaits_node_2();
    assert_eq!(round.answer(2, Some(true), at(988)), Some(ExtensionVerdict::Uncertain));
    assert_eq!(round.next_repair(), None);
}

#[test]
fn round_whose_time_is_up_repairs_nothing() {
    let mut round = round_that_awaits_node_2();
    assert_eq!(round.expire(), Some(ExtensionVerdict::Uncertain));
    assert!(matches!(round.answer(2, Some(true), at(60)), Some(ExtensionVerdict::Extended(_))));
    assert_eq!(round.next_repair(), None);
}

#[test]
fn first_refusal_of_a_node_repairs_nothing() {
    let repaired = || {
        let before = |_| KnownBefore::Held;
        let mut round = Extension::new(Majority::of(3).unwrap(), at(0), ttl(), before);
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

proptest! {
    /// If a majority of the nodes accept each other's fences, the attempt agrees on a fence.
    ///
    /// The clocks of the other nodes and the order of the answers do not matter.
    #[test]
    fn majority_of_close_clocks_agrees(
        near in prop::collection::vec(1..50_u64, 9),
        off in prop::collection::vec((1..200_u64, 0..200_u64), 9),
        nodes in 1..=9_usize,
        choices in prop::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        const CEILING: u64 = 60;
        let majority = Majority::of(nodes).unwrap();
        let mut attempt = attempt(nodes, 10_000);
        // The fence that each node stores, and the largest one that it accepts.
        let mut stored: Vec<(u64, u64)> = (0..nodes)
            .map(|node| if node < majority.size() { (near[node], CEILING) } else { (off[node].0, off[node].0 + off[node].1) })
            .collect();
        let mut arriving: Vec<(usize, Option<Fence>)> = (0..nodes).map(|node| (node, None)).collect();
        let mut won = None;
        for choice in choices {
            while let Some(step) = attempt.poll() {
                match step {
                    Step::StoreFence { node, fence } => arriving.push((node, Some(fence))),
                    Step::Won(win) => won = Some(win.fence.get()),
                    Step::Lost(loss) => prop_assert!(false, "{:?}", loss),
                }
            }
            if arriving.is_empty() {
                break;
            }
            let (node, requested) = arriving.swap_remove(choice.index(arriving.len()));
            match requested {
                None => attempt.vote(node, Some(fence(stored[node].0)), at(1)),
                Some(requested) if requested.get() > stored[node].1 => attempt.fence_answer(node, FenceAnswer::Unacceptable, at(1)),
                Some(requested) => {
                    stored[node].0 = requested.get();
                    attempt.fence_answer(node, FenceAnswer::Stored(requested), at(1));
                }
            }
        }
        let won = won.expect("a majority of the nodes can agree");
        prop_assert!(stored.iter().filter(|(fence, _)| *fence == won).count() >= majority.size());
    }
}
