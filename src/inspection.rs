//! The replies of `LOCK.INSPECT` and `LOCK.SCAN`. docs/commands.md explains their fields.

use quorlock_core::node::{Holder, Inspected, Listed, Mode, Scanned, ShownWaiter};

use crate::ffi::{Blocked, Client, Ctx};

const FIELDS: i32 = 11;

pub(crate) fn reply(ctx: &Ctx<'_>, inspected: &Inspected) {
    ctx.reply_map(FIELDS);
    reply_fields(ctx, inspected);
}

/// Replies as SCAN does, with a map for each lock.
pub(crate) fn reply_list(ctx: &Ctx<'_>, Scanned { cursor, locks }: &Scanned) {
    ctx.reply_array(2);
    ctx.reply_bytes(cursor.to_string().as_bytes());
    reply_each(ctx, locks, |Listed { key, inspected }| {
        ctx.reply_map(1 + FIELDS);
        ctx.reply_bytes(b"key");
        ctx.reply_bytes(key);
        reply_fields(ctx, inspected);
    });
}

fn reply_fields(ctx: &Ctx<'_>, Inspected { waiters, queue, holder }: &Inspected) {
    let shown = match holder {
        Holder::Lease { owners, holders, fence, ttl_ms, held_ms, mode, keys, revoked } => Shown {
            owners,
            holders: *holders,
            fence: Some((*fence).into()),
            ttl_ms: Some(*ttl_ms),
            held_ms: Some(*held_ms),
            mode: match mode {
                Mode::Exclusive => "exclusive",
                Mode::Shared => "shared",
            },
            keys: *keys,
            revoked: *revoked,
        },
        Holder::Foreign { ttl_ms } => {
            Shown { mode: "foreign", holders: 1, ttl_ms: *ttl_ms, keys: 1, ..Shown::default() }
        }
    };
    ctx.reply_bytes(b"owner");
    match shown.owners {
        [] => ctx.reply_null(),
        [owner] if shown.holders == 1 => reply_text(ctx, owner.as_deref()),
        owners => reply_each(ctx, owners, |owner| reply_text(ctx, owner.as_deref())),
    }
    ctx.reply_bytes(b"fence");
    shown.fence.map_or_else(|| ctx.reply_null(), |fence| ctx.reply_integer(fence));
    ctx.reply_bytes(b"ttl");
    // Like PTTL: −1 for a key that does not expire.
    ctx.reply_integer(shown.ttl_ms.map_or(-1, number));
    ctx.reply_bytes(b"held");
    shown.held_ms.map_or_else(|| ctx.reply_null(), |ms| ctx.reply_integer(number(ms)));
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(shown.mode.as_bytes());
    ctx.reply_bytes(b"holders");
    ctx.reply_integer(number(shown.holders));
    ctx.reply_bytes(b"waiters");
    ctx.reply_integer(number(*waiters));
    ctx.reply_bytes(b"queue");
    reply_each(ctx, queue, |waiter| reply_text(ctx, waiter.owner.as_deref()));
    ctx.reply_bytes(b"clients");
    reply_each(ctx, queue, |waiter| reply_client(ctx, waiter));
    ctx.reply_bytes(b"keys");
    ctx.reply_integer(number(shown.keys));
    ctx.reply_bytes(b"revoked");
    ctx.reply_integer(shown.revoked.into());
}

/// The holder of a key in the form that clients see.
#[derive(Default)]
struct Shown<'a> {
    owners: &'a [Option<Box<[u8]>>],
    holders: usize,
    fence: Option<i64>,
    ttl_ms: Option<u64>,
    held_ms: Option<u64>,
    mode: &'static str,
    keys: usize,
    revoked: bool,
}

fn reply_client(ctx: &Ctx<'_>, waiter: &ShownWaiter) {
    let id = Blocked::client_id(waiter.blocked_id);
    let client = id.map_or_else(Client::default, |id| Client::by_id(ctx, id));
    ctx.reply_map(3);
    ctx.reply_bytes(b"client");
    reply_text(ctx, client.name.as_deref());
    ctx.reply_bytes(b"user");
    reply_text(ctx, client.user.as_deref());
    ctx.reply_bytes(b"address");
    reply_text(ctx, client.address.as_deref().map(str::as_bytes));
}

/// Replies with an array. `reply` sends one reply for each item.
fn reply_each<T>(ctx: &Ctx<'_>, items: &[T], reply: impl Fn(&T)) {
    ctx.reply_array(i32::try_from(items.len()).unwrap_or(0));
    items.iter().for_each(reply);
}

fn reply_text(ctx: &Ctx<'_>, text: Option<&[u8]>) {
    text.map_or_else(|| ctx.reply_null(), |text| ctx.reply_bytes(text));
}

pub(crate) fn number<N: TryInto<i64>>(number: N) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
