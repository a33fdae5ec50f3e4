//! The node decides as in the module. The model imitates only the server around it: the effect of
//! each plain command on the keys, the events that the server sends for it, and the clients that
//! wait.

use quorlock_core::node::memory_server::{Name, Server, Value};
use quorlock_core::node::{
    self, BlockedId, Holder, KeyBytes, KeyEvent, Listed, Mode, Monotonic, Now, Scanned,
    ServerEvent, Settings, WaitReply, Wants,
};
use quorlock_core::{Fence, Ttl};

use super::command::{Command, LockCommand, Place, key, known_key, number, option, places};
use super::view::{Expected, error_start, fields, shown_value};

pub(super) const CLIENTS: usize = 7;

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

/// An answer to a client, and the command that it answers.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) client: usize,
    pub(super) command: Command,
    pub(super) expected: Expected,
}

/// A client that is blocked.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) command: Command,
    pub(super) places: Vec<Place>,
    until: Monotonic,
    blocked_id: BlockedId,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) server: Server,
    /// The clients by their indices; `None` for a client that does not wait.
    pub(super) waiting: [Option<Waiting>; CLIENTS],
    /// The answers to all clients, in order. The caller may remove them.
    pub(super) answered: Vec<Answer>,
    limits: Limits,
    flavor: Flavor,
    blocked_ids: u64,
    last_change: Monotonic,
}

/// The part of a server's configuration that the node needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_ttl_ms: u64,
    pub(super) max_waiters: usize,
}

/// Number of figures that the server and the model must have in common. The others are about ends
/// and rescues of locks, and only tables compare them.
pub(super) const FIGURES_OF_SERVER: usize = 9;

/// The default of `lock.max-clock-skew`.
pub(super) const MAX_CLOCK_SKEW_MS: u64 = 60_000;

impl Model {
    /// Creates the model of a server that has just started, without keys.
    pub(super) fn new(limits: Limits, flavor: Flavor, now: Now, abstains: bool) -> Self {
        let max_ttl = Ttl::from_ms(limits.max_ttl_ms).unwrap_or_else(|error| panic!("{error}"));
        let settings = Settings {
            max_ttl,
            rejoin_delay_ms: if abstains { limits.max_ttl_ms } else { 0 },
            max_clock_skew_ms: MAX_CLOCK_SKEW_MS,
            max_waiters: limits.max_waiters,
            fence_stripes: 4096,
            table_shards: 4,
            hash_seed: 0,
            defer_wakes: flavor.defers_wakes,
        };
        Self {
            server: Server::new(settings, now),
            waiting: Default::default(),
            answered: Vec::new(),
            limits,
            flavor,
            blocked_ids: 0,
            last_change: now.monotonic,
        }
    }

    /// Replaces the server by one that has just started, with the same configuration.
    pub(super) fn restart(&mut self, now: Now, abstains: bool) {
        *self = Self::new(self.limits, self.flavor, now, abstains);
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
        self.note_change(now);
    }

    /// Returns the times at which keys expire.
    fn expiries(&self, now: Now) -> impl Iterator<Item = Monotonic> {
        let expiries = self.server.keys.iter().filter_map(|(_, _, value)| value.expires_at_ms);
        // A key is gone when the millisecond of its expiry is over.
        let left_us = move |at_ms: u64| ((at_ms + 1) * 1000).saturating_sub(now.wall_us);
        expiries.map(move |at_ms| now.monotonic.plus_us(left_us(at_ms)))
    }

