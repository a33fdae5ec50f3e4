//! Several keys as one lock: all or none, with one end and one fence.
//!
//! A waiter reserves no key during its first 50 ms.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use quorlock_core::node::{BlockedId, FenceError, KeyEvent};
use support::beliefs::{Belief, Beliefs, KEYS, names};
use support::{AcquireReply, ExtendReply, Inspected, Server, WaitResult};

const A: &[u8] = b"a";
const B: &[u8] = b"b";
const C: &[u8] = b"c";

fn enqueue(server: &mut Server, keys: &[&[u8]], token: &[u8]) -> BlockedId {
    server.acquire_all_or_wait(keys, token, 1000, 5000).blocked_id()
}

fn is_free(server: &mut Server, key: &[u8]) -> bool {
    matches!(server.inspect(key), Inspected::Free)
}

#[test]
fn lock_takes_all_keys_or_none() {
    let mut server = Server::with_lock(&[B], b"other", 1000);
    assert_eq!(server.acquire_all(&[A, B], b"t", 1000, None), None);
    assert!(is_free(&mut server, A) && !server.has(A));
    server.release(B, b"other");
    let fence = server.acquire_all(&[A, B], b"t", 1000, None).unwrap();
    for key in [A, B] {
        assert_eq!(server.text(key), b"t");
        let Inspected::Lease { fence: shown, keys, .. } = server.inspect(key) else {
            panic!("the key is not held")
        };
        assert_eq!((shown, keys), (fence, 2));
        assert_eq!(server.acquire(key, b"other", 1000, None), None);
    }
    assert_eq!((server.node().leases(), server.node().stats().grants), (2, 3));
}

#[test]
fn fence_is_above_every_keys_counter_and_raises_all_of_them() {
    let mut server = Server::new();
    server.pass_ms(10_000);
    let ahead = server.acquire(B, b"x", 1000, None).unwrap().saturating_add(1_000_000);
    server.extend_with(B, b"x", 1000, Some(ahead), None).fence();
    server.release(B, b"x");
    let fence = server.acquire_all(&[A, B, C], b"t", 1000, None).unwrap();
    assert!(fence > ahead);
    server.release_all(&[A, B, C], b"t");
    for key in [A, B, C] {
        assert!(server.acquire(key, b"y", 1000, None).unwrap() > fence);
    }
}

#[test]
fn extension_moves_all_keys_or_none() {
    let mut server = Server::new();
    server.pass_ms(10_000);
    let fence = server.acquire_all(&[A, B], b"t", 1000, None).unwrap();
    let higher = fence.next().next();
    let extend = |server: &mut Server, keys: &[&[u8]], token: &[u8], fence| {
        server.extend_all_with(keys, token, 9000, Some(fence), None)
    };
    assert_eq!(extend(&mut server, &[A, B], b"x", higher), ExtendReply::NotHeld);
    for keys in [&[A][..], &[B]] {
        assert_eq!(extend(&mut server, keys, b"t", higher), ExtendReply::OtherKeys);
    }
    assert_eq!(extend(&mut server, &[A, B, C], b"t", higher), ExtendReply::NotHeld);
    assert_eq!(server.extend(A, b"t", 9000), None);
    for key in [A, B] {
        let lease = Inspected::Lease { waiters: 0, keys: 2, fence, ttl_ms: 1000 };
        assert_eq!(server.inspect(key), lease);
    }
    assert_eq!(extend(&mut server, &[A, B], b"t", higher), ExtendReply::Held { fence: higher });
    for key in [A, B] {
        let lease = Inspected::Lease { waiters: 0, keys: 2, fence: higher, ttl_ms: 9000 };
        assert_eq!(server.inspect(key), lease);
        assert_eq!(server.expires_at_ms(key), Some(server.wall_ms + 9000));
    }
    let below = ExtendReply::BadFence(FenceError::Below { current: higher });
    assert_eq!(extend(&mut server, &[A, B], b"t", fence), below);
}

