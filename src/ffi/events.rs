//! Subscriptions to the server's events.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use quorlock_core::node::{KeyEvent, ServerEvent};
use redis_module::raw;

use super::{Arg, Ctx, api, clock, entry, keyspace};
use crate::server_events::Removal;
use crate::{before_sleep, server_events};

/// Subscribes to every event that the module needs. Called last while loading: see [`entry`].
pub(super) fn subscribe(ctx: &Ctx<'_>) {
    // SAFETY: a live context while loading; the callbacks live as long as the module.
    let subscribe = |id, callback: raw::RedisModuleEventCallback| unsafe {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        api!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), event, callback));
    };
    // Valkey runs the handlers of keyspace events as the client of the command. Valkey 8.1 leaves
    // the event's database selected, which after COPY and MOVE is not the client's: the client, the
    // append-only file and the replicas continue in the wrong database. Valkey's events about
    // removed values have a client of their own.
    if ctx.is_valkey() {
        subscribe(raw::REDISMODULE_EVENT_KEY, Some(on_value_removed));
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
    subscribe(raw::REDISMODULE_EVENT_EVENTLOOP, Some(on_event_loop));
    subscribe(raw::REDISMODULE_EVENT_FLUSHDB, Some(on_flush));
    subscribe(raw::REDISMODULE_EVENT_PERSISTENCE, Some(on_plain_event));
    subscribe(raw::REDISMODULE_EVENT_SWAPDB, Some(on_swap));
    subscribe(raw::REDISMODULE_EVENT_LOADING, Some(on_plain_event));
    subscribe(raw::REDISMODULE_EVENT_CONFIG, Some(on_config_change));
    subscribe(raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(on_role_change));
    subscribe(raw::REDISMODULE_EVENT_FORK_CHILD, Some(on_plain_event));
    subscribe(raw::REDISMODULE_EVENT_REPLICA_CHANGE, Some(on_plain_event));
    subscribe(raw::REDISMODULE_EVENT_MODULE_CHANGE, Some(on_module_change));
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

/// Reports that Valkey is about to remove or replace the value of a key.
unsafe extern "C" fn on_value_removed(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if data.is_null() || keyspace::is_changing() {
        return;
    }
    let removal = match subevent {
        raw::REDISMODULE_SUBEVENT_KEY_DELETED => Removal::Deleted,
        raw::REDISMODULE_SUBEVENT_KEY_EXPIRED => Removal::Expired,
        raw::REDISMODULE_SUBEVENT_KEY_EVICTED => Removal::Evicted,
        _ => Removal::Overwritten,
    };
    // SAFETY: a live context, in the database of the key, and the structure that the server passes
    // with this event: an open key with its old value, whose name lives as long as the key.
    unsafe {
        let (ctx, key) = (Ctx::new(ctx), (*data.cast::<raw::RedisModuleKeyInfo>()).key);
        let Some(name) = NonNull::new(api!(RedisModule_GetKeyNameFromModuleKey(key)).cast_mut())
        else {
            return;
        };
        let is_string = api!(RedisModule_KeyType(key)) as isize == raw::REDISMODULE_KEYTYPE_STRING;
        let value_bytes = if is_string { api!(RedisModule_ValueLength(key)) } else { 0 };
        let name = Arg::new(name);
        entry::guard(|| server_events::handle_removal(&ctx, removal, name, value_bytes));
    }
}

unsafe extern "C" fn on_event_loop(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
        // SAFETY: a live context for the time of this call.
        let ctx = unsafe { Ctx::new(ctx) };
        entry::guard(|| before_sleep::run(&ctx));
    } else {
        clock::turn_begins();
    }
}

unsafe extern "C" fn on_flush(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_FLUSHDB_START && !data.is_null() {
        // SAFETY: the server passes this structure with this event.
        let flushed = unsafe { &*data.cast::<raw::RedisModuleFlushInfo>() };
        // A negative number stands for all databases.
        let db = u32::try_from(flushed.dbnum).ok();
        entry::guard(|| server_events::handle_event(ServerEvent::Flush(db)));
    }
}

/// Passes on an event of which the node needs only the kind.
unsafe extern "C" fn on_plain_event(
    _ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    let event = match (event.id, subevent) {
        (raw::REDISMODULE_EVENT_PERSISTENCE, _) => ServerEvent::Saves,
        (raw::REDISMODULE_EVENT_FORK_CHILD, _) => ServerEvent::Forked,
        (
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED,
        ) => ServerEvent::LoadingEnds,
        (raw::REDISMODULE_EVENT_LOADING, _) => ServerEvent::LoadingBegins,
        (
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
            raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE,
        ) => ServerEvent::ReplicaOnline,
        _ => return,
    };
    entry::guard(|| server_events::handle_event(event));
}

unsafe extern "C" fn on_swap(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    if data.is_null() {
        return;
    }
    // SAFETY: a live context, and the structure that the server passes with this event.
    let (ctx, swapped) = unsafe { (Ctx::new(ctx), &*data.cast::<raw::RedisModuleSwapDbInfo>()) };
    let (first, second) = (swapped.dbnum_first.unsigned_abs(), swapped.dbnum_second.unsigned_abs());
    entry::guard(|| server_events::handle_and_log(&ctx, ServerEvent::Swap(first, second)));
}

unsafe extern "C" fn on_config_change(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    if data.is_null() {
        return;
    }
    // SAFETY: the server passes this structure with this event; `num_changes` names, each of which
    // ends in a zero.
    let names = unsafe {
        let change = &*data.cast::<raw::RedisModuleConfigChange>();
        std::slice::from_raw_parts(change.config_names, change.num_changes as usize)
    };
    for &name in names {
        // SAFETY: as above.
        match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"maxmemory-policy" => entry::guard(server_events::handle_eviction_policy_change),
            b"save"
            | b"stop-writes-on-bgsave-error"
            | b"min-replicas-to-write"
            | b"min-slaves-to-write"
            | b"min-replicas-max-lag"
            | b"min-slaves-max-lag" => entry::guard(server_events::handle_write_condition_change),
            b"appendonly" => {
                entry::guard(|| server_events::handle_event(ServerEvent::AppendOnlyFileSwitched))
            }
            _ => None,
        };
    }
}

unsafe extern "C" fn on_role_change(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: a live context for the time of this call.
    let ctx = unsafe { Ctx::new(ctx) };
    entry::guard(|| match subevent {
        raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA => {
            server_events::handle_event(ServerEvent::Demoted);
        }
        _ => server_events::handle_and_log(&ctx, ServerEvent::Promoted),
    });
}

unsafe extern "C" fn on_module_change(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent != raw::REDISMODULE_SUBEVENT_MODULE_LOADED || data.is_null() {
        return;
    }
    // SAFETY: the server passes this structure with this event, with a name that ends in a zero.
    let name =
        unsafe { CStr::from_ptr((*data.cast::<raw::RedisModuleModuleChange>()).module_name) };
    if name != entry::MODULE_NAME {
        entry::guard(|| server_events::handle_event(ServerEvent::ModuleLoaded));
    }
}
