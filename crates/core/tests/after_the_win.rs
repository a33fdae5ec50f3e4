//! A lock after the win: the line in front, late grants and other late answers, keys that the call
//! does not keep, and the release while a WAIT is unanswered.

use std::sync::Arc;
use std::time::Duration;

use crate::support::scripted::{
    LONG, ROUND_TRIP, ScriptedCall, TTL, down, granted, granted_after, held, ms, shows, start,
};
use quorlock_core::client::{
    Acquire, Action, Command, Hold, OutgoingRequest, Reason, Release, RequestId, Response, limits,
};
use quorlock_core::quorum::{ExtensionVerdict, Moment, Ownership, drift};
use quorlock_core::{ClientRule, Fence, NodeError, break_rule};

/// A lock that nodes 0 and 1 granted after a wait, and the unanswered WAIT on node 2.
fn won_by_two() -> (ScriptedCall, Hold, RequestId) {
    let mut call = ScriptedCall::in_line(LONG);
    call.answer(0, &granted_after(Duration::ZERO));
    call.answer(1, &granted_after(Duration::ZERO));
    let hold = call.hold();
    let third = call.take_sent(2).id;
    (call, hold, third)
}

/// The connections that the hold needs for WAITs in front.
fn connections(hold: &mut Hold) -> Vec<RequestId> {
    let wait = |action| match action {
        Action::Wait { id } => Some(id),
        _ => None,
    };
    std::iter::from_fn(|| hold.poll()).filter_map(wait).collect()
}

/// The time that a moment lies after the win.
fn since_win(call: &ScriptedCall, at: Moment) -> Duration {
    start().plus(call.at).until(at)
}

fn stand_in_front(call: &mut ScriptedCall, hold: &mut Hold) -> Vec<RequestId> {
    call.at += since_win(call, hold.poll_timeout().unwrap());
    hold.handle_timeout(&call.ctx());
    connections(hold)
}

#[test]
fn caller_that_learns_late_of_its_lock_needs_the_least_validity() {
    let (call, mut hold, _) = won_by_two();
    let since_win = |time| start().plus(call.at + time);
    assert!(hold.is_learned_in_time(since_win(limits::LATE_TIMER)));
    assert!(hold.is_learned_in_time(since_win(TTL / 4)), "half the ttl is left");
    assert!(!hold.is_learned_in_time(since_win(TTL * 3 / 5)));
    assert!(!hold.is_learned_in_time(since_win(TTL)));
    hold.detach(since_win(Duration::ZERO));
    assert!(!hold.is_learned_in_time(since_win(Duration::ZERO)));
}

#[test]
fn renewed_lock_stands_in_front_on_the_nodes_that_miss_it() {
    shows(ClientRule::NoFrontRepair, || {
        let (mut call, mut hold, third) = won_by_two();
        assert_eq!(hold.poll_timeout(), None, "the lock is not renewed");
        hold.renew();
        let at = since_win(&call, hold.poll_timeout().unwrap());
        assert_eq!(at, limits::patience(ROUND_TRIP), "grants may be on their way");
        let waits = stand_in_front(&mut call, &mut hold);
        let [id] = waits[..] else { return false };
        let (request, _) = hold.handle_wait_connection(id, &call.ctx()).unwrap();
        let Command::Wait { fence, wait } = request.command else { panic!("{request:?}") };
        assert_eq!((id.node, fence, request.token), (2, Fence::ZERO, hold.token()));
        assert!(wait <= TTL / 4);
        // The place in front takes over that of the call.
        hold.handle_response(third, &Response::No, &call.ctx());
        hold.handle_response(id, &granted_after(ms(1)), &call.ctx());
        hold.coverage(&call.client.topology) == 3
    });
}

#[test]
fn renewals_that_are_due_at_about_the_same_time_share_a_batch() {
    let window = limits::RENEWAL_WINDOW;
    let (mut call, mut hold, third) = won_by_two_and_renewed();
    hold.handle_response(third, &granted_after(ms(1)), &call.ctx());
    let due = hold.poll_timeout().unwrap();
    assert_eq!(due.raw.as_nanos() % window.as_nanos(), 0);
    let after = since_win(&call, due);
    assert!(after <= TTL / 3 && after + window + drift(TTL) > TTL / 3, "{after:?}");
    call.at += after;
    hold.handle_timeout(&call.ctx());
    assert!(matches!(hold.poll(), Some(Action::Send(send)) if send.id.node == 0));
}

