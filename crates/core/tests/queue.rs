//! Waiting without tickets is first in, first out. No waiter is forgotten, and none is granted
//! after its time-out.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::HashMap;

use proptest::prelude::*;
use quorlock_core::node::{BlockedId, KeyEvent, Reply, ServerEvent};
use support::{AcquireReply, Inspected, MAX_TTL_MS, MAX_WAITERS, Server, WaitResult};

fn enqueue(server: &mut Server, key: &[u8], token: &[u8], wait_ms: u64) -> BlockedId {
    server.acquire_or_wait(key, token, 1000, wait_ms).blocked_id()
}

#[test]
fn release_hands_over_to_the_first_waiter() {
    let mut server = Server::new();
    let fence = server.acquire(b"k", b"a", 1000, None).unwrap();
    let first = enqueue(&mut server, b"k", b"b", 5000);
    let second = enqueue(&mut server, b"k", b"c", 5000);
    server.pass_ms(300);
    assert!(server.release(b"k", b"a"));
    assert!(
        matches!(server.wait_results[..], [(blocked_id, WaitResult::Granted { fence: next, waited_us: 300_000 })]
        if blocked_id == first && next > fence)
    );
    assert_eq!(server.text(b"k"), b"b");
    assert!(server.release(b"k", b"b"));
    assert_eq!(server.granted(), [first, second]);
    assert!(server.release(b"k", b"c"));
    assert!(server.is_empty());
    assert_eq!(server.node().stats().handovers, 2);
    assert_eq!(server.node().stats().longest_wait_us, 300_000);
}

#[test]
fn ttl_after_a_wait_begins_with_the_grant() {
    let mut server = Server::with_lock(&[b"k"], b"a", 3000);
    enqueue(&mut server, b"k", b"b", 5000);
    server.pass_ms(2500);
    server.release(b"k", b"a");
    assert!(matches!(server.inspect(b"k"), Inspected::Lease { ttl_ms: 1000, .. }));
}

#[test]
fn newcomer_without_wait_is_refused_while_others_wait() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    let first = enqueue(&mut server, b"k", b"b", 5000);
    server.remove_key(b"k", KeyEvent::Removed);
    assert_eq!(server.acquire(b"k", b"c", 1000, None), None, "free, but a client waits");
    server.run_turns();
    assert_eq!(server.granted(), [first]);
}

#[test]
fn every_end_of_a_lock_serves_the_queue() {
    type End = fn(&mut Server);
    let ends: [(&str, End); 5] = [
        ("its deadline", |server| server.pass_ms(1000)),
        ("DEL", |server| server.remove_key(b"k", KeyEvent::Removed)),
        ("FLUSHALL", Server::flush),
        ("its deadline, after the wall clock was stepped back", |server| {
            server.wall_ms -= 3_600_000;
            server.mono_us += 1_000_000;
        }),
        ("its deadline, after an eviction", |server| {
            server.remove_key(b"k", KeyEvent::Evicted);
            server.pass_ms(1000);
        }),
    ];
    for (name, end) in ends {
        let mut server = Server::with_lock(&[b"k"], b"a", 1000);
        let blocked_id = enqueue(&mut server, b"k", b"b", 5000);
        server.run_turns();
        assert_eq!(server.granted(), [], "{name}: not before");
        end(&mut server);
        server.run_turns();
        assert_eq!(server.granted(), [blocked_id], "{name}");
    }
}

#[test]
fn waiter_is_granted_once_a_foreign_string_expires_or_is_deleted() {
    for deleted in [true, false] {
        let mut server = Server::new();
        server.set(b"k", b"old client", Some(700));
        let blocked_id = enqueue(&mut server, b"k", b"b", 5000);
        let wake = server.node().next_wake().unwrap().ms_since(server.now().monotonic);
        assert!((700..=702).contains(&wake), "{wake}");
        if deleted {
            server.remove_key(b"k", KeyEvent::Removed);
        } else {
            server.pass_ms(wake);
        }
        server.run_turns();
        assert_eq!(server.granted(), [blocked_id]);
    }
}

