//! A server loads its data again while a lock is held, or a replica without the lock is promoted.

use std::time::Instant;

use anyhow::{Result, ensure};
use quorlock_testkit::{Direction, Proxy};

use super::{
    AbstentionSettings, GRANTED_WHILE_HELD, LONG_TTL, MINUTE_S, check_still_held, module_or_set_nx,
};
use crate::harness::{LockMethod, Node, Protected, port};
use crate::scenario::{Baseline, Scenario, Tally};

const KEYS_SURVIVE: Baseline = Baseline::Unharmed("SET NX PX: the keys are loaded again");

/// The server loads a snapshot that it has just made.
pub static DEBUG_RELOAD: Scenario = Scenario {
    accident: "DEBUG RELOAD",
    baseline: KEYS_SURVIVE,
    run: |protected, tally| reload("RELOAD", Clock::Right, protected, tally),
};

/// The server loads its append-only file.
pub static DEBUG_LOADAOF: Scenario = Scenario {
    accident: "DEBUG LOADAOF",
    baseline: KEYS_SURVIVE,
    run: |protected, tally| reload("LOADAOF", Clock::Right, protected, tally),
};

/// A snapshot is loaded without the keys that have expired by the wall clock.
pub static DEBUG_RELOAD_AFTER_A_STEP: Scenario = Scenario {
    accident: "wall clock +60 s, then DEBUG RELOAD",
    baseline: Baseline::Harmed("SET NX PX"),
    run: |protected, tally| reload("RELOAD", Clock::Stepped, protected, tally),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Clock {
    Right,
    Stepped,
}

fn reload(name: &str, clock: Clock, protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = Node::start(|builder| builder.arg("appendonly", "yes"))?;
    let held = node.acquire_free(method, "key", "holder", LONG_TTL)?;
    if clock == Clock::Stepped {
        node.step_clock(MINUTE_S)?;
    }
    let _: String = node.call(&["DEBUG", name])?;
    tally.count_injected();
    check_still_held(&mut node, method, &held, tally)
}

/// The grant is still on its way to the replica.
pub static NOT_YET_REPLICATED: Scenario = Scenario {
    accident: "replica promoted, the lock not yet replicated",
    baseline: Baseline::Harmed("SET NX PX"),
    run: not_yet_replicated,
};

fn not_yet_replicated(protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let settings = AbstentionSettings::of(protected);
    let max_ttl_ms = settings.max_ttl.as_millis();
    // With a delay, the master would wait for more replicas before it sends its data.
    let mut primary = Node::start(|builder| {
        builder.arg("lock.max-ttl", max_ttl_ms).arg("repl-diskless-sync-delay", 0).tcp()
    })?;
    let mut replica = Node::start(|builder| builder.arg("lock.max-ttl", max_ttl_ms))?;
    let network = Proxy::start(primary.master.server.url());
    let port = port(&network.url())?.to_string();
    let _: String = replica.call(&["REPLICAOF", "127.0.0.1", &port])?;
    let _: String = primary.call(&["SET", "replicated", "value"])?;
    replica.eventually("the replica is in step", |replica| replica.exists("replicated"))?;

    network.hold(Direction::ToClient);
    let held = primary.acquire_free(method, "key", "holder", settings.max_ttl)?;
    primary.master.server.kill();
    ensure!(!replica.exists("key")?, "the grant was replicated");
    let promoted_at = Instant::now();
    let _: String = replica.call(&["REPLICAOF", "NO", "ONE"])?;
    tally.count_injected();
    match method {
        LockMethod::Module => {
            settings.check(&mut replica, protected, &held, promoted_at, "promotion", tally)
        }
        LockMethod::SetNx => {
            let (ttl, until) = (settings.max_ttl, held.must_last_until());
            let other = replica.acquire_until(method, "key", "another", ttl, until)?;
            tally.check(other.is_none(), GRANTED_WHILE_HELD);
            Ok(())
        }
    }
}