#[test]
fn repair_needs_no_further_round() {
    let (mut call, mut hold, third) = won_by_two_and_renewed();
    hold.handle_response(third, &Response::No, &call.ctx());
    let round = hold.extend(&call.ctx()).unwrap();
    // The node that misses the lock answers first.
    for (node, response) in [(2, Response::No), (0, granted()), (1, granted())] {
        hold.handle_response(RequestId { round, node }, &response, &call.ctx());
    }
    let sent = std::iter::from_fn(|| hold.poll()).filter_map(|action| match action {
        Action::Send(send) => Some(send),
        _ => None,
    });
    let repair = sent.last().unwrap();
    assert_eq!(
        (repair.id.node, repair.request.command),
        (2, Command::Acquire { fence: Fence::ZERO })
    );
    hold.handle_response(repair.id, &granted(), &call.ctx());
    assert_eq!(hold.coverage(&call.client.topology), 3);
    // The time limit of the round passes.
    call.at += since_win(&call, hold.poll_timeout().unwrap());
    hold.handle_timeout(&call.ctx());
    let mut actions = std::iter::from_fn(|| hold.poll());
    assert!(actions.all(|action| matches!(action, Action::Repaired(true))));
    assert!(since_win(&call, hold.poll_timeout().unwrap()) > TTL / 10);
}

#[test]
fn lock_that_all_nodes_have_stands_nowhere() {
    let (mut call, mut hold, third) = won_by_two();
    hold.renew();
    hold.handle_response(third, &granted_after(ms(1)), &call.ctx());
    assert_eq!(hold.coverage(&call.client.topology), 3);
    assert!(since_win(&call, hold.poll_timeout().unwrap()) > TTL / 4, "only the renewal is due");
    // The grant arrives while the driver opens the connection.
    let (mut call, mut hold, third) = won_by_two_and_renewed();
    let [id] = stand_in_front(&mut call, &mut hold)[..] else { panic!("one connection") };
    hold.handle_response(third, &granted_after(ms(1)), &call.ctx());
    assert!(hold.handle_wait_connection(id, &call.ctx()).is_none());
}

fn won_by_two_and_renewed() -> (ScriptedCall, Hold, RequestId) {
    let (call, mut hold, third) = won_by_two();
    hold.renew();
    (call, hold, third)
}

/// Runs a round of extensions in which the nodes answer in this order.
fn extend(
    call: &mut ScriptedCall,
    hold: &mut Hold,
    answers: impl IntoIterator<Item = (usize, Response)>,
) -> Option<ExtensionVerdict> {
    let round = hold.extend(&call.ctx()).unwrap();
    for (node, response) in answers {
        hold.handle_response(RequestId { round, node }, &response, &call.ctx());
    }
    decisions(hold).next().map(|(_, verdict)| verdict)
}

/// The rounds that are decided, and their verdicts.
fn decisions(hold: &mut Hold) -> impl Iterator<Item = (u32, ExtensionVerdict)> {
    std::iter::from_fn(|| hold.poll()).filter_map(|action| match action {
        Action::Decided { round, verdict } => Some((round, verdict)),
        _ => None,
    })
}

/// The nodes that have granted the lock answer a round.
fn answer_round(call: &mut ScriptedCall, hold: &mut Hold, round: u32, response: &Response) {
    for node in [0, 1] {
        hold.handle_response(RequestId { round, node }, response, &call.ctx());
    }
}

fn is_extended(verdict: Option<ExtensionVerdict>) -> bool {
    matches!(verdict, Some(ExtensionVerdict::Extended(_)))
}

/// Whether the grant of node 2, which arrives this long after the win, and that of node 1 extend
/// the lock, which node 0 has lost.
fn counts_after(delay: Duration, confirmed_before: bool) -> bool {
    let (mut call, mut hold, third) = won_by_two();
    call.at += delay;
    hold.handle_response(third, &granted_after(delay), &call.ctx());
    if confirmed_before {
        let answers = [(0, granted()), (1, granted()), (2, granted())];
        assert!(is_extended(extend(&mut call, &mut hold, answers)));
    }
    let answers = [(2, granted()), (1, granted()), (0, Response::No)];
    is_extended(extend(&mut call, &mut hold, answers))
}

