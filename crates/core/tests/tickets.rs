//! The order of waiters by ticket, repeated requests, refusals that tell, and YIELD.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use quorlock_core::Fence;
use quorlock_core::node::{BlockedId, CommandError, Holder, KeyEvent, Mode, Mutant, Reply};
use support::{AcquireCommand, ExtendReply, MAX_WAITERS, Server, WaitResult, shows};

const K: &[u8] = b"k";
const L: &[u8] = b"l";
const BOTH: [&[u8]; 2] = [K, L];
const HOLDER: &[u8] = b"holder";

/// The node's wall clock, which is the ticket of a client with an accurate clock.
fn clock(server: &Server) -> u64 {
    server.now().wall_us
}

/// A server on which a client with an accurate clock holds the key, and the ticket of that client.
fn held() -> (Server, u64) {
    let mut server = Server::new();
    let ticket = clock(&server);
    assert!(matches!(server.ask(&[K], HOLDER, 10_000, ticket, 0), Ok(Reply::Granted(_))));
    (server, ticket)
}

fn refusal(reply: Result<Reply, CommandError>) -> (u64, bool) {
    match reply {
        Err(CommandError::Held { number, is_older }) => (number.get(), is_older),
        other => panic!("{other:?}"),
    }
}

fn fence(reply: Result<Reply, CommandError>) -> Fence {
    match reply {
        Ok(Reply::Granted(fence)) => fence,
        other => panic!("{other:?}"),
    }
}

fn ask_shared(
    server: &mut Server,
    token: &[u8],
    ticket: u64,
    wait_ms: u64,
) -> Result<Reply, CommandError> {
    let terms = (Mode::Shared, Fence::new(ticket), wait_ms);
    server.execute_acquire(&[K], token, 1000, terms, AcquireCommand::Acquire)
}

fn ask_any(
    server: &mut Server,
    token: &[u8],
    ticket: u64,
    wait_ms: u64,
) -> Result<Reply, CommandError> {
    let terms = (Mode::Exclusive, Fence::new(ticket), wait_ms);
    server.execute_acquire(&BOTH, token, 1000, terms, AcquireCommand::AcquireAny)
}

/// The time left of the lock on a key, in milliseconds.
fn ttl_ms(server: &mut Server, key: &[u8]) -> u64 {
    match server.inspect_all_fields(key).unwrap().holder {
        Holder::Lease { ttl_ms, .. } => ttl_ms,
        other @ Holder::Foreign { .. } => panic!("{other:?}"),
    }
}

#[test]
fn smallest_ticket_is_served_first_whatever_the_order_of_arrival() {
    shows(Mutant::OrderByArrival, || {
        let (mut server, ticket) = held();
        let third = server.stand_in_line(&[K], b"third", ticket + 3, 5000);
        let first = server.stand_in_line(&[K], b"first", ticket + 1, 5000);
        // Equal tickets are ordered by token.
        let second = server.stand_in_line(&[K], b"second", ticket + 1, 5000);
        for token in [HOLDER, b"first", b"second"] {
            server.release(K, token);
        }
        server.granted() == [first, second, third]
    });
}

#[test]
fn full_line_keeps_the_oldest_waiters_of_a_key() {
    shows(Mutant::FullLineKeepsYoungest, || {
        let (mut server, ticket) = held();
        let in_line = |at: u64| server.stand_in_line(&[K], &at.to_be_bytes(), ticket + at, 5000);
        let waiters: Vec<_> = (10..).take(MAX_WAITERS).map(in_line).collect();
        let younger = server.ask(&[K], b"younger", 1000, ticket + 1000, 5000);
        assert!(matches!(younger, Err(CommandError::QueueFull { .. })), "{younger:?}");
        let older = server.ask(&[K], b"older", 1000, ticket + 1, 5000);
        server.run_turns();
        let is_last_refused =
            server.wait_results == [(waiters[MAX_WAITERS - 1], WaitResult::Refused)];
        server.release(K, HOLDER);
        server.run_turns();
        let is_first_granted = server.extend(K, b"older", 1000).is_some();
        matches!(older, Ok(Reply::Waits)) && is_last_refused && is_first_granted
    });
}

