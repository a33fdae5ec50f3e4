//! Subscriptions to the server's events.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use quorlock_core::node::{KeyEvent, ServerEvent};
use redis_module::raw;

use super::{Arg, Ctx, api, clock, entry, keyspace};
use crate::{before_sleep, module, server_events};

/// Subscribes to every event that the module needs. Called last while loading: see [`entry`].
pub(super) fn subscribe(ctx: &Ctx<'_>) {
    // SAFETY: a live context while loading; the callback lives as long as the module.
    let subscribe = |id| unsafe {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        api!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), event, Some(on_event)));
    };
    // Valkey runs the handlers of keyspace events as the client of the command. Valkey 8.1 leaves
    // the event's database selected, which after COPY and MOVE is not the client's: the client, the
    // append-only file and the replicas continue in the wrong database. Valkey's events about
    // removed values have a client of their own.
    if ctx.is_valkey() {
        subscribe(raw::REDISMODULE_EVENT_KEY);
    } else {
        // The class of string commands such as SET is missing, because its events would slow every
        // SET of the server. The node notices a plain SET when a LOCK command next uses the key.
        let classes = raw::REDISMODULE_NOTIFY_GENERIC
            | raw::REDISMODULE_NOTIFY_EXPIRED
            | raw::REDISMODULE_NOTIFY_EVICTED;
        // SAFETY: as above.
        unsafe {
            api!(RedisModule_SubscribeToKeyspaceEvents(
                ctx.as_ptr(),
                classes,
                Some(on_keyspace_event)
            ));
        }
    }
    for id in [
        raw::REDISMODULE_EVENT_EVENTLOOP,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_PERSISTENCE,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_CONFIG,
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        raw::REDISMODULE_EVENT_MODULE_CHANGE,
    ] {
        subscribe(id);
    }
}

/// Reports what a command, or the server itself, did to a key of Redis.
unsafe extern "C" fn on_keyspace_event(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes a live context, the name of the event and the key, for the time of
    // this call.
    let (ctx, name) = unsafe { (Ctx::new(ctx), CStr::from_ptr(event)) };
    if let (Some(event), Some(key)) = (key_event(name.to_bytes()), NonNull::new(key)) {
        // SAFETY: as above.
        let key = unsafe { Arg::new(key) };
        entry::guard(|| server_events::handle_key_event(&ctx, name, event, key));
    }
    raw::REDISMODULE_OK as c_int
}

/// Translates the name of a keyspace event; `None` if it does not concern locks.
fn key_event(name: &[u8]) -> Option<KeyEvent> {
    match name {
        b"expired" => Some(KeyEvent::Expired),
        b"evicted" => Some(KeyEvent::Evicted),
        b"del" | b"rename_from" | b"move_from" => Some(KeyEvent::Removed),
        b"rename_to" | b"move_to" | b"copy_to" | b"restore" => Some(KeyEvent::Replaced),
        // EXPIRE sends this event, and so does a SET with an expiry, which replaces the value.
        // `server_events` adds the length of the value, which tells a mirror from other values.
        b"expire" => Some(KeyEvent::ExpirySet { value_bytes: None }),
        _ => None,
    }
}

/// Handles every event of the server but those about keys of Redis.
unsafe extern "C" fn on_event(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    // SAFETY: a live context, for the time of this call.
    let ctx = unsafe { Ctx::new(ctx) };
    // SAFETY: the server passes the structure of this event, or null.
    entry::guard(|| unsafe { handle(&ctx, event.id, subevent, data) });
}