#[test]
fn late_grant_counts_once_the_other_nodes_have_confirmed_the_lock() {
    let late = ms(200);
    shows(ClientRule::LateGrantCounts, || !counts_after(late, false));
    assert!(counts_after(late, true));
    assert!(counts_after(ms(10), false), "a grant in time");
}

#[test]
fn downgrade_is_answered_by_its_own_round() {
    let (mut call, mut hold, _) = won_by_two();
    let extension = hold.extend(&call.ctx()).unwrap();
    assert_eq!(hold.extend(&call.ctx()), Some(extension), "one round answers both calls");
    let downgrade = hold.downgrade(&call.ctx()).unwrap();
    assert!(downgrade > extension);
    for round in [extension, downgrade] {
        answer_round(&mut call, &mut hold, round, &granted());
        let decided = decisions(&mut hold).map(|(round, _)| round).collect::<Vec<_>>();
        let expected = if round == downgrade { vec![downgrade] } else { vec![] };
        assert_eq!(decided, expected, "only the answers to the downgrade decide it");
    }
}

/// A lock of which a majority answers an extension with `response`, after a pause of the process in
/// which the time of the nodes has passed.
fn after_late_answers(response: &Response, mutant: Option<ClientRule>) -> Ownership {
    let (mut call, mut hold, _) = won_by_two();
    call.at = TTL / 2;
    let round = hold.extend(&call.ctx()).unwrap();
    for at in [ms(900), ms(915)] {
        call.at = at;
        hold.handle_timeout(&call.ctx());
    }
    let uncertain = hold.ownership(call.ctx().now);
    assert!(matches!(uncertain, Ownership::Uncertain(left) if left < ms(100)), "{uncertain:?}");
    break_rule(mutant);
    answer_round(&mut call, &mut hold, round, response);
    break_rule(None);
    hold.ownership(call.ctx().now)
}

#[test]
fn late_majority_extends_the_lock_from_the_moment_of_sending() {
    let left = ms(500 + 1000 - 12 - 915);
    assert_eq!(after_late_answers(&granted(), None), Ownership::Held(left));
    let mutant = after_late_answers(&granted(), Some(ClientRule::LateMajorityForgotten));
    assert!(matches!(mutant, Ownership::Uncertain(_)), "{mutant:?}");
}

#[test]
fn unconfirmed_lock_is_extended_again_after_a_part_of_its_ttl() {
    let (mut call, mut hold, _) = won_by_two_and_renewed();
    call.at = TTL / 4;
    hold.extend(&call.ctx()).unwrap();
    while hold.renew_at().is_none() {
        call.at += since_win(&call, hold.poll_timeout().unwrap());
        hold.handle_timeout(&call.ctx());
    }
    assert!(matches!(hold.ownership(call.ctx().now), Ownership::Uncertain(_)));
    let again = since_win(&call, hold.renew_at().unwrap());
    assert!((TTL / 30..=TTL / 10).contains(&again), "{again:?}");
}

#[test]
fn late_refusals_of_a_majority_end_the_lock() {
    assert!(matches!(after_late_answers(&Response::No, None), Ownership::Lost(_)));
}

/// A node's answer that the lock is revoked reaches the holder after the node's lease has ended.
#[test]
fn late_answer_that_the_lock_is_revoked_prevents_the_repair() {
    let revoked = Response::Failed(NodeError::Revoked { left_ms: 100 });
    shows(ClientRule::RevokedRepaired, || {
        let (mut call, mut hold, third) = won_by_two();
        hold.handle_response(third, &granted_after(ms(1)), &call.ctx());
        let round = hold.extend(&call.ctx()).unwrap();
        extend(&mut call, &mut hold, [(1, granted()), (2, granted())]);
        hold.handle_response(RequestId { round, node: 0 }, &revoked, &call.ctx());
        for _ in 0..2 {
            let answers = [(1, granted()), (2, granted()), (0, Response::No)];
            assert!(is_extended(extend(&mut call, &mut hold, answers)));
        }
        let mut actions = std::iter::from_fn(|| hold.poll());
        if actions.any(|action| matches!(action, Action::Send(send) if send.id.node == 0)) {
            return false;
        }
        // A second node revokes the lock much later, and both revocations count.
        extend(&mut call, &mut hold, [(1, revoked.clone()), (2, granted()), (0, Response::No)]);
        hold.renew();
        let again = hold.renew_at().unwrap().since(call.ctx().now);
        assert!(again <= TTL / 10, "the operator may end the lock before its deadline");
        hold.is_revoked()
    });
}

