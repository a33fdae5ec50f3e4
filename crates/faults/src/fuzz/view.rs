use std::collections::BTreeMap;

use quorlock_core::node::memory_server::{Name, Value as Stored};
use quorlock_core::node::{CommandError, FenceError, Holder, Inspected, Mode, Now};
use redis::Value;

use super::command::{DBS, KEYS, Place, places};
use super::episode::{Outcome, differ};
use super::model::{FIGURES_OF_SERVER, Model};
use super::wire::{Words, words};

/// Allowed difference of a lock's `ttl` and `held` from the model, in milliseconds.
const TTL_TOLERANCE_MS: u64 = 400;

/// The known differences between the server and the model. They come from different clocks, and
/// concern fences and deadlines.
#[derive(Clone, Debug, Default)]
pub(super) struct Offsets {
    /// Largest difference of deadlines, in milliseconds: the server is not always on time.
    pub(super) apart_ms: u64,
    /// For each key, maps its last fences in the model to those on the server.
    pub(super) seen: BTreeMap<Place, BTreeMap<u64, u64>>,
}

/// Number of fences that are kept for a key.
const FENCES: usize = 32;

impl Offsets {
    /// Returns the last fence of a key: in the model, and on the server.
    pub(super) fn last(&self, place: Place) -> Option<(u64, u64)> {
        let (model, server) = self.seen.get(&place)?.last_key_value()?;
        Some((*model, *server))
    }

    /// Compares a fence of this key with the earlier ones, and keeps it. Fences that are equal in
    /// the model must be equal on the server. Different ones must have the same order on both: the
    /// fence of a waiter may be compared after the fence of a later grant.
    fn see(&mut self, place: Place, of_model: u64, of_server: u64) -> bool {
        let seen = self.seen.entry(place).or_default();
        let is_as_before = match seen.get(&of_model) {
            Some(server) => *server == of_server,
            None => {
                seen.iter().all(|(model, server)| model.cmp(&of_model) == server.cmp(&of_server))
            }
        };
        seen.insert(of_model, of_server);
        if seen.len() > FENCES {
            seen.pop_first();
        }
        is_as_before
    }
}

