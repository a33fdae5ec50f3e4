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
//!   no client knows, `unknown`. `expires=500` or `persists` may follow.
//! - `pass 500`: milliseconds. `clock -500`: a step of the wall clock. `disconnect 2`,
//!   `evict MAXMEMORY-POLICY`, `reload`, `loadaof`, `restart [without-data] [abstaining]`: what
//!   happens to a client or to the server.
//! - `stats: NAME=NUMBER`: figures of `INFO lock`. `limits: MAX_TTL_MS MAX_WAITERS`.

use std::collections::BTreeMap;
use std::fs;

use quorlock_core::node::Mode;
use redis::Value as Reply;

use super::command::{Command, Packet, Place, Step, Wrap, client, key, number};
use super::model::{Limits, Model};
use super::view::Expected;

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
    /// The fields of a key, or of `INFO lock`.
    Fields(Option<Place>, &'static str),
}

/// A text with the number of its database before it: `[1] LOCK.INSPECT alpha`. Without it, 0.
fn with_db(text: &str) -> (u32, &str) {
    let with_db = text.strip_prefix('[').and_then(|text| text.split_once("] "));
    with_db.map_or((0, text), |(db, text)| (number(db), text))
}

/// Reads the claims of a table in the folder `steps`. Editing a table needs no build.
///
/// # Panics
/// If there is no such table.
pub fn table(name: &str) -> Vec<Claim> {
    let path = format!("{}/steps/{name}.steps", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    claims(text.leak())
}

fn claims(text: &'static str) -> Vec<Claim> {
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
            ("stats", _) => return Self::Fields(None, rest),
            ("", ["pass", ms]) => Step::Pass { ms: number(ms) },
            ("", ["clock", ms]) => Step::MoveClock { ms: number(ms) },
            ("", ["disconnect", waiter]) => Step::Disconnect { client: client(waiter) },
            ("", ["evict", policy]) => Step::Evict { policy },
            ("", ["reload"]) => Step::Reload,
            ("", ["loadaof"]) => Step::LoadAppendOnlyFile,
            ("", ["restart", how @ ..]) => Step::Restart {
                keeps_data: !how.contains(&"without-data"),
                abstains: how.contains(&"abstaining"),
            },
            ("", _) => panic!("{step:?} is no step"),
            _ => {
                let (db, name) = with_db(head);
                return Self::Fields(Some((db, key(name))), rest);
            }
        })
    }
}

/// The last fences, by which a reply is `granted`, `again`, `extended` or `raised`.
#[derive(Clone, Debug, Default)]
pub(super) struct Fences {
    pub(super) largest: BTreeMap<Place, u64>,
    of_writers: BTreeMap<Place, u64>,
    of_tokens: BTreeMap<(Place, String), u64>,
}

impl Fences {
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

    /// An answer to a command, as tables write it.
    pub(super) fn shown(&mut self, expected: &Expected, command: &Command) -> String {
        let shown: Vec<_> = match expected {
            Expected::Blocked => return "waits".into(),
            Expected::Any => return "any".into(),
            Expected::Is(value) => return shown_reply(value),
            Expected::Near(ms) => return ms.to_string(),
            Expected::Error(error) => return error.clone(),
            Expected::Fence { places, fence, mode } => {
                return self.word(places, *fence, *mode, command).into();
            }
            Expected::Set(items) if items.is_empty() => return "no lock".into(),
            Expected::Array(items) | Expected::Set(items) => {
                let items = items.iter().filter(|item| **item != Expected::Any);
                items.map(|item| self.shown(item, command)).collect()
            }
            // A key stands for its lock.
            Expected::Fields(fields) if fields[0].0 == "key" => {
                return self.shown(&fields[0].1, command);
            }
            Expected::Fields(fields) => {
                let fields = fields.iter().filter(|(name, _)| *name != "fence");
                fields
                    .map(|(name, field)| format!("{name}={}", self.shown(field, command)))
                    .collect()
            }
        };
        shown.join(" ")
    }
}

fn shown_reply(value: &Reply) -> String {
    match value {
        Reply::Nil => "nil".into(),
        Reply::Okay => "OK".into(),
        Reply::Int(int) => int.to_string(),
        Reply::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Array(values) => values.iter().map(shown_reply).collect::<Vec<_>>().join(","),
        other => format!("{other:?}"),
    }
}

/// Returns whether an answer is the one that a table expects.
pub(super) fn is_expected(expected: &str, shown: &str, late_ms: u64) -> bool {
    if expected.contains('=') {
        return has_fields(expected, shown, late_ms);
    }
    let is_error = shown.starts_with(|first: char| first.is_ascii_uppercase());
    expected == shown || is_error && !expected.is_empty() && shown.starts_with(expected)
}

/// Returns whether all expected fields are shown. Times may differ by this much.
pub(super) fn has_fields(expected: &str, shown: &str, late_ms: u64) -> bool {
    let is_near = |field: &str, found: &str| {
        let (Some((name, expected)), Some((other, found))) =
            (field.split_once('='), found.split_once('='))
        else {
            return false;
        };
        let is_time = name == other && ["ttl", "held", "expires"].contains(&name);
        is_time && number::<i64>(expected).abs_diff(number(found)) <= late_ms
    };
    expected
        .split(' ')
        .all(|field| shown.split(' ').any(|found| found == field || is_near(field, found)))
}

/// The figures of the model, as tables write them.
pub(super) fn shown_figures(model: &Model) -> String {
    model.figures().map(|(name, figure)| format!("{name}={figure}")).join(" ")
}
