//! REVOKE: the holder keeps the lock until its deadline, but cannot extend it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use proptest::prelude::*;
use quorlock_core::node::{CommandError, Holder, KeyEvent, Mode, Mutant, ServerEvent};
use support::{ExtendReply, REVOKED_VALUE, Server, WaitResult, shows};

const A: &[u8] = b"a";
const B: &[u8] = b"b";
const K: &[u8] = b"k";
const TOKEN: &[u8] = b"token";
const NEXT: &[u8] = b"next";

fn is_revoked(server: &mut Server, key: &[u8]) -> bool {
    matches!(server.inspect_all_fields(key).unwrap().holder, Holder::Lease { revoked: true, .. })
}

#[test]
fn revoked_lock_ends_at_its_deadline_and_not_before() {
    let mut server = Server::with_lock(&[K], TOKEN, 1000);
    assert!(!is_revoked(&mut server, K));
    assert_eq!(server.revoke(K), Ok(true));
    assert!(is_revoked(&mut server, K));
    server.pass_ms(400);
    for (fence, new_token) in
        [(None, None), (server.acquire(B, b"x", 9, None), None), (None, Some(NEXT))]
    {
        assert_eq!(
            server.extend_with(K, TOKEN, 5000, fence, new_token),
            ExtendReply::Revoked { left_ms: 600 }
        );
    }
    assert_eq!(server.extend_all(&[K], b"other", 5000), ExtendReply::NotHeld);
    server.turn_after_ms(599);
    assert_eq!(server.acquire(K, NEXT, 1000, None), None);
    server.pass_ms(1);
    assert!(server.acquire(K, NEXT, 1000, None).is_some());
    assert!(!is_revoked(&mut server, K));
    assert!(server.extend(K, NEXT, 5000).is_some());
}

#[test]
fn holder_of_a_revoked_lock_can_release_it_early() {
    let mut server = Server::with_lock(&[K], TOKEN, 1000);
    let blocked_id = server.acquire_or_wait(K, NEXT, 1000, 5000).blocked_id();
    server.revoke(K).unwrap();
    server.run_turns();
    assert_eq!(server.wait_results, []);
    assert!(!server.release(K, REVOKED_VALUE), "the value under the key proves nothing");
    assert!(server.release(K, TOKEN));
    assert_eq!((server.granted(), server.wait_results.len()), (vec![blocked_id], 1));
    assert_eq!(server.text(K), NEXT);
}

#[test]
fn waiter_is_granted_a_revoked_lock_at_its_deadline() {
    let mut server = Server::with_lock(&[K], TOKEN, 1000);
    server.acquire_or_wait(K, NEXT, 1000, 5000);
    server.revoke(K).unwrap();
    server.turn_after_ms(999);
    assert_eq!(server.wait_results, []);
    server.turn_after_ms(1);
    let results = &server.wait_results[..];
    assert!(matches!(results, [(_, WaitResult::Granted { waited_us: 1_000_000, .. })]));
}

#[test]
fn revoke_now_ends_the_lock_and_hands_its_keys_over() {
    let mut server = Server::with_lock(&[A, B], TOKEN, 1000);
    server.acquire_or_wait(A, NEXT, 1000, 5000);
    server.acquire_or_wait(B, NEXT, 1000, 5000);
    assert_eq!(server.revoke_now(B), Ok(true));
    assert!(!server.has(A) && !server.has(B));
    server.run_turns();
    assert_eq!(server.wait_results.len(), 2);
    let stats = *server.node().stats();
    assert_eq!((stats.revoked, stats.ended_by_operator, stats.handovers), (2, 2, 2));
    server.release(A, NEXT);
    assert_eq!(server.revoke_now(A), Ok(false));
}

#[test]
fn revocation_of_one_key_revokes_all_keys_of_the_lock() {
    let mut server = Server::with_lock(&[A, B, K], TOKEN, 1000);
    assert_eq!(server.revoke(B), Ok(true));
    for key in [A, B, K] {
        assert!(is_revoked(&mut server, key));
        assert_eq!(server.text(key), REVOKED_VALUE);
        assert_eq!(server.expires_at_ms(key), Some(server.wall_ms + 1000));
    }
    assert_eq!(server.extend_all(&[A, B, K], TOKEN, 5000), ExtendReply::Revoked { left_ms: 1000 });
    assert_eq!(server.node().stats().revoked, 3);
    assert_eq!(server.revoke(A), Ok(true));
    assert_eq!(server.node().stats().revoked, 3, "a lock is revoked once");
    assert!(server.release_all(&[A, B, K], TOKEN));
    assert!(server.is_empty());
}

#[test]
fn revoked_lock_is_not_adopted_after_a_crash() {
    let mut server = Server::new();
    for (key, is_revoked) in [(A, true), (B, false)] {
        server.acquire(key, TOKEN, 1000, None).unwrap();
        if is_revoked {
            server.revoke(key).unwrap();
        }
    }
    server.crash();
    assert_eq!(server.extend(A, TOKEN, 5000), None);
    assert!(server.extend(B, TOKEN, 5000).is_some(), "a lock that was not revoked is adopted");
    assert_eq!(server.acquire(A, NEXT, 1000, None), None);
    server.pass_ms(1001);
    assert!(server.acquire(A, NEXT, 1000, None).is_some());
}

