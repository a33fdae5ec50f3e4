//! The handler of each command: parse, execute, reply.

use quorlock_core::Fence;
use quorlock_core::node::{self, BlockedId, KeyBytes, Reply, WaitReply, Wants};

use crate::error::CommandError;
use crate::ffi::command::Keys;
use crate::ffi::{Arg, Args, Ctx, Name, ServerKeyspace, clock};
use crate::inspection::{self, number};
use crate::request::{self, KeysAndToken, ScanTerms};
use crate::{docs, module};

/// The handler of a command, which has its keys at these places. It sends exactly one reply, or
/// none and returns the error, which is then the reply.
pub(crate) type Handler = fn(&Ctx<'_>, Keys, Args<'_>) -> Result<(), CommandError>;

pub(crate) fn acquire(ctx: &Ctx<'_>, keys: Keys, args: Args<'_>) -> Result<(), CommandError> {
    acquire_keys(ctx, keys, Wants::All, &request::keys_and_token(keys, args)?)
}

pub(crate) fn acquire_any(ctx: &Ctx<'_>, keys: Keys, args: Args<'_>) -> Result<(), CommandError> {
    acquire_keys(ctx, keys, Wants::Any, &request::ordered_keys_and_token(keys, args)?)
}

fn acquire_keys<'a>(
    ctx: &'a Ctx<'a>,
    keys: Keys,
    wants: Wants,
    KeysAndToken { keys: names, token, rest }: &KeysAndToken<'a>,
) -> Result<(), CommandError> {
    let (ttl, options) = request::acquire_terms(*rest, keys)?;
    let mut keyspace = ServerKeyspace::for_command(ctx);
    let acquire = node::Command::Acquire(node::Acquire {
        db: keyspace.db(),
        keys: names,
        wants,
        token,
        ttl,
        mode: options.mode,
        owner: options.owner.map(Arg::as_bytes),
        fence: options.fence,
        wait_ms: options.wait_ms.unwrap_or(0),
    });
    // With WAIT, the reply to a grant includes the time waited.
    let waited_us = options.wait_ms.map(|_| 0);
    match execute(&acquire, &mut keyspace)? {
        Reply::Granted(fence) => reply_granted(ctx, fence, waited_us, None),
        Reply::GrantedOne { fence, key } => {
            reply_granted(ctx, fence, waited_us, Some(names[key].as_ref()));
        }
        reply => send_reply(ctx, reply),
    }
    Ok(())
}

pub(crate) fn extend(ctx: &Ctx<'_>, keys: Keys, args: Args<'_>) -> Result<(), CommandError> {
    let KeysAndToken { keys: names, token, rest } = request::keys_and_token(keys, args)?;
    let (ttl, options) = request::extend_terms(rest, keys)?;
    let new_token = options.new_token.map(Name::from);
    carry_out(ctx, |db| {
        node::Command::Extend(node::Extend {
            db,
            keys: &names,
            token: &token,
            ttl,
            mode: options.mode,
            fence: options.fence,
            new_token: new_token.as_ref(),
        })
    })
}

pub(crate) fn release(ctx: &Ctx<'_>, keys: Keys, args: Args<'_>) -> Result<(), CommandError> {
    let KeysAndToken { keys, token, rest } = request::keys_and_token(keys, args)?;
    request::no_terms(rest)?;
    carry_out(ctx, |db| node::Command::Release(node::Release { db, keys: &keys, token: &token }))
}

pub(crate) fn yield_lock(ctx: &Ctx<'_>, keys: Keys, args: Args<'_>) -> Result<(), CommandError> {
    let KeysAndToken { keys, token, rest } = request::keys_and_token(keys, args)?;
    request::no_terms(rest)?;
    carry_out(ctx, |db| node::Command::Yield(node::Release { db, keys: &keys, token: &token }))
}

pub(crate) fn inspect(ctx: &Ctx<'_>, _: Keys, args: Args<'_>) -> Result<(), CommandError> {
    let key = Name::from(args.get(1).ok_or(CommandError::Arity)?);
    carry_out(ctx, |db| node::Command::Inspect(node::Inspect { db, key: &key }))
}

