use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

use quorlock_core::node::{Access, Kind, WriteRefused};
use redis_module::raw;

use super::{Arg, Ctx, MainThread, api};

/// Whether this module is changing a key, and the server reports that to it.
static CHANGING: MainThread<Cell<bool>> = MainThread::new(Cell::new(false));

fn changing<T>(change: impl FnOnce() -> T) -> T {
    CHANGING.get().set(true);
    let result = change();
    CHANGING.get().set(false);
    result
}

/// An open key, within one call from the server. Meanwhile no other code may use the key.
pub(crate) struct Key<'ctx> {
    /// `None` if the key was opened for reading and does not exist.
    open: Option<NonNull<raw::RedisModuleKey>>,
    kind: Kind,
    lives: PhantomData<&'ctx ()>,
}

impl<'ctx> Key<'ctx> {
    /// Opens a key in the selected database.
    ///
    /// A key that has expired counts as missing. If the server removes it, the event precedes the
    /// return.
    pub(crate) fn open(ctx: &Ctx<'ctx>, name: Arg<'_>, access: Access) -> Self {
        let mode = match access {
            Access::Read => raw::REDISMODULE_READ,
            Access::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: a live context and a live string.
        let key = unsafe { api!(RedisModule_OpenKey(ctx.as_ptr(), name.as_ptr(), mode as i32)) };
        let key = NonNull::new(key.cast::<raw::RedisModuleKey>());
        let kind = match key {
            None => Kind::Missing,
            // SAFETY: an open key.
            Some(key) => match unsafe { api!(RedisModule_KeyType(key.as_ptr())) } as isize {
                raw::REDISMODULE_KEYTYPE_EMPTY => Kind::Missing,
                raw::REDISMODULE_KEYTYPE_STRING => Kind::Text,
                _ => Kind::Other,
            },
        };
        Self { open: key, kind, lives: PhantomData }
    }

    /// Writes a string with an expiry.
    ///
    /// Deletes the key if the server refuses the string or the expiry: a lock that never ends is
    /// worse than none.
    pub(crate) fn set(&mut self, value: Arg<'_>, expires_at_ms: u64) -> Result<(), WriteRefused> {
        let key = self.open.ok_or(WriteRefused)?;
        // SAFETY: a key that is open for writing and a live string, which the server may keep.
        let written =
            changing(|| unsafe { api!(RedisModule_StringSet(key.as_ptr(), value.as_ptr())) });
        self.kind = Kind::Text;
        let is_written = written == raw::REDISMODULE_OK as i32;
        let result = if is_written { self.expire(expires_at_ms) } else { Err(WriteRefused) };
        if result.is_err() {
            self.delete();
        }
        result
    }

    /// Sets when the string expires, in milliseconds of the wall clock.
    pub(crate) fn expire(&mut self, expires_at_ms: u64) -> Result<(), WriteRefused> {
        let key = self.open.ok_or(WriteRefused)?;
        // A time that wrapped would be negative: the server refuses that, or reads −1 as "never".
        let at = i64::try_from(expires_at_ms).map_err(|_| WriteRefused)?;
        // SAFETY: a key that is open for writing.
        let expires = unsafe { api!(RedisModule_SetAbsExpire(key.as_ptr(), at)) };
        if expires == raw::REDISMODULE_OK as i32 { Ok(()) } else { Err(WriteRefused) }
    }

    pub(crate) fn delete(&mut self) {
        if let Some(key) = self.open {
            // SAFETY: a key that is open for writing.
            changing(|| unsafe { api!(RedisModule_DeleteKey(key.as_ptr())) });
            self.kind = Kind::Missing;
        }
    }

    /// Whether the value that the server removes now is removed by this module.
    pub(super) fn is_changed_by_module() -> bool {
        CHANGING.get().get()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The length of the string; `None` if the key holds no string.
    ///
    /// Safe within a keyspace event. Reading the value is not safe there: it can make the server
    /// replace the value that the command is using.
    pub(crate) fn value_bytes(&self) -> Option<usize> {
        let key = self.open.filter(|_| self.kind == Kind::Text)?;
        // SAFETY: an open key.
        Some(unsafe { api!(RedisModule_ValueLength(key.as_ptr())) })
    }

    /// Whether the key holds a string with exactly this value.
    pub(crate) fn holds(&self, value: &[u8]) -> bool {
        let Some(key) = self.open else { return false };
        let mut len = 0;
        // SAFETY: an open key that holds a string (checked first). The bytes are compared before
        // any other code can use the key. The lengths are compared first, because reading a short
        // value costs the server a copy.
        unsafe {
            if self.kind != Kind::Text || api!(RedisModule_ValueLength(key.as_ptr())) != value.len()
            {
                return false;
            }
            let start = api!(RedisModule_StringDMA(
                key.as_ptr(),
                &raw mut len,
                raw::REDISMODULE_READ as i32
            ));
            !start.is_null() && std::slice::from_raw_parts(start.cast::<u8>(), len) == value
        }
    }

    /// When the key expires, in milliseconds of the wall clock; `None` if it does not.
    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
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
