//! Parses the arguments of commands.

use std::ops::Range;

use quorlock_core::node::{KEYS_MAX, Mode, Pattern, SCAN_COUNT_MAX};
use quorlock_core::{Fence, Ttl};

use crate::error::CommandError;
use crate::ffi::command::Keys;
use crate::ffi::{Arg, Args, Name};

/// Longest token, in bytes.
pub(crate) const TOKEN_BYTES_MAX: usize = 256;
/// Longest owner label, in bytes.
pub(crate) const OWNER_BYTES_MAX: usize = 256;
/// Longest wait, in milliseconds: a week, which is the longest ttl.
pub(crate) const WAIT_MS_MAX: u64 = Ttl::MAX_MS;

/// The arguments of a command with a token: parsed up to the token.
pub(crate) struct KeysAndToken<'a, K> {
    pub(crate) keys: K,
    pub(crate) token: Name<'a>,
    pub(crate) rest: Rest<'a>,
}

/// The arguments from the index `from` on, unparsed: in commands with a token, those after it.
#[derive(Clone, Copy)]
pub(crate) struct Rest<'a> {
    args: Args<'a>,
    from: usize,
}

/// The options of a command. Most commands take only some of them.
#[derive(Default)]
pub(crate) struct Options<'a> {
    pub(crate) mode: Mode,
    pub(crate) owner: Option<Arg<'a>>,
    pub(crate) fence: Option<Fence>,
    pub(crate) new_token: Option<Arg<'a>>,
    pub(crate) wait_ms: Option<u64>,
}

/// The positions of a command's tokens, which SLOWLOG and MONITOR must not show.
///
/// If they are unclear, returns the position of every argument that may be a token.
pub(crate) fn token_positions(keys: Keys, args: Args<'_>) -> impl Iterator<Item = usize> {
    let (token_at, hides_all) = match keys {
        Keys::First | Keys::None => (2, false),
        // The position is clear if a ttl or nothing follows the token.
        Keys::Counted => match key_positions(args) {
            Some(keys)
                if keys.end < args.len()
                    && args.get(keys.end + 1).is_none_or(|ttl| ttl.to_integer().is_some()) =>
            {
                (keys.end, false)
            }
            _ => (2, true),
        },
    };
    (token_at..args.len()).filter(move |&index| {
        let follows_token_option = || {
            let before = index.checked_sub(1).and_then(|before| args.get(before));
            before.is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(b"TOKEN"))
        };
        hides_all || index == token_at || index > token_at + 1 && follows_token_option()
    })
}

/// The positions of the keys after `numkeys`.
///
/// `None` if `numkeys` is not a number from 1 to [`KEYS_MAX`], or if fewer arguments follow.
pub(crate) fn key_positions(args: Args<'_>) -> Option<Range<usize>> {
    let count = usize::try_from(args.get(1)?.to_integer()?).ok()?;
    ((1..=KEYS_MAX).contains(&count) && 2 + count <= args.len()).then(|| 2..2 + count)
}

/// Parses `command key token`.
pub(crate) fn key_and_token(
    args: Args<'_>,
) -> Result<KeysAndToken<'_, [Name<'_>; 1]>, CommandError> {
    let (Some(key), Some(token)) = (args.get(1), args.get(2)) else {
        return Err(CommandError::Arity);
    };
    Ok(KeysAndToken {
        keys: [key.into()],
        token: checked_token(token)?.into(),
        rest: Rest { args, from: 3 },
    })
}

/// Parses `command numkeys key [key ...] token`. Returns each key once, sorted by bytes.
pub(crate) fn sorted_keys_and_token(
    args: Args<'_>,
) -> Result<KeysAndToken<'_, Vec<Name<'_>>>, CommandError> {
    let Counted { mut keys, token, rest } = counted(args)?;
    keys.sort_unstable_by_key(|key| key.as_bytes());
    keys.dedup_by_key(|key| key.as_bytes());
    Ok(KeysAndToken { keys: keys.into_iter().map(Name::from).collect(), token, rest })
}

