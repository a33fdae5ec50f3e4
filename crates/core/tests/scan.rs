//! A scan lists every lock that is held from the scan's first call to its last.

use std::collections::BTreeSet;

use crate::support::Server;
use proptest::prelude::*;
use quorlock_core::node::{Command, KEY_BYTES_MAX, Pattern, Reply, SCAN_COUNT_MAX, Scan, Scanned};

fn scan(server: &mut Server, cursor: u64, pattern: Option<&[u8]>, count: u32) -> Scanned {
    let pattern = pattern.map(|pattern| Pattern::new(pattern).unwrap());
    let scan = Scan { db: 0, cursor, pattern: pattern.as_ref(), count };
    match server.execute(&Command::Scan(scan)) {
        Ok(Reply::Scanned(scanned)) => {
            for lock in &scanned.locks {
                let inspected = server.inspect(&lock.key);
                assert_eq!(inspected.as_ref(), Some(&lock.inspected), "as INSPECT shows it");
            }
            *scanned
        }
        other => panic!("{other:?}"),
    }
}

/// All keys that one scan lists, from its first call to its last.
fn keys(server: &mut Server, count: u32) -> BTreeSet<Vec<u8>> {
    let (mut keys, mut cursor) = (BTreeSet::new(), 0);
    loop {
        let scanned = scan(server, cursor, None, count);
        keys.extend(scanned.locks.into_iter().map(|lock| lock.key.into_vec()));
        cursor = scanned.cursor;
        if cursor == 0 {
            return keys;
        }
    }
}

fn key(number: usize) -> Vec<u8> {
    format!("key/{number}").into_bytes()
}

#[test]
fn one_call_reads_a_bounded_slice() {
    let mut server = Server::new();
    for number in 0..5000 {
        server.acquire(&key(number), b"t", 10_000).unwrap();
    }
    let scanned = scan(&mut server, 0, None, u32::MAX);
    assert!((100..1000).contains(&scanned.locks.len()), "a call ends after its share of work");
    assert_eq!(scanned.cursor, scanned.locks.len() as u64);
    let scanned = scan(&mut server, 0, Some(b"none"), u32::MAX);
    assert_eq!(
        scanned.cursor,
        u64::from(SCAN_COUNT_MAX),
        "less work for a lock that does not match"
    );
    let scanned = scan(&mut server, 0, Some(b"none"), 10);
    assert_eq!(scanned.cursor, 10, "locks that do not match count too");
    // Leaves one lock in each chunk of 128, and then a single lock.
    for (one_in, at_least, at_most) in [(128, 40, 60), (4992, 1, 2)] {
        for number in (0..5000).filter(|number| number % one_in != one_in - 1) {
            server.release(&key(number), b"t");
        }
        let (mut cursor, mut calls, mut found) = (0, 0, 0);
        loop {
            let scanned = scan(&mut server, cursor, None, 10);
            (calls, found, cursor) = (calls + 1, found + scanned.locks.len(), scanned.cursor);
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(found, server.node().leases());
        assert!((at_least..=at_most).contains(&calls), "{found} locks in {calls} calls");
    }
}

#[test]
fn long_keys_end_a_slice_early() {
    let mut server = Server::new();
    let long: Vec<_> = (0..10_u8).map(|number| vec![b'a' + number; KEY_BYTES_MAX]).collect();
    for key in &long {
        server.acquire(key, b"t", 10_000).unwrap();
    }
    let scanned = scan(&mut server, 0, Some(b"*a*b*c*"), 1000);
    assert_eq!(scanned.cursor, 1);
    assert_eq!(keys(&mut server, 1000).len(), 10);
}

#[test]
fn locks_with_waiters_or_many_keys_end_a_slice_early() {
    let mut server = Server::with_max_waiters(10_000);
    let names: Vec<_> = (0..640).map(key).collect();
    for several in names.chunks(64) {
        let several: Vec<&[u8]> = several.iter().map(|key| &key[..]).collect();
        server.acquire_all(&several, b"t", 10_000).unwrap();
    }
    let of_many_keys = scan(&mut server, 0, None, 1000).locks.len();
    for (number, key) in names.iter().enumerate() {
        for waiter in 0..10 {
            server.wait_for_all(&[key], &[waiter], 1000 + number as u64);
        }
    }
    let of_waiters = scan(&mut server, 0, None, 1000).locks.len();
    assert!(of_waiters < 50 && of_many_keys < 250, "{of_waiters}, {of_many_keys}");
    assert_eq!(keys(&mut server, 1000).len(), 640);
}

#[test]
fn any_cursor_is_answered() {
    let mut server = Server::with_lock(&[b"k"], b"t", 10_000);
    for cursor in [1, 100, 127, 128, 1_000_000, u64::from(u32::MAX), u64::MAX] {
        let nothing = Scanned { cursor: 0, locks: Vec::new() };
        assert_eq!(scan(&mut server, cursor, None, 10), nothing);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Scan(u32),
    Acquire(usize),
    AcquireTwo(usize, usize),
    /// Acquires up to 200 keys: more than a chunk of the node's table holds.
    AcquireMany(usize),
    ReleaseMany(usize, usize),
    Revoke(usize),
    Extend(usize),
    Pass(u64),
    Turn,
}

const KEYS: usize = 600;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..40_u32).prop_map(Step::Scan),
        3 => (0..KEYS).prop_map(Step::Acquire),
        2 => (0..KEYS, 0..KEYS).prop_map(|(a, b)| Step::AcquireTwo(a, b)),
        1 => (0..KEYS).prop_map(Step::AcquireMany),
        4 => (0..KEYS, prop_oneof![3 => Just(1), 1 => Just(150)])
            .prop_map(|(from, count)| Step::ReleaseMany(from, count)),
        1 => (0..KEYS).prop_map(Step::Revoke),
        1 => (0..KEYS).prop_map(Step::Extend),
        1 => (1..300_u64).prop_map(Step::Pass),
        1 => Just(Step::Turn),
    ];
    prop::collection::vec(step, 1..80)
}

