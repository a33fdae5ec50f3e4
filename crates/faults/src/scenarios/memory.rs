//! Locks expire unreleased.

use std::ops::Range;

use anyhow::{Result, ensure};
use redis::pipe;

use super::node::{Node, PATIENCE};
use crate::wait_until;

/// What is left of expired locks that no client requested again: no lease, no key, and this memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftovers {
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
    acquire(&mut node, "warm", 0..BATCH, 1)?;
    wait_until(
        PATIENCE,
        "the first locks are gone",
        || Ok(node.info("lock", "lock_leases")? == 0),
    )?;
    let before_bytes = node.info("memory", "used_memory")?;

    let mut granted = 0;
    for from in (0..locks).step_by(BATCH as usize) {
        // Long enough for 100,000 locks, as in the test, to be held at the same time.
        granted += acquire(&mut node, "key", from..locks.min(from + BATCH), 3000)?;
    }
    ensure!(granted == locks as usize, "only {granted} of {locks} locks were granted");
    let peak_memory_bytes = node.info("memory", "used_memory")?.saturating_sub(before_bytes);

    let mut memory_bytes = 0;
    wait_until(PATIENCE, "all locks are gone, and their memory is free", || {
        let (leases, keys) = (node.info("lock", "lock_leases")?, node.call::<u64>(&["DBSIZE"])?);
        memory_bytes = node.info("memory", "used_memory")?.saturating_sub(before_bytes);
        Ok(leases == 0 && keys == 0 && memory_bytes < NOISE_BYTES)
    })?;
    ensure!(
        peak_memory_bytes > 4 * NOISE_BYTES,
        "{locks} locks are too few to see whether their memory is freed"
    );
    Ok(Leftovers { memory_bytes, peak_memory_bytes })
}

/// Acquires many locks, and returns how many were granted.
fn acquire(node: &mut Node, name: &str, numbers: Range<u32>, ttl_ms: u32) -> Result<usize> {
    let mut pipeline = pipe();
    for n in numbers {
        pipeline.cmd("LOCK.ACQUIRE").arg(format!("{name} {n}")).arg("token").arg(ttl_ms);
    }
    let answers: Vec<Option<u64>> = pipeline.query(&mut node.connection)?;
    Ok(answers.into_iter().flatten().count())
}