/// Parses `command numkeys key [key ...] token`. Returns each key once, in the client's order.
pub(crate) fn ordered_keys_and_token(
    args: Args<'_>,
) -> Result<KeysAndToken<'_, Vec<Name<'_>>>, CommandError> {
    let Counted { keys, token, rest } = counted(args)?;
    let mut unique: Vec<Arg<'_>> = Vec::with_capacity(keys.len());
    for key in keys {
        if unique.iter().all(|other| other.as_bytes() != key.as_bytes()) {
            unique.push(key);
        }
    }
    Ok(KeysAndToken { keys: unique.into_iter().map(Name::from).collect(), token, rest })
}

/// The arguments of a command with `numkeys`. The keys are as the client sent them.
struct Counted<'a> {
    keys: Vec<Arg<'a>>,
    token: Name<'a>,
    rest: Rest<'a>,
}

fn counted(args: Args<'_>) -> Result<Counted<'_>, CommandError> {
    let count =
        args.get(1).ok_or(CommandError::Arity)?.to_integer().ok_or(CommandError::NotAnInteger)?;
    let count = usize::try_from(count).ok().filter(|count| (1..=KEYS_MAX).contains(count));
    let token_at = 2 + count.ok_or(CommandError::NumKeys)?;
    let token = checked_token(args.get(token_at).ok_or(CommandError::Arity)?)?.into();
    let keys = (2..token_at).filter_map(|index| args.get(index)).collect();
    Ok(Counted { keys, token, rest: Rest { args, from: token_at + 1 } })
}

fn ttl(rest: Rest<'_>, max: Ttl) -> Result<Ttl, CommandError> {
    let Rest { args, from } = rest;
    let ms = args
        .get(from)
        .ok_or(CommandError::Arity)?
        .to_integer()
        .ok_or(CommandError::NotAnInteger)?;
    Ok(Ttl::from_ms_up_to(u64::try_from(ms).unwrap_or(0), max.ms())?)
}

/// Whether the lock of a command may be shared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    Allowed,
    /// A lock of several keys, or of any of several, is exclusive.
    Refused,
}

/// Parses what follows the token: `ttl [SHARED] [WAIT ms] [FENCE n] [OWNER label]`.
pub(crate) fn acquire_terms(
    rest: Rest<'_>,
    max_ttl: Ttl,
    sharing: Sharing,
) -> Result<(Ttl, Options<'_>), CommandError> {
    let ttl = ttl(rest, max_ttl)?;
    let mut options = Options::default();
    let mut mode = None;
    each_option(rest, shared_flag(&mut mode, sharing), |name, value| {
        if name.eq_ignore_ascii_case(b"OWNER") {
            set_once(&mut options.owner, checked_owner(value)?)
        } else if name.eq_ignore_ascii_case(b"FENCE") {
            set_once(&mut options.fence, checked_fence(value)?)
        } else if name.eq_ignore_ascii_case(b"WAIT") {
            set_once(&mut options.wait_ms, checked_wait(value)?)
        } else {
            let takes = match sharing {
                Sharing::Allowed => "SHARED, WAIT ms, FENCE n and OWNER label",
                Sharing::Refused => "WAIT ms, FENCE n and OWNER label",
            };
            Err(CommandError::UnknownOption { after: "ttl", takes })
        }
    })?;
    options.mode = mode.unwrap_or_default();
    Ok((ttl, options))
}

/// Parses what follows the token: `ttl [SHARED] [FENCE n] [TOKEN new]`.
pub(crate) fn extend_terms(
    rest: Rest<'_>,
    max_ttl: Ttl,
    sharing: Sharing,
) -> Result<(Ttl, Options<'_>), CommandError> {
    let ttl = ttl(rest, max_ttl)?;
    let mut options = Options::default();
    let mut mode = None;
    each_option(rest, shared_flag(&mut mode, sharing), |name, value| {
        if name.eq_ignore_ascii_case(b"FENCE") {
            set_once(&mut options.fence, checked_fence(value)?)
        } else if name.eq_ignore_ascii_case(b"TOKEN") {
            set_once(&mut options.new_token, checked_token(value)?)
        } else {
            let takes = match sharing {
                Sharing::Allowed => "SHARED, FENCE n and TOKEN new",
                Sharing::Refused => "FENCE n and TOKEN new",
            };
            Err(CommandError::UnknownOption { after: "ttl", takes })
        }
    })?;
    options.mode = mode.unwrap_or_default();
    Ok((ttl, options))
}