#[test]
fn waiters_without_a_ticket_are_served_in_the_order_of_arrival() {
    let (mut server, ticket) = held();
    server.stand_in_line(&[K], b"ahead", ticket + 90_000_000, 5000);
    for token in [&b"z"[..], b"m", b"a"] {
        server.owner = Some(token.to_vec());
        server.acquire_or_wait(K, token, 1000, 5000).blocked_id();
        server.wall_ms -= 1000;
    }
    let queue = server.inspect_all_fields(K).unwrap().queue;
    let owners: Vec<_> = queue.into_iter().map(|waiter| waiter.owner.unwrap_or_default()).collect();
    assert_eq!(owners, [&b""[..], b"z", b"m", b"a"].map(Box::from));
}

#[test]
fn ticket_too_far_ahead_is_an_error_and_is_forgotten() {
    let (mut server, ticket) = held();
    let largest = ticket + 120_000_000;
    let error = Err(CommandError::TicketTooFarAhead { largest: Fence::new(largest).unwrap() });
    for wait_ms in [0, 5000] {
        assert_eq!(server.ask(&[K], b"t", 1000, largest + 1, wait_ms), error);
        assert_eq!(server.ask(&[L], b"t", 1000, largest + 1, wait_ms), error);
    }
    assert_eq!(server.node().waiters(), 0);
    server.stand_in_line(&[K], b"t", largest, 5000);
    assert_eq!(refusal(server.ask(&[K], b"u", 1000, ticket, 0)).0, largest);
    // Between one and two skews ahead, a ticket orders the queue but proposes no fence.
    let granted = fence(server.ask(&[L], b"v", 1000, largest, 0));
    assert!(granted.get() <= ticket + 61_000_000);
}

#[test]
fn number_of_a_refusal_is_accepted_as_a_ticket_after_a_clock_step() {
    let (mut server, _) = held();
    server.wall_ms -= 3_600_000;
    let now = clock(&server);
    let (number, _) = refusal(server.ask(&[K], b"t", 1000, now, 0));
    server.stand_in_line(&[K], b"t", number, 5000);
}

#[test]
fn front_of_the_queue_precedes_all_tickets_and_stays() {
    let (mut server, ticket) = held();
    let older = server.stand_in_line(&[K], b"older", ticket + 1, 5000);
    server.stand_in_line(&[K], b"repair", ticket + 9, 5000);
    server.stand_in_line(&[K], b"repair", 0, 5000);
    // A late request with the former ticket.
    let front = server.stand_in_line(&[K], b"repair", ticket + 9, 5000);
    let counter = server.acquire(b"other", b"t", 1000, None);
    server.release(K, HOLDER);
    assert_eq!(server.granted(), [front]);
    server.release(K, b"repair");
    assert_eq!(server.granted(), [front, older]);
    assert!(counter.is_some());
}

#[test]
fn front_of_the_queue_proposes_no_fence() {
    let mut server = Server::new();
    let first = server.acquire(K, b"a", 1000, None).unwrap();
    server.release(K, b"a");
    // The counter is behind the clock, and the grant continues from the counter.
    server.pass_ms(600_000);
    assert_eq!(fence(server.ask(&[K], b"repair", 1000, 0, 0)), first.next());
}

#[test]
fn older_newcomer_takes_a_free_key_and_a_younger_one_waits() {
    let (mut server, ticket) = held();
    server.stand_in_line(&[K], b"waiter", ticket + 5, 5000);
    server.remove_key(K, KeyEvent::Removed);
    assert_eq!(server.ask(&[K], b"younger", 1000, ticket + 6, 5000), Ok(Reply::Waits));
    fence(server.ask(&[K], b"older", 1000, ticket + 4, 5000));
}

#[test]
fn request_that_cannot_wait_passes_no_waiter_and_hears_its_number() {
    shows(Mutant::PassesUnheard, || {
        let (mut server, ticket) = held();
        let waiter = server.stand_in_line(&[K], b"waiter", ticket + 5, 5000);
        server.remove_key(K, KeyEvent::Removed);
        let older = server.ask(&[K], b"older", 1000, ticket + 4, 0);
        if matches!(older, Ok(Reply::Granted(_))) {
            return false;
        }
        assert_eq!(refusal(older), (ticket + 5, false));
        server.allows_blocking = false;
        assert_eq!(refusal(server.ask(&[K], b"older", 1000, ticket + 4, 5000)).0, ticket + 5);
        server.allows_blocking = true;
        assert_eq!(refusal(server.ask(&[K], b"younger", 1000, ticket + 6, 0)), (ticket + 5, true));
        assert!(matches!(
            ask_any(&mut server, b"any", ticket + 4, 0),
            Ok(Reply::GrantedOne { key: 1, .. })
        ));
        server.run_turns();
        assert_eq!(server.granted(), [waiter]);
        true
    });
}

