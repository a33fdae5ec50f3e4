use std::collections::{BTreeMap, VecDeque};
use std::slice;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use quorlock_core::node::{BlockedId, Mode, Monotonic, Now, ServerEvent, WaitReply};
use quorlock_testkit::{Inject as _, Server, WallClock};
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::command::{Command, KEYS, LATE_MS, LockCommand, Place, Step, TOKENS, Wrap, key_index};
use super::executor::Answer;
use super::model::{Expected, Flavor, Limits, Model, error_start, places};
use super::view::{Offsets, View, compare};
use super::wire::{Reply, Wire, Words, info, time_us, words};

/// Time without timed events after the start of a step, in microseconds.
pub(super) const GUARD_US: u64 = 40_000;
/// Delay after which an event that is due has certainly happened, in microseconds.
const SLACK_US: u64 = 15_000;
/// Longest step while a deadline is near, in microseconds. In a longer one, deadlines may pass in
/// another order than in the model.
const SLOW_STEP_US: u64 = 25_000;
/// Time limit for the server and the model to agree.
const SETTLE_LIMIT: Duration = Duration::from_millis(600);
/// Smallest number of comparisons before the server and the model count as different.
const SETTLE_ROUNDS: u32 = 8;
/// Largest difference of an expiry that the module wrote without a command, in milliseconds.
const OWN_WRITE_TOLERANCE_MS: u64 = 200;

/// Largest difference of a mirror's expiry from the model's, in milliseconds. The module reads its
/// two clocks one after the other, and may be interrupted in between.
const CLOCKS_APART_MS: u64 = 10;

pub(super) const CLIENTS: usize = 7;
/// Number of lines about the last steps that a report shows.
const LAST_STEPS: usize = 30;

/// Why an episode ends early.
pub(super) enum Trouble {
    Difference(String),
    /// The result of a step is not certain: for example, the step took too long.
    Undecided,
    /// The run itself failed: for example, the server does not answer.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

pub(super) type Outcome<T = ()> = std::result::Result<T, Trouble>;

/// The configuration of the server, and the events that may happen.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub(super) struct Config {
    pub(super) limits: Limits,
    pub(super) append_only: bool,
    pub(super) peer: bool,
    /// Whether the server often becomes a replica, and then a master again.
    pub(super) roles: bool,
    pub(super) clock_steps: bool,
    pub(super) steps: u64,
}

pub(super) struct Client {
    pub(super) wire: Wire,
    pub(super) waiting: Option<Waiting>,
}

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// The command that waits.
    pub(super) command: Command,
    pub(super) blocked_id: BlockedId,
    pub(super) places: Vec<Place>,
    pub(super) token: &'static str,
    mode: Mode,
    until: Monotonic,
}

impl Waiting {
    /// The wait of a client that sent this command and is blocked; `None` for other commands.
    pub(super) fn of(command: &Command, db: u32, blocked_id: BlockedId, now: Now) -> Option<Self> {
        let Command::Lock(LockCommand::Acquire {
            keys, token, mode, wait_ms: Some(wait_ms), ..
        }) = command
        else {
            return None;
        };
        let places = keys.in_node_order().into_iter().map(|key| (db, key)).collect();
        let until = now.monotonic.plus_us(wait_ms * 1000);
        Some(Self { command: command.clone(), blocked_id, places, token, mode: *mode, until })
    }

    /// Ends the wait as `CLIENT UNBLOCK` does, and returns the expected answer.
    pub(super) fn unblock(&self, model: &mut Model, now: Now, with_error: bool) -> Expected {
        if with_error {
            self.disconnect(model, now);
            return Expected::Error("UNBLOCKED".into());
        }
        let reply = model.unblock(now, self.blocked_id);
        model.forget_wake(self.blocked_id);
        answer(self, reply)
    }

    pub(super) fn disconnect(&self, model: &mut Model, now: Now) {
        model.handle_event(now, &ServerEvent::Disconnected(self.blocked_id));
        model.forget_wake(self.blocked_id);
    }
}

