//! The module's state while it is loaded, and what it does without being asked.

use std::cell::RefMut;
use std::hash::{BuildHasher, RandomState};

use quorlock_core::Ttl;
use quorlock_core::node::{Adjusted, Event, Node, Settings};

use crate::audience::Audience;
use crate::ffi::{Access, Arg, Args, Ctx, Held, Key, LogLevel, MainThread, clock};

/// The module's version, as `MODULE LIST` shows it: major × 10,000 + minor × 100 + patch.
pub(crate) const VERSION: i32 = 100;

/// Largest ttl, in milliseconds.
const MAX_TTL_MS: u64 = 60_000;
/// How far ahead of the server's wall clock a proposed fence may lie, in milliseconds.
const MAX_CLOCK_SKEW_MS: u64 = 60_000;
/// A fixed number of fence counters, half a megabyte in all.
const FENCE_STRIPES: usize = 65_536;
/// Ended leases removed in one turn of the event loop, so that a million of them at once do not stall the server.
const DUE_PER_TURN_MAX: usize = 200;

static STATE: MainThread<State> = MainThread::empty();

pub(crate) struct State {
    pub(crate) node: Node<Held>,
    audience: Audience,
    /// The keyspace event that is being sent is about a write of our own.
    own_write: bool,
}

/// Begins. False, with the reason in the server's log, when the arguments are not right.
pub(crate) fn start(ctx: &Ctx<'_>, args: Args<'_>) -> bool {
    if args.len() > 0 {
        ctx.log(LogLevel::Warning, "lock: the module takes no arguments");
        return false;
    }
    let settings = Settings {
        max_ttl: Ttl::from_ms(MAX_TTL_MS).expect("the default is in range"),
        max_clock_skew_ms: MAX_CLOCK_SKEW_MS,
        fence_stripes: FENCE_STRIPES,
        hash_seed: RandomState::new().hash_one(0),
    };
    STATE.set(Some(State {
        node: Node::new(settings, clock::now()),
        audience: Audience::new(ctx.is_only_module()),
        own_write: false,
    }));
    ctx.log(LogLevel::Notice, &format!("lock: ready; the largest ttl is {MAX_TTL_MS} ms"));
    true
}

pub(crate) fn stop() {
    STATE.set(None);
}

/// The state. Not to be held across a call into the server: see [`MainThread::borrow`].
pub(crate) fn state() -> RefMut<'static, State> {
    STATE.borrow()
}

pub(crate) fn max_ttl() -> Ttl {
    state().node.max_ttl()
}

/// Tells everybody that a token was written under a key, as SET with an expiry would.
pub(crate) fn tell_set(ctx: &Ctx<'_>, key: Arg<'_>, token: Arg<'_>, expires_at_ms: u64) {
    let audience = audience(ctx);
    if audience.replicates {
        ctx.replicate_set(key, token, expires_at_ms);
    }
    ctx.signal_modified(key);
    if audience.hears_events {
        ctx.notify_string(c"set", key);
        own_write(|| ctx.notify_generic(c"expire", key));
    }
}

/// Tells everybody that a key's expiry was moved, as PEXPIREAT would.
pub(crate) fn tell_expire(ctx: &Ctx<'_>, key: Arg<'_>, expires_at_ms: u64) {
    let audience = audience(ctx);
    if audience.replicates {
        ctx.replicate_expire(key, expires_at_ms);
    }
    ctx.signal_modified(key);
    if audience.hears_events {
        own_write(|| ctx.notify_generic(c"expire", key));
    }
}

/// Tells everybody that a key was deleted, as DEL would.
pub(crate) fn tell_delete(ctx: &Ctx<'_>, key: Arg<'_>) {
    tell_gone(ctx, key, || ctx.notify_generic(c"del", key));
}

/// Tells everybody that a key is gone because its time was over.
fn tell_expired(ctx: &Ctx<'_>, key: Arg<'_>) {
    tell_gone(ctx, key, || ctx.notify_expired(key));
}

fn tell_gone(ctx: &Ctx<'_>, key: Arg<'_>, notify: impl FnOnce()) {
    let audience = audience(ctx);
    if audience.replicates {
        ctx.replicate_delete(key);
    }
    ctx.signal_modified(key);
    if audience.hears_events {
        own_write(notify);
    }
}

/// Who is to be told of a write.
struct Told {
    replicates: bool,
    hears_events: bool,
}

fn audience(ctx: &Ctx<'_>) -> Told {
    let server_publishes = ctx.publishes_keyspace_events();
    let audience = &mut state().audience;
    Told { replicates: audience.replicates(), hears_events: audience.hears_events(server_publishes) }
}

/// Runs `notify` so that our own subscription takes no notice of it.
fn own_write(notify: impl FnOnce()) {
    state().own_write = true;
    notify();
    state().own_write = false;
}

/// Something happened to a key by another's hand.
pub(crate) fn on_keyspace_event(ctx: &Ctx<'_>, event: Event, key: Arg<'_>) {
    let Some(mut state) = STATE.try_borrow() else { return };
    if !state.own_write {
        state.node.observe(clock::monotonic(), ctx.db(), key.as_bytes(), event);
    }
}

/// A database, or all of them, is about to be emptied.
pub(crate) fn on_flush(db: Option<u32>) {
    if let Some(mut state) = STATE.try_borrow() {
        state.node.observe_flush(db);
    }
}

/// This server is a replica now: the keys are its master's.
pub(crate) fn on_demotion() {
    if let Some(mut state) = STATE.try_borrow() {
        state.node.forget_all();
    }
}

/// The server forked: a replica may be on its way, or an append-only file.
pub(crate) fn on_fork() {
    if let Some(mut state) = STATE.try_borrow() {
        state.audience.snapshot_begins();
    }
}

/// Another module was loaded.
pub(crate) fn on_module_loaded() {
    if let Some(mut state) = STATE.try_borrow() {
        state.audience.module_joins();
    }
}

/// Before the server waits for the next commands: here keys may be written.
pub(crate) fn before_sleep(ctx: &Ctx<'_>) {
    remove_ended(ctx);
    let Some(mut state) = STATE.try_borrow() else { return };
    let now = clock::monotonic();
    state.node.give_back_memory(now);
    let look = state.audience.wants_to_look(now);
    let count = state.audience.take_uncounted();
    drop(state);
    if count {
        ctx.count_a_change();
    }
    if look {
        let nobody = ctx.nobody_replicates();
        if let Some(mut state) = STATE.try_borrow() {
            state.audience.looked(nobody);
        }
    }
}

/// Removes the mirrors of leases whose deadline has come. Usually the server has expired them by then.
fn remove_ended(ctx: &Ctx<'_>) {
    let now = clock::monotonic();
    for _ in 0..DUE_PER_TURN_MAX {
        let Some(state) = STATE.try_borrow() else { return };
        let Some(due) = state.node.due(now) else { return };
        let (db, key) = (due.db, due.key.share());
        drop(state);
        if ctx.writes_are_paused() {
            return;
        }
        ctx.select_db(db);
        let mut mirror = Key::open(ctx, key.lend(), Access::Write);
        let adjusted = self::state().node.settle(now, db, key.as_ref(), &mirror);
        if adjusted == Adjusted::DeleteMirror {
            mirror.delete();
            tell_expired(ctx, key.lend());
        }
    }
}
