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

use std::collections::BTreeMap;

use quorlock_core::node::{Inspected, Mode};
use redis::Value;

use super::command::{Command, Packet, Place, Step, Wrap, client, key, number};
use super::model::{Answer, Expected, Limits, Model};
use super::view::{fields, is_drawn};

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
    Taken(Step),
    Key { place: Place, holds: &'static str },
    Stats { figures: &'static str },
}

/// A text with the number of its database before it: `[1] LOCK.INSPECT alpha`. Without it, 0.
fn with_db(text: &str) -> (u32, &str) {
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
                (Event::Taken(Step::Packet(Packet { client, .. })), 0) => {
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
        match &self.event {
            Event::Taken(Step::Packet(packet)) => packet.commands.len(),
            _ => 0,
        }
    }
}

impl Event {
    fn parse(step: &'static str) -> Self {
        let (head, rest) = step.split_once(": ").unwrap_or(("", step));
        if head.starts_with(|first: char| first.is_ascii_digit()) {
            let (sender, wrap) = match head.split_once(' ') {
                Some((sender, "MULTI")) => (sender, Wrap::Multi),
                Some((sender, "EVAL")) => (sender, Wrap::Script),
                Some(_) => panic!("{head:?} is neither MULTI nor EVAL"),
                None => (head, Wrap::Batch),
            };
            let commands = rest.split(" & ").map(|text| {
                let (db, text) = with_db(text.trim());
                Command::new(db, text)
            });
            let packet = Packet::batch(client(sender), commands.collect());
            return Self::Taken(Step::Packet(Packet { wrap, ..packet }));
        }
        let words: Vec<_> = rest.split_whitespace().collect();
        Self::Taken(match (head, &words[..]) {
            ("stats", _) => return Self::Stats { figures: rest },
            ("", ["pass", ms]) => Step::Pass { ms: number(ms) },
            ("", ["clock", ms]) => Step::MoveClock { ms: number(ms) },
            ("", ["disconnect", waiter]) => Step::Disconnect { client: client(waiter) },
            ("", ["evict"]) => Step::Evict,
            ("", ["reload"]) => Step::Reload,
            ("", ["restart"]) => Step::Restart,
            ("", _) => panic!("{step:?} is no step"),
            _ => {
                let (db, name) = with_db(head);
                return Self::Key { place: (db, key(name)), holds: rest };
            }
        })
    }
}

/// The last fences, by which a reply is `granted`, `again`, `extended` or `raised`.
#[derive(Clone, Debug, Default)]
pub(super) struct Fences {
    largest: BTreeMap<Place, u64>,
    of_writers: BTreeMap<Place, u64>,
    of_tokens: BTreeMap<(Place, String), u64>,
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
        let lock = command.lock().unwrap_or_else(|| panic!("{command} is granted no fence"));
        let before = self.of_tokens.get(&(places[0], lock.token.to_owned())).copied();
        // The fences of shared locks may be equal, but exceed those of earlier exclusive ones.
        let before_it = if mode == Mode::Shared { &mut self.of_writers } else { &mut self.largest };
        let is_largest =
            places.iter().all(|place| before_it.get(place).is_none_or(|largest| *largest < fence));
        for place in places {
            let holder = lock.new_token.unwrap_or(lock.token).to_owned();
            self.of_tokens.insert((*place, holder), fence);
            let largest = self.largest.entry(*place).or_default();
            *largest = (*largest).max(fence);
            if mode == Mode::Exclusive && before != Some(fence) {
                self.of_writers.insert(*place, *largest);
            }
        }
        match (lock.name, before) {
            ("ACQUIRE", Some(before)) if before == fence && mode == Mode::Exclusive => "again",
            ("ACQUIRE", _) if is_largest => "granted",
            ("EXTEND", Some(before)) if before == fence => "extended",
            ("EXTEND", Some(before)) if before < fence => "raised",
            ("EXTEND", None) if is_largest => "adopted",
            _ => "a fence that is not above the earlier ones",
        }
    }

    /// An answer, as tables write it.
    pub(super) fn shown(&mut self, Answer { command, expected, .. }: &Answer) -> String {
        match expected {
            Expected::Blocked => "waits".into(),
            Expected::Nil => "nil".into(),
            Expected::Ok => "OK".into(),
            Expected::Int(int) => int.to_string(),
            Expected::SomeInt => "an integer".into(),
            Expected::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Expected::Error(error) => error.clone(),
            Expected::Fence { places, fence, key, mode, .. } => {
                let word = self.word(places, *fence, *mode, command);
                key.map_or(word.to_owned(), |key| format!("{word} {key}"))
            }
            Expected::Inspected(_, inspected) => shown_fields(inspected),
            Expected::Scanned(locks) if locks.is_empty() => "no lock".into(),
            Expected::Scanned(locks) => {
                locks.iter().map(|((_, key), _)| *key).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

fn shown_fields(inspected: &Inspected) -> String {
    fn shown(value: &Value) -> String {
        match value {
            Value::Nil => "-".into(),
            Value::Int(int) => int.to_string(),
            Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
            Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(","),
            other => format!("{other:?}"),
        }
    }
    let fields = fields(inspected);
    let fields = fields.iter().map(|(name, value)| format!("{name}={}", shown(value)));
    fields.collect::<Vec<_>>().join(" ")
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
