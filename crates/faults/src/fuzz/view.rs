use std::collections::BTreeMap;
use std::slice;

use quorlock_core::node::memory_server::{Name, Value as Stored};
use quorlock_core::node::{Holder, Inspected, Mode, Now};
use redis::Value;

use super::command::{DBS, KEYS, Place, places};
use super::episode::{Outcome, Trouble};
use super::model::{Expected, Model, UNKNOWN, UNKNOWN_BYTES, is_error, shown_key};
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
    seen: BTreeMap<Place, BTreeMap<u64, u64>>,
}

/// Number of fences that are kept for a key.
const FENCES: usize = 32;

impl Offsets {
    /// Returns the last fence of a key: in the model, and on the server.
    pub(super) fn last(&self, place: Place) -> Option<(u64, u64)> {
        let (model, server) = self.seen.get(&place)?.last_key_value()?;
        Some((*model, *server))
    }

    pub(super) fn forget(&mut self) {
        self.seen.clear();
    }

    /// Compares a fence of this key with the earlier ones, and keeps it. Fences that are equal in
    /// the model must be equal on the server. Different ones must have the same order on both.
    fn see(&mut self, place: Place, of_model: u64, of_server: u64) -> Result<(), String> {
        let seen = self.seen.entry(place).or_default();
        match seen.get(&of_model) {
            Some(server) if *server == of_server => return Ok(()),
            Some(server) => {
                return Err(format!("the fence of one grant was {server}, and is {of_server}"));
            }
            None => {}
        }
        // The fence of a waiter may be compared after the fence of a later grant.
        let before = seen.range(..of_model).next_back().map_or(0, |(_, fence)| *fence);
        let after = seen.range(of_model..).next().map_or(u64::MAX, |(_, fence)| *fence);
        if of_server <= before || of_server >= after {
            return Err(format!(
                "{place:?}: the fence {of_server} of a grant is not between those before and after \
                 it, {before} and {after}"
            ));
        }
        seen.insert(of_model, of_server);
        if seen.len() > FENCES {
            seen.pop_first();
        }
        Ok(())
    }
}

/// Compares a reply of the server with the one that the model expects.
pub(super) fn compare(
    expected: &Expected,
    reply: &Value,
    offsets: &mut Offsets,
) -> Result<(), String> {
    let compared = match (expected, reply) {
        (Expected::Nil, Value::Nil)
        | (Expected::SomeInt, Value::Int(_))
        | (Expected::Ok, Value::Okay) => Ok(()),
        (Expected::Int(expected), Value::Int(int)) if expected == int => Ok(()),
        (Expected::Bulk(expected), Value::BulkString(bulk)) if same_value(expected, bulk) => Ok(()),
        (Expected::Error(expected), Value::ServerError(error)) => {
            let error = format!("{} {}", error.code(), error.details().unwrap_or_default());
            if is_error(expected, &error) { Ok(()) } else { Err("another error".into()) }
        }
        (Expected::Fence { places, fence, waits, key, mode }, reply) => {
            granted_fence(reply, *waits, *key).and_then(|of_server| match mode {
                Mode::Shared => Ok(()),
                Mode::Exclusive => {
                    places.iter().try_for_each(|place| offsets.see(*place, *fence, of_server))
                }
            })
        }
        (Expected::Inspected(place, inspected), Value::Array(fields)) => {
            compare_inspected(*place, inspected, fields, offsets)
        }
        (Expected::Scanned(locks), reply) => compare_scanned(locks, reply, offsets),
        _ => Err("another reply".into()),
    };
    compared.map_err(|why| {
        format!("{why}: the server replied {reply:?}, the model expects {expected:?}")
    })
}

