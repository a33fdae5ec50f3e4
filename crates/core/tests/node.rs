//! The promises of a node, one by one and over random events.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use proptest::prelude::*;
use quorlock_core::Fence;
use quorlock_core::node::{FenceError, KeyEvent, Mutant, ServerEvent};
use support::{ExtendReply, Inspected, MAX_TTL_MS, Server, shows};

#[test]
fn held_lock_is_refused_even_to_its_own_token() {
    let mut server = Server::new();
    assert!(server.acquire(b"k", b"a", 1000, None).is_some());
    assert_eq!(server.acquire(b"k", b"a", 1000, None), None);
}

#[test]
fn lock_ends_at_its_deadline_by_the_monotonic_clock_alone() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    server.wall_ms += 3_600_000;
    server.mono_us += 999_000;
    assert_eq!(server.acquire(b"k", b"b", 1000, None), None, "the wall clock was stepped ahead");
    server.wall_ms -= 7_200_000;
    server.mono_us += 1000;
    assert!(server.acquire(b"k", b"b", 1000, None).is_some(), "the wall clock was stepped back");
}

#[test]
fn evicted_lock_stays_held_and_an_extension_rewrites_its_mirror() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    server.remove_key(b"k", KeyEvent::Evicted);
    assert_eq!(server.node().stats().saved_from_eviction, 1);
    assert_eq!(server.acquire(b"k", b"b", 1000, None), None);
    assert!(server.extend(b"k", b"a", 2000).is_some());
    assert_eq!(server.text(b"k"), b"a");
    assert!(server.release(b"k", b"a"));
    assert!(server.is_empty());
}

#[test]
fn foreign_string_in_place_of_a_lost_mirror_is_left_alone() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    server.remove_key(b"k", KeyEvent::Expired);
    server.set(b"k", b"old client", Some(10_000));
    assert!(server.extend(b"k", b"a", 1500).is_some());
    assert_eq!(server.text(b"k"), b"old client");
    server.turn_after_ms(2000);
    assert_eq!(server.text(b"k"), b"old client");
    assert_eq!(server.acquire(b"k", b"b", 1000, None), None, "the old client holds the key now");
}

#[test]
fn command_of_an_operator_on_the_key_ends_the_lease() {
    for event in [KeyEvent::Removed, KeyEvent::Replaced] {
        let mut server = Server::with_lock(&[b"k"], b"a", 1000);
        server.remove_key(b"k", event);
        assert_eq!(server.extend(b"k", b"a", 1000), None);
        assert!(server.acquire(b"k", b"b", 1000, None).is_some());
        assert_eq!(server.node().stats().ended_by_operator, 1);
    }
}

#[test]
fn overwrite_of_the_mirror_ends_the_lease_and_the_new_value_stays() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    server.set(b"k", b"other", None);
    assert!(!server.release(b"k", b"a"));
    assert_eq!(server.text(b"k"), b"other");
    assert_eq!(server.node().leases(), 0);
}

#[test]
fn flushing_one_database_ends_the_leases_in_it() {
    let mut server = Server::new();
    for n in 0..5000_u32 {
        server.acquire(&n.to_le_bytes(), b"a", 1000, None).unwrap();
    }
    server.handle_event(&ServerEvent::Flush(Some(1)));
    server.run_turns();
    assert_eq!(server.node().leases(), 5000);
    server.handle_event(&ServerEvent::Flush(Some(0)));
    server.run_turns();
    assert_eq!(server.node().leases(), 0);
    assert_eq!(server.node().stats().ended_by_operator, 5000);
}

#[test]
fn extending_never_shortens() {
    let mut server = Server::with_lock(&[b"k"], b"a", 10_000);
    server.extend(b"k", b"a", 1).unwrap();
    assert!(matches!(server.inspect(b"k"), Inspected::Lease { ttl_ms: 10_000, .. }));
}

#[test]
fn extension_never_revives_even_while_the_mirror_exists() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    server.mono_us += 1_000_000;
    assert_eq!(server.key_count(), 1, "the wall clock stood still, so the key has not expired");
    assert_eq!(server.extend(b"k", b"a", 1000), None);
    server.run_turns();
    assert!(server.is_empty());
    assert_eq!(server.extend(b"k", b"a", 1000), None);
}

#[test]
fn foreign_string_is_held_by_every_client_that_knows_its_value() {
    let mut server = Server::new();
    server.set(b"k", b"theirs", Some(5000));
    assert_eq!(server.acquire(b"k", b"ours", 1000, None), None);
    assert!(!server.release(b"k", b"ours"));
    assert!(server.release(b"k", b"theirs"));
    assert!(server.is_empty());
}