#[test]
fn two_locks_of_one_token_are_not_extended_as_one() {
    let mut server = Server::with_lock(&[A, C], b"t", 1000);
    server.acquire(B, b"t", 1000, None).unwrap();
    assert_eq!(server.extend_all(&[A, B, C], b"t", 1000), ExtendReply::OtherKeys);
    assert_eq!(server.extend_all(&[A, B], b"t", 1000), ExtendReply::OtherKeys);
    assert!(server.extend(B, b"t", 2000).is_some());
    server.extend_all(&[A, C], b"t", 1000).fence();
}

#[test]
fn new_token_holds_all_keys() {
    let mut server = Server::new();
    let fence = server.acquire_all(&[A, B], b"t", 1000, None).unwrap();
    let next = server.extend_all_with(&[A, B], b"t", 1000, None, Some(b"u")).fence();
    assert!(next > fence);
    assert!(!server.release_all(&[A, B], b"t"));
    assert!([A, B].iter().all(|&key| server.text(key) == b"u"));
    assert!(server.release_all(&[A, B], b"u"));
    assert!(server.is_empty());
}

#[test]
fn lock_ends_on_all_keys_at_once_however_it_ends() {
    type End = fn(&mut Server);
    let ends: [(&str, End); 6] = [
        ("a release of one key", |server| assert!(server.release(B, b"t"))),
        ("a release of all", |server| assert!(server.release_all(&[A, B, C], b"t"))),
        ("DEL of one key", |server| server.remove_key(B, KeyEvent::Removed)),
        ("one key replaced", |server| {
            server.handle_key_event(B, KeyEvent::Replaced);
            // The new value is gone again, so that B is empty as in the other cases.
            server.memory.keys.take(0, B);
        }),
        ("the deadline", |server| server.pass_ms(1000)),
        ("the deadline, after the wall clock was stepped back", |server| {
            server.wall_ms -= 3_600_000;
            server.mono_us += 1_000_000;
        }),
    ];
    for (name, end) in ends {
        let mut server = Server::with_lock(&[A, B, C], b"t", 1000);
        let waiters = [enqueue(&mut server, &[A], b"u"), enqueue(&mut server, &[C], b"v")];
        server.run_turns();
        assert_eq!(server.granted(), [], "{name}: not before");
        end(&mut server);
        // The lock ends at once, even where a mirror still exists.
        for keys in [&[A, B, C][..], &[A, C]] {
            assert_eq!(server.extend_all(keys, b"t", 1000), ExtendReply::NotHeld, "{name}");
        }
        server.run_turns();
        let all: BTreeSet<_> = server.granted().into_iter().collect();
        assert_eq!(all, BTreeSet::from(waiters), "{name}");
        assert!(!server.has(B), "{name}");
        assert_eq!(server.node().leases(), 2, "{name}");
        let stats = *server.node().stats();
        assert_eq!(stats.grants, 5, "{name}");
        let ended = stats.releases + stats.ended_by_deadline + stats.ended_by_operator;
        assert_eq!(ended, 3, "{name}: the lock ends once on each key");
    }
}

#[test]
fn overwrite_of_one_key_ends_the_lock_and_the_new_value_stays() {
    let mut server = Server::with_lock(&[A, B], b"t", 1000);
    server.set(B, b"other", None);
    assert_eq!(server.extend_all(&[A, B], b"t", 1000), ExtendReply::NotHeld);
    server.run_turns();
    assert!(is_free(&mut server, A) && !server.has(A));
    assert_eq!(server.text(B), b"other");
}

#[test]
fn accident_to_the_mirrors_leaves_the_lock_as_it_is() {
    let mut server = Server::new();
    let fence = server.acquire_all(&[A, B], b"t", 10_000, None).unwrap();
    server.remove_key(A, KeyEvent::Expired);
    server.remove_key(B, KeyEvent::Evicted);
    assert_eq!(server.acquire_all(&[A, B], b"u", 1000, None), None);
    server.turn_after_ms(100);
    assert!([A, B].iter().all(|&key| server.text(key) == b"t"), "mirrors are written again");
    assert_eq!(server.extend_all(&[A, B], b"t", 20_000), ExtendReply::Held { fence });
}

