//! What a node may have forgotten: abstention, loading, and mirrors that were lost by accident.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use quorlock_core::Fence;
use quorlock_core::node::{KeyEvent, Reason, ServerEvent};
use support::{Inspected, MAX_TTL_MS, Server};

const HOUR_MS: u64 = 3_600_000;

#[test]
fn node_that_has_just_started_grants_nothing_while_it_abstains() {
    let mut server = Server::that_rejoins_after_ms(5000);
    server.turn_after_ms(4999);
    assert_eq!(server.acquire(b"k", b"a", 1000, None), None);
    assert_eq!(server.abstention(), Some((Reason::Start, Some(1))));
    assert_eq!(server.node().next_wake().map(|at| at.us_since(server.now().monotonic)), Some(1000));
    server.turn_after_ms(1);
    assert!(server.acquire(b"k", b"a", 1000, None).is_some());
}

#[test]
fn step_of_the_wall_clock_does_not_end_an_abstention() {
    let mut server = Server::that_rejoins_after_ms(5000);
    server.wall_ms += HOUR_MS;
    server.run_turns();
    assert_eq!(server.acquire(b"k", b"a", 1000, None), None);
}

#[test]
fn lock_that_was_restored_is_extended_and_released_while_abstaining() {
    let mut server = Server::that_rejoins_after_ms(5000);
    server.set(b"k", b"a", Some(1000));
    assert!(server.extend(b"k", b"a", 2000).is_some());
    assert!(server.release(b"k", b"a"));
    assert_eq!(server.acquire(b"k", b"b", 1000, None), None);
}

#[test]
fn promoted_replica_abstains_for_the_largest_ttl() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    server.handle_event(&ServerEvent::Demoted);
    server.run_turns();
    assert_eq!(server.node().leases(), 0);
    server.turn_after_ms(HOUR_MS);
    assert_eq!(server.abstention(), Some((Reason::Replica, None)));
    server.handle_event(&ServerEvent::Promoted);
    assert_eq!(server.abstention(), Some((Reason::Promotion, Some(MAX_TTL_MS))));
    server.turn_after_ms(MAX_TTL_MS);
    server.clear();
    assert!(server.acquire(b"k", b"b", 1000, None).is_some());
}

#[test]
fn abstention_is_never_cut_short_by_another() {
    let mut server = Server::that_rejoins_after_ms(10 * MAX_TTL_MS);
    server.handle_event(&ServerEvent::Swap(0, 1));
    assert_eq!(server.abstention(), Some((Reason::Start, Some(10 * MAX_TTL_MS))));
}

#[test]
fn swapped_databases_end_their_leases_and_the_node_abstains() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    server.handle_event(&ServerEvent::Swap(3, 4));
    server.run_turns();
    assert_eq!(server.node().leases(), 1);
    server.handle_event(&ServerEvent::Swap(0, 3));
    server.run_turns();
    assert_eq!(server.node().leases(), 0);
    server.clear();
    assert_eq!(server.acquire(b"k", b"b", 1000, None), None);
}

#[test]
fn restarted_node_grants_fences_above_all_that_it_may_have_granted() {
    let mut before = Server::new();
    before.pass_ms(1000);
    let ahead = Fence::of_wall_us((before.wall_ms + 60_000) * 1000);
    let highest = before.acquire(b"k", b"a", 1000, Some(ahead)).unwrap();
    let mut after = Server::that_rejoins_after_ms(5000);
    after.turn_after_ms(5000);
    assert!(after.acquire(b"k", b"b", 1000, None).unwrap() > highest);
}

#[test]
fn fences_grow_after_a_clock_step_back_while_the_node_remembers() {
    let mut server = Server::new();
    server.wall_ms += HOUR_MS;
    let highest = server.acquire(b"k", b"a", 1000, None).unwrap();
    assert!(server.release(b"k", b"a"));
    server.wall_ms -= HOUR_MS;
    let higher = server.acquire(b"k", b"b", 1000, None).unwrap();
    assert!(higher > highest);
    // Baseline: a restart forgets the fences. The stepped clock then yields a smaller fence.
    server.restart(0);
    assert!(server.acquire(b"k", b"c", 1000, None).unwrap() < highest);
}

