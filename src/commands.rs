//! What each command does: parse, open the key, let the node decide, write what it says, answer.
//!
//! No call into the server is made while the node is borrowed: writing a key and opening it may call back into this
//! module with a keyspace event.

use quorlock_core::node::{self, Acquired, Extended, Inspected, MirrorWrite, Released};

use crate::docs;
use crate::error::CommandError;
use crate::ffi::command::{Command, Spec};
use crate::ffi::{Access, Args, Ctx, Key, clock};
use crate::module;
use crate::request::{self, Named, Options};

pub(crate) struct Acquire;
pub(crate) struct Extend;
pub(crate) struct Release;
pub(crate) struct Inspect;

impl Command for Acquire {
    const SPEC: Spec = docs::ACQUIRE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        match acquire(ctx, args) {
            Ok(Some(fence)) => ctx.reply_integer(fence),
            Ok(None) => ctx.reply_null(),
            Err(error) => refuse(ctx, error),
        }
    }
}

impl Command for Extend {
    const SPEC: Spec = docs::EXTEND;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        match extend(ctx, args) {
            Ok(Some(fence)) => ctx.reply_integer(fence),
            Ok(None) => ctx.reply_null(),
            Err(error) => refuse(ctx, error),
        }
    }
}

impl Command for Release {
    const SPEC: Spec = docs::RELEASE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        match release(ctx, args) {
            Ok(released) => ctx.reply_integer(released.into()),
            Err(error) => refuse(ctx, error),
        }
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

fn acquire(ctx: &Ctx<'_>, args: Args<'_>) -> Result<Option<i64>, CommandError> {
    let Named { key, token } = request::named(args)?;
    let ttl = request::ttl(args, module::max_ttl())?;
    let Options { owner, fence, .. } = request::acquire_options(args)?;
    let db = ctx.db();
    let mut mirror = Key::open(ctx, key, Access::Write);

    let ask = node::Acquire { db, key: &key, token: &token, ttl, owner: owner.as_ref(), fence };
    let decided = module::state().node.acquire(clock::now(), &ask, &mirror);
    match decided {
        Acquired::Granted { fence, expires_at_ms } => {
            if !mirror.set(token, expires_at_ms) {
                module::state().node.revoke(db, key.as_bytes());
                return Err(CommandError::NotWritten);
            }
            module::tell_set(ctx, key, token, expires_at_ms);
            Ok(Some(reply(fence)))
        }
        Acquired::Refused => Ok(None),
        Acquired::WrongType => Err(CommandError::WrongType),
    }
}

fn extend(ctx: &Ctx<'_>, args: Args<'_>) -> Result<Option<i64>, CommandError> {
    let Named { key, token } = request::named(args)?;
    let ttl = request::ttl(args, module::max_ttl())?;
    let Options { fence, new_token, .. } = request::extend_options(args)?;
    let mut mirror = Key::open(ctx, key, Access::Write);

    let ask =
        node::Extend { db: ctx.db(), key: &key, token: &token, ttl, fence, new_token: new_token.as_ref() };
    let decided = module::state().node.extend(clock::now(), &ask, &mirror);
    match decided {
        Extended::Held { fence, mirror: write } => {
            let token = new_token.unwrap_or(token);
            match write {
                MirrorWrite::Nothing => {}
                // The lease decides; without its mirror it is a lock all the same, so a failure here costs nothing.
                MirrorWrite::Set { expires_at_ms } => {
                    if mirror.set(token, expires_at_ms) {
                        module::tell_set(ctx, key, token, expires_at_ms);
                    }
                }
                MirrorWrite::Expire { expires_at_ms } => {
                    if mirror.expire(expires_at_ms) {
                        module::tell_expire(ctx, key, expires_at_ms);
                    }
                }
            }
            Ok(Some(reply(fence)))
        }
        Extended::NotHeld => Ok(None),
        Extended::BadFence(error) => Err(CommandError::Fence(error)),
        Extended::WrongType => Err(CommandError::WrongType),
    }
}

fn release(ctx: &Ctx<'_>, args: Args<'_>) -> Result<bool, CommandError> {
    let Named { key, token } = request::named(args)?;
    let mut mirror = Key::open(ctx, key, Access::Write);

    let decided =
        module::state().node.release(clock::monotonic(), ctx.db(), key.as_bytes(), token.as_bytes(), &mirror);
    let (released, delete) = match decided {
        Released::Released(delete) => (true, delete),
        Released::NotHeld(delete) => (false, delete),
        Released::WrongType => return Err(CommandError::WrongType),
    };
    if delete {
        mirror.delete();
        module::tell_delete(ctx, key);
    }
    Ok(released)
}

fn inspect(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
    let key = args.get(1).ok_or(CommandError::Arity)?;
    let mirror = Key::open(ctx, key, Access::Read);
    let (now, db) = (clock::now(), ctx.db());
    let state = module::state();
    let (owner, fence, ttl_ms) = match state.node.inspect(now, db, key.as_bytes(), &mirror) {
        Inspected::Free => {
            ctx.reply_null();
            return Ok(());
        }
        Inspected::WrongType => return Err(CommandError::WrongType),
        Inspected::Lease { owner, fence, ttl_ms } => (owner, Some(reply(fence)), Some(ttl_ms)),
        Inspected::Foreign { ttl_ms } => (None, None, ttl_ms),
    };
    ctx.reply_map(4);
    ctx.reply_bytes(b"owner");
    owner.map_or_else(|| ctx.reply_null(), |owner| ctx.reply_bytes(owner));
    ctx.reply_bytes(b"fence");
    fence.map_or_else(|| ctx.reply_null(), |fence| ctx.reply_integer(fence));
    ctx.reply_bytes(b"ttl");
    let ttl_ms = ttl_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
    // As PTTL: −1 for a key that does not expire.
    ctx.reply_integer(ttl_ms.unwrap_or(-1));
    ctx.reply_bytes(b"waiters");
    ctx.reply_integer(0);
    Ok(())
}

fn refuse(ctx: &Ctx<'_>, error: CommandError) {
    match error {
        CommandError::Arity => ctx.reply_wrong_arity(),
        error => ctx.reply_error(&error),
    }
}

fn reply(fence: quorlock_core::Fence) -> i64 {
    i64::try_from(fence.get()).expect("a fence is below 2^53")
}