/// A lock that was won while the YIELD to node 0 was unanswered, and the ID of the YIELD.
fn won_while_yielding() -> (ScriptedCall, Hold, RequestId) {
    let mut call = ScriptedCall::with_one_grant();
    call.fire_until_yield();
    let yielding = call.take_sent(0).id;
    call.answer(1, &granted_after(call.at));
    assert!(!call.is_acquired());
    call.answer(2, &granted_after(call.at));
    let hold = call.hold();
    (call, hold, yielding)
}

#[test]
fn node_with_a_lost_yield_never_counts_for_the_lock() {
    for (answer, coverage) in [(down(), 2), (Response::No, 2), (Response::Kept, 3)] {
        let (mut call, mut hold, yielding) = won_while_yielding();
        hold.handle_response(yielding, &answer, &call.ctx());
        let topology = call.client.topology.clone();
        assert_eq!(hold.coverage(&topology), coverage, "{answer:?}");
        if answer != down() {
            continue;
        }
        let answers = [(0, granted()), (1, granted()), (2, granted())];
        assert!(is_extended(extend(&mut call, &mut hold, answers)));
        assert_eq!(hold.coverage(&topology), 2);
        let answers = [(0, granted()), (1, granted()), (2, Response::No)];
        assert!(!is_extended(extend(&mut call, &mut hold, answers)));
    }
}

fn granted_key(position: usize) -> Response {
    let fence = Fence::new(7).unwrap();
    Response::Granted { fence, waited: Duration::ZERO, key: Some(position) }
}

fn keys_of(sent: &OutgoingRequest) -> Vec<&[u8]> {
    sent.spec.keys.iter().collect()
}

#[test]
fn nodes_that_granted_different_keys_are_asked_from_the_last_of_them() {
    let mut call = ScriptedCall::for_any(3, LONG);
    let token = call.asked()[0].1;
    call.answer_all(&[granted_key(0), granted_key(1), held(1, true)]);
    assert_eq!((call.releases.len(), call.releases[0].token()), (1, token));
    let sent = call.take_sent(0);
    assert_eq!(keys_of(&sent), [b"k1", b"k2", b"k0"]);
    assert_ne!(sent.request.token, token);
    call.answer_to(sent.id, &granted_key(0));
    call.answer(1, &granted_key(0));
    assert_eq!(call.hold().spec().slot(), Some(1));
}

/// A call for any one of two keys, in line on node 2. Node 0 granted the first key, and node 1 the
/// second one, however the call asked.
fn with_different_keys() -> ScriptedCall {
    let mut call = ScriptedCall::for_any(2, LONG);
    call.answer_all(&[granted_key(0), granted_key(1), held(1, true)]);
    assert_eq!(keys_of(&call.sent[call.sent.len() - 1]), [b"k1", b"k0"]);
    call.answer_all(&[granted_key(1), granted_key(0), held(1, true)]);
    assert_eq!((call.asked().len(), call.in_line_on().len()), (2, 1));
    call.answer(0, &granted_key(1));
    call.answer(1, &granted_key(0));
    call
}

#[test]
fn call_that_was_granted_different_keys_keeps_one_of_them() {
    let mut call = with_different_keys();
    call.fire_until_yield();
    let (yielding, given_back) = (call.take_sent(0), call.take_sent(1));
    assert_eq!((yielding.request.command, keys_of(&yielding)), (Command::Yield, vec![&b"k0"[..]]));
    assert_eq!(given_back.request.command, Command::Release);
    assert_eq!(keys_of(&given_back), [b"k1"]);
    call.answer_to(given_back.id, &Response::Yes);
    let again = call.take_sent(1);
    assert!(matches!(again.request.command, Command::Wait { .. }));
    assert_eq!(keys_of(&again), [b"k0"], "it stands in line for the key that it keeps");
    call.answer_to(yielding.id, &Response::Kept);
    call.answer_to(again.id, &granted_key(0));
    assert_eq!(call.hold().spec().slot(), Some(0));
}

