//! Gives the node access to the server's keys and clients.

use std::cell::Cell;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::NonNull;

use quorlock_core::node::{
    Access, BlockedId, Change, Keyspace, Kind, Listeners, ServerEvent, WriteRefused,
};
use redis_module::raw;

use super::info::ServerInfo;
use super::{Arg, Blocked, Ctx, MainThread, Name, api};
use crate::server_events;

/// The server's keys and clients, during one command or the jobs of one turn.
pub(crate) struct ServerKeyspace<'a> {
    ctx: &'a Ctx<'a>,
    db: u32,
    is_command: bool,
}

/// Whether this module is changing a key, and the server reports that to it.
static CHANGING: MainThread<Cell<bool>> = MainThread::new(Cell::new(false));

fn changing<T>(change: impl FnOnce() -> T) -> T {
    CHANGING.get().set(true);
    let result = change();
    CHANGING.get().set(false);
    result
}

/// Whether the value that the server removes now is removed by this module.
pub(super) fn is_changing() -> bool {
    CHANGING.get().get()
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

    /// The length of the string; `None` if the key holds no string.
    ///
    /// Safe within a keyspace event. Reading the value is not safe there: it can make the server
    /// replace the value that the command is using.
    pub(crate) fn value_bytes(&self) -> Option<usize> {
        let key = self.open.filter(|_| self.kind == Kind::Text)?;
        // SAFETY: an open key.
        Some(unsafe { api!(RedisModule_ValueLength(key.as_ptr())) })
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

impl<'a> ServerKeyspace<'a> {
    pub(crate) fn for_command(ctx: &'a Ctx<'a>) -> Self {
        Self { ctx, db: ctx.db(), is_command: true }
    }

    pub(crate) fn for_jobs(ctx: &'a Ctx<'a>) -> Self {
        Self { ctx, db: ctx.db(), is_command: false }
    }

    pub(crate) fn db(&self) -> u32 {
        self.db
    }

    /// Sends a keyspace event of this class. This module ignores it.
    fn notify_own(&self, class: i32, event: &'static CStr, key: Arg<'_>) {
        server_events::send_own(event, key, || self.notify_all(class, event, key));
    }

    fn notify_all(&self, class: i32, event: &CStr, key: Arg<'_>) {
        // SAFETY: a live context, a live string; the name is only read during the call.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(
                self.ctx.as_ptr(),
                class,
                event.as_ptr(),
                key.as_ptr()
            ))
        };
    }
}

impl<'a> Keyspace for ServerKeyspace<'a> {
    type Name = Name<'a>;
    type Entry = Key<'a>;

