//! What only the inside of a node shows: what a node may have forgotten, writes that the server
//! refuses, and the numbers of tickets and of refusals.

use crate::support::{MAX_TTL_MS, Server};
use quorlock_core::node::memory_server::Name;
use quorlock_core::node::{
    Command, CommandError, KeyEvent, Mode, Reason, Release, Reply, ServerEvent, Wants,
};

const K: &[u8] = b"k";
const HOLDER: &[u8] = b"holder";

#[test]
fn abstention_is_never_cut_short_by_another() {
    let mut server = Server::that_rejoins_after_ms(10 * MAX_TTL_MS);
    server.handle_event(&ServerEvent::Swap(0, 1));
    assert_eq!(server.abstention(), Some((Reason::Start, Some(10 * MAX_TTL_MS))));
    let end = server.now().monotonic.plus_us(10 * MAX_TTL_MS * 1000);
    assert_eq!(server.node().next_wake(), Some(end), "the node votes again by its own timer");
}

#[test]
fn mirror_that_expires_with_its_lease_is_not_written_again() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    server.pass_ms(999);
    server.remove_key(b"k", KeyEvent::Expired);
    server.run_turns();
    assert!(server.is_empty());
    assert_eq!(server.node().stats().saved_from_clock_step, 0);
    server.turn_after_ms(1);
    assert_eq!(server.node().leases(), 0);
}

#[test]
fn reload_is_not_a_flush() {
    let mut server = Server::with_lock(&[b"kept"], b"a", 10_000);
    server.acquire(b"lost", b"a", 10_000).unwrap();
    server.handle_event(&ServerEvent::Flush(None));
    server.handle_event(&ServerEvent::LoadingBegins);
    server.handle_event(&ServerEvent::Flush(None));
    // The server replays the append-only file, including deletions.
    server.remove_key(b"kept", KeyEvent::Removed);
    server.remove_key(b"lost", KeyEvent::Removed);
    server.set(b"kept", b"a", Some(10_000));
    server.handle_event(&ServerEvent::LoadingEnds);
    assert_eq!(server.acquire(b"kept", b"b", 1000), None);
    assert_eq!(server.acquire(b"lost", b"b", 1000), None);
    server.run_turns();
    assert_eq!(server.text(b"lost"), b"a");
    assert!(!server.node().lacks_mirrors());
    assert!(server.release(b"kept", b"a") && server.release(b"lost", b"a"));
    assert!(server.is_empty());
}

#[test]
fn swapdb_while_loading_neither_ends_locks_nor_starts_an_abstention() {
    let mut server = Server::with_lock(&[b"k"], b"a", 10_000);
    server.handle_event(&ServerEvent::LoadingBegins);
    server.handle_event(&ServerEvent::Swap(0, 1));
    server.handle_event(&ServerEvent::LoadingEnds);
    server.run_turns();
    assert_eq!(server.node().leases(), 1);
    assert_eq!(server.abstention(), None);
    assert!(server.release(b"k", b"a"));
}

#[test]
fn flush_by_an_operator_before_a_reload_ends_the_leases() {
    // Before the reload, some servers empty their databases too. Others only save them.
    for before_the_reload in [ServerEvent::Flush(None), ServerEvent::Saves] {
        let mut server = Server::with_lock(&[b"k"], b"a", 10_000);
        server.flush();
        server.handle_event(&before_the_reload);
        server.handle_event(&ServerEvent::LoadingBegins);
        server.handle_event(&ServerEvent::LoadingEnds);
        assert!(server.acquire(b"k", b"b", 1000).is_some(), "{before_the_reload:?}");
    }
}

#[test]
fn lost_mirrors_are_forgotten_once_their_leases_have_ended() {
    let mut server = Server::new();
    for n in 0..20_000_u32 {
        server.acquire(&n.to_le_bytes(), b"a", 1000).unwrap();
        server.remove_key(&n.to_le_bytes(), KeyEvent::Evicted);
    }
    server.turn_after_ms(2000);
    assert_eq!(server.node().leases(), 0);
    assert!(!server.node().lacks_mirrors());
    assert_eq!(server.node().next_wake(), None);
}

#[test]
fn write_that_the_server_refuses_leaves_the_lock_revoked() {
    let mut server = Server::new();
    server.memory.keys.has_replica = true;
    server.acquire(b"k", b"token", 10_000).unwrap();
    server.memory.keys.propagated.clear();
    server.memory.keys.writes_left = Some(0);
    assert_eq!(server.revoke(b"k"), Ok(true));
    let deleted = (Name::from_slice(b"k"), true);
    assert_eq!(server.memory.keys.propagated, [deleted], "the token is not kept on disk");
    server.memory.keys.writes_left = None;
    server.turn_after_ms(1000);
    assert!(server.text(b"k").starts_with(b"unknown"), "no client knows the value");
    assert_eq!(
        server.extend_with(&[b"k"], b"token", 10_000, None, None),
        Err(CommandError::Revoked { left_ms: 9000 })
    );
}

