//! Random commands and accidents on one node: holders exclude each other, no waiter is forgotten.

use std::collections::BTreeMap;

use crate::support::Server;
use proptest::prelude::*;
use quorlock_core::Fence;
use quorlock_core::node::{BlockedId, KeyEvent, Mode, Reply, WaitReply, Wants};

const NAMES: [&[u8]; 4] = [&[0], &[1], &[2], &[3]];
/// A step is the likelier, the more often it is listed.
const STEPS: &str = "all all all all any any share share share share release release release \
                     release extend extend revoke revoke-now delete evict expire overwrite flush \
                     pass pass pass turn turn turn turn turn turn turn turn turn turn turn turn";
const TTL_MS: u64 = 1000;

/// What a client waits for, or holds. The keys are a bit set.
#[derive(Clone, Debug)]
struct Lock {
    step: &'static str,
    token: [u8; 8],
    keys: u8,
    until_us: u64,
}

/// The names of the keys in this bit set.
fn names(keys: u8) -> Vec<&'static [u8]> {
    NAMES.into_iter().filter(|name| keys & 1 << name[0] != 0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn holders_exclude_each_other_and_no_waiter_is_forgotten(steps in prop::collection::vec((
        prop::sample::select(STEPS.split(' ').collect::<Vec<_>>()),
        1..16_u8, any::<bool>(), 0..3000_u64, prop::option::of(1..100_u64), 0..99_usize,
    ), 1..90)) {
        let mut server = Server::with_max_waiters(100);
        let (mut held, mut waiting) = (Vec::<Lock>::new(), BTreeMap::<BlockedId, Lock>::new());
        for (step, keys, is_one, ms, ticket, nth) in steps {
            let has_several = !is_one && ["all", "any"].contains(&step);
            let keys = if has_several { keys } else { 1 << (keys % 4) };
            let (list, nth) = (names(keys), nth % held.len().max(1));
            let (key, mut grants) = (list[0], Vec::new());
            match step {
                "all" | "any" | "share" => {
                    let token = server.blocked_ids.to_le_bytes();
                    let mode = if step == "share" { Mode::Shared } else { Mode::Exclusive };
                    let terms = (mode, ticket.and_then(Fence::new), ms.saturating_sub(500));
                    let wants = if step == "any" { Wants::Any } else { Wants::All };
                    let reply = server.execute_acquire(wants, &list, &token, TTL_MS, terms);
                    let lock = Lock { step, token, keys, until_us: 0 };
                    match reply {
                        Ok(Reply::Granted(_)) => grants.push((lock, keys)),
                        Ok(Reply::GrantedOne { key, .. }) => grants.push((lock, 1 << list[key][0])),
                        Ok(Reply::Waits) => waiting.extend([(BlockedId(server.blocked_ids), lock)]),
                        _ => {}
                    }
                }
                "release" if !held.is_empty() => {
                    let lock = held.swap_remove(nth);
                    server.release(names(lock.keys)[0], &lock.token);
                }
                "extend" if !held.is_empty() => {
                    let lock = &mut held[nth];
                    let reply = server.extend_with(&names(lock.keys), &lock.token, ms + 1, None, None);
                    if matches!(reply, Ok(Reply::Extended(_))) {
                        lock.until_us = lock.until_us.max(server.mono_us + ms * 1000);
                    }
                }
                "revoke" => drop(server.revoke(key)),
                "revoke-now" => drop(server.revoke_with(key, true)),
                "delete" => server.remove_key(key, KeyEvent::Removed),
                "evict" => server.remove_key(key, KeyEvent::Evicted),
                "expire" => server.remove_key(key, KeyEvent::Expired),
                "overwrite" => {
                    server.remove_key(key, KeyEvent::Replaced);
                    server.set(key, b"theirs", Some(ms));
                }
                "flush" => server.flush(),
                "pass" => server.pass_ms(ms / 2),
                "turn" => server.run_turns(),
                _ => {}
            }
            for (id, answer) in std::mem::take(&mut server.answers) {
                let lock = waiting.remove(&id).unwrap();
                let WaitReply::Granted { key, .. } = answer else { continue };
                let keys = key.map_or(lock.keys, |key| 1 << key.as_bytes()[0]);
                grants.push((lock, keys));
            }
            let ends = ["revoke-now", "delete", "overwrite", "flush"].contains(&step);
            let ended = if step == "flush" { !0 } else { keys };
            held.retain(|lock| !(ends && lock.keys & ended != 0) && server.mono_us < lock.until_us);
            for (lock, keys) in grants {
                let is_shared = |other: &Lock| (other.step, lock.step) == ("share", "share");
                let admits = |other: &Lock| other.keys & keys == 0 || is_shared(other);
                prop_assert!(held.iter().all(admits), "{lock:?} beside {held:?}");
                held.push(Lock { keys, until_us: server.mono_us + TTL_MS * 1000, ..lock });
            }
            if step == "turn" {
                prop_assert!(waiting.is_empty() || server.node().next_wake().is_some());
                let taken = NAMES.into_iter().filter(|name| server.inspect(name).is_some());
                let mut taken = taken.fold(0, |keys, name| keys | 1 << name[0]);
                // A waiter for several keys that lacks one of them may keep the others.
                for lock in NAMES.iter().flat_map(|_| waiting.values()) {
                    let keeps = lock.step == "all" && lock.keys & taken != 0;
                    taken |= if keeps { lock.keys } else { 0 };
                }
                let forgotten = waiting.values().find(|lock| match lock.step {
                    "any" => lock.keys & !taken != 0,
                    _ => lock.keys & taken == 0,
                });
                prop_assert!(forgotten.is_none(), "{forgotten:?}");
            }
        }
        server.turn_after_ms(10_000);
        prop_assert_eq!(server.node().waiters(), 0);
    }
}
