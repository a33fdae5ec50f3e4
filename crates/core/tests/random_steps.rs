//! Random steps of all kinds on one node: no key has two holders, no waiter is forgotten.

use std::collections::HashMap;

use crate::support::{AcquireCommand, REVOKED_VALUE, Server, WaitResult};
use proptest::prelude::*;
use quorlock_core::Fence;
use quorlock_core::node::{BlockedId, CommandError, Holder, KeyEvent, Mode, Reply};

const KEYS: u8 = 4;
const NAMES: [&[u8]; 4] = [&[0], &[1], &[2], &[3]];
/// How long younger waiters may pass a waiter for several keys.
const KEPT_AFTER_US: u64 = 50_000;

/// The names of the keys in this bit set.
fn names(keys: u8) -> Vec<&'static [u8]> {
    NAMES.into_iter().filter(|name| keys & 1 << name[0] != 0).collect()
}

/// What a client requests. The keys are a bit set.
#[derive(Clone, Copy, Debug)]
enum Want {
    All { keys: u8 },
    Any { keys: u8 },
    Share { key: u8 },
}

impl Want {
    fn keys(self) -> u8 {
        match self {
            Self::All { keys } | Self::Any { keys } => keys,
            Self::Share { key } => 1 << key,
        }
    }

    fn mode(self) -> Mode {
        if matches!(self, Self::Share { .. }) { Mode::Shared } else { Mode::Exclusive }
    }

