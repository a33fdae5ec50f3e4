use std::cell::RefCell;
use std::ptr::NonNull;

use redis_module::raw;

use super::api::api;
use super::{Arg, Ctx, MainThread};

/// A client of the module itself, without a connection.
///
/// The server does not tell a client that tracks keys with `BCAST NOLOOP` of that client's own
/// changes. When its RELEASE hands a key over, the new lock is another client's. So the module
/// signals this change as a change by the client of the module.
pub(crate) struct ModuleClient {
    ctx: NonNull<raw::RedisModuleCtx>,
}

static CLIENT: MainThread<RefCell<Option<ModuleClient>>> = MainThread::new(RefCell::new(None));

impl ModuleClient {
    /// Makes the module's only client. Returns false if the server refuses.
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

    /// Aborts transactions that WATCH the key, and invalidates client-side caches of it, with the
    /// module's client as the author.
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

impl Drop for ModuleClient {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and freed once.
        unsafe { api!(RedisModule_FreeThreadSafeContext(self.ctx.as_ptr())) };
    }
}