#[test]
fn repeated_request_of_a_holder_keeps_the_fence_and_never_shortens_the_lock() {
    shows(Mutant::RepeatShortens, || {
        let (mut server, ticket) = held();
        let granted = server.extend(K, HOLDER, 10_000).unwrap();
        server.pass_ms(1000);
        assert_eq!(fence(server.ask(&[K], HOLDER, 500, ticket + 7, 0)), granted);
        let is_kept = ttl_ms(&mut server, K) == 9000;
        assert_eq!(fence(server.ask(&[K], HOLDER, 20_000, ticket + 7, 5000)), granted);
        assert_eq!(ttl_ms(&mut server, K), 20_000);
        assert_eq!(server.expires_at_ms(K), Some(server.wall_ms + 20_000));
        // The larger ticket counts.
        let rank = refusal(server.ask(&[K], b"t", 1000, ticket + 1, 0));
        rank == (granted.get().max(ticket + 7), false) && is_kept
    });
}

#[test]
fn request_without_a_ticket_is_refused_even_to_the_holder() {
    let (mut server, _) = held();
    assert_eq!(server.acquire(K, HOLDER, 1000, None), None);
    assert_eq!(server.extend(K, HOLDER, 1000).map(|_| ttl_ms(&mut server, K)), Some(10_000));
}

#[test]
fn repeated_request_of_a_revoked_lock_moves_nothing() {
    let (mut server, ticket) = held();
    server.revoke(K).unwrap();
    let revoked = Err(CommandError::Revoked { left_ms: 10_000 });
    assert_eq!(server.ask(&[K], HOLDER, 20_000, ticket, 0), revoked);
    assert_eq!(server.ask(&[K], HOLDER, 20_000, ticket, 5000), revoked);
    assert_eq!(ttl_ms(&mut server, K), 10_000);
}

#[test]
fn repeated_request_neither_strengthens_the_mode_nor_changes_the_keys() {
    let mut server = Server::new();
    let ticket = clock(&server);
    let granted = fence(ask_shared(&mut server, HOLDER, ticket, 0));
    assert_eq!(fence(server.ask(&[K], HOLDER, 1000, ticket, 0)), granted);
    fence(ask_shared(&mut server, b"another reader", ticket + 1, 0));
    // A waiter that shares still shares.
    server.release(K, HOLDER);
    server.release(K, b"another reader");
    fence(server.ask(&[K], HOLDER, 1000, ticket + 2, 0));
    assert_eq!(ask_shared(&mut server, b"reader", ticket + 3, 5000), Ok(Reply::Waits));
    server.stand_in_line(&[K], b"reader", ticket + 3, 5000);
    server.release(K, HOLDER);
    fence(ask_shared(&mut server, b"another reader", ticket + 4, 0));
    // A lock of one key does not become one of two.
    refusal(server.ask(&BOTH, b"reader", 1000, ticket + 3, 0));
    assert!(!server.has(L));
}

#[test]
fn token_of_any_key_keeps_the_granted_one() {
    let mut server = Server::new();
    let ticket = clock(&server);
    fence(server.ask(&[K], b"other", 1000, ticket, 0));
    let Ok(Reply::GrantedOne { fence: granted, key: 1 }) =
        ask_any(&mut server, b"t", ticket + 1, 0)
    else {
        panic!("the second key is free")
    };
    server.release(K, b"other");
    let again = Ok(Reply::GrantedOne { fence: granted, key: 1 });
    assert_eq!(ask_any(&mut server, b"t", ticket + 1, 0), again);
    assert_eq!(fence(server.ask(&[L], b"t", 1000, ticket + 1, 0)), granted);
    assert!(!server.has(K));
}

