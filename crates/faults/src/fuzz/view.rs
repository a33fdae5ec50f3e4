use std::collections::BTreeMap;

use quorlock_core::node::{Holder, Inspected, Mode, Now};

use super::command::{DBS, KEYS, KeyIndex, Place, key_index};
use super::model::{Expected, Model, UNKNOWN, UNKNOWN_BYTES, is_error, places};
use super::wire::{Reply, Words, words};

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
                "the fence {of_server} of a grant is not between those before and after it, {before} and {after}"
            ));
        }
        seen.insert(of_model, of_server);
        if seen.len() > FENCES {
            seen.pop_first();
        }
        Ok(())
    }
}

pub(super) fn compare(
    expected: &Expected,
    reply: &Reply,
    offsets: &mut Offsets,
) -> Result<(), String> {
    let both = || format!("the server replied {reply:?}, the model expects {expected:?}");
    let differs = || Err(both());
    let because = |why: String| format!("{why}: {}", both());
    match (expected, reply) {
        (Expected::Nil, Reply::Nil) | (Expected::SomeInt, Reply::Int(_)) => Ok(()),
        (Expected::Int(expected), Reply::Int(int)) if expected == int => Ok(()),
        (Expected::Bulk(expected), Reply::Bulk(bulk)) if same_value(expected, bulk) => Ok(()),
        (Expected::Ok, Reply::Status(status)) if status == "OK" => Ok(()),
        (Expected::Error(expected), Reply::Error(error)) if is_error(expected, error) => Ok(()),
        (Expected::Fence { places, fence, waits, key, mode }, reply) => {
            let is_key = |bytes: &[u8]| key.is_some_and(|key| KEYS[key].as_bytes() == bytes);
            let of_server = match (waits, key, reply) {
                (false, None, Reply::Int(fence @ 1..)) => *fence,
                (_, _, Reply::Array(items)) => match &items[..] {
                    [Reply::Int(fence @ 1..), Reply::Int(0..)] if *waits && key.is_none() => *fence,
                    [Reply::Int(fence @ 1..), Reply::Bulk(name)] if !waits && is_key(name) => {
                        *fence
                    }
                    [Reply::Int(fence @ 1..), Reply::Int(0..), Reply::Bulk(name)]
                        if *waits && is_key(name) =>
                    {
                        *fence
                    }
                    _ => return differs(),
                },
                _ => return differs(),
            };
            if *mode == Mode::Shared {
                return Ok(());
            }
            places.iter().try_for_each(|&place| {
                offsets
                    .see(place, *fence, of_server.unsigned_abs())
                    .map_err(|why| format!("{} {}: {why}", place.0, KEYS[place.1]))
            })
        }
        (Expected::Inspected(place, inspected), Reply::Array(items)) => {
            compare_inspected(*place, inspected, items, offsets).map_err(because)
        }
        (Expected::Scanned(locks), Reply::Array(items)) => {
            let [Reply::Bulk(cursor), Reply::Array(found)] = &items[..] else { return differs() };
            let found: Option<Vec<_>> = found.iter().map(listed).collect();
            let Some(mut found) = found else { return differs() };
            found.sort_by_key(|(key, _)| *key);
            let found_keys = found.iter().map(|(key, _)| key);
            if cursor != b"0" || !found_keys.eq(locks.iter().map(|((_, key), _)| key)) {
                return differs();
            }
            locks.iter().zip(found).try_for_each(|((place, inspected), (_, fields))| {
                compare_inspected(*place, inspected, fields, offsets).map_err(because)
            })
        }
        _ => differs(),
    }
}

/// Returns the key and the other fields of a lock in a reply to `LOCK.SCAN`; `None` for any other
/// reply, and for a key that no command uses.
fn listed(lock: &Reply) -> Option<(KeyIndex, &[Reply])> {
    let Reply::Array(fields) = lock else { return None };
    let [Reply::Bulk(name), Reply::Bulk(key), fields @ ..] = &fields[..] else { return None };
    let index = key_index(key)?;
    (name == b"key").then_some((index, fields))
}

/// Ignores the random value of a shared or revoked lock, but compares what APPEND added to it.
fn same_value(of_model: &[u8], of_server: &[u8]) -> bool {
    if is_drawn(of_model) && is_drawn(of_server) {
        return of_model[UNKNOWN_BYTES..] == of_server[UNKNOWN_BYTES..];
    }
    of_model == of_server
}

