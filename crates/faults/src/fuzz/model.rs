//! The node decides as in the module. The model imitates only the server around it: the effect of
//! each plain command on the keys, and the events that the server sends for it.

use quorlock_core::node::memory_server::{Name, Server, Value};
use quorlock_core::node::{
    self, BlockedId, CommandError, FenceError, Holder, Inspected, KeyBytes, KeyEvent, Mode,
    Monotonic, Now, Reason, ServerEvent, Settings, WaitReply,
};
use quorlock_core::{Fence, Ttl};

use super::command::{
    Command, DBS, KEYS, Keys, LockCommand, Place, PlainCommand, ProposedFence, SetCondition,
    key_index,
};

/// The differences between servers that matter to the fuzzer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flavor {
    /// The module learns which values are removed, and not which commands change keys. An expiry
    /// set into the past counts as expired, and not as deleted.
    pub(super) reports_removals: bool,
    /// A reload reports the flush after the start of loading, and not before.
    pub(super) flushes_while_loading: bool,
    /// Waiters that are granted a lock are unblocked at the end of the turn.
    pub(super) defers_wakes: bool,
}

/// The expected form of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Blocked,
    /// The fence of the lock on these keys. After WAIT, it is in an array with the waited time.
    Fence {
        places: Vec<Place>,
        fence: u64,
        waits: bool,
        /// The granted key, if the reply names it.
        key: Option<usize>,
        /// The fences of shared locks may be equal, or in any order.
        mode: Mode,
    },
    Nil,
    Int(i64),
    /// Any integer.
    SomeInt,
    Bulk(Vec<u8>),
    Ok,
    /// An error with this start.
    Error(String),
    Inspected(Place, Inspected),
    /// The matching locks of a database, in the order of the keys.
    Scanned(Vec<(Place, Inspected)>),
}

/// How the random value of a revoked or shared lock begins in the model.
pub(super) const UNKNOWN: &str = "unknown-";
/// The length of such a value in the model and on the server.
pub(super) const UNKNOWN_BYTES: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) server: Server,
    pub(super) flavor: Flavor,
    max_ttl: Ttl,
    revocations: u64,
    last_change: Monotonic,
}

/// The part of a server's configuration that the node needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_ttl_ms: u64,
    pub(super) max_waiters: usize,
}

/// The default of `lock.max-clock-skew`.
pub(super) const MAX_CLOCK_SKEW_MS: u64 = 60_000;

impl Model {
    /// Creates the model of a server that has just started, without keys.
    pub(super) fn new(limits: Limits, flavor: Flavor, now: Now) -> Self {
        let max_ttl = Ttl::from_ms(limits.max_ttl_ms).unwrap_or_else(|error| panic!("{error}"));
        let settings = Settings {
            max_ttl,
            rejoin_delay_ms: 0,
            max_clock_skew_ms: MAX_CLOCK_SKEW_MS,
            max_waiters: limits.max_waiters,
            fence_stripes: 4096,
            table_shards: 4,
            hash_seed: 0,
            defer_wakes: flavor.defers_wakes,
        };
        Self {
            server: Server::new(settings, now),
            flavor,
            max_ttl,
            revocations: 0,
            last_change: now.monotonic,
        }
    }

    /// Runs all due events, each at its time.
    pub(super) fn run_until(&mut self, now: Now) {
        loop {
            let expiry = if self.server.keys.is_paused { None } else { self.expiries(now).min() };
            let next = [expiry, self.server.node.next_wake()].into_iter().flatten().min();
            let Some(next) = next.map(|at| at.max(self.last_change.plus_us(1))) else { break };
            if next >= now.monotonic {
                break;
            }
            let earlier_us = now.monotonic.us_since(next);
            self.run_turns(Now { monotonic: next, wall_us: now.wall_us - earlier_us });
        }
        self.run_turns(now);
    }

    fn run_turns(&mut self, now: Now) {
        if !self.server.keys.is_paused {
            self.server.keys.set_wall_ms(now.wall_ms());
            places().for_each(|place| self.expire_key(now, place));
        }
        self.server.run_turns(now);
        self.last_change = self.last_change.max(now.monotonic);
    }

