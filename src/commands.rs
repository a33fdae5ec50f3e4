//! The handler of each command: parse, execute, reply.

use quorlock_core::node::{self, KeyBytes, Reply, Ticket, WaitReply};
use quorlock_core::{Fence, Ttl};

use crate::docs;
use crate::error::CommandError;
use crate::ffi::command::{Command, Spec};
use crate::ffi::{Arg, Args, Ctx, Name, clock};
use crate::help;
use crate::inspection;
use crate::keyspace::ServerKeyspace;
use crate::module;
use crate::request::{self, KeysAndToken, Options, ScanTerms, Sharing};

pub(crate) struct Acquire;
pub(crate) struct Extend;
pub(crate) struct Release;
pub(crate) struct Inspect;
pub(crate) struct AcquireAll;
pub(crate) struct AcquireAny;
pub(crate) struct ExtendAll;
pub(crate) struct ReleaseAll;
pub(crate) struct Revoke;
pub(crate) struct Scan;
pub(crate) struct Help;

impl Command for Acquire {
    const SPEC: Spec = docs::ACQUIRE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        acquire(ctx, request::key_and_token(args), Sharing::Allowed);
    }
}

impl Command for AcquireAll {
    const SPEC: Spec = docs::ACQUIRE_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        acquire(ctx, request::sorted_keys_and_token(args), Sharing::Refused);
    }
}

impl Command for AcquireAny {
    const SPEC: Spec = docs::ACQUIRE_ANY;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let parsed = request::ordered_keys_and_token(args);
        let acquired = parsed.and_then(|KeysAndToken { keys, token, rest }| {
            let (ttl, options) = request::acquire_terms(rest, Sharing::Refused)?;
            let mut keyspace = ServerKeyspace::for_command(ctx);
            let acquire = node_acquire(keyspace.db(), &keys, &token, ttl, &options);
            let reply = execute(&node::Command::AcquireAny(acquire), &mut keyspace)?;
            if let Reply::GrantedOne { fence, key } = reply {
                reply_granted_one(ctx, fence, options.wait_ms.map(|_| 0), keys[key].as_ref());
                return Ok(None);
            }
            Ok(Some(reply))
        });
        // `None`: the reply was sent above, where the keys are known.
        if let Some(reply) = acquired.transpose() {
            send_reply(ctx, reply);
        }
    }
}

impl Command for Extend {
    const SPEC: Spec = docs::EXTEND;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        extend(ctx, request::key_and_token(args), Sharing::Allowed);
    }
}

impl Command for ExtendAll {
    const SPEC: Spec = docs::EXTEND_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        extend(ctx, request::sorted_keys_and_token(args), Sharing::Refused);
    }
}

impl Command for Release {
    const SPEC: Spec = docs::RELEASE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        release(ctx, request::key_and_token(args));
    }
}

impl Command for ReleaseAll {
    const SPEC: Spec = docs::RELEASE_ALL;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        release(ctx, request::sorted_keys_and_token(args));
    }
}

impl Command for Inspect {
    const SPEC: Spec = docs::INSPECT;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let mut keyspace = ServerKeyspace::for_command(ctx);
        let inspected = args.get(1).ok_or(CommandError::Arity).and_then(|key| {
            let key = Name::from(key);
            let inspect = node::Inspect { db: keyspace.db(), key: &key };
            execute(&node::Command::Inspect(inspect), &mut keyspace)
        });
        send_reply(ctx, inspected);
    }
}

impl Command for Revoke {
    const SPEC: Spec = docs::REVOKE;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let revoked = args.get(1).ok_or(CommandError::Arity).and_then(|key| {
            let ends_now = request::revoke_terms(args)?;
            let (key, random_value) = (Name::from(key), Name::random());
            let mut keyspace = ServerKeyspace::for_command(ctx);
            let revoke = node::Revoke {
                db: keyspace.db(),
                key: &key,
                random_value: &random_value,
                ends_now,
            };
            execute(&node::Command::Revoke(revoke), &mut keyspace)
        });
        send_reply(ctx, revoked);
    }
}

impl Command for Scan {
    const SPEC: Spec = docs::SCAN;

