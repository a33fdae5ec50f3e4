//! Runs the node's jobs at the end of each turn of the server's loop.
//!
//! The module may write keys only here and in commands.

use quorlock_core::node::{Budget, Job};

use crate::ffi::{Ctx, LogLevel, clock};
use crate::keyspace::ServerKeyspace;
use crate::module;

pub(crate) fn run(ctx: &Ctx<'_>) {
    let check_policy = module::with(|state| {
        let now = clock::now();
        let mut keyspace = ServerKeyspace::for_jobs(ctx);
        let mut budget = Budget::turn();
        while let Some(job) = state.node.next_job(now, &mut budget, &mut keyspace) {
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
        std::mem::take(&mut state.check_eviction_policy)
    });
    if check_policy == Some(true) && ctx.evicts_keys() {
        ctx.log(
            LogLevel::Warning,
            "lock: maxmemory-policy lets this server evict the keys of locks. A lock whose key was \
             evicted stays held, but plain clients, replicas and a restarted server do not see it \
             until the key is written again: set maxmemory-policy noeviction on a lock master",
        );
    }
}