#[test]
fn holder_of_a_revoked_lock_extends_it_neither_before_nor_after_a_crash() {
    let is_extended = |crashes| {
        let mut server = Server::with_lock(&[K], TOKEN, 1000);
        server.revoke(K).unwrap();
        if crashes {
            server.crash();
        }
        server.extend(K, TOKEN, 5000).is_some()
    };
    shows(Mutant::ExtendsRevoked, || !is_extended(false));
    shows(Mutant::RevokeKeepsToken, || !is_extended(true));
}

#[test]
fn every_write_of_a_revocation_is_propagated() {
    let mut server = Server::new();
    server.memory.keys.has_append_only_file = true;
    server.run_turns();
    server.acquire_all(&[A, B], TOKEN, 1000, None).unwrap();
    server.set(K, TOKEN, Some(700));
    server.memory.keys.propagated.clear();
    server.revoke(A).unwrap();
    server.revoke(K).unwrap();
    let writes = server.memory.keys.propagated.drain(..);
    let sets: Vec<_> = writes.map(|write| (write.key, write.value, write.expires_at_ms)).collect();
    let set =
        |key: &[u8], ms| (key.into(), Some(Some(REVOKED_VALUE.into())), Some(server.wall_ms + ms));
    assert_eq!(sets, [set(A, 1000), set(B, 1000), set(K, 700)]);
}

#[test]
fn revocation_replaces_the_value_of_a_foreign_string() {
    let mut server = Server::new();
    server.set(K, TOKEN, Some(1000));
    assert_eq!(server.revoke(K), Ok(true));
    assert_eq!(server.text(K), REVOKED_VALUE);
    assert_eq!(server.expires_at_ms(K), Some(server.wall_ms + 1000));
    assert_eq!(server.extend(K, TOKEN, 5000), None);
    assert!(!server.release(K, TOKEN));
    server.acquire_or_wait(K, NEXT, 1000, 5000);
    assert_eq!(server.revoke_now(K), Ok(true));
    server.run_turns();
    assert!(matches!(server.wait_results[..], [(_, WaitResult::Granted { waited_us: 0, .. })]));
}

#[test]
fn data_and_free_keys_are_not_revoked() {
    let mut server = Server::new();
    assert_eq!(server.revoke(K), Ok(false));
    assert_eq!(server.revoke_now(K), Ok(false));
    server.set(K, TOKEN, None);
    assert_eq!(server.revoke(K), Err(CommandError::NoExpiry));
    assert_eq!(server.revoke_now(K), Err(CommandError::NoExpiry));
    assert_eq!((server.text(K), server.expires_at_ms(K)), (TOKEN, None));
    assert_eq!(server.node().stats().revoked, 0);
}

#[test]
fn replica_revokes_nothing() {
    let mut server = Server::new();
    server.set(K, TOKEN, Some(1000));
    server.handle_event(&ServerEvent::Demoted);
    assert!(matches!(server.revoke(K), Err(CommandError::Abstaining { .. })));
    assert_eq!(server.text(K), TOKEN);
}

#[test]
fn node_that_abstains_revokes_a_restored_lock() {
    let mut server = Server::that_rejoins_after_ms(5000);
    server.set(K, TOKEN, Some(1000));
    assert_eq!(server.revoke(K), Ok(true));
    assert_eq!(server.extend(K, TOKEN, 1000), None);
}

#[test]
fn accident_to_the_mirror_does_not_undo_a_revocation() {
    let mut server = Server::with_lock(&[K], TOKEN, 10_000);
    server.revoke(K).unwrap();
    server.remove_key(K, KeyEvent::Expired);
    server.run_turns();
    assert_eq!(server.text(K), REVOKED_VALUE, "the mirror is written again");
    assert_eq!(server.extend_all(&[K], TOKEN, 10_000), ExtendReply::Revoked { left_ms: 10_000 });
}

#[test]
fn lock_without_its_mirror_can_be_revoked() {
    let mut server = Server::with_lock(&[K], TOKEN, 10_000);
    server.remove_key(K, KeyEvent::Expired);
    assert_eq!(server.revoke(K), Ok(true));
    assert_eq!(server.text(K), REVOKED_VALUE);
}

#[test]
fn overwrite_of_a_revoked_lock_ends_it() {
    let mut server = Server::with_lock(&[K], TOKEN, 10_000);
    server.revoke(K).unwrap();
    // The mirror of a revoked lock does not hold the token, so a string with the token is foreign.
    server.set(K, TOKEN, Some(1000));
    assert!(matches!(server.inspect_all_fields(K).unwrap().holder, Holder::Foreign { .. }));
    server.remove_key(K, KeyEvent::Removed);
    assert!(server.inspect_all_fields(K).is_none());
}