/// The expected form of a reply.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expected {
    Blocked,
    Is(Value),
    /// An integer that is not negative.
    Any,
    /// A time in milliseconds. It may differ a little, because the clocks do.
    Near(u64),
    /// The fence of the lock on these keys.
    Fence {
        places: Vec<Place>,
        fence: u64,
        /// The fences of shared locks may be equal, or in any order.
        mode: Mode,
    },
    /// An error with this start.
    Error(String),
    Array(Vec<Self>),
    /// An array in any order.
    Set(Vec<Self>),
    /// Names and values, perhaps with others between them.
    Fields(Vec<(&'static str, Self)>),
}

impl Expected {
    pub(super) const NIL: Self = Self::Is(Value::Nil);
    pub(super) const OK: Self = Self::Is(Value::Okay);

    pub(super) fn int(number: impl TryInto<i64>) -> Self {
        Self::Is(Value::Int(number.try_into().unwrap_or(i64::MAX)))
    }

    pub(super) fn text(text: &[u8]) -> Self {
        Self::Is(Value::BulkString(text.into()))
    }

    pub(super) fn error(start: &str) -> Self {
        Self::Error(start.into())
    }

    /// A fence. After WAIT, the waited time follows it, and then the granted key if it is named.
    pub(super) fn granted(fence: Self, waits: bool, key: Option<&str>) -> Self {
        let key = key.map(|key| Self::text(key.as_bytes()));
        let rest: Vec<_> = waits.then_some(Self::Any).into_iter().chain(key).collect();
        if rest.is_empty() { fence } else { Self::Array([vec![fence], rest].concat()) }
    }
}

/// Returns the fields that describe the lock on a key, except those about connections.
pub(super) fn fields(place: Place, inspected: &Inspected) -> Vec<(&'static str, Expected)> {
    let Inspected { holder, waiters, queue } = inspected;
    let label = |owner: &Option<Box<[u8]>>| {
        owner.as_ref().map_or(Value::Nil, |owner| Value::BulkString(owner.to_vec()))
    };
    let mut fields = Vec::new();
    match holder {
        Holder::Foreign { ttl_ms } => fields.extend([
            ("mode", Expected::text(b"foreign")),
            ("holders", Expected::int(1)),
            ("owner", Expected::NIL),
            ("fence", Expected::NIL),
            ("ttl", ttl_ms.map_or(Expected::int(-1), Expected::Near)),
            ("held", Expected::NIL),
            ("keys", Expected::int(1)),
            ("revoked", Expected::int(0)),
        ]),
        Holder::Lease { owners, holders, fence, ttl_ms, held_ms, mode, keys, revoked } => {
            let labels: Vec<_> = owners.iter().map(label).collect();
            let owner = match &labels[..] {
                [owner] if *holders == 1 => Expected::Is(owner.clone()),
                _ => Expected::Is(Value::Array(labels)),
            };
            let is_shared = *mode == Mode::Shared;
            let (places, fence, mode) = (vec![place], fence.get(), *mode);
            fields.extend([
                ("mode", Expected::text(if is_shared { b"shared" } else { b"exclusive" })),
                ("holders", Expected::int(*holders)),
                ("owner", owner),
                ("fence", Expected::Fence { places, fence, mode }),
                ("ttl", Expected::Near(*ttl_ms)),
                ("held", Expected::Near(*held_ms)),
                ("keys", Expected::int(*keys)),
                ("revoked", Expected::int(*revoked)),
            ]);
        }
    }
    let labels = queue.iter().map(|waiter| label(&waiter.owner));
    fields.push(("waiters", Expected::int(*waiters)));
    fields.push(("queue", Expected::Is(Value::Array(labels.collect()))));
    fields
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
fn is_error(expected: &str, error: &str) -> bool {
    let Some((code @ ("ABSTAIN" | "HELD"), word)) = expected.split_once(' ') else {
        return error.starts_with(expected);
    };
    let mut words = error.split([' ', ':']);
    words.next() == Some(code) && words.nth(1) == Some(word)
}

/// Compares a reply of the server with the one that the model expects.
pub(super) fn compare(
    expected: &Expected,
    reply: &Value,
    offsets: &mut Offsets,
) -> Result<(), String> {
    let agrees = match (expected, reply) {
        (Expected::Any, Value::Int(0..))
        | (Expected::Fence { mode: Mode::Shared, .. }, Value::Int(1..)) => true,
        (Expected::Is(Value::BulkString(text)), Value::BulkString(found)) => {
            same_value(text, found)
        }
        (Expected::Is(value), found) => value == found,
        (Expected::Near(ms), Value::Int(found @ 0..)) => {
            ms.abs_diff(found.unsigned_abs()) <= TTL_TOLERANCE_MS + offsets.apart_ms
        }
        (Expected::Error(start), Value::ServerError(error)) => {
            let error = format!("{} {}", error.code(), error.details().unwrap_or_default());
            is_error(start, &error)
        }
        (Expected::Fence { places, fence, .. }, Value::Int(found @ 1..)) => {
            places.iter().all(|place| offsets.see(*place, *fence, found.unsigned_abs()))
        }
        (Expected::Array(items), Value::Array(found)) if items.len() == found.len() => {
            let mut pairs = items.iter().zip(found);
            return pairs.try_for_each(|(item, found)| compare(item, found, offsets));
        }
        (Expected::Set(items), Value::Array(found)) if items.len() == found.len() => {
            let is_found = |item| found.iter().any(|found| compare(item, found, offsets).is_ok());
            items.iter().all(is_found)
        }
        (Expected::Fields(fields), Value::Array(found)) => {
            return fields.iter().try_for_each(|(name, field)| {
                let named = |pair: &&[Value]| pair[0] == Value::BulkString((*name).into());
                let pair = found.chunks_exact(2).find(named).ok_or(format!("no {name}"))?;
                compare(field, &pair[1], offsets).map_err(|why| format!("{name}: {why}"))
            });
        }
        _ => false,
    };
    if agrees {
        return Ok(());
    }
    Err(format!("the server replied {reply:?}, the model expects {expected:?}"))
}

/// How the random value of a revoked or shared lock begins in the model.
const UNKNOWN: &str = "unknown-";
/// The length of such a value in the model and on the server.
const UNKNOWN_BYTES: usize = 32;

/// Writes what a key holds as tables do.
pub(super) fn shown_value(value: Option<&Stored>, now: Now) -> String {
    let Some(Stored { text, expires_at_ms }) = value else { return "none".into() };
    let text = match text {
        None => "list".into(),
        Some(text) if is_drawn(text) => "unknown".into(),
        Some(text) => text.escape_ascii().to_string(),
    };
    match expires_at_ms {
        None => format!("{text} persists"),
        Some(at_ms) => format!("{text} expires={}", i128::from(*at_ms) - i128::from(now.wall_ms())),
    }
}

/// Returns whether a value begins as the random value of a shared or revoked lock does.
fn is_drawn(value: &[u8]) -> bool {
    value.starts_with(UNKNOWN.as_bytes())
        || value.len() >= UNKNOWN_BYTES && value[..UNKNOWN_BYTES].iter().all(u8::is_ascii_hexdigit)
}

/// Returns whether both or none are there, and agree.
fn both<T>(one: Option<T>, other: Option<T>, agree: impl Fn(T, T) -> bool) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => agree(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// Ignores the random value of a shared or revoked lock, but compares what APPEND added to it.
fn same_value(of_model: &[u8], of_server: &[u8]) -> bool {
    if is_drawn(of_model) && is_drawn(of_server) {
        return of_model[UNKNOWN_BYTES..] == of_server[UNKNOWN_BYTES..];
    }
    of_model == of_server
}

#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) keys: BTreeMap<Place, Stored>,
    figures: BTreeMap<String, u64>,
}

impl View {
    /// Number of replies about the keys of one database.
    const REPLIES: usize = 1 + 2 * KEYS.len();

    /// Returns the commands whose replies [`View::parse`] reads.
    pub(super) fn commands() -> Vec<Words> {
        let of_key = |key| [format!("GET {key}"), format!("PEXPIRETIME {key}")];
        let of_dbs = (0..DBS).flat_map(|db| {
            [format!("SELECT {db}")].into_iter().chain(KEYS.into_iter().flat_map(of_key))
        });
        of_dbs.chain(["INFO lock".into()]).map(|line| words(&line)).collect()
    }

    pub(super) fn parse(replies: &[Value]) -> Outcome<Self> {
        let mut view = Self::default();
        let mut of_dbs = replies.chunks_exact(Self::REPLIES);
        for (db, of_db) in (0..DBS).zip(&mut of_dbs) {
            for (key, pair) in KEYS.into_iter().zip(of_db[1..].chunks_exact(2)) {
                let (text, expires_at_ms) = match pair {
                    [Value::Nil, _] => continue,
                    [Value::BulkString(text), Value::Int(at)] => (Some(Name::from_slice(text)), at),
                    [Value::ServerError(error), Value::Int(at)] if error.code() == "WRONGTYPE" => {
                        (None, at)
                    }
                    other => {
                        return differ(format!("GET and PEXPIRETIME were answered {other:?}"));
                    }
                };
                let expires_at_ms = u64::try_from(*expires_at_ms).ok();
                view.keys.insert((db, key), Stored { text, expires_at_ms });
            }
        }
        if let [Value::BulkString(info)] = of_dbs.remainder() {
            let info = String::from_utf8_lossy(info);
            let figures =
                info.lines().filter_map(|line| line.strip_prefix("lock_")?.split_once(':'));
            let parsed = |(name, value): (&str, &str)| Some((name.into(), value.parse().ok()?));
            view.figures.extend(figures.filter_map(parsed));
        }
        Ok(view)
    }

    /// `tolerance_ms` returns the allowed difference of an expiry.
    pub(super) fn difference(
        &self,
        model: &Model,
        now: Now,
        tolerance_ms: impl Fn(u64) -> u64,
    ) -> Option<String> {
        let is_gone = |value: &&Stored| value.expires_at_ms.is_some_and(|at| now.wall_ms() > at);
        for place in places() {
            let expected = model.get(place).filter(|value| !is_gone(value));
            let seen = self.keys.get(&place);
            let tolerance_ms =
                expected.and_then(|value| value.expires_at_ms).map_or(0, &tolerance_ms);
            let is_near = |expected: u64, seen: u64| expected.abs_diff(seen) <= tolerance_ms;
            let is_same = both(expected, seen, |expected, seen| {
                both(expected.text.as_deref(), seen.text.as_deref(), same_value)
                    && both(expected.expires_at_ms, seen.expires_at_ms, is_near)
            });
            if !is_same {
                let (seen, expected) = (shown_value(seen, now), shown_value(expected, now));
                return Some(format!(
                    "{place:?}: the server has {seen}, the model {expected} (± {tolerance_ms} ms)"
                ));
            }
        }
        model.figures().into_iter().take(FIGURES_OF_SERVER).find_map(|(name, expected)| {
            let found = self.figures.get(name).copied();
            (found != Some(expected))
                .then(|| format!("INFO lock: {name} is {found:?}, in the model {expected}"))
        })
    }

    /// Returns the largest difference of a key's expiry from the model's, in milliseconds.
    pub(super) fn apart_ms(&self, model: &Model) -> u64 {
        let apart = |(place, seen): (&Place, &Stored)| {
            Some(model.get(*place)?.expires_at_ms?.abs_diff(seen.expires_at_ms?))
        };
        self.keys.iter().filter_map(apart).max().unwrap_or(0)
    }

    pub(super) fn shown(&self, now: Now) -> String {
        format!("{}\n  {:?}", shown_keys(&self.keys, now), self.figures)
    }
}

pub(super) fn shown_keys(keys: &BTreeMap<Place, Stored>, now: Now) -> String {
    let shown = |(place, value): (&Place, &Stored)| {
        format!("  {place:?}: {}", shown_value(Some(value), now))
    };
    keys.iter().map(shown).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees(expected: &Expected, reply: &Value) -> bool {
        compare(expected, reply, &mut Offsets::default()).is_ok()
    }

    #[test]
    fn scan_that_lists_anything_else_than_a_known_lock_differs() {
        let scanned =
            |locks| Value::Array(vec![Value::BulkString("0".into()), Value::Array(locks)]);
        let unknown = ["key", "unknown"].map(|text| Value::BulkString(text.into()));
        let expected = Expected::Array(vec![
            Expected::Is(Value::BulkString("0".into())),
            Expected::Set(vec![]),
        ]);
        assert!(agrees(&expected, &scanned(Vec::new())));
        assert!(!agrees(&expected, &scanned(vec![Value::Array(unknown.into())])));
        assert!(!agrees(&expected, &scanned(vec![Value::Nil])));
    }

    #[test]
    fn fence_that_is_not_positive_differs() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let places = vec![(0, KEYS[0])];
            let expected = Expected::Fence { places, fence: 1, mode };
            for (fence, is_valid) in [(1, true), (0, false), (-1, false)] {
                assert_eq!(agrees(&expected, &Value::Int(fence)), is_valid, "{mode:?} {fence}");
            }
        }
    }
}