#[test]
fn adoption_is_a_grant_of_at_most_the_largest_ttl() {
    let mut server = Server::new();
    let before = server.acquire(b"k", b"a", 1000, None).unwrap();
    assert!(server.release(b"k", b"a"));
    server.set(b"k", b"theirs", Some(10 * MAX_TTL_MS));
    let fence = server.extend(b"k", b"theirs", 1000).unwrap();
    assert!(fence > before);
    assert!(matches!(server.inspect(b"k"), Inspected::Lease { ttl_ms: MAX_TTL_MS, .. }));
}

#[test]
fn string_that_never_expires_is_data_and_is_not_adopted() {
    let mut server = Server::new();
    server.set(b"k", b"data", None);
    assert_eq!(server.extend(b"k", b"data", 1000), None);
    assert_eq!(server.expires_at_ms(b"k"), None);
}

#[test]
fn new_token_replaces_the_old_one() {
    let mut server = Server::new();
    let first = server.acquire(b"k", b"a", 1000, None).unwrap();
    assert!(server.extend_with(b"k", b"a", 1000, None, Some(b"b")).fence() > first);
    assert_eq!(server.extend(b"k", b"a", 1000), None);
    assert!(!server.release(b"k", b"a"));
    assert!(server.release(b"k", b"b"));
}

#[test]
fn fence_is_raised_by_its_holder_only_and_never_lowered() {
    let mut server = Server::new();
    server.pass_ms(1000);
    let fence = server.acquire(b"k", b"a", 1000, None).unwrap();
    let higher = fence.next().next();
    let raise = |server: &mut Server, token: &[u8], fence| {
        server.extend_with(b"k", token, 1000, Some(fence), None)
    };
    assert_eq!(raise(&mut server, b"x", higher), ExtendReply::NotHeld);
    assert_eq!(raise(&mut server, b"a", higher), ExtendReply::Held { fence: higher });
    let below = ExtendReply::BadFence(FenceError::Below { current: higher });
    assert_eq!(raise(&mut server, b"a", fence), below);
    let too_far = Fence::of_wall_us((server.wall_ms + 60_001) * 1000);
    let beyond = raise(&mut server, b"a", too_far);
    assert!(matches!(beyond, ExtendReply::BadFence(FenceError::TooFarAhead { .. })));
    server.release(b"k", b"a");
    assert!(server.acquire(b"k", b"b", 1000, None).unwrap() > higher);
}

#[test]
fn fence_that_its_holder_tries_to_lower_stays() {
    shows(Mutant::FenceDecreases, || {
        let mut server = Server::new();
        server.pass_ms(1000);
        let fence = server.acquire(b"k", b"a", 1000, None).unwrap();
        for proposal in [fence.next(), fence] {
            server.extend_with(b"k", b"a", 1000, Some(proposal), None);
        }
        server.extend(b"k", b"a", 1000) == Some(fence.next())
    });
}

#[test]
fn proposed_fence_is_accepted_within_the_skew_and_not_beyond() {
    let mut server = Server::new();
    server.pass_ms(600_000);
    let near = Fence::of_wall_us(server.wall_ms * 1000 + 1_000_000);
    assert_eq!(server.acquire(b"k", b"a", 1000, Some(near)), Some(near));
    let far = Fence::of_wall_us(server.wall_ms * 1000 + 61_000_000);
    assert!(server.acquire(b"l", b"a", 1000, Some(far)).unwrap() < far);
}

#[test]
fn many_leases_end_by_deadline_and_leave_nothing_scheduled() {
    let mut server = Server::new();
    for n in 0..20_000_u32 {
        server.acquire(&n.to_le_bytes(), b"a", 1000 + u64::from(n % 7), None).unwrap();
    }
    server.turn_after_ms(2000);
    assert_eq!(server.node().leases(), 0);
    assert_eq!(server.node().next_wake(), None);
    assert_eq!(server.node().stats().ended_by_deadline, 20_000);
}

#[test]
fn nodes_that_decide_alike_are_equal_whatever_their_history() {
    let hash =
        |server: &Server| BuildHasherDefault::<DefaultHasher>::default().hash_one(server.node());
    let mut one = Server::new();
    let mut other = Server::new();
    one.acquire(b"gone", b"t", 1000, None).unwrap();
    assert!(one.release(b"gone", b"t"));
    for key in [b"a", b"b", b"c"] {
        one.acquire(key, b"t", 1000, None).unwrap();
    }
    other.acquire(b"gone", b"t", 1000, None).unwrap();
    for key in [b"c", b"b", b"a"] {
        other.acquire(key, b"t", 1000, None).unwrap();
    }
    assert!(one.node() != other.node(), "one lease more");
    assert!(other.release(b"gone", b"t"));
    assert!(one.node() == other.node() && hash(&one) == hash(&other));
    other.extend(b"a", b"t", 2000).unwrap();
    assert!(one.node() != other.node() && hash(&one) != hash(&other), "a later deadline");
    one.extend(b"a", b"t", 2000).unwrap();
    assert!(one.node() == other.node());
    one.acquire_or_wait(b"a", b"w", 1000, 5000);
    assert!(one.node() != other.node() && hash(&one) != hash(&other), "a client waits");
}