pub(super) struct Episode {
    pub(super) config: Config,
    pub(super) rng: StdRng,
    pub(super) server: Server,
    /// A second server, which can be a replica or the master of the first.
    pub(super) peer: Option<Server>,
    pub(super) peer_wire: Option<Wire>,
    pub(super) peer_attached: bool,
    /// For an operator's commands and for comparisons.
    pub(super) control: Wire,
    pub(super) clients: Vec<Client>,
    pub(super) model: Model,
    pub(super) offsets: Offsets,
    pub(super) wall: WallClock,
    pub(super) flavor: Flavor,
    /// The result of DUMP for each of [`TOKENS`].
    pub(super) dumps: Vec<Vec<u8>>,
    started: Instant,
    blocked_ids: u64,
    /// Largest time by which an event may happen earlier on the server than in the model, in
    /// microseconds: the model executes a packet only when all replies have arrived.
    early_us: u64,
    /// For each expiry in the model, the allowed difference on the server, in milliseconds.
    tolerance_ms: BTreeMap<u64, u64>,
    last_steps: VecDeque<String>,
    last_view: View,
    /// The answers that the model expected, and the server gave, since the caller took them.
    pub(super) answers: Vec<Answer>,
}

impl Config {
    pub(super) fn draw(rng: &mut StdRng) -> Self {
        let roles = rng.random_bool(0.12);
        let short = roles || rng.random_bool(0.3);
        let peer = roles || rng.random_bool(0.4);
        Self {
            limits: Limits {
                max_ttl_ms: if short { 1500 } else { 3_600_000 },
                max_waiters: if rng.random_bool(0.2) { 2 } else { 1000 },
            },
            append_only: rng.random_bool(if roles { 0.2 } else { 0.5 }),
            peer,
            roles,
            clock_steps: !peer && rng.random_bool(0.3),
            steps: match (roles, short) {
                (true, _) => 90,
                (_, true) => rng.random_range(200..500),
                _ => rng.random_range(400..2500),
            },
        }
    }
}

impl Episode {
    pub(super) fn start(config: Config, rng: StdRng) -> Result<Self> {
        let wall = WallClock::new();
        let builder = || {
            Server::with_module()
                .tcp()
                .wall_clock(&wall)
                .arg("lock.max-ttl", config.limits.max_ttl_ms)
                .arg("lock.max-waiters", config.limits.max_waiters)
                .arg("maxmemory-policy", "allkeys-random")
                .arg("repl-diskless-sync-delay", 0)
                .arg("repl-backlog-size", "1mb")
        };
        let append_only = if config.append_only { "yes" } else { "no" };
        let server = builder().arg("appendonly", append_only).start()?;
        let peer = if config.peer { Some(builder().start()?) } else { None };
        let peer_wire = peer.as_ref().map(Wire::connect).transpose()?;
        let mut control = Wire::connect(&server)?;
        let flavor = flavor(&mut control)?;
        let mut dumps = Vec::new();
        control.call("SELECT 9")?;
        for token in TOKENS {
            control.call(&format!("SET dumped {token}"))?;
            match control.call("DUMP dumped")? {
                Reply::Bulk(dump) => dumps.push(dump),
                other => anyhow::bail!("DUMP was answered {other:?}"),
            }
        }
        let clients = (0..CLIENTS)
            .map(|_| Ok(Client { wire: Wire::connect(&server)?, waiting: None }))
            .collect::<Result<Vec<_>>>()?;
        let started = Instant::now();
        let model = Model::new(config.limits, flavor, now(started, &wall));
        Ok(Self {
            config,
            rng,
            server,
            peer,
            peer_wire,
            peer_attached: false,
            control,
            clients,
            model,
            offsets: Offsets::default(),
            wall,
            flavor,
            dumps,
            started,
            blocked_ids: 0,
            early_us: 0,
            tolerance_ms: BTreeMap::new(),
            last_steps: VecDeque::new(),
            last_view: View::default(),
            answers: Vec::new(),
        })
    }