    /// Whether one key suffices.
    fn needs_one_key(self) -> bool {
        matches!(self, Self::Any { .. }) || self.keys().is_power_of_two()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask {
        want: Want,
        ttl_ms: u64,
        wait_ms: Option<u64>,
    },
    /// Repeats the ACQUIRE of a waiter, with a ticket.
    AskAgain {
        nth: usize,
        wait_ms: u64,
    },
    Extend {
        nth: usize,
        shares: bool,
        ttl_ms: u64,
    },
    ExtendOther {
        nth: usize,
        keys: u8,
    },
    SwapToken {
        nth: usize,
    },
    Release {
        nth: usize,
        keys: u8,
    },
    Disconnect {
        nth: usize,
    },
    Revoke {
        key: u8,
        ends_now: bool,
    },
    RemoveKey {
        key: u8,
        event: KeyEvent,
    },
    Foreign {
        key: u8,
        expires_in_ms: u64,
    },
    Flush,
    MoveWallClock {
        ms: i64,
    },
    Pass {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (keys, nth, ttl) = (1..1_u8 << KEYS, 0..8_usize, 1..3000_u64);
    let wait = prop::option::weighted(0.7, 1..4000_u64);
    let wanted_keys = prop_oneof![
        3 => (0..KEYS).prop_map(|key| Want::All { keys: 1 << key }),
        2 => keys.clone().prop_map(|keys| Want::All { keys }),
        2 => keys.clone().prop_map(|keys| Want::Any { keys }),
        4 => (0..KEYS).prop_map(|key| Want::Share { key }),
    ];
    let event =
        prop_oneof![Just(KeyEvent::Removed), Just(KeyEvent::Evicted), Just(KeyEvent::Expired)];
    prop_oneof![
        14 => (wanted_keys, ttl.clone(), wait)
            .prop_map(|(want, ttl_ms, wait_ms)| Step::Ask { want, ttl_ms, wait_ms }),
        2 => (0..20_usize, 1..4000_u64).prop_map(|(nth, wait_ms)| Step::AskAgain { nth, wait_ms }),
        3 => (nth.clone(), any::<bool>(), ttl)
            .prop_map(|(nth, shares, ttl_ms)| Step::Extend { nth, shares, ttl_ms }),
        2 => (nth.clone(), keys.clone()).prop_map(|(nth, keys)| Step::ExtendOther { nth, keys }),
        1 => nth.clone().prop_map(|nth| Step::SwapToken { nth }),
        6 => (nth.clone(), keys).prop_map(|(nth, keys)| Step::Release { nth, keys }),
        1 => nth.prop_map(|nth| Step::Disconnect { nth }),
        1 => (0..KEYS, prop::bool::weighted(0.2))
            .prop_map(|(key, ends_now)| Step::Revoke { key, ends_now }),
        2 => (0..KEYS, event).prop_map(|(key, event)| Step::RemoveKey { key, event }),
        1 => (0..KEYS, 1..2000_u64)
            .prop_map(|(key, expires_in_ms)| Step::Foreign { key, expires_in_ms }),
        1 => Just(Step::Flush),
        1 => (-5000..5000_i64).prop_map(|ms| Step::MoveWallClock { ms }),
        5 => (0..1500_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// What the holder of a lock believes.
#[derive(Clone, Debug)]
struct Belief {
    token: Vec<u8>,
    keys: u8,
    mode: Mode,
    fence: Fence,
    until_us: u64,
    is_revoked: bool,
}

struct Waiting {
    token: Vec<u8>,
    want: Want,
    ttl_ms: u64,
    since_us: u64,
    until_us: u64,
    /// The id with which the token came first.
    place: BlockedId,
}

/// A node, and what its clients know of it.
struct Run {
    server: Server,
    held: Vec<Belief>,
    waiting: HashMap<BlockedId, Waiting>,
    /// Waiters whose token waits again on another connection.
    replaced: Vec<BlockedId>,
    /// For each key, the largest fence, and that of a writer.
    largest: [(Fence, Fence); KEYS as usize],
    tokens: u32,
    has_revoked_foreign: bool,
}

type Checked = Result<(), TestCaseError>;

impl Run {
    fn new() -> Self {
        Self {
            server: Server::new(),
            held: Vec::new(),
            waiting: HashMap::new(),
            replaced: Vec::new(),
            largest: Default::default(),
            tokens: 0,
            has_revoked_foreign: false,
        }
    }

    fn nth(&self, nth: usize) -> Option<Belief> {
        self.held.get(nth % self.held.len().max(1)).cloned()
    }

    fn on(&self, key: u8) -> impl Iterator<Item = &Belief> {
        self.held.iter().filter(move |held| held.keys & 1 << key != 0)
    }

    fn forget_ended(&mut self) {
        let now_us = self.server.mono_us;
        self.held.retain(|held| now_us < held.until_us);
    }

    /// Records a grant. Fails if another holder excludes it, or if its fence is too small.
    fn record_grant(&mut self, granted: Belief) -> Checked {
        let is_shared = |held: &Belief| held.mode == Mode::Shared && !held.is_revoked;
        for key in names(granted.keys).into_iter().map(|name| name[0]) {
            let admits = self.on(key).all(|held| is_shared(held) && is_shared(&granted));
            prop_assert!(admits, "another holder excludes it: {:?}", self.held);
            let (largest, of_writer) = &mut self.largest[usize::from(key)];
            prop_assert!(granted.fence > *of_writer, "not above the fence of an earlier writer");
            if granted.mode == Mode::Exclusive {
                prop_assert!(granted.fence > *largest, "not above all earlier fences");
                *of_writer = granted.fence;
            }
            *largest = granted.fence.max(*largest);
        }
        self.held.push(granted);
        Ok(())
    }

    fn record(
        &mut self,
        token: Vec<u8>,
        mode: Mode,
        keys: u8,
        fence: Fence,
        ttl_ms: u64,
    ) -> Checked {
        let until_us = self.server.mono_us + ttl_ms * 1000;
        self.record_grant(Belief { token, keys, mode, fence, until_us, is_revoked: false })
    }

    /// Whether an older waiter, which has time left and needs no other key, wants one of these.
    fn has_older_waiter(&self, keys: u8, place: BlockedId) -> bool {
        self.waiting.values().any(|waits| {
            waits.place < place
                && waits.want.needs_one_key()
                && waits.want.keys() & keys != 0
                && self.server.mono_us < waits.until_us
        })
    }

    /// The keys that are kept for older waiters for several keys.
    fn kept(&self, place: BlockedId) -> u8 {
        let keeps = |waits: &&Waiting| {
            waits.place < place
                && !waits.want.needs_one_key()
                && self.server.mono_us >= waits.since_us + KEPT_AFTER_US
        };
        self.waiting.values().filter(keeps).fold(0, |kept, waits| kept | waits.want.keys())
    }

    fn is_free(&mut self, key: u8) -> bool {
        self.server.inspect_all_fields(&[key]).is_none()
    }

    fn ask(&mut self, token: Vec<u8>, want: Want, ttl_ms: u64, wait_ms: Option<u64>) -> Checked {
        let mut keys = names(want.keys());
        let command = match want {
            Want::Any { .. } => {
                keys.reverse();
                AcquireCommand::AcquireAny
            }
            _ => AcquireCommand::Acquire,
        };
        let terms = (want.mode(), None, wait_ms.unwrap_or(0));
        let (mode, now_us) = (want.mode(), self.server.mono_us);
        let granted = match self.server.execute_acquire(&keys, &token, ttl_ms, terms, command) {
            Ok(Reply::Granted(fence)) => Some((fence, want.keys())),
            Ok(Reply::GrantedOne { fence, key }) => Some((fence, 1 << keys[key][0])),
            Ok(Reply::Waits) => {
                let until_us = now_us + wait_ms.unwrap_or(0) * 1000;
                let place = self.server.last_blocked_id();
                let waiting = Waiting { token, want, ttl_ms, since_us: now_us, until_us, place };
                self.waiting.insert(place, waiting);
                return Ok(());
            }
            Ok(Reply::Refused) => None,
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        let newcomer = BlockedId(u64::MAX);
        let Some((fence, keys)) = granted else {
            prop_assert!(wait_ms.is_none(), "it may wait");
            let is_wanted = self.waiting.values().any(|waits| waits.want.keys() & want.keys() != 0);
            let is_held = (0..KEYS).any(|key| want.keys() & 1 << key != 0 && !self.is_free(key));
            prop_assert!(is_held || is_wanted, "refused a free key");
            return Ok(());
        };
        prop_assert!(!self.has_older_waiter(keys, newcomer), "a newcomer overtook a waiter");
        self.record(token, mode, keys, fence, ttl_ms)
    }

    fn ask_again(&mut self, nth: usize, wait_ms: u64) -> Checked {
        let is_plain = |waits: &Waiting| matches!(waits.want, Want::All { .. });
        let mut ids: Vec<_> =
            self.waiting.iter().filter(|(_, waits)| is_plain(waits)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let Some(older) = ids.get(nth) else { return Ok(()) };
        let Some(waits) = self.waiting.remove(older) else { return Ok(()) };
        let keys = names(waits.want.keys());
        self.replaced.push(*older);
        match self.server.ask(&keys, &waits.token, waits.ttl_ms, 1, wait_ms) {
            Ok(Reply::Waits) => {
                let until_us = self.server.mono_us + wait_ms * 1000;
                self.waiting.insert(self.server.last_blocked_id(), Waiting { until_us, ..waits });
                Ok(())
            }
            Ok(Reply::Granted(fence)) => {
                prop_assert!(!self.has_older_waiter(waits.want.keys(), waits.place), "overtook");
                self.record(waits.token, Mode::Exclusive, waits.want.keys(), fence, waits.ttl_ms)
            }
            other => Err(TestCaseError::fail(format!("{other:?}"))),
        }
    }

    fn extend(&mut self, nth: usize, shares: bool, ttl_ms: u64, token: &[u8]) -> Checked {
        let now_us = self.server.mono_us;
        let Some(held) = self.nth(nth) else {
            prop_assert_eq!(self.server.extend(NAMES[0], token, ttl_ms), None, "nothing is held");
            return Ok(());
        };
        let shares = shares && held.keys.is_power_of_two();
        let mode = if shares { Mode::Shared } else { Mode::Exclusive };
        let keys = names(held.keys);
        let extended = self.server.extend_as(mode, &keys, &held.token, ttl_ms, None, None);
        if held.is_revoked {
            let left_ms = (held.until_us - now_us).div_ceil(1000);
            prop_assert_eq!(extended, Err(CommandError::Revoked { left_ms }));
            return Ok(());
        }
        prop_assert_eq!(extended, Ok(Reply::Extended(held.fence)));
        let belief = self.held.iter_mut().find(|other| other.token == held.token).unwrap();
        belief.until_us = belief.until_us.max(now_us + ttl_ms * 1000);
        if shares {
            belief.mode = Mode::Shared;
        }
        Ok(())
    }

    fn take(&mut self, step: Step) -> Checked {
        self.tokens += 1;
        let token = self.tokens.to_le_bytes().to_vec();
        match step {
            Step::Ask { want, ttl_ms, wait_ms } => self.ask(token, want, ttl_ms, wait_ms)?,
            Step::AskAgain { nth, wait_ms } => self.ask_again(nth, wait_ms)?,
            Step::Extend { nth, shares, ttl_ms } => self.extend(nth, shares, ttl_ms, &token)?,
            Step::ExtendOther { nth, keys } => {
                if let Some(held) = self.nth(nth).filter(|held| held.keys != keys) {
                    let has_all = held.keys & keys == keys;
                    let expected =
                        if has_all { Err(CommandError::OtherKeys) } else { Ok(Reply::NotHeld) };
                    prop_assert_eq!(self.server.extend_all(&names(keys), &held.token, 1), expected);
                }
            }
            Step::SwapToken { nth } => {
                if let Some(held) = self.nth(nth).filter(|held| !held.is_revoked) {
                    let keys = names(held.keys);
                    let swapped = Some(&token[..]);
                    let reply = self.server.extend_all_with(&keys, &held.token, 1, None, swapped);
                    self.held.retain(|other| other.token != held.token);
                    let until_us = held.until_us.max(self.server.mono_us + 1000);
                    let Ok(Reply::Extended(fence)) = reply else { panic!("{reply:?}") };
                    self.record_grant(Belief { token, fence, until_us, ..held })?;
                }
            }
            Step::Release { nth, keys } => {
                if let Some(held) = self.nth(nth) {
                    let is_held = keys & held.keys != 0;
                    prop_assert_eq!(self.server.release_all(&names(keys), &held.token), is_held);
                    self.held.retain(|other| !is_held || other.token != held.token);
                }
            }
            Step::Disconnect { nth } => self.server.disconnect_nth(&mut self.waiting, nth),
            Step::Revoke { key, ends_now } => {
                let is_held = self.on(key).next().is_some();
                let name = NAMES[usize::from(key)];
                let revoked =
                    if ends_now { self.server.revoke_now(name) } else { self.server.revoke(name) };
                prop_assert!(revoked == Ok(true) || !is_held, "{:?}", revoked);
                self.has_revoked_foreign |= !is_held;
                if ends_now {
                    self.held.retain(|held| held.keys & 1 << key == 0);
                }
                let on_key = self.held.iter_mut().filter(|held| held.keys & 1 << key != 0);
                on_key.for_each(|held| held.is_revoked = true);
            }
            Step::RemoveKey { key, event } => {
                let name = NAMES[usize::from(key)];
                let is_mirror = self.server.has(name) && self.server.text(name) != b"old client";
                self.server.remove_key(name, event);
                // A command that removes a mirror ends its lock, and an accident does not.
                if is_mirror && event == KeyEvent::Removed {
                    self.held.retain(|held| held.keys & 1 << key == 0);
                }
            }
            Step::Foreign { key, expires_in_ms } => {
                self.server.set_foreign(NAMES[usize::from(key)], expires_in_ms);
            }
            Step::Flush => {
                self.server.flush();
                self.held.clear();
            }
            Step::MoveWallClock { ms } => {
                self.server.wall_ms = self.server.wall_ms.saturating_add_signed(ms);
            }
            Step::Pass { ms } => self.server.pass_ms(ms),
        }
        Ok(())
    }

    /// Compares the answers to waiters with what may happen to them.
    fn check_answers(&mut self) -> Checked {
        let now_us = self.server.mono_us;
        let granted_keys: HashMap<_, _> =
            std::mem::take(&mut self.server.granted_keys).into_iter().collect();
        for (id, result) in std::mem::take(&mut self.server.wait_results) {
            if result == WaitResult::Refused && self.replaced.contains(&id) {
                self.replaced.retain(|other| *other != id);
                continue;
            }
            let Some(waits) = self.waiting.remove(&id) else {
                return Err(TestCaseError::fail("answered twice, or after it was cancelled"));
            };
            let Some(fence) = result.granted(now_us < waits.until_us) else { continue };
            let key = granted_keys.get(&id);
            prop_assert_eq!(key.is_some(), matches!(waits.want, Want::Any { .. }));
            let keys = key.map_or(waits.want.keys(), |key| 1 << key[0]);
            prop_assert!(keys & !waits.want.keys() == 0, "a key that it did not ask for");
            prop_assert!(!self.has_older_waiter(keys, waits.place), "overtook a waiter");
            self.record(waits.token, waits.want.mode(), keys, fence, waits.ttl_ms)?;
        }
        Ok(())
    }

    /// Checks that the node has the leases in which their holders believe, and that the other keys
    /// are free.
    fn check_leases(&mut self) -> Checked {
        let now_us = self.server.mono_us;
        let leases: u32 = self.held.iter().map(|held| held.keys.count_ones()).sum();
        prop_assert_eq!(self.server.node().leases(), leases as usize);
        for key in 0..KEYS {
            let on_key: Vec<_> = self.on(key).cloned().collect();
            let Some(first) = on_key.first() else { continue };
            let Some(Holder::Lease { holders, ttl_ms, mode, keys, revoked, fence, .. }) =
                self.server.inspect_all_fields(&[key]).map(|shown| shown.holder)
            else {
                return Err(TestCaseError::fail("the key is not held"));
            };
            let last_us = on_key.iter().map(|held| held.until_us).max().unwrap();
            prop_assert_eq!(ttl_ms, (last_us - now_us).div_ceil(1000));
            prop_assert_eq!((holders, mode, revoked), (on_key.len(), first.mode, first.is_revoked));
            prop_assert!(mode == Mode::Shared || fence == first.fence);
            prop_assert_eq!(keys, first.keys.count_ones() as usize);
        }
        let explains = |held: &Belief, text: &[u8]| match held.mode {
            _ if held.is_revoked => text == REVOKED_VALUE,
            Mode::Exclusive => text == held.token,
            Mode::Shared => text.starts_with(b"unknown-"),
        };
        let is_explained = |text: &[u8]| {
            text == b"old client"
                || text == REVOKED_VALUE && self.has_revoked_foreign
                || self.held.iter().any(|held| explains(held, text))
        };
        prop_assert!(self.server.texts().all(is_explained), "a mirror outlives its lock");
        Ok(())
    }

    /// Checks that no client waits too long, or for keys that it could have.
    fn check_waiters(&mut self) -> Checked {
        let now_us = self.server.mono_us;
        prop_assert!(self.replaced.is_empty(), "an older waiter is not answered");
        prop_assert!(self.waiting.values().all(|waits| now_us < waits.until_us), "forgotten");
        prop_assert_eq!(self.server.node().waiters(), self.waiting.len());
        let wakes = self.waiting.is_empty() || self.server.node().next_wake().is_some();
        prop_assert!(wakes, "nothing wakes the node");
        let free = (0..KEYS).filter(|&key| self.is_free(key)).fold(0, |free, key| free | 1 << key);
        let shared = (0..KEYS).filter(|&key| {
            let mut holders = self.on(key).peekable();
            let is_held = holders.peek().is_some();
            is_held && holders.all(|held| held.mode == Mode::Shared && !held.is_revoked)
        });
        let shared = shared.fold(0, |shared, key| shared | 1 << key);
        for waits in self.waiting.values() {
            let (keys, kept) = (waits.want.keys(), self.kept(waits.place));
            let could_be_granted = match waits.want {
                Want::Any { .. } => keys & free & !kept != 0,
                Want::All { .. } => keys & !free == 0 && keys & kept == 0,
                Want::Share { .. } => {
                    let joins = keys & shared != 0 && !self.has_older_waiter(keys, waits.place);
                    keys & kept == 0 && (keys & free != 0 || joins)
                }
            };
            prop_assert!(!could_be_granted, "a client waits for free keys");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Locks of one, any and all keys, shared and exclusive, while operators remove and revoke
    /// keys, the wall clock is stepped and keys are evicted.
    #[test]
    fn holders_exclude_each_other_and_no_waiter_is_forgotten(
        steps in prop::collection::vec((step(), prop::bool::weighted(0.8)), 1..90),
    ) {
        let mut run = Run::new();
        for (step, ends_the_turn) in steps {
            run.forget_ended();
            run.take(step)?;
            run.forget_ended();
            if ends_the_turn {
                run.server.run_turns();
            }
            run.check_answers()?;
            if ends_the_turn {
                run.check_leases()?;
                run.check_waiters()?;
            }
        }
        run.server.turn_after_ms(10_000);
        let node = run.server.node();
        prop_assert_eq!((node.waiters(), node.leases()), (0, 0), "everything ends");
        let stats = node.stats();
        let ended = stats.releases + stats.ended_by_deadline + stats.ended_by_operator;
        prop_assert!(stats.grants <= ended, "each lock ends once on each of its keys");
    }
}