/// Returns the fence in a reply to ACQUIRE or EXTEND. After WAIT, the waited time follows it, and
/// then the granted key, if the reply names it.
fn granted_fence(reply: &Value, waits: bool, key: Option<&str>) -> Result<u64, String> {
    let mut items = match reply {
        Value::Array(items) if waits || key.is_some() => items.iter(),
        reply => slice::from_ref(reply).iter(),
    };
    let fence = match items.next() {
        Some(Value::Int(fence @ 1..)) => fence.unsigned_abs(),
        _ => return Err("no fence".into()),
    };
    if waits && !matches!(items.next(), Some(Value::Int(0..))) {
        return Err("no waited time".into());
    }
    let is_key = |item: &Value, key: &str| *item == Value::BulkString(key.into());
    match (items.next(), key) {
        (None, None) => Ok(fence),
        (Some(item), Some(key)) if is_key(item, key) && items.next().is_none() => Ok(fence),
        _ => Err("another key".into()),
    }
}

fn compare_scanned(
    locks: &[(Place, Inspected)],
    reply: &Value,
    offsets: &mut Offsets,
) -> Result<(), String> {
    let differs = || "other locks".to_owned();
    let Value::Array(reply) = reply else { return Err(differs()) };
    let [Value::BulkString(cursor), Value::Array(found)] = &reply[..] else {
        return Err(differs());
    };
    if cursor != b"0" || found.len() != locks.len() {
        return Err(differs());
    }
    locks.iter().try_for_each(|(place, inspected)| {
        let key = [Value::BulkString("key".into()), Value::BulkString(place.1.into())];
        let fields = found.iter().find_map(|lock| match lock {
            Value::Array(fields) => fields.strip_prefix(&key[..]),
            _ => None,
        });
        compare_inspected(*place, inspected, fields.ok_or_else(differs)?, offsets)
    })
}

/// Ignores the random value of a shared or revoked lock, but compares what APPEND added to it.
fn same_value(of_model: &[u8], of_server: &[u8]) -> bool {
    if is_drawn(of_model) && is_drawn(of_server) {
        return of_model[UNKNOWN_BYTES..] == of_server[UNKNOWN_BYTES..];
    }
    of_model == of_server
}

/// Returns whether a value begins as the random value of a shared or revoked lock does.
pub(super) fn is_drawn(value: &[u8]) -> bool {
    value.starts_with(UNKNOWN.as_bytes())
        || value.len() >= UNKNOWN_BYTES && value[..UNKNOWN_BYTES].iter().all(u8::is_ascii_hexdigit)
}

/// Returns the fields that the reply to INSPECT has for a lock, except those about connections.
pub(super) fn fields(inspected: &Inspected) -> Vec<(&'static str, Value)> {
    let text = |text: &str| Value::BulkString(text.into());
    let label = |owner: &Option<Box<[u8]>>| match owner {
        Some(owner) => Value::BulkString(owner.to_vec()),
        None => Value::Nil,
    };
    let count = |number: usize| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
    let ms = |number: u64| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
    let mut fields = match &inspected.holder {
        Holder::Foreign { ttl_ms } => vec![
            ("mode", text("foreign")),
            ("holders", count(1)),
            ("owner", Value::Nil),
            ("fence", Value::Nil),
            ("ttl", ttl_ms.map_or(Value::Int(-1), ms)),
            ("held", Value::Nil),
            ("keys", count(1)),
            ("revoked", count(0)),
        ],
        Holder::Lease { owners, holders, fence, ttl_ms, held_ms, mode, keys, revoked } => vec![
            ("mode", text(if *mode == Mode::Shared { "shared" } else { "exclusive" })),
            ("holders", count(*holders)),
            (
                "owner",
                match &owners[..] {
                    [owner] if *holders == 1 => label(owner),
                    owners => Value::Array(owners.iter().map(label).collect()),
                },
            ),
            ("fence", ms(fence.get())),
            ("ttl", ms(*ttl_ms)),
            ("held", ms(*held_ms)),
            ("keys", count(*keys)),
            ("revoked", count((*revoked).into())),
        ],
    };
    fields.push(("waiters", count(inspected.waiters)));
    let labels = inspected.queue.iter().map(|waiter| label(&waiter.owner));
    fields.push(("queue", Value::Array(labels.collect())));
    fields
}