    /// Takes at most `limit` steps.
    pub(super) fn run(
        &mut self,
        limit: u64,
        draw: impl Fn(&mut Self) -> Step,
        progress: &mut dyn FnMut(u64, &'static str),
    ) -> Outcome {
        for step in 1..=limit.min(self.config.steps) {
            self.wait_for_quiet(GUARD_US)?;
            let drawn = draw(self);
            let kind = drawn.kind();
            self.take(drawn)?;
            if step % 8 == 0 {
                self.inspect_all()?;
            }
            if step % 16 == 0 && self.peer_attached {
                self.compare_with_peer()?;
            }
            progress(step, kind);
        }
        self.finish()
    }

    pub(super) fn take(&mut self, step: Step) -> Outcome {
        match step {
            Step::Packet { client, commands, wrap } => self.packet(client, &commands, wrap, None),
            Step::Late { client, before, after, wrap } => self.late(client, &before, &after, wrap),
            Step::Disconnect { client } => self.disconnect(client),
            Step::Pass { ms } => self.pass(ms),
            accident => self.accident(accident),
        }
    }

    /// Returns the model's monotonic time, and the wall time as the server reads it.
    pub(super) fn now(&self) -> Now {
        now(self.started, &self.wall)
    }

    pub(super) fn note(&mut self, line: impl std::fmt::Display) {
        if self.last_steps.len() == LAST_STEPS {
            self.last_steps.pop_front();
        }
        let at_ms = self.now().monotonic.us() / 1000;
        self.last_steps.push_back(format!("{at_ms:>8} ms  {line}"));
    }

    pub(super) fn deadlines(&self, now: Now) -> Vec<Monotonic> {
        let mut all = self.model.deadlines(now);
        all.extend(self.clients.iter().filter_map(|client| Some(client.waiting.as_ref()?.until)));
        all
    }

    /// Waits until no event is due within `for_us`, neither in the model nor on the server.
    pub(super) fn wait_for_quiet(&mut self, for_us: u64) -> Outcome {
        for _ in 0..400 {
            let now = self.now();
            let next = self.deadlines(now).into_iter().min();
            let near = now.monotonic.plus_us(for_us + self.early_us);
            let Some(next) = next.filter(|next| *next <= near) else { return Ok(()) };
            let until = next.plus_us(SLACK_US);
            thread::sleep(Duration::from_micros(until.us_since(now.monotonic)));
            self.note("time passes");
            let late_ms = self.now().monotonic.us_since(until) / 1000;
            self.settle(OWN_WRITE_TOLERANCE_MS + late_ms)?;
        }
        Err(Trouble::Difference("a timed event is always near".into()))
    }

    /// Lets time pass, and compares all state after each timed event.
    fn pass(&mut self, ms: u64) -> Outcome {
        let end = self.now().monotonic.plus_us(ms * 1000);
        loop {
            let now = self.now();
            let next = self.deadlines(now).into_iter().filter(|at| *at <= end).min();
            let until = next.map_or(end, |next| next.plus_us(SLACK_US));
            thread::sleep(Duration::from_micros(until.us_since(now.monotonic)));
            self.note("time passes");
            let late_ms = self.now().monotonic.us_since(until) / 1000;
            self.settle(OWN_WRITE_TOLERANCE_MS + late_ms)?;
            if self.now().monotonic >= end {
                return Ok(());
            }
        }
    }

    /// Fails with [`Trouble::Undecided`] if a deadline may have passed, or the step took too long.
    fn check_time(&self, from: Now, deadlines: &[Monotonic], slept_us: u64) -> Outcome {
        let to = self.now();
        let took_us = to.monotonic.us_since(from.monotonic);
        let passed = deadlines.iter().any(|at| *at <= to.monotonic.plus_us(2000));
        let is_near = |at: &Monotonic| *at <= to.monotonic.plus_us(5 * GUARD_US);
        let slow = took_us > slept_us + SLOW_STEP_US && self.deadlines(to).iter().any(is_near);
        let very_slow = took_us > slept_us + 5 * GUARD_US;
        if passed || slow || very_slow { Err(Trouble::Undecided) } else { Ok(()) }
    }

    /// Sends commands in one packet, and compares the replies. The last command may block.
    ///
    /// `late` is a deadline that must pass while the server sleeps in the packet.
    pub(super) fn packet(
        &mut self,
        client: usize,
        commands: &[(u32, Command)],
        wrap: Wrap,
        late: Option<Now>,
    ) -> Outcome {
        if late.is_none() && wrap.sleep_ms() > 0 {
            self.wait_for_quiet(wrap.sleep_ms() * 1000 + 2 * GUARD_US)?;
        }
        let from = self.now();
        let deadlines = if late.is_some() { Vec::new() } else { self.deadlines(from) };
        let (sent, layout) = packed(commands, wrap);
        let shown: Vec<_> =
            commands.iter().map(|(db, command)| format!("[{db}] {}", command.shown())).collect();
        self.note(format!("client {client} {wrap:?}: {}", shown.join("; ")));
        self.clients[client].wire.send(&sent)?;
        let replies = self.replies(client, commands, wrap, layout, late)?;
        let now = self.now();
        self.note(format!("  {replies:?}"));
        if late.is_none() {
            self.check_time(from, &deadlines, wrap.sleep_ms() * 1000)?;
        }
        let elapsed_us = now.monotonic.us_since(from.monotonic);
        self.early_us = self.early_us.max(elapsed_us.saturating_sub(wrap.sleep_ms() * 1000));
        let took_ms = elapsed_us / 1000;
        if late.is_some() && took_ms > wrap.sleep_ms() + OWN_WRITE_TOLERANCE_MS / 2 {
            return Err(Trouble::Undecided);
        }
        for ((db, command), reply) in commands.iter().zip(replies) {
            self.execute((now, from), client, *db, command, reply.as_ref(), wrap)?;
        }
        // The duration of a busy script is unknown. So is the time from which a server counts the
        // expiries of plain commands in EXEC.
        let only_locks = commands.iter().all(|(_, command)| matches!(command, Command::Lock(_)));
        let slept_ms = match wrap {
            Wrap::Multi { sleep_ms } if only_locks => sleep_ms,
            Wrap::Batch { sleep_ms } => sleep_ms,
            _ => 0,
        };
        match late {
            Some(_) => self.settle(OWN_WRITE_TOLERANCE_MS),
            None => self.settle(took_ms.saturating_sub(slept_ms) + CLOCKS_APART_MS),
        }
    }

    /// Returns the replies to the commands of a packet; `None` for a command that blocked.
    fn replies(
        &mut self,
        client: usize,
        commands: &[(u32, Command)],
        wrap: Wrap,
        layout: Layout,
        late: Option<Now>,
    ) -> Outcome<Vec<Option<Reply>>> {
        let wire = &mut self.clients[client].wire;
        for before in 0..layout.before {
            let reply = wire.receive()?;
            // The first reply is the time at which the server begins the packet.
            if before == 0
                && let Some(late) = late
                && time_us(&reply).is_none_or(|began_us| began_us + 4000 > late.wall_us)
            {
                return Err(Trouble::Undecided);
            }
        }
        if matches!(wrap, Wrap::Multi { .. } | Wrap::Script { .. }) {
            return match wire.receive()? {
                Reply::Array(replies) if replies.len() == commands.len() + layout.inside => {
                    Ok(replies.into_iter().skip(layout.inside).map(Some).collect())
                }
                other => Err(Trouble::Difference(format!("EXEC or EVAL was answered {other:?}"))),
            };
        }
        let mut replies = Vec::new();
        let mut db = commands.first().map(|(db, _)| *db);
        for (index, (its_db, command)) in commands.iter().enumerate() {
            if db.replace(*its_db) != Some(*its_db) {
                self.clients[client].wire.receive()?;
            }
            if index + 1 == commands.len() && command.may_wait() {
                replies.push(self.reply_or_blocked(client)?);
            } else {
                replies.push(Some(self.clients[client].wire.receive()?));
            }
        }
        Ok(replies)
    }

    /// Returns the reply to a command, or `None` if the server lists the client as blocked.
    fn reply_or_blocked(&mut self, client: usize) -> Outcome<Option<Reply>> {
        let started = Instant::now();
        loop {
            if let Some(reply) = self.clients[client].wire.try_receive()? {
                return Ok(Some(reply));
            }
            let listed =
                self.control.call(&format!("CLIENT LIST ID {}", self.clients[client].wire.id))?;
            if let Reply::Bulk(listed) = &listed
                && String::from_utf8_lossy(listed).contains(" flags=b")
            {
                return Ok(None);
            }
            if started.elapsed() > Duration::from_secs(10) {
                return Err(Trouble::Difference(format!(
                    "the client has no reply and is not blocked: {listed:?}"
                )));
            }
        }
    }

    /// Executes in the model what the server has executed, and compares the replies.
    pub(super) fn execute(
        &mut self,
        (now, began): (Now, Now),
        client: usize,
        db: u32,
        command: &Command,
        reply: Option<&Reply>,
        wrap: Wrap,
    ) -> Outcome {
        match command {
            Command::Unblock { client: waiter, with_error, .. } => {
                self.record(client, command, &Expected::Int(1));
                return self.handle_unblock(now, *waiter, *with_error, reply);
            }
            Command::Kill { client: waiter, .. } => {
                self.record(client, command, &Expected::Int(1));
                return self.handle_kill(now, *waiter, reply);
            }
            _ => {}
        }
        let may_block = !matches!(wrap, Wrap::Multi { .. } | Wrap::Script { .. });
        let began = (!may_block).then_some(began);
        self.blocked_ids += 1;
        let blocked_id = BlockedId(self.blocked_ids);
        let expected = self.model.execute(now, began, db, command, may_block.then_some(blocked_id));
        self.record(client, command, &expected);
        if expected == Expected::Blocked {
            // The wait began and ended in one turn. The answer is compared later.
            if let Some(reply) = reply {
                self.clients[client].wire.unread(reply.clone());
            }
            self.clients[client].waiting = Waiting::of(command, db, blocked_id, now);
            return Ok(());
        }
        match reply {
            None => Err(Trouble::Difference(format!(
                "{}: the client is blocked, the model expects {expected:?}",
                command.shown()
            ))),
            Some(reply) => self.check_reply(&command.shown(), &expected, reply),
        }
    }

    fn record(&mut self, client: usize, command: &Command, expected: &Expected) {
        let (command, expected) = (command.clone(), expected.clone());
        self.answers.push(Answer { client, command, expected });
    }

    fn check_reply(&mut self, what: &str, expected: &Expected, reply: &Reply) -> Outcome {
        compare(expected, reply, &mut self.offsets)
            .map_err(|why| Trouble::Difference(format!("{what}: {why}")))
    }

    fn handle_unblock(
        &mut self,
        now: Now,
        client: usize,
        with_error: bool,
        reply: Option<&Reply>,
    ) -> Outcome {
        let Some(waiting) = self.clients[client].waiting.clone() else { return Ok(()) };
        if reply != Some(&Reply::Int(1)) {
            // The wait ended earlier in the packet, so the client is not blocked any more.
            if self.model.is_woken(waiting.blocked_id) {
                return Ok(());
            }
            return Err(Trouble::Difference(format!("CLIENT UNBLOCK was answered {reply:?}")));
        }
        let expected = waiting.unblock(&mut self.model, now, with_error);
        self.check_answer(client, &expected)
    }

    fn handle_kill(&mut self, now: Now, client: usize, reply: Option<&Reply>) -> Outcome {
        if reply != Some(&Reply::Int(1)) {
            return Err(Trouble::Difference(format!("CLIENT KILL was answered {reply:?}")));
        }
        // The client may have stopped waiting before.
        if let Some(waiting) = self.clients[client].waiting.take() {
            waiting.disconnect(&mut self.model, now);
        }
        self.reconnect(client)
    }

    pub(super) fn reconnect(&mut self, client: usize) -> Outcome {
        self.clients[client] = Client { wire: Wire::connect(&self.server)?, waiting: None };
        Ok(())
    }

    fn disconnect(&mut self, client: usize) -> Outcome {
        self.note(format!("client {client} disconnects"));
        let waiting = self.clients[client].waiting.take();
        self.reconnect(client)?;
        if let Some(Waiting { blocked_id, .. }) = waiting {
            let now = self.now();
            self.model.handle_event(now, &ServerEvent::Disconnected(blocked_id));
        }
        self.settle(OWN_WRITE_TOLERANCE_MS)
    }

    /// Executes a command, and a packet during which the command's deadline passes.
    fn late(
        &mut self,
        client: usize,
        before: &(u32, Command),
        after: &[(u32, Command)],
        wrap: Wrap,
    ) -> Outcome {
        self.wait_for_quiet(6 * GUARD_US)?;
        let waits = before.1.may_wait();
        let first = self.now();
        self.note(format!("client {client}, late: [{}] {}", before.0, before.1.shown()));
        let alone = slice::from_ref(before);
        let (sent, layout) = packed(alone, Wrap::None);
        self.clients[client].wire.send(&sent)?;
        let replies = self.replies(client, alone, Wrap::None, layout, None)?;
        let now = self.now();
        if now.monotonic.us_since(first.monotonic) > SLOW_STEP_US {
            return Err(Trouble::Undecided);
        }
        self.execute((now, first), client, before.0, &before.1, replies[0].as_ref(), Wrap::None)?;
        // No `settle` here: it takes time, and the deadline must pass during the next packet.
        self.model.run_until(now);
        let other = if waits { self.idle_but(client) } else { Some(client) };
        let Some(other) = other else { return self.settle(OWN_WRITE_TOLERANCE_MS) };
        let late = Now {
            monotonic: first.monotonic.plus_us(LATE_MS * 1000),
            wall_us: first.wall_us + LATE_MS * 1000,
        };
        self.packet(other, after, wrap, Some(late))
    }

    pub(super) fn idle_but(&self, client: usize) -> Option<usize> {
        (0..CLIENTS).find(|&other| other != client && self.clients[other].waiting.is_none())
    }

    /// Checks that each client receives the answer that the node in the model gives it.
    fn check_answers(&mut self) -> Outcome {
        for (blocked_id, reply) in self.model.answers() {
            let its = |client: &Client| {
                client.waiting.as_ref().filter(|waiting| waiting.blocked_id == blocked_id).cloned()
            };
            let mut clients = self.clients.iter().enumerate();
            let found = clients.find_map(|(index, client)| Some((index, its(client)?)));
            let Some((client, waiting)) = found else { continue };
            self.check_answer(client, &answer(&waiting, reply))?;
        }
        Ok(())
    }

    fn check_answer(&mut self, client: usize, expected: &Expected) -> Outcome {
        let (started, mut rounds) = (Instant::now(), 0);
        let reply = loop {
            if let Some(reply) = self.clients[client].wire.try_receive()? {
                break reply;
            }
            if started.elapsed() > SETTLE_LIMIT && rounds > SETTLE_ROUNDS {
                return Err(Trouble::Difference(format!(
                    "client {client} is not answered, the model expects {expected:?}"
                )));
            }
            self.control.call("PING")?;
            rounds += 1;
            if rounds > 3 {
                thread::sleep(Duration::from_millis(1));
            }
        };
        self.note(format!("  client {client} is answered {reply:?}"));
        if let Some(waiting) = self.clients[client].waiting.take() {
            self.record(client, &waiting.command, expected);
        }
        self.check_reply(&format!("the answer to client {client}"), expected, &reply)
    }

    /// Compares all visible state again and again, until the server and the model agree.
    pub(super) fn settle(&mut self, tolerance_ms: u64) -> Outcome {
        let (started, mut rounds) = (Instant::now(), 0);
        loop {
            let now = self.now();
            self.model.run_until(now);
            self.check_answers()?;
            let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.note_tolerance(match rounds {
                0 => tolerance_ms,
                _ => OWN_WRITE_TOLERANCE_MS + elapsed_ms,
            });
            let view = self.view()?;
            let tolerance_ms = |expiry| self.tolerance_ms.get(&expiry).copied().unwrap_or(0);
            let difference = view.difference(&self.model, now, tolerance_ms);
            self.last_view = view;
            let difference = match difference {
                None => self.early_answer()?,
                some => some,
            };
            let Some(difference) = difference else {
                let apart_ms = self.last_view.apart_ms(&self.model);
                self.offsets.apart_ms = self.offsets.apart_ms.max(apart_ms);
                return Ok(());
            };
            if started.elapsed() > SETTLE_LIMIT && rounds > SETTLE_ROUNDS {
                return Err(Trouble::Difference(difference));
            }
            rounds += 1;
            if rounds > 2 {
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Returns the difference if the server has answered a client that waits in the model.
    fn early_answer(&mut self) -> Outcome<Option<String>> {
        for (index, client) in self.clients.iter_mut().enumerate() {
            if client.waiting.is_some()
                && let Some(reply) = client.wire.try_receive()?
            {
                // The wait may have ended since the model ran.
                let difference =
                    format!("client {index} is answered {reply:?}, and waits in the model");
                client.wire.unread(reply);
                return Ok(Some(difference));
            }
        }
        Ok(None)
    }

    /// Allows this difference, in milliseconds, for all expiries that are new in the model. An
    /// expiry keeps its tolerance when its key is copied or moved later.
    fn note_tolerance(&mut self, ms: u64) {
        let expiries =
            self.model.server.keys.iter().filter_map(|(_, _, value)| value.expires_at_ms);
        // A mirror may be written again long after its deadline was decided.
        let ms = ms.max(self.offsets.apart_ms + CLOCKS_APART_MS);
        let noted = |expiry| (expiry, self.tolerance_ms.get(&expiry).copied().unwrap_or(ms));
        self.tolerance_ms = expiries.map(noted).collect();
    }

    /// Called after the expiries of all keys were copied from the server.
    pub(super) fn forget_tolerances(&mut self) {
        self.tolerance_ms.clear();
    }

    pub(super) fn inspect_all(&mut self) -> Outcome {
        self.wait_for_quiet(GUARD_US)?;
        let from = self.now();
        let deadlines = self.deadlines(from);
        for (db, key) in places() {
            let inspect = format!("LOCK.INSPECT {}", KEYS[key]);
            let packet = [words(&format!("SELECT {db}")), words(&inspect)];
            let replies = self.control.call_all(&packet)?;
            let now = self.now();
            self.check_time(from, &deadlines, 0)?;
            let expected = self.model.inspect(now, (db, key));
            self.check_reply(&format!("[{db}] {inspect}"), &expected, &replies[1])?;
            // Each command ran in a separate turn.
            self.model.run_until(now);
        }
        self.note("all keys are inspected");
        self.settle(OWN_WRITE_TOLERANCE_MS)
    }

    pub(super) fn describe(&self) -> String {
        let now = self.now();
        let last_steps: Vec<_> = self.last_steps.iter().map(String::as_str).collect();
        let waiting = self.clients.iter().enumerate().filter_map(|(index, client)| {
            let Waiting { places, token, until, .. } = client.waiting.as_ref()?;
            let left_ms = until.ms_since(now.monotonic);
            Some(format!("  client {index} waits for {places:?} with {token}, for {left_ms} ms"))
        });
        format!(
            "{:?}; the server {}\nThe last steps:\n{}\nThe server:\n{}\nThe model:\n{}\n{}\n\
             The end of the server's log:\n{}",
            self.config,
            if self.server.is_running() { "runs" } else { "has ended" },
            last_steps.join("\n"),
            self.last_view.shown(now),
            self.model.shown(now),
            waiting.collect::<Vec<_>>().join("\n"),
            tail(&self.server.log()),
        )
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// Returns the expected answer to a client that waited.
pub(super) fn answer(waiting: &Waiting, reply: WaitReply) -> Expected {
    match reply {
        WaitReply::Granted { fence, key, .. } => {
            let key = key.and_then(|key| key_index(key.as_bytes()));
            let is_granted = |place: &&Place| key.is_none_or(|key| key == place.1);
            let places = waiting.places.iter().filter(is_granted).copied().collect();
            Expected::Fence { places, fence: fence.get(), waits: true, key, mode: waiting.mode }
        }
        WaitReply::Refused => Expected::Nil,
        WaitReply::Failed(error) => Expected::Error(error_start(&error)),
    }
}

/// The numbers of replies before those to the commands.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// In the packet, before the reply to EXEC or EVAL, or else to the first command.
    before: usize,
    /// In EXEC, before the replies to the commands.
    inside: usize,
}

/// A script that first keeps the server busy, and then executes the commands in its arguments. Each
/// command is preceded by the number of its words.
const SCRIPT: &str = "for _ = 1, tonumber(ARGV[1]) * 100000 do end
local replies, at = {}, 2
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    replies[#replies + 1] = redis.pcall(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
end
return replies";

fn packed(commands: &[(u32, Command)], wrap: Wrap) -> (Vec<Words>, Layout) {
    let select = |db: u32| words(&format!("SELECT {db}"));
    let first_db = commands.first().map_or(0, |(db, _)| *db);
    let mut packet = vec![words("TIME"), select(first_db)];
    let mut layout = Layout { before: packet.len(), inside: 0 };
    let sleep_ms = wrap.sleep_ms();
    let sleep = words(&format!("DEBUG SLEEP 0.{sleep_ms:03}"));
    if let Wrap::Script { .. } = wrap {
        let mut eval =
            vec![b"EVAL".to_vec(), SCRIPT.into(), b"0".to_vec(), sleep_ms.to_string().into()];
        for (_, command) in commands {
            let words = command.words();
            eval.push(words.len().to_string().into());
            eval.extend(words);
        }
        packet.push(eval);
        return (packet, layout);
    }
    if let Wrap::Multi { .. } = wrap {
        packet.push(words("MULTI"));
        layout.before += 1 + commands.len();
        if sleep_ms > 0 {
            packet.push(sleep);
            layout.before += 1;
            layout.inside = 1;
        }
        packet.extend(commands.iter().map(|(_, command)| command.words()));
        packet.push(words("EXEC"));
        return (packet, layout);
    }
    if sleep_ms > 0 {
        packet.push(sleep);
        layout.before += 1;
    }
    let mut selected = first_db;
    for (db, command) in commands {
        if *db != selected {
            packet.push(select(*db));
            selected = *db;
        }
        packet.push(command.words());
    }
    (packet, layout)
}

fn now(started: Instant, wall: &WallClock) -> Now {
    // The episode starts at this time of the monotonic clock.
    const START_US: u64 = 1_000_000_000;
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        monotonic: Monotonic::from_us(START_US + us(started.elapsed())),
        wall_us: us(since).saturating_add_signed(wall.ahead_ms() * 1000),
    }
}

fn flavor(control: &mut Wire) -> Result<Flavor> {
    let mut version = |name: &str| -> Result<Option<(u32, u32)>> {
        let version = info(control, "server", name)?;
        let mut parts = version.split('.').map_while(|part| part.parse().ok());
        Ok(parts.next().zip(parts.next()))
    };
    let valkey = version("valkey_version")?;
    let redis = version("redis_version")?.context("INFO names no version")?;
    Ok(Flavor {
        reports_removals: valkey.is_some(),
        flushes_while_loading: valkey.is_some_and(|version| version >= (9, 0)),
        defers_wakes: redis < (7, 2),
    })
}
