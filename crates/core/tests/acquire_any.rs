//! ACQUIREANY: locks the first free key of several. A client waits in the queues of all its keys.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod support;

use std::collections::HashMap;

use proptest::prelude::*;
use quorlock_core::node::{BlockedId, CommandError, KeyEvent, Mode, Mutant, break_rule};
use support::beliefs::{Belief, Beliefs, KEYS, names};
use support::{AcquireCommand, AcquireReply, ExtendReply, Inspected, Server, WaitResult};

const A: &[u8] = b"a";
const B: &[u8] = b"b";
const C: &[u8] = b"c";

/// A server on which the token `x` has a lock on each of these keys.
fn server_with_held(keys: &[&[u8]]) -> Server {
    let mut server = Server::new();
    for key in keys {
        server.acquire(key, b"x", 60_000, None).unwrap();
    }
    server
}

fn enqueue_for_any(server: &mut Server, keys: &[&[u8]], token: &[u8]) -> BlockedId {
    server.acquire_any_or_wait(keys, token, 1000, 50_000).blocked_id()
}

fn enqueue(server: &mut Server, keys: &[&[u8]], token: &[u8]) -> BlockedId {
    server.acquire_all_or_wait(keys, token, 1000, 50_000).blocked_id()
}

#[test]
fn client_is_granted_the_first_free_key_in_its_own_order() {
    let mut server = Server::with_lock(&[C], b"x", 1000);
    let (fence, key) = server.acquire_any(&[C, B, A], b"t", 1000).unwrap();
    assert_eq!(key, 1);
    assert_eq!(server.text(B), b"t");
    assert!(!server.has(A));
    let lease = Inspected::Lease { waiters: 0, keys: 1, fence, ttl_ms: 1000 };
    assert_eq!(server.inspect(B), lease);
    assert_eq!(server.acquire_any(&[C, B, A], b"u", 1000).unwrap().1, 2);
    assert_eq!(server.acquire_any(&[C, B, A], b"v", 1000), None);
}

#[test]
fn lock_is_an_ordinary_lock_of_its_key() {
    let mut server = Server::new();
    server.acquire_any(&[A, B], b"t", 1000).unwrap();
    assert_eq!(server.acquire(A, b"u", 1000, None), None);
    assert!(server.extend(A, b"t", 2000).is_some());
    assert_eq!(server.extend_all(&[A, B], b"t", 2000), ExtendReply::NotHeld);
    assert!(!server.release(B, b"t"));
    assert!(server.release(A, b"t"));
    assert!(server.is_empty());
}

#[test]
fn token_that_holds_a_key_may_acquire_another() {
    let mut server = Server::new();
    for key in [0, 1] {
        assert_eq!(server.acquire_any(&[A, B], b"t", 1000).unwrap().1, key);
    }
}

#[test]
fn first_key_that_is_released_goes_to_the_waiter() {
    for freed in [A, B, C] {
        let mut server = server_with_held(&[A, B, C]);
        let blocked_id = enqueue_for_any(&mut server, &[C, A, B], b"t");
        assert_eq!(server.node().waiters(), 1, "one waiter in three queues");
        assert!(server.release(freed, b"x"));
        assert_eq!(server.granted_keys, [(blocked_id, freed.to_vec())]);
        assert_eq!((server.granted(), server.text(freed)), (vec![blocked_id], &b"t"[..]));
        for other in [A, B, C].into_iter().filter(|key| *key != freed) {
            assert!(server.release(other, b"x"));
            assert!(!server.has(other), "the waiter needs only one key");
        }
        server.run_turns();
        assert_eq!(server.node().waiters(), 0);
    }
}

#[test]
fn every_end_of_a_lock_serves_waiters_for_any() {
    let ends: [fn(&mut Server); 4] = [
        |server| server.pass_ms(5000),
        |server| server.remove_key(B, KeyEvent::Removed),
        Server::flush,
        |server| {
            server.remove_key(B, KeyEvent::Evicted);
            server.pass_ms(5000);
        },
    ];
    for end in ends {
        let mut server = Server::new();
        server.set(A, b"old client", Some(60_000));
        server.acquire(B, b"x", 5000, None).unwrap();
        let blocked_id = enqueue_for_any(&mut server, &[A, B], b"t");
        server.run_turns();
        assert_eq!(server.granted(), []);
        end(&mut server);
        server.run_turns();
        assert_eq!(server.granted(), [blocked_id]);
    }
}