#[test]
fn write_that_the_server_refuses_leaves_the_lock_revoked() {
    let mut server = Server::new();
    server.memory.keys.has_append_only_file = true;
    server.acquire(K, TOKEN, 10_000, None).unwrap();
    server.memory.keys.propagated.clear();
    server.memory.keys.writes_left = Some(0);
    assert_eq!(server.revoke(K), Ok(true));
    let [write] = &server.memory.keys.propagated[..] else { panic!("one write") };
    assert_eq!(write.value, Some(None), "the token is not kept on disk");
    server.memory.keys.writes_left = None;
    server.turn_after_ms(1000);
    assert_eq!(server.text(K), REVOKED_VALUE);
    assert_eq!(server.extend_all(&[K], TOKEN, 10_000), ExtendReply::Revoked { left_ms: 9000 });
}

#[test]
fn inspect_shows_the_age_and_the_waiters_in_order() {
    let mut server = Server::with_lock(&[A, B], TOKEN, 10_000);
    let mut blocked_ids = Vec::new();
    for index in 0..12 {
        let keys: &[&[u8]] = if index % 3 == 1 { &[A, B] } else { &[A] };
        blocked_ids.push(server.acquire_all_or_wait(keys, &[index], 1000, 5000).blocked_id());
    }
    server.pass_ms(1500);
    server.extend_all(&[A, B], TOKEN, 20_000);
    let shown = server.inspect_all_fields(A).unwrap();
    assert_eq!(shown.waiters, 12);
    assert_eq!(
        shown.queue.iter().map(|waiter| waiter.blocked_id).collect::<Vec<_>>(),
        blocked_ids[..10]
    );
    let Holder::Lease { held_ms, mode, keys, revoked, ttl_ms, .. } = shown.holder else {
        panic!("the key is not held")
    };
    assert_eq!((held_ms, mode, keys, revoked, ttl_ms), (1500, Mode::Exclusive, 2, false, 20_000));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(u8),
    Extend(u8),
    SwapToken(u8, u8),
    Release(u8),
    Revoke,
    Pass(u64),
    Accident,
    Turn,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let token = 0..3_u8;
    let step = prop_oneof![
        4 => token.clone().prop_map(Step::Acquire),
        3 => token.clone().prop_map(Step::Extend),
        1 => (token.clone(), token.clone()).prop_map(|(old, new)| Step::SwapToken(old, new)),
        1 => token.prop_map(Step::Release),
        2 => Just(Step::Revoke),
        3 => (1..600_u64).prop_map(Step::Pass),
        1 => Just(Step::Accident),
        2 => Just(Step::Turn),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// A revocation moves no deadline.
    #[test]
    fn revoked_lock_is_not_granted_before_its_deadline(steps in steps()) {
        const TTL_MS: u64 = 1000;
        let mut server = Server::new();
        // The token of the holder, its deadline, and whether the lock was revoked.
        let mut holder: Option<(u8, u64, bool)> = None;
        for step in steps {
            let now_ms = server.mono_us / 1000;
            holder = holder.filter(|(_, until_ms, _)| now_ms < *until_ms);
            match step {
                Step::Acquire(token) => {
                    let granted = server.acquire(K, &[token], TTL_MS, None).is_some();
                    prop_assert_eq!(granted, holder.is_none());
                    if granted {
                        holder = Some((token, now_ms + TTL_MS, false));
                    }
                }
                Step::Extend(token) | Step::SwapToken(token, _) => {
                    let new = if let Step::SwapToken(_, new) = step { Some(new) } else { None };
                    let bytes = new.map(|new| [new]);
                    let extended = server.extend_with(K, &[token], TTL_MS, None, bytes.as_ref().map(|it| &it[..]));
                    match &mut holder {
                        Some((holds, until_ms, true)) if *holds == token => {
                            prop_assert_eq!(extended, ExtendReply::Revoked { left_ms: *until_ms - now_ms });
                        }
                        Some((holds, until_ms, false)) if *holds == token => {
                            let held = matches!(extended, ExtendReply::Held { .. });
                            prop_assert!(held);
                            *until_ms = now_ms + TTL_MS;
                            *holds = new.unwrap_or(token);
                        }
                        _ => prop_assert_eq!(extended, ExtendReply::NotHeld),
                    }
                }
                Step::Release(token) => {
                    let held = holder.is_some_and(|(holds, ..)| holds == token);
                    prop_assert_eq!(server.release(K, &[token]), held);
                    holder = holder.filter(|_| !held);
                }
                Step::Revoke => {
                    prop_assert_eq!(server.revoke(K), Ok(holder.is_some()));
                    if let Some((.., revoked)) = &mut holder {
                        *revoked = true;
                    }
                }
                Step::Pass(ms) => server.pass_ms(ms),
                Step::Accident => server.remove_key(K, KeyEvent::Evicted),
                Step::Turn => server.run_turns(),
            }
        }
    }
}