#[test]
fn waits_end_on_time_whatever_the_wall_clock_does() {
    let mut server = Server::with_lock(&[b"k"], b"a", 10_000);
    let blocked_id = enqueue(&mut server, b"k", b"b", 500);
    server.wall_ms += 3_600_000;
    server.run_turns();
    assert_eq!(server.wait_results, []);
    server.wall_ms -= 7_200_000;
    server.mono_us += 500_000;
    assert!(server.node().next_wake().unwrap() <= server.now().monotonic);
    // The key becomes free at the moment at which the wait ends: too late.
    server.release(b"k", b"a");
    server.run_turns();
    assert_eq!(server.wait_results, [(blocked_id, WaitResult::Refused)]);
    assert!(server.is_empty());
}

#[test]
fn release_with_the_token_of_a_waiter_removes_the_waiter() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    let first = enqueue(&mut server, b"k", b"b", 5000);
    let second = enqueue(&mut server, b"k", b"c", 5000);
    assert!(!server.release(b"k", b"b"));
    server.run_turns();
    assert_eq!(server.wait_results, [(first, WaitResult::Refused)]);
    server.release(b"k", b"a");
    assert_eq!(server.granted(), [second]);
}

#[test]
fn token_waits_once_on_a_key() {
    let mut server = Server::with_lock(&[b"a", b"k"], b"holder", 60_000);
    let blocked_id = enqueue(&mut server, b"k", b"b", 5000);
    let several: [&[u8]; 2] = [b"a", b"k"];
    assert_eq!(server.acquire_or_wait(b"k", b"b", 1000, 5000), AcquireReply::AlreadyWaits);
    assert_eq!(server.acquire_all_or_wait(&several, b"b", 9, 9), AcquireReply::AlreadyWaits);
    assert_eq!(server.acquire_any_or_wait(&several, b"b", 9, 9), AcquireReply::AlreadyWaits);
    assert_eq!(server.acquire_shared_or_wait(b"k", b"b", 9, 9), AcquireReply::AlreadyWaits);
    enqueue(&mut server, b"a", b"b", 5000);
    assert_eq!(server.node().waiters(), 2);
    // A token that has left the queue may wait again.
    server.disconnect(blocked_id);
    enqueue(&mut server, b"k", b"b", 5000);
    server.release(b"k", b"b");
    enqueue(&mut server, b"k", b"b", 5000);
    server.pass_ms(5000);
    enqueue(&mut server, b"k", b"b", 5000);
    server.run_turns();
    assert_eq!(server.node().waiters(), 1, "the last one");
}

#[test]
fn repeated_wait_with_a_fence_takes_over_the_place() {
    let keys: [&[u8]; 2] = [b"a", b"b"];
    for keys in [&keys[..1], &keys] {
        let mut server = Server::with_lock(&[b"a", b"b"], b"holder", 10_000);
        let older = server.wait_again(keys, b"t", 1000, 5000);
        let second = server.acquire_all_or_wait(keys, b"second", 1000, 5000).blocked_id();
        server.pass_ms(200);
        let newer = server.wait_again(keys, b"t", 1000, 7000);
        server.run_turns();
        assert_eq!(server.wait_results, [(older, WaitResult::Refused)]);
        assert_eq!(server.node().waiters(), 2);
        server.pass_ms(300);
        server.release(b"a", b"holder");
        server.run_turns();
        assert_eq!(server.granted(), [newer], "it keeps its place");
        let waited = server.wait_results.iter().find(|(blocked_id, _)| *blocked_id == newer);
        assert!(matches!(waited, Some((_, WaitResult::Granted { waited_us: 300_000, .. }))));
        server.release(b"a", b"t");
        server.run_turns();
        assert_eq!(server.granted(), [newer, second]);
    }
}

#[test]
fn repeated_wait_for_a_free_key_is_granted_at_once() {
    let mut server = Server::with_lock(&[b"k"], b"holder", 10_000);
    server.wait_again(&[b"k"], b"t", 1000, 5000);
    server.remove_key(b"k", KeyEvent::Removed);
    // The key is free, and its queue has no other waiter.
    assert!(matches!(server.ask(&[b"k"], b"t", 1000, 1, 5000), Ok(Reply::Granted(_))));
    server.run_turns();
    assert_eq!(
        (server.granted(), server.node().waiters()),
        (vec![], 0),
        "the older one is refused"
    );
}

