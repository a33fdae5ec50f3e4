//! Numbers that an operator sets: in redis.conf, on the command line, by `CONFIG SET`, or as the module's arguments.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicI64, Ordering};

use redis_module::raw;

use super::Ctx;
use super::api::api;
use super::entry;

/// A configuration with a whole number for its value. It lives as long as the program: the server keeps its address.
pub(crate) struct Number {
    /// Without the module's name, which the server puts before it.
    pub(crate) name: &'static CStr,
    pub(crate) default: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
    /// Whether only a start sets it.
    pub(crate) fixed_at_start: bool,
    /// Called when it was set.
    pub(crate) changed: fn(i64),
    pub(crate) value: AtomicI64,
}

impl Number {
    pub(crate) fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Makes it known to the server. False when the server refuses.
    pub(crate) fn register(&'static self, ctx: &Ctx<'_>, default: i64) -> bool {
        let flags = if self.fixed_at_start {
            raw::REDISMODULE_CONFIG_IMMUTABLE
        } else {
            raw::REDISMODULE_CONFIG_DEFAULT
        };
        let this = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: a live context while the module is being loaded; the name and `this` live for ever, and `this` is only
        // read through.
        let registered = unsafe {
            api!(RedisModule_RegisterNumericConfig(
                ctx.as_ptr(),
                self.name.as_ptr(),
                default,
                flags,
                self.min,
                self.max,
                Some(get),
                Some(set),
                None,
                this
            ))
        };
        registered == raw::REDISMODULE_OK as c_int
    }
}

/// Sets every registered configuration, to what redis.conf says or to its default. False, with the reason in the
/// server's log, when a value is not allowed.
pub(crate) fn load(ctx: &Ctx<'_>) -> bool {
    // SAFETY: a live context while the module is being loaded.
    unsafe { api!(RedisModule_LoadConfigs(ctx.as_ptr())) == raw::REDISMODULE_OK as c_int }
}

unsafe extern "C" fn get(_name: *const c_char, number: *mut c_void) -> c_longlong {
    // SAFETY: the pointer that was registered.
    unsafe { &*number.cast::<Number>() }.value()
}

unsafe extern "C" fn set(
    _name: *const c_char,
    value: c_longlong,
    number: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the pointer that was registered.
    let number = unsafe { &*number.cast::<Number>() };
    number.value.store(value, Ordering::Relaxed);
    entry::guard(|| (number.changed)(value));
    raw::REDISMODULE_OK as c_int
}
