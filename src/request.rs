//! Arguments into requests: read once, and never looked at again.

use quorlock_core::{Fence, Ttl};

use crate::error::CommandError;
use crate::ffi::{Arg, Args};

/// Longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 256;
/// Longest owner label, in bytes.
const OWNER_BYTES_MAX: usize = 256;
/// Longest wait, in milliseconds: a week, as no lock lasts longer.
pub(crate) const WAIT_MS_MAX: u64 = Ttl::MAX_MS;

/// The arguments that most commands begin with.
pub(crate) struct Named<'a> {
    pub(crate) key: Arg<'a>,
    pub(crate) token: Arg<'a>,
}

/// The options of a command, as far as it has any.
#[derive(Default)]
pub(crate) struct Options<'a> {
    pub(crate) owner: Option<Arg<'a>>,
    pub(crate) fence: Option<Fence>,
    pub(crate) new_token: Option<Arg<'a>>,
    pub(crate) wait_ms: Option<u64>,
}

/// `command key token`
pub(crate) fn named(args: Args<'_>) -> Result<Named<'_>, CommandError> {
    let (Some(key), Some(token)) = (args.get(1), args.get(2)) else { return Err(CommandError::Arity) };
    Ok(Named { key, token: checked_token(token)? })
}

/// `command key token ttl`
pub(crate) fn ttl(args: Args<'_>, max: Ttl) -> Result<Ttl, CommandError> {
    let ms = args.get(3).ok_or(CommandError::Arity)?.to_integer().ok_or(CommandError::NotAnInteger)?;
    Ok(Ttl::at_most(u64::try_from(ms).unwrap_or(0), max.ms())?)
}

/// `LOCK.ACQUIRE key token ttl [WAIT ms] [FENCE n] [OWNER label]`
pub(crate) fn acquire_options(args: Args<'_>) -> Result<Options<'_>, CommandError> {
    let mut options = Options::default();
    each_option(args, |name, value| {
        if name.eq_ignore_ascii_case(b"OWNER") {
            once(&mut options.owner, checked_owner(value)?)
        } else if name.eq_ignore_ascii_case(b"FENCE") {
            once(&mut options.fence, checked_fence(value)?)
        } else if name.eq_ignore_ascii_case(b"WAIT") {
            once(&mut options.wait_ms, checked_wait(value)?)
        } else {
            Err(CommandError::UnknownOption { takes: "WAIT ms, FENCE n and OWNER label" })
        }
    })?;
    Ok(options)
}

/// `LOCK.EXTEND key token ttl [FENCE n] [TOKEN new]`
pub(crate) fn extend_options(args: Args<'_>) -> Result<Options<'_>, CommandError> {
    let mut options = Options::default();
    each_option(args, |name, value| {
        if name.eq_ignore_ascii_case(b"FENCE") {
            once(&mut options.fence, checked_fence(value)?)
        } else if name.eq_ignore_ascii_case(b"TOKEN") {
            once(&mut options.new_token, checked_token(value)?)
        } else {
            Err(CommandError::UnknownOption { takes: "FENCE n and TOKEN new" })
        }
    })?;
    Ok(options)
}

/// Calls `take` for each name and value after the ttl.
fn each_option<'a>(
    args: Args<'a>,
    mut take: impl FnMut(&[u8], Arg<'a>) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let mut index = 4;
    while let Some(name) = args.get(index) {
        let value = args.get(index + 1).ok_or(CommandError::Arity)?;
        take(name.as_bytes(), value)?;
        index += 2;
    }
    Ok(())
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), CommandError> {
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
