use std::marker::PhantomData;
use std::ptr::NonNull;

use quorlock_core::node::{Mirror, Seen};
use redis_module::raw;

use super::api::api;
use super::{Arg, Ctx};

/// What a key is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// An open key. While it is open nothing else may touch it: it lives within one command.
pub(crate) struct Key<'ctx> {
    /// None when it was opened for reading and is not there.
    open: Option<NonNull<raw::RedisModuleKey>>,
    seen: Seen,
    lives: PhantomData<&'ctx ()>,
}

impl<'ctx> Key<'ctx> {
    /// Opens a key in the selected database. A key whose expiry has come is removed by this, and the keyspace event for
    /// it arrives before this returns.
    pub(crate) fn open(ctx: &Ctx<'ctx>, name: Arg<'_>, access: Access) -> Self {
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: a live context and a live string.
        let key = unsafe { api!(RedisModule_OpenKey(ctx.as_ptr(), name.as_ptr(), mode as i32)) };
        let key = NonNull::new(key.cast::<raw::RedisModuleKey>());
        let seen = match key {
            None => Seen::Missing,
            // SAFETY: an open key.
            Some(key) => match unsafe { api!(RedisModule_KeyType(key.as_ptr())) } as isize {
                raw::REDISMODULE_KEYTYPE_EMPTY => Seen::Missing,
                raw::REDISMODULE_KEYTYPE_STRING => Seen::Text,
                _ => Seen::OtherType,
            },
        };
        Self { open: key, seen, lives: PhantomData }
    }

    /// Opens keys for writing, none of which is named twice.
    pub(crate) fn open_all(ctx: &Ctx<'ctx>, names: &[Arg<'_>]) -> Vec<Self> {
        names.iter().map(|&name| Self::open(ctx, name, Access::Write)).collect()
    }

    /// Writes a token that expires. Either both are there afterwards, or the key is not: a lock that never ends is
    /// worse than none.
    #[must_use]
    pub(crate) fn set(&mut self, token: Arg<'_>, expires_at_ms: u64) -> bool {
        let Some(key) = self.open else { return false };
        // SAFETY: a key that is open for writing and a live string, which the server shares and does not copy.
        let written = unsafe { api!(RedisModule_StringSet(key.as_ptr(), token.as_ptr())) };
        if written != raw::REDISMODULE_OK as i32 {
            return false;
        }
        self.seen = Seen::Text;
        let expires = self.expire(expires_at_ms);
        if !expires {
            self.delete();
        }
        expires
    }

    /// Sets when the string expires, in milliseconds of the wall clock.
    #[must_use]
    pub(crate) fn expire(&mut self, expires_at_ms: u64) -> bool {
        // A negative time would be refused, or worse: −1 means "never".
        let (Some(key), Ok(at)) = (self.open, i64::try_from(expires_at_ms)) else { return false };
        // SAFETY: a key that is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(key.as_ptr(), at)) == raw::REDISMODULE_OK as i32 }
    }

    pub(crate) fn delete(&mut self) {
        if let Some(key) = self.open {
            // SAFETY: a key that is open for writing.
            unsafe { api!(RedisModule_DeleteKey(key.as_ptr())) };
            self.seen = Seen::Missing;
        }
    }
}

impl Mirror for Key<'_> {
    fn seen(&self) -> Seen {
        self.seen
    }

    fn holds(&self, token: &[u8]) -> bool {
        let Some(key) = self.open else { return false };
        let mut len = 0;
        // SAFETY: an open key that holds a string (checked first). The bytes are compared before anything else can
        // touch the key. The length comes first, because reading the value costs the server a copy of a short one.
        unsafe {
            if self.seen != Seen::Text || api!(RedisModule_ValueLength(key.as_ptr())) != token.len() {
                return false;
            }
            let start = api!(RedisModule_StringDMA(key.as_ptr(), &raw mut len, raw::REDISMODULE_READ as i32));
            !start.is_null() && std::slice::from_raw_parts(start.cast::<u8>(), len) == token
        }
    }

    fn expires_at_ms(&self) -> Option<u64> {
        // SAFETY: an open key. Without an expiry the server answers −1.
        let at = unsafe { api!(RedisModule_GetAbsExpire(self.open?.as_ptr())) };
        u64::try_from(at).ok()
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.open {
            // SAFETY: closes what `open` opened, once.
            unsafe { api!(RedisModule_CloseKey(key.as_ptr())) }
        }
    }
}
