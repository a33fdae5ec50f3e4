//! The handler of each command: parse, execute, reply.

use quorlock_core::node::{self, BlockedId, KeyBytes, Reply, WaitReply};
use quorlock_core::{Fence, Ttl};

use crate::docs;
use crate::error::CommandError;
use crate::ffi::command::{Command, Spec};
use crate::ffi::{Arg, Args, Ctx, Name, clock};
use crate::inspection;
use crate::keyspace::ServerKeyspace;
use crate::module;
use crate::request::{self, KeysAndToken, Options, ScanTerms, Sharing};

pub(crate) struct Acquire;
pub(crate) struct Extend;
pub(crate) struct Release;
pub(crate) struct Yield;
pub(crate) struct Inspect;
pub(crate) struct AcquireAll;
pub(crate) struct AcquireAny;
pub(crate) struct ExtendAll;
pub(crate) struct ReleaseAll;
pub(crate) struct YieldAll;
pub(crate) struct Revoke;
pub(crate) struct Scan;
pub(crate) struct Help;

impl Command for Acquire {
    const SPEC: Spec = docs::ACQUIRE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        acquire(ctx, request::key_and_token(args)?, Sharing::Allowed)
    }
}

impl Command for AcquireAll {
    const SPEC: Spec = docs::ACQUIRE_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        acquire(ctx, request::sorted_keys_and_token(args)?, Sharing::Refused)
    }
}

impl Command for AcquireAny {
    const SPEC: Spec = docs::ACQUIRE_ANY;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        let KeysAndToken { keys, token, rest } = request::ordered_keys_and_token(args)?;
        let (ttl, options) = request::acquire_terms(rest, Sharing::Refused)?;
        let mut keyspace = ServerKeyspace::for_command(ctx);
        let acquire = node_acquire(keyspace.db(), &keys, &token, ttl, &options);
        match execute(&node::Command::AcquireAny(acquire), &mut keyspace)? {
            Reply::GrantedOne { fence, key } => {
                reply_granted_one(ctx, fence, options.wait_ms.map(|_| 0), keys[key].as_ref());
            }
            reply => send_reply(ctx, reply),
        }
        Ok(())
    }
}

impl Command for Extend {
    const SPEC: Spec = docs::EXTEND;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        extend(ctx, request::key_and_token(args)?, Sharing::Allowed)
    }
}

impl Command for ExtendAll {
    const SPEC: Spec = docs::EXTEND_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        extend(ctx, request::sorted_keys_and_token(args)?, Sharing::Refused)
    }
}

impl Command for Release {
    const SPEC: Spec = docs::RELEASE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        release(ctx, request::key_and_token(args)?)
    }
}

impl Command for ReleaseAll {
    const SPEC: Spec = docs::RELEASE_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        release(ctx, request::sorted_keys_and_token(args)?)
    }
}

impl Command for Yield {
    const SPEC: Spec = docs::YIELD;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        yield_lock(ctx, request::key_and_token(args)?)
    }
}

impl Command for YieldAll {
    const SPEC: Spec = docs::YIELD_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        yield_lock(ctx, request::sorted_keys_and_token(args)?)
    }
}

impl Command for Inspect {
    const SPEC: Spec = docs::INSPECT;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        let key = Name::from(args.get(1).ok_or(CommandError::Arity)?);
        let mut keyspace = ServerKeyspace::for_command(ctx);
        let inspect = node::Inspect { db: keyspace.db(), key: &key };
        send_reply(ctx, execute(&node::Command::Inspect(inspect), &mut keyspace)?);
        Ok(())
    }
}

impl Command for Revoke {
    const SPEC: Spec = docs::REVOKE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        let key = Name::from(args.get(1).ok_or(CommandError::Arity)?);
        let ends_now = request::revoke_terms(args)?;
        let random_value = Name::random();
        let mut keyspace = ServerKeyspace::for_command(ctx);
        let db = keyspace.db();
        let revoke = node::Revoke { db, key: &key, random_value: &random_value, ends_now };
        send_reply(ctx, execute(&node::Command::Revoke(revoke), &mut keyspace)?);
        Ok(())
    }
}

impl Command for Scan {
    const SPEC: Spec = docs::SCAN;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) -> Result<(), CommandError> {
        let ScanTerms { cursor, pattern, count } = request::scan_terms(args)?;
        let mut keyspace = ServerKeyspace::for_command(ctx);
        let scan = node::Scan { db: keyspace.db(), cursor, pattern: pattern.as_ref(), count };
        send_reply(ctx, execute(&node::Command::Scan(scan), &mut keyspace)?);
        Ok(())
    }
}

impl Command for Help {
    const SPEC: Spec = docs::HELP;

    fn run(ctx: &Ctx<'_>, _: Args<'_>) -> Result<(), CommandError> {
        ctx.reply_lines(&docs::help_lines());
        Ok(())
    }
}

