//! The small parts of a client: limits, round trips, fence proposals, queues, renewals.

use std::time::Duration;

use quorlock_core::client::{FenceProposals, Mode, PlaceQueue, RenewalBatches, RoundTrips, limits};
use quorlock_core::quorum::Moment;
use quorlock_core::{Fence, Ttl};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).unwrap()
}

fn fence(n: u64) -> Fence {
    Fence::new(n).unwrap()
}

#[test]
fn node_timeout_follows_the_round_trip_within_the_ttl() {
    assert_eq!(limits::node_timeout(ms(1), ttl(10_000)), ms(50), "50 ms for a short round trip");
    assert_eq!(limits::node_timeout(ms(30), ttl(10_000)), ms(120), "four round trips");
    assert_eq!(limits::node_timeout(ms(1), ttl(200)), ms(20), "a tenth of the ttl");
    assert_eq!(
        limits::node_timeout(ms(80), ttl(1000)),
        ms(160),
        "two round trips, since a tenth of the ttl is less"
    );
    assert_eq!(limits::node_timeout(ms(400), ttl(1000)), ms(250), "never above a quarter");
    assert_eq!(limits::ttl_needed(ms(400), ttl(1000)), Some(ms(3200)));
    assert_eq!(limits::ttl_needed(ms(400), ttl(3200)), None);
}

#[test]
fn limits_of_a_call_in_line_follow_the_round_trip_above_their_minimum() {
    let limits_at = |round_trip| {
        [limits::patience, limits::rejoin_pause, limits::tie, limits::partial]
            .map(|of| of(round_trip))
    };
    assert_eq!(limits_at(ms(0)), [ms(2), ms(20), ms(20), ms(500)]);
    assert_eq!(limits_at(ms(100)), [ms(200), ms(200), ms(1600), ms(800)]);
}

#[test]
fn shorter_round_trip_counts_at_once_and_a_longer_one_by_an_eighth() {
    let round_trips = RoundTrips::new(2);
    assert_eq!(round_trips.of(0), ms(1), "before the first sample");
    round_trips.sample(0, ms(10));
    round_trips.sample(0, ms(2));
    assert_eq!(round_trips.of(0), ms(2));
    round_trips.sample(0, ms(10));
    assert_eq!(round_trips.of(0), ms(3));
    (0..40).for_each(|_| round_trips.sample(0, ms(10)));
    assert!(round_trips.of(0) > ms(9));
    assert_eq!(round_trips.of(1), ms(1), "another node");
}

#[test]
fn time_out_doubles_the_round_trip() {
    let round_trips = RoundTrips::new(1);
    round_trips.sample(0, ms(5));
    round_trips.timed_out(0);
    assert_eq!(round_trips.of(0), ms(10));
    (0..40).for_each(|_| round_trips.timed_out(0));
    assert_eq!(round_trips.of(0), ms(10_000), "the estimate is bounded");
}

#[test]
fn next_proposal_is_above_the_fence_that_was_agreed_on() {
    let proposals = FenceProposals::default();
    assert_eq!(proposals.propose(100), fence(100));
    proposals.learn(fence(100), fence(500));
    assert_eq!(proposals.propose(100), fence(501));
    proposals.learn(fence(100), fence(200));
    assert_eq!(
        proposals.propose(100),
        fence(501),
        "a smaller fence, of an attempt that began earlier, changes nothing"
    );
    proposals.learn(fence(501), fence(300));
    assert_eq!(proposals.propose(100), fence(301), "the proposal was too far ahead for the nodes");
}

#[test]
fn next_proposal_is_above_the_number_in_a_refusal_unless_it_is_far_ahead() {
    let proposals = FenceProposals::default();
    proposals.learn_refusal(fence(100 + limits::LEARNED_AHEAD_MAX_US + 1), 100);
    assert_eq!(proposals.propose(100), fence(100), "nodes would reject a larger ticket");
    proposals.learn_refusal(fence(100 + limits::LEARNED_AHEAD_MAX_US), 100);
    assert_eq!(proposals.propose(100), fence(100 + limits::LEARNED_AHEAD_MAX_US + 1));
}

#[test]
fn queue_serves_callers_in_the_order_of_their_arrival() {
    let mut queue = PlaceQueue::default();
    assert!(queue.enter(1, Mode::Exclusive));
    for waiting in 2..5 {
        assert!(!queue.enter(waiting, Mode::Exclusive));
    }
    assert!(queue.leave(3).is_empty());
    assert_eq!(queue.leave(1)[..], [2]);
    assert_eq!(queue.leave(2)[..], [4]);
    assert_eq!(queue.leave(4)[..], [0_u64; 0]);
    assert!(queue.is_idle());
}

#[test]
fn sharers_at_the_head_of_a_queue_get_the_place_together() {
    let mut queue = PlaceQueue::default();
    assert!(queue.enter(1, Mode::Shared));
    assert!(queue.enter(2, Mode::Shared));
    assert!(!queue.enter(3, Mode::Exclusive));
    assert!(!queue.enter(4, Mode::Shared));
    assert!(!queue.enter(5, Mode::Shared));
    assert!(!queue.enter(6, Mode::Exclusive));
    assert!(queue.leave(1).is_empty(), "another caller still shares the place");
    assert_eq!(queue.leave(2)[..], [3], "readers that arrived later wait");
    assert_eq!(queue.leave(3)[..], [4, 5]);
    assert!(queue.leave(4).is_empty());
    assert_eq!(queue.leave(5)[..], [6]);
    assert!(queue.leave(6).is_empty());
    assert!(queue.is_idle());
}

#[test]
fn sharers_join_once_the_writer_before_them_gave_up() {
    let mut queue = PlaceQueue::default();
    assert!(queue.enter(1, Mode::Shared));
    assert!(!queue.enter(2, Mode::Exclusive));
    assert!(!queue.enter(3, Mode::Shared));
    assert_eq!(queue.leave(2)[..], [3]);
    assert!(queue.leave(1).is_empty());
    assert!(queue.leave(3).is_empty());
    assert!(queue.is_idle());
}

#[test]
fn renewals_that_are_due_together_share_a_batch() {
    let at = |after| Moment::default().plus(ms(after));
    let mut renewals = RenewalBatches::default();
    renewals.schedule(1, at(100), ms(20));
    renewals.schedule(2, at(115), ms(20));
    renewals.schedule(3, at(300), ms(20));
    assert_eq!(renewals.next_due(), Some(at(100)));
    assert_eq!(renewals.take_due(at(99)), [0_u64; 0]);
    assert_eq!(renewals.take_due(at(100)), [1, 2]);
    renewals.schedule(3, at(200), ms(20));
    assert_eq!(renewals.next_due(), Some(at(200)), "the new time replaces the old one");
    renewals.forget(3);
    assert_eq!(renewals.next_due(), None);
}