fn compare_inspected(
    place: Place,
    inspected: &Inspected,
    items: &[Reply],
    offsets: &mut Offsets,
) -> Result<(), String> {
    let field = |name: &str| {
        let named = |pair: &&[Reply]| pair[0] == Reply::Bulk(name.as_bytes().to_vec());
        items.chunks_exact(2).find(named).map(|pair| &pair[1])
    };
    let is = |name: &str, value: Reply| match field(name) {
        Some(found) if *found == value => Ok(()),
        _ => Err(format!("{name} differs")),
    };
    let int = |number: usize| Reply::Int(i64::try_from(number).unwrap_or(i64::MAX));
    is("waiters", int(inspected.waiters))?;
    let Some(&Reply::Int(ttl_ms)) = field("ttl") else { return Err("no ttl".into()) };
    let tolerance_ms = TTL_TOLERANCE_MS + offsets.apart_ms;
    let is_near = |ms: i64, expected_ms: u64| {
        u64::try_from(ms).is_ok_and(|ms| ms.abs_diff(expected_ms) <= tolerance_ms)
    };
    let is_ttl = |expected_ms: u64| {
        if is_near(ttl_ms, expected_ms) { Ok(()) } else { Err("ttl differs".to_owned()) }
    };
    let label = |owner: Option<&[u8]>| owner.map_or(Reply::Nil, |owner| Reply::Bulk(owner.into()));
    let labels = inspected.queue.iter().map(|waiter| label(waiter.owner.as_deref()));
    is("queue", Reply::Array(labels.collect()))?;
    match &inspected.holder {
        Holder::Foreign { ttl_ms: expected_ms } => {
            is("owner", Reply::Nil)?;
            is("fence", Reply::Nil)?;
            is("mode", Reply::Bulk(b"foreign".to_vec()))?;
            is("held", Reply::Nil)?;
            is("keys", int(1))?;
            match expected_ms {
                Some(expected_ms) => is_ttl(*expected_ms),
                None if ttl_ms == -1 => Ok(()),
                None => Err("a ttl, where the model has none".into()),
            }
        }
        Holder::Lease {
            owners,
            holders,
            fence,
            ttl_ms: expected_ms,
            held_ms,
            mode,
            keys,
            revoked,
        } => {
            let word = match mode {
                Mode::Exclusive => "exclusive",
                Mode::Shared => "shared",
            };
            is("mode", Reply::Bulk(word.into()))?;
            is("holders", int(*holders))?;
            is("revoked", int(usize::from(*revoked)))?;
            match field("held") {
                Some(&Reply::Int(held)) if is_near(held, *held_ms) => {}
                _ => return Err("held differs".into()),
            }
            let mut labels: Vec<_> = owners.iter().map(|owner| label(owner.as_deref())).collect();
            is("owner", if *holders == 1 { labels.remove(0) } else { Reply::Array(labels) })?;
            is("keys", int(*keys))?;
            is_ttl(*expected_ms)?;
            match field("fence") {
                Some(Reply::Int(1..)) if *mode == Mode::Shared => Ok(()),
                Some(Reply::Int(of_server @ 1..)) => {
                    offsets.see(place, fence.get(), of_server.unsigned_abs())
                }
                _ => Err("no fence".into()),
            }
        }
    }
}

/// Returns whether a value begins as the random value of a shared or revoked lock does.
pub(super) fn is_drawn(value: &[u8]) -> bool {
    value.starts_with(UNKNOWN.as_bytes())
        || value.len() >= UNKNOWN_BYTES && value[..UNKNOWN_BYTES].iter().all(u8::is_ascii_hexdigit)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredValue {
    /// The string; `None` for another type.
    pub(super) text: Option<Vec<u8>>,
    pub(super) expires_at_ms: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) keys: BTreeMap<Place, StoredValue>,
    figures: BTreeMap<String, u64>,
}

impl View {
    /// Returns the commands whose replies [`View::parse`] reads.
    pub(super) fn commands() -> Vec<Words> {
        let mut commands = Self::key_commands();
        commands.push(words("INFO lock"));
        commands
    }

    /// Returns only the commands about keys: [`View::parse`] then reads no figures.
    pub(super) fn key_commands() -> Vec<Words> {
        let mut commands = Vec::new();
        for db in 0..DBS {
            commands.push(words(&format!("SELECT {db}")));
            for key in KEYS {
                commands.push(words(&format!("GET {key}")));
                commands.push(words(&format!("PEXPIRETIME {key}")));
            }
        }
        commands
    }

