//! The settings `lock.*`, and their limits.
//!
//! The same limits apply in redis.conf, to `CONFIG SET`, and to the module's arguments.

use std::ffi::{CStr, CString};
use std::sync::atomic::AtomicI64;

use quorlock_core::Ttl;
use quorlock_core::node_set::{InvalidSet, NodeSet};

use crate::ffi::config::{self, Number, Text};
use crate::ffi::{Arg, Args, Ctx};
use crate::module;

const WEEK_MS: i64 = Ttl::MAX_MS.cast_signed();
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The prefix of the names in redis.conf. Module arguments may omit it.
const PREFIX: &[u8] = b"lock.";

/// The value of `lock.rejoin-delay` that stands for `lock.max-ttl`.
const AS_MAX_TTL: i64 = -1;

static MAX_TTL_MS: Number =
    Number { fixed_at_start: true, ..number(c"max-ttl", 60_000, 1, WEEK_MS, || ()) };
/// How long the node abstains after the module was loaded. A new value takes effect at the next
/// start.
static REJOIN_DELAY_MS: Number = number(c"rejoin-delay", AS_MAX_TTL, AS_MAX_TTL, WEEK_MS, || ());
/// How far a proposed fence may exceed the server's own wall clock. A fence is usually the wall
/// clock of a client, in microseconds.
static MAX_CLOCK_SKEW_MS: Number = number(c"max-clock-skew", 60_000, 0, DAY_MS, || {
    module::with(|state| state.node.set_max_clock_skew_ms(max_clock_skew_ms()));
});

/// How many clients may wait, for all keys together.
static MAX_WAITERS: Number = number(c"max-waiters", 1000, 0, 1_000_000, || {
    module::with(|state| state.node.set_max_waiters(max_waiters()));
});

/// The set to which this node belongs: `NAME ID MEMBERS`.
static SET: Text = Text::new(c"set", normalize_set);

static NUMBERS: [&Number; 4] = [&MAX_TTL_MS, &REJOIN_DELAY_MS, &MAX_CLOCK_SKEW_MS, &MAX_WAITERS];

/// A number that `CONFIG SET` can change.
const fn number(name: &'static CStr, default: i64, min: i64, max: i64, changed: fn()) -> Number {
    let value = AtomicI64::new(default);
    Number { name, default, min, max, fixed_at_start: false, changed, value }
}

/// Reads the module's arguments and then redis.conf, which overrides them.
pub(crate) fn load(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), ConfigError> {
    let mut defaults = NUMBERS.map(|number| number.default);
    let mut given = [false; NUMBERS.len()];
    let mut set = None;
    let mut index = 0;
    while let Some(name) = args.get(index) {
        let name = name.as_bytes();
        let short = match name.split_at_checked(PREFIX.len()) {
            Some((prefix, short)) if prefix.eq_ignore_ascii_case(PREFIX) => short,
            _ => name,
        };
        if short.eq_ignore_ascii_case(SET.name().to_bytes()) {
            let (value, arg_count) = parse_set_argument(args, index + 1)?;
            if set.replace(value).is_some() {
                return Err(ConfigError::Repeated(SET.name()));
            }
            index += 1 + arg_count;
            continue;
        }
        let which = NUMBERS
            .iter()
            .position(|number| short.eq_ignore_ascii_case(number.name.to_bytes()))
            .ok_or(ConfigError::UnknownName)?;
        let number = NUMBERS[which];
        if std::mem::replace(&mut given[which], true) {
            return Err(ConfigError::Repeated(number.name));
        }
        let value = args.get(index + 1).and_then(Arg::to_integer);
        defaults[which] = value
            .filter(|value| (number.min..=number.max).contains(value))
            .ok_or(ConfigError::BadValue(number))?;
        index += 2;
    }
    let set = CString::new(set.map_or_else(String::new, |set| set.to_string())).unwrap_or_default();
    let registered =
        NUMBERS.iter().zip(defaults).all(|(number, default)| number.register(ctx, default));
    let registered = registered && SET.register(ctx, &set);
    if registered && config::load(ctx) { Ok(()) } else { Err(ConfigError::Refused) }
}

/// Parses the set at `index` of the module's arguments. Returns it and how many arguments it takes.
///
/// The set is one quoted argument, or three words: `CONFIG REWRITE` drops the quotes of a module's
/// arguments.
fn parse_set_argument(args: Args<'_>, index: usize) -> Result<(NodeSet, usize), ConfigError> {
    let first = args.get(index).map_or(&[][..], Arg::as_bytes);
    let arg_count = if first.contains(&b' ') { 1 } else { 3 };
    let value: Vec<_> =
        (index..index + arg_count).filter_map(|index| args.get(index)).map(Arg::as_bytes).collect();
    let set = parse_set(&value.join(&b' '))?;
    Ok((set.ok_or(ConfigError::NoSet)?, arg_count))
}

/// Parses the value of `lock.set`; `None` if it is empty, since the node then belongs to no set.
fn parse_set(value: &[u8]) -> Result<Option<NodeSet>, InvalidSet> {
    if value.trim_ascii().is_empty() {
        return Ok(None);
    }
    String::from_utf8_lossy(value).parse().map(Some)
}

fn normalize_set(value: &[u8]) -> Result<String, String> {
    let set = parse_set(value).map_err(|error| error.to_string())?;
    Ok(set.map_or_else(String::new, |set| set.to_string()))
}

pub(crate) fn node_set() -> Option<NodeSet> {
    SET.with_value(parse_set).expect("the value was checked when it was set")
}

pub(crate) fn max_ttl() -> Ttl {
    Ttl::from_ms(MAX_TTL_MS.value().unsigned_abs())
        .expect("the limits of lock.max-ttl are those of a ttl")
}

pub(crate) fn rejoin_delay_ms() -> u64 {
    match REJOIN_DELAY_MS.value() {
        AS_MAX_TTL => max_ttl().ms(),
        ms => ms.unsigned_abs(),
    }
}

pub(crate) fn max_clock_skew_ms() -> u64 {
    MAX_CLOCK_SKEW_MS.value().unsigned_abs()
}

pub(crate) fn max_waiters() -> usize {
    usize::try_from(MAX_WAITERS.value()).unwrap_or(0)
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error(
        "unknown module argument; the arguments are: {} {}",
        NUMBERS.map(|number| text(number.name)).join(" "),
        text(SET.name())
    )]
    UnknownName,
    #[error("the module argument {} is given twice", text(.0))]
    Repeated(&'static CStr),
    #[error(
        "the module argument {} must be a whole number between {} and {}",
        text(.0.name), .0.min, .0.max
    )]
    BadValue(&'static Number),
    #[error(
        "the module argument `set` has no value: write `set NAME ID MEMBERS`, or leave `set` out"
    )]
    NoSet,
    #[error(transparent)]
    InvalidSet(#[from] InvalidSet),
    /// The server refused a setting or its value, and has logged why.
    #[error(
        "a configuration value is not allowed; the limits are:{} lock.{} must be NAME ID MEMBERS",
        NUMBERS.map(limits).concat(),
        text(SET.name())
    )]
    Refused,
}

fn limits(number: &Number) -> String {
    format!(" lock.{} {} to {};", text(number.name), number.min, number.max)
}

fn text(name: &CStr) -> &str {
    name.to_str().unwrap_or_default()
}
