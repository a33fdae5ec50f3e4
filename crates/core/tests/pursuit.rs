//! Who waits where: the rules of going after a lock that others hold or want.

#![allow(clippy::unwrap_used, reason = "a test that unwraps nothing fails, as it should")]

use std::time::Duration;

use proptest::prelude::*;
use quorlock_core::quorum::Heard::{Grant, Nothing, Refusal, Silence};
use quorlock_core::quorum::{
    Acquisition, Ended, FenceAnswer, Lifetime, Loss, Majority, Moment, Move, Pursuit, Step, Vote, order,
    round_trip_after,
};
use quorlock_core::{Fence, Ttl};

const ROUND_TRIP: Duration = Duration::from_millis(2);
/// Of the nodes: many times that.
const LIMIT: Duration = Duration::from_millis(50);

fn pursuit() -> Pursuit {
    Pursuit::new(vec![2, 0, 1], ROUND_TRIP)
}

fn fence(n: u64) -> Fence {
    Fence::new(n).unwrap()
}

fn now() -> Moment {
    Moment::default()
}

fn ttl() -> Ttl {
    Ttl::from_ms(10_000).unwrap()
}

#[test]
fn all_clients_have_the_same_order_however_they_list_the_nodes() {
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let mut firsts = [0; 4];
    for n in 0..4000_u32 {
        let key = n.to_le_bytes();
        let ours: Vec<_> = order(&key, names).into_iter().map(|index| names[index]).collect();
        let reversed: Vec<_> = names.into_iter().rev().collect();
        let theirs: Vec<_> = order(&key, reversed.clone()).into_iter().map(|index| reversed[index]).collect();
        assert_eq!(ours, theirs);
        let without_d: Vec<_> =
            order(&key, names[..3].iter().copied()).into_iter().map(|i| names[i]).collect();
        assert_eq!(without_d, ours.iter().copied().filter(|name| name != b"d").collect::<Vec<_>>());
        firsts[names.iter().position(|name| *name == ours[0]).unwrap()] += 1;
    }
    assert!(firsts.iter().all(|&count| (900..1100).contains(&count)), "{firsts:?}");
}

#[test]
fn the_order_of_a_key_never_changes_between_versions() {
    let names: [&[u8]; 3] = [b"one", b"two", b"three"];
    let orders = ["orders/42", "nightly", ""].map(|key| order(key.as_bytes(), names));
    assert_eq!(orders, [[1, 0, 2], [0, 1, 2], [0, 1, 2]].map(Vec::from));
}

#[test]
fn who_had_to_wait_begins_at_the_queue_node() {
    assert_eq!(pursuit().first(false), Move::AskAll);
    assert_eq!(pursuit().first(true), Move::WaitOn { node: 2 });
}

#[test]
fn who_is_refused_waits_on_the_first_node_that_refused() {
    let lost = Ended::Lost { heard: &[Refusal, Refusal, Refusal] };
    assert_eq!(pursuit().next(lost), Move::WaitOn { node: 2 });
    // The queue node is away: not where the holder may never have been.
    let lost = Ended::Lost { heard: &[Refusal, Refusal, Silence] };
    assert_eq!(pursuit().next(lost), Move::WaitOn { node: 0 });
}

#[test]
fn the_queue_node_is_heard_before_it_is_decided_where_to_wait() {
    let pursuit = pursuit();
    assert_eq!(pursuit.to_hear(&[Refusal, Refusal, Nothing]), Some(2));
    assert_eq!(pursuit.to_hear(&[Nothing, Refusal, Silence]), Some(0));
    assert_eq!(pursuit.to_hear(&[Nothing, Nothing, Refusal]), None, "the first has answered");
    assert_eq!(pursuit.to_hear(&[Silence, Refusal, Silence]), None);
    assert_eq!(pursuit.to_hear(&[Silence, Silence, Nothing]), None, "nobody has the lock");
}

#[test]
fn a_tie_is_settled_where_the_order_is_decided_and_a_second_one_elsewhere() {
    let mut pursuit = pursuit();
    let heard = &[Refusal, Refusal, Grant];
    assert!(matches!(pursuit.next(Ended::Lost { heard }), Move::Pause { .. }));
    assert_eq!(pursuit.resume(), Move::WaitOn { node: 2 });
    assert!(matches!(pursuit.next(Ended::Lost { heard }), Move::Pause { .. }));
    assert_eq!(pursuit.resume(), Move::WaitOn { node: 0 }, "the holder never reached the queue node");
}

