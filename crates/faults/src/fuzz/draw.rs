use std::fmt::Display;

use quorlock_core::node::{Mode, Now};
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;

use super::command::{Command, DBS, KEYS, LATE_MS, Packet, Place, Step, TOKENS, Wrap};
use super::episode::Episode;
use super::model::MAX_CLOCK_SKEW_MS;

/// How long the server sleeps in a packet so that a deadline passes meanwhile, in milliseconds.
const LATE_SLEEP_MS: u64 = 55;

/// Probability that an event is drawn to be near, if it may be.
const NEAR: f64 = 0.05;

struct Draw<'a> {
    episode: &'a mut Episode,
    now: Now,
    /// The times of all timed events, in microseconds. A new event must not be near any of them.
    taken_us: Vec<u64>,
    /// Whether commands with a near deadline may be drawn.
    allows_near: bool,
}

/// How often each command is drawn, per mille. A name in braces stands for a word that is drawn.
const LOCK_COMMANDS: [(u32, &str); 16] = [
    (175, "LOCK.ACQUIRE {key} {any token} {ttl}{wait}{fence}{owner}"),
    (117, "LOCK.ACQUIRE {key} {any token} {ttl} SHARED{wait}{fence}{owner}"),
    (95, "LOCK.MACQUIRE {keys} {any token} {ttl}{wait}{fence}{owner}"),
    (63, "LOCK.ACQUIREANY {keys} {any token} {ttl}{wait}{fence}{owner}"),
    (127, "LOCK.EXTEND {key} {token} {ttl}{lease fence}{new token}"),
    (22, "LOCK.EXTEND {key} {token} {ttl} SHARED{lease fence}{new token}"),
    (81, "LOCK.MEXTEND {keys} {token} {ttl}{lease fence}{new token}"),
    (110, "LOCK.RELEASE {key} {token}"),
    (60, "LOCK.MRELEASE {keys} {token}"),
    (32, "LOCK.YIELD {key} {token}"),
    (18, "LOCK.MYIELD {keys} {token}"),
    (28, "LOCK.REVOKE {key}"),
    (12, "LOCK.REVOKE {key} NOW"),
    (30, "LOCK.INSPECT {key}"),
    (15, "LOCK.SCAN 0 COUNT 1000"),
    (15, "LOCK.SCAN 0 MATCH {pattern} COUNT 1000"),
];
const PLAIN_COMMANDS: [(u32, &str); 18] = [
    (140, "DEL {key}"),
    (40, "UNLINK {key}"),
    (30, "GETDEL {key}"),
    (90, "SET {key} {value}{condition}"),
    (140, "SET {key} {value}{condition} PX {ttl}"),
    (40, "PSETEX {key} {ttl} {value}"),
    (30, "APPEND {key} {value}"),
    (90, "PEXPIRE {key} {ttl}"),
    (40, "PEXPIRE {key} 0"),
    (40, "PERSIST {key}"),
    (70, "RENAME {key} {other}"),
    (60, "COPY {key} {other} DB {db}{replace}"),
    (50, "MOVE {key} {other db}"),
    (40, "RESTORE {key} {ttl} {value}{replace}"),
    (20, "RESTORE {key} 0 {value}{replace}"),
    (30, "LPUSH {key} item"),
    (20, "FLUSHALL {how}"),
    (20, "FLUSHDB {how}"),
];

/// A proposed fence below the wall time at which any wait began, as the fence of a repair can be.
const OLD_FENCE: u64 = 1_000_000;

/// Smallest time between two timed events, in microseconds.
const APART_US: u64 = 80_000;

/// Makes all flushes lazy. Otherwise Redis 8 blocks a client during a flush, and executes the rest
/// of its packet in another turn.
fn flush_lazily(commands: &mut [Command]) {
    for command in commands {
        if command.text.starts_with("FLUSH") {
            command.text = command.text.replace(" SYNC", " ASYNC");
        }
    }
}

pub(super) fn step(episode: &mut Episode) -> Step {
    let now = episode.now();
    let taken_us = episode.model.deadlines(now).iter().map(|at| at.us()).collect();
    Draw { episode, now, taken_us, allows_near: true }.step()
}

