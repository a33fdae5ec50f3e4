use std::ffi::{CString, c_void};
use std::fmt::Display;
use std::marker::PhantomData;

use redis_module::commands::KeySpecFlags;
use redis_module::{Context, RedisResult, RedisValue, raw};

use super::api;

/// The context of one call from the server.
pub(crate) struct Ctx<'a> {
    ctx: *mut raw::RedisModuleCtx,
    lives: PhantomData<&'a ()>,
}

#[derive(Clone, Copy)]
pub(crate) enum LogLevel {
    Notice,
    Warning,
}

impl Ctx<'_> {
    /// # Safety
    /// `ctx` is the context of a call that lasts as long as `'a`.
    pub(super) unsafe fn new(ctx: *mut raw::RedisModuleCtx) -> Self {
        Self { ctx, lives: PhantomData }
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    pub(crate) fn db(&self) -> u32 {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_GetSelectedDb(self.ctx)) }.unsigned_abs()
    }

    pub(crate) fn reply_integer(&self, value: i64) {
        // SAFETY: a live context of a command.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.ctx, value)) };
    }

    pub(crate) fn reply_null(&self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithNull(self.ctx)) };
    }

    pub(crate) fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: as above; the server copies the bytes.
        unsafe {
            api!(RedisModule_ReplyWithStringBuffer(self.ctx, bytes.as_ptr().cast(), bytes.len()))
        };
    }

    /// Begins an array of `len` elements, which are the replies that follow.
    pub(crate) fn reply_array(&self, len: i32) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithArray(self.ctx, len.into())) };
    }

    /// Begins a map of `pairs` pairs, which are the replies that follow. RESP2 shows a flat array.
    pub(crate) fn reply_map(&self, pairs: i32) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithMap(self.ctx, pairs.into())) };
    }

    /// Replies with an array of text lines, as HELP does.
    pub(crate) fn reply_lines(&self, lines: &[String]) {
        self.reply_array(lines.len() as i32);
        for line in lines {
            let line = CString::new(line.as_str()).unwrap_or_default();
            // SAFETY: as above; the text is copied.
            unsafe { api!(RedisModule_ReplyWithSimpleString(self.ctx, line.as_ptr())) };
        }
    }

    pub(crate) fn reply_wrong_arity(&self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_WrongArity(self.ctx)) };
    }

    /// Replies with an error, whose text never contains bytes from a client.
    pub(crate) fn reply_error(&self, error: &impl Display) {
        let text = CString::new(error.to_string()).unwrap_or_else(|_| c"ERR internal error".into());
        // SAFETY: as above; the text is copied, and it is not a format.
        unsafe { api!(RedisModule_ReplyWithError(self.ctx, text.as_ptr())) };
    }

    /// Whether the server is Valkey, and not Redis.
    pub(super) fn is_valkey(&self) -> bool {
        let mut function: *const c_void = std::ptr::null();
        let name = c"ValkeyModule_SelectDb".as_ptr();
        // SAFETY: a name, and a place for the address of the function, which is not called.
        unsafe { api!(RedisModule_GetApi(name, (&raw mut function).cast())) == 0 }
    }

    /// Hides an argument of this command from SLOWLOG and MONITOR.
    pub(super) fn redact(&self, index: usize) {
        // SAFETY: a live context of a command; a position that it does not have is refused.
        unsafe { api!(RedisModule_RedactClientCommandArgument(self.ctx, index as i32)) };
    }

    /// Whether the server only queries where the keys of a command are.
    pub(super) fn is_key_position_request(&self) -> bool {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_IsKeysPositionRequest(self.ctx)) != 0 }
    }

    /// Reports to the server that the argument at this position is a key.
    pub(super) fn report_key_position(&self, index: usize, flags: &KeySpecFlags) {
        // SAFETY: a live context, in which the server asks for the keys.
        unsafe {
            api!(RedisModule_KeyAtPosWithFlags(self.ctx, index as i32, flags.bits() as i32));
        }
    }

    /// Whether no other module is loaded. Call it while this module loads and is not yet listed.
    pub(crate) fn is_only_module(&self) -> bool {
        let listed = self.call("MODULE", &["LIST"]);
        matches!(listed, Ok(RedisValue::Array(modules)) if modules.is_empty())
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER as i32 != 0
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_SLAVE as i32 != 0
    }

    /// Whether the client of this command must not block, for example in MULTI or in a script.
    pub(crate) fn denies_blocking(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING as i32 != 0
    }

    /// Whether the server may drop the reply to a client that the module has unblocked.
    ///
    /// Redis 7.0 does if `CLIENT UNBLOCK` names the client in the same turn: the client then hangs.
    pub(crate) fn drops_replies_of_the_unblocked(&self) -> bool {
        const REDIS_7_2: i32 = 0x0007_0200;
        // SAFETY: needs nothing.
        unsafe { api!(RedisModule_GetServerVersion()) < REDIS_7_2 }
    }

    fn flags(&self) -> i32 {
        // SAFETY: a live context.
        unsafe { api!(RedisModule_GetContextFlags(self.ctx)) }
    }

    /// The value of a config of the server; `None` if it has no such config. Call it only at the
    /// end of a turn.
    pub(crate) fn config(&self, name: &str) -> Option<String> {
        match self.call("CONFIG", &["GET", name]) {
            Ok(RedisValue::Array(pair)) => match pair.into_iter().nth(1)? {
                RedisValue::SimpleString(value) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// Executes a command of the server.
    fn call<const N: usize>(&self, command: &str, args: &[&str; N]) -> RedisResult {
        Context::new(self.ctx).call(command, args)
    }

    /// Writes a line to the server's log. It must not contain a key, a token or other client data.
    pub(crate) fn log(&self, level: LogLevel, line: &str) {
        let level = match level {
            LogLevel::Notice => c"notice",
            LogLevel::Warning => c"warning",
        };
        let Ok(line) = CString::new(line) else { return };
        // SAFETY: a live context, or none, which the server allows; the line is an argument of the
        // format, not the format itself.
        unsafe { api!(RedisModule_Log(self.ctx, level.as_ptr(), c"%s".as_ptr(), line.as_ptr())) };
    }
}
