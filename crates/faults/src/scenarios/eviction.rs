//! The server is short of memory, and evicts keys.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{is_its_holders, module_or_set_nx};
use crate::node::{Node, Way};
use crate::{Protected, Scenario, Tally, Twin};

/// Far less than what the memory is filled with lasts, and far more than filling it takes.
const TTL: Duration = Duration::from_secs(60);

/// The key that would expire soonest goes first: a lock.
pub static VOLATILE_TTL: Scenario = Scenario {
    fault: "eviction under volatile-ttl",
    twin: Twin::Harmed("SET NX PX"),
    round: |protected, tally| evicted("volatile-ttl", protected, tally),
};

/// The key that was not used for the longest time goes first.
pub static ALLKEYS_LRU: Scenario = Scenario {
    fault: "eviction under allkeys-lru",
    twin: Twin::Harmed("SET NX PX"),
    round: |protected, tally| evicted("allkeys-lru", protected, tally),
};

fn evicted(policy: &str, protected: Protected, tally: &mut Tally) -> Result<()> {
    let way = module_or_set_nx(protected);
    // The more keys the server compares, the surer it takes the one that its policy names.
    let mut node =
        Node::start(|builder| builder.arg("maxmemory-policy", policy).arg("maxmemory-samples", 64))?;
    let held = node.take(way, "held", "holder", TTL)?;
    let room_bytes = 1 << 20;
    let limit_bytes = node.info("memory", "used_memory")? + room_bytes;
    node.set_config("maxmemory", &limit_bytes.to_string())?;
    fill_until_evicted(&mut node, way)?;
    tally.injected();
    node.set_config("maxmemory", "0")?;

    is_its_holders(&mut node, way, &held, tally)
}

/// Writes what nobody needs, and would last long, until the lock's key has made room for it.
fn fill_until_evicted(node: &mut Node, way: Way) -> Result<()> {
    const BATCHES_MAX: usize = 200;
    for batch in 0..BATCHES_MAX {
        let keys = (0..100).map(|n| format!("filler {batch} {n}"));
        node.set_all(keys, &"x".repeat(1000), Duration::from_secs(3600))?;
        let is_evicted = match way {
            Way::Module => node.info("lock", "lock_saved_from_eviction")? == 1,
            Way::SetNx => !node.exists("held")?,
        };
        if is_evicted {
            return Ok(());
        }
    }
    ensure!(false, "the lock's key was not evicted by {BATCHES_MAX} batches");
    Ok(())
}
