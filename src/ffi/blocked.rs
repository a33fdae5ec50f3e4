//! Clients that wait for an answer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::NonNull;

use quorlock_core::node::{ServerEvent, Ticket};
use redis_module::raw;

use super::api::api;
use super::{Ctx, MainThread, entry};
use crate::{commands, module, server_events};

/// A client that has no answer yet. The server keeps it until it is unblocked, once.
#[derive(Clone, Copy)]
pub(crate) struct Blocked {
    handle: NonNull<raw::RedisModuleBlockedClient>,
}

/// The clients that are to be unblocked.
static BLOCKED: MainThread<RefCell<BTreeMap<Ticket, Blocked>>> =
    MainThread::new(RefCell::new(BTreeMap::new()));

impl Blocked {
    /// Makes the client of this command wait, which then gets no other reply. `None` where the
    /// server forbids it. The server's own time limit is not used: it runs on the wall clock.
    pub(crate) fn block(ctx: &Ctx<'_>) -> Option<Ticket> {
        if ctx.denies_blocking() {
            return None;
        }
        // SAFETY: a live context of a command; the callbacks live as long as the module, which the
        // server does not unload while a client waits.
        let handle = unsafe {
            let (reply, unblock) = (Some(on_reply as _), Some(on_unblock as _));
            let handle = api!(RedisModule_BlockClient(ctx.as_ptr(), reply, unblock, None, 0));
            let handle = NonNull::new(handle)?;
            api!(RedisModule_SetDisconnectCallback(handle.as_ptr(), Some(on_disconnect)));
            handle
        };
        let ticket = ticket_of(handle.as_ptr());
        BLOCKED.get().borrow_mut().insert(ticket, Self { handle });
        Some(ticket)
    }

    /// Lets the server ask, by [`commands::reply_unblocked`], what the client is to be answered,
    /// unless the client is gone. Does nothing the second time.
    pub(crate) fn unblock(ticket: Ticket) {
        let blocked = BLOCKED.get().borrow_mut().remove(&ticket);
        if let Some(Self { handle }) = blocked {
            // SAFETY: a client that was blocked and not unblocked yet, since it was in the map;
            // there is no private data.
            unsafe { api!(RedisModule_UnblockClient(handle.as_ptr(), std::ptr::null_mut())) };
        }
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
    entry::guard(|| commands::reply_unblocked(&ctx, ticket));
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
    entry::guard(|| {
        let left = module::with(|state| state.node.unblock(ticket));
        if left.is_none_or(|left| left.wake) {
            Blocked::unblock(ticket);
        }
        commands::reply_waited(&ctx, left.map(|left| left.reply));
    });
    raw::REDISMODULE_OK as c_int
}

/// The client is gone: it disconnected, was killed, or was told that this server is a replica now.
unsafe extern "C" fn on_disconnect(
    _ctx: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    let ticket = ticket_of(handle);
    entry::guard(|| {
        server_events::hear(ServerEvent::Disconnected(ticket));
        Blocked::unblock(ticket);
    });
}