#[test]
fn keys_that_the_lock_does_not_have_are_released_after_the_win() {
    let mut call = with_different_keys();
    call.fire_until_yield();
    call.answer(1, &Response::Yes);
    call.answer(0, &Response::Kept);
    // Node 2, on which the call stands in line for all keys, grants the other one.
    call.answer(2, &granted_key(0));
    assert!(!call.is_acquired());
    let releases = call.releases.len();
    call.answer(1, &granted_key(0));
    assert!(call.is_acquired());
    let release = &mut call.releases[releases];
    assert_eq!(release.spec().keys.iter().collect::<Vec<_>>(), [b"k1"]);
    let nodes: Vec<_> = sends(release).map(|send| send.id.node).collect();
    assert_eq!(nodes, [2]);
}

#[test]
fn call_that_is_left_without_a_key_asks_for_all_of_them_again() {
    let mut call = with_different_keys();
    let (_, token, ticket) = call.in_line_on()[0];
    call.fire_until_yield();
    call.answer(1, &Response::Yes);
    call.answer(0, &Response::Yes);
    call.fire_timer();
    let asked = call.asked();
    assert!(asked.len() == 3 && asked.iter().all(|asked| asked.1 != token && asked.2 == ticket));
    assert_eq!(keys_of(&call.sent[call.sent.len() - 1]).len(), 2);
}

#[test]
fn call_that_could_not_complete_a_key_asks_for_the_next_one_first() {
    let mut call = ScriptedCall::for_any(3, LONG);
    call.answer_all(&[granted_key(0), held(1, true), held(1, true)]);
    // The node is asked again, with the raised ticket.
    call.answer(0, &granted_key(0));
    let token = call.in_line_on()[0].1;
    while call.asked().iter().all(|asked| asked.1 == token) {
        call.fire_timer();
        if !call.yields().is_empty() {
            call.answer(0, &Response::Kept);
        }
    }
    assert_eq!(keys_of(&call.sent[call.sent.len() - 1]), [b"k1", b"k2", b"k0"]);
}

#[test]
fn key_that_a_node_granted_before_it_failed_is_released_after_the_win() {
    let mut call = ScriptedCall::for_any(2, LONG);
    call.answer(0, &held(1, true));
    call.answer(1, &held(1, true));
    let connected = call.client.topology.clone();
    call.client.disconnect(2, NodeError::connection_lost());
    call.answer(2, &granted_key(0));
    call.client.topology = connected;
    call.answer(0, &granted_key(1));
    while call.in_line_on().len() < 2 {
        call.fire_timer();
        for (node, _) in call.yields() {
            call.answer(node, &Response::Kept);
        }
    }
    // Node 2 refuses the key that the call keeps, and still has the other one.
    call.answer(2, &held(2, true));
    let releases = call.releases.len();
    call.answer(1, &granted_key(1));
    assert!(call.is_acquired());
    let release = &mut call.releases[releases];
    assert_eq!(release.spec().keys.iter().collect::<Vec<_>>(), [b"k0"]);
    assert!(sends(release).any(|send| send.id.node == 2));
}

#[test]
fn late_grant_of_another_key_is_given_back() {
    let mut call = ScriptedCall::for_any(2, LONG);
    call.answer(0, &granted_key(0));
    call.answer(1, &granted_key(0));
    let mut hold = call.hold();
    let third = call.take_sent(2).id;
    hold.handle_response(third, &granted_key(1), &call.ctx());
    let release = std::iter::from_fn(|| hold.poll()).find_map(|action| match action {
        Action::Release(release) => Some(*release),
        _ => None,
    });
    let mut release = release.unwrap();
    assert_eq!(release.spec().keys.iter().collect::<Vec<_>>(), [b"k1"]);
    assert_eq!(sends(&mut release).next().map(|send| send.id.node), Some(2));
    assert_eq!(hold.coverage(&call.client.topology), 2);
}

