//! What each command does: parse, open the keys, let the node decide, write what it says, answer.
//!
//! No call into the server is made while the node is borrowed: writing a key and opening it may call back into this
//! module with a keyspace event.

use quorlock_core::Fence;
use quorlock_core::node::{self, Acquired, Extended, Inspected, MirrorWrite};

use crate::docs;
use crate::error::CommandError;
use crate::ffi::command::{Command, Spec};
use crate::ffi::{Access, Arg, Args, Blocked, Ctx, Key, clock};
use crate::request::{self, Named, Options, Terms};
use crate::{handover, module, tell};

pub(crate) struct Acquire;
pub(crate) struct Extend;
pub(crate) struct Release;
pub(crate) struct Inspect;
pub(crate) struct AcquireAll;
pub(crate) struct ExtendAll;
pub(crate) struct ReleaseAll;

impl Command for Acquire {
    const SPEC: Spec = docs::ACQUIRE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let acquired = request::named(args).and_then(|Named { keys, token, rest }| {
            let terms = request::acquire_terms(rest, module::max_ttl())?;
            let mut mirrors = keys.map(|key| Key::open(ctx, key, Access::Write));
            acquire(ctx, &keys, token, &terms, &mut mirrors)
        });
        reply_acquired(ctx, acquired);
    }
}

impl Command for AcquireAll {
    const SPEC: Spec = docs::ACQUIRE_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let acquired = request::all_named(args).and_then(|Named { keys, token, rest }| {
            let terms = request::acquire_terms(rest, module::max_ttl())?;
            let mut mirrors = Key::open_all(ctx, &keys);
            acquire(ctx, &keys, token, &terms, &mut mirrors)
        });
        reply_acquired(ctx, acquired);
    }
}

fn reply_acquired(ctx: &Ctx<'_>, acquired: Result<Outcome, CommandError>) {
    match acquired {
        Ok(Outcome::Granted { fence, waits: false }) => ctx.reply_integer(reply(fence)),
        Ok(Outcome::Granted { fence, waits: true }) => reply_granted(ctx, fence, 0),
        Ok(Outcome::Refused) => ctx.reply_null(),
        Ok(Outcome::Waits) => {}
        Err(error) => refuse(ctx, error),
    }
}

/// What an ACQUIRE came to.
#[derive(Clone, Copy)]
enum Outcome {
    Granted {
        fence: Fence,
        /// Whether the client was ready to wait, and so expects to be told for how long it did.
        waits: bool,
    },
    Refused,
    /// It is answered later.
    Waits,
}

/// The answer to an ACQUIRE with WAIT that was granted.
pub(crate) fn reply_granted(ctx: &Ctx<'_>, fence: Fence, waited_us: u64) {
    ctx.reply_array(2);
    ctx.reply_integer(reply(fence));
    ctx.reply_integer(i64::try_from(waited_us).unwrap_or(i64::MAX));
}

impl Command for Extend {
    const SPEC: Spec = docs::EXTEND;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let extended = request::named(args).and_then(|Named { keys, token, rest }| {
            let terms = request::extend_terms(rest, module::max_ttl())?;
            let mut mirrors = keys.map(|key| Key::open(ctx, key, Access::Write));
            extend(ctx, &keys, token, &terms, &mut mirrors, &mut [MirrorWrite::Nothing])
        });
        reply_extended(ctx, extended);
    }
}

impl Command for ExtendAll {
    const SPEC: Spec = docs::EXTEND_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let extended = request::all_named(args).and_then(|Named { keys, token, rest }| {
            let terms = request::extend_terms(rest, module::max_ttl())?;
            let mut mirrors = Key::open_all(ctx, &keys);
            extend(ctx, &keys, token, &terms, &mut mirrors, &mut vec![MirrorWrite::Nothing; keys.len()])
        });
        reply_extended(ctx, extended);
    }
}

fn reply_extended(ctx: &Ctx<'_>, extended: Result<Option<Fence>, CommandError>) {
    match extended {
        Ok(Some(fence)) => ctx.reply_integer(reply(fence)),
        Ok(None) => ctx.reply_null(),
        Err(error) => refuse(ctx, error),
    }
}

impl Command for Release {
    const SPEC: Spec = docs::RELEASE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let named = request::named(args);
        reply_released(ctx, named.and_then(|named| handover::release(ctx, named.keys[0], named.token)));
    }
}

impl Command for ReleaseAll {
    const SPEC: Spec = docs::RELEASE_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let named = request::all_named(args);
        reply_released(ctx, named.and_then(|named| handover::release_all(ctx, &named.keys, named.token)));
    }
}

fn reply_released(ctx: &Ctx<'_>, released: Result<bool, CommandError>) {
    match released {
        Ok(released) => ctx.reply_integer(released.into()),
        Err(error) => refuse(ctx, error),
    }
}

impl Command for Inspect {
    const SPEC: Spec = docs::INSPECT;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        if let Err(error) = inspect(ctx, args) {
            refuse(ctx, error);
        }
    }
}

