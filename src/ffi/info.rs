//! The module's part of `INFO`.

use std::ffi::{CStr, CString, c_int};

use redis_module::raw;

use super::api::api;
use super::{Ctx, entry};
use crate::info;

/// The section `lock` of an INFO reply, or of a crash report.
///
/// The server prepends `lock_` to the names of its fields.
pub(crate) struct Section {
    ctx: *mut raw::RedisModuleInfoCtx,
}

impl Section {
    pub(crate) fn number(&self, name: &CStr, value: u64) {
        // SAFETY: a live context of an INFO command or of a crash report; the name is copied.
        unsafe { api!(RedisModule_InfoAddFieldULongLong(self.ctx, name.as_ptr(), value)) };
    }

    pub(crate) fn text(&self, name: &CStr, value: &str) {
        let Ok(value) = CString::new(value) else { return };
        // SAFETY: as above; the value is copied.
        unsafe { api!(RedisModule_InfoAddFieldCString(self.ctx, name.as_ptr(), value.as_ptr())) };
    }
}

/// Registers the section. Returns false if the server refuses it.
pub(super) fn register(ctx: &Ctx<'_>) -> bool {
    // SAFETY: a live context while the module is being loaded.
    unsafe {
        api!(RedisModule_RegisterInfoFunc(ctx.as_ptr(), Some(on_info)))
            == raw::REDISMODULE_OK as c_int
    }
}

unsafe extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    // SAFETY: a live context; with an empty name, the server names the section after the module:
    // `lock`.
    if unsafe { api!(RedisModule_InfoAddSection(ctx, c"".as_ptr())) }
        == raw::REDISMODULE_OK as c_int
    {
        entry::guard(|| info::write(&Section { ctx }));
    }
}
