//! Parses the arguments of commands.

use std::ops::Range;

use quorlock_core::node::{self, KEYS_MAX, Mode, Pattern, SCAN_COUNT_MAX};
use quorlock_core::{Fence, Ttl};
use smallvec::SmallVec;

use crate::error::CommandError;
use crate::ffi::command::Keys;
use crate::ffi::{Arg, Args, Name};
use crate::module;

pub(crate) const TOKEN_BYTES_MAX: usize = 256;
pub(crate) const OWNER_BYTES_MAX: usize = 256;
/// A week, the longest ttl.
pub(crate) const WAIT_MS_MAX: u64 = Ttl::MAX_MS;

/// The arguments of a command with a token: parsed up to the token.
pub(crate) struct KeysAndToken<'a> {
    pub(crate) keys: Names<'a>,
    pub(crate) token: Name<'a>,
    pub(crate) rest: Rest<'a>,
}

/// The keys of a command. A single key needs no memory of its own.
type Names<'a> = SmallVec<[Name<'a>; 1]>;

/// The arguments that are not parsed yet; in commands with a token, those after the token.
#[derive(Clone, Copy)]
pub(crate) struct Rest<'a> {
    args: Args<'a>,
    from: usize,
}

impl<'a> Rest<'a> {
    fn next(&mut self) -> Option<Arg<'a>> {
        let next = self.args.get(self.from)?;
        self.from += 1;
        Some(next)
    }

    /// The next argument, which a client must not leave out.
    fn required(&mut self) -> Result<Arg<'a>, CommandError> {
        self.next().ok_or(CommandError::Arity)
    }
}

/// Each command takes only some of these options.
#[derive(Default)]
pub(crate) struct Options<'a> {
    pub(crate) mode: Mode,
    pub(crate) owner: Option<Arg<'a>>,
    pub(crate) fence: Option<Fence>,
    pub(crate) new_token: Option<Arg<'a>>,
    pub(crate) wait_ms: Option<u64>,
}

/// The positions of the tokens of a command that was parsed: its token, and the one that replaces
/// it. The handler in `ffi/entry.rs` hides them from MONITOR and SLOWLOG.
pub(crate) fn token_positions(keys: Keys, args: Args<'_>) -> (usize, Option<usize>) {
    let token_at = key_positions(keys, args).map_or(1, |keys| keys.end);
    let is_token_option =
        |index: &usize| args.get(*index).is_some_and(|name| is_token_option(name.as_bytes()));
    // The ttl comes before the options.
    let option = (token_at + 2..args.len()).find(is_token_option);
    (token_at, option.map(|index| index + 1))
}

fn is_token_option(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"TOKEN")
}

/// The positions of the keys. Fewer arguments may follow.
pub(crate) fn key_positions(keys: Keys, args: Args<'_>) -> Result<Range<usize>, CommandError> {
    match keys {
        Keys::None => Ok(1..1),
        Keys::First => Ok(1..2),
        Keys::Counted => {
            let count = integer(args.get(1).ok_or(CommandError::Arity)?)?;
            let count = usize::try_from(count).ok().filter(|count| (1..=KEYS_MAX).contains(count));
            Ok(2..2 + count.ok_or(CommandError::NumKeys)?)
        }
    }
}

/// Parses the keys and the token of a command. Returns each key once, sorted by bytes.
pub(crate) fn keys_and_token(keys: Keys, args: Args<'_>) -> Result<KeysAndToken<'_>, CommandError> {
    let mut parsed = ordered_keys_and_token(keys, args)?;
    parsed.keys.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
    Ok(parsed)
}

/// Parses the keys and the token of a command. Returns each key once, in the client's order.
pub(crate) fn ordered_keys_and_token(
    keys: Keys,
    args: Args<'_>,
) -> Result<KeysAndToken<'_>, CommandError> {
    let positions = key_positions(keys, args)?;
    let token_at = positions.end;
    let token = checked_token(args.get(token_at).ok_or(CommandError::Arity)?)?.into();
    let mut keys = Names::new();
    for key in positions.filter_map(|index| args.get(index)) {
        if keys.iter().all(|other| other.as_ref() != key.as_bytes()) {
            keys.push(key.into());
        }
    }
    Ok(KeysAndToken { keys, token, rest: Rest { args, from: token_at + 1 } })
}

/// Parses what follows the token: `ttl [SHARED] [WAIT ms] [FENCE n] [OWNER label]`.
pub(crate) fn acquire_terms(
    rest: Rest<'_>,
    keys: Keys,
) -> Result<(Ttl, Options<'_>), CommandError> {
    ttl_and_options(rest, keys, |options, name, value| {
        if name.eq_ignore_ascii_case(b"OWNER") {
            set_once(&mut options.owner, checked_owner(value)?)
        } else if name.eq_ignore_ascii_case(b"FENCE") {
            // 0 is the front of the queue.
            set_once(&mut options.fence, checked_fence(value, 0)?)
        } else if name.eq_ignore_ascii_case(b"WAIT") {
            set_once(&mut options.wait_ms, checked_wait(value)?)
        } else {
            let allowed = match keys {
                Keys::First => "SHARED, WAIT ms, FENCE n and OWNER label",
                _ => "WAIT ms, FENCE n and OWNER label",
            };
            Err(CommandError::UnknownOption { after: "ttl", allowed })
        }
    })
}