    /// Returns the times at which keys expire.
    fn expiries(&self, now: Now) -> impl Iterator<Item = Monotonic> {
        let expiries = self.server.keys.iter().filter_map(|(_, _, value)| value.expires_at_ms);
        expiries.map(move |at_ms| gone_at(now, at_ms))
    }

    /// Returns all times from now on at which an event may happen without a command.
    pub(super) fn deadlines(&self, now: Now) -> Vec<Monotonic> {
        let mut all: Vec<_> = self.expiries(now).collect();
        all.extend(self.server.node.deadlines().filter(|at| *at > now.monotonic));
        if let Some((_, Some(left_ms))) = self.server.node.abstention(now.monotonic) {
            all.push(now.monotonic.plus_us(left_ms.saturating_mul(1000)));
        }
        // Only the node knows when it writes a missing mirror again.
        if self.server.node.lacks_mirrors() {
            all.extend(self.server.node.next_wake());
        }
        all
    }

    /// Executes a command on keys, and returns the expected reply. With an id, the command may
    /// block the client. In EXEC and in scripts, keys expire by the wall clock at `began`.
    pub(super) fn execute(
        &mut self,
        now: Now,
        began: Option<Now>,
        db: u32,
        command: &Command,
        blocked_id: Option<BlockedId>,
    ) -> Expected {
        self.note_change(now);
        self.server.keys.client = blocked_id;
        let expected = match command {
            Command::Lock(command) => self.lock(now, began.unwrap_or(now), db, command),
            Command::Plain(command) => {
                let keys_now = Now { monotonic: now.monotonic, ..began.unwrap_or(now) };
                for place in command.keys_looked_up(db) {
                    self.expire_key(keys_now, place);
                    // Without the first key, the server does not look up the second.
                    if self.get(place).is_none() {
                        break;
                    }
                }
                self.plain(keys_now, db, command)
            }
            Command::Unblock { .. } | Command::Kill { .. } => {
                unreachable!("these are about clients")
            }
        };
        self.server.keys.client = None;
        expected
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each command")]
    fn lock(&mut self, now: Now, keys_now: Now, db: u32, command: &LockCommand) -> Expected {
        let Self { server, max_ttl, revocations, .. } = self;
        let mut execute = |command: &node::Command<'_, Name>| {
            server.keys.set_wall_ms(keys_now.wall_ms());
            server.node.execute(now, command, &mut server.keys)
        };
        let name = |text: &str| Name::from_slice(text.as_bytes());
        let names = |keys: &[usize]| keys.iter().map(|&key| name(KEYS[key])).collect::<Vec<_>>();
        let places = |keys: &[usize]| keys.iter().map(|&key| (db, key)).collect::<Vec<_>>();
        let ttl = |ms: u64| {
            Ttl::from_ms_up_to(ms, max_ttl.ms()).unwrap_or_else(|error| panic!("{error}"))
        };
        let fence = |proposed: Option<ProposedFence>| {
            proposed.map(|fence| Fence::new(fence.of_model).unwrap_or_default())
        };
        match command {
            LockCommand::Acquire { keys, token, ttl_ms, mode, wait_ms, fence: proposed, owner } => {
                let sorted = keys.in_node_order();
                let acquire = node::Acquire {
                    db,
                    keys: &names(&sorted),
                    token: &name(token),
                    ttl: ttl(*ttl_ms),
                    mode: *mode,
                    owner: owner.map(str::as_bytes),
                    fence: fence(*proposed),
                    wait_ms: wait_ms.unwrap_or(0),
                };
                let command = match keys {
                    Keys::Any(_) => node::Command::AcquireAny(acquire),
                    Keys::One(_) | Keys::Counted(_) => node::Command::Acquire(acquire),
                };
                let (waits, mode) = (wait_ms.is_some(), *mode);
                match execute(&command) {
                    Ok(node::Reply::Granted(fence)) => {
                        let (places, fence) = (places(&sorted), fence.get());
                        Expected::Fence { places, fence, waits, key: None, mode }
                    }
                    Ok(node::Reply::GrantedOne { fence, key }) => {
                        let (places, fence) = (places(&sorted[key..=key]), fence.get());
                        Expected::Fence { places, fence, waits, key: Some(sorted[key]), mode }
                    }
                    other => expected(other),
                }
            }
            LockCommand::Extend { keys, token, ttl_ms, mode, fence: proposed, new_token } => {
                let sorted = keys.in_node_order();
                let new_token = new_token.map(name);
                let extend = node::Extend {
                    db,
                    keys: &names(&sorted),
                    token: &name(token),
                    ttl: ttl(*ttl_ms),
                    mode: *mode,
                    fence: fence(*proposed),
                    new_token: new_token.as_ref(),
                };
                match execute(&node::Command::Extend(extend)) {
                    Ok(node::Reply::Extended(fence)) => {
                        let (places, fence) = (places(&sorted), fence.get());
                        let mode = mode_of(&mut server.clone(), now, places[0]);
                        Expected::Fence { places, fence, waits: false, key: None, mode }
                    }
                    other => expected(other),
                }
            }
            LockCommand::Release { keys, token } => {
                let release =
                    node::Release { db, keys: &names(&keys.in_node_order()), token: &name(token) };
                expected(execute(&node::Command::Release(release)))
            }
            LockCommand::Yield { keys, token } => {
                let yields =
                    node::Yield { db, keys: &names(&keys.in_node_order()), token: &name(token) };
                expected(execute(&node::Command::Yield(yields)))
            }
            LockCommand::Revoke { key, ends_now } => {
                *revocations += 1;
                let digits = UNKNOWN_BYTES - UNKNOWN.len();
                let random_value = name(&format!("{UNKNOWN}{revocations:0digits$}"));
                let revoke = node::Revoke {
                    db,
                    key: &name(KEYS[*key]),
                    random_value: &random_value,
                    ends_now: *ends_now,
                };
                expected(execute(&node::Command::Revoke(revoke)))
            }
            LockCommand::Scan { pattern } => {
                let pattern = pattern.and_then(|pattern| node::Pattern::new(pattern.as_bytes()));
                let count = node::SCAN_COUNT_MAX;
                let scan = node::Scan { db, cursor: 0, pattern: pattern.as_ref(), count };
                let Ok(node::Reply::Scanned(scanned)) = execute(&node::Command::Scan(scan)) else {
                    unreachable!("SCAN is always carried out")
                };
                assert_eq!(scanned.cursor, 0, "one call looks at more keys than there are");
                let locks = scanned.locks.into_iter();
                let mut locks: Vec<_> = locks
                    .filter_map(|lock| Some(((db, key_index(&lock.key)?), lock.inspected)))
                    .collect();
                locks.sort_by_key(|(place, _)| *place);
                Expected::Scanned(locks)
            }
            LockCommand::Inspect { key } => {
                let name = name(KEYS[*key]);
                inspected(
                    (db, *key),
                    execute(&node::Command::Inspect(node::Inspect { db, key: &name })),
                )
            }
        }
    }

