//! The identity of a client, as CLIENT LIST shows it.

use std::ffi::CStr;
use std::ptr::NonNull;

use redis_module::raw;

use super::api::api;
use super::{Arg, Ctx};

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