/// Returns a parser of the option SHARED, which has no value.
///
/// If the option is SHARED, the parser stores the mode in `place` and returns true.
fn shared_flag(
    place: &mut Option<Mode>,
    sharing: Sharing,
) -> impl FnMut(&[u8]) -> Result<bool, CommandError> {
    move |name| {
        if !name.eq_ignore_ascii_case(b"SHARED") {
            return Ok(false);
        }
        if sharing == Sharing::Refused {
            return Err(CommandError::SeveralShared);
        }
        set_once(place, Mode::Shared)?;
        Ok(true)
    }
}

/// Checks that nothing follows the token.
pub(crate) fn no_terms(Rest { args, from }: Rest<'_>) -> Result<(), CommandError> {
    if args.len() > from { Err(CommandError::Arity) } else { Ok(()) }
}

/// Parses `command key [NOW]`. Returns whether NOW is given.
pub(crate) fn revoke_terms(args: Args<'_>) -> Result<bool, CommandError> {
    match (args.get(2), args.len()) {
        (None, _) => Ok(false),
        (Some(word), 3) if word.as_bytes().eq_ignore_ascii_case(b"NOW") => Ok(true),
        (Some(_), 3) => Err(CommandError::UnknownOption { after: "key", takes: "NOW" }),
        (Some(_), _) => Err(CommandError::Arity),
    }
}

/// The arguments `cursor [MATCH pattern] [COUNT n]`.
pub(crate) struct ScanTerms {
    pub(crate) cursor: u64,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) count: u32,
}

/// How many locks a call of `LOCK.SCAN` examines by default, as with `SCAN`.
const COUNT_DEFAULT: u32 = 10;

pub(crate) fn scan_terms(args: Args<'_>) -> Result<ScanTerms, CommandError> {
    let cursor = args.get(1).ok_or(CommandError::Arity)?;
    let cursor = cursor.to_integer().and_then(|cursor| u64::try_from(cursor).ok());
    let cursor = cursor.ok_or(CommandError::Cursor)?;
    let (mut pattern, mut count) = (None, None);
    each_option(
        Rest { args, from: 1 },
        |_| Ok(false),
        |name, value| {
            if name.eq_ignore_ascii_case(b"MATCH") {
                set_once(
                    &mut pattern,
                    Pattern::new(value.as_bytes()).ok_or(CommandError::PatternLength)?,
                )
            } else if name.eq_ignore_ascii_case(b"COUNT") {
                set_once(&mut count, checked_count(value)?)
            } else {
                Err(CommandError::UnknownOption {
                    after: "cursor",
                    takes: "MATCH pattern and COUNT n",
                })
            }
        },
    )?;
    Ok(ScanTerms { cursor, pattern, count: count.unwrap_or(COUNT_DEFAULT) })
}

fn checked_count(count: Arg<'_>) -> Result<u32, CommandError> {
    let n = count.to_integer().ok_or(CommandError::NotAnInteger)?;
    u32::try_from(n)
        .ok()
        .filter(|n| (1..=SCAN_COUNT_MAX).contains(n))
        .ok_or(CommandError::CountRange)
}

/// Parses the options that follow the argument at `from`.
///
/// Passes each name to `flag`. If `flag` returns false, passes the name and its value to `take`.
fn each_option<'a>(
    Rest { args, from }: Rest<'a>,
    mut flag: impl FnMut(&[u8]) -> Result<bool, CommandError>,
    mut take: impl FnMut(&[u8], Arg<'a>) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let mut index = from + 1;
    while let Some(name) = args.get(index) {
        if flag(name.as_bytes())? {
            index += 1;
            continue;
        }
        let value = args.get(index + 1).ok_or(CommandError::Arity)?;
        take(name.as_bytes(), value)?;
        index += 2;
    }
    Ok(())
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

fn checked_fence(fence: Arg<'_>) -> Result<Fence, CommandError> {
    let n = fence.to_integer().ok_or(CommandError::NotAnInteger)?;
    u64::try_from(n).ok().and_then(Fence::new).ok_or(CommandError::FenceRange)
}

fn checked_wait(wait: Arg<'_>) -> Result<u64, CommandError> {
    let ms = wait.to_integer().ok_or(CommandError::NotAnInteger)?;
    u64::try_from(ms).ok().filter(|ms| *ms <= WAIT_MS_MAX).ok_or(CommandError::WaitRange)
}