    pub(super) fn inspect(&mut self, now: Now, place: Place) -> Expected {
        self.note_change(now);
        inspect(&mut self.server, now, place)
    }

    pub(super) fn get(&self, (db, key): Place) -> Option<&Value> {
        self.server.get(db, KEYS[key].as_bytes())
    }

    #[expect(clippy::too_many_lines, reason = "a table of commands")]
    fn plain(&mut self, now: Now, db: u32, command: &PlainCommand) -> Expected {
        match command {
            PlainCommand::Del(key) | PlainCommand::Unlink(key) => {
                let removed = self.remove(now, (db, *key), KeyEvent::Removed);
                Expected::Int(removed.is_some().into())
            }
            PlainCommand::GetDel(key) => match self.get((db, *key)).cloned() {
                None => Expected::Nil,
                Some(Value { text: None, .. }) => Expected::Error("WRONGTYPE".into()),
                Some(Value { text: Some(text), .. }) => {
                    self.remove(now, (db, *key), KeyEvent::Removed);
                    Expected::Bulk(text.to_vec())
                }
            },
            PlainCommand::Set { key, value, px_ms, condition } => {
                let exists = self.get((db, *key)).is_some();
                let unmet = if exists { SetCondition::Missing } else { SetCondition::Present };
                if *condition == Some(unmet) {
                    return Expected::Nil;
                }
                self.set(now, (db, *key), value, *px_ms);
                Expected::Ok
            }
            PlainCommand::PSetEx { key, value, ms } => {
                self.set(now, (db, *key), value, Some(*ms));
                Expected::Ok
            }
            PlainCommand::Append { key, value } => match self.get((db, *key)).cloned() {
                Some(Value { text: None, .. }) => Expected::Error("WRONGTYPE".into()),
                there => {
                    let mut value_there = there.unwrap_or_else(|| Value::text(b"", None));
                    if let Some(text) = &mut value_there.text {
                        text.extend_from_slice(value.as_bytes());
                    }
                    let bytes = value_there.text.as_ref().map_or(0, Name::len);
                    self.put((db, *key), value_there);
                    Expected::Int(i64::try_from(bytes).unwrap_or(i64::MAX))
                }
            },
            PlainCommand::PExpire { key, ms } => self.expire(now, (db, *key), *ms),
            PlainCommand::Persist(key) => {
                let value = self.server.keys.get_mut(db, KEYS[*key].as_bytes());
                let expired = value.and_then(|value| value.expires_at_ms.take());
                Expected::Int(expired.is_some().into())
            }
            PlainCommand::Rename { from, to } => {
                if from == to && self.get((db, *from)).is_some() {
                    return Expected::Ok;
                }
                let Some(value) = self.remove(now, (db, *from), KeyEvent::Removed) else {
                    return Expected::Error("ERR no such key".into());
                };
                self.replace(now, (db, *to), value);
                Expected::Ok
            }
            PlainCommand::Copy { from, to, replace } => {
                if (db, *from) == *to {
                    return Expected::Error("ERR source and destination".into());
                }
                let Some(value) = self.get((db, *from)).cloned() else { return Expected::Int(0) };
                if !replace && self.get(*to).is_some() {
                    return Expected::Int(0);
                }
                self.replace(now, *to, value);
                Expected::Int(1)
            }
            PlainCommand::Move { key, to_db } => {
                if db == *to_db {
                    return Expected::Error("ERR source and destination".into());
                }
                if self.get((*to_db, *key)).is_some() {
                    return Expected::Int(0);
                }
                let removed = self.remove(now, (db, *key), KeyEvent::Removed);
                let Some(value) = removed else { return Expected::Int(0) };
                self.replace(now, (*to_db, *key), value);
                Expected::Int(1)
            }
            PlainCommand::Restore { key, value, dumped: _, ms, replace } => {
                if !replace && self.get((db, *key)).is_some() {
                    return Expected::Error("BUSYKEY".into());
                }
                let expires_at_ms = (*ms > 0).then(|| now.wall_ms() + ms);
                self.replace(now, (db, *key), Value::text(value.as_bytes(), expires_at_ms));
                Expected::Ok
            }
            PlainCommand::LPush(key) => match self.get((db, *key)) {
                Some(Value { text: Some(_), .. }) => Expected::Error("WRONGTYPE".into()),
                there => {
                    if there.is_none() {
                        self.put((db, *key), Value { text: None, expires_at_ms: None });
                    }
                    Expected::SomeInt
                }
            },
            PlainCommand::Flush { all, .. } => {
                self.server.flush(now, (!all).then_some(db));
                Expected::Ok
            }
            PlainCommand::SwapDb => {
                let all: Vec<_> =
                    places().filter_map(|place| Some((place, self.take(place)?))).collect();
                for ((db, key), value) in all {
                    self.put((1 - db, key), value);
                }
                self.server.node.handle_event(now, &ServerEvent::Swap(0, 1));
                Expected::Ok
            }
        }
    }

