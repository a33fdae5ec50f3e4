//! Clients that wait for an answer.

use std::ffi::c_int;
use std::ptr::NonNull;

use quorlock_core::node::Ticket;
use redis_module::raw;

use super::api::api;
use super::{Ctx, entry};
use crate::waiting;

/// A client that was told nothing yet. It must be [unblocked](Blocked::unblock) exactly once, whatever happens to it, or
/// the server keeps it for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocked {
    handle: NonNull<raw::RedisModuleBlockedClient>,
}

impl Blocked {
    /// Makes the client of this command wait. There is to be no other reply, and it is not to be called where the
    /// server [denies](Ctx::denies_blocking) it. The server's own time limit is not used: it runs on the wall clock.
    pub(crate) fn block(ctx: &Ctx<'_>) -> Option<Self> {
        // SAFETY: a live context of a command; the callbacks live as long as the module, which the server does not
        // unload while a client waits.
        unsafe {
            let (reply, unblock) = (Some(on_reply as _), Some(on_unblock as _));
            let handle = api!(RedisModule_BlockClient(ctx.as_ptr(), reply, unblock, None, 0));
            let handle = NonNull::new(handle)?;
            api!(RedisModule_SetDisconnectCallback(handle.as_ptr(), Some(on_disconnect)));
            Some(Self { handle })
        }
    }

    /// No two that are blocked at the same time have the same.
    pub(crate) fn ticket(self) -> Ticket {
        ticket_of(self.handle.as_ptr())
    }

    /// Lets the server ask, by [`waiting::reply`], what the client is to be told, unless the client is gone.
    pub(crate) fn unblock(self) {
        // SAFETY: a client that was blocked and not unblocked yet; there is no private data.
        unsafe { api!(RedisModule_UnblockClient(self.handle.as_ptr(), std::ptr::null_mut())) };
    }
}

fn ticket_of(handle: *mut raw::RedisModuleBlockedClient) -> Ticket {
    Ticket(handle.addr() as u64)
}

/// The client was unblocked and is to be answered.
unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: a live context, for the time of this call, of a client that was blocked.
    let (ctx, ticket) = unsafe { (Ctx::new(ctx), ticket_of(api!(RedisModule_GetBlockedClientHandle(ctx)))) };
    entry::guard(|| waiting::reply(&ctx, ticket));
    raw::REDISMODULE_OK as c_int
}

/// Somebody ended the wait by `CLIENT UNBLOCK`.
unsafe extern "C" fn on_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: as above.
    let (ctx, ticket) = unsafe { (Ctx::new(ctx), ticket_of(api!(RedisModule_GetBlockedClientHandle(ctx)))) };
    entry::guard(|| waiting::unblocked(&ctx, ticket));
    raw::REDISMODULE_OK as c_int
}

/// The client is gone: it disconnected, was killed, or was told that this server is a replica now.
unsafe extern "C" fn on_disconnect(
    _ctx: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    entry::guard(|| waiting::disconnected(ticket_of(handle)));
}