#[test]
fn restored_keys_are_one_lock_again_when_all_are_there() {
    let mut server = Server::that_rejoins_after_ms(5000);
    server.set(A, b"t", Some(3000));
    server.set(B, b"t", Some(4000));
    assert_eq!(server.extend_all(&[A, B, C], b"t", 1000), ExtendReply::NotHeld);
    assert_eq!(server.node().leases(), 0, "the node adopts all keys or none");
    server.extend_all(&[A, B], b"t", 1000).fence();
    for key in [A, B] {
        assert!(matches!(server.inspect(key), Inspected::Lease { ttl_ms: 4000, keys: 2, .. }));
        assert_eq!(server.expires_at_ms(key), Some(server.wall_ms + 4000));
    }
    server.remove_key(A, KeyEvent::Removed);
    server.run_turns();
    assert!(server.is_empty());
}

#[test]
fn mirror_that_outlives_its_lock_is_not_adopted() {
    let mut server = Server::with_lock(&[A, B], b"t", 60_000);
    server.remove_key(A, KeyEvent::Removed);
    assert!(server.has(B), "the node writes nothing while it handles an event");
    assert_eq!(server.extend(B, b"t", 1000), None);
    assert!(!server.release(B, b"t"));
    assert!(server.is_empty());
}

#[test]
fn waiter_for_several_keys_reserves_none_at_first() {
    let mut server = Server::with_lock(&[B], b"other", 1000);
    let both = enqueue(&mut server, &[A, B], b"t");
    server.run_turns();
    assert!(server.acquire(A, b"newcomer", 1000, None).is_some(), "a free key is not reserved");
    assert!(server.release(B, b"other"));
    assert_eq!(server.granted(), []);
    assert!(server.acquire(B, b"newcomer", 1000, None).is_some());
    assert!(server.release(A, b"newcomer"));
    assert_eq!(server.granted(), []);
    assert!(server.release(B, b"newcomer"));
    assert_eq!(server.granted(), [both]);
    assert_eq!((server.text(A), server.text(B)), (&b"t"[..], &b"t"[..]));
    assert_eq!(server.node().waiters(), 0);
}

#[test]
fn waiter_that_lacks_a_key_is_skipped_until_all_are_free() {
    let mut server = Server::with_lock(&[A], b"x", 9000);
    server.acquire(B, b"y", 9000, None).unwrap();
    let both = enqueue(&mut server, &[A, B], b"t");
    let behind = enqueue(&mut server, &[A], b"u");
    let last = enqueue(&mut server, &[A], b"v");
    server.release(A, b"x");
    assert_eq!(server.granted(), [behind]);
    server.release(B, b"y");
    server.release(A, b"u");
    assert_eq!(server.granted(), [behind, both], "`both` arrived before `last`");
    server.release(B, b"t");
    server.run_turns();
    assert_eq!(server.granted(), [behind, both, last]);
}

#[test]
fn waiter_for_several_keys_does_not_overtake_single_key_waiters() {
    let mut server = Server::with_lock(&[A, B], b"x", 1000);
    let one = enqueue(&mut server, &[A], b"t");
    let both = enqueue(&mut server, &[A, B], b"u");
    server.turn_after_ms(1000);
    assert_eq!(server.granted(), [one]);
    server.release(A, b"t");
    assert_eq!(server.granted(), [one, both]);
}

#[test]
fn waiter_waits_until_the_foreign_string_under_one_of_its_keys_has_expired() {
    let mut server = Server::with_lock(&[A], b"x", 1000);
    let both = enqueue(&mut server, &[A, B], b"t");
    // `Server::set` sends no event.
    server.set(B, b"old client", Some(700));
    server.release(A, b"x");
    assert_eq!(server.granted(), []);
    server.turn_after_ms(702);
    assert_eq!(server.granted(), [both]);
}

#[test]
fn release_of_any_of_its_keys_removes_a_waiter() {
    for keys in [&[A][..], &[A, B], &[B]] {
        let mut server = Server::with_lock(&[A], b"x", 1000);
        let both = enqueue(&mut server, &[A, B], b"t");
        assert!(!server.release_all(keys, b"t"));
        server.run_turns();
        assert_eq!(server.wait_results, [(both, WaitResult::Refused)]);
        assert_eq!(server.node().waiters(), 0);
    }
}