    fn set(&mut self, now: Now, place: Place, value: &str, px_ms: Option<u64>) {
        let expires_at_ms = px_ms.map(|ms| now.wall_ms() + ms);
        let new = Value::text(value.as_bytes(), expires_at_ms);
        let old = self.get(place).map(bytes_of);
        self.put(place, new);
        let reported = if self.flavor.reports_removals { old } else { px_ms.map(|_| value.len()) };
        if reported.is_some() {
            self.handle_key_event(now, place, KeyEvent::ExpirySet { value_bytes: reported });
        }
    }

    /// Writes a key as a command does that first removes what is there.
    fn replace(&mut self, now: Now, place: Place, value: Value) {
        if self.flavor.reports_removals {
            self.remove(now, place, KeyEvent::Removed);
            self.put(place, value);
        } else {
            self.put(place, value);
            self.handle_key_event(now, place, KeyEvent::Replaced);
        }
    }

    /// Removes a key for this reason.
    fn remove(&mut self, now: Now, place: Place, event: KeyEvent) -> Option<Value> {
        let removed = self.take(place)?;
        if self.flavor.reports_removals && event != KeyEvent::Removed {
            let value_bytes = Some(bytes_of(&removed));
            self.handle_key_event(now, place, KeyEvent::ExpirySet { value_bytes });
        }
        self.handle_key_event(now, place, event);
        Some(removed)
    }