#[test]
fn who_asked_in_vain_after_a_wait_waits_where_the_holder_is() {
    let mut pursuit = pursuit();
    let lost = Ended::LostAfterWait { node: 2, heard: &[Refusal, Refusal, Grant] };
    assert!(matches!(pursuit.next(lost), Move::Pause { .. }));
    assert_eq!(pursuit.resume(), Move::WaitOn { node: 0 });
}

#[test]
fn who_waited_on_a_later_node_and_gave_way_goes_to_the_earlier_one() {
    let lost = Ended::LostAfterWait { node: 0, heard: &[Grant, Nothing, Refusal] };
    assert_eq!(pursuit().next(lost), Move::WaitOn { node: 2 });
    // To the second one, when the first was free: two go after the lock, or the last holder's release is on its way.
    let mut pursuit = pursuit();
    let lost = Ended::LostAfterWait { node: 1, heard: &[Refusal, Grant, Grant] };
    assert!(matches!(pursuit.next(lost), Move::Pause { .. }));
    assert_eq!(pursuit.resume(), Move::WaitOn { node: 2 });
}

#[test]
fn who_waits_on_a_later_node_awaits_those_before_it_that_are_there() {
    let mut pursuit = pursuit();
    assert_eq!((pursuit.awaits(2), pursuit.awaits(1)), (vec![], vec![2, 0]));
    pursuit.next(Ended::Lost { heard: &[Refusal, Refusal, Silence] });
    assert_eq!(pursuit.awaits(1), [0], "it would only take its time");
    assert_eq!(pursuit.yields_to(Move::WaitOn { node: 1 }), [2, 0]);
}

#[test]
fn a_shorter_round_trip_is_believed_at_once_and_a_longer_one_bit_by_bit() {
    let ms = Duration::from_millis;
    assert_eq!(round_trip_after(None, ms(200)), ms(200), "the first is all that is known");
    assert_eq!(round_trip_after(Some(ms(10)), ms(2)), ms(2));
    assert_eq!(round_trip_after(Some(ms(2)), ms(10)), ms(3), "one that was held up");
    let longer = (0..40).fold(ms(2), |round_trip, _| round_trip_after(Some(round_trip), ms(10)));
    assert!(longer > ms(9), "the nodes are farther away now");
}

#[test]
fn pauses_begin_at_a_round_trip_double_and_are_capped() {
    let mut pursuit = pursuit();
    let silent = Ended::Lost { heard: &[Silence; 3] };
    let mut expected = ROUND_TRIP;
    for _ in 0..12 {
        assert_eq!(pursuit.next(silent), Move::Pause { at_most: expected });
        assert_eq!(pursuit.resume(), Move::AskAll);
        expected = (expected * 2).min(Duration::from_millis(250));
    }
    assert_eq!(expected, Duration::from_millis(250));
}

#[test]
fn nil_of_the_queue_node_decides_a_first_attempt_whatever_the_others_said() {
    let pursuit = pursuit();
    let yields_to = pursuit.yields_to(Move::AskAll);
    assert_eq!(yields_to, [2]);
    let attempt = || Acquisition::new(Majority::of(3).unwrap(), now(), ttl(), Duration::ZERO);
    let mut yielding = attempt().that_yields_to(yields_to);
    let mut twin = attempt();
    for attempt in [&mut yielding, &mut twin] {
        attempt.vote(0, Vote::Granted(fence(5)), now());
        attempt.vote(2, Vote::Refused, now());
        attempt.vote(1, Vote::Granted(fence(5)), now());
    }
    assert_eq!(yielding.poll(), Some(Step::Lost(Loss::Held)));
    assert!(
        matches!(twin.poll(), Some(Step::Won(_))),
        "without the rule a newcomer gets past those who wait"
    );
}

