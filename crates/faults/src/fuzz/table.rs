//! Tables of steps: claims about a node that hold on a server in memory and on real ones.
//!
//! A claim is a line of text at the margin; its steps are indented below it. A client has a number.
//!
//! ```text
//! release hands over in order of arrival
//!     1: LOCK.ACQUIRE alpha a 60000               => granted
//!     2: LOCK.ACQUIRE alpha b 60000 WAIT 60000    => waits
//!     1: LOCK.RELEASE alpha a                     => 1; 2 granted
//!     alpha: b
//! ```
//!
//! - `1: COMMAND => REPLY; 2 REPLY`: client 1 is answered, and then client 2, which had waited. All
//!   answers of the step are named, those to waiters in the order of the clients. An error is named
//!   by its beginning.
//! - `1: COMMAND & COMMAND => REPLY & REPLY`: in one turn of the server. `1 MULTI:` and `1 EVAL:`:
//!   in a transaction and in a script.
//! - `FENCE last+5`: relative to the last fence of the first key. `FENCE now+5`: to the wall clock.
//! - `granted` has a larger fence than all earlier grants, `again` the same one as before.
//!   `extended` keeps the fence, `raised` raises it.
//! - `alpha: VALUE`: what the key holds: a string, `none`, a `list`, or the value of a mirror that
//!   no client knows, `unknown`. `expires 500` and `persists` may follow.
//! - `pass 500`: milliseconds. `clock -500`: a step of the wall clock. `disconnect 2`, `evict`,
//!   `reload`, `restart`: what happens to a client or to the server.
//! - `stats: NAME NUMBER`: figures of `INFO lock`. `limits: MAX_TTL_MS MAX_WAITERS`.

use quorlock_core::node::{Holder, Inspected, Mode};

use super::command::{Command, KEYS, KeyIndex, Keys, LockCommand, Place, PlainCommand};
use super::command::{ProposedFence, SetCondition, Step, Wrap};
use super::model::{Expected, Limits, Model};
use super::view::is_drawn;

/// A claim, and the steps that show it.
#[derive(Clone, Debug)]
pub struct Claim {
    pub name: &'static str,
    pub(super) limits: Limits,
    pub(super) lines: Vec<Line>,
}

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) text: &'static str,
    pub(super) event: Event,
    /// The expected answers: of the client that sent the step, and of clients that had waited.
    pub(super) answers: Vec<(usize, &'static str)>,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Commands as text, because a fence may be relative to one of an earlier reply.
    Commands {
        client: usize,
        commands: Vec<(u32, &'static str)>,
        wrap: Wrap,
    },
    Taken(Step),
    Key {
        place: Place,
        holds: &'static str,
    },
    Stats {
        figures: &'static str,
    },
}

/// The number of a client in a table, as the index of its connection.
fn client(number: &str) -> usize {
    let number: usize = number.parse().unwrap_or_else(|_| panic!("{number:?} names no client"));
    number - 1
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

fn key(name: &str) -> KeyIndex {
    KEYS.iter().position(|key| *key == name).unwrap_or_else(|| panic!("{name:?} names no key"))
}

/// A text with the number of its database before it: `[1] LOCK.INSPECT alpha`. Without it, 0.
fn with_db(text: &'static str) -> (u32, &'static str) {
    let with_db = text.strip_prefix('[').and_then(|text| text.split_once("] "));
    with_db.map_or((0, text), |(db, text)| (number(db), text))
}

/// Reads the claims of a table.
///
/// # Panics
/// If the text is no table.
pub fn claims(text: &'static str) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if !line.starts_with(' ') {
            let limits = Limits { max_ttl_ms: 3_600_000, max_waiters: 1000 };
            claims.push(Claim { name: line, limits, lines: Vec::new() });
            continue;
        }
        let claim = claims.last_mut().unwrap_or_else(|| panic!("a step without a claim: {line}"));
        match line.trim().strip_prefix("limits: ").and_then(|limits| limits.split_once(' ')) {
            Some((max_ttl, max_waiters)) => {
                let max_ttl_ms = number(max_ttl);
                claim.limits = Limits { max_ttl_ms, max_waiters: number(max_waiters) };
            }
            None => claim.lines.push(Line::parse(line.trim())),
        }
    }
    claims
}

