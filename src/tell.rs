//! Tells everybody what was written, as the equivalent SET, PEXPIREAT and DEL would: replicas and the append-only file,
//! WATCH and client-side caches, subscribers of keyspace events.

use crate::ffi::{Arg, Ctx};
use crate::module;

/// A token was written under a key.
pub(crate) fn set(ctx: &Ctx<'_>, key: Arg<'_>, token: Arg<'_>, expires_at_ms: u64) {
    let audience = audience(ctx);
    if audience.replicates {
        ctx.replicate_set(key, token, expires_at_ms);
    }
    ctx.signal_modified(key);
    if audience.hears_events {
        ctx.notify_string(c"set", key);
        own_write(|| ctx.notify_generic(c"expire", key));
    }
}

/// A key's expiry was moved.
pub(crate) fn expire(ctx: &Ctx<'_>, key: Arg<'_>, expires_at_ms: u64) {
    let audience = audience(ctx);
    if audience.replicates {
        ctx.replicate_expire(key, expires_at_ms);
    }
    ctx.signal_modified(key);
    if audience.hears_events {
        own_write(|| ctx.notify_generic(c"expire", key));
    }
}

/// A key was deleted.
pub(crate) fn delete(ctx: &Ctx<'_>, key: Arg<'_>) {
    gone(ctx, key, || ctx.notify_generic(c"del", key));
}

/// A key was deleted because its time was over.
pub(crate) fn expired(ctx: &Ctx<'_>, key: Arg<'_>) {
    gone(ctx, key, || ctx.notify_expired(key));
}

fn gone(ctx: &Ctx<'_>, key: Arg<'_>, notify: impl FnOnce()) {
    let audience = audience(ctx);
    if audience.replicates {
        ctx.replicate_delete(key);
    }
    ctx.signal_modified(key);
    if audience.hears_events {
        own_write(notify);
    }
}

/// Who is to be told of a write.
struct Told {
    replicates: bool,
    hears_events: bool,
}

fn audience(ctx: &Ctx<'_>) -> Told {
    let server_publishes = ctx.publishes_keyspace_events();
    let audience = &mut module::state().audience;
    Told { replicates: audience.replicates(), hears_events: audience.hears_events(server_publishes) }
}

/// Runs `notify` so that our own subscription takes no notice of it.
fn own_write(notify: impl FnOnce()) {
    module::state().own_write = true;
    notify();
    module::state().own_write = false;
}