#[test]
fn end_of_a_reader_while_the_mirror_is_lost_changes_nothing_for_others() {
    let mut server = Server::new();
    for (token, ttl_ms) in [(&b"a"[..], 50), (b"b", 10_000)] {
        server.acquire_shared(b"k", token, ttl_ms).unwrap();
    }
    let value = server.text(b"k").to_vec();
    server.remove_key(b"k", KeyEvent::Evicted);
    server.memory.keys.memory_is_short = true;
    server.turn_after_ms(60);
    assert_eq!((server.node().leases(), server.has(b"k")), (1, false));
    server.memory.keys.memory_is_short = false;
    server.turn_after_ms(1000);
    assert_eq!(server.text(b"k"), value);
    assert_eq!(server.expires_at_ms(b"k"), Some(server.wall_ms + 10_000 - 1060));
}

#[test]
fn first_reader_needs_the_mirror_and_later_readers_do_not() {
    let mut server = Server::new();
    server.memory.keys.writes_left = Some(0);
    let shared = (Mode::Shared, None, 0);
    assert_eq!(
        server.execute_acquire(Wants::All, &[b"k"], b"reader", 1000, shared),
        Err(CommandError::NotWritten)
    );
    assert_eq!(server.node().leases(), 0);
    server.memory.keys.writes_left = Some(1);
    server.acquire_shared(b"k", b"reader", 1000).unwrap();
    assert!(server.acquire_shared(b"k", b"second", 2000).is_some(), "the lease decides");
    assert!(server.node().lacks_mirrors());
    server.memory.keys.writes_left = None;
    server.turn_after_ms(1500);
    assert_eq!(server.expires_at_ms(b"k"), Some(server.wall_ms + 500));
}

/// A server on which a client with an accurate clock holds the key, and the ticket of that client.
fn held() -> (Server, u64) {
    let mut server = Server::new();
    let ticket = server.now().wall_us;
    assert!(matches!(server.ask(&[K], HOLDER, 10_000, ticket, 0), Ok(Reply::Granted(_))));
    (server, ticket)
}

fn refusal(reply: Result<Reply, CommandError>) -> (u64, bool) {
    match reply {
        Err(CommandError::Held { number, is_older }) => (number.get(), is_older),
        other => panic!("{other:?}"),
    }
}

#[test]
fn number_of_a_refusal_is_accepted_as_a_ticket_after_a_clock_step() {
    let (mut server, _) = held();
    server.wall_ms -= 3_600_000;
    let now_us = server.now().wall_us;
    let (number, _) = refusal(server.ask(&[K], b"t", 1000, now_us, 0));
    assert_eq!(server.ask(&[K], b"t", 1000, number, 5000), Ok(Reply::Waits));
}

#[test]
fn front_of_the_queue_proposes_no_fence() {
    let mut server = Server::new();
    let first = server.acquire(K, b"a", 1000).unwrap();
    server.release(K, b"a");
    // The counter is behind the clock, and the grant continues from the counter.
    server.pass_ms(600_000);
    assert_eq!(server.ask(&[K], b"repair", 1000, 0, 0), Ok(Reply::Granted(first.next())));
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
    assert_eq!(server.ask(&[K], b"waiter", 1000, far, 5000), Ok(Reply::Waits));
    assert_eq!(refusal(server.ask(&[K], b"t", 1000, ticket - 1, 0)), (far, false));
    assert_eq!(server.ask(&[K], b"waiter", 1000, 0, 5000), Ok(Reply::Waits));
    assert_eq!(refusal(server.ask(&[K], b"t", 1000, ticket - 1, 0)), (granted, true));
}

#[test]
fn demotion_ends_all_leases_and_a_replica_changes_no_key() {
    let mut server = Server::with_lock(&[K], HOLDER, 1000);
    server.handle_event(&ServerEvent::Demoted);
    let abstains = Err(CommandError::Abstaining { reason: Reason::Replica, left_ms: MAX_TTL_MS });
    let (keys, token) = (&[Name::from_slice(K)][..], &Name::from_slice(HOLDER));
    let release = Release { db: 0, keys, token };
    for command in [Command::Release(release.clone()), Command::Yield(release)] {
        assert_eq!(server.execute(&command), abstains);
    }
    assert_eq!(server.extend_with(&[K], HOLDER, 2000, None, None), abstains);
    assert_eq!(server.revoke(K).map(Reply::Revoked), abstains);
    // The wall clock stands still, so only the node could remove the key.
    server.mono_us += 3_600_000_000;
    server.run_turns();
    assert_eq!((server.node().leases(), server.text(K)), (0, HOLDER));
}

#[test]
fn release_of_a_lock_from_the_former_master_is_propagated() {
    let mut server = Server::new();
    server.run_turns();
    server.handle_event(&ServerEvent::Demoted);
    server.set(K, HOLDER, Some(60_000));
    server.turn_after_ms(1000);
    server.handle_event(&ServerEvent::Promoted);
    server.memory.keys.has_replica = true;
    assert!(server.release(K, HOLDER));
    assert_eq!(server.memory.keys.propagated, [(Name::from_slice(K), true)]);
}