/// # Safety
/// `data` is null, or points to the structure that the server passes with this event. The texts in
/// it end in a zero. With the event of a key, the server has selected the database of the key,
/// which is open and has its old value.
unsafe fn handle(ctx: &Ctx<'_>, event: u64, subevent: u64, data: *mut c_void) {
    let event = match (event, subevent) {
        (raw::REDISMODULE_EVENT_EVENTLOOP, raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP) => {
            return before_sleep::run(ctx);
        }
        (raw::REDISMODULE_EVENT_EVENTLOOP, _) => return clock::turn_begins(),
        (raw::REDISMODULE_EVENT_KEY, _) => {
            // SAFETY: the caller's promise.
            return unsafe { handle_removal(ctx, subevent, data.cast()) };
        }
        (raw::REDISMODULE_EVENT_CONFIG, _) => {
            // SAFETY: the caller's promise.
            return unsafe { handle_config_change(data.cast()) };
        }
        (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_START) => {
            // SAFETY: the caller's promise.
            let flushed = unsafe { data.cast::<raw::RedisModuleFlushInfo>().as_ref() };
            let Some(flushed) = flushed else { return };
            // A negative number stands for all databases.
            ServerEvent::Flush(u32::try_from(flushed.dbnum).ok())
        }
        (raw::REDISMODULE_EVENT_SWAPDB, _) => {
            // SAFETY: the caller's promise.
            let swapped = unsafe { data.cast::<raw::RedisModuleSwapDbInfo>().as_ref() };
            let Some(swapped) = swapped else { return };
            let (first, second) = (swapped.dbnum_first, swapped.dbnum_second);
            let event = ServerEvent::Swap(first.unsigned_abs(), second.unsigned_abs());
            return server_events::handle_and_log(ctx, event);
        }
        (raw::REDISMODULE_EVENT_MODULE_CHANGE, raw::REDISMODULE_SUBEVENT_MODULE_LOADED) => {
            // SAFETY: the caller's promise.
            let name = unsafe {
                let change = data.cast::<raw::RedisModuleModuleChange>().as_ref();
                change.map(|change| CStr::from_ptr(change.module_name))
            };
            if name.is_none_or(|name| name == entry::MODULE_NAME) {
                return;
            }
            ServerEvent::ModuleLoaded
        }
        (
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA,
        ) => ServerEvent::Demoted,
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, _) => {
            return server_events::handle_and_log(ctx, ServerEvent::Promoted);
        }
        (raw::REDISMODULE_EVENT_PERSISTENCE, _) => ServerEvent::Saves,
        (
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED,
        ) => ServerEvent::LoadingEnds,
        (raw::REDISMODULE_EVENT_LOADING, _) => ServerEvent::LoadingBegins,
        (raw::REDISMODULE_EVENT_FORK_CHILD, _)
        | (
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
            raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE,
        ) => ServerEvent::ListenersChanged,
        _ => return,
    };
    server_events::handle_event(event);
}

/// Reports that Valkey is about to remove or replace the value of a key.
///
/// # Safety
/// The context is in the database of the key. `info` is null, or has an open key with its old
/// value, whose name lives as long as the key.
unsafe fn handle_removal(ctx: &Ctx<'_>, subevent: u64, info: *mut raw::RedisModuleKeyInfo) {
    if info.is_null() || keyspace::is_changing() {
        return;
    }
    let event = match subevent {
        raw::REDISMODULE_SUBEVENT_KEY_DELETED => Some(KeyEvent::Removed),
        raw::REDISMODULE_SUBEVENT_KEY_EXPIRED => Some(KeyEvent::Expired),
        raw::REDISMODULE_SUBEVENT_KEY_EVICTED => Some(KeyEvent::Evicted),
        _ => None,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let key = (*info).key;
        let Some(name) = NonNull::new(api!(RedisModule_GetKeyNameFromModuleKey(key)).cast_mut())
        else {
            return;
        };
        let is_string = api!(RedisModule_KeyType(key)) as isize == raw::REDISMODULE_KEYTYPE_STRING;
        let value_bytes = if is_string { api!(RedisModule_ValueLength(key)) } else { 0 };
        server_events::handle_removal(ctx, event, Arg::new(name), value_bytes);
    }
}

/// # Safety
/// `change` is null, or has `num_changes` names, each of which ends in a zero.
unsafe fn handle_config_change(change: *mut raw::RedisModuleConfigChange) {
    // SAFETY: the caller's promise.
    let names = unsafe {
        let Some(change) = change.as_ref() else { return };
        std::slice::from_raw_parts(change.config_names, change.num_changes as usize)
    };
    for &name in names {
        // SAFETY: the caller's promise.
        match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"maxmemory-policy" => {
                module::with(|state| state.check_eviction_policy = true);
            }
            b"save"
            | b"stop-writes-on-bgsave-error"
            | b"min-replicas-to-write"
            | b"min-slaves-to-write"
            | b"min-replicas-max-lag"
            | b"min-slaves-max-lag" => {
                module::with(|state| state.read_write_conditions = true);
            }
            b"appendonly" => server_events::handle_event(ServerEvent::ListenersChanged),
            _ => {}
        }
    }
}