#[test]
fn repeated_wait_for_other_keys_replaces_the_older_one() {
    let mut server = Server::with_lock(&[b"a", b"b"], b"holder", 10_000);
    let older = server.wait_again(&[b"a"], b"t", 1000, 5000);
    let second = enqueue(&mut server, b"b", b"second", 5000);
    let newer = server.wait_again(&[b"a", b"b"], b"t", 1000, 5000);
    server.release(b"a", b"holder");
    server.run_turns();
    assert_eq!(server.granted(), [newer], "its ticket is the smaller one");
    server.release(b"a", b"t");
    server.run_turns();
    assert_eq!(server.granted(), [newer, second]);
    assert!(server.wait_results.contains(&(older, WaitResult::Refused)));
}

#[test]
fn full_queue_does_not_refuse_a_repeated_wait() {
    let mut server = Server::with_max_waiters(1);
    server.acquire(b"k", b"holder", 1000, None).unwrap();
    server.wait_again(&[b"k"], b"t", 1000, 5000);
    server.wait_again(&[b"k"], b"t", 1000, 5000);
    assert_eq!(server.node().waiters(), 1);
}

#[test]
fn abstention_refuses_every_waiter() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    let blocked_id = enqueue(&mut server, b"k", b"b", 5000);
    server.handle_event(&ServerEvent::Swap(0, 1));
    server.run_turns();
    assert_eq!(server.wait_results, [(blocked_id, WaitResult::Refused)]);
    assert_eq!(server.acquire_or_wait(b"l", b"c", 1000, 5000), AcquireReply::Abstaining);
    server.turn_after_ms(MAX_TTL_MS);
    assert!(server.acquire(b"l", b"c", 1000, None).is_some());
}

#[test]
fn waiters_are_limited() {
    let mut server = Server::with_lock(&[b"k"], b"a", 1000);
    let blocked_ids: Vec<_> = (0..MAX_WAITERS)
        .map(|n| enqueue(&mut server, b"k", &[b'b', u8::try_from(n).unwrap()], 5000))
        .collect();
    assert_eq!(server.acquire_or_wait(b"k", b"z", 1000, 5000), AcquireReply::QueueFull);
    assert!(server.disconnect(blocked_ids[7]));
    assert!(!server.disconnect(blocked_ids[7]));
    assert!(matches!(server.acquire_or_wait(b"k", b"z", 1000, 5000), AcquireReply::Waits(_)));
    assert!(matches!(server.inspect(b"k"), Inspected::Lease { waiters: MAX_WAITERS, .. }));
}

