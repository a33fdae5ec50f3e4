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

/// The clients that wait. The module must unblock each exactly once, even a client that is gone.
#[derive(Default)]
pub(crate) struct Blocked {
    /// Clients that are not unblocked yet.
    handles: BTreeMap<Ticket, NonNull<raw::RedisModuleBlockedClient>>,
    /// The clients about which the server may still call back, by the addresses of their handles.
    ///
    /// The server reuses the address of a client that is gone. A ticket is never reused.
    tickets: BTreeMap<usize, Ticket>,
    client_ids: BTreeMap<Ticket, u64>,
    last_ticket: u64,
}

static BLOCKED: MainThread<RefCell<Option<Blocked>>> = MainThread::new(RefCell::new(None));

fn with_blocked<T>(f: impl FnOnce(&mut Blocked) -> T) -> T {
    f(BLOCKED.get().borrow_mut().get_or_insert_default())
}

impl Blocked {
    /// Blocks the client of this command. The command must then send no reply. Returns `None` if
    /// the server does not block the client.
    ///
    /// The caller checks first that the server does not [deny](Ctx::denies_blocking) blocking. The
    /// server's own timeout is not used, because it runs on the wall clock.
    pub(crate) fn block(ctx: &Ctx<'_>) -> Option<Ticket> {
        // SAFETY: a live context of a command; the callbacks live as long as the module, which the
        // server does not unload while a client waits.
        let handle = unsafe {
            let (reply, unblock) = (Some(on_reply as _), Some(on_client_unblock as _));
            let handle = api!(RedisModule_BlockClient(ctx.as_ptr(), reply, unblock, None, 0));
            let handle = NonNull::new(handle)?;
            api!(RedisModule_SetDisconnectCallback(handle.as_ptr(), Some(on_disconnect)));
            handle
        };
        // SAFETY: a live context of a command.
        let id = unsafe { api!(RedisModule_GetClientId(ctx.as_ptr())) };
        Some(with_blocked(|blocked| {
            blocked.last_ticket += 1;
            let ticket = Ticket(blocked.last_ticket);
            blocked.handles.insert(ticket, handle);
            blocked.tickets.insert(handle.addr().get(), ticket);
            blocked.client_ids.insert(ticket, id);
            ticket
        }))
    }

    /// The server's ID of a client that waits; `None` if its wait is over.
    pub(crate) fn client_id(ticket: Ticket) -> Option<u64> {
        with_blocked(|blocked| blocked.client_ids.get(&ticket).copied())
    }

    /// Unblocks a client. The server then calls [`commands::reply_unblocked`].
    ///
    /// Does nothing if the client is gone or already unblocked.
    pub(crate) fn unblock(ticket: Ticket) {
        let handle = with_blocked(|blocked| blocked.handles.remove(&ticket));
        if let Some(handle) = handle {
            // SAFETY: a client that was blocked and not unblocked yet, since it was in the map;
            // there is no private data.
            unsafe { api!(RedisModule_UnblockClient(handle.as_ptr(), std::ptr::null_mut())) };
        }
    }
}

/// Removes the ticket of a client at the server's last callback about it.
fn take_ticket(handle: *mut raw::RedisModuleBlockedClient) -> Option<Ticket> {
    with_blocked(|blocked| {
        let ticket = blocked.tickets.remove(&handle.addr())?;
        blocked.client_ids.remove(&ticket);
        Some(ticket)
    })
}

/// Removes the ticket of the client for which the server made this context.
///
/// # Safety
/// The context is live, and belongs to a client that was blocked.
unsafe fn take_ticket_of(ctx: *mut raw::RedisModuleCtx) -> Option<Ticket> {
    // SAFETY: the caller's promise.
    take_ticket(unsafe { api!(RedisModule_GetBlockedClientHandle(ctx)) })
}

unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: a live context, for the time of this call, of a client that was blocked.
    let (ticket, ctx) = unsafe { (take_ticket_of(ctx), Ctx::new(ctx)) };
    entry::guard(|| commands::reply_unblocked(&ctx, ticket));
    raw::REDISMODULE_OK as c_int
}

/// Handles `CLIENT UNBLOCK … TIMEOUT`, which ended the wait.
unsafe extern "C" fn on_client_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: as above.
    let (ticket, ctx) = unsafe { (take_ticket_of(ctx), Ctx::new(ctx)) };
    entry::guard(|| {
        let exit = ticket.and_then(|ticket| module::with(|state| state.node.unblock(ticket)));
        if let Some(ticket) = ticket
            && exit.as_ref().is_none_or(|exit| exit.wake)
        {
            Blocked::unblock(ticket);
        }
        commands::reply_after_wait(&ctx, exit.map(|exit| exit.reply));
    });
    raw::REDISMODULE_OK as c_int
}

/// Handles a client that is gone: disconnected, killed, or unblocked with an error by a demotion or
/// by `CLIENT UNBLOCK … ERROR`.
unsafe extern "C" fn on_disconnect(
    _ctx: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    entry::guard(|| {
        if let Some(ticket) = take_ticket(handle) {
            server_events::handle_event(ServerEvent::Disconnected(ticket));
            Blocked::unblock(ticket);
        }
    });
}