/// The keys of all locks that are held.
fn held(server: &mut Server) -> BTreeSet<Vec<u8>> {
    let is_held = |key: &Vec<u8>| server.inspect(key).is_some();
    (0..KEYS).map(key).filter(is_held).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lock_that_is_held_from_first_to_last_call_is_listed(steps in steps(), count in 1..50_u32) {
        let mut server = Server::new();
        let mut cursor = 0;
        // For the current scan: the locks that were held at its first call, the locks that it has
        // listed, and the locks that have ended since its first call.
        let mut held_at_first: Option<BTreeSet<Vec<u8>>> = None;
        let mut listed = BTreeSet::new();
        let mut ended: BTreeSet<Vec<u8>> = BTreeSet::new();
        for step in steps {
            let before = held(&mut server);
            match step {
                Step::Scan(count) => {
                    if held_at_first.is_none() {
                        held_at_first = Some(before.clone());
                        ended.clear();
                    }
                    let scanned = scan(&mut server, cursor, None, count);
                    listed.extend(scanned.locks.into_iter().map(|lock| lock.key.into_vec()));
                    cursor = scanned.cursor;
                    if cursor == 0 {
                        let all = held_at_first.take().unwrap();
                        let missed: Vec<_> = all.iter().filter(|key| !ended.contains(*key) && !listed.contains(*key)).collect();
                        prop_assert!(missed.is_empty(), "{missed:?}");
                        listed.clear();
                    }
                }
                Step::Acquire(n) => drop(server.acquire(&key(n), b"t", 900)),
                Step::AcquireTwo(a, b) => {
                    let two = BTreeSet::from([key(a), key(b)]);
                    let two: Vec<&[u8]> = two.iter().map(|key| &key[..]).collect();
                    server.acquire_all(&two, b"t", 900);
                }
                Step::AcquireMany(from) => {
                    for n in from..KEYS.min(from + 200) {
                        server.acquire(&key(n), b"t", 900);
                    }
                }
                Step::ReleaseMany(from, count) => {
                    for n in from..KEYS.min(from + count) {
                        server.release(&key(n), b"t");
                    }
                }
                Step::Revoke(n) => drop(server.revoke(&key(n))),
                Step::Extend(n) => drop(server.extend(&key(n), b"t", 900)),
                Step::Pass(ms) => server.pass_ms(ms),
                Step::Turn => server.run_turns(),
            }
            ended.extend(before.difference(&held(&mut server)).cloned());
        }
        // A scan without interruption lists exactly the locks that are held.
        let expected = held(&mut server);
        prop_assert_eq!(keys(&mut server, count), expected);
    }
}