#[test]
fn waiters_of_all_kinds_are_served_in_order_of_arrival() {
    let mut server = server_with_held(&[A, B]);
    let any = enqueue_for_any(&mut server, &[A, B], b"any");
    let single = enqueue(&mut server, &[A], b"single");
    let later = enqueue_for_any(&mut server, &[B, A], b"later");
    let last = enqueue(&mut server, &[B], b"last");
    assert!(server.release(A, b"x"));
    assert!(server.release(A, b"any"));
    assert_eq!(server.granted(), [any, single]);
    assert!(server.release(B, b"x"));
    assert_eq!(server.granted(), [any, single, later]);
    assert!(server.release(B, b"later"));
    assert_eq!(server.granted(), [any, single, later, last]);
}

#[test]
fn newcomers_overtake_no_waiter() {
    let mut server = server_with_held(&[A, B]);
    let blocked_id = enqueue_for_any(&mut server, &[A, B], b"any");
    server.remove_key(B, KeyEvent::Removed);
    assert_eq!(server.acquire(B, b"newcomer", 1000, None), None);
    assert_eq!(server.acquire_any(&[B, A], b"newcomer", 1000), None);
    let (_, key) = server.acquire_any(&[B, C], b"newcomer", 1000).unwrap();
    assert_eq!(key, 1, "the key without waiters");
    server.run_turns();
    assert_eq!(server.granted(), [blocked_id]);
}

#[test]
fn waiter_for_all_keys_is_granted_after_a_waiter_for_any_key() {
    let mut server = server_with_held(&[A, B]);
    let any = enqueue_for_any(&mut server, &[A, B], b"any");
    let both = enqueue(&mut server, &[B, C], b"both");
    assert!(server.release(A, b"x"));
    assert!(server.release(B, b"x"));
    server.run_turns();
    assert_eq!(server.granted(), [any, both]);
}

#[test]
fn reader_joins_once_the_waiter_before_it_is_granted_another_key() {
    let mut server = Server::with_lock(&[A], b"x", 60_000);
    server.acquire_shared(B, b"reader", 60_000, None).unwrap();
    let any = enqueue_for_any(&mut server, &[A, B], b"any");
    let reader = server.acquire_shared_or_wait(B, b"second reader", 1000, 50_000).blocked_id();
    server.run_turns();
    assert_eq!(server.granted(), []);
    assert!(server.release(A, b"x"));
    server.run_turns();
    assert_eq!(server.granted(), [any, reader]);
}

#[test]
fn release_of_one_key_removes_a_waiter_from_all_queues() {
    let mut server = server_with_held(&[A, B]);
    let blocked_id = enqueue_for_any(&mut server, &[A, B], b"any");
    assert!(!server.release(B, b"any"));
    server.run_turns();
    assert_eq!(server.wait_results, [(blocked_id, WaitResult::Refused)]);
    assert_eq!(server.node().waiters(), 0);
    assert!(server.release(A, b"x"));
    assert!(!server.has(A));
}

#[test]
fn waiter_leaves_all_queues_when_its_time_is_over() {
    let mut server = server_with_held(&[A, B]);
    let blocked_id = server.acquire_any_or_wait(&[A, B], b"any", 1000, 500).blocked_id();
    let behind = enqueue(&mut server, &[A], b"behind");
    server.pass_ms(500);
    assert!(server.release(A, b"x"));
    assert_eq!(server.granted(), [behind], "a waiter that timed out does not delay the next one");
    server.run_turns();
    assert!(server.wait_results.contains(&(blocked_id, WaitResult::Refused)));
}

#[test]
fn grant_to_a_client_that_disconnected_is_released() {
    let mut server = Server::that_defers_wakes();
    server.acquire(A, b"x", 60_000, None).unwrap();
    server.acquire(B, b"x", 60_000, None).unwrap();
    let gone = enqueue_for_any(&mut server, &[A, B], b"gone");
    let next = enqueue(&mut server, &[B], b"next");
    assert!(server.release(B, b"x"));
    assert!(server.disconnect(gone));
    server.run_turns();
    assert_eq!(server.granted(), [next]);
}

#[test]
fn max_waiters_also_limits_waiters_for_any_key() {
    let mut server = Server::with_max_waiters(1);
    server.acquire(A, b"x", 60_000, None).unwrap();
    enqueue(&mut server, &[A], b"first");
    assert_eq!(server.acquire_any_or_wait(&[A], b"t", 1000, 1000), AcquireReply::QueueFull);
}