fn compare_inspected(
    place: Place,
    inspected: &Inspected,
    found: &[Value],
    offsets: &mut Offsets,
) -> Result<(), String> {
    let tolerance_ms = TTL_TOLERANCE_MS + offsets.apart_ms;
    let is_shared = matches!(&inspected.holder, Holder::Lease { mode: Mode::Shared, .. });
    for (name, expected) in fields(inspected) {
        let named = |pair: &&[Value]| pair[0] == Value::BulkString(name.into());
        let found = found.chunks_exact(2).find(named).map(|pair| &pair[1]);
        let agrees = match (name, &expected, found) {
            ("fence", Value::Int(_), Some(Value::Int(1..))) if is_shared => true,
            ("fence", Value::Int(of_model), Some(Value::Int(of_server @ 1..))) => {
                offsets.see(place, of_model.unsigned_abs(), of_server.unsigned_abs())?;
                true
            }
            ("ttl" | "held", Value::Int(expected @ 0..), Some(Value::Int(found @ 0..))) => {
                expected.abs_diff(*found) <= tolerance_ms
            }
            (_, expected, found) => found == Some(expected),
        };
        if !agrees {
            return Err(format!("{name} differs"));
        }
    }
    Ok(())
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
        let mut commands = Self::key_commands();
        commands.push(words("INFO lock"));
        commands
    }

    /// Returns only the commands about keys: [`View::parse`] then reads no figures.
    pub(super) fn key_commands() -> Vec<Words> {
        let of_key = |key| [format!("GET {key}"), format!("PEXPIRETIME {key}")];
        (0..DBS)
            .flat_map(|db| {
                [format!("SELECT {db}")].into_iter().chain(KEYS.into_iter().flat_map(of_key))
            })
            .map(|line| words(&line))
            .collect()
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
                        let what = format!("GET and PEXPIRETIME were answered {other:?}");
                        return Err(Trouble::Difference(what));
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
            let (of_model, of_server) = match (expected, seen) {
                (None, None) => continue,
                (Some(expected), Some(seen)) => (expected, seen),
                _ => {
                    return Some(format!(
                        "{place:?}: the server has {seen:?}, the model {expected:?}"
                    ));
                }
            };
            let is_same_text = match (&of_model.text, &of_server.text) {
                (Some(expected), Some(seen)) => same_value(expected, seen),
                (expected, seen) => expected == seen,
            };
            let by_ms = of_model.expires_at_ms.map_or(0, &tolerance_ms);
            let is_same_expiry = match (of_model.expires_at_ms, of_server.expires_at_ms) {
                (Some(expected), Some(seen)) => expected.abs_diff(seen) <= by_ms,
                (expected, seen) => expected == seen,
            };
            if !is_same_text || !is_same_expiry {
                return Some(format!(
                    "{place:?}: the server has {seen:?}, the model {expected:?} (± {by_ms} ms)"
                ));
            }
        }
        model.figures().into_iter().find_map(|(name, expected)| {
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
    let shown = |(place, value): (&Place, &Stored)| shown_key(*place, Some(value), now);
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
        let expected = Expected::Scanned(Vec::new());
        assert!(agrees(&expected, &scanned(Vec::new())));
        assert!(!agrees(&expected, &scanned(vec![Value::Array(unknown.into())])));
        assert!(!agrees(&expected, &scanned(vec![Value::Nil])));
    }

    #[test]
    fn fence_that_is_not_positive_differs() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let places = vec![(0, KEYS[0])];
            let expected = Expected::Fence { places, fence: 1, waits: false, key: None, mode };
            for (fence, is_valid) in [(1, true), (0, false), (-1, false)] {
                assert_eq!(agrees(&expected, &Value::Int(fence)), is_valid, "{mode:?} {fence}");
            }
        }
    }
}
