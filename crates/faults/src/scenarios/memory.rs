//! Keys are evicted because memory is short, and locks expire unreleased.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::{check_still_held, module_or_set_nx};
use crate::harness::{LockMethod, Node, Protected};
use crate::scenario::{Baseline, Scenario, Tally};

/// Much shorter than the ttl of the filler keys, and much longer than the filling takes.
const TTL: Duration = Duration::from_secs(60);

/// The lock's key would expire soonest.
pub static VOLATILE_TTL: Scenario = Scenario {
    accident: "eviction under volatile-ttl",
    baseline: Baseline::Harmed("SET NX PX"),
    run: |protected, tally| eviction("volatile-ttl", protected, tally),
};

/// The lock's key is the least recently used.
pub static ALLKEYS_LRU: Scenario = Scenario {
    accident: "eviction under allkeys-lru",
    baseline: Baseline::Harmed("SET NX PX"),
    run: |protected, tally| eviction("allkeys-lru", protected, tally),
};

fn eviction(policy: &str, protected: Protected, tally: &mut Tally) -> Result<()> {
    let method = module_or_set_nx(protected);
    let mut node = start(policy)?;
    let held = node.acquire_free(method, "held", "holder", TTL)?;
    evict(&mut node, method, "held")?;
    tally.count_injected();
    check_still_held(&mut node, method, &held, tally)
}

pub(super) fn start(policy: &str) -> Result<Node> {
    // The more keys the server compares, the more surely it evicts the one that its policy names.
    Node::start(|builder| builder.arg("maxmemory-policy", policy).arg("maxmemory-samples", 64))
}

/// Makes memory short until the key of a lock is evicted.
pub(super) fn evict(node: &mut Node, method: LockMethod, key: &str) -> Result<()> {
    let room_bytes = 1 << 20;
    let limit_bytes = node.info("memory", "used_memory")? + room_bytes;
    node.set_config("maxmemory", &limit_bytes.to_string())?;
    fill_until_evicted(node, method, key)?;
    node.set_config("maxmemory", "0")
}

/// Writes filler keys until the lock's key is evicted. The module writes an evicted key again, so
/// its count of saved leases shows the eviction.
fn fill_until_evicted(node: &mut Node, method: LockMethod, key: &str) -> Result<()> {
    const BATCHES_MAX: usize = 200;
    for batch in 0..BATCHES_MAX {
        let keys = (0..100).map(|n| format!("filler {batch} {n}"));
        node.set_all(keys, &"x".repeat(1000), Duration::from_secs(3600))?;
        let is_evicted = match method {
            LockMethod::Module => node.info("lock", "lock_saved_from_eviction")? >= 1,
            LockMethod::SetNx => !node.exists(key)?,
        };
        if is_evicted {
            return Ok(());
        }
    }
    bail!("the lock's key was not evicted after {BATCHES_MAX} batches of filler keys")
}

/// What is left of expired locks that no client requested again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftovers {
    pub leases: u64,
    pub keys: u64,
    /// How much more memory is in use than before the measured locks.
    pub memory_bytes: u64,
    /// How much more memory was in use after the last grant than before the measured locks.
    pub peak_memory_bytes: u64,
}

/// Memory that a server may keep: buffers of connections, and tables that grow by steps.
const NOISE_BYTES: u64 = 1 << 20;

/// Acquires locks, and returns what is left when all of them have expired.
///
/// # Errors
/// When the server fails, a lock is not granted, a lease or a key or memory is left long after the
/// last lock has expired, or the locks are too few to measure their memory.
pub fn expire_unreleased(locks: u32) -> Result<Leftovers> {
    const BATCH: u32 = 1000;
    let mut node = Node::start(|builder| builder)?;
    // The server and the module keep some of the memory that the first locks need, so the
    // measurement starts after them.
    node.acquire_all((0..BATCH).map(|n| format!("warm {n}")), "token", Duration::from_millis(1))?;
    node.eventually("the first locks are gone", |node| Ok(node.leases()? == 0))?;
    let before_bytes = node.info("memory", "used_memory")?;

    // Long enough for 100,000 locks, as in the test, to be held at the same time.
    let ttl = Duration::from_secs(3);
    let mut granted = 0;
    for batch in 0..locks.div_ceil(BATCH) {
        let keys = (batch * BATCH..locks.min((batch + 1) * BATCH)).map(|n| format!("key {n}"));
        granted += node.acquire_all(keys, "token", ttl)?;
    }
    ensure!(granted == locks as usize, "only {granted} of {locks} locks were granted");
    let peak_memory_bytes = node.info("memory", "used_memory")?.saturating_sub(before_bytes);

    let mut left = Leftovers { leases: 0, keys: 0, memory_bytes: 0, peak_memory_bytes };
    node.eventually("all locks are gone, and their memory is free", |node| {
        left.leases = node.leases()?;
        left.keys = node.call(&["DBSIZE"])?;
        left.memory_bytes = node.info("memory", "used_memory")?.saturating_sub(before_bytes);
        Ok(left.leases == 0 && left.keys == 0 && left.memory_bytes < NOISE_BYTES)
    })?;
    ensure!(
        peak_memory_bytes > 4 * NOISE_BYTES,
        "{locks} locks are too few to see whether their memory is freed"
    );
    Ok(left)
}