fn acquire<'a, K: AsRef<[Name<'a>]>>(
    ctx: &'a Ctx<'a>,
    KeysAndToken { keys, token, rest }: KeysAndToken<'a, K>,
    sharing: Sharing,
) -> Result<(), CommandError> {
    let (ttl, options) = request::acquire_terms(rest, sharing)?;
    let mut keyspace = ServerKeyspace::for_command(ctx);
    let acquire = node_acquire(keyspace.db(), keys.as_ref(), &token, ttl, &options);
    match execute(&node::Command::Acquire(acquire), &mut keyspace)? {
        // With WAIT, the reply to a grant includes the time waited.
        Reply::Granted(fence) if options.wait_ms.is_some() => reply_granted(ctx, fence, 0),
        reply => send_reply(ctx, reply),
    }
    Ok(())
}

fn node_acquire<'a, N>(
    db: u32,
    keys: &'a [N],
    token: &'a N,
    ttl: Ttl,
    options: &Options<'a>,
) -> node::Acquire<'a, N> {
    node::Acquire {
        db,
        keys,
        token,
        ttl,
        mode: options.mode,
        owner: options.owner.map(Arg::as_bytes),
        fence: options.fence,
        wait_ms: options.wait_ms.unwrap_or(0),
    }
}

fn extend<'a, K: AsRef<[Name<'a>]>>(
    ctx: &'a Ctx<'a>,
    KeysAndToken { keys, token, rest }: KeysAndToken<'a, K>,
    sharing: Sharing,
) -> Result<(), CommandError> {
    let (ttl, options) = request::extend_terms(rest, sharing)?;
    let mut keyspace = ServerKeyspace::for_command(ctx);
    let new_token = options.new_token.map(Name::from);
    let extend = node::Extend {
        db: keyspace.db(),
        keys: keys.as_ref(),
        token: &token,
        ttl,
        mode: options.mode,
        fence: options.fence,
        new_token: new_token.as_ref(),
    };
    send_reply(ctx, execute(&node::Command::Extend(extend), &mut keyspace)?);
    Ok(())
}

fn release<'a, K: AsRef<[Name<'a>]>>(
    ctx: &'a Ctx<'a>,
    KeysAndToken { keys, token, rest }: KeysAndToken<'a, K>,
) -> Result<(), CommandError> {
    request::no_terms(rest)?;
    let mut keyspace = ServerKeyspace::for_command(ctx);
    let release = node::Release { db: keyspace.db(), keys: keys.as_ref(), token: &token };
    send_reply(ctx, execute(&node::Command::Release(release), &mut keyspace)?);
    Ok(())
}

fn yield_lock<'a, K: AsRef<[Name<'a>]>>(
    ctx: &'a Ctx<'a>,
    KeysAndToken { keys, token, rest }: KeysAndToken<'a, K>,
) -> Result<(), CommandError> {
    request::no_terms(rest)?;
    let mut keyspace = ServerKeyspace::for_command(ctx);
    let yields = node::Yield { db: keyspace.db(), keys: keys.as_ref(), token: &token };
    send_reply(ctx, execute(&node::Command::Yield(yields), &mut keyspace)?);
    Ok(())
}

fn execute<'a>(
    command: &node::Command<'_, Name<'a>>,
    keyspace: &mut ServerKeyspace<'a>,
) -> Result<Reply, CommandError> {
    let now = clock::now();
    Ok(module::state().node.execute(now, command, keyspace)?)
}

fn send_reply(ctx: &Ctx<'_>, reply: Reply) {
    match reply {
        // `AcquireAny` sends `GrantedOne` itself, with the key.
        Reply::Granted(fence) | Reply::Extended(fence) | Reply::GrantedOne { fence, .. } => {
            ctx.reply_integer(integer(fence));
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
        Some(WaitReply::Granted { fence, waited_us, key: None }) => {
            reply_granted(ctx, fence, waited_us);
        }
        Some(WaitReply::Granted { fence, waited_us, key: Some(key) }) => {
            reply_granted_one(ctx, fence, Some(waited_us), KeyBytes::as_bytes(&key));
        }
        Some(WaitReply::Failed(error)) => ctx.reply_error(&CommandError::from(error)),
        Some(WaitReply::Refused) | None => ctx.reply_null(),
    }
}

fn reply_granted(ctx: &Ctx<'_>, fence: Fence, waited_us: u64) {
    ctx.reply_array(2);
    ctx.reply_integer(integer(fence));
    reply_waited_us(ctx, waited_us);
}

fn reply_granted_one(ctx: &Ctx<'_>, fence: Fence, waited_us: Option<u64>, key: &[u8]) {
    ctx.reply_array(if waited_us.is_some() { 3 } else { 2 });
    ctx.reply_integer(integer(fence));
    if let Some(waited_us) = waited_us {
        reply_waited_us(ctx, waited_us);
    }
    ctx.reply_bytes(key);
}

fn reply_waited_us(ctx: &Ctx<'_>, waited_us: u64) {
    ctx.reply_integer(i64::try_from(waited_us).unwrap_or(i64::MAX));
}

pub(crate) fn integer(fence: Fence) -> i64 {
    i64::try_from(fence.get()).expect("a fence is below 2^53")
}
