//! Settings from redis.conf, the server's command line and `CONFIG SET`.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, Ordering};

use redis_module::raw;

use super::{Arg, Ctx, MainThread, Name, api, entry};

/// An integer setting. It is a static, because the server keeps its address.
#[derive(Debug)]
pub(crate) struct Number {
    /// The name without the prefix `lock.`, which the server adds.
    pub(crate) name: &'static CStr,
    pub(crate) default: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
    pub(crate) fixed_at_start: bool,
    /// Called after a new value was set.
    pub(crate) changed: fn(),
    pub(crate) value: AtomicI64,
}

impl Number {
    pub(crate) fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Registers the setting. A module argument may replace the field `default`. Returns false if
    /// the server refuses the setting.
    pub(crate) fn register(&'static self, ctx: &Ctx<'_>, default: i64) -> bool {
        let flags = if self.fixed_at_start {
            raw::REDISMODULE_CONFIG_IMMUTABLE
        } else {
            raw::REDISMODULE_CONFIG_DEFAULT
        };
        let this = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: a live context while the module is being loaded; the name and `this` live for
        // ever, and the callbacks only borrow `this`.
        let registered = unsafe {
            api!(RedisModule_RegisterNumericConfig(
                ctx.as_ptr(),
                self.name.as_ptr(),
                default,
                flags,
                self.min,
                self.max,
                Some(get_number),
                Some(set_number),
                None,
                this
            ))
        };
        registered == raw::REDISMODULE_OK as c_int
    }
}

/// A text setting, fixed at start. It is a static, because the server keeps its address.
pub(crate) struct Text {
    /// The name without the prefix `lock.`, which the server adds.
    name: &'static CStr,
    /// Checks a value and returns the form that the server shows; the error says what to write.
    normalize: fn(&[u8]) -> Result<String, String>,
    /// The normalized value, as a string that the server can borrow.
    value: MainThread<RefCell<Option<Name<'static>>>>,
}

impl Text {
    pub(crate) const fn new(
        name: &'static CStr,
        normalize: fn(&[u8]) -> Result<String, String>,
    ) -> Self {
        Self { name, normalize, value: MainThread::new(RefCell::new(None)) }
    }

    pub(crate) fn name(&self) -> &'static CStr {
        self.name
    }

    /// Calls `f` with the value, which is empty before the configuration is loaded.
    pub(crate) fn with_value<T>(&self, f: impl FnOnce(&[u8]) -> T) -> T {
        f(self.value.get().borrow().as_ref().map_or(&[], AsRef::as_ref))
    }

    /// Registers the setting. Returns false if the server refuses it.
    pub(crate) fn register(&'static self, ctx: &Ctx<'_>, default: &CStr) -> bool {
        let this = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: a live context while the module is being loaded; the server copies the default;
        // the name and `this` live for ever, and the callbacks only borrow `this`.
        let registered = unsafe {
            api!(RedisModule_RegisterStringConfig(
                ctx.as_ptr(),
                self.name.as_ptr(),
                default.as_ptr(),
                raw::REDISMODULE_CONFIG_IMMUTABLE,
                Some(get_text),
                Some(set_text),
                None,
                this
            ))
        };
        registered == raw::REDISMODULE_OK as c_int
    }
}

/// Sets every registered setting to its value in redis.conf or to its default.
///
/// Returns false if a value is not allowed. The server has then logged the reason.
pub(crate) fn load(ctx: &Ctx<'_>) -> bool {
    // SAFETY: a live context while the module is being loaded.
    unsafe { api!(RedisModule_LoadConfigs(ctx.as_ptr())) == raw::REDISMODULE_OK as c_int }
}

unsafe extern "C" fn get_number(_name: *const c_char, number: *mut c_void) -> c_longlong {
    // SAFETY: the pointer that was registered.
    unsafe { &*number.cast::<Number>() }.value()
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    value: c_longlong,
    number: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the pointer that was registered.
    let number = unsafe { &*number.cast::<Number>() };
    number.value.store(value, Ordering::Relaxed);
    entry::guard(number.changed);
    raw::REDISMODULE_OK as c_int
}

/// Lends the value: the server copies the string and does not free it.
unsafe extern "C" fn get_text(
    _name: *const c_char,
    text: *mut c_void,
) -> *mut raw::RedisModuleString {
    // SAFETY: the pointer that was registered.
    let text = unsafe { &*text.cast::<Text>() };
    let value = text.value.get().borrow();
    value.as_ref().map_or(std::ptr::null_mut(), |value| value.as_arg().as_ptr())
}

unsafe extern "C" fn set_text(
    _name: *const c_char,
    value: *mut raw::RedisModuleString,
    text: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the pointer that was registered.
    let text = unsafe { &*text.cast::<Text>() };
    let Some(value) = NonNull::new(value) else { return raw::REDISMODULE_ERR as c_int };
    // SAFETY: the server lends the string for the time of this call.
    let value = unsafe { Arg::new(value) };
    match entry::guard(|| (text.normalize)(value.as_bytes())) {
        Some(Ok(value)) => {
            *text.value.get().borrow_mut() = Some(Name::made(value.as_bytes()));
            raw::REDISMODULE_OK as c_int
        }
        Some(Err(reason)) => {
            let (start, len) = (reason.as_ptr().cast(), reason.len());
            // SAFETY: the bytes are copied, and `error` is a place for the string, which the server
            // frees.
            unsafe { *error = api!(RedisModule_CreateString(std::ptr::null_mut(), start, len)) };
            raw::REDISMODULE_ERR as c_int
        }
        None => raw::REDISMODULE_ERR as c_int,
    }
}