#[test]
fn waiter_for_any_key_can_be_narrowed_to_one() {
    let (mut server, ticket) = held();
    fence(server.ask(&[L], b"other", 10_000, ticket, 0));
    assert_eq!(ask_any(&mut server, b"t", ticket + 1, 5000), Ok(Reply::Waits));
    let narrowed = server.stand_in_line(&[L], b"t", ticket + 1, 5000);
    server.release(K, HOLDER);
    server.run_turns();
    assert_eq!((server.granted(), server.has(K)), (vec![], false));
    server.release(L, b"other");
    assert_eq!(server.granted(), [narrowed]);
}

#[test]
fn repeated_request_in_line_keeps_its_place_and_is_answered_at_once() {
    let (mut server, ticket) = held();
    let waiter = server.stand_in_line(&[K], b"t", ticket + 1, 5000);
    server.stand_in_line(&[K], b"younger", ticket + 2, 5000);
    let (number, is_older) = refusal(server.ask(&[K], b"t", 1000, ticket + 1, 0));
    assert!(number >= ticket + 2 && is_older);
    server.release(K, HOLDER);
    assert_eq!(server.granted(), [waiter]);
}

#[test]
fn refusal_tells_the_largest_number_and_whether_an_older_client_comes_first() {
    let (mut server, ticket) = held();
    let granted = server.extend(K, HOLDER, 10_000).unwrap().get();
    assert_eq!(refusal(server.ask(&[K], b"t", 1000, ticket + 1, 0)), (granted, true));
    assert_eq!(refusal(server.ask(&[K], b"t", 1000, ticket - 1, 0)), (granted, false));
    // Equal tickets: the token decides.
    assert!(refusal(server.ask(&[K], b"i", 1000, ticket, 0)).1);
    assert!(!refusal(server.ask(&[K], b"g", 1000, ticket, 0)).1);
    let far = granted + 7;
    server.stand_in_line(&[K], b"waiter", far, 5000);
    assert_eq!(refusal(server.ask(&[K], b"t", 1000, ticket - 1, 0)), (far, false));
    server.stand_in_line(&[K], b"waiter", 0, 5000);
    assert_eq!(refusal(server.ask(&[K], b"t", 1000, ticket - 1, 0)), (granted, true));
}

#[test]
fn holder_without_a_ticket_is_older_than_everybody() {
    for takes in [
        |server: &mut Server| assert!(server.acquire(K, HOLDER, 5000, None).is_some()),
        |server: &mut Server| assert!(server.acquire_shared(K, HOLDER, 5000, None).is_some()),
        |server: &mut Server| server.set(K, b"old client", Some(5000)),
        |server: &mut Server| {
            server.set(K, HOLDER, Some(5000));
            server.extend(K, HOLDER, 5000).unwrap();
        },
    ] {
        let mut server = Server::new();
        takes(&mut server);
        assert!(refusal(server.ask(&[K], b"t", 1000, 1, 0)).1);
        let waiter = server.stand_in_line(&[K], b"t", 1, 1000);
        server.turn_after_ms(1000);
        assert_eq!(server.wait_results, [(waiter, WaitResult::Refused)]);
    }
}

#[test]
fn refusal_for_several_keys_counts_older_clients_of_all_or_of_any() {
    let (mut server, ticket) = held();
    fence(server.ask(&[L], b"other", 10_000, ticket + 9, 0));
    assert!(refusal(server.ask(&BOTH, b"t", 1000, ticket + 5, 0)).1);
    assert!(!refusal(ask_any(&mut server, b"t", ticket + 5, 0)).1);
    assert!(refusal(ask_any(&mut server, b"t", ticket + 10, 0)).1);
}

#[test]
fn yield_gives_the_lock_to_an_older_waiter_only() {
    shows(Mutant::YieldsToYounger, || {
        let (mut server, ticket) = held();
        server.stand_in_line(&[K], b"younger", ticket + 1, 5000);
        if server.yields(&[K], HOLDER) != Some(false) {
            return false;
        }
        assert_eq!(server.text(K), HOLDER);
        let older = server.stand_in_line(&[K], b"older", ticket - 1, 5000);
        assert_eq!(server.yields(&[K], HOLDER), Some(true));
        assert_eq!((server.granted(), server.text(K)), (vec![older], &b"older"[..]));
        true
    });
}