    fn expire(&mut self, now: Now, place: Place, ms: i64) -> Expected {
        let (db, key) = (place.0, KEYS[place.1].as_bytes());
        let Some(value) = self.server.keys.get_mut(db, key) else { return Expected::Int(0) };
        if let Ok(ms @ 1..) = u64::try_from(ms) {
            value.expires_at_ms = Some(now.wall_ms() + ms);
            let value_bytes = value.text.as_ref().map(Name::len);
            if !self.flavor.reports_removals {
                self.handle_key_event(now, place, KeyEvent::ExpirySet { value_bytes });
            }
        } else {
            let is_expired = self.flavor.reports_removals;
            let event = if is_expired { KeyEvent::Expired } else { KeyEvent::Removed };
            self.remove(now, place, event);
        }
        Expected::Int(1)
    }

    /// Removes a key that has expired, as the server does when it looks the key up.
    fn expire_key(&mut self, now: Now, place: Place) {
        let has_expired = |at: u64| now.wall_ms() > at;
        if self.get(place).is_some_and(|value| value.expires_at_ms.is_some_and(has_expired)) {
            self.remove(now, place, KeyEvent::Expired);
        }
    }

    fn take(&mut self, (db, key): Place) -> Option<Value> {
        self.server.keys.take(db, KEYS[key].as_bytes())
    }

    pub(super) fn put(&mut self, (db, key): Place, value: Value) {
        self.server.keys.insert(db, KEYS[key].as_bytes(), value);
    }

    /// Reports an event to the node. Like the module, omits events that cannot affect the node.
    fn handle_key_event(&mut self, now: Now, (db, key): Place, event: KeyEvent) {
        let (node, key) = (&mut self.server.node, KEYS[key].as_bytes());
        if !node.has_keys()
            || matches!(event, KeyEvent::ExpirySet { .. }) && !node.concerns(db, key)
        {
            return;
        }
        node.handle_event(now, &ServerEvent::Key { db, key: KeyBytes::new(key), event });
    }

    /// Records the time of a change, so that overdue events happen after it.
    fn note_change(&mut self, now: Now) {
        self.last_change = self.last_change.max(now.monotonic);
    }

    pub(super) fn evict(&mut self, now: Now, place: Place) {
        self.note_change(now);
        self.remove(now, place, KeyEvent::Evicted);
    }