#[test]
fn key_of_another_type_is_an_error_unless_a_free_key_comes_first() {
    let mut server = Server::new();
    let list = quorlock_core::node::memory::Value { text: None, expires_at_ms: None };
    server.memory.keys.insert(0, B, list);
    let exclusive = (Mode::Exclusive, None, 0);
    let result = server.execute_acquire(&[B, A], b"t", 1000, exclusive, AcquireCommand::AcquireAny);
    assert_eq!(result, Err(CommandError::WrongType));
    assert_eq!(server.acquire_any(&[A, B], b"t", 1000).unwrap().1, 0);
}

#[test]
fn waiter_queued_only_for_its_first_key_misses_the_others() {
    let is_granted = |mutant| {
        break_rule(mutant);
        let mut server = server_with_held(&[A, B]);
        let blocked_id = enqueue_for_any(&mut server, &[A, B], b"any");
        server.release(B, b"x");
        server.run_turns();
        break_rule(None);
        server.granted() == [blocked_id]
    };
    assert!(is_granted(None));
    assert!(!is_granted(Some(Mutant::AnyWaitsForFirst)));
}

#[test]
fn handover_to_one_of_many_waiters_for_many_keys_costs_few_jobs() {
    let mut server = Server::with_max_waiters(20_000);
    let keys: Vec<_> = (0..64_u8).map(|n| [n]).collect();
    let all: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    for key in &all {
        server.acquire(key, b"x", 60_000, None).unwrap();
    }
    let blocked_ids: Vec<_> =
        (0..1000_u32).map(|n| enqueue_for_any(&mut server, &all, &n.to_le_bytes())).collect();
    server.run_turns();
    for (n, blocked_id) in blocked_ids[..64].iter().enumerate() {
        assert!(server.release(all[63 - n], b"x"));
        assert_eq!(server.granted().last(), Some(blocked_id));
        let jobs = server.memory.one_turn(server.now());
        assert!(jobs <= 2, "{jobs}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Any { keys: u8, ttl_ms: u64, wait_ms: Option<u64> },
    All { keys: u8, ttl_ms: u64, wait_ms: Option<u64> },
    Release { nth: usize },
    Cancel { nth: usize },
    RemoveKey { key: u8, event: KeyEvent },
    Foreign { key: u8, expires_in_ms: u64 },
    Flush,
    MoveWallClock { ms: i64 },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (keys, nth, ttl) = (1..1_u8 << KEYS, 0..8_usize, 1..3000_u64);
    let wait = prop::option::weighted(0.7, 1..4000_u64);
    let event = support::key_events();
    prop_oneof![
        8 => (keys.clone(), ttl.clone(), wait.clone())
            .prop_map(|(keys, ttl_ms, wait_ms)| Step::Any { keys, ttl_ms, wait_ms }),
        6 => (keys, ttl, wait).prop_map(|(keys, ttl_ms, wait_ms)| Step::All { keys, ttl_ms, wait_ms }),
        5 => nth.clone().prop_map(|nth| Step::Release { nth }),
        1 => nth.prop_map(|nth| Step::Cancel { nth }),
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
    is_any: bool,
    ttl_ms: u64,
    since_us: u64,
    until_us: u64,
}

impl Waiting {
    /// Whether one key suffices for the waiter.
    fn needs_one_key(&self) -> bool {
        self.is_any || self.keys.is_power_of_two()
    }
}

/// The keys that are kept for older waiters for several keys.
fn kept_keys(waiting: &HashMap<BlockedId, Waiting>, blocked_id: BlockedId, now_us: u64) -> u8 {
    let keeps = |&(other, waits): &(&BlockedId, &Waiting)| {
        *other < blocked_id && !waits.needs_one_key() && now_us >= waits.since_us + 50_000
    };
    waiting.iter().filter(keeps).fold(0, |kept, (_, waits)| kept | waits.keys)
}

fn overtakes_a_waiter(waiting: &HashMap<BlockedId, Waiting>, keys: u8) -> bool {
    waiting.values().any(|waits| waits.needs_one_key() && waits.keys & keys != 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Random clients that wait for any key, for all keys, or for a single key.
    ///
    /// No key has two holders. Waiters for which one key suffices are served first in, first out,
    /// and no waiter is forgotten.
    #[test]
    fn locks_of_one_any_and_all_keys_exclude_each_other(
        steps in prop::collection::vec(step(), 1..80),
    ) {
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
                Step::Any { keys, ttl_ms, wait_ms } => {
                    let mut names = names(keys);
                    names.reverse();
                    let granted = match wait_ms {
                        None => server.acquire_any(&names, &token, ttl_ms),
                        Some(wait_ms) => match server.acquire_any_or_wait(&names, &token, ttl_ms, wait_ms) {
                            AcquireReply::GrantedOne(fence, key) => Some((fence, key)),
                            AcquireReply::Waits(blocked_id) => {
                                let until_us = now_us + wait_ms * 1000;
                                let token = token.clone();
                                waiting.insert(blocked_id, Waiting { token, keys, is_any: true, ttl_ms, since_us: server.mono_us, until_us });
                                None
                            }
                            other => {
                                prop_assert_eq!(other, AcquireReply::QueueFull);
                                None
                            }
                        }
                    };
                    if let Some((fence, key)) = granted {
                        let keys = 1 << names[key][0];
                        prop_assert!(!overtakes_a_waiter(&waiting, keys), "overtook a waiter");
                        beliefs.record_grant(Belief { token, keys, fence, until_us: now_us + ttl_ms * 1000 })?;
                    }
                }
                Step::All { keys, ttl_ms, wait_ms } => {
                    let granted = match wait_ms {
                        None => server.acquire_all(&names(keys), &token, ttl_ms, None),
                        Some(wait_ms) => match server.acquire_all_or_wait(&names(keys), &token, ttl_ms, wait_ms) {
                            AcquireReply::Granted(fence) => Some(fence),
                            AcquireReply::Waits(blocked_id) => {
                                let until_us = now_us + wait_ms * 1000;
                                let token = token.clone();
                                waiting.insert(blocked_id, Waiting { token, keys, is_any: false, ttl_ms, since_us: server.mono_us, until_us });
                                None
                            }
                            other => {
                                prop_assert_eq!(other, AcquireReply::QueueFull);
                                None
                            }
                        }
                    };
                    if let Some(fence) = granted {
                        prop_assert!(!overtakes_a_waiter(&waiting, keys), "overtook a waiter");
                        beliefs.record_grant(Belief { token, keys, fence, until_us: now_us + ttl_ms * 1000 })?;
                    }
                }
                Step::Release { nth } => {
                    if let Some(held) = beliefs.nth(nth) {
                        beliefs.held.retain(|other| other.token != held.token);
                        prop_assert!(server.release_all(&names(held.keys), &held.token));
                    }
                }
                Step::Cancel { nth } => server.disconnect_nth(&mut waiting, nth),
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
            let granted_keys: HashMap<_, _> = std::mem::take(&mut server.granted_keys).into_iter().collect();
            for (blocked_id, result) in std::mem::take(&mut server.wait_results) {
                let Some(waiter) = waiting.remove(&blocked_id) else { panic!("answered twice, or after it was cancelled") };
                let Some(fence) = result.granted(now_us < waiter.until_us) else { continue };
                let key = granted_keys.get(&blocked_id);
                prop_assert_eq!(key.is_some(), waiter.is_any);
                let keys = key.map_or(waiter.keys, |key| 1 << key[0]);
                prop_assert!(keys & !waiter.keys == 0, "a key that it did not ask for");
                let overtakes = waiting.iter().any(|(&other, waits)| {
                    waits.needs_one_key() && waits.keys & keys != 0
                        && other < blocked_id && now_us < waits.until_us
                });
                prop_assert!(!overtakes, "overtook a waiter that came first");
                let until_us = now_us + waiter.ttl_ms * 1000;
                beliefs.record_grant(Belief { token: waiter.token, keys, fence, until_us })?;
            }
            prop_assert_eq!(server.node().leases(), beliefs.leases());
            prop_assert_eq!(server.node().waiters(), waiting.len());
            for (&blocked_id, waiter) in &waiting {
                let kept = kept_keys(&waiting, blocked_id, now_us);
                let is_free = |name: &[u8]| !server.has(name)
                    && kept & 1 << name[0] == 0
                    && beliefs.held.iter().all(|held| held.keys & 1 << name[0] == 0);
                let mut names = names(waiter.keys).into_iter();
                let could_be_granted = if waiter.is_any { names.any(is_free) } else { names.all(is_free) };
                prop_assert!(!could_be_granted, "a client waits for free keys");
            }
            prop_assert!(waiting.is_empty() || server.node().next_wake().is_some());
        }
        server.turn_after_ms(10_000);
        prop_assert_eq!((server.node().waiters(), server.node().leases()), (0, 0));
    }
}