#[test]
fn after_a_wait_nodes_that_refuse_are_asked_again_but_for_those_that_come_before() {
    let pursuit = pursuit();
    let yields_to = pursuit.yields_to(Move::WaitOn { node: 0 });
    assert_eq!(yields_to, [2]);
    let lifetime = Lifetime::new(now(), ttl());
    let after_wait = || {
        let majority = Majority::of(3).unwrap();
        Acquisition::after_wait(majority, 0, fence(5), lifetime, Duration::ZERO)
            .that_yields_to(yields_to)
            .that_awaits(&pursuit.awaits(0))
    };

    let mut attempt = after_wait();
    attempt.vote(1, Vote::Refused, now());
    assert_eq!(attempt.poll(), Some(Step::AskAgain { node: 1, pause: Duration::ZERO }));
    assert_eq!(attempt.heard_of(1), Refusal);
    attempt.vote(1, Vote::Granted(fence(5)), now());
    assert_eq!((attempt.heard_of(1), attempt.heard_of(2)), (Grant, Nothing));
    assert_eq!(attempt.poll(), None, "whoever has the first node comes first, and there may be one");
    let mut silent = attempt.clone();
    attempt.vote(2, Vote::Granted(fence(5)), now());
    silent.time_is_up(now());
    for mut attempt in [attempt, silent] {
        assert!(matches!(attempt.poll(), Some(Step::Won(win)) if win.fence == fence(5)));
    }

    let mut attempt = after_wait();
    attempt.vote(2, Vote::Refused, now());
    assert_eq!(attempt.poll(), Some(Step::Lost(Loss::Held)));

    let mut attempt = after_wait();
    attempt.vote(1, Vote::Refused, now());
    assert_eq!(attempt.poll(), Some(Step::AskAgain { node: 1, pause: Duration::ZERO }));
    attempt.time_is_up(now());
    assert_eq!(attempt.poll(), Some(Step::Lost(Loss::Held)), "it refused to the end");
}

#[test]
fn who_was_granted_by_the_queue_node_asks_no_more_nodes_than_it_takes() {
    let majority = Majority::of(5).unwrap();
    let pursuit = Pursuit::new(vec![2, 0, 1, 4, 3], ROUND_TRIP);
    assert_eq!(pursuit.asks(2, majority, LIMIT, |_| false), [0, 1]);
    assert_eq!(pursuit.asks(2, majority, LIMIT, |node| node == 0), [1, 4], "one that was late comes last");
    assert_eq!(
        pursuit.asks(0, majority, LIMIT, |_| false),
        [2, 1, 4, 3],
        "others may come from the queue node"
    );
    assert_eq!(
        pursuit.asks(2, majority, Duration::from_millis(30), |_| false),
        [0, 1, 4, 3],
        "the time would not do for those after these"
    );
    for nodes in 1..4 {
        let pursuit = Pursuit::new((0..nodes).collect(), ROUND_TRIP);
        assert_eq!(pursuit.asks(0, Majority::of(nodes).unwrap(), LIMIT, |_| false).len(), nodes / 2);
    }
}

/// Granted by the first of five nodes after a wait; the second and the third are asked at first.
fn sparing() -> Acquisition {
    let lifetime = Lifetime::new(now(), ttl());
    let majority = Majority::of(5).unwrap();
    let mut attempt =
        Acquisition::after_wait(majority, 0, fence(5), lifetime, Duration::ZERO).that_asks(&[1, 2]);
    assert_eq!(steps(&mut attempt), [Step::Ask { node: 1 }, Step::Ask { node: 2 }]);
    assert_eq!(attempt.reserve(), [3, 4]);
    attempt
}

fn steps(attempt: &mut Acquisition) -> Vec<Step> {
    std::iter::from_fn(|| attempt.poll()).collect()
}

const ASK_THE_REST: [Step; 2] = [Step::Ask { node: 3 }, Step::Ask { node: 4 }];

#[test]
fn nodes_in_reserve_are_not_asked_while_the_others_do() {
    let mut attempt = sparing();
    attempt.vote(2, Vote::Granted(fence(5)), now());
    assert_eq!(steps(&mut attempt), []);
    attempt.vote(1, Vote::Granted(fence(5)), now());
    assert!(matches!(steps(&mut attempt)[..], [Step::Won(win)] if win.fence == fence(5)));
    attempt.hurry();
    assert_eq!((steps(&mut attempt), attempt.reserve()), (vec![], &[3, 4][..]), "it is decided");
}

#[test]
fn nodes_that_were_about_to_be_asked_when_it_was_decided_are_in_reserve_again() {
    let mut attempt = sparing();
    attempt.vote(1, Vote::Granted(fence(5)), now());
    attempt.hurry();
    attempt.vote(2, Vote::Granted(fence(5)), now());
    assert!(matches!(steps(&mut attempt)[..], [Step::Won(_)]));
    assert_eq!(attempt.reserve(), [3, 4]);
}