#[test]
fn mirror_that_a_clock_step_expired_is_written_again() {
    let mut server = Server::with_lock(&[b"k"], b"a", 10_000);
    server.wall_ms += HOUR_MS;
    server.run_turns();
    assert_eq!(server.text(b"k"), b"a");
    assert_eq!(server.expires_at_ms(b"k"), Some(server.wall_ms + 10_000));
    assert_eq!(server.node().stats().saved_from_clock_step, 1);
    assert!(!server.node().lacks_mirrors());
}

#[test]
fn evicted_mirror_is_written_again_a_little_later() {
    let mut server = Server::with_lock(&[b"k"], b"a", 10_000);
    server.remove_key(b"k", KeyEvent::Evicted);
    server.run_turns();
    assert!(server.is_empty(), "a mirror written at once would be evicted at once");
    server.turn_after_ms(100);
    assert_eq!(server.text(b"k"), b"a");
}

#[test]
fn mirror_returns_once_another_string_is_gone() {
    let mut server = Server::with_lock(&[b"k"], b"a", 10_000);
    server.remove_key(b"k", KeyEvent::Expired);
    server.set(b"k", b"old client", Some(2000));
    server.run_turns();
    assert_eq!(server.text(b"k"), b"old client");
    server.remove_key(b"k", KeyEvent::Removed);
    let shown = server.inspect(b"k");
    assert!(matches!(shown, Inspected::Lease { .. }), "the removed string was not the mirror");
    server.turn_after_ms(1000);
    assert_eq!(server.text(b"k"), b"a");
    assert!(server.release(b"k", b"a"));
    assert!(server.is_empty());
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
    server.acquire(b"lost", b"a", 10_000, None).unwrap();
    server.handle_event(&ServerEvent::Flush(None));
    server.handle_event(&ServerEvent::LoadingBegins);
    server.handle_event(&ServerEvent::Flush(None));
    // The server replays the append-only file, including deletions.
    server.remove_key(b"kept", KeyEvent::Removed);
    server.remove_key(b"lost", KeyEvent::Removed);
    server.set(b"kept", b"a", Some(10_000));
    server.handle_event(&ServerEvent::LoadingEnds);
    assert_eq!(server.acquire(b"kept", b"b", 1000, None), None);
    assert_eq!(server.acquire(b"lost", b"b", 1000, None), None);
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
        server.clear();
        server.handle_event(&ServerEvent::Flush(None));
        server.handle_event(&before_the_reload);
        server.handle_event(&ServerEvent::LoadingBegins);
        server.handle_event(&ServerEvent::LoadingEnds);
        assert!(server.acquire(b"k", b"b", 1000, None).is_some(), "{before_the_reload:?}");
    }
}

#[test]
fn flush_ends_the_leases_before_the_next_command() {
    let mut server = Server::with_lock(&[b"k"], b"a", 10_000);
    server.flush();
    assert!(server.acquire(b"k", b"b", 1000, None).is_some());
    assert_eq!(server.node().stats().ended_by_operator, 1);
}

#[test]
fn lost_mirrors_are_forgotten_once_their_leases_have_ended() {
    let mut server = Server::new();
    for n in 0..20_000_u32 {
        server.acquire(&n.to_le_bytes(), b"a", 1000, None).unwrap();
        server.remove_key(&n.to_le_bytes(), KeyEvent::Evicted);
    }
    server.turn_after_ms(2000);
    assert_eq!(server.node().leases(), 0);
    assert!(!server.node().lacks_mirrors());
    assert_eq!(server.node().next_wake(), None);
}