/// The requests that a release sends now.
fn sends(release: &mut Release) -> impl Iterator<Item = OutgoingRequest> {
    std::iter::from_fn(|| release.poll()).filter_map(|action| match action {
        Action::Send(send) => Some(send),
        _ => None,
    })
}

/// Cancels a call. Returns its release, and the RELEASE to node 0.
fn cancelled(mut call: ScriptedCall) -> (ScriptedCall, Release, OutgoingRequest) {
    call.drive(Acquire::cancel);
    let mut release = call.releases.pop().unwrap();
    let sent = sent_to_node_0(&mut release).unwrap();
    (call, release, sent)
}

/// The last request to node 0 that the release sends now.
fn sent_to_node_0(release: &mut Release) -> Option<OutgoingRequest> {
    sends(release).filter(|send| send.id.node == 0).last()
}

/// All nodes answer the requests that the release sends now.
fn answer_all(call: &mut ScriptedCall, release: &mut Release, response: &Response) {
    while let Some(action) = release.poll() {
        let Action::Send(send) = action else { continue };
        release.handle_response(send.id, response, &call.ctx());
    }
}

/// Fires timers of the release for this long. Returns whether node 0 is sent another RELEASE.
fn repeats_within(call: &mut ScriptedCall, release: &mut Release, span: Duration) -> bool {
    let end = call.at + span;
    loop {
        let at = release.poll_timeout().map_or(end, |due| start().until(due));
        if at >= end {
            call.at = end;
            return false;
        }
        call.at = call.at.max(at);
        release.handle_timeout(&call.ctx());
        if sent_to_node_0(release).is_some() {
            return true;
        }
    }
}

#[test]
fn release_is_repeated_until_the_wait_is_answered() {
    let (mut call, mut release, sent) = cancelled(ScriptedCall::in_line(LONG));
    let wait = call.take_sent(0).id;
    assert!(release.waits().any(|id| id == wait));
    release.handle_response(sent.id, &Response::No, &call.ctx());
    let why = "the RELEASE may have overtaken the WAIT";
    assert!(repeats_within(&mut call, &mut release, limits::PAUSE_MIN * 2), "{why}");
    let again = RequestId { round: sent.id.round + 1, ..sent.id };
    release.handle_response(again, &Response::No, &call.ctx());
    release.handle_response(wait, &Response::No, &call.ctx());
    assert!(!repeats_within(&mut call, &mut release, limits::PAUSE_MIN * 20));
    assert!(release.waits().all(|id| id.node != 0));
}

#[test]
fn release_is_repeated_after_the_wait_was_lost() {
    shows(ClientRule::LostWaitForgotten, || {
        let (mut call, mut release, sent) = cancelled(ScriptedCall::in_line(LONG));
        release.handle_response(sent.id, &Response::No, &call.ctx());
        let wait = call.take_sent(0).id;
        release.handle_response(wait, &down(), &call.ctx());
        let again = sent_to_node_0(&mut release).unwrap();
        release.handle_response(again.id, &Response::No, &call.ctx());
        repeats_within(&mut call, &mut release, TTL / 2)
    });
}

#[test]
fn release_is_repeated_after_an_earlier_wait_was_lost() {
    let mut call = ScriptedCall::in_line(LONG);
    call.answer(0, &down());
    while call.in_line_on().iter().all(|(node, ..)| *node != 0) {
        call.fire_timer();
    }
    let (mut call, mut release, sent) = cancelled(call);
    release.handle_response(sent.id, &Response::No, &call.ctx());
    let wait = call.take_sent(0).id;
    // The answer to the last WAIT says nothing about the one that was lost.
    release.handle_response(wait, &held(1, true), &call.ctx());
    assert!(repeats_within(&mut call, &mut release, TTL / 2));
}

#[test]
fn release_that_failed_is_repeated_whatever_the_wait_was_answered() {
    shows(ClientRule::FailedReleaseForgotten, || {
        let (mut call, mut release, sent) = cancelled(ScriptedCall::in_line(LONG));
        release.handle_response(sent.id, &down(), &call.ctx());
        let wait = call.take_sent(0).id;
        // An earlier request of the token may have been granted another key.
        release.handle_response(wait, &held(1, true), &call.ctx());
        repeats_within(&mut call, &mut release, TTL / 2)
    });
}

