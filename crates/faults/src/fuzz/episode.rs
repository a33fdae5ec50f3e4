use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quorlock_core::node::{Monotonic, Now};
use quorlock_testkit::{Inject as _, Server, WallClock};
use rand::RngExt as _;
use rand::rngs::StdRng;
use redis::Value;

use super::command::{Command, LATE_MS, Packet, Step, TOKENS, Wrap, places};
use super::draw;
use super::model::{Answer, CLIENTS, Flavor, Limits, Model};
use super::view::{Expected, Offsets, View, compare};
use super::wire::{Wire, Words, time_us, words};

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

pub(super) fn differ<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Trouble::Difference(what.into()))
}

/// The configuration of the server, and the events that may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) limits: Limits,
    pub(super) append_only: bool,
    pub(super) peer: bool,
    pub(super) clock_steps: bool,
    pub(super) steps: u64,
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
    pub(super) clients: Vec<Wire>,
    pub(super) model: Model,
    pub(super) offsets: Offsets,
    pub(super) wall: WallClock,
    /// The result of DUMP for each of [`TOKENS`].
    dumps: Vec<Vec<u8>>,
    started: Instant,
    /// Largest time by which an event may happen earlier on the server than in the model, in
    /// microseconds: the model executes a packet only when all replies have arrived.
    early_us: u64,
    /// For each expiry in the model, the allowed difference on the server, in milliseconds.
    pub(super) tolerance_ms: BTreeMap<u64, u64>,
    last_steps: VecDeque<String>,
    last_view: View,
}

