//! What the server tells without being asked, passed on to the node.

use quorlock_core::node::Event;

use crate::ffi::{Arg, Ctx, LogLevel, clock};
use crate::module;

/// Something happened to a key by another's hand.
pub(crate) fn key(ctx: &Ctx<'_>, event: Event, key: Arg<'_>) {
    module::with(|state| {
        if !state.own_write {
            state.node.observe(clock::monotonic(), ctx.db(), key.as_bytes(), event);
        }
    });
}

/// A database, or all of them, is about to be emptied.
pub(crate) fn flush(db: Option<u32>) {
    module::with(|state| state.node.observe_flush(db));
}

/// Two databases were swapped.
pub(crate) fn swap(ctx: &Ctx<'_>, first: u32, second: u32) {
    module::with(|state| state.node.observe_swap(clock::now(), first, second));
    log_abstention(ctx);
}

/// The server begins to load its data.
pub(crate) fn loading_begins() {
    module::with(|state| state.node.loading_begins());
}

/// The server has loaded its data, or failed to.
pub(crate) fn loading_ends() {
    module::with(|state| state.node.loading_ends(clock::monotonic()));
}

/// This server is a replica now: the keys are its master's.
pub(crate) fn demotion() {
    module::with(|state| {
        state.node.demote();
        // What they had been granted is not here any more.
        state.waiting.take_abandoned();
    });
}

/// This server was a replica and is a master now.
pub(crate) fn promotion(ctx: &Ctx<'_>) {
    module::with(|state| state.node.promote(clock::now()));
    log_abstention(ctx);
}

/// The server forked: a replica may be on its way, or an append-only file.
pub(crate) fn fork() {
    module::with(|state| state.audience.snapshot_begins());
}

/// Another module was loaded.
pub(crate) fn module_loaded() {
    module::with(|state| state.audience.module_joins());
}

/// An operator set something that decides what the server evicts.
pub(crate) fn eviction_policy_changed() {
    module::with(|state| state.look_at_eviction_policy = true);
}

/// Says in the server's log that the node abstains, why, and for how long.
pub(crate) fn log_abstention(ctx: &Ctx<'_>) {
    let Some(Some((reason, left_ms))) = module::with(|state| state.node.abstains(clock::monotonic())) else {
        return;
    };
    let how_long =
        left_ms.map_or_else(|| "while this server is a replica".into(), |ms| format!("for {ms} ms"));
    let line = format!(
        "lock: abstaining {how_long} ({reason}): a lock granted before may still be held. LOCK.ACQUIRE is answered \
         -ABSTAIN until then; LOCK.EXTEND and LOCK.RELEASE work"
    );
    ctx.log(LogLevel::Notice, &line);
}