impl Line {
    fn parse(text: &'static str) -> Self {
        let (step, answers) = text.split_once("=>").unwrap_or((text, ""));
        let event = Event::parse(step.trim());
        let mut expected = Vec::new();
        for (at, answer) in answers.split("; ").map(str::trim).enumerate() {
            match (&event, at) {
                _ if answer.is_empty() => {}
                (Event::Commands { client, .. }, 0) => {
                    expected.extend(answer.split(" & ").map(|answer| (*client, answer.trim())));
                }
                _ => {
                    let (waiter, answer) = answer.split_once(' ').unwrap_or((answer, ""));
                    expected.push((client(waiter), answer));
                }
            }
        }
        Self { text, event, answers: expected }
    }

    /// The number of commands, each of which has an answer.
    pub(super) fn replies(&self) -> usize {
        if let Event::Commands { commands, .. } = &self.event { commands.len() } else { 0 }
    }
}

impl Event {
    fn parse(step: &'static str) -> Self {
        let (head, rest) = step.split_once(": ").unwrap_or(("", step));
        if head.starts_with(|first: char| first.is_ascii_digit()) {
            let commands: Vec<_> = rest.split(" & ").map(|text| with_db(text.trim())).collect();
            let (sender, wrap) = match head.split_once(' ') {
                Some((sender, "MULTI")) => (sender, Wrap::Multi { sleep_ms: 0 }),
                Some((sender, "EVAL")) => (sender, Wrap::Script { busy_ms: 0 }),
                Some(_) => panic!("{head:?} is neither MULTI nor EVAL"),
                None if commands.len() == 1 => (head, Wrap::None),
                None => (head, Wrap::Batch { sleep_ms: 0 }),
            };
            return Self::Commands { client: client(sender), commands, wrap };
        }
        let words: Vec<_> = rest.split_whitespace().collect();
        match (head, &words[..]) {
            ("stats", _) => Self::Stats { figures: rest },
            ("", ["pass", ms]) => Self::Taken(Step::Pass { ms: number(ms) }),
            ("", ["clock", ms]) => Self::Taken(Step::MoveClock { ms: number(ms) }),
            ("", ["disconnect", waiter]) => {
                Self::Taken(Step::Disconnect { client: client(waiter) })
            }
            ("", ["evict"]) => Self::Taken(Step::Evict),
            ("", ["reload"]) => Self::Taken(Step::Reload),
            ("", ["restart"]) => Self::Taken(Step::Restart),
            ("", _) => panic!("{step:?} is no step"),
            _ => {
                let (db, name) = with_db(head);
                Self::Key { place: (db, key(name)), holds: rest }
            }
        }
    }
}

/// The last fences, by which a reply is `granted`, `again`, `extended` or `raised`, and relative
/// proposals are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Fences {
    largest: std::collections::BTreeMap<Place, u64>,
    of_writers: std::collections::BTreeMap<Place, u64>,
    of_tokens: std::collections::BTreeMap<(Place, String), u64>,
}