/// Parses what follows the token: `ttl [SHARED] [FENCE n] [TOKEN new]`.
pub(crate) fn extend_terms(rest: Rest<'_>, keys: Keys) -> Result<(Ttl, Options<'_>), CommandError> {
    ttl_and_options(rest, keys, |options, name, value| {
        if name.eq_ignore_ascii_case(b"FENCE") {
            set_once(&mut options.fence, checked_fence(value, 1)?)
        } else if is_token_option(name) {
            set_once(&mut options.new_token, checked_token(value)?)
        } else {
            let allowed = match keys {
                Keys::First => "SHARED, FENCE n and TOKEN new",
                _ => "FENCE n and TOKEN new",
            };
            Err(CommandError::UnknownOption { after: "ttl", allowed })
        }
    })
}

/// Parses `ttl [SHARED] [name value ...]`. Passes the name and the value of each option to `take`.
///
/// A lock of several keys, or of any of several, is exclusive.
fn ttl_and_options<'a>(
    mut rest: Rest<'a>,
    keys: Keys,
    mut take: impl FnMut(&mut Options<'a>, &[u8], Arg<'a>) -> Result<(), CommandError>,
) -> Result<(Ttl, Options<'a>), CommandError> {
    let ms = integer(rest.required()?)?;
    let ttl = Ttl::from_ms_up_to(u64::try_from(ms).unwrap_or(0), module::max_ttl().ms())?;
    let (mut options, mut mode) = (Options::default(), None);
    while let Some(name) = rest.next() {
        if name.as_bytes().eq_ignore_ascii_case(b"SHARED") {
            set_once(&mut mode, Mode::Shared)?;
        } else {
            take(&mut options, name.as_bytes(), rest.required()?)?;
        }
    }
    options.mode = mode.unwrap_or_default();
    if keys != Keys::First && options.mode == Mode::Shared {
        return Err(node::CommandError::SeveralShared.into());
    }
    Ok((ttl, options))
}

/// Checks that nothing follows the token.
pub(crate) fn no_terms(mut rest: Rest<'_>) -> Result<(), CommandError> {
    if rest.next().is_some() { Err(CommandError::Arity) } else { Ok(()) }
}

/// Parses `command key [NOW]`. Returns whether NOW is given.
pub(crate) fn revoke_terms(args: Args<'_>) -> Result<bool, CommandError> {
    match (args.get(2), args.len()) {
        (None, _) => Ok(false),
        (Some(word), 3) if word.as_bytes().eq_ignore_ascii_case(b"NOW") => Ok(true),
        (Some(_), 3) => Err(CommandError::UnknownOption { after: "key", allowed: "NOW" }),
        (Some(_), _) => Err(CommandError::Arity),
    }
}

/// `cursor [MATCH pattern] [COUNT n]`.
pub(crate) struct ScanTerms {
    pub(crate) cursor: u64,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) count: u32,
}

/// As with `SCAN`.
const COUNT_DEFAULT: u32 = 10;

pub(crate) fn scan_terms(args: Args<'_>) -> Result<ScanTerms, CommandError> {
    let mut rest = Rest { args, from: 1 };
    let cursor = rest.required()?.to_integer().and_then(|cursor| u64::try_from(cursor).ok());
    let cursor = cursor.ok_or(CommandError::Cursor)?;
    let (mut pattern, mut count) = (None, None);
    while let Some(name) = rest.next() {
        let (name, value) = (name.as_bytes(), rest.required()?);
        if name.eq_ignore_ascii_case(b"MATCH") {
            let new = Pattern::new(value.as_bytes()).ok_or(CommandError::PatternLength)?;
            set_once(&mut pattern, new)?;
        } else if name.eq_ignore_ascii_case(b"COUNT") {
            set_once(&mut count, checked_count(value)?)?;
        } else {
            let allowed = "MATCH pattern and COUNT n";
            return Err(CommandError::UnknownOption { after: "cursor", allowed });
        }
    }
    Ok(ScanTerms { cursor, pattern, count: count.unwrap_or(COUNT_DEFAULT) })
}

fn checked_count(count: Arg<'_>) -> Result<u32, CommandError> {
    let count = u32::try_from(integer(count)?).ok();
    count.filter(|count| (1..=SCAN_COUNT_MAX).contains(count)).ok_or(CommandError::CountRange)
}

fn set_once<T>(place: &mut Option<T>, value: T) -> Result<(), CommandError> {
    if place.replace(value).is_some() { Err(CommandError::RepeatedOption) } else { Ok(()) }
}

fn checked_token(token: Arg<'_>) -> Result<Arg<'_>, CommandError> {
    if (1..=TOKEN_BYTES_MAX).contains(&token.as_bytes().len()) {
        Ok(token)
    } else {
        Err(CommandError::TokenLength)
    }
}

fn checked_owner(owner: Arg<'_>) -> Result<Arg<'_>, CommandError> {
    if owner.as_bytes().len() > OWNER_BYTES_MAX {
        Err(CommandError::OwnerLength)
    } else if std::str::from_utf8(owner.as_bytes()).is_err() {
        Err(CommandError::OwnerNotText)
    } else {
        Ok(owner)
    }
}

fn checked_fence(fence: Arg<'_>, min: u64) -> Result<Fence, CommandError> {
    let fence = u64::try_from(integer(fence)?).ok().filter(|&fence| fence >= min);
    let checked = |fence| if fence == 0 { Some(Fence::ZERO) } else { Fence::new(fence) };
    fence.and_then(checked).ok_or(CommandError::FenceRange { min })
}

fn checked_wait(wait: Arg<'_>) -> Result<u64, CommandError> {
    let ms = u64::try_from(integer(wait)?).ok();
    ms.filter(|ms| *ms <= WAIT_MS_MAX).ok_or(CommandError::WaitRange)
}

fn integer(arg: Arg<'_>) -> Result<i64, CommandError> {
    arg.to_integer().ok_or(CommandError::NotAnInteger)
}