fn acquire(
    ctx: &Ctx<'_>,
    keys: &[Arg<'_>],
    token: Arg<'_>,
    terms: &Terms<'_>,
    mirrors: &mut [Key<'_>],
) -> Result<Outcome, CommandError> {
    let &Terms { ttl, options: Options { ref owner, fence, wait_ms, .. } } = terms;
    let db = ctx.db();
    let may_wait = wait_ms.is_some_and(|ms| ms > 0) && !ctx.denies_blocking();
    let ask = node::Acquire { db, keys, token: &token, ttl, owner: owner.as_ref(), fence, may_wait };
    let now = clock::now();
    let decided = module::state().node.acquire(now, &ask, mirrors);
    match decided {
        Acquired::Granted { fence, expires_at_ms } => {
            if handover::write(ctx, db, keys, token, expires_at_ms, mirrors) {
                Ok(Outcome::Granted { fence, waits: wait_ms.is_some() })
            } else {
                Err(CommandError::NotWritten)
            }
        }
        Acquired::Refused => Ok(Outcome::Refused),
        Acquired::MustWait => {
            let Some(blocked) = Blocked::block(ctx) else { return Ok(Outcome::Refused) };
            let state = &mut *module::state();
            state.node.enqueue(now, &ask, wait_ms.unwrap_or(0), blocked.ticket(), mirrors);
            state.waiting.join(blocked);
            Ok(Outcome::Waits)
        }
        Acquired::QueueFull { max_waiters } => Err(CommandError::QueueFull { max_waiters }),
        Acquired::Abstaining { reason, left_ms } => Err(CommandError::Abstaining { reason, left_ms }),
        Acquired::WrongType => Err(CommandError::WrongType),
    }
}

fn extend(
    ctx: &Ctx<'_>,
    keys: &[Arg<'_>],
    token: Arg<'_>,
    terms: &Terms<'_>,
    mirrors: &mut [Key<'_>],
    writes: &mut [MirrorWrite],
) -> Result<Option<Fence>, CommandError> {
    let &Terms { ttl, options: Options { fence, new_token, .. } } = terms;
    let ask = node::Extend { db: ctx.db(), keys, token: &token, ttl, fence, new_token: new_token.as_ref() };
    let decided = module::state().node.extend(clock::now(), &ask, mirrors, writes);
    match decided {
        Extended::Held { fence } => {
            let token = new_token.unwrap_or(token);
            // The lease decides; without its mirror it is a lock all the same, so a failure here costs nothing.
            for (mirror, write) in mirrors.iter_mut().zip(&mut *writes) {
                let written = match *write {
                    MirrorWrite::Nothing => true,
                    MirrorWrite::Set { expires_at_ms } => mirror.set(token, expires_at_ms),
                    MirrorWrite::Expire { expires_at_ms } => mirror.expire(expires_at_ms),
                };
                if !written {
                    *write = MirrorWrite::Nothing;
                }
            }
            // Only when all are written: whoever is told may do something to the others.
            for (&key, write) in keys.iter().zip(writes) {
                match *write {
                    MirrorWrite::Nothing => {}
                    MirrorWrite::Set { expires_at_ms } => tell::set(ctx, key, token, expires_at_ms),
                    MirrorWrite::Expire { expires_at_ms } => tell::expire(ctx, key, expires_at_ms),
                }
            }
            Ok(Some(fence))
        }
        Extended::NotHeld => Ok(None),
        Extended::OtherKeys => Err(CommandError::OtherKeys),
        Extended::BadFence(error) => Err(CommandError::Fence(error)),
        Extended::WrongType => Err(CommandError::WrongType),
    }
}

fn inspect(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let key = args.get(1).ok_or(CommandError::Arity)?;
    let mirror = Key::open(ctx, key, Access::Read);
    let (now, db) = (clock::now(), ctx.db());
    let mut state = module::state();
    let (owner, fence, ttl_ms, waiters, keys) = match state.node.inspect(now, db, key.as_bytes(), &mirror) {
        Inspected::Free => {
            ctx.reply_null();
            return Ok(());
        }
        Inspected::WrongType => return Err(CommandError::WrongType),
        Inspected::Lease { owner, fence, ttl_ms, waiters, keys } => {
            (owner, Some(reply(fence)), Some(ttl_ms), waiters, keys)
        }
        Inspected::Foreign { ttl_ms, waiters } => (None, None, ttl_ms, waiters, 1),
    };
    ctx.reply_map(5);
    ctx.reply_bytes(b"owner");
    owner.map_or_else(|| ctx.reply_null(), |owner| ctx.reply_bytes(owner));
    ctx.reply_bytes(b"fence");
    fence.map_or_else(|| ctx.reply_null(), |fence| ctx.reply_integer(fence));
    ctx.reply_bytes(b"ttl");
    let ttl_ms = ttl_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
    // As PTTL: −1 for a key that does not expire.
    ctx.reply_integer(ttl_ms.unwrap_or(-1));
    ctx.reply_bytes(b"waiters");
    ctx.reply_integer(i64::try_from(waiters).unwrap_or(i64::MAX));
    ctx.reply_bytes(b"keys");
    ctx.reply_integer(i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(())
}

fn refuse(ctx: &Ctx<'_>, error: CommandError) {
    match error {
        CommandError::Arity => ctx.reply_wrong_arity(),
        error => ctx.reply_error(&error),
    }
}

fn reply(fence: Fence) -> i64 {
    i64::try_from(fence.get()).expect("a fence is below 2^53")
}
