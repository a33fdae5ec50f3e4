use quorlock_core::node::{Mode, Now};
use rand::RngExt as _;

use super::command::{
    Command, DBS, KEYS, KeyIndex, Keys, LATE_MS, LockCommand, Meanwhile, PATTERNS, Place,
    PlainCommand, ProposedFence, SetCondition, Step, TOKENS, Wrap,
};
use super::episode::Episode;
use super::model::{MAX_CLOCK_SKEW_MS, mode_of};

/// How long the server sleeps in a packet so that a deadline passes meanwhile, in milliseconds.
const LATE_SLEEP_MS: u64 = 55;

struct Draw<'a> {
    episode: &'a mut Episode,
    now: Now,
    /// The times of all timed events, in microseconds. A new event must not be near any of them.
    taken_us: Vec<u64>,
    /// Whether commands with a near deadline may be drawn.
    allows_near: bool,
}

/// A proposed fence below the wall time at which any wait began, as the fence of a repair can be.
const OLD_FENCE: u64 = 1_000_000;

/// Smallest time between two timed events, in microseconds.
const APART_US: u64 = 80_000;

/// Makes all flushes lazy. Otherwise Redis 8 blocks a client during a flush, and executes the rest
/// of its packet in another turn.
fn flush_lazily(commands: &mut [(u32, Command)]) {
    for (_, command) in commands {
        if let Command::Plain(PlainCommand::Flush { lazily, .. }) = command {
            *lazily = true;
        }
    }
}

pub(super) fn step(episode: &mut Episode) -> Step {
    let now = episode.now();
    let taken_us = episode.deadlines(now).iter().map(|at| at.us()).collect();
    Draw { episode, now, taken_us, allows_near: true }.step()
}