    /// Reports that the server empties itself and loads its keys again.
    pub(super) fn reload(&mut self, now: Now) {
        self.note_change(now);
        let events = if self.flavor.flushes_while_loading {
            [ServerEvent::LoadingBegins, ServerEvent::Flush(None)]
        } else {
            [ServerEvent::Flush(None), ServerEvent::LoadingBegins]
        };
        for event in events.into_iter().chain([ServerEvent::LoadingEnds]) {
            self.server.node.handle_event(now, &event);
        }
    }

    pub(super) fn handle_event(&mut self, now: Now, event: &ServerEvent) {
        self.note_change(now);
        self.server.node.handle_event(now, event);
    }

    /// Ends the wait of a client as `CLIENT UNBLOCK` does, and returns the answer to the client.
    pub(super) fn unblock(&mut self, now: Now, blocked_id: BlockedId) -> WaitReply {
        self.note_change(now);
        self.server.node.unblock(blocked_id).reply
    }

    /// Returns the answers to waiters, in the order in which the node woke them.
    pub(super) fn answers(&mut self) -> Vec<(BlockedId, WaitReply)> {
        let woken = std::mem::take(&mut self.server.keys.woken);
        woken
            .into_iter()
            .map(|blocked_id| (blocked_id, self.server.node.answer(blocked_id)))
            .collect()
    }

    /// Returns whether the node has ended a client's wait, and the client has no answer yet.
    pub(super) fn is_woken(&self, blocked_id: BlockedId) -> bool {
        self.server.keys.woken.contains(&blocked_id)
    }

    pub(super) fn forget_wake(&mut self, blocked_id: BlockedId) {
        self.server.keys.woken.retain(|other| *other != blocked_id);
    }