pub(crate) fn revoke(ctx: &Ctx<'_>, _: Keys, args: Args<'_>) -> Result<(), CommandError> {
    let key = Name::from(args.get(1).ok_or(CommandError::Arity)?);
    let ends_now = request::revoke_terms(args)?;
    carry_out(ctx, |db| node::Command::Revoke(node::Revoke { db, key: &key, ends_now }))
}

pub(crate) fn scan(ctx: &Ctx<'_>, _: Keys, args: Args<'_>) -> Result<(), CommandError> {
    let ScanTerms { cursor, pattern, count } = request::scan_terms(args)?;
    carry_out(ctx, |db| {
        node::Command::Scan(node::Scan { db, cursor, pattern: pattern.as_ref(), count })
    })
}

#[expect(clippy::unnecessary_wraps, reason = "it is a handler")]
pub(crate) fn help(ctx: &Ctx<'_>, _: Keys, _: Args<'_>) -> Result<(), CommandError> {
    ctx.reply_lines(&docs::help_lines());
    Ok(())
}

/// Executes the command that `of_db` makes for the selected database, and sends the reply.
fn carry_out<'a, 'c>(
    ctx: &'a Ctx<'a>,
    of_db: impl FnOnce(u32) -> node::Command<'c, Name<'a>>,
) -> Result<(), CommandError>
where
    'a: 'c,
{
    let mut keyspace = ServerKeyspace::for_command(ctx);
    let command = of_db(keyspace.db());
    send_reply(ctx, execute(&command, &mut keyspace)?);
    Ok(())
}

fn execute<'a>(
    command: &node::Command<'_, Name<'a>>,
    keyspace: &mut ServerKeyspace<'a>,
) -> Result<Reply, node::CommandError> {
    let now = clock::now();
    module::state().node.execute(now, command, keyspace)
}

fn send_reply(ctx: &Ctx<'_>, reply: Reply) {
    match reply {
        // `acquire_keys` replies to a grant itself, with the time waited and the key.
        Reply::Granted(fence) | Reply::Extended(fence) | Reply::GrantedOne { fence, .. } => {
            ctx.reply_integer(fence.into());
        }
        Reply::Refused | Reply::NotHeld | Reply::Inspected(None) => ctx.reply_null(),
        // The client is answered when its wait ends.
        Reply::Waits => {}
        Reply::Released(yes) | Reply::Yielded(yes) | Reply::Revoked(yes) => {
            ctx.reply_integer(yes.into());
        }
        Reply::Inspected(Some(inspected)) => inspection::reply(ctx, &inspected),
        Reply::Scanned(scanned) => inspection::reply_list(ctx, &scanned),
    }
}

/// Replies to a command that was not carried out.
pub(crate) fn send_error(ctx: &Ctx<'_>, error: &CommandError) {
    match error {
        CommandError::Arity => ctx.reply_wrong_arity(),
        error => ctx.reply_error(error),
    }
}

/// Replies to a client that the module unblocked, with the node's answer.
pub(crate) fn reply_unblocked(ctx: &Ctx<'_>, blocked_id: Option<BlockedId>) {
    let reply =
        blocked_id.and_then(|blocked_id| module::with(|state| state.node.answer(blocked_id)));
    reply_after_wait(ctx, reply);
}

/// Replies to a client that waited; with nil if there is no answer.
pub(crate) fn reply_after_wait(ctx: &Ctx<'_>, reply: Option<WaitReply>) {
    match reply {
        Some(WaitReply::Granted { fence, waited_us, key }) => {
            let key = key.as_ref().map(KeyBytes::as_bytes);
            reply_granted(ctx, fence, Some(waited_us), key);
        }
        Some(WaitReply::Failed(error)) => ctx.reply_error(&CommandError::from(error)),
        Some(WaitReply::Refused) | None => ctx.reply_null(),
    }
}

/// Replies with the fence, or with an array of the fence and what is given.
fn reply_granted(ctx: &Ctx<'_>, fence: Fence, waited_us: Option<u64>, key: Option<&[u8]>) {
    if waited_us.is_some() || key.is_some() {
        ctx.reply_array(1 + i32::from(waited_us.is_some()) + i32::from(key.is_some()));
    }
    ctx.reply_integer(fence.into());
    if let Some(waited_us) = waited_us {
        ctx.reply_integer(number(waited_us));
    }
    if let Some(key) = key {
        ctx.reply_bytes(key);
    }
}
