//! Clients that wait for an answer, and the identity of a client as CLIENT LIST shows it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use quorlock_core::node::{BlockedId, ServerEvent};
use redis_module::raw;

use super::{Arg, Ctx, MainThread, api, entry};
use crate::{commands, module, server_events};

/// The clients that wait. The module must unblock each exactly once, even a client that is gone.
#[derive(Default)]
pub(crate) struct Blocked {
    /// Clients that are not unblocked yet.
    waiting: BTreeMap<BlockedId, Waiting>,
    /// The clients about which the server may still call back, by the addresses of their handles.
    ///
    /// The server reuses the address of a client that is gone. An id is never reused.
    ids_by_handle: BTreeMap<usize, BlockedId>,
    last_id: u64,
}

struct Waiting {
    handle: NonNull<raw::RedisModuleBlockedClient>,
    client_id: u64,
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
    pub(crate) fn block(ctx: &Ctx<'_>) -> Option<BlockedId> {
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
        let client_id = unsafe { api!(RedisModule_GetClientId(ctx.as_ptr())) };
        Some(with_blocked(|blocked| {
            blocked.last_id += 1;
            let blocked_id = BlockedId(blocked.last_id);
            blocked.waiting.insert(blocked_id, Waiting { handle, client_id });
            blocked.ids_by_handle.insert(handle.addr().get(), blocked_id);
            blocked_id
        }))
    }

    /// The server's ID of a client that waits; `None` if its wait is over.
    pub(crate) fn client_id(blocked_id: BlockedId) -> Option<u64> {
        with_blocked(|blocked| blocked.waiting.get(&blocked_id).map(|waiting| waiting.client_id))
    }

    /// Unblocks a client. The server then calls [`commands::reply_unblocked`].
    ///
    /// Does nothing if the client is gone or already unblocked.
    pub(crate) fn unblock(blocked_id: BlockedId) {
        let waiting = with_blocked(|blocked| blocked.waiting.remove(&blocked_id));
        if let Some(Waiting { handle, .. }) = waiting {
            // SAFETY: a client that was blocked and not unblocked yet, since it was in the map;
            // there is no private data.
            unsafe { api!(RedisModule_UnblockClient(handle.as_ptr(), std::ptr::null_mut())) };
        }
    }
}

/// Removes the id of a client at the server's last callback about it.
fn take_blocked_id(handle: *mut raw::RedisModuleBlockedClient) -> Option<BlockedId> {
    with_blocked(|blocked| blocked.ids_by_handle.remove(&handle.addr()))
}

/// Removes the id of the client for which the server made this context.
///
/// # Safety
/// The context is live, and belongs to a client that was blocked.
unsafe fn take_blocked_id_of(ctx: *mut raw::RedisModuleCtx) -> Option<BlockedId> {
    // SAFETY: the caller's promise.
    take_blocked_id(unsafe { api!(RedisModule_GetBlockedClientHandle(ctx)) })
}

unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: a live context, for the time of this call, of a client that was blocked.
    let (blocked_id, ctx) = unsafe { (take_blocked_id_of(ctx), Ctx::new(ctx)) };
    entry::guard(|| commands::reply_unblocked(&ctx, blocked_id));
    raw::REDISMODULE_OK as c_int
}

/// Handles `CLIENT UNBLOCK … TIMEOUT`, which ended the wait.
unsafe extern "C" fn on_client_unblock(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: as above.
    let (blocked_id, ctx) = unsafe { (take_blocked_id_of(ctx), Ctx::new(ctx)) };
    entry::guard(|| {
        let exit =
            blocked_id.and_then(|blocked_id| module::with(|state| state.node.unblock(blocked_id)));
        if let Some(blocked_id) = blocked_id
            && exit.as_ref().is_none_or(|exit| exit.wake)
        {
            Blocked::unblock(blocked_id);
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
        if let Some(blocked_id) = take_blocked_id(handle) {
            server_events::handle_event(ServerEvent::Disconnected(blocked_id));
            Blocked::unblock(blocked_id);
        }
    });
}

/// A client of the server: the name of its connection, its ACL user and its address, if known.
#[derive(Default)]
pub(crate) struct Client {
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) user: Option<Vec<u8>>,
    /// `address:port`, or `unix`.
    pub(crate) address: Option<String>,
}

impl Client {
    pub(crate) fn by_id(ctx: &Ctx<'_>, id: u64) -> Self {
        // SAFETY: a live context; the server returns a string that is ours to free, or none.
        let (name, user) = unsafe {
            (
                take(ctx, api!(RedisModule_GetClientNameById(ctx.as_ptr(), id))),
                take(ctx, api!(RedisModule_GetClientUserNameById(ctx.as_ptr(), id))),
            )
        };
        Self { name: name.filter(|name| !name.is_empty()), user, address: address(id) }
    }
}

/// Copies a string of the server, and frees it.
///
/// # Safety
/// `string` is null, or a live string that is ours to free.
unsafe fn take(ctx: &Ctx<'_>, string: *mut raw::RedisModuleString) -> Option<Vec<u8>> {
    let string = NonNull::new(string)?;
    // SAFETY: the caller's promise; the bytes are copied before the string is freed.
    unsafe {
        let bytes = Arg::new(string).as_bytes().to_vec();
        api!(RedisModule_FreeString(ctx.as_ptr(), string.as_ptr()));
        Some(bytes)
    }
}

fn address(id: u64) -> Option<String> {
    // SAFETY: a plain C structure, all zeroes but for its version; the server fills it.
    let info = unsafe {
        let mut info: raw::RedisModuleClientInfo = std::mem::zeroed();
        info.version = raw::REDISMODULE_CLIENTINFO_VERSION.into();
        let found = api!(RedisModule_GetClientInfoById((&raw mut info).cast(), id));
        (found == raw::REDISMODULE_OK as i32).then_some(info)?
    };
    if info.flags & u64::from(raw::REDISMODULE_CLIENTINFO_FLAG_UNIXSOCKET) != 0 {
        return Some("unix".into());
    }
    // SAFETY: an array of the structure, as bytes.
    let bytes =
        unsafe { std::slice::from_raw_parts(info.addr.as_ptr().cast::<u8>(), info.addr.len()) };
    let host = CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok()?;
    Some(if host.contains(':') {
        format!("[{host}]:{}", info.port)
    } else {
        format!("{host}:{}", info.port)
    })
}