/// Reads a command. `propose` returns the fence for a text such as `last+5`.
pub(super) fn command(
    text: &'static str,
    db: u32,
    id_of: impl Fn(usize) -> i64,
    propose: impl Fn(&str, Place) -> ProposedFence,
) -> Command {
    let words: Vec<&'static str> = text.split_whitespace().collect();
    let plain = |command| Command::Plain(command);
    match words[..] {
        ["CLIENT", "UNBLOCK", waiter, how] => {
            let client = client(waiter);
            Command::Unblock { client, id: id_of(client), with_error: how == "ERROR" }
        }
        ["CLIENT", "KILL", waiter] => {
            let client = client(waiter);
            Command::Kill { client, id: id_of(client) }
        }
        ["DEL", name] => plain(PlainCommand::Del(key(name))),
        ["UNLINK", name] => plain(PlainCommand::Unlink(key(name))),
        ["GETDEL", name] => plain(PlainCommand::GetDel(key(name))),
        ["APPEND", name, value] => plain(PlainCommand::Append { key: key(name), value }),
        ["PEXPIRE", name, ms] => plain(PlainCommand::PExpire { key: key(name), ms: number(ms) }),
        ["PERSIST", name] => plain(PlainCommand::Persist(key(name))),
        ["RENAME", from, to] => plain(PlainCommand::Rename { from: key(from), to: key(to) }),
        ["COPY", from, to, "REPLACE"] => {
            plain(PlainCommand::Copy { from: key(from), to: (db, key(to)), replace: true })
        }
        ["MOVE", name, to_db] => plain(PlainCommand::Move { key: key(name), to_db: number(to_db) }),
        ["LPUSH", name] => plain(PlainCommand::LPush(key(name))),
        ["FLUSHDB"] => plain(PlainCommand::Flush { all: false, lazily: false }),
        ["FLUSHALL"] => plain(PlainCommand::Flush { all: true, lazily: false }),
        ["SWAPDB"] => plain(PlainCommand::SwapDb),
        ["SET", name, value, ref options @ ..] => {
            let mut set = (None, None);
            let mut options = options.iter();
            while let Some(option) = options.next() {
                match *option {
                    "NX" => set.1 = Some(SetCondition::Missing),
                    "XX" => set.1 = Some(SetCondition::Present),
                    "PX" => set.0 = options.next().map(|ms| number(ms)),
                    other => panic!("{other:?} is no option of SET"),
                }
            }
            let (px_ms, condition) = set;
            plain(PlainCommand::Set { key: key(name), value, px_ms, condition })
        }
        [name, ref arguments @ ..] => {
            let name = name.strip_prefix("LOCK.").unwrap_or_else(|| panic!("{text:?}"));
            Command::Lock(lock_command(name, arguments, db, propose))
        }
        [] => panic!("no command"),
    }
}