    /// Returns all times from now on at which an event may happen without a command.
    pub(super) fn deadlines(&self, now: Now) -> Vec<Monotonic> {
        let mut all: Vec<_> = self.expiries(now).collect();
        all.extend(self.waiting.iter().flatten().map(|waiting| waiting.until));
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

    /// Executes a command, and returns the expected reply. The client may be blocked, unless the
    /// command is executed in a transaction or a script that began at `began`: there, keys expire
    /// by the wall clock at that time. A command of an operator still has to end the wait.
    pub(super) fn execute(
        &mut self,
        now: Now,
        began: Option<Now>,
        client: usize,
        command: &Command,
    ) -> Expected {
        self.note_change(now);
        let (db, keys_now) = (command.db, Now { monotonic: now.monotonic, ..began.unwrap_or(now) });
        let expected = if command.ended_wait().is_some() {
            Expected::int(1)
        } else if let Some(lock) = command.lock() {
            self.blocked_ids += 1;
            let blocked_id = BlockedId(self.blocked_ids);
            self.server.keys.client = began.is_none().then_some(blocked_id);
            self.server.keys.set_wall_ms(keys_now.wall_ms());
            let expected = self.lock(now, db, &lock);
            self.server.keys.client = None;
            if expected == Expected::Blocked {
                let places = lock.keys.iter().map(|key| (db, *key)).collect();
                let until = now.monotonic.plus_us(lock.wait_ms.unwrap_or_default() * 1000);
                let command = command.clone();
                self.waiting[client] = Some(Waiting { command, places, until, blocked_id });
            }
            expected
        } else {
            self.plain(keys_now, db, &command.words())
        };
        let (command, answer) = (command.clone(), expected.clone());
        self.answered.push(Answer { client, command, expected: answer });
        expected
    }

    fn lock(&mut self, now: Now, db: u32, lock: &LockCommand<'_>) -> Expected {
        // The module parses a request before the node executes it.
        if lock.ttl_ms > self.limits.max_ttl_ms {
            return Expected::error("ERR ttl must be between 1 and");
        }
        let name = |text: &str| Name::from_slice(text.as_bytes());
        let keys = &lock.keys.iter().map(|key| name(key)).collect::<Vec<_>>()[..];
        let (token, new_token) = (&name(lock.token), lock.new_token.map(name));
        let (mode, fence) = (lock.mode, lock.fence);
        let ttl = || {
            let ttl = Ttl::from_ms_up_to(lock.ttl_ms, self.limits.max_ttl_ms);
            ttl.unwrap_or_else(|error| panic!("{error}"))
        };
        let acquire = || {
            let (owner, wait_ms) = (lock.owner.map(str::as_bytes), lock.wait_ms.unwrap_or(0));
            let (ttl, wants) = (ttl(), if lock.is_any { Wants::Any } else { Wants::All });
            node::Acquire { db, keys, wants, token, ttl, mode, owner, fence, wait_ms }
        };
        let pattern = lock.pattern.and_then(|pattern| node::Pattern::new(pattern.as_bytes()));
        let command = match lock.name {
            "ACQUIRE" => node::Command::Acquire(acquire()),
            "EXTEND" => {
                let (ttl, new_token) = (ttl(), new_token.as_ref());
                let extend = node::Extend { db, keys, token, ttl, mode, fence, new_token };
                node::Command::Extend(extend)
            }
            "RELEASE" => node::Command::Release(node::Release { db, keys, token }),
            "YIELD" => node::Command::Yield(node::Release { db, keys, token }),
            "REVOKE" => {
                let (key, ends_now) = (&keys[0], lock.ends_now);
                node::Command::Revoke(node::Revoke { db, key, ends_now })
            }
            "SCAN" => {
                let (pattern, count) = (pattern.as_ref(), node::SCAN_COUNT_MAX);
                node::Command::Scan(node::Scan { db, cursor: 0, pattern, count })
            }
            "INSPECT" => node::Command::Inspect(node::Inspect { db, key: &keys[0] }),
            other => panic!("LOCK.{other} is no command"),
        };
        let reply = self.server.node.execute(now, &command, &mut self.server.keys);
        let granted = |fence: Fence, keys: &[&'static str], key: Option<&str>, mode: Mode| {
            let places = keys.iter().map(|key| (db, *key)).collect();
            let fence = Expected::Fence { places, fence: fence.get(), mode };
            Expected::granted(fence, lock.wait_ms.is_some(), key)
        };
        let first = || (db, lock.keys[0]);
        match reply {
            Ok(node::Reply::Waits) => Expected::Blocked,
            Ok(node::Reply::Granted(fence)) => granted(fence, &lock.keys, None, mode),
            Ok(node::Reply::GrantedOne { fence, key }) => {
                granted(fence, &lock.keys[key..=key], Some(lock.keys[key]), mode)
            }
            Ok(node::Reply::Extended(fence)) => {
                granted(fence, &lock.keys, None, self.mode_of(now, first()))
            }
            Ok(node::Reply::Refused | node::Reply::NotHeld | node::Reply::Inspected(None)) => {
                Expected::NIL
            }
            Ok(
                node::Reply::Released(yes) | node::Reply::Yielded(yes) | node::Reply::Revoked(yes),
            ) => Expected::int(yes),
            Ok(node::Reply::Inspected(Some(inspected))) => {
                Expected::Fields(fields(first(), &inspected))
            }
            Ok(node::Reply::Scanned(scanned)) => {
                let Scanned { cursor, mut locks } = *scanned;
                locks.sort_by(|one, other| one.key.cmp(&other.key));
                let listed = |lock: &Listed| {
                    let fields = fields((db, known_key(&lock.key)?), &lock.inspected);
                    let key = ("key", Expected::text(&lock.key));
                    Some(Expected::Fields([vec![key], fields].concat()))
                };
                let locks = locks.iter().filter_map(listed).collect();
                let cursor = Expected::text(cursor.to_string().as_bytes());
                Expected::Array(vec![cursor, Expected::Set(locks)])
            }
            Err(error) => Expected::Error(error_start(&error)),
        }
    }

    pub(super) fn inspect(&mut self, now: Now, (db, key): Place) -> Expected {
        self.execute(now, None, 0, &Command::new(db, format!("LOCK.INSPECT {key}")))
    }

    /// Returns the mode of the lock on a key; exclusive if there is no lease.
    pub(super) fn mode_of(&self, now: Now, place: Place) -> Mode {
        let (db, key) = (place.0, Name::from_slice(place.1.as_bytes()));
        let inspect = node::Command::Inspect(node::Inspect { db, key: &key });
        match self.server.clone().execute(now, &inspect) {
            Ok(node::Reply::Inspected(Some(inspected))) => match inspected.holder {
                Holder::Lease { mode, .. } => mode,
                Holder::Foreign { .. } => Mode::Exclusive,
            },
            _ => Mode::Exclusive,
        }
    }

    pub(super) fn get(&self, (db, key): Place) -> Option<&Value> {
        self.server.get(db, key.as_bytes())
    }

    /// Executes a command of the server itself.
    fn plain(&mut self, now: Now, db: u32, words: &[&str]) -> Expected {
        for place in keys_looked_up(db, words) {
            self.expire_key(now, place);
            // Without the first key, the server does not look up the second.
            if self.get(place).is_none() {
                break;
            }
        }
        let at = |name: &str| (db, key(name));
        match *words {
            ["DEL" | "UNLINK", name] => {
                Expected::int(self.remove(now, at(name), KeyEvent::Removed).is_some())
            }
            ["GETDEL", name] => match self.get(at(name)).cloned() {
                None => Expected::NIL,
                Some(Value { text: None, .. }) => Expected::error("WRONGTYPE"),
                Some(Value { text: Some(text), .. }) => {
                    self.remove(now, at(name), KeyEvent::Removed);
                    Expected::text(&text)
                }
            },
            ["SET", name, value, ref options @ ..] => {
                let unmet = if self.get(at(name)).is_some() { "NX" } else { "XX" };
                if options.contains(&unmet) {
                    return Expected::NIL;
                }
                self.set(now, at(name), value, option(options, "PX").map(number));
                Expected::OK
            }
            ["PSETEX", name, ms, value] => {
                self.set(now, at(name), value, Some(number(ms)));
                Expected::OK
            }
            ["APPEND", name, value] => {
                let there = self.get(at(name)).cloned();
                let mut longer = there.unwrap_or_else(|| Value::text(b"", None));
                let Some(text) = &mut longer.text else {
                    return Expected::error("WRONGTYPE");
                };
                text.extend_from_slice(value.as_bytes());
                let bytes = bytes_of(&longer);
                self.put(at(name), longer);
                Expected::int(bytes)
            }
            ["PEXPIRE", name, ms] => self.expire(now, at(name), number(ms)),
            ["PERSIST", name] => {
                let value = self.server.keys.get_mut(db, name.as_bytes());
                let expired = value.and_then(|value| value.expires_at_ms.take());
                Expected::int(expired.is_some())
            }
            ["RENAME", from, to] => {
                if from == to && self.get(at(from)).is_some() {
                    return Expected::OK;
                }
                let Some(value) = self.remove(now, at(from), KeyEvent::Removed) else {
                    return Expected::error("ERR no such key");
                };
                self.replace(now, at(to), value);
                Expected::OK
            }
            ["COPY", from, to, "DB", to_db, ref options @ ..] => {
                let replaces = options.contains(&"REPLACE");
                self.transfer(now, (at(from), (number(to_db), key(to))), replaces, true)
            }
            ["MOVE", name, to_db] => {
                self.transfer(now, (at(name), (number(to_db), key(name))), false, false)
            }
            ["RESTORE", name, ms, value, ref options @ ..] => {
                if !options.contains(&"REPLACE") && self.get(at(name)).is_some() {
                    return Expected::error("BUSYKEY");
                }
                let ms: u64 = number(ms);
                let expires_at_ms = (ms > 0).then(|| now.wall_ms() + ms);
                self.replace(now, at(name), Value::text(value.as_bytes(), expires_at_ms));
                Expected::OK
            }
            ["LPUSH", name, _] => {
                let there = self.get(at(name));
                if there.is_some_and(|value| value.text.is_some()) {
                    return Expected::error("WRONGTYPE");
                }
                let expires_at_ms = there.and_then(|value| value.expires_at_ms);
                self.put(at(name), Value { text: None, expires_at_ms });
                Expected::Any
            }
            [flush @ ("FLUSHDB" | "FLUSHALL"), ..] => {
                self.server.flush(now, (flush == "FLUSHDB").then_some(db));
                Expected::OK
            }
            ["SWAPDB", ..] => {
                self.swap(now);
                Expected::OK
            }
            ["MODULE", "UNLOAD", _] if !self.server.node.can_unload(now.monotonic) => {
                Expected::error("ERR Error unloading module")
            }
            // A new value takes effect at the next start.
            ["CONFIG", "SET", "lock.rejoin-delay", _] => Expected::OK,
            ["CONFIG", "SET", "lock.max-ttl", _] => Expected::error("ERR CONFIG SET failed"),
            _ => panic!("{words:?} is no command"),
        }
    }

    /// Swaps the two databases.
    fn swap(&mut self, now: Now) {
        let all: Vec<_> = places().filter_map(|place| Some((place, self.take(place)?))).collect();
        for ((db, key), value) in all {
            self.put((1 - db, key), value);
        }
        self.server.node.handle_event(now, &ServerEvent::Swap(0, 1));
    }

    /// Writes the value of a key under another key, as COPY and MOVE do.
    fn transfer(
        &mut self,
        now: Now,
        (from, to): (Place, Place),
        replaces: bool,
        keeps: bool,
    ) -> Expected {
        if from == to {
            return Expected::error("ERR source and destination");
        }
        let value = self.get(from).filter(|_| replaces || self.get(to).is_none()).cloned();
        let Some(value) = value else { return Expected::int(0) };
        if !keeps {
            self.remove(now, from, KeyEvent::Removed);
        }
        self.replace(now, to, value);
        Expected::int(1)
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
        let value = self.server.keys.get_mut(place.0, place.1.as_bytes());
        let Some(value) = value else { return Expected::int(0) };
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
        Expected::int(1)
    }

    /// Removes a key that has expired, as the server does when it looks the key up.
    fn expire_key(&mut self, now: Now, place: Place) {
        let has_expired = |at: u64| now.wall_ms() > at;
        if self.get(place).is_some_and(|value| value.expires_at_ms.is_some_and(has_expired)) {
            self.remove(now, place, KeyEvent::Expired);
        }
    }

    fn take(&mut self, (db, key): Place) -> Option<Value> {
        self.server.keys.take(db, key.as_bytes())
    }

    pub(super) fn put(&mut self, (db, key): Place, value: Value) {
        self.server.keys.insert(db, key.as_bytes(), value);
    }

    /// Reports an event to the node. Like the module, omits events that cannot affect the node.
    fn handle_key_event(&mut self, now: Now, (db, key): Place, event: KeyEvent) {
        let (node, key) = (&mut self.server.node, key.as_bytes());
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
        let events = if self.flavor.flushes_while_loading {
            [ServerEvent::LoadingBegins, ServerEvent::Flush(None)]
        } else {
            [ServerEvent::Flush(None), ServerEvent::LoadingBegins]
        };
        for event in events.into_iter().chain([ServerEvent::LoadingEnds]) {
            self.handle_event(now, &event);
        }
    }

    pub(super) fn handle_event(&mut self, now: Now, event: &ServerEvent) {
        self.note_change(now);
        self.server.node.handle_event(now, event);
    }

    /// Ends the wait of a client in one of the ways of [`Command::ended_wait`]. Returns the answer
    /// to the client, if it waits and stays connected.
    pub(super) fn end_wait(&mut self, now: Now, client: usize, how: &str) -> Option<Answer> {
        let waiting = self.waiting[client].clone()?;
        let expected = if how == "TIMEOUT" {
            self.note_change(now);
            waiting.expected(self.server.node.unblock(waiting.blocked_id).reply)
        } else {
            self.disconnect(now, client);
            Expected::error("UNBLOCKED")
        };
        self.forget(client);
        let command = waiting.command;
        (how != "KILL").then_some(Answer { client, command, expected })
    }

    /// Removes the wait of a client that has disconnected. Returns whether it waited.
    pub(super) fn disconnect(&mut self, now: Now, client: usize) -> bool {
        let Some(waiting) = self.forget(client) else { return false };
        self.handle_event(now, &ServerEvent::Disconnected(waiting.blocked_id));
        true
    }

    fn forget(&mut self, client: usize) -> Option<Waiting> {
        let waiting = self.waiting[client].take()?;
        self.server.keys.woken.retain(|other| *other != waiting.blocked_id);
        Some(waiting)
    }

    /// Returns the answers to waiters, in the order in which the node woke them.
    pub(super) fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        for blocked_id in std::mem::take(&mut self.server.keys.woken) {
            let reply = self.server.node.answer(blocked_id);
            for (client, waiting) in self.waiting.iter_mut().enumerate() {
                if let Some(woken) = waiting.take_if(|waiting| waiting.blocked_id == blocked_id) {
                    let expected = woken.expected(reply.clone());
                    answers.push(Answer { client, command: woken.command, expected });
                }
            }
        }
        answers
    }