#[test]
fn yield_tells_a_token_that_it_does_not_hold_the_lock() {
    shows(Mutant::YieldClaimsToHold, || {
        let (mut server, ticket) = held();
        let waiter = server.stand_in_line(&[K], b"t", ticket - 1, 5000);
        let answers = [server.yields(&[K], b"t"), server.yields(&[L], HOLDER)];
        assert_eq!(server.yields(&[K], HOLDER), Some(true));
        assert_eq!(server.granted(), [waiter], "it stayed in line");
        // A lost answer, and the repeated command.
        answers == [None; 2] && server.yields(&[K], HOLDER).is_none()
    });
}

#[test]
fn lock_without_a_ticket_is_never_yielded() {
    let mut server = Server::with_lock(&[K], HOLDER, 5000);
    server.stand_in_line(&[K], b"front", 0, 5000);
    assert_eq!(server.yields(&[K], HOLDER), Some(false));
    server.set(L, b"old client", Some(5000));
    server.stand_in_line(&[L], b"front", 0, 5000);
    assert_eq!(server.yields(&[L], b"old client"), Some(false));
}

#[test]
fn reader_yields_to_an_older_writer_and_keeps_younger_readers_out() {
    let mut server = Server::new();
    let ticket = clock(&server);
    for reader in [&b"one"[..], b"two"] {
        fence(ask_shared(&mut server, reader, ticket + 5, 0));
    }
    let writer = server.stand_in_line(&[K], b"writer", ticket + 1, 5000);
    assert_eq!(server.yields(&[K], b"one"), Some(true));
    assert!(refusal(ask_shared(&mut server, b"one", ticket + 5, 0)).1, "kept for the writer");
    assert_eq!(server.granted(), []);
    assert_eq!(server.yields(&[K], b"two"), Some(true));
    assert_eq!(server.granted(), [writer]);
    assert_eq!(ask_shared(&mut server, b"one", ticket, 5000), Ok(Reply::Waits));
    assert_eq!(server.yields(&[K], b"writer"), Some(true), "a writer yields to an older reader");
    assert_eq!(ask_shared(&mut server, b"two", ticket - 1, 0).map(|_| ()), Ok(()));
    assert_eq!(server.yields(&[K], b"one"), Some(false), "a reader does not yield to a reader");
}

#[test]
fn yield_of_a_lock_of_several_keys_gives_all_of_them_up() {
    let mut server = Server::new();
    let ticket = clock(&server);
    fence(server.ask(&BOTH, HOLDER, 10_000, ticket, 0));
    let older = server.stand_in_line(&[L], b"older", ticket - 1, 5000);
    assert_eq!(server.yields(&BOTH, HOLDER), Some(true));
    assert_eq!((server.granted(), server.has(K)), (vec![older], false));
}

#[test]
fn yielded_key_is_kept_for_an_older_waiter_for_several() {
    let (mut server, ticket) = held();
    fence(server.ask(&[L], b"other", 10_000, ticket, 0));
    let older = server.stand_in_line(&BOTH, b"older", ticket - 1, 5000);
    assert_eq!(server.yields(&[K], HOLDER), Some(true));
    assert!(refusal(server.ask(&[K], HOLDER, 1000, ticket, 0)).1, "kept although it is free");
    server.stand_in_line(&[K], HOLDER, ticket, 5000);
    server.run_turns();
    assert!(!server.has(K));
    assert_eq!(server.yields(&[L], b"other"), Some(true));
    assert_eq!(server.granted(), [older]);
}

/// A waiter for both keys, one of which another client holds for long.
fn lacks_one_key(server: &mut Server) -> (u64, BlockedId) {
    let ticket = clock(server);
    fence(server.ask(&[L], b"other", 10_000, ticket, 0));
    (ticket, server.stand_in_line(&BOTH, b"both", ticket + 5, 5000))
}

#[test]
fn keys_are_kept_for_a_waiter_for_several_after_50_ms() {
    shows(Mutant::NeverKeepsKeys, || {
        let mut server = Server::new();
        let (ticket, both) = lacks_one_key(&mut server);
        server.turn_after_ms(49);
        // The place is taken over, and its time does not start anew.
        let both_again = server.stand_in_line(&BOTH, b"both", ticket + 5, 5000);
        fence(server.ask(&[K], b"younger", 1000, ticket + 6, 0));
        server.release(K, b"younger");
        server.turn_after_ms(1);
        let (mut passed, mut plain) = (false, false);
        if server.ask(&[K], b"younger", 1000, ticket + 6, 0).is_ok() {
            passed = server.release(K, b"younger");
        }
        if server.acquire(K, b"plain", 1000, None).is_some() {
            plain = server.release(K, b"plain");
        }
        fence(server.ask(&[K], b"older", 1000, ticket + 4, 5000));
        server.release(K, b"older");
        server.release(L, b"other");
        assert_eq!(server.granted(), [both_again]);
        assert!(server.wait_results.contains(&(both, WaitResult::Refused)));
        !passed && !plain
    });
}