impl Draw<'_> {
    fn chance(&mut self, probability: f64) -> bool {
        self.episode.rng.random_bool(probability)
    }

    fn below(&mut self, end: usize) -> usize {
        self.episode.rng.random_range(0..end)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn step(mut self) -> Step {
        let Some(client) = self.idle_client() else { return self.end_wait() };
        let config = self.episode.config;
        let rare = self.episode.rng.random_range(0..4000);
        match rare {
            0..12 => return Step::Reload,
            12..24 if config.append_only => return Step::LoadAppendOnlyFile,
            24..28 if config.append_only => return Step::RewriteAppendOnlyFile,
            28..30 if !self.episode.peer_attached => {
                return Step::Restart { keeps_data: true, abstains: false };
            }
            30..42 => return Step::Evict { policy: "allkeys-random" },
            42..70 if config.clock_steps => return self.move_clock(),
            70..84 if config.peer && !self.episode.peer_attached => return Step::AttachPeer,
            84..87 if config.peer && self.episode.peer_attached => return Step::DetachPeer,
            87..97 if config.peer && self.episode.peer_attached => {
                self.allows_near = false;
                return Step::CutLink(Packet::batch(client, self.commands(2, false)));
            }
            97..143 if config.peer && config.limits.max_ttl_ms < 10_000 => {
                return self.change_roles();
            }
            143..171 => return self.pause_writes(client),
            171..271 => return self.late(client),
            _ => {}
        }
        match self.episode.rng.random_range(0..100) {
            0..62 => self.any_command(client),
            62..74 => Step::Packet(Packet::batch(client, self.commands(4, true))),
            74..82 => self.atomic(client, Wrap::Multi, 60),
            82..90 => self.atomic(client, Wrap::Script, 40),
            _ => self.end_wait(),
        }
    }

    /// Draws a step that ends the wait of a client, or any command if no client waits.
    fn end_wait(mut self) -> Step {
        match (self.waiting_client(), self.idle_client()) {
            (Some(client), _) if self.chance(0.3) => Step::Disconnect { client },
            (Some(_), Some(client)) => {
                let db = self.db();
                let mut commands = Vec::new();
                if self.chance(0.4) {
                    self.allows_near = false;
                    commands.push(self.command(db, false));
                }
                flush_lazily(&mut commands);
                commands.extend(self.unblock_or_kill(db));
                Step::Packet(Packet::batch(client, commands))
            }
            (Some(client), None) => Step::Disconnect { client },
            (None, client) => self.any_command(client.unwrap_or(0)),
        }
    }

    fn any_command(&mut self, client: usize) -> Step {
        let db = self.db();
        Step::Packet(Packet::one(client, self.command(db, true)))
    }

    /// Draws a transaction or a script of 1 to 4 commands. Sometimes it takes a long time.
    fn atomic(&mut self, client: usize, wrap: Wrap, long_ms: u64) -> Step {
        let busy_ms = if self.chance(0.05) { long_ms } else { 0 };
        self.allows_near = busy_ms == 0;
        let db = self.db();
        let mut commands = Vec::new();
        for _ in 0..=self.below(4) {
            let mut command = self.command(db, false);
            let acquires = command.lock().is_some_and(|lock| lock.name == "ACQUIRE");
            // No WAIT blocks here.
            if acquires && self.chance(0.3) {
                command.text.push_str(" WAIT 1000");
            }
            commands.push(command);
        }
        Step::Packet(Packet { client, commands, wrap, busy_ms })
    }

    /// Draws a command that ends the wait of a client. Returns `None` if no client waits.
    fn unblock_or_kill(&mut self, db: u32) -> Option<Command> {
        let number = self.waiting_client()? + 1;
        let text = match (self.chance(0.4), self.chance(0.4)) {
            (true, _) => format!("CLIENT KILL ID {number}"),
            (false, true) => format!("CLIENT UNBLOCK {number} ERROR"),
            (false, false) => format!("CLIENT UNBLOCK {number} TIMEOUT"),
        };
        Some(Command::new(db, text))
    }

    fn idle_client(&mut self) -> Option<usize> {
        self.some_client(false)
    }

    fn waiting_client(&mut self) -> Option<usize> {
        self.some_client(true)
    }

    fn some_client(&mut self, waits: bool) -> Option<usize> {
        let waiting = &self.episode.model.waiting;
        let found: Vec<_> =
            (0..waiting.len()).filter(|&index| waiting[index].is_some() == waits).collect();
        if found.is_empty() { None } else { Some(found[self.below(found.len())]) }
    }

    /// Returns how many more clients may wait, so that two can still send commands.
    fn spare(&self) -> usize {
        let waiting = self.episode.model.waiting.iter();
        waiting.filter(|waiting| waiting.is_none()).count().saturating_sub(2)
    }

    fn move_clock(self) -> Step {
        let rng = &mut self.episode.rng;
        let ms = match rng.random_range(0..4) {
            0 => rng.random_range(50..2000),
            1 => rng.random_range(2000..100_000),
            2 => rng.random_range(3_600_000..8_000_000),
            _ => 100_000,
        };
        Step::MoveClock { ms: if rng.random_bool(0.5) { ms } else { -ms } }
    }

    fn change_roles(mut self) -> Step {
        self.allows_near = false;
        let (unreachable_first, attach_at_once) = (self.chance(0.5), self.chance(0.6));
        let mut commands = Vec::new();
        // The node abstains, but holders can still extend and release the locks that it inherited.
        for key in KEYS {
            let db = self.db();
            let token = self.token((db, key));
            let extend = if self.chance(0.5) { self.lifetime() } else { None };
            commands.push(Command::new(
                db,
                match extend {
                    Some(ttl_ms) => format!("LOCK.EXTEND {key} {token} {ttl_ms}"),
                    None => format!("LOCK.RELEASE {key} {token}"),
                },
            ));
        }
        Step::ChangeRoles { unreachable_first, attach_at_once, packet: Packet::batch(0, commands) }
    }

    /// Draws a [`Step::Late`].
    fn late(mut self, client: usize) -> Step {
        let (db, key) = self.place();
        let token = self.token((db, key));
        let max_ttl_ms = self.episode.config.limits.max_ttl_ms;
        let before = match self.below(6) {
            0..3 if self.spare() > 0 => {
                format!("LOCK.ACQUIRE {key} {token} {max_ttl_ms} WAIT {LATE_MS}")
            }
            3 => format!("PEXPIRE {key} {LATE_MS}"),
            4 => format!("SET {key} {token} PX {LATE_MS}"),
            _ => format!("LOCK.ACQUIRE {key} {token} {LATE_MS}"),
        };
        self.allows_near = false;
        let mut commands = Vec::new();
        if self.chance(0.5) {
            let token = self.token((db, key));
            commands.push(Command::new(db, format!("LOCK.RELEASE {key} {token}")));
        }
        for _ in 0..=self.below(2) {
            commands.push(self.command(db, false));
        }
        let wrap = if self.below(3) == 0 { Wrap::Multi } else { Wrap::Batch };
        let after = Packet { client, commands, wrap, busy_ms: LATE_SLEEP_MS };
        Step::Late { before: Packet::one(client, Command::new(db, before)), after }
    }

    fn pause_writes(mut self, client: usize) -> Step {
        self.allows_near = false;
        let (mut before, mut ends_wait, mut disconnects, mut postponed) = (None, None, None, None);
        if self.chance(0.6) {
            if self.chance(0.3) {
                disconnects = self.waiting_client();
            } else {
                ends_wait = self.unblock_or_kill(0);
            }
        }
        let (db, key) = self.place();
        if self.chance(0.5) {
            postponed = Some(Packet::one(client, self.lock_command(db, false)));
        } else {
            let waits = self.chance(0.5) && self.spare() > 0;
            let (token, max_ttl_ms) =
                (self.token((db, key)), self.episode.config.limits.max_ttl_ms);
            let end = if waits { format!("{max_ttl_ms} WAIT 60") } else { "60".into() };
            let acquire = format!("LOCK.ACQUIRE {key} {token} {end}");
            before = Some(Packet::one(client, Command::new(db, acquire)));
        }
        Step::Pause { before, ends_wait, disconnects, postponed }
    }

    fn db(&mut self) -> u32 {
        u32::from(self.chance(0.25)) % DBS
    }

    fn place(&mut self) -> Place {
        (self.db(), self.one_of(&KEYS))
    }

    /// Draws 1 to `most` commands. Only the last may block the client.
    fn commands(&mut self, most: usize, may_wait: bool) -> Vec<Command> {
        let count = 1 + self.below(most);
        let mut commands = Vec::new();
        for index in 0..count {
            let db = self.db();
            commands.push(self.command(db, may_wait && index + 1 == count));
        }
        flush_lazily(&mut commands[..count - 1]);
        commands
    }

    fn command(&mut self, db: u32, may_wait: bool) -> Command {
        if self.chance(0.68) { self.lock_command(db, may_wait) } else { self.plain_command(db) }
    }

    fn lock_command(&mut self, db: u32, may_wait: bool) -> Command {
        self.drawn_from(&LOCK_COMMANDS, db, may_wait)
    }

    fn plain_command(&mut self, db: u32) -> Command {
        // After this command, the node abstains for the largest ttl.
        let may_swap = self.episode.config.limits.max_ttl_ms < 10_000 || self.chance(0.02);
        if may_swap && self.chance(0.01) {
            return Command::new(db, "SWAPDB 0 1");
        }
        self.drawn_from(&PLAIN_COMMANDS, db, false)
    }

    fn drawn_from(&mut self, table: &[(u32, &str)], db: u32, may_wait: bool) -> Command {
        let drawn = table.choose_weighted(&mut self.episode.rng, |(weight, _)| *weight);
        let (_, template) = drawn.expect("a table has weights");
        // Without a time for the command, none that needs one is drawn.
        let filled = self.filled(template, db, may_wait);
        filled.unwrap_or_else(|| Command::new(db, format!("LOCK.INSPECT {}", self.one_of(&KEYS))))
    }

    /// Draws a word for each name in braces. Returns `None` as [`Draw::time`] does.
    fn filled(&mut self, template: &str, db: u32, may_wait: bool) -> Option<Command> {
        // The first key in the order of the node.
        let mut place = (db, KEYS[0]);
        let mut text = String::new();
        for part in template.split('{') {
            let (name, after) = part.split_once('}').unwrap_or(("", part));
            let word: String = match name {
                "key" => {
                    place.1 = self.one_of(&KEYS);
                    place.1.into()
                }
                "keys" => {
                    let keys: Vec<_> = (0..=self.below(3)).map(|_| self.one_of(&KEYS)).collect();
                    place.1 = keys.iter().min().copied()?;
                    format!("{} {}", keys.len(), keys.join(" "))
                }
                "other" => self.one_of(&KEYS).into(),
                "token" => self.token(place).into(),
                "value" if self.chance(0.3) => self.token(place).into(),
                "any token" | "value" => self.one_of(&TOKENS).into(),
                "ttl" => self.lifetime()?.to_string(),
                "wait" if may_wait && self.spare() > 0 && self.chance(0.5) => {
                    option("WAIT", self.time(600_000, 3_000_000))
                }
                "wait" if may_wait && self.chance(0.05) => " WAIT 0".into(),
                "fence" if self.chance(0.15) => option("FENCE", Some(self.wall_fence())),
                "lease fence" if may_wait && self.chance(0.3) => {
                    option("FENCE", self.lease_fence(place))
                }
                "owner" if self.chance(0.3) => {
                    self.one_of(&[" OWNER host:1", " OWNER host:22"]).into()
                }
                "new token" if self.chance(0.2) => option("TOKEN", Some(self.one_of(&TOKENS))),
                "" | "wait" | "fence" | "lease fence" | "owner" | "new token" => String::new(),
                "pattern" => self.one_of(&["*a", "[b-d]*", "*-with-a-*", "gamm?"]).into(),
                "condition" => self.one_of(&["", "", " NX", " XX"]).into(),
                "replace" => {
                    self.one_of(&["", " REPLACE", " REPLACE", " REPLACE", " REPLACE"]).into()
                }
                "how" => self.one_of(&["SYNC", "ASYNC"]).into(),
                "db" => self.db().to_string(),
                "other db" => (if self.chance(0.9) { 1 - db } else { db }).to_string(),
                other => panic!("{other:?} is no name of a word"),
            };
            text.push_str(&word);
            text.push_str(after);
        }
        let mut command = Command::new(db, text);
        command.propose(self.now.wall_us, |place| self.episode.offsets.last(place));
        Some(command)
    }

    /// Draws the token under a key, the token of one of its waiters, or any token.
    fn token(&mut self, place: Place) -> &'static str {
        let any = self.one_of(&TOKENS);
        let known = if self.chance(0.1) {
            let mut waiting = self.episode.model.waiting.iter().flatten();
            let waiting = waiting.find(|waiting| waiting.places.contains(&place));
            waiting.and_then(|waiting| Some(waiting.command.lock()?.token.as_bytes().to_vec()))
        } else {
            None
        };
        if known.is_none() && self.chance(0.3) {
            return any;
        }
        let value = || Some(self.episode.model.get(place)?.text.as_ref()?.to_vec());
        let known = known.or_else(value).unwrap_or_default();
        TOKENS.into_iter().find(|token| known == token.as_bytes()).unwrap_or(any)
    }

    /// Draws the lifetime of a key as [`Draw::time`] does.
    fn lifetime(&mut self) -> Option<u64> {
        let max_ms = self.episode.config.limits.max_ttl_ms;
        self.time(if max_ms > 10_000 { 600_000 } else { 300 }, max_ms)
    }

    /// Draws the time until an event, in milliseconds: from `from_ms` to `to_ms`, or, if
    /// `allows_near` is set, a near time with a probability of [`NEAR`]. Returns `None` if all
    /// drawn times are too close to another event.
    fn time(&mut self, from_ms: u64, to_ms: u64) -> Option<u64> {
        let now_us = self.now.monotonic.us();
        for _ in 0..20 {
            let ms = if self.allows_near && self.chance(NEAR) {
                self.episode.rng.random_range(60..120)
            } else {
                self.episode.rng.random_range(from_ms..=to_ms.max(from_ms))
            };
            let at_us = now_us + ms * 1000;
            if self.taken_us.iter().all(|taken| taken.abs_diff(at_us) > APART_US) {
                self.taken_us.push(at_us);
                return Some(ms);
            }
        }
        None
    }

    /// Draws a fence, the same for the server and the model: old, or ahead of the wall clock.
    fn wall_fence(&mut self) -> String {
        let skew_ms = MAX_CLOCK_SKEW_MS;
        let ahead_ms = self.one_of(&[10_000, 3 * skew_ms / 2, 10 * skew_ms]);
        match self.below(10) {
            0 => "0".into(),
            1 | 2 => OLD_FENCE.to_string(),
            _ => format!("now+{ahead_ms}"),
        }
    }

    /// Draws a proposed fence near the last fence of a key; `None` for a shared lock, a key without
    /// a fence, or a fence near the upper limit.
    fn lease_fence(&mut self, place: Place) -> Option<String> {
        if self.episode.model.mode_of(self.now, place) == Mode::Shared {
            return None;
        }
        let (model, server) = self.episode.offsets.last(place)?;
        let by: i64 = self.one_of(&[-1000, 0, 1, 1_000_000]);
        let ceiling = self.now.wall_us + MAX_CLOCK_SKEW_MS * 1000;
        let is_clear = |fence: u64| fence.saturating_add_signed(by).abs_diff(ceiling) > 5_000_000;
        (is_clear(model) && is_clear(server)).then(|| format!("last{by:+}"))
    }
}

/// Returns an option of a command, after the words before it.
fn option(name: &str, value: Option<impl Display>) -> String {
    value.map_or(String::new(), |value| format!(" {name} {value}"))
}