    /// Returns whether the node has ended a client's wait, or the client waits no longer.
    pub(super) fn has_ended_wait(&self, client: usize) -> bool {
        let is_woken = |waiting: &Waiting| self.server.keys.woken.contains(&waiting.blocked_id);
        self.waiting[client].as_ref().is_none_or(is_woken)
    }

    /// Figures of `INFO lock`. The server must have the first [`FIGURES_OF_SERVER`], too.
    pub(super) fn figures(&self) -> [(&'static str, u64); 13] {
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
            ("ended_by_deadline", stats.ended_by_deadline),
            ("ended_by_operator", stats.ended_by_operator),
            ("saved_from_eviction", stats.saved_from_eviction),
            ("saved_from_clock_step", stats.saved_from_clock_step),
        ]
    }

    pub(super) fn shown(&self, now: Now) -> String {
        let mut lines = Vec::new();
        for place in places() {
            let (value, inspected) = (self.get(place), self.clone().inspect(now, place));
            lines.push(format!("  {place:?}: {}; {inspected:?}", shown_value(value, now)));
        }
        for (client, waiting) in self.waiting.iter().enumerate() {
            if let Some(Waiting { command, until, .. }) = waiting {
                let left_ms = until.ms_since(now.monotonic);
                lines.push(format!("  client {client} waits for {left_ms} ms: {command}"));
            }
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

impl Waiting {
    /// Returns the expected answer to the client.
    fn expected(&self, reply: WaitReply) -> Expected {
        match reply {
            WaitReply::Granted { fence, key, .. } => {
                let key = key.and_then(|key| known_key(key.as_bytes()));
                let is_granted = |place: &&Place| key.is_none_or(|key| key == place.1);
                let places = self.places.iter().filter(is_granted).copied().collect();
                let mode = self.command.lock().map_or(Mode::Exclusive, |lock| lock.mode);
                let fence = Expected::Fence { places, fence: fence.get(), mode };
                Expected::granted(fence, true, key)
            }
            WaitReply::Refused => Expected::NIL,
            WaitReply::Failed(error) => Expected::Error(error_start(&error)),
        }
    }
}

/// Returns the keys that the server looks up for a command of its own, in this order. A lookup
/// removes an expired key. The server replaces or flushes some keys without a lookup.
fn keys_looked_up(db: u32, words: &[&str]) -> Vec<Place> {
    let at = |name: &str| (db, key(name));
    match *words {
        ["RENAME", from, to] => vec![at(from), at(to)],
        ["COPY", from, to, "DB", to_db, ..] => vec![at(from), (number(to_db), key(to))],
        ["MOVE", name, to_db] => vec![at(name), (number(to_db), key(name))],
        ["RESTORE", .., "REPLACE"]
        | ["FLUSHDB" | "FLUSHALL" | "SWAPDB" | "CONFIG" | "MODULE", ..] => Vec::new(),
        [_, name, ..] => vec![at(name)],
        _ => panic!("{words:?} is no command"),
    }
}

/// The length of a string; 0 of another value.
fn bytes_of(value: &Value) -> usize {
    value.text.as_ref().map_or(0, Name::len)
}
