//! The functions that the server calls. No panic may leave them: it would abort the server.

use std::ffi::{CStr, c_int};
use std::panic::{self, AssertUnwindSafe};

use redis_module::raw;

use super::api;
use super::command::{self, Command, Keys};
use super::{Args, Ctx, LogLevel, events, info};
use crate::error::CommandError;
use crate::{commands, docs, module, request};

#[global_allocator]
static SERVER_ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

/// The name of the module, and the prefix of its settings, INFO fields and log lines.
pub(super) const MODULE_NAME: &CStr = c"lock";

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Pairs each API function with whether the server lacks it.
///
/// Redis 7.0 has all functions that the module needs. On an older server, the module logs the first
/// one that is missing, and is not loaded.
macro_rules! missing_functions {
    ($($function:ident)*) => {{
        // SAFETY: the statics are written only by the initialisation of the module, which is over.
        [$((stringify!($function), unsafe { (&raw const raw::$function).read() }.is_none())),*]
    }};
}

/// Called by the server to load the module.
///
/// # Safety
/// The server calls it, once, with a live context and the module's arguments.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub(super) unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: this is the first call into the server, as it must be; before it nothing may be
    // allocated.
    if unsafe { raw::Export_RedisModule_Init(ctx, MODULE_NAME.as_ptr(), module::VERSION, version) }
        == ERR
    {
        return ERR;
    }
    // SAFETY: both live for the time of this call.
    let (ctx, args) = unsafe { (Ctx::new(ctx), Args::new(argv, argc)) };
    guard(|| load(&ctx, args)).unwrap_or(ERR)
}

/// Called by the server to unload the module.
///
/// # Safety
/// The server calls it with a live context.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub(super) unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: live for the time of this call.
    let ctx = unsafe { Ctx::new(ctx) };
    guard(|| {
        if !module::stop(&ctx) {
            return ERR;
        }
        let _ = panic::take_hook();
        OK
    })
    .unwrap_or(ERR)
}

fn load(ctx: &Ctx<'_>, args: Args<'_>) -> c_int {
    let needed = missing_functions! {
        RedisModule_SetCommandInfo RedisModule_GetCommand RedisModule_HoldString RedisModule_SetAbsExpire
        RedisModule_GetAbsExpire RedisModule_ReplyWithMap RedisModule_SignalModifiedKey RedisModule_SubscribeToServerEvent
        RedisModule_SubscribeToKeyspaceEvents RedisModule_SetModuleOptions RedisModule_AvoidReplicaTraffic
        RedisModule_EventLoopAdd RedisModule_EventLoopDel RedisModule_GetServerInfo RedisModule_RegisterNumericConfig
        RedisModule_BlockClient RedisModule_UnblockClient RedisModule_SetDisconnectCallback
        RedisModule_GetBlockedClientHandle RedisModule_GetServerVersion RedisModule_ReplyWithArray
        RedisModule_RegisterStringConfig RedisModule_LoadConfigs RedisModule_RegisterInfoFunc RedisModule_GetUsedMemoryRatio
        RedisModule_RedactClientCommandArgument RedisModule_IsKeysPositionRequest RedisModule_KeyAtPosWithFlags
        RedisModule_ReplicateVerbatim RedisModule_GetRandomHexChars RedisModule_GetClientId
        RedisModule_GetClientNameById RedisModule_GetClientUserNameById RedisModule_GetClientInfoById
        RedisModule_GetKeyNameFromModuleKey
        RedisModule_GetContextFlags RedisModule_ServerInfoGetFieldC
    };
    if let Some((name, _)) = needed.iter().find(|(_, missing)| *missing) {
        let line = format!(
            "lock: this server is too old: it lacks {name}. Use Redis 7.0 or Valkey 8.0, or newer."
        );
        ctx.log(LogLevel::Warning, &line);
        return ERR;
    }
    install_panic_hook();
    // Everything that can fail comes first: a server crashes if a module that failed to load has
    // subscribed to events.
    let is_registered = command::register_category(ctx)
        && docs::ALL.iter().zip(CALLS).all(|(known, call)| command::register(ctx, known, call))
        && info::register(ctx);
    if !is_registered {
        ctx.log(
            LogLevel::Warning,
            "lock: not loaded: the server refuses a LOCK command (has another module registered it?) or the ACL category @lock",
        );
        return ERR;
    }
    if !module::start(ctx, args) {
        return ERR;
    }
    let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
        // Opening a key for writing would otherwise invalidate WATCH and caches even without a
        // write.
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED;
    // SAFETY: a live context.
    unsafe { api!(RedisModule_SetModuleOptions(ctx.as_ptr(), options as c_int)) };
    events::subscribe(ctx);
    OK
}

/// What the server calls for a command.
pub(super) type Call = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    *mut *mut raw::RedisModuleString,
    c_int,
) -> c_int;

/// The call of each command, in the order of the table.
const CALLS: [Call; docs::ALL.len()] = [
    call::<0>, call::<1>, call::<2>, call::<3>, call::<4>, call::<5>, call::<6>, call::<7>,
    call::<8>, call::<9>, call::<10>, call::<11>, call::<12>,
];

/// Called by the server for the command with this index in the table.
///
/// # Safety
/// The server passes a live context and `argc` live strings.
unsafe extern "C" fn call<const INDEX: usize>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: both live for the time of this call.
    let (ctx, args) = unsafe { (Ctx::new(ctx), Args::new(argv, argc)) };
    run(docs::ALL[INDEX], &ctx, args);
    OK
}

fn run(command: &Command, ctx: &Ctx<'_>, args: Args<'_>) {
    if command.keys == Keys::Counted && ctx.is_key_position_request() {
        let keys = guard(|| request::key_positions(command.keys, args).ok()).flatten();
        let keys = keys.filter(|keys| keys.end <= args.len());
        keys.into_iter()
            .flatten()
            .for_each(|index| ctx.report_key_position(index, &command.key_flags));
        return;
    }
    let result = guard(|| (command.run)(ctx, command.keys, args));
    match &result {
        Some(Ok(())) => {}
        Some(Err(error)) => drop(guard(|| commands::send_error(ctx, error))),
        None => ctx.reply_error(
            &"ERR internal error of the lock module: the server's log says where; please report it",
        ),
    }
    // Redacts last, because Valkey 8.1 hides an argument from the command itself as well. The
    // server shows no argument before the command returns.
    if command.has_token {
        let is_parsed = matches!(result, Some(Ok(()) | Err(CommandError::Node(_))));
        guard(|| {
            if is_parsed {
                // Finds both first, because hiding one may change the arguments.
                let (token, new_token) = request::token_positions(command.keys, args);
                ctx.redact(token);
                if let Some(new_token) = new_token {
                    ctx.redact(new_token);
                }
            } else {
                // Any argument may be a token.
                (1..args.len()).for_each(|index| ctx.redact(index));
            }
        });
    }
}

/// Runs `f`. Returns `None` if it panicked, which the panic hook has then logged.
pub(super) fn guard<T>(f: impl FnOnce() -> T) -> Option<T> {
    panic::catch_unwind(AssertUnwindSafe(f)).ok()
}

/// Installs a hook that logs only the place of a panic.
///
/// The standard hook walks the stack, which crashes some servers. It also prints the message, which
/// may contain data of a client.
fn install_panic_hook() {
    panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        // SAFETY: the server allows a log line without a context.
        let ctx = unsafe { Ctx::new(std::ptr::null_mut()) };
        ctx.log(
            LogLevel::Warning,
            &format!(
                "lock: internal error{place}; a command that was running is answered with an error"
            ),
        );
    }));
}