#[test]
fn release_removes_a_waiter_even_when_the_lock_has_just_ended() {
    let ends: [fn(&mut Server); 2] =
        [|server| server.remove_key(B, KeyEvent::Removed), |server| server.pass_ms(1001)];
    for keys in [&[A][..], &[A, B]] {
        for end in ends {
            let mut server = Server::with_lock(&[A, B], b"x", 1000);
            let waiter = enqueue(&mut server, keys, b"t");
            // The release precedes the next turn, so mirrors of the ended lock still exist.
            end(&mut server);
            assert!(!server.release_all(&[A, B], b"t"));
            server.run_turns();
            assert_eq!(server.wait_results, [(waiter, WaitResult::Refused)]);
            assert!(server.is_empty());
        }
    }
}

#[test]
fn flush_by_an_operator_ends_all_locks_and_serves_all_waiters() {
    let mut server = Server::with_lock(&[A, B], b"x", 1000);
    let both = enqueue(&mut server, &[A, B], b"t");
    server.flush();
    server.run_turns();
    assert_eq!(server.granted(), [both]);
    assert_eq!(server.node().stats().ended_by_operator, 2);
}

#[test]
fn keys_of_a_lock_stay_together_when_the_table_shrinks() {
    let mut server = Server::new();
    for n in 0..20_000_u32 {
        server.acquire(&n.to_be_bytes(), b"x", 1000, None).unwrap();
    }
    server.acquire_all(&[A, B, C], b"t", 50_000, None).unwrap();
    server.turn_after_ms(2000);
    server.extend_all(&[A, B, C], b"t", 60_000).fence();
    server.remove_key(B, KeyEvent::Removed);
    server.run_turns();
    assert!(server.is_empty());
    assert_eq!(server.node().leases(), 0);
}

#[test]
fn nodes_differ_if_the_same_keys_are_one_lock_or_two() {
    let mut one = Server::new();
    let mut other = Server::new();
    let fence = one.acquire_all(&[A, B], b"t", 1000, None).unwrap();
    for key in [A, B] {
        other.acquire(key, b"t", 1000, Some(fence)).unwrap();
    }
    assert!(one.node() != other.node());
}