fn lock_command(
    name: &str,
    arguments: &[&'static str],
    db: u32,
    propose: impl Fn(&str, Place) -> ProposedFence,
) -> LockCommand {
    if name == "SCAN" {
        return LockCommand::Scan { pattern: arguments.first().copied() };
    }
    let (name, keys, rest) = match name.strip_prefix('M').or_else(|| name.strip_suffix("ANY")) {
        None => (name, Keys::One(key(arguments[0])), &arguments[1..]),
        Some(singular) => {
            let (names, rest) = arguments[1..].split_at(number(arguments[0]));
            let keys = names.iter().map(|name| key(name)).collect();
            let is_any = name.ends_with("ANY");
            (singular, if is_any { Keys::Any(keys) } else { Keys::Counted(keys) }, rest)
        }
    };
    let first = keys.in_node_order()[0];
    match (name, rest) {
        ("INSPECT", []) => LockCommand::Inspect { key: first },
        ("REVOKE", []) => LockCommand::Revoke { key: first, ends_now: false },
        ("REVOKE", ["NOW"]) => LockCommand::Revoke { key: first, ends_now: true },
        ("RELEASE", [token]) => LockCommand::Release { keys, token },
        ("YIELD", [token]) => LockCommand::Yield { keys, token },
        ("ACQUIRE" | "EXTEND", [token, ttl, options @ ..]) => {
            let mut mode = Mode::Exclusive;
            let (mut wait_ms, mut fence, mut owner, mut new_token) = (None, None, None, None);
            let mut options = options.iter();
            while let Some(option) = options.next() {
                if *option == "SHARED" {
                    mode = Mode::Shared;
                    continue;
                }
                let value = *options.next().unwrap_or_else(|| panic!("{option} without a value"));
                match *option {
                    "WAIT" => wait_ms = Some(number(value)),
                    "FENCE" => fence = Some(propose(value, (db, first))),
                    "OWNER" => owner = Some(value),
                    "TOKEN" => new_token = Some(value),
                    other => panic!("{other:?} is no option"),
                }
            }
            let ttl_ms = number(ttl);
            if name == "ACQUIRE" {
                LockCommand::Acquire { keys, token, ttl_ms, mode, wait_ms, fence, owner }
            } else {
                LockCommand::Extend { keys, token, ttl_ms, mode, fence, new_token }
            }
        }
        _ => panic!("LOCK.{name} {rest:?}"),
    }
}

/// A proposal: absolute, relative to the wall clock in milliseconds, or to the key's last fence, in
/// the model and on the server.
pub(super) fn proposal(text: &str, wall_us: u64, last: Option<(u64, u64)>) -> ProposedFence {
    let by = |sign_and_number: &str| number::<i64>(sign_and_number);
    if let Some(ahead) = text.strip_prefix("now") {
        let fence = wall_us.saturating_add_signed(by(ahead) * 1000);
        return ProposedFence { of_server: fence, of_model: fence };
    }
    if let Some(ahead) = text.strip_prefix("last") {
        let (of_model, of_server) = last.unwrap_or_else(|| panic!("no fence before {text:?}"));
        return ProposedFence {
            of_server: of_server.saturating_add_signed(by(ahead)),
            of_model: of_model.saturating_add_signed(by(ahead)),
        };
    }
    ProposedFence { of_server: number(text), of_model: number(text) }
}

impl Fences {
    pub(super) fn last(&self, place: Place) -> Option<u64> {
        self.largest.get(&place).copied()
    }

    /// The word for a fence in a reply to this command.
    fn word(
        &mut self,
        places: &[Place],
        fence: u64,
        mode: Mode,
        command: &Command,
    ) -> &'static str {
        let Command::Lock(command) = command else { panic!("a plain command is granted no fence") };
        let (token, new_token, is_extension) = match command {
            LockCommand::Acquire { token, .. } => (token, None, false),
            LockCommand::Extend { token, new_token, .. } => (token, *new_token, true),
            _ => panic!("only ACQUIRE and EXTEND are answered with fences"),
        };
        let before = self.of_tokens.get(&(places[0], (*token).to_owned())).copied();
        // The fences of shared locks may be equal, but exceed those of earlier exclusive ones.
        let before_it = if mode == Mode::Shared { &mut self.of_writers } else { &mut self.largest };
        let is_largest =
            places.iter().all(|place| before_it.get(place).is_none_or(|largest| *largest < fence));
        for place in places {
            let holder = new_token.unwrap_or(token).to_owned();
            self.of_tokens.insert((*place, holder), fence);
            let largest = self.largest.entry(*place).or_default();
            *largest = (*largest).max(fence);
            if mode == Mode::Exclusive && before != Some(fence) {
                self.of_writers.insert(*place, *largest);
            }
        }
        match (is_extension, before) {
            (false, Some(before)) if before == fence && mode == Mode::Exclusive => "again",
            (false, _) if is_largest => "granted",
            (true, Some(before)) if before == fence => "extended",
            (true, Some(before)) if before < fence => "raised",
            (true, None) if is_largest => "adopted",
            _ => "a fence that is not above the earlier ones",
        }
    }

    /// An answer to this command, as tables write it.
    pub(super) fn shown(&mut self, answer: &Expected, command: &Command) -> String {
        match answer {
            Expected::Blocked => "waits".into(),
            Expected::Nil => "nil".into(),
            Expected::Ok => "OK".into(),
            Expected::Int(int) => int.to_string(),
            Expected::SomeInt => "an integer".into(),
            Expected::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Expected::Error(error) => error.clone(),
            Expected::Fence { places, fence, key, mode, .. } => {
                let word = self.word(places, *fence, *mode, command);
                key.map_or(word.to_owned(), |key| format!("{word} {}", KEYS[key]))
            }
            Expected::Inspected(_, inspected) => shown_fields(inspected),
            Expected::Scanned(locks) if locks.is_empty() => "no lock".into(),
            Expected::Scanned(locks) => {
                locks.iter().map(|((_, key), _)| KEYS[*key]).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

fn label(owner: Option<&[u8]>) -> String {
    owner.map_or("-".into(), |owner| String::from_utf8_lossy(owner).into_owned())
}

fn shown_fields(inspected: &Inspected) -> String {
    let queue: Vec<_> =
        inspected.queue.iter().map(|waiter| label(waiter.owner.as_deref())).collect();
    let of_queue = format!("waiters={} queue={}", inspected.waiters, queue.join(","));
    match &inspected.holder {
        Holder::Foreign { ttl_ms } => {
            let ttl = ttl_ms.map_or("-1".into(), |ms| ms.to_string());
            format!("mode=foreign ttl={ttl} {of_queue}")
        }
        Holder::Lease { owners, holders, ttl_ms, held_ms, mode, keys, revoked, .. } => {
            let owners: Vec<_> = owners.iter().map(|owner| label(owner.as_deref())).collect();
            let mode = if *mode == Mode::Shared { "shared" } else { "exclusive" };
            let (owners, revoked) = (owners.join(","), u8::from(*revoked));
            format!(
                "mode={mode} holders={holders} owner={owners} ttl={ttl_ms} held={held_ms} \
                 keys={keys} revoked={revoked} {of_queue}"
            )
        }
    }
}

/// Returns whether an answer is the one that a table expects. Times may be this much shorter, or
/// for `held` longer.
pub(super) fn is_expected(expected: &str, shown: &str, late_ms: u64) -> bool {
    if !expected.contains('=') {
        let is_error = shown.starts_with(|first: char| first.is_ascii_uppercase());
        return expected == shown
            || is_error && !expected.is_empty() && shown.starts_with(expected);
    }
    let is_near = |field: &str, found: &str| {
        let Some((name @ ("ttl" | "held"), expected)) = field.split_once('=') else { return false };
        let Some(found) = found.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) else {
            return false;
        };
        let (expected, found): (i64, i64) = (number(expected), number(found));
        expected.abs_diff(found) <= late_ms
    };
    expected
        .split(' ')
        .all(|field| shown.split(' ').any(|found| found == field || is_near(field, found)))
}

/// Compares what the model has under a key with what a table says. Returns the difference.
pub(super) fn key_differs(
    model: &Model,
    wall_ms: u64,
    place: Place,
    holds: &str,
    late_ms: u64,
) -> Option<String> {
    let mut words = holds.split(' ');
    let value = model.get(place);
    let text = match value {
        None => "none".into(),
        Some(value) => value
            .text
            .as_ref()
            .map_or("list".into(), |text| String::from_utf8_lossy(text).into_owned()),
    };
    let expires_at_ms = value.and_then(|value| value.expires_at_ms);
    let expected = words.next().unwrap_or_default();
    let is_text = expected == text || expected == "unknown" && is_drawn(text.as_bytes());
    let is_expiry = match (words.next(), words.next()) {
        (None, _) => true,
        (Some("persists"), _) => expires_at_ms.is_none(),
        (Some("expires"), Some(ms)) => {
            let left_ms = expires_at_ms.unwrap_or(u64::MAX).saturating_sub(wall_ms);
            left_ms.abs_diff(number(ms)) <= late_ms + 1
        }
        _ => panic!("{holds:?}"),
    };
    let left_ms = expires_at_ms.map(|at| i128::from(at) - i128::from(wall_ms));
    (!is_text || !is_expiry).then(|| format!("it holds {text}, and expires in {left_ms:?} ms"))
}

/// Compares figures with those of the model. Returns the difference.
pub(super) fn figures_differ(model: &Model, figures: &str) -> Option<String> {
    let known: Vec<_> = model.figures().into_iter().chain(model.figures_of_ends()).collect();
    let words: Vec<_> = figures.split_whitespace().collect();
    words.chunks_exact(2).find_map(|pair| {
        let named = known.iter().find(|(name, _)| *name == pair[0]);
        let (_, found) = *named.unwrap_or_else(|| panic!("{:?} is no figure", pair[0]));
        (found != number::<u64>(pair[1])).then(|| format!("{} is {found}", pair[0]))
    })
}
