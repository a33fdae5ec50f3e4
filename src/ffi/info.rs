//! The module's part of `INFO`, and what the server's own parts say about writes.

use std::ffi::{CStr, CString, c_int};
use std::ptr::null_mut;

use quorlock_core::node::ServerHealth;
use redis_module::raw;

use super::{Ctx, api, entry};
use crate::info;

/// The section `lock` of an INFO reply, or of a crash report.
///
/// The server prepends `lock_` to the names of its fields.
pub(crate) struct Section {
    ctx: *mut raw::RedisModuleInfoCtx,
    is_crash_report: bool,
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

    /// What the server reports about itself; `None` in a crash report, where only this module's
    /// own state is certain to be readable.
    pub(crate) fn server_health(&self) -> Option<ServerHealth> {
        if self.is_crash_report {
            return None;
        }
        // SAFETY: need nothing; without a context, only flags of the server are returned.
        let (flags, is_paused) = unsafe {
            (api!(RedisModule_GetContextFlags(null_mut())), api!(RedisModule_AvoidReplicaTraffic()))
        };
        let has = |flag: u32| flags & flag as i32 != 0;
        let persistence = ServerInfo::read(c"persistence");
        Some(ServerHealth {
            is_loading: has(raw::REDISMODULE_CTX_FLAGS_LOADING),
            memory_is_full: has(raw::REDISMODULE_CTX_FLAGS_OOM),
            save_failed: persistence.is(c"rdb_last_bgsave_status", c"err"),
            append_failed: has(raw::REDISMODULE_CTX_FLAGS_AOF)
                && persistence.is(c"aof_last_write_status", c"err"),
            good_replicas: ServerInfo::read(c"replication")
                .number(c"min_slaves_good_slaves")
                .unwrap_or(0),
            writes_are_paused: is_paused != 0,
        })
    }
}

/// One section of the server's own INFO.
pub(super) struct ServerInfo(*mut raw::RedisModuleServerInfoData);

impl ServerInfo {
    pub(super) fn read(section: &CStr) -> Self {
        // SAFETY: the server allows no context; the data is freed by `drop`.
        Self(unsafe { api!(RedisModule_GetServerInfo(null_mut(), section.as_ptr())) })
    }

    fn is(&self, field: &CStr, value: &CStr) -> bool {
        // SAFETY: the data is alive, and so is the text of a field, which ends in a zero.
        unsafe {
            let text = api!(RedisModule_ServerInfoGetFieldC(self.0, field.as_ptr()));
            !text.is_null() && CStr::from_ptr(text) == value
        }
    }

    /// The value of a field; `None` if there is no such field.
    pub(super) fn number(&self, field: &CStr) -> Option<u64> {
        let mut failed = 0;
        // SAFETY: the data is alive.
        let value = unsafe {
            api!(RedisModule_ServerInfoGetFieldUnsigned(self.0, field.as_ptr(), &raw mut failed))
        };
        (failed == 0).then_some(value)
    }
}

impl Drop for ServerInfo {
    fn drop(&mut self) {
        // SAFETY: made by `read` without a context, and freed once.
        unsafe { api!(RedisModule_FreeServerInfo(null_mut(), self.0)) };
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

unsafe extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // SAFETY: a live context; with an empty name, the server names the section after the module:
    // `lock`.
    if unsafe { api!(RedisModule_InfoAddSection(ctx, c"".as_ptr())) }
        == raw::REDISMODULE_OK as c_int
    {
        entry::guard(|| info::write(&Section { ctx, is_crash_report: for_crash_report != 0 }));
    }
}
