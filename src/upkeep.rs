//! What the module does without being asked, each time before the server waits for the next commands: the one place,
//! besides a command, where keys may be written.

use quorlock_core::node::{Adjusted, Now, Repair};

use crate::error::CommandError;
use crate::ffi::{Access, Ctx, Key, LogLevel, clock};
use crate::{handover, module, tell, waiting};

/// Ended leases removed, and lost mirrors written, in one turn of the event loop, so that a million of them at once do
/// not stall the server.
const DUE_PER_TURN_MAX: usize = 200;
/// How soon to look again while writes are paused, or memory is short, in microseconds.
const RETRY_US: u64 = 10_000;

pub(crate) fn before_sleep(ctx: &Ctx<'_>) {
    let now = clock::now();
    let mut retry = false;
    module::with(|state| {
        state.node.settle_flushes();
        state.node.give_back_memory(now.monotonic);
    });
    if is_anything_due(now) {
        dismiss_waiters(now);
        retry = ctx.writes_are_paused();
        if !retry {
            give_back_abandoned(ctx);
            hand_over_free_keys(ctx, now);
            remove_ended(ctx, now);
            retry = ctx.memory_is_short();
            if !retry {
                repair_mirrors(ctx, now);
            }
        }
        rejoin(ctx, now);
    }
    waiting::unblock_deferred();
    module::with(|state| {
        if let Some(at) = state.node.next_wake() {
            let at = if retry { at.max(now.monotonic.plus_us(RETRY_US)) } else { at };
            state.timer.wake_at(now.monotonic, at);
        }
    });
    look_around(ctx, now);
}

fn is_anything_due(now: Now) -> bool {
    let due = module::with(|state| {
        state.waiting.has_abandoned() || state.node.next_wake().is_some_and(|at| at <= now.monotonic)
    });
    due == Some(true)
}

/// Answers those who wait no more: also while nothing may be written.
fn dismiss_waiters(now: Now) {
    for _ in 0..DUE_PER_TURN_MAX {
        let dismissed = module::with(|state| {
            let ticket = state.node.pop_dismissed(now.monotonic)?;
            Some((ticket, state.node.abstains(now.monotonic)))
        });
        let Some(Some((ticket, abstains))) = dismissed else { return };
        let error = abstains.map(|(reason, left_ms)| {
            let left_ms = left_ms.unwrap_or_else(|| module::max_ttl().ms());
            CommandError::Abstaining { reason, left_ms }
        });
        waiting::dismiss(ticket, error);
    }
}

/// Gives back what was handed over to clients that were gone before they could be told.
fn give_back_abandoned(ctx: &Ctx<'_>) {
    for grant in module::with(|state| state.waiting.take_abandoned()).unwrap_or_default() {
        ctx.select_db(grant.db);
        // Whatever else is under the key by now is not this grant's.
        let _ = handover::release(ctx, grant.key.lend(), grant.token.lend());
    }
}

/// Hands over the keys that became free otherwise than by a release.
fn hand_over_free_keys(ctx: &Ctx<'_>, now: Now) {
    for _ in 0..DUE_PER_TURN_MAX {
        let due = module::with(|state| {
            state.node.due_for_hand_over(now.monotonic).map(|due| (due.db, due.key.share()))
        });
        let Some(Some((db, key))) = due else { return };
        ctx.select_db(db);
        let mirror = Key::open(ctx, key.lend(), Access::Write);
        handover::hand_over(ctx, db, key.lend(), mirror);
    }
}

/// Removes the mirrors of leases whose deadline has come, when usually the server has expired them, and those of the other
/// keys of a lock that has ended.
fn remove_ended(ctx: &Ctx<'_>, now: Now) {
    for _ in 0..DUE_PER_TURN_MAX {
        let due = module::with(|state| state.node.due(now.monotonic).map(|due| (due.db, due.key.share())));
        let Some(Some((db, key))) = due else { return };
        ctx.select_db(db);
        let mut mirror = Key::open(ctx, key.lend(), Access::Write);
        let adjusted = module::state().node.settle(now.monotonic, db, key.as_ref(), &mirror);
        if let Adjusted::DeleteMirror { expired } = adjusted {
            mirror.delete();
            if expired {
                tell::expired(ctx, key.lend());
            } else {
                tell::delete(ctx, key.lend());
            }
        }
    }
}

/// Writes the mirrors again that accidents took.
fn repair_mirrors(ctx: &Ctx<'_>, now: Now) {
    for _ in 0..DUE_PER_TURN_MAX {
        let due = module::with(|state| {
            state.node.due_for_repair(now.monotonic).map(|due| (due.db, due.key.share()))
        });
        let Some(Some((db, key))) = due else { return };
        ctx.select_db(db);
        let mut mirror = Key::open(ctx, key.lend(), Access::Write);
        let repair = match module::state().node.repair(now, db, key.as_ref(), &mirror) {
            Repair::Set { token, expires_at_ms } => Some((token.share(), expires_at_ms)),
            Repair::Nothing => None,
        };
        if let Some((token, expires_at_ms)) = repair
            && mirror.set(token.lend(), expires_at_ms)
        {
            tell::set(ctx, key.lend(), token.lend(), expires_at_ms);
        }
    }
}

/// Ends an abstention whose time is over.
fn rejoin(ctx: &Ctx<'_>, now: Now) {
    if let Some(Some(reason)) = module::with(|state| state.node.rejoin(now)) {
        ctx.log(LogLevel::Notice, &format!("lock: voting again; the abstention ({reason}) is over"));
    }
}

/// Looks at what the server does not tell of.
fn look_around(ctx: &Ctx<'_>, now: Now) {
    let Some((look, count, policy)) = module::with(|state| {
        let audience = &mut state.audience;
        let look = audience.wants_to_look(now.monotonic);
        (look, audience.take_uncounted(), std::mem::take(&mut state.look_at_eviction_policy))
    }) else {
        return;
    };
    if count {
        ctx.count_a_change();
    }
    if look {
        let nobody = ctx.nobody_replicates();
        module::with(|state| state.audience.looked(nobody));
    }
    if policy {
        warn_of_eviction(ctx);
    }
}

/// Warns when the server may evict the keys of locks.
fn warn_of_eviction(ctx: &Ctx<'_>) {
    if ctx.evicts_keys() {
        ctx.log(
            LogLevel::Warning,
            "lock: maxmemory-policy lets this server evict the keys of locks. The locks stay held, but other clients, \
             replicas and a restart no longer see them: set maxmemory-policy noeviction on a lock master",
        );
    }
}
