//! Calls that stand in line on all nodes: what they ask, what counts, and when they give way.

use std::time::Duration;

use crate::support::scripted::{
    Client, LONG, NO_WAIT, ROUND_TRIP, ScriptedCall, TTL, down, granted, granted_after, held, ms,
    shows, spec, ticket,
};
use quorlock_core::client::{Acquire, Keys, Places, Reason, Response, Spec, Token, limits};
use quorlock_core::{Answer, ClientRule, Fence, NodeError};

#[test]
fn free_lock_costs_one_request_to_each_node_and_is_won_at_the_majority() {
    let mut call = ScriptedCall::new(LONG);
    assert_eq!(call.asked().len(), 3);
    call.answer(2, &granted());
    assert!(!call.is_acquired());
    call.answer(0, &granted());
    assert!(call.is_acquired() && call.sent.len() == 1 && call.releases.is_empty());
    assert_eq!(call.left(), ms(1000 - 12));
}

#[test]
fn grant_with_the_first_ticket_does_not_count_until_the_node_confirms_it() {
    let mut call = ScriptedCall::new(LONG);
    call.answer_all(&[granted(), held(500, true), held(300, true)]);
    call.answer(1, &granted_after(Duration::ZERO));
    assert!(!call.is_acquired());
    call.answer(0, &granted());
    assert!(call.is_acquired());
}

#[test]
fn slow_node_does_not_keep_a_call_out_of_the_line() {
    let mut call = ScriptedCall::new(LONG);
    call.answer(0, &granted());
    call.answer(1, &held(1, true));
    assert!(call.in_line_on().is_empty(), "the third node may grant at any moment");
    call.fire_timer();
    assert_eq!(call.at, limits::patience(ROUND_TRIP));
    assert_eq!(call.in_line_on().len(), 1);
    call.answer(2, &held(9, true));
    assert_eq!(call.in_line_on().len(), 2);
    let tickets: Vec<_> = call.in_line_on().iter().map(|asked| asked.2).collect();
    assert_eq!(tickets, [ticket(2); 2], "a ticket in line stays as it is");
}

#[test]
fn call_that_gave_a_node_up_stands_in_line_there_again() {
    for gave_up in [Response::Yes, Response::No] {
        let mut call = ScriptedCall::with_one_grant();
        let before = call.in_line_on()[0];
        call.fire_until_yield();
        call.answer(0, &gave_up);
        assert!(call.in_line_on().contains(&(0, before.1, before.2)), "{gave_up:?}");
        call.answer(1, &granted_after(call.at));
        assert!(!call.is_acquired());
        call.answer(0, &granted_after(Duration::ZERO));
        assert!(call.is_acquired());
    }
}

/// Whether the call has released everything, and asks all nodes with a new token and this ticket.
fn starts_over(call: &mut ScriptedCall, token: Token, with_ticket: Fence) -> bool {
    let [release] = &call.releases[..] else { return false };
    assert_eq!((release.token(), release.waits().count()), (token, 2), "two WAITs are unanswered");
    call.fire_timer();
    let asked = call.asked();
    asked.len() == 3 && asked.iter().all(|asked| asked.1 != token && asked.2 == with_ticket)
}

#[test]
fn lost_yield_spends_the_token_and_the_ticket_stays() {
    let is_silent: fn(&mut ScriptedCall) = |call| {
        while call.at < ms(60) && call.releases.is_empty() {
            call.fire_timer();
        }
    };
    let is_down: fn(&mut ScriptedCall) = |call| call.answer(0, &down());
    for lose in [is_silent, is_down] {
        shows(ClientRule::LostYieldForgotten, || {
            let mut call = ScriptedCall::with_one_grant();
            call.fire_until_yield();
            let [(0, token)] = call.yields()[..] else { panic!("one YIELD") };
            let with_ticket = call.in_line_on()[0].2;
            lose(&mut call);
            starts_over(&mut call, token, with_ticket)
        });
    }
}