    /// The figures of `INFO lock` that the server must have, too.
    pub(super) fn figures(&self) -> [(&'static str, u64); 9] {
        let (node, stats) = (&self.server.node, self.server.node.stats());
        [
            ("leases", node.leases() as u64),
            ("waiters", node.waiters() as u64),
            ("grants", stats.grants),
            ("refusals", stats.refusals),
            ("abstained", stats.abstained),
            ("extends", stats.extends),
            ("releases", stats.releases),
            ("revoked", stats.revoked),
            ("handovers", stats.handovers),
        ]
    }

    /// The figures about ends and rescues of locks, which only tables compare.
    pub(super) fn figures_of_ends(&self) -> [(&'static str, u64); 4] {
        let stats = self.server.node.stats();
        [
            ("ended_by_deadline", stats.ended_by_deadline),
            ("ended_by_operator", stats.ended_by_operator),
            ("saved_from_eviction", stats.saved_from_eviction),
            ("saved_from_clock_step", stats.saved_from_clock_step),
        ]
    }

    pub(super) fn shown(&self, now: Now) -> String {
        let mut lines = Vec::new();
        let mut copy = self.clone();
        for place in places() {
            let value = self.get(place);
            let text = value.and_then(|value| value.text.as_ref());
            let expires_at_ms = value.and_then(|value| value.expires_at_ms);
            let left_ms = expires_at_ms.map(|at| i128::from(at) - i128::from(now.wall_ms()));
            let inspected = copy.inspect(now, place);
            lines.push(format!(
                "  {} {}: {} {:?}, expires in {left_ms:?} ms; {inspected:?}",
                place.0,
                KEYS[place.1],
                if value.is_some() { "holds" } else { "empty" },
                text.map(|text| text.escape_ascii().to_string()),
            ));
        }
        let node = &self.server.node;
        lines.push(format!(
            "  {} leases, {} waiters, abstains {:?}, {:?}",
            node.leases(),
            node.waiters(),
            node.abstention(now.monotonic),
            node.stats()
        ));
        lines.join("\n")
    }
}

pub(super) fn places() -> impl Iterator<Item = Place> {
    (0..DBS).flat_map(|db| (0..KEYS.len()).map(move |key| (db, key)))
}

/// Returns the first time at which a key with this expiry is gone.
fn gone_at(now: Now, expires_at_ms: u64) -> Monotonic {
    let left_us = ((expires_at_ms + 1) * 1000).saturating_sub(now.wall_us);
    now.monotonic.plus_us(left_us)
}

/// The length of a string; 0 of another value.
fn bytes_of(value: &Value) -> usize {
    value.text.as_ref().map_or(0, Name::len)
}

fn inspect(server: &mut Server, now: Now, (db, key): Place) -> Expected {
    let name = Name::from_slice(KEYS[key].as_bytes());
    let inspect = node::Inspect { db, key: &name };
    inspected((db, key), server.execute(now, &node::Command::Inspect(inspect)))
}

/// Returns the mode of the lock on a key; exclusive if there is no lease.
pub(super) fn mode_of(server: &mut Server, now: Now, place: Place) -> Mode {
    match inspect(server, now, place) {
        Expected::Inspected(_, Inspected { holder: Holder::Lease { mode, .. }, .. }) => mode,
        _ => Mode::Exclusive,
    }
}

fn inspected(place: Place, reply: Result<node::Reply, CommandError>) -> Expected {
    match reply {
        Ok(node::Reply::Inspected(Some(inspected))) => Expected::Inspected(place, inspected),
        other => expected(other),
    }
}

/// Returns the expected form of a reply of the node that names no fence or holder.
fn expected(reply: Result<node::Reply, CommandError>) -> Expected {
    match reply {
        Ok(node::Reply::Waits) => Expected::Blocked,
        Ok(node::Reply::Refused | node::Reply::NotHeld | node::Reply::Inspected(None)) => {
            Expected::Nil
        }
        Ok(node::Reply::Released(yes) | node::Reply::Yielded(yes) | node::Reply::Revoked(yes)) => {
            Expected::Int(yes.into())
        }
        Ok(reply) => unreachable!("{reply:?} names a fence or a holder"),
        Err(error) => Expected::Error(error_start(&error)),
    }
}

pub(super) fn error_start(error: &CommandError) -> String {
    match error {
        CommandError::Abstaining { reason, .. } => format!("ABSTAIN {}", reason.word()),
        CommandError::Held { is_older, .. } => {
            format!("HELD {}", if *is_older { "older" } else { "younger" })
        }
        CommandError::TicketTooFarAhead { .. } => "ERR FENCE is more than twice".into(),
        CommandError::KeyLength => "ERR a key of a lock must be at most".into(),
        CommandError::WrongType => "WRONGTYPE".into(),
        CommandError::OtherKeys => "ERR the token holds these keys".into(),
        CommandError::BadFence(FenceError::Below { .. }) => "BADFENCE FENCE is below".into(),
        CommandError::BadFence(FenceError::TooFarAhead { .. }) => {
            "BADFENCE FENCE is more than".into()
        }
        CommandError::QueueFull { max_waiters } => {
            format!("QUEUEFULL {max_waiters} clients already wait")
        }
        CommandError::AlreadyWaits => "ERR the token already waits".into(),
        CommandError::Revoked { .. } => "REVOKED ".into(),
        CommandError::SeveralShared => "ERR only LOCK.ACQUIRE and LOCK.EXTEND take SHARED".into(),
        CommandError::TokenInUse => "ERR the new token already holds this lock".into(),
        CommandError::NoExpiry => "ERR the key holds a string without an expiry".into(),
        CommandError::NotWritten => "ERR the server refused to write".into(),
    }
}

/// Ignores the number in ABSTAIN and HELD, because the clocks of server and model differ.
pub(super) fn is_error(expected: &str, error: &str) -> bool {
    let Some((code @ ("ABSTAIN" | "HELD"), word)) = expected.split_once(' ') else {
        return error.starts_with(expected);
    };
    let mut words = error.split([' ', ':']);
    words.next() == Some(code) && words.nth(1) == Some(word)
}

/// Returns the expected ABSTAIN of a replica, in the form of [`error_start`].
pub(super) fn replica_abstains() -> String {
    format!("ABSTAIN {}", Reason::Replica.word())
}
