//! Runs the node's jobs at the end of each turn of the server's loop.
//!
//! The module may write keys only here and in commands.

use std::mem::take;

use quorlock_core::node::{Budget, Job, TURN_LIMIT_US, WriteConditions};

use crate::ffi::{Ctx, LogLevel, ServerKeyspace, clock};
use crate::module;

pub(crate) fn run(ctx: &Ctx<'_>) {
    let checks = module::with(|state| {
        let now = clock::now();
        let mut keyspace = ServerKeyspace::for_jobs(ctx);
        let (mut budget, ends_at) = (Budget::turn(), now.monotonic.plus_us(TURN_LIMIT_US));
        while let Some(job) = state.node.next_job(now, &mut budget, &mut keyspace) {
            if clock::monotonic() >= ends_at {
                budget.end();
            }
            // The node still abstains if it has become a replica in the meantime.
            if let Job::Rejoined(reason) = job
                && state.node.abstention(now.monotonic).is_none()
            {
                let line = format!("lock: voting again; the abstention ({reason}) is over");
                ctx.log(LogLevel::Notice, &line);
            }
        }
        if let Some(at) = state.node.next_wake() {
            state.timer.wake_at(now.monotonic, at);
        }
        (take(&mut state.check_eviction_policy), take(&mut state.read_write_conditions))
    });
    let Some((check_policy, read_conditions)) = checks else { return };
    if read_conditions {
        let conditions = write_conditions(ctx);
        module::with(|state| state.write_conditions = conditions);
    }
    if check_policy && ctx.config("maxmemory-policy").is_some_and(|policy| policy != "noeviction") {
        ctx.log(
            LogLevel::Warning,
            "lock: maxmemory-policy lets this server evict the keys of locks. A lock whose key was \
             evicted stays held, but plain clients, replicas and a restarted server do not see it \
             until the key is written again: set maxmemory-policy noeviction on a lock master",
        );
    }
}

/// Reads the server's configs. One that cannot be read counts as the server's default.
fn write_conditions(ctx: &Ctx<'_>) -> WriteConditions {
    let is = |name: &str, value: &str| ctx.config(name).is_some_and(|have| have == value);
    let number = |name: &str| ctx.config(name)?.parse::<u64>().ok();
    let has_lag_limit = number("min-replicas-max-lag") != Some(0);
    let min_replicas = number("min-replicas-to-write").filter(|_| has_lag_limit);
    WriteConditions {
        needs_save: !is("stop-writes-on-bgsave-error", "no") && !is("save", ""),
        min_replicas: min_replicas.unwrap_or(0),
    }
}