#[test]
fn part_of_a_lock_is_given_back_after_a_while() {
    shows(ClientRule::NeverGivesBack, || {
        let mut call = ScriptedCall::with_one_grant();
        let (_, token, with_ticket) = call.in_line_on()[0];
        while call.releases.is_empty() && call.at < limits::silence(ROUND_TRIP) * 2 {
            call.fire_timer();
            call.yields().iter().for_each(|_| call.answer(0, &Response::Kept));
        }
        starts_over(&mut call, token, with_ticket)
    });
}

/// Why a call fails on which two nodes refuse, and node 1 loses its wait connections, this often.
fn reason_after_lost_connections(losses: usize) -> Option<Reason> {
    let mut call = ScriptedCall::new(Some(ms(1000)));
    call.answer_all(&[held(1, true), held(1, true), down()]);
    let before = call.in_line_on();
    for _ in 0..losses {
        call.answer(1, &down());
        while !call.sent.iter().any(|sent| sent.id.node == 1) {
            call.fire_timer();
        }
    }
    assert!(before.iter().all(|asked| call.in_line_on().contains(asked)), "the place is kept");
    call.fire_timers_until_the_end();
    call.failed()
}

#[test]
fn one_lost_wait_connection_changes_neither_the_place_nor_the_verdict() {
    assert_eq!(reason_after_lost_connections(1), Some(Reason::Held));
    assert_eq!(reason_after_lost_connections(2), Some(Reason::NoQuorum));
}

#[test]
fn nodes_that_come_back_are_joined() {
    let mut call = ScriptedCall::new(LONG);
    call.answer_all(&[held(1, true), held(1, true), down()]);
    while call.in_line_on().len() < 3 {
        call.fire_timer();
    }
    assert!(call.at <= limits::PAUSE_MAX);
    let (_, token, with_ticket) = call.in_line_on()[0];
    assert!(call.in_line_on().contains(&(2, token, with_ticket)));
}

#[test]
fn grant_that_is_too_old_is_asked_for_again() {
    shows(ClientRule::LongWaitIsLost, || {
        let mut call = ScriptedCall::in_line(LONG);
        let (_, token, with_ticket) = call.in_line_on()[0];
        call.at = ms(700);
        call.answer(0, &granted_after(Duration::ZERO));
        call.answer(1, &granted_after(ms(690)));
        assert!(!call.is_acquired());
        let asked = call.asked();
        if !asked.contains(&(0, token, with_ticket)) {
            return false;
        }
        for (node, ..) in asked {
            call.answer(node, &granted());
        }
        call.is_acquired() && call.left() > TTL / 2
    });
}

#[test]
fn grants_that_arrive_too_late_are_given_back_at_once() {
    for wait in [None, NO_WAIT] {
        let mut call = ScriptedCall::new(wait);
        call.at = ms(600);
        call.answer(0, &granted());
        call.answer(1, &granted());
        assert_eq!(call.releases.len(), 1);
        let expected = wait.map(|_| Reason::InsufficientValidity);
        assert_eq!((call.failed(), call.is_acquired()), (expected, false));
    }
}

#[test]
fn call_that_fails_reports_what_each_node_said_last() {
    let mut call = ScriptedCall::in_line(Some(ms(1000)));
    call.answer(1, &Response::Failed(NodeError::Replica));
    call.fire_timers_until_the_end();
    let Some(Err(failure)) = &call.outcome else { panic!("{:?}", call.outcome) };
    let refused = || Answer::Refused;
    assert_eq!(
        (failure.reason, &failure.answers),
        (Reason::Held, &vec![refused(), refused(), refused()])
    );
}

/// Why a call fails that loses its connection to node 0, which has granted, before its release.
/// Then nodes 0 and 1 refuse, and node 2 is down.
fn reason_after_a_grant_by_node_0(wait: Duration) -> Option<Reason> {
    let mut call = ScriptedCall::new(Some(wait));
    let connected = call.client.topology.clone();
    call.answer(0, &granted());
    call.answer(1, &down());
    call.client.disconnect(0, NodeError::connection_lost());
    call.answer(2, &down());
    assert_eq!(call.releases.len(), 1);
    call.client.topology = connected;
    while call.outcome.is_none() {
        call.fire_timer();
        while let Some(node) = call.sent.first().map(|sent| sent.id.node) {
            call.answer(node, &if node == 2 { down() } else { held(1, true) });
        }
    }
    call.failed()
}