#[derive(Clone, Debug)]
enum Step {
    Wait {
        key: u8,
        ttl_ms: u64,
        wait_ms: u64,
    },
    /// Repeats the ACQUIRE of a waiter, with a fence.
    WaitAgain {
        nth: usize,
        wait_ms: u64,
    },
    Release {
        key: u8,
    },
    Cancel {
        nth: usize,
    },
    RemoveKey {
        key: u8,
        event: KeyEvent,
    },
    Foreign {
        key: u8,
        expires_in_ms: u64,
    },
    MoveWallClock {
        ms: i64,
    },
    Pass {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..2_u8;
    let event = support::key_events();
    prop_oneof![
        6 => (key.clone(), 1..3000_u64, 1..4000_u64)
            .prop_map(|(key, ttl_ms, wait_ms)| Step::Wait { key, ttl_ms, wait_ms }),
        2 => (0..20_usize, 1..4000_u64).prop_map(|(nth, wait_ms)| Step::WaitAgain { nth, wait_ms }),
        4 => key.clone().prop_map(|key| Step::Release { key }),
        1 => (0..20_usize).prop_map(|nth| Step::Cancel { nth }),
        1 => (key.clone(), event).prop_map(|(key, event)| Step::RemoveKey { key, event }),
        1 => (key, 1..2000_u64).prop_map(|(key, expires_in_ms)| Step::Foreign { key, expires_in_ms }),
        1 => (-5000..5000_i64).prop_map(|ms| Step::MoveWallClock { ms }),
        4 => (0..1500_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

struct Waiting {
    key: u8,
    token: Vec<u8>,
    until_us: u64,
    /// The id with which the token came.
    place: BlockedId,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn no_waiter_is_forgotten_or_late_or_waits_for_a_free_key(steps in prop::collection::vec(step(), 1..80)) {
        let mut server = Server::new();
        let mut waiting: HashMap<BlockedId, Waiting> = HashMap::new();
        let mut replaced: Vec<BlockedId> = Vec::new();
        let mut holder: HashMap<u8, Vec<u8>> = HashMap::new();
        let mut tokens = 0_u32;
        for step in steps {
            match step {
                Step::Wait { key, ttl_ms, wait_ms } => {
                    tokens += 1;
                    let token = tokens.to_le_bytes().to_vec();
                    match server.acquire_or_wait(&[key], &token, ttl_ms, wait_ms) {
                        AcquireReply::Granted(_) => {
                            prop_assert!(!waiting.values().any(|other| other.key == key), "overtook a waiter");
                            holder.insert(key, token);
                        }
                        AcquireReply::Waits(blocked_id) => {
                            let until_us = server.mono_us + wait_ms * 1000;
                            waiting.insert(blocked_id, Waiting { key, token, until_us, place: blocked_id });
                        }
                        other => prop_assert_eq!(other, AcquireReply::QueueFull),
                    }
                }
                Step::WaitAgain { nth, wait_ms } => {
                    let mut blocked_ids: Vec<_> = waiting.keys().copied().collect();
                    blocked_ids.sort_unstable();
                    if let Some(older) = blocked_ids.get(nth) {
                        let waiter = waiting.remove(older).unwrap();
                        let newer = server.wait_again(&[&[waiter.key]], &waiter.token, 1000, wait_ms);
                        let until_us = server.mono_us + wait_ms * 1000;
                        waiting.insert(newer, Waiting { until_us, ..waiter });
                        replaced.push(*older);
                    }
                }
                Step::Release { key } => {
                    if let Some(token) = holder.remove(&key) {
                        server.release(&[key], &token);
                    }
                }
                Step::Cancel { nth } => server.disconnect_nth(&mut waiting, nth),
                Step::RemoveKey { key, event } => server.remove_key(&[key], event),
                Step::Foreign { key, expires_in_ms } => server.set_foreign(&[key], expires_in_ms),
                Step::MoveWallClock { ms } => server.wall_ms = server.wall_ms.saturating_add_signed(ms),
                Step::Pass { ms } => server.pass_ms(ms),
            }
            server.run_turns();
            let now_us = server.mono_us;
            for (blocked_id, result) in std::mem::take(&mut server.wait_results) {
                if result == WaitResult::Refused && replaced.contains(&blocked_id) {
                    replaced.retain(|other| *other != blocked_id);
                    continue;
                }
                let Some(waiter) = waiting.remove(&blocked_id) else { panic!("answered twice, or after it was cancelled") };
                if result.granted(now_us < waiter.until_us).is_none() {
                    continue;
                }
                let earlier = waiting.values().any(|waits| {
                    waits.key == waiter.key && waits.place < waiter.place && now_us < waits.until_us
                });
                prop_assert!(!earlier, "overtook a waiter that came first");
                holder.insert(waiter.key, waiter.token);
            }
            prop_assert!(replaced.is_empty(), "an older waiter is not answered");
            prop_assert!(waiting.values().all(|waiter| now_us < waiter.until_us), "a waiter is forgotten");
            prop_assert_eq!(server.node().waiters(), waiting.len());
            for waiter in waiting.values() {
                prop_assert!(!matches!(server.inspect(&[waiter.key]), Inspected::Free), "a client waits for a free key");
            }
            // While a client waits, the node has planned its next work and depends on no command.
            prop_assert!(waiting.is_empty() || server.node().next_wake().is_some());
        }
        server.turn_after_ms(10_000);
        prop_assert_eq!(server.node().waiters(), 0);
    }
}