impl Config {
    pub(super) fn draw(rng: &mut StdRng) -> Self {
        let (short, peer) = (rng.random_bool(0.35), rng.random_bool(0.45));
        Self {
            limits: Limits {
                max_ttl_ms: if short { 1500 } else { 3_600_000 },
                max_waiters: if rng.random_bool(0.2) { 2 } else { 1000 },
            },
            append_only: rng.random_bool(0.5),
            peer,
            clock_steps: !peer && rng.random_bool(0.3),
            steps: rng.random_range(if short { 200..500 } else { 400..2500 }),
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
                .arg("appendfsync", "always")
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
        let _: Value = control.call("SELECT 9")?;
        for token in TOKENS {
            let _: Value = control.call(&format!("SET dumped {token}"))?;
            dumps.push(control.call("DUMP dumped")?);
        }
        let clients = (0..CLIENTS).map(|_| Wire::connect(&server)).collect::<Result<_>>()?;
        let started = Instant::now();
        let model = Model::new(config.limits, flavor, now(started, &wall), false);
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
            dumps,
            started,
            early_us: 0,
            tolerance_ms: BTreeMap::new(),
            last_steps: VecDeque::new(),
            last_view: View::default(),
        })
    }

    /// Takes at most `limit` steps.
    pub(super) fn run(&mut self, limit: u64, mut progress: impl FnMut(u64, String)) -> Outcome {
        for step in 1..=limit.min(self.config.steps) {
            self.wait_for_quiet(GUARD_US)?;
            let drawn = draw::step(self);
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
            Step::Packet(packet) => self.packet(&packet, None),
            Step::Late { before, after } => self.late(&before, after),
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

    /// Waits until no event is due within `for_us`, neither in the model nor on the server.
    pub(super) fn wait_for_quiet(&mut self, for_us: u64) -> Outcome {
        for _ in 0..400 {
            let now = self.now();
            let next = self.model.deadlines(now).into_iter().min();
            let near = now.monotonic.plus_us(for_us + self.early_us);
            let Some(next) = next.filter(|next| *next <= near) else { return Ok(()) };
            self.wait_until(next.plus_us(SLACK_US))?;
        }
        differ("a timed event is always near")
    }

    /// Lets time pass, and compares all state after each timed event.
    fn pass(&mut self, ms: u64) -> Outcome {
        let end = self.now().monotonic.plus_us(ms * 1000);
        loop {
            let now = self.now();
            let next = self.model.deadlines(now).into_iter().filter(|at| *at <= end).min();
            self.wait_until(next.map_or(end, |next| next.plus_us(SLACK_US)))?;
            if self.now().monotonic >= end {
                return Ok(());
            }
        }
    }

    fn wait_until(&mut self, until: Monotonic) -> Outcome {
        thread::sleep(Duration::from_micros(until.us_since(self.now().monotonic)));
        self.note("time passes");
        let late_ms = self.now().monotonic.us_since(until) / 1000;
        self.settle(OWN_WRITE_TOLERANCE_MS + late_ms)
    }

    /// Fails with [`Trouble::Undecided`] if one of these deadlines is not this far ahead.
    pub(super) fn check_none_passed(&self, deadlines: &[Monotonic], ahead_us: u64) -> Outcome {
        let by = self.now().monotonic.plus_us(ahead_us);
        if deadlines.iter().any(|at| *at <= by) { Err(Trouble::Undecided) } else { Ok(()) }
    }

    /// Fails with [`Trouble::Undecided`] if a deadline may have passed, or the step took too long.
    fn check_time(&self, from: Now, deadlines: &[Monotonic], slept_us: u64) -> Outcome {
        self.check_none_passed(deadlines, 2000)?;
        let to = self.now();
        let took_us = to.monotonic.us_since(from.monotonic);
        let is_near = |at: &Monotonic| *at <= to.monotonic.plus_us(5 * GUARD_US);
        let slow =
            took_us > slept_us + SLOW_STEP_US && self.model.deadlines(to).iter().any(is_near);
        let very_slow = took_us > slept_us + 5 * GUARD_US;
        if slow || very_slow { Err(Trouble::Undecided) } else { Ok(()) }
    }

    /// Sends a packet, and compares the replies. The last command may block.
    ///
    /// `late` is a deadline that must pass while the server sleeps in the packet.
    pub(super) fn packet(&mut self, packet: &Packet, late: Option<Now>) -> Outcome {
        let Packet { commands, wrap, busy_ms, .. } = packet;
        if late.is_none() && *busy_ms > 0 {
            self.wait_for_quiet(busy_ms * 1000 + 2 * GUARD_US)?;
        }
        let from = self.now();
        let deadlines = if late.is_some() { Vec::new() } else { self.model.deadlines(from) };
        let replies = self.replies(packet, late)?;
        let now = self.now();
        let elapsed_us = now.monotonic.us_since(from.monotonic);
        let took_ms = elapsed_us / 1000;
        match late {
            None => self.check_time(from, &deadlines, busy_ms * 1000)?,
            Some(_) if took_ms > busy_ms + OWN_WRITE_TOLERANCE_MS / 2 => {
                return Err(Trouble::Undecided);
            }
            Some(_) => {}
        }
        self.early_us = self.early_us.max(elapsed_us.saturating_sub(busy_ms * 1000));
        self.execute_all((now, from), packet, &replies)?;
        if late.is_some() {
            return self.settle(OWN_WRITE_TOLERANCE_MS);
        }
        // The duration of a busy script is unknown. So is the time from which a server counts the
        // expiries of plain commands in EXEC.
        let is_known = match wrap {
            Wrap::Batch => true,
            Wrap::Multi => commands.iter().all(|command| command.lock().is_some()),
            Wrap::Script => false,
        };
        let slept_ms = if is_known { *busy_ms } else { 0 };
        self.settle(took_ms.saturating_sub(slept_ms) + CLOCKS_APART_MS)
    }

    /// Sends a packet, and returns the replies to its commands; `None` for one that blocked.
    fn replies(&mut self, packet: &Packet, late: Option<Now>) -> Outcome<Vec<Option<Value>>> {
        let Packet { client, commands, wrap, busy_ms } = packet;
        let shown: Vec<_> = commands.iter().map(Command::to_string).collect();
        self.note(format!("client {client} {wrap:?} {busy_ms} ms: {}", shown.join("; ")));
        let sent = self.packed(packet);
        let wire = &mut self.clients[*client];
        wire.send(&sent)?;
        let began_us = time_us(wire.receive()?)?;
        if late.is_some_and(|late| began_us + 4000 > late.wall_us) {
            return Err(Trouble::Undecided);
        }
        let mut replies = Vec::new();
        if wrap.is_atomic() {
            for _ in 2..sent.len() {
                wire.receive()?;
            }
            match wire.receive()? {
                Value::Array(mut all) if all.len() >= commands.len() => {
                    replies.extend(all.split_off(all.len() - commands.len()).into_iter().map(Some));
                }
                other => {
                    return differ(format!("EXEC or EVAL was answered {other:?}"));
                }
            }
        } else {
            wire.receive()?;
            for (index, command) in commands.iter().enumerate() {
                let wire = &mut self.clients[*client];
                wire.receive()?;
                replies.push(if index + 1 == commands.len() && command.may_wait() {
                    self.reply_or_blocked(*client)?
                } else {
                    Some(wire.receive()?)
                });
            }
        }
        self.note(format!("  {replies:?}"));
        Ok(replies)
    }

    /// Returns what is sent for a packet. First the server tells its time. For a batch, it then
    /// sleeps, and selects the database of each command.
    fn packed(&self, Packet { commands, wrap, busy_ms, .. }: &Packet) -> Vec<Words> {
        let mut packet = vec![words("TIME")];
        let select = |command: &Command| words(&format!("SELECT {}", command.db));
        let sleep = words(&format!("DEBUG SLEEP 0.{busy_ms:03}"));
        match wrap {
            Wrap::Batch => {
                packet.push(sleep);
                packet.extend(
                    commands.iter().flat_map(|command| [select(command), self.sent(command)]),
                );
            }
            Wrap::Multi => {
                packet.extend([select(&commands[0]), words("MULTI"), sleep]);
                packet.extend(commands.iter().map(|command| self.sent(command)));
                packet.push(words("EXEC"));
            }
            Wrap::Script => {
                let mut eval = vec![b"EVAL".to_vec(), SCRIPT.into()];
                eval.extend(words(&format!("0 {busy_ms}")));
                for command in commands {
                    let words = self.sent(command);
                    eval.push(words.len().to_string().into());
                    eval.extend(words);
                }
                packet.extend([select(&commands[0]), eval]);
            }
        }
        packet
    }

    /// Returns the words of a command that the server receives.
    pub(super) fn sent(&self, command: &Command) -> Words {
        let mut sent = words(&command.text);
        if let ["RESTORE", _, _, value, ..] = command.words()[..] {
            let dumped = TOKENS.iter().zip(&self.dumps).find(|(token, _)| **token == value);
            sent[3].clone_from(dumped.map_or_else(|| panic!("{command}"), |(_, dump)| dump));
        }
        if let Some((client, how)) = command.ended_wait() {
            let at = if how == "KILL" { 3 } else { 2 };
            sent[at] = self.clients[client].id.to_string().into();
        }
        sent
    }

    /// Returns the reply to a command, or `None` if the server lists the client as blocked.
    fn reply_or_blocked(&mut self, client: usize) -> Outcome<Option<Value>> {
        let started = Instant::now();
        loop {
            if let Some(reply) = self.clients[client].try_receive()? {
                return Ok(Some(reply));
            }
            let listed: String =
                self.control.call(&format!("CLIENT LIST ID {}", self.clients[client].id))?;
            if listed.contains(" flags=b") {
                return Ok(None);
            }
            if started.elapsed() > Duration::from_secs(10) {
                return differ(format!("the client has no reply and is not blocked: {listed}"));
            }
        }
    }

    /// Executes in the model what the server has executed between these times, and compares the
    /// replies.
    pub(super) fn execute_all(
        &mut self,
        (now, began): (Now, Now),
        Packet { client, commands, wrap, .. }: &Packet,
        replies: &[Option<Value>],
    ) -> Outcome {
        let began = wrap.is_atomic().then_some(began);
        for (command, reply) in commands.iter().zip(replies) {
            let expected = self.model.execute(now, began, *client, command);
            if let Some((waiter, how)) = command.ended_wait() {
                self.end_wait(now, waiter, how, reply.as_ref())?;
                continue;
            }
            match (reply, &expected) {
                // The answer to a client that waits is compared later. The wait may have ended in
                // the turn in which it began.
                (Some(reply), Expected::Blocked) => self.clients[*client].unread(reply.clone()),
                (None, Expected::Blocked) => {}
                (None, _) => {
                    return differ(format!(
                        "{command}: the client is blocked, the model expects {expected:?}"
                    ));
                }
                (Some(reply), _) => self.check_reply(&command.to_string(), &expected, reply)?,
            }
        }
        Ok(())
    }

    fn check_reply(&mut self, what: &str, expected: &Expected, reply: &Value) -> Outcome {
        compare(expected, reply, &mut self.offsets)
            .map_err(|why| Trouble::Difference(format!("{what}: {why}")))
    }

    /// Ends the wait of a client in the model, as an operator's command with this reply did.
    fn end_wait(&mut self, now: Now, client: usize, how: &str, reply: Option<&Value>) -> Outcome {
        if reply != Some(&Value::Int(1)) {
            // The wait ended earlier in the packet, so the client is not blocked any more.
            if how != "KILL" && self.model.has_ended_wait(client) {
                return Ok(());
            }
            return differ(format!("CLIENT {how} was answered {reply:?}"));
        }
        if let Some(answer) = self.model.end_wait(now, client, how) {
            return self.check_answer(answer);
        }
        if how == "KILL" { self.reconnect(client) } else { Ok(()) }
    }

    pub(super) fn reconnect(&mut self, client: usize) -> Outcome {
        self.clients[client] = Wire::connect(&self.server)?;
        Ok(())
    }

    fn disconnect(&mut self, client: usize) -> Outcome {
        self.note(format!("client {client} disconnects"));
        self.reconnect(client)?;
        self.model.disconnect(self.now(), client);
        self.settle(OWN_WRITE_TOLERANCE_MS)
    }

    /// Takes a [`Step::Late`].
    fn late(&mut self, before: &Packet, after: Packet) -> Outcome {
        self.wait_for_quiet(6 * GUARD_US)?;
        let first = self.now();
        let replies = self.replies(before, None)?;
        let now = self.now();
        if now.monotonic.us_since(first.monotonic) > SLOW_STEP_US {
            return Err(Trouble::Undecided);
        }
        self.execute_all((now, first), before, &replies)?;
        // No `settle` here: it takes time, and the deadline must pass during the next packet.
        self.model.run_until(now);
        let is_idle = |client: &usize| self.model.waiting[*client].is_none();
        let others = (0..CLIENTS).filter(|client| *client != before.client);
        let sender = if before.commands[0].may_wait() {
            others.into_iter().find(is_idle)
        } else {
            Some(before.client)
        };
        let Some(client) = sender else { return self.settle(OWN_WRITE_TOLERANCE_MS) };
        let late = Now {
            monotonic: first.monotonic.plus_us(LATE_MS * 1000),
            wall_us: first.wall_us + LATE_MS * 1000,
        };
        self.packet(&Packet { client, ..after }, Some(late))
    }

    /// Checks that a client receives the answer that the node in the model gives it.
    fn check_answer(&mut self, answer: Answer) -> Outcome {
        let Answer { client, expected, .. } = &answer;
        let (started, mut rounds) = (Instant::now(), 0);
        let reply = loop {
            if let Some(reply) = self.clients[*client].try_receive()? {
                break reply;
            }
            if started.elapsed() > SETTLE_LIMIT && rounds > SETTLE_ROUNDS {
                return differ(format!(
                    "client {client} is not answered, the model expects {expected:?}"
                ));
            }
            let _: Value = self.control.call("PING")?;
            rounds += 1;
            if rounds > 3 {
                thread::sleep(Duration::from_millis(1));
            }
        };
        self.note(format!("  client {client} is answered {reply:?}"));
        self.check_reply(&format!("the answer to client {client}"), expected, &reply)?;
        self.model.answered.push(answer);
        Ok(())
    }

    /// Compares all visible state again and again, until the server and the model agree.
    pub(super) fn settle(&mut self, tolerance_ms: u64) -> Outcome {
        let (started, mut rounds) = (Instant::now(), 0);
        loop {
            let now = self.now();
            self.model.run_until(now);
            for answer in self.model.answers() {
                self.check_answer(answer)?;
            }
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
                return differ(difference);
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
            if self.model.waiting[index].is_some()
                && let Some(reply) = client.try_receive()?
            {
                // The wait may have ended since the model ran.
                let difference =
                    format!("client {index} is answered {reply:?}, and waits in the model");
                client.unread(reply);
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

    pub(super) fn inspect_all(&mut self) -> Outcome {
        self.wait_for_quiet(GUARD_US)?;
        let from = self.now();
        let deadlines = self.model.deadlines(from);
        for (db, key) in places() {
            let inspect = format!("LOCK.INSPECT {key}");
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
        let (now, log) = (self.now(), self.server.log());
        let mut last_logged: Vec<_> = log.lines().rev().take(8).collect();
        last_logged.reverse();
        let last_steps: Vec<_> = self.last_steps.iter().cloned().collect();
        format!(
            "{:?}; the server {}\nThe last steps:\n{}\nThe server:\n{}\nThe model:\n{}\n\
             The end of the server's log:\n{}",
            self.config,
            if self.server.is_running() { "runs" } else { "has ended" },
            last_steps.join("\n"),
            self.last_view.shown(now),
            self.model.shown(now),
            last_logged.join("\n"),
        )
    }
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

fn now(started: Instant, wall: &WallClock) -> Now {
    // The episode starts at this time of the monotonic clock.
    const START_US: u64 = 1_000_000_000;
    let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    Now { monotonic: Monotonic::from_us(START_US + elapsed_us), wall_us: wall.time_us() }
}

fn flavor(control: &mut Wire) -> Result<Flavor> {
    let mut version = |name: &str| -> Result<Option<(u32, u32)>> {
        let version = control.info("server", name)?;
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