    pub(super) fn parse(replies: &[Reply]) -> Result<Self, String> {
        let mut view = Self::default();
        let mut replies = replies.iter();
        for db in 0..DBS {
            replies.next();
            for key in 0..KEYS.len() {
                let (Some(value), Some(&Reply::Int(at))) = (replies.next(), replies.next()) else {
                    return Err("a reply to GET or PEXPIRETIME is missing or malformed".into());
                };
                let text = match value {
                    Reply::Nil => continue,
                    Reply::Bulk(text) => Some(text.clone()),
                    Reply::Error(error) if error.starts_with("WRONGTYPE") => None,
                    other => return Err(format!("GET was answered {other:?}")),
                };
                view.keys
                    .insert((db, key), StoredValue { text, expires_at_ms: u64::try_from(at).ok() });
            }
        }
        if let Some(Reply::Bulk(info)) = replies.next() {
            for line in String::from_utf8_lossy(info).lines() {
                if let Some((name, value)) =
                    line.strip_prefix("lock_").and_then(|line| line.split_once(':'))
                    && let Ok(value) = value.parse()
                {
                    view.figures.insert(name.into(), value);
                }
            }
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
        for place in places() {
            let (db, key) = (place.0, KEYS[place.1]);
            let expired = |at: u64| now.wall_ms() > at;
            let expected =
                model.get(place).filter(|value| !value.expires_at_ms.is_some_and(expired));
            match (expected, self.keys.get(&place)) {
                (None, None) => {}
                (None, Some(seen)) => {
                    return Some(format!("{db} {key}: the server has {seen:?}, the model nothing"));
                }
                (Some(expected), None) => {
                    return Some(format!(
                        "{db} {key}: the server has nothing, the model {expected:?}"
                    ));
                }
                (Some(expected), Some(seen)) => {
                    let same_text = match (&expected.text, &seen.text) {
                        (Some(expected), Some(seen)) => same_value(expected, seen),
                        (expected, seen) => expected.is_none() && seen.is_none(),
                    };
                    let same_expiry = match (expected.expires_at_ms, seen.expires_at_ms) {
                        (None, None) => true,
                        (Some(expected), Some(seen)) => {
                            expected.abs_diff(seen) <= tolerance_ms(expected)
                        }
                        _ => false,
                    };
                    if !same_text || !same_expiry {
                        let by = expected.expires_at_ms.map_or(0, &tolerance_ms);
                        return Some(format!(
                            "{db} {key}: the server has {seen:?}, the model {expected:?} (± {by} ms)"
                        ));
                    }
                }
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
        let apart = |(place, seen): (&Place, &StoredValue)| {
            Some(model.get(*place)?.expires_at_ms?.abs_diff(seen.expires_at_ms?))
        };
        self.keys.iter().filter_map(apart).max().unwrap_or(0)
    }

    pub(super) fn shown(&self, now: Now) -> String {
        let mut lines: Vec<_> = self
            .keys
            .iter()
            .map(|((db, key), StoredValue { text, expires_at_ms })| {
                let text = text.as_ref().map(|text| text.escape_ascii().to_string());
                let left = expires_at_ms.map(|at| i128::from(at) - i128::from(now.wall_ms()));
                format!("  {db} {}: {text:?}, expires in {left:?} ms", KEYS[*key])
            })
            .collect();
        lines.push(format!("  {:?}", self.figures));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees(expected: &Expected, reply: &Reply) -> bool {
        compare(expected, reply, &mut Offsets::default()).is_ok()
    }

    #[test]
    fn scan_that_lists_anything_else_than_a_known_lock_differs() {
        let scanned = |locks| Reply::Array(vec![Reply::Bulk("0".into()), Reply::Array(locks)]);
        let unknown = ["key", "unknown"].map(|text| Reply::Bulk(text.into()));
        let expected = Expected::Scanned(Vec::new());
        assert!(agrees(&expected, &scanned(Vec::new())));
        assert!(!agrees(&expected, &scanned(vec![Reply::Array(unknown.into())])));
        assert!(!agrees(&expected, &scanned(vec![Reply::Nil])));
    }

    #[test]
    fn fence_that_is_not_positive_differs() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let places = vec![(0, 0)];
            let expected = Expected::Fence { places, fence: 1, waits: false, key: None, mode };
            for (fence, is_valid) in [(1, true), (0, false), (-1, false)] {
                assert_eq!(agrees(&expected, &Reply::Int(fence)), is_valid, "{mode:?} {fence}");
            }
        }
    }
}