    fn run(ctx: &Ctx<'_>, args: Args<'_>) {
        let scanned = request::scan_terms(args).and_then(|terms| {
            let mut keyspace = ServerKeyspace::for_command(ctx);
            let ScanTerms { cursor, pattern, count } = terms;
            let scan = node::Scan { db: keyspace.db(), cursor, pattern: pattern.as_ref(), count };
            execute(&node::Command::Scan(scan), &mut keyspace)
        });
        send_reply(ctx, scanned);
    }
}

impl Command for Help {
    const SPEC: Spec = docs::HELP;

    fn run(ctx: &Ctx<'_>, _: Args<'_>) {
        ctx.reply_lines(&help::lines());
    }
}

fn acquire<'a, K: AsRef<[Name<'a>]>>(
    ctx: &'a Ctx<'a>,
    parsed: Result<KeysAndToken<'a, K>, CommandError>,
    sharing: Sharing,
) {
    let mut has_wait = false;
    let acquired = parsed.and_then(|KeysAndToken { keys, token, rest }| {
        let (ttl, options) = request::acquire_terms(rest, sharing)?;
        has_wait = options.wait_ms.is_some();
        let mut keyspace = ServerKeyspace::for_command(ctx);
        let acquire = node_acquire(keyspace.db(), keys.as_ref(), &token, ttl, &options);
        execute(&node::Command::Acquire(acquire), &mut keyspace)
    });
    match acquired {
        // With WAIT, the reply to a grant includes the time waited.
        Ok(Reply::Granted(fence)) if has_wait => reply_granted(ctx, fence, 0),
        reply => send_reply(ctx, reply),
    }
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
    parsed: Result<KeysAndToken<'a, K>, CommandError>,
    sharing: Sharing,
) {
    let extended = parsed.and_then(|KeysAndToken { keys, token, rest }| {
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
        execute(&node::Command::Extend(extend), &mut keyspace)
    });
    send_reply(ctx, extended);
}

fn release<'a, K: AsRef<[Name<'a>]>>(
    ctx: &'a Ctx<'a>,
    parsed: Result<KeysAndToken<'a, K>, CommandError>,
) {
    let released = parsed.and_then(|KeysAndToken { keys, token, rest }| {
        request::no_terms(rest)?;
        let mut keyspace = ServerKeyspace::for_command(ctx);
        let release = node::Release { db: keyspace.db(), keys: keys.as_ref(), token: &token };
        execute(&node::Command::Release(release), &mut keyspace)
    });
    send_reply(ctx, released);
}

fn execute<'a>(
    command: &node::Command<'_, Name<'a>>,
    keyspace: &mut ServerKeyspace<'a>,
) -> Result<Reply, CommandError> {
    let now = clock::now();
    Ok(module::state().node.execute(now, command, keyspace)?)
}

fn send_reply(ctx: &Ctx<'_>, reply: Result<Reply, CommandError>) {
    match reply {
        // `AcquireAny` sends `GrantedOne` itself, with the key.
        Ok(Reply::Granted(fence) | Reply::Extended(fence) | Reply::GrantedOne { fence, .. }) => {
            ctx.reply_integer(integer(fence));
        }
        Ok(Reply::Refused | Reply::NotHeld | Reply::Inspected(None)) => ctx.reply_null(),
        // The client is answered when its wait ends.
        Ok(Reply::Waits) => {}
        Ok(Reply::Released(yes) | Reply::Revoked(yes)) => ctx.reply_integer(yes.into()),
        Ok(Reply::Inspected(Some(inspected))) => inspection::reply(ctx, &inspected),
        Ok(Reply::Scanned(scanned)) => inspection::reply_list(ctx, &scanned),
        Err(CommandError::Arity) => ctx.reply_wrong_arity(),
        Err(error) => ctx.reply_error(&error),
    }
}

/// Replies to a client that the module unblocked, with the node's answer for its ticket.
pub(crate) fn reply_unblocked(ctx: &Ctx<'_>, ticket: Option<Ticket>) {
    let reply = ticket.and_then(|ticket| module::with(|state| state.node.answer(ticket)));
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