    fn name(&mut self, bytes: &[u8]) -> Name<'a> {
        Name::made(bytes)
    }

    fn random_value(&mut self) -> Name<'a> {
        Name::random()
    }

    fn open(&mut self, db: u32, key: &Name<'a>, access: Access) -> Key<'a> {
        if db != self.db {
            let number = i32::try_from(db).expect("the number came from the server");
            // SAFETY: a live context.
            unsafe { api!(RedisModule_SelectDb(self.ctx.as_ptr(), number)) };
            self.db = db;
        }
        Key::open(self.ctx, key.as_arg(), access)
    }

    fn kind(&self, key: &Key<'a>) -> Kind {
        key.kind
    }

    fn holds(&self, key: &Key<'a>, value: &[u8]) -> bool {
        // Compares the lengths first, because reading a short value costs the server a copy.
        let Some(key) = key.open.filter(|_| key.value_bytes() == Some(value.len())) else {
            return false;
        };
        let mut len = 0;
        // SAFETY: an open key that holds a string (checked first). The bytes are compared before
        // any other code can use the key.
        unsafe {
            let read = raw::REDISMODULE_READ as i32;
            let start = api!(RedisModule_StringDMA(key.as_ptr(), &raw mut len, read));
            !start.is_null() && std::slice::from_raw_parts(start.cast::<u8>(), len) == value
        }
    }

    fn expires_at_ms(&self, key: &Key<'a>) -> Option<u64> {
        // SAFETY: an open key. Without an expiry the server answers −1.
        let at = unsafe { api!(RedisModule_GetAbsExpire(key.open?.as_ptr())) };
        u64::try_from(at).ok()
    }

    fn set(&mut self, key: &mut Key<'a>, value: &Name<'a>, at_ms: u64) -> Result<(), WriteRefused> {
        let open = key.open.ok_or(WriteRefused)?;
        let value = value.as_arg();
        // SAFETY: a key that is open for writing and a live string, which the server may keep.
        let written =
            changing(|| unsafe { api!(RedisModule_StringSet(open.as_ptr(), value.as_ptr())) });
        key.kind = Kind::Text;
        let is_written = written == raw::REDISMODULE_OK as i32;
        let result = if is_written { self.expire(key, at_ms) } else { Err(WriteRefused) };
        if result.is_err() {
            // A lock that never ends is worse than none.
            self.delete(key);
        }
        result
    }

    fn expire(&mut self, key: &mut Key<'a>, at_ms: u64) -> Result<(), WriteRefused> {
        let key = key.open.ok_or(WriteRefused)?;
        // A time that wrapped would be negative: the server refuses that, or reads −1 as "never".
        let at = i64::try_from(at_ms).map_err(|_| WriteRefused)?;
        // SAFETY: a key that is open for writing.
        let expires = unsafe { api!(RedisModule_SetAbsExpire(key.as_ptr(), at)) };
        if expires == raw::REDISMODULE_OK as i32 { Ok(()) } else { Err(WriteRefused) }
    }

    fn delete(&mut self, key: &mut Key<'a>) {
        if let Some(open) = key.open {
            // SAFETY: a key that is open for writing.
            changing(|| unsafe { api!(RedisModule_DeleteKey(open.as_ptr())) });
            key.kind = Kind::Missing;
        }
    }

    /// Propagates plain commands with absolute expiries. Their receivers need no module.
    fn propagate(&mut self, key: &Name<'a>, change: Change<'_, Name<'a>>) {
        let (ctx, key) = (self.ctx.as_ptr(), key.as_arg().as_ptr());
        let signed = |at_ms: u64| i64::try_from(at_ms).unwrap_or(i64::MAX);
        match change {
            Change::Set { value, expires_at_ms } => {
                let (value, at) = (value.as_arg().as_ptr(), signed(expires_at_ms));
                let (set, format, pxat) = (c"SET".as_ptr(), c"sscl".as_ptr(), c"PXAT".as_ptr());
                // SAFETY: a live context; "sscl" is two strings, a C string and a long long.
                unsafe { api!(RedisModule_Replicate(ctx, set, format, key, value, pxat, at)) };
            }
            Change::Expire { expires_at_ms } => {
                let (at, expire) = (signed(expires_at_ms), c"PEXPIREAT".as_ptr());
                // SAFETY: a live context; "sl" is a string and a long long.
                unsafe { api!(RedisModule_Replicate(ctx, expire, c"sl".as_ptr(), key, at)) };
            }
            Change::Delete | Change::Expired => {
                // SAFETY: a live context; "s" is a string.
                unsafe { api!(RedisModule_Replicate(ctx, c"DEL".as_ptr(), c"s".as_ptr(), key)) };
            }
        }
    }

    /// Propagates a command that the server discards, because there is no listener, after it has
    /// counted the change.
    fn count_change(&mut self) {
        let ctx = self.ctx.as_ptr();
        // SAFETY: a live context, in the first case of a command; the empty format has no
        // arguments.
        unsafe {
            if self.is_command {
                api!(RedisModule_ReplicateVerbatim(ctx))
            } else {
                api!(RedisModule_Replicate(ctx, c"PING".as_ptr(), c"".as_ptr()))
            }
        };
    }

    /// A listener whose field is missing counts as present.
    fn listeners(&mut self) -> Listeners {
        let any = |section: &ServerInfo, fields: &[&CStr]| {
            fields.iter().any(|field| section.number(field).is_none_or(|value| value != 0))
        };
        let replication = ServerInfo::read(c"replication");
        let persistence = ServerInfo::read(c"persistence");
        Listeners {
            append_only_file: any(&persistence, &[c"aof_enabled"]),
            backlog: any(&replication, &[c"repl_backlog_active"]),
            replicas: any(&replication, &[c"connected_slaves"]),
            child: any(
                &persistence,
                &[c"rdb_bgsave_in_progress", c"aof_rewrite_in_progress", c"aof_rewrite_scheduled"],
            ),
        }
    }

    fn invalidate(&mut self, key: &Name<'a>) {
        let key = key.as_arg();
        // SAFETY: a live context and a live string.
        unsafe { api!(RedisModule_SignalModifiedKey(self.ctx.as_ptr(), key.as_ptr())) };
    }

    fn notify(&mut self, key: &Name<'a>, change: Change<'_, Name<'a>>) {
        let key = key.as_arg();
        match change {
            Change::Set { .. } => {
                self.notify_all(raw::REDISMODULE_NOTIFY_STRING, c"set", key);
                self.notify_own(raw::REDISMODULE_NOTIFY_GENERIC, c"expire", key);
            }
            Change::Expire { .. } => {
                self.notify_own(raw::REDISMODULE_NOTIFY_GENERIC, c"expire", key);
            }
            Change::Delete => self.notify_own(raw::REDISMODULE_NOTIFY_GENERIC, c"del", key),
            Change::Expired => self.notify_own(raw::REDISMODULE_NOTIFY_EXPIRED, c"expired", key),
        }
    }

    fn publishes_events(&self) -> bool {
        // SAFETY: needs nothing.
        unsafe { api!(RedisModule_GetNotifyKeyspaceEvents()) != 0 }
    }

    fn may_block(&self) -> bool {
        !self.ctx.denies_blocking()
    }

    fn block(&mut self) -> Option<BlockedId> {
        Blocked::block(self.ctx)
    }

    fn wake(&mut self, blocked_id: BlockedId) {
        Blocked::unblock(blocked_id);
    }

    fn next_event(&mut self) -> Option<ServerEvent> {
        server_events::take_pending()
    }

    /// Clients are paused, or the server fails over to a replica.
    fn writes_are_paused(&self) -> bool {
        // SAFETY: needs nothing.
        unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// The server has reached its `maxmemory`.
    fn memory_is_short(&self) -> bool {
        // SAFETY: needs nothing.
        unsafe { api!(RedisModule_GetUsedMemoryRatio()) >= 1.0 }
    }
}
