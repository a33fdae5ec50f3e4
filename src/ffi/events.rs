//! Subscriptions to the server's events.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use quorlock_core::node::ServerEvent;
use redis_module::raw;

use super::api::api;
use super::{Arg, Ctx, clock, entry};
use crate::keyspace::key_event;
use crate::{before_sleep, server_events};

/// Subscribes to every event that the module needs. Called last while loading: see [`entry`].
pub(super) fn subscribe(ctx: &Ctx<'_>) {
    // The class of string commands such as SET is missing, because its events would slow every SET
    // of the server. The node notices a plain SET when a LOCK command next uses the key.
    let classes = raw::REDISMODULE_NOTIFY_GENERIC
        | raw::REDISMODULE_NOTIFY_EXPIRED
        | raw::REDISMODULE_NOTIFY_EVICTED;
    // SAFETY: a live context while loading; the callbacks live as long as the module.
    unsafe {
        api!(RedisModule_SubscribeToKeyspaceEvents(ctx.as_ptr(), classes, Some(on_keyspace_event)));
        let server_events: [(u64, raw::RedisModuleEventCallback); 9] = [
            (raw::REDISMODULE_EVENT_EVENTLOOP, Some(on_event_loop)),
            (raw::REDISMODULE_EVENT_FLUSHDB, Some(on_flush)),
            (raw::REDISMODULE_EVENT_SWAPDB, Some(on_swap)),
            (raw::REDISMODULE_EVENT_LOADING, Some(on_loading)),
            (raw::REDISMODULE_EVENT_CONFIG, Some(on_config_change)),
            (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, Some(on_role_change)),
            (raw::REDISMODULE_EVENT_FORK_CHILD, Some(on_fork)),
            (raw::REDISMODULE_EVENT_REPLICA_CHANGE, Some(on_replica_change)),
            (raw::REDISMODULE_EVENT_MODULE_CHANGE, Some(on_module_change)),
        ];
        for (id, callback) in server_events {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            api!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), event, callback));
        }
    }
}

unsafe extern "C" fn on_keyspace_event(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the server passes a live context, the name of the event and the key, for the time of
    // this call.
    let (ctx, name) = unsafe { (Ctx::new(ctx), CStr::from_ptr(event)) };
    let Some(event) = key_event(name.to_bytes()) else { return raw::REDISMODULE_OK as c_int };
    if let Some(key) = NonNull::new(key) {
        // SAFETY: as above.
        let key = unsafe { Arg::new(key) };
        // In MULTI, Valkey 9 reports a COPY in the client's database, not in that of the target.
        let is_certain = name != c"copy_to" || !ctx.is_in_transaction();
        entry::guard(|| {
            if is_certain {
                server_events::handle_key_event(&ctx, name, event, key);
            } else {
                server_events::handle_uncertain_key_event(&ctx, key);
            }
        });
    }
    restore_database_after_move(&ctx, name.to_bytes());
    raw::REDISMODULE_OK as c_int
}

/// Restores the client's database after the events of a MOVE.
///
/// Valkey 8.1 passes the client of the command to event handlers and leaves the event's database
/// selected: after MOVE the client would be in the other database. The two events of MOVE follow
/// each other directly. On other servers the context has a separate client, so this has no effect.
fn restore_database_after_move(ctx: &Ctx<'_>, event: &[u8]) {
    static MOVED_FROM: AtomicU32 = AtomicU32::new(0);
    match event {
        b"move_from" => MOVED_FROM.store(ctx.db(), Ordering::Relaxed),
        b"move_to" => ctx.select_db(MOVED_FROM.load(Ordering::Relaxed)),
        _ => {}
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

unsafe extern "C" fn on_loading(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    let event = match subevent {
        raw::REDISMODULE_SUBEVENT_LOADING_ENDED | raw::REDISMODULE_SUBEVENT_LOADING_FAILED => {
            ServerEvent::LoadingEnds
        }
        _ => ServerEvent::LoadingBegins,
    };
    entry::guard(|| server_events::handle_event(event));
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

unsafe extern "C" fn on_fork(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    entry::guard(|| server_events::handle_event(ServerEvent::Forked));
}

unsafe extern "C" fn on_replica_change(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE {
        entry::guard(|| server_events::handle_event(ServerEvent::ReplicaOnline));
    }
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