#[derive(Clone, Debug)]
enum Step {
    Acquire { key: u8, token: u8, ttl_ms: u64 },
    Extend { key: u8, token: u8, ttl_ms: u64 },
    SwapToken { key: u8, token: u8, new: u8 },
    Release { key: u8, token: u8 },
    RemoveKey { key: u8, eviction: bool },
    MoveWallClock { ms: i64 },
    Pass { ms: u64 },
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    let (key, token, ttl) = (0..3_u8, 0..4_u8, 1..5000_u64);
    prop_oneof![
        4 => (key.clone(), token.clone(), ttl.clone()).prop_map(|(key, token, ttl_ms)| Step::Acquire { key, token, ttl_ms }),
        3 => (key.clone(), token.clone(), ttl).prop_map(|(key, token, ttl_ms)| Step::Extend { key, token, ttl_ms }),
        1 => (key.clone(), token.clone(), token.clone()).prop_map(|(key, token, new)| Step::SwapToken { key, token, new }),
        2 => (key.clone(), token).prop_map(|(key, token)| Step::Release { key, token }),
        2 => (key, any::<bool>()).prop_map(|(key, eviction)| Step::RemoveKey { key, eviction }),
        1 => (-100_000..100_000_i64).prop_map(|ms| Step::MoveWallClock { ms }),
        3 => (0..3000_u64).prop_map(|ms| Step::Pass { ms }),
        2 => Just(Step::Turn),
    ]
}

#[derive(Clone, Copy)]
struct Belief {
    token: u8,
    until_us: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Random accidents to clocks and memory, without any operator's command.
    ///
    /// A key has one holder until the deadline, and its fences grow with every grant.
    #[test]
    fn lease_never_has_two_holders_and_fences_only_grow(steps in prop::collection::vec(step(), 1..60)) {
        let mut server = Server::new();
        let mut holders: HashMap<u8, Belief> = HashMap::new();
        let mut fences: HashMap<u8, Fence> = HashMap::new();
        for step in steps {
            let now_us = server.mono_us;
            let holds = |holders: &HashMap<u8, Belief>, key: u8, token: u8| {
                holders.get(&key).is_some_and(|held| held.token == token && now_us < held.until_us)
            };
            match step {
                Step::Acquire { key, token, ttl_ms } => {
                    let until_us = now_us + ttl_ms * 1000;
                    if let Some(fence) = server.acquire(&[key], &[token], ttl_ms, None) {
                        prop_assert!(holders.get(&key).is_none_or(|held| held.until_us <= now_us), "two holders");
                        prop_assert!(fences.insert(key, fence).is_none_or(|before| before < fence));
                        holders.insert(key, Belief { token, until_us });
                    }
                }
                Step::Extend { key, token, ttl_ms } => {
                    let extended = server.extend(&[key], &[token], ttl_ms).is_some();
                    prop_assert_eq!(extended, holds(&holders, key, token), "extends exactly while held");
                    if extended {
                        let held = holders.get_mut(&key).unwrap();
                        held.until_us = held.until_us.max(now_us + ttl_ms * 1000);
                        let Inspected::Lease { ttl_ms: left_ms, .. } = server.inspect(&[key]) else {
                            panic!("the key is not held")
                        };
                        prop_assert_eq!(left_ms, (held.until_us - now_us).div_ceil(1000), "never shortened");
                    }
                }
                Step::SwapToken { key, token, new } => {
                    if let ExtendReply::Held { fence } = server.extend_with(&[key], &[token], 1000, None, Some(&[new])) {
                        prop_assert!(holds(&holders, key, token));
                        if token != new {
                            prop_assert!(fences.insert(key, fence).is_none_or(|before| before < fence));
                        }
                        let held = holders.get_mut(&key).unwrap();
                        *held = Belief { token: new, until_us: held.until_us.max(now_us + 1_000_000) };
                    }
                }
                Step::Release { key, token } => {
                    prop_assert_eq!(server.release(&[key], &[token]), holds(&holders, key, token));
                    if holds(&holders, key, token) {
                        holders.remove(&key);
                    }
                }
                Step::RemoveKey { key, eviction } => {
                    server.remove_key(&[key], if eviction { KeyEvent::Evicted } else { KeyEvent::Expired });
                }
                Step::MoveWallClock { ms } => server.wall_ms = server.wall_ms.saturating_add_signed(ms),
                Step::Pass { ms } => server.pass_ms(ms),
                Step::Turn => server.run_turns(),
            }
        }
        server.turn_after_ms(20_000);
        prop_assert_eq!(server.node().leases(), 0, "every lease has ended");
    }
}
