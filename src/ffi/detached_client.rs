use std::cell::RefCell;
use std::ptr::NonNull;

use redis_module::raw;

use super::api::api;
use super::{Arg, Ctx, MainThread};

/// A client of the module itself, without a connection.
///
/// The server does not invalidate the caches of a client with `BCAST NOLOOP` for a change by its
/// own command. A handover within that command is a change by another client, so the module
/// signals it as this client.
pub(crate) struct DetachedClient {
    ctx: NonNull<raw::RedisModuleCtx>,
}

static CLIENT: MainThread<RefCell<Option<DetachedClient>>> = MainThread::new(RefCell::new(None));

impl DetachedClient {
    /// Returns false if the server refuses.
    pub(crate) fn create(ctx: &Ctx<'_>) -> bool {
        // SAFETY: a live context. The new context takes only the module from it.
        let ctx = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(ctx.as_ptr())) };
        let client = NonNull::new(ctx).map(|ctx| Self { ctx });
        let is_created = client.is_some();
        *CLIENT.get().borrow_mut() = client;
        is_created
    }

    pub(crate) fn free() {
        *CLIENT.get().borrow_mut() = None;
    }

    /// Invalidates WATCH and client-side caches of the key, with this client as the author.
    pub(crate) fn signal_modified(db: u32, key: Arg<'_>) {
        if let Some(client) = &*CLIENT.get().borrow() {
            // SAFETY: the context is freed when the module is unloaded, and used only on the main
            // thread, which holds the server's lock.
            let ctx = unsafe { Ctx::new(client.ctx.as_ptr()) };
            ctx.select_db(db);
            ctx.signal_modified(key);
        }
    }
}

impl Drop for DetachedClient {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and freed once.
        unsafe { api!(RedisModule_FreeThreadSafeContext(self.ctx.as_ptr())) };
    }
}