#[test]
fn release_of_a_lock_awaits_the_wait_in_front() {
    let (mut call, mut hold, _) = won_by_two_and_renewed();
    let [id] = stand_in_front(&mut call, &mut hold)[..] else { panic!("one connection") };
    hold.handle_wait_connection(id, &call.ctx()).unwrap();
    let (_, release) = hold.release(&call.ctx());
    assert_eq!(release.waits().collect::<Vec<_>>(), [id]);
    assert_eq!(Arc::clone(release.spec()).keys, hold.spec().keys);
    // The release begins while the driver opens the connection.
    let (mut call, mut hold, _) = won_by_two_and_renewed();
    let [id] = stand_in_front(&mut call, &mut hold)[..] else { panic!("one connection") };
    hold.release(&call.ctx());
    assert!(hold.handle_wait_connection(id, &call.ctx()).is_none());
}

#[test]
fn release_of_a_permit_ends_once_its_wait_for_other_keys_has_been_answered() {
    let mut call = ScriptedCall::for_any(2, LONG);
    call.answer_all(&[held(1, true), held(1, true), held(1, true)]);
    call.answer(0, &granted_key(0));
    call.answer(1, &granted_key(0));
    let mut hold = call.hold();
    let wait = call.take_sent(2).id;
    let (_, mut release) = hold.release(&call.ctx());
    assert_eq!(release.waits().collect::<Vec<_>>(), [wait]);
    assert_eq!(release.spec().keys.len(), 2, "the WAIT may be granted either key");
    answer_all(&mut call, &mut release, &Response::Yes);
    assert!(!release.is_done());
    release.handle_response(wait, &held(1, true), &call.ctx());
    assert!(release.is_done(), "a flush waits for the release");
}

#[test]
fn release_is_not_repeated_after_a_wait_that_was_answered_with_an_error() {
    let (mut call, mut hold, third) = won_by_two_and_renewed();
    let [id] = stand_in_front(&mut call, &mut hold)[..] else { panic!("one connection") };
    hold.handle_wait_connection(id, &call.ctx()).unwrap();
    hold.handle_response(third, &Response::No, &call.ctx());
    let abstains = Response::Failed(NodeError::Abstains { reason: "restart".into() });
    hold.handle_response(id, &abstains, &call.ctx());
    let (_, mut release) = hold.release(&call.ctx());
    answer_all(&mut call, &mut release, &Response::No);
    assert!(release.is_done(), "the WAIT has arrived, and was granted nothing");
}

#[test]
fn lock_of_one_of_a_single_key_has_no_other_keys_to_release() {
    let mut call = ScriptedCall::for_any(1, LONG);
    call.answer_all(&[held(1, true), held(1, true), held(1, true)]);
    call.answer(0, &granted_key(0));
    call.answer(1, &granted_key(0));
    call.hold();
    assert!(call.releases.is_empty());
}

#[test]
fn unanswered_release_is_sent_through_a_newer_connection_too() {
    let (mut call, mut hold, _) = won_by_two();
    let (_, mut release) = hold.release(&call.ctx());
    assert_eq!(sends(&mut release).count(), 3);
    call.client.reconnect(0, 9);
    while call.at <= limits::silence(ROUND_TRIP) * 2 {
        call.at += ms(5);
        release.handle_timeout(&call.ctx());
    }
    let sent: Vec<_> = sends(&mut release).map(|send| (send.id.node, send.connection)).collect();
    assert_eq!(sent.first(), Some(&(0, 9)), "{sent:?}");
}

#[test]
fn grant_of_another_key_is_a_refusal_of_the_one_that_most_nodes_granted() {
    let mut call = ScriptedCall::for_any(2, Some(ms(30)));
    call.answer_all(&[held(1, true), held(1, true), held(1, true)]);
    call.answer(0, &granted_key(0));
    call.answer(1, &granted_key(1));
    call.fire_timers_until_the_end();
    assert_eq!(call.failed(), Some(Reason::Held), "nodes 1 and 2 refuse the key of node 0");
}