#[test]
fn own_grant_explains_a_refusal_until_its_lease_has_ended() {
    shows(ClientRule::HeldByItself, || {
        reason_after_a_grant_by_node_0(TTL / 2) == Some(Reason::NoQuorum)
    });
    assert_eq!(reason_after_a_grant_by_node_0(TTL * 3), Some(Reason::Held));
}

#[test]
fn call_that_is_run_late_leaves_the_nodes_time_to_answer() {
    let wait = ms(500);
    let mut call =
        ScriptedCall::queued(Client::new(3), spec(Keys::from_iter(["k0"]), 1000), Some(wait));
    let late = (wait + limits::WAIT_GRACE).saturating_sub(ms(1));
    for at in [late.saturating_sub(limits::LATE_TIMER), late] {
        call.at = at;
        call.drive(Acquire::handle_timeout);
    }
    assert_eq!(call.asked().len(), 3);
    call.at += ms(2);
    call.drive(Acquire::handle_timeout);
    assert_eq!(call.failed(), None, "the call should have ended, but the nodes have had only 2 ms");
    call.answer(0, &granted());
    call.answer(1, &granted());
    assert!(call.is_acquired());
}

#[test]
fn pause_before_all_nodes_are_asked_again_doubles() {
    let mut call = ScriptedCall::new(LONG);
    let pauses: Vec<_> = std::iter::repeat_with(|| {
        call.answer_all(&[down(), down(), down()]);
        let failed_at = call.at;
        call.fire_timer();
        call.at.saturating_sub(failed_at)
    })
    .take(6)
    .collect();
    // The shortest that a random number allows: half of 20 ms, and so on up to 250 ms.
    assert_eq!(pauses, [10, 20, 40, 80, 125, 125].map(ms));
}

#[test]
fn ticket_that_no_majority_accepts_is_lowered() {
    shows(ClientRule::RejectedTicketKept, || {
        let rejected = || {
            let words = "ERR FENCE is more than twice lock.max-clock-skew ahead".to_owned();
            Response::Failed(NodeError::ErrorReply(words))
        };
        // A node whose clock is ahead has told this number.
        let ahead_us = 46_000_000;
        let (client, clock) = (Client::new(3), ticket(0));
        client.state.fences.learn_refusal(ticket(ahead_us), clock.get());
        let mut call = ScriptedCall::begin(client, spec(Keys::from_iter(["k0"]), 1000), LONG);
        let is_asked_with = |call: &ScriptedCall, ticket| {
            let asked = call.asked();
            asked.len() == 3 && asked.iter().all(|asked| asked.2 == ticket)
        };
        assert!(is_asked_with(&call, ticket(ahead_us + 1)));
        call.answer(0, &rejected());
        call.answer(2, &held(ahead_us, true));
        assert_eq!(call.asked().len(), 1, "one node changes nothing");
        call.answer(1, &rejected());
        if !is_asked_with(&call, clock) {
            return false;
        }
        // The node tells its number again, and the call stands in line with its clock.
        call.answer_all(&[held(1, true), held(1, true), held(ahead_us, true)]);
        call.in_line_on().iter().all(|in_line| in_line.2 == clock)
    });
}

#[test]
fn call_for_one_of_several_keys_begins_with_a_random_one() {
    let names = Keys::from_iter(["k0", "k1", "k2", "k3"]);
    let spec = Spec { any: Some(names.clone()), ..spec(names, 1000) };
    let mut call = ScriptedCall::begin(Client::with_pauses(3, 2), spec, LONG);
    assert_eq!(call.take_sent(0).spec.keys.first(), b"k2");
}

#[test]
fn call_without_a_place_in_line_awaits_slow_nodes() {
    let mut client = Client::new(3);
    client.state.places = Places::new(0);
    let mut call = ScriptedCall::begin(client, spec(Keys::from_iter(["k0"]), 1000), LONG);
    call.answer(0, &granted());
    call.answer(1, &held(1, true));
    call.fire_timer();
    assert!(call.releases.is_empty(), "the slow node may grant");
    call.answer(2, &granted());
    assert!(call.is_acquired());
}