impl Draw<'_> {
    fn chance(&mut self, probability: f64) -> bool {
        self.episode.rng.random_bool(probability)
    }

    fn below(&mut self, end: usize) -> usize {
        self.episode.rng.random_range(0..end)
    }

    fn step(mut self) -> Step {
        let Some(client) = self.idle_client() else { return self.end_wait() };
        let config = self.episode.config;
        if config.roles && self.chance(0.03) {
            return self.change_roles();
        }
        let rare = self.episode.rng.random_range(0..4000);
        match rare {
            0..12 => return Step::Reload,
            12..24 if config.append_only => return Step::LoadAppendOnlyFile,
            24..28 if config.append_only => return Step::RewriteAppendOnlyFile,
            28..30 if !self.episode.peer_attached => return Step::Restart,
            30..42 => return Step::Evict,
            42..70 if config.clock_steps => return self.move_clock(),
            70..84 if config.peer && !self.episode.peer_attached => return Step::AttachPeer,
            84..87 if config.peer && self.episode.peer_attached => return Step::DetachPeer,
            87..97 if config.peer && self.episode.peer_attached => {
                self.allows_near = false;
                return Step::CutLink { client, commands: self.commands(2, false) };
            }
            97..120 if config.peer && config.limits.max_ttl_ms < 10_000 => {
                return self.change_roles();
            }
            120..148 => return self.pause_writes(client),
            148..248 => return self.late(client),
            _ => {}
        }
        match self.episode.rng.random_range(0..100) {
            0..62 => self.any_command(client),
            62..74 => {
                let commands = self.commands(4, true);
                Step::Packet { client, commands, wrap: Wrap::Batch { sleep_ms: 0 } }
            }
            74..82 => {
                let sleep_ms = if self.chance(0.05) { 60 } else { 0 };
                self.allows_near = sleep_ms == 0;
                let commands = self.in_one_db(4);
                Step::Packet { client, commands, wrap: Wrap::Multi { sleep_ms } }
            }
            82..90 => {
                let busy_ms = if self.chance(0.05) { 40 } else { 0 };
                self.allows_near = busy_ms == 0;
                let commands = self.in_one_db(4);
                Step::Packet { client, commands, wrap: Wrap::Script { busy_ms } }
            }
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
                    commands.push((db, self.command(db, false)));
                }
                flush_lazily(&mut commands);
                let end = self.unblock_or_kill();
                commands.extend(end.map(|end| (db, end)));
                Step::Packet { client, commands, wrap: Wrap::Batch { sleep_ms: 0 } }
            }
            (Some(client), None) => Step::Disconnect { client },
            (None, client) => self.any_command(client.unwrap_or(0)),
        }
    }

    fn any_command(&mut self, client: usize) -> Step {
        let db = self.db();
        let command = self.command(db, true);
        Step::Packet { client, commands: vec![(db, command)], wrap: Wrap::None }
    }

    /// Draws a command that ends the wait of a client. Returns `None` if no client waits.
    fn unblock_or_kill(&mut self) -> Option<Command> {
        let client = self.waiting_client()?;
        let id = self.episode.clients[client].wire.id;
        Some(if self.chance(0.4) {
            Command::Kill { client, id }
        } else {
            Command::Unblock { client, id, with_error: self.chance(0.4) }
        })
    }

    fn idle_client(&mut self) -> Option<usize> {
        self.some_client(false)
    }

    fn waiting_client(&mut self) -> Option<usize> {
        self.some_client(true)
    }

    fn some_client(&mut self, waits: bool) -> Option<usize> {
        let clients = &self.episode.clients;
        let found: Vec<_> =
            (0..clients.len()).filter(|&index| clients[index].waiting.is_some() == waits).collect();
        if found.is_empty() { None } else { Some(found[self.below(found.len())]) }
    }

    /// Returns how many more clients may wait, so that two can still send commands.
    fn spare(&self) -> usize {
        let idle = self.episode.clients.iter().filter(|client| client.waiting.is_none()).count();
        idle.saturating_sub(2)
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
        for key in 0..KEYS.len() {
            let db = self.db();
            let (keys, token) = (Keys::One(key), self.token((db, key)));
            let extend = if self.chance(0.5) { self.ttl() } else { None };
            let command = match extend {
                Some(ttl_ms) => LockCommand::Extend {
                    keys,
                    token,
                    ttl_ms,
                    mode: Mode::Exclusive,
                    fence: None,
                    new_token: None,
                },
                None => LockCommand::Release { keys, token },
            };
            commands.push((db, Command::Lock(command)));
        }
        Step::ChangeRoles { unreachable_first, attach_at_once, commands }
    }

    /// Draws a [`Step::Late`].
    fn late(mut self, client: usize) -> Step {
        let (db, key) = self.place();
        let token = self.token((db, key));
        let max_ttl_ms = self.episode.config.limits.max_ttl_ms;
        let before = match self.below(6) {
            0..3 if self.spare() > 0 => acquire(key, token, max_ttl_ms, Some(LATE_MS)),
            3 => Command::Plain(PlainCommand::PExpire { key, ms: LATE_MS.cast_signed() }),
            4 => Command::Plain(PlainCommand::Set {
                key,
                value: token,
                px_ms: Some(LATE_MS),
                condition: None,
            }),
            _ => acquire(key, token, LATE_MS, None),
        };
        self.allows_near = false;
        let mut after = Vec::new();
        if self.chance(0.5) {
            let token = self.token((db, key));
            let keys = Keys::One(key);
            after.push((db, Command::Lock(LockCommand::Release { keys, token })));
        }
        for _ in 0..=self.below(2) {
            after.push((db, self.command(db, false)));
        }
        let wrap = match self.below(3) {
            0 => Wrap::Multi { sleep_ms: LATE_SLEEP_MS },
            _ => Wrap::Batch { sleep_ms: LATE_SLEEP_MS },
        };
        Step::Late { client, before: (db, before), after, wrap }
    }

    fn pause_writes(mut self, client: usize) -> Step {
        self.allows_near = false;
        let mut meanwhile = Vec::new();
        if self.chance(0.6) {
            let end = if self.chance(0.3) {
                self.waiting_client().map(Meanwhile::Disconnect)
            } else {
                self.unblock_or_kill().map(Meanwhile::EndWait)
            };
            meanwhile.extend(end);
        }
        let (db, key) = self.place();
        if self.chance(0.5) {
            let command = self.lock_command(db, false);
            meanwhile.push(Meanwhile::Postponed { client, db, command: Command::Lock(command) });
        } else {
            let waits = self.chance(0.5) && self.spare() > 0;
            let token = self.token((db, key));
            let ttl_ms = if waits { self.episode.config.limits.max_ttl_ms } else { 60 };
            let before = acquire(key, token, ttl_ms, waits.then_some(60));
            meanwhile.insert(0, Meanwhile::TimePasses { client, db, before });
        }
        Step::Pause { meanwhile }
    }

    fn db(&mut self) -> u32 {
        u32::from(self.chance(0.25)) % DBS
    }

    fn key(&mut self) -> KeyIndex {
        self.below(KEYS.len())
    }

    fn place(&mut self) -> Place {
        (self.db(), self.key())
    }

    /// Draws 1 to `most` commands. Only the last may block the client.
    fn commands(&mut self, most: usize, may_wait: bool) -> Vec<(u32, Command)> {
        let count = 1 + self.below(most);
        let mut commands = Vec::new();
        for index in 0..count {
            let db = self.db();
            let may_wait = may_wait && index + 1 == count;
            commands.push((db, self.command(db, may_wait)));
        }
        flush_lazily(&mut commands[..count - 1]);
        commands
    }

    /// Draws 1 to `most` commands for MULTI or a script, where no WAIT blocks.
    fn in_one_db(&mut self, most: usize) -> Vec<(u32, Command)> {
        let db = self.db();
        let count = 1 + self.below(most);
        (0..count)
            .map(|_| {
                let mut command = self.command(db, false);
                if let Command::Lock(LockCommand::Acquire { wait_ms, .. }) = &mut command
                    && self.chance(0.3)
                {
                    *wait_ms = Some(1000);
                }
                (db, command)
            })
            .collect()
    }

    fn command(&mut self, db: u32, may_wait: bool) -> Command {
        if self.chance(0.68) {
            Command::Lock(self.lock_command(db, may_wait))
        } else {
            Command::Plain(self.plain_command(db))
        }
    }

    /// Draws one key, or a list of 1 to 3 keys.
    fn keys(&mut self) -> Keys {
        if self.chance(0.65) {
            return Keys::One(self.key());
        }
        let count = 1 + self.below(3);
        Keys::Counted((0..count).map(|_| self.key()).collect())
    }

    fn lock_command(&mut self, db: u32, may_wait: bool) -> LockCommand {
        let keys = self.keys();
        let place = (db, keys.in_node_order()[0]);
        match self.below(100) {
            0..45 => {
                let token = TOKENS[self.below(TOKENS.len())];
                let wait_ms = if may_wait && self.spare() > 0 && self.chance(0.5) {
                    self.time(0.04, 600_000, 3_000_000)
                } else if may_wait && self.chance(0.05) {
                    Some(0)
                } else {
                    None
                };
                let Some(ttl_ms) = self.ttl() else { return LockCommand::Inspect { key: place.1 } };
                let fence = self.chance(0.15).then(|| self.wall_fence());
                let owner = self.chance(0.3).then(|| ["host:1", "host:22"][self.below(2)]);
                let (keys, mode) = self.with_kind(keys);
                LockCommand::Acquire { keys, token, ttl_ms, mode, wait_ms, fence, owner }
            }
            45..68 => {
                let token = self.token(place);
                let Some(ttl_ms) = self.ttl() else { return LockCommand::Inspect { key: place.1 } };
                let fence =
                    if may_wait && self.chance(0.3) { self.lease_fence(place) } else { None };
                let new_token = self.chance(0.2).then(|| TOKENS[self.below(TOKENS.len())]);
                let mode = if matches!(keys, Keys::One(_)) && self.chance(0.15) {
                    Mode::Shared
                } else {
                    Mode::Exclusive
                };
                LockCommand::Extend { keys, token, ttl_ms, mode, fence, new_token }
            }
            68..85 => LockCommand::Release { keys, token: self.token(place) },
            85..90 => LockCommand::Yield { keys, token: self.token(place) },
            90..94 => LockCommand::Revoke { key: place.1, ends_now: self.chance(0.3) },
            94..97 => LockCommand::Inspect { key: place.1 },
            _ => {
                let pattern = self.chance(0.5).then(|| PATTERNS[self.below(PATTERNS.len())]);
                LockCommand::Scan { pattern }
            }
        }
    }

    /// Draws whether an ACQUIRE shares its lock, or acquires any one of several keys.
    fn with_kind(&mut self, keys: Keys) -> (Keys, Mode) {
        match keys {
            Keys::One(_) if self.chance(0.4) => (keys, Mode::Shared),
            Keys::Counted(keys) if self.chance(0.4) => (Keys::Any(keys), Mode::Exclusive),
            keys => (keys, Mode::Exclusive),
        }
    }

    /// Draws the token under a key, the token of one of its waiters, or any token.
    fn token(&mut self, place: Place) -> &'static str {
        let any = TOKENS[self.below(TOKENS.len())];
        if self.chance(0.1)
            && let Some(waiting) = self.episode.clients.iter().find_map(|client| {
                client.waiting.as_ref().filter(|waiting| waiting.places.contains(&place))
            })
        {
            return waiting.token;
        }
        if self.chance(0.3) {
            return any;
        }
        let value = self.episode.model.get(place).and_then(|value| value.text.clone());
        let same =
            |token: &&&str| value.as_ref().is_some_and(|value| &value[..] == token.as_bytes());
        TOKENS.iter().find(same).copied().unwrap_or(any)
    }

    /// Returns `None` as [`Draw::time`] does.
    fn ttl(&mut self) -> Option<u64> {
        let max_ms = self.episode.config.limits.max_ttl_ms;
        let (near_probability, from_ms) =
            if max_ms > 10_000 { (0.02, 600_000) } else { (0.03, 300) };
        self.time(near_probability, from_ms, max_ms)
    }

    /// Draws an expiry for a plain command, or returns `None` as [`Draw::time`] does.
    fn lifetime(&mut self) -> Option<u64> {
        let max_ms = self.episode.config.limits.max_ttl_ms;
        self.time(0.08, if max_ms > 10_000 { 600_000 } else { 300 }, max_ms)
    }

    /// Draws the time until an event, in milliseconds: from `from_ms` to `to_ms`, or, if
    /// `allows_near` is set, a near time with `near_probability`. Returns `None` if all drawn times
    /// are too close to another event.
    fn time(&mut self, near_probability: f64, from_ms: u64, to_ms: u64) -> Option<u64> {
        let now_us = self.now.monotonic.us();
        for _ in 0..20 {
            let ms = if self.allows_near && self.chance(near_probability) {
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
    fn wall_fence(&mut self) -> ProposedFence {
        let ahead_ms = [10_000, 3 * MAX_CLOCK_SKEW_MS / 2, 10 * MAX_CLOCK_SKEW_MS][self.below(3)];
        let fence = match self.below(10) {
            0 => 0,
            1 | 2 => OLD_FENCE,
            _ => self.now.wall_us + ahead_ms * 1000,
        };
        ProposedFence { of_server: fence, of_model: fence }
    }

    /// Draws a proposed fence near the last fence of a key; `None` for a shared lock, a key without
    /// a fence, or a fence near the upper limit.
    fn lease_fence(&mut self, place: Place) -> Option<ProposedFence> {
        if mode_of(&mut self.episode.model.server.clone(), self.now, place) == Mode::Shared {
            return None;
        }
        let (model, server) = self.episode.offsets.last(place)?;
        let by = [-1000_i64, 0, 1, 1_000_000][self.below(4)];
        let ceiling = self.now.wall_us + MAX_CLOCK_SKEW_MS * 1000;
        let proposed = ProposedFence {
            of_server: server.saturating_add_signed(by),
            of_model: model.saturating_add_signed(by),
        };
        let is_clear = |fence: u64| fence.abs_diff(ceiling) > 5_000_000;
        (is_clear(proposed.of_server) && is_clear(proposed.of_model)).then_some(proposed)
    }

    fn set_condition(&mut self) -> Option<SetCondition> {
        [None, None, Some(SetCondition::Missing), Some(SetCondition::Present)][self.below(4)]
    }

    fn plain_command(&mut self, db: u32) -> PlainCommand {
        let key = self.key();
        let other = self.key();
        let value_at = if self.chance(0.3) {
            let token = self.token((db, key));
            TOKENS.iter().position(|value| *value == token).unwrap_or(0)
        } else {
            self.below(TOKENS.len())
        };
        let value = TOKENS[value_at];
        match self.below(100) {
            0..14 => PlainCommand::Del(key),
            14..18 => PlainCommand::Unlink(key),
            18..21 => PlainCommand::GetDel(key),
            21..30 => {
                let condition = self.set_condition();
                PlainCommand::Set { key, value, px_ms: None, condition }
            }
            30..44 => {
                let condition = self.set_condition();
                match self.lifetime() {
                    Some(ms) => PlainCommand::Set { key, value, px_ms: Some(ms), condition },
                    None => PlainCommand::Del(key),
                }
            }
            44..48 => match self.lifetime() {
                Some(ms) => PlainCommand::PSetEx { key, value, ms },
                None => PlainCommand::Unlink(key),
            },
            48..51 => PlainCommand::Append { key, value },
            51..60 => match self.lifetime() {
                Some(ms) => PlainCommand::PExpire { key, ms: ms.cast_signed() },
                None => PlainCommand::Persist(key),
            },
            60..64 => PlainCommand::PExpire { key, ms: 0 },
            64..68 => PlainCommand::Persist(key),
            68..75 => PlainCommand::Rename { from: key, to: other },
            75..81 => {
                let to = (self.db(), other);
                PlainCommand::Copy { from: key, to, replace: self.chance(0.8) }
            }
            81..86 => PlainCommand::Move { key, to_db: if self.chance(0.9) { 1 - db } else { db } },
            86..92 => {
                let ms = if self.chance(0.3) { Some(0) } else { self.lifetime() };
                let dumped = self.episode.dumps[value_at].clone();
                let replace = self.chance(0.8);
                PlainCommand::Restore { key, value, dumped, ms: ms.unwrap_or(0), replace }
            }
            92..95 => PlainCommand::LPush(key),
            at @ 95..99 => PlainCommand::Flush { all: at >= 97, lazily: self.chance(0.5) },
            // After this command, the node abstains for the largest ttl.
            _ if self.episode.config.limits.max_ttl_ms < 10_000 || self.chance(0.02) => {
                PlainCommand::SwapDb
            }
            _ => PlainCommand::Del(key),
        }
    }
}

fn acquire(key: KeyIndex, token: &'static str, ttl_ms: u64, wait_ms: Option<u64>) -> Command {
    let (keys, mode) = (Keys::One(key), Mode::Exclusive);
    let (fence, owner) = (None, None);
    Command::Lock(LockCommand::Acquire { keys, token, ttl_ms, mode, wait_ms, fence, owner })
}