#[test]
fn kept_keys_are_granted_once_their_waiter_has_left() {
    type Leave = fn(&mut Server, BlockedId);
    let leaves: [Leave; 3] = [
        |server, both| assert!(server.disconnect(both)),
        |server, _| assert!(!server.release(K, b"both")),
        |server, _| server.turn_after_ms(5000),
    ];
    for leave in leaves {
        let mut server = Server::new();
        let (ticket, both) = lacks_one_key(&mut server);
        server.turn_after_ms(50);
        let younger = server.stand_in_line(&[K], b"younger", ticket + 6, 20_000);
        server.run_turns();
        assert_eq!(server.granted(), []);
        leave(&mut server, both);
        server.run_turns();
        assert_eq!(server.granted(), [younger]);
    }
}

#[test]
fn two_waiters_for_the_same_keys_do_not_keep_them_from_each_other() {
    let mut server = Server::new();
    let ticket = clock(&server);
    fence(server.ask(&[K], b"one", 10_000, ticket, 0));
    fence(server.ask(&[L], b"two", 10_000, ticket, 0));
    let second = server.stand_in_line(&BOTH, b"second", ticket + 2, 50_000);
    let first = server.stand_in_line(&BOTH, b"first", ticket + 1, 50_000);
    server.turn_after_ms(50);
    server.release(K, b"one");
    server.run_turns();
    server.release(L, b"two");
    server.run_turns();
    assert_eq!(server.granted(), [first]);
    server.release_all(&BOTH, b"first");
    server.run_turns();
    assert_eq!(server.granted(), [first, second]);
}

#[test]
fn reader_that_has_not_heard_of_a_waiting_writer_is_refused() {
    let mut server = Server::new();
    let ticket = clock(&server);
    fence(ask_shared(&mut server, b"reader", ticket, 0));
    server.pass_ms(10);
    // The writer has heard of a large fence.
    let writer = server.stand_in_line(&[K], b"writer", ticket + 60_000_000, 5000);
    let late = clock(&server) - 5_000;
    let (number, is_older) = refusal(ask_shared(&mut server, b"late", late, 0));
    assert!(number >= ticket + 60_000_000 && is_older);
    assert_eq!(ask_shared(&mut server, b"late", number + 1, 5000), Ok(Reply::Waits));
    // A repair stands in front.
    let front = (Mode::Shared, Some(Fence::ZERO), 0);
    let repair = server.execute_acquire(&[K], b"repair", 1000, front, AcquireCommand::Acquire);
    fence(repair);
    server.release(K, b"repair");
    server.release(K, b"reader");
    assert_eq!(server.granted(), [writer]);
}

#[test]
fn stream_of_readers_does_not_starve_a_waiter_for_several_keys() {
    let mut server = Server::new();
    let ticket = clock(&server);
    fence(ask_shared(&mut server, b"reader", ticket, 0));
    let both = server.stand_in_line(&BOTH, b"both", ticket + 1, 5000);
    server.turn_after_ms(50);
    assert!(refusal(ask_shared(&mut server, b"next reader", ticket + 2, 0)).1);
    assert_eq!(ask_shared(&mut server, b"next reader", ticket + 2, 5000), Ok(Reply::Waits));
    server.run_turns();
    server.release(K, b"reader");
    assert_eq!(server.granted(), [both]);
}

#[test]
fn extension_does_not_change_the_ticket() {
    let (mut server, ticket) = held();
    let raised = Fence::new(ticket + 1000);
    assert!(matches!(server.extend_with(K, HOLDER, 1000, None, None), ExtendReply::Held { .. }));
    let _ = server.extend_with(K, HOLDER, 1000, raised, None);
    assert!(!refusal(server.ask(&[K], b"t", 1000, ticket - 1, 0)).1);
    assert!(refusal(server.ask(&[K], b"t", 1000, ticket + 1, 0)).1);
}