#[derive(Clone, Debug)]
enum Step {
    Acquire { keys: u8, ttl_ms: u64 },
    Wait { keys: u8, ttl_ms: u64, wait_ms: u64 },
    ExtendAnyKeys { nth: usize, keys: u8, ttl_ms: u64 },
    ExtendOwnKeys { nth: usize, ttl_ms: u64 },
    SwapToken { nth: usize },
    Release { nth: usize, keys: u8 },
    Disconnect { nth: usize },
    RemoveKey { key: u8, event: KeyEvent },
    Foreign { key: u8, expires_in_ms: u64 },
    Flush,
    MoveWallClock { ms: i64 },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (keys, nth, ttl) = (1..1_u8 << KEYS, 0..8_usize, 1..3000_u64);
    let event = support::key_events();
    prop_oneof![
        3 => (keys.clone(), ttl.clone()).prop_map(|(keys, ttl_ms)| Step::Acquire { keys, ttl_ms }),
        8 => (keys.clone(), ttl.clone(), 1..4000_u64)
            .prop_map(|(keys, ttl_ms, wait_ms)| Step::Wait { keys, ttl_ms, wait_ms }),
        2 => (nth.clone(), keys.clone(), ttl.clone())
            .prop_map(|(nth, keys, ttl_ms)| Step::ExtendAnyKeys { nth, keys, ttl_ms }),
        2 => (nth.clone(), ttl).prop_map(|(nth, ttl_ms)| Step::ExtendOwnKeys { nth, ttl_ms }),
        1 => nth.clone().prop_map(|nth| Step::SwapToken { nth }),
        5 => (nth.clone(), keys).prop_map(|(nth, keys)| Step::Release { nth, keys }),
        1 => nth.prop_map(|nth| Step::Disconnect { nth }),
        1 => (0..KEYS, event).prop_map(|(key, event)| Step::RemoveKey { key, event }),
        1 => (0..KEYS, 1..2000_u64).prop_map(|(key, expires_in_ms)| Step::Foreign { key, expires_in_ms }),
        1 => Just(Step::Flush),
        1 => (-5000..5000_i64).prop_map(|ms| Step::MoveWallClock { ms }),
        4 => (0..1500_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

struct Waiting {
    token: Vec<u8>,
    keys: u8,
    ttl_ms: u64,
    since_us: u64,
    until_us: u64,
}

/// The keys that are kept for older waiters for several keys.
fn kept_keys(waiting: &HashMap<BlockedId, Waiting>, blocked_id: BlockedId, now_us: u64) -> u8 {
    let keeps = |&(other, waits): &(&BlockedId, &Waiting)| {
        *other < blocked_id && !is_single_key(waits.keys) && now_us >= waits.since_us + 50_000
    };
    waiting.iter().filter(keeps).fold(0, |kept, (_, waits)| kept | waits.keys)
}

fn is_single_key(keys: u8) -> bool {
    keys.is_power_of_two()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Random locks of one key and of several, while operators remove keys, the wall clock is
    /// stepped and keys are evicted.
    ///
    /// Each key has at most one holder and growing fences, the keys of a lock agree, an ended lock
    /// leaves nothing behind, and no waiter is forgotten.
    #[test]
    fn all_keys_or_none_and_no_waiter_is_forgotten(steps in prop::collection::vec(step(), 1..80)) {
        let mut server = Server::new();
        let mut beliefs = Beliefs::default();
        let mut waiting: HashMap<BlockedId, Waiting> = HashMap::new();
        let mut tokens = 0_u32;
        for step in steps {
            let now_us = server.mono_us;
            beliefs.expire(now_us);
            tokens += 1;
            let token = tokens.to_le_bytes().to_vec();
            match step {
                Step::Acquire { keys, ttl_ms } => {
                    if let Some(fence) = server.acquire_all(&names(keys), &token, ttl_ms, None) {
                        let overtakes = waiting.values().any(|other| is_single_key(other.keys) && other.keys & keys != 0);
                        prop_assert!(!overtakes, "overtook a waiter");
                        beliefs.record_grant(Belief { token, keys, fence, until_us: now_us + ttl_ms * 1000 })?;
                    }
                }
                Step::Wait { keys, ttl_ms, wait_ms } => {
                    match server.acquire_all_or_wait(&names(keys), &token, ttl_ms, wait_ms) {
                        AcquireReply::Granted(fence) => {
                            beliefs.record_grant(Belief { token, keys, fence, until_us: now_us + ttl_ms * 1000 })?;
                        }
                        AcquireReply::Waits(blocked_id) => {
                            let until_us = now_us + wait_ms * 1000;
                            waiting.insert(blocked_id, Waiting { token, keys, ttl_ms, since_us: server.mono_us, until_us });
                        }
                        other => prop_assert_eq!(other, AcquireReply::QueueFull),
                    }
                }
                Step::ExtendAnyKeys { nth, keys, ttl_ms } => {
                    if let Some(held) = beliefs.nth(nth) {
                        match server.extend_all(&names(keys), &held.token, ttl_ms) {
                            ExtendReply::Held { fence } => {
                                prop_assert_eq!((keys, fence), (held.keys, held.fence));
                                let belief = beliefs.held.iter_mut().find(|other| other.token == held.token).unwrap();
                                belief.until_us = belief.until_us.max(now_us + ttl_ms * 1000);
                            }
                            ExtendReply::OtherKeys => prop_assert!(keys != held.keys && keys & held.keys == keys),
                            other => {
                                prop_assert_eq!(other, ExtendReply::NotHeld);
                                prop_assert!(keys & !held.keys != 0, "the token holds all of these keys");
                            }
                        }
                    }
                }
                Step::ExtendOwnKeys { nth, ttl_ms } => {
                    if let Some(held) = beliefs.nth(nth) {
                        let extended = server.extend_all(&names(held.keys), &held.token, ttl_ms);
                        prop_assert_eq!(extended, ExtendReply::Held { fence: held.fence });
                        let belief = beliefs.held.iter_mut().find(|other| other.token == held.token).unwrap();
                        belief.until_us = belief.until_us.max(now_us + ttl_ms * 1000);
                    }
                }
                Step::SwapToken { nth } => {
                    if let Some(held) = beliefs.nth(nth) {
                        let keys = names(held.keys);
                        let fence = server.extend_all_with(&keys, &held.token, 1, None, Some(&token)).fence();
                        beliefs.held.retain(|other| other.token != held.token);
                        let until_us = held.until_us.max(now_us + 1000);
                        beliefs.record_grant(Belief { token, fence, until_us, ..held })?;
                    }
                }
                Step::Release { nth, keys } => {
                    if let Some(held) = beliefs.nth(nth) {
                        let released = server.release_all(&names(keys), &held.token);
                        prop_assert_eq!(released, keys & held.keys != 0);
                        beliefs.held.retain(|other| !released || other.token != held.token);
                    }
                }
                Step::Disconnect { nth } => server.disconnect_nth(&mut waiting, nth),
                Step::RemoveKey { key, event } => beliefs.remove_key(&mut server, key, event),
                Step::Foreign { key, expires_in_ms } => server.set_foreign(&[key], expires_in_ms),
                Step::Flush => {
                    server.flush();
                    beliefs.held.clear();
                }
                Step::MoveWallClock { ms } => server.wall_ms = server.wall_ms.saturating_add_signed(ms),
                Step::Pass { ms } => server.pass_ms(ms),
            }
            server.run_turns();
            let now_us = server.mono_us;
            beliefs.expire(now_us);
            for (blocked_id, result) in std::mem::take(&mut server.wait_results) {
                let Some(waiter) = waiting.remove(&blocked_id) else { panic!("answered twice, or after it was cancelled") };
                let Some(fence) = result.granted(now_us < waiter.until_us) else { continue };
                let overtakes = waiting.iter().any(|(&other, waits)| {
                    is_single_key(waits.keys) && waits.keys & waiter.keys != 0
                        && other < blocked_id && now_us < waits.until_us
                });
                prop_assert!(!overtakes, "overtook a waiter for one of its keys alone");
                let Waiting { token, keys, ttl_ms, .. } = waiter;
                beliefs.record_grant(Belief { token, keys, fence, until_us: now_us + ttl_ms * 1000 })?;
            }
            // The keys of a lock agree, and an ended lock leaves nothing behind.
            prop_assert_eq!(server.node().leases(), beliefs.leases());
            for held in &beliefs.held {
                for name in names(held.keys) {
                    let Inspected::Lease { fence, keys, ttl_ms, .. } = server.inspect(name) else {
                        panic!("the key is not held")
                    };
                    prop_assert_eq!((fence, keys), (held.fence, held.keys.count_ones() as usize));
                    prop_assert_eq!(ttl_ms, (held.until_us - now_us).div_ceil(1000));
                }
            }
            let is_expected = |text: &[u8]| text == b"old client" || beliefs.held.iter().any(|held| held.token == text);
            prop_assert!(server.texts().all(is_expected), "a mirror outlives its lock");
            // No waiter is forgotten.
            prop_assert!(waiting.values().all(|waiter| now_us < waiter.until_us));
            prop_assert_eq!(server.node().waiters(), waiting.len());
            for (&blocked_id, waiter) in &waiting {
                if kept_keys(&waiting, blocked_id, now_us) & waiter.keys != 0 {
                    continue;
                }
                prop_assert!(!names(waiter.keys).into_iter().all(|name| is_free(&mut server, name)), "a client waits for free keys");
            }
            prop_assert!(waiting.is_empty() || server.node().next_wake().is_some());
        }
        server.turn_after_ms(10_000);
        prop_assert_eq!((server.node().waiters(), server.node().leases()), (0, 0));
        prop_assert!(server.texts().all(|text| text == b"old client"));
        let stats = server.node().stats();
        let ended = stats.releases + stats.ended_by_deadline + stats.ended_by_operator;
        prop_assert_eq!(stats.grants, ended, "each lock ends once on each of its keys");
    }
}