#[test]
fn nodes_in_reserve_are_asked_when_one_of_the_others_does_not_vote() {
    let mut attempt = sparing();
    attempt.vote(1, Vote::Silent, now());
    assert_eq!(steps(&mut attempt), ASK_THE_REST);
    attempt.vote(2, Vote::Granted(fence(5)), now());
    attempt.vote(4, Vote::Granted(fence(5)), now());
    assert!(matches!(steps(&mut attempt)[..], [Step::Won(_)]));
}

#[test]
fn nodes_in_reserve_are_asked_when_one_of_the_others_refuses_again() {
    let mut attempt = sparing();
    let again = |pause_ms| Step::AskAgain { node: 1, pause: Duration::from_millis(pause_ms) };
    attempt.vote(1, Vote::Refused, now());
    assert_eq!(steps(&mut attempt), [again(0)], "the last holder's release is on its way there, most likely");
    attempt.vote(1, Vote::Refused, now());
    assert_eq!(steps(&mut attempt), [ASK_THE_REST[0], ASK_THE_REST[1], again(1)]);
    attempt.vote(1, Vote::Refused, now());
    assert_eq!(steps(&mut attempt), [again(2)]);
}

#[test]
fn nodes_in_reserve_are_asked_when_the_others_take_long() {
    let mut attempt = sparing();
    attempt.hurry();
    assert_eq!(steps(&mut attempt), ASK_THE_REST);
    attempt.hurry();
    assert_eq!(steps(&mut attempt), []);
}

#[test]
fn nodes_in_reserve_are_asked_when_one_of_the_others_cannot_have_the_fence() {
    let mut attempt = sparing();
    attempt.vote(1, Vote::Granted(fence(5)), now());
    attempt.vote(2, Vote::Granted(fence(900)), now());
    // Its clock is far ahead, and the others do not believe it.
    let tell = |node| Step::TellFence { node, fence: fence(900) };
    assert_eq!(steps(&mut attempt), [tell(0), tell(1)]);
    attempt.fence_answer(0, FenceAnswer::Unacceptable, now());
    attempt.fence_answer(1, FenceAnswer::Unacceptable, now());
    assert_eq!(steps(&mut attempt), ASK_THE_REST);
    attempt.vote(3, Vote::Granted(fence(5)), now());
    assert!(matches!(steps(&mut attempt)[..], [Step::Won(win)] if win.fence == fence(5)));
}

/// What a node answers to ACQUIRE, however often it is asked.
fn any_vote() -> impl Strategy<Value = Vote> {
    prop_oneof![
        4 => Just(Vote::Granted(fence(5))),
        1 => (5_u64..8).prop_map(|n| Vote::Granted(fence(n))),
        2 => Just(Vote::Refused),
        2 => Just(Vote::Silent),
    ]
}

/// Answers whatever is asked until it is decided, at the latest when the time is up.
fn is_won(mut attempt: Acquisition, votes: &[Vote]) -> bool {
    let mut asked = 0;
    while let Some(step) = attempt.poll() {
        match step {
            Step::Ask { node } | Step::AskAgain { node, .. } => {
                asked += 1;
                if asked > 40 {
                    attempt.time_is_up(now());
                } else {
                    attempt.vote(node, votes[node], now());
                }
            }
            Step::TellFence { node, fence } => {
                attempt.fence_answer(node, FenceAnswer::Stored(fence), now());
            }
            Step::Won(_) => return true,
            Step::Lost(_) => return false,
        }
    }
    unreachable!("it is decided, or there is something to do")
}

proptest! {
    #[test]
    fn who_keeps_nodes_in_reserve_wins_whenever_it_would_have_by_asking_all(
        votes in prop::collection::vec(any_vote(), 2..8),
    ) {
        let majority = Majority::of(votes.len()).unwrap();
        let lifetime = Lifetime::new(now(), ttl());
        let attempt = || Acquisition::after_wait(majority, 0, fence(5), lifetime, Duration::ZERO);
        let all: Vec<_> = (1..votes.len()).collect();
        let sparing = attempt().that_asks(&all[..majority.size() - 1]);
        prop_assert_eq!(is_won(sparing, &votes), is_won(attempt().that_asks(&all), &votes));
    }
}

#[test]
fn a_single_nodes_grant_after_a_wait_is_a_lock() {
    let majority = Majority::of(1).unwrap();
    let lifetime = Lifetime::new(now(), ttl());
    let mut attempt = Acquisition::after_wait(majority, 0, fence(5), lifetime, Duration::ZERO);
    attempt.review(now());
    assert!(matches!(attempt.poll(), Some(Step::Won(_))));
}
