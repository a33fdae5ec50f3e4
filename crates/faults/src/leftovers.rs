use std::time::Duration;

use anyhow::{Result, ensure};

use crate::node::Node;

/// What is left of locks that have expired, and that nobody asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftovers {
    /// Leases in the module's table.
    pub leases: u64,
    /// Keys in the keyspace.
    pub keys: u64,
    /// What the server uses more than before the first of them, in bytes.
    pub memory_bytes: u64,
    /// What it used more while they were held, in bytes.
    pub peak_memory_bytes: u64,
}

/// What a server may keep for itself: buffers of connections, and tables that grow by steps.
const NOISE_BYTES: u64 = 1 << 20;

/// Takes so many locks, gives none of them back, and asks for none of them again.
///
/// # Errors
/// When one of them was not granted, or when they are not gone a good while after the last of them has expired.
pub fn expire_unreleased(locks: u32) -> Result<Leftovers> {
    const BATCH: u32 = 1000;
    let mut node = Node::start(|builder| builder)?;
    // What the first use leaves on purpose is there before anything is measured.
    node.acquire_all((0..BATCH).map(|n| format!("warm {n}")), "token", Duration::from_millis(1))?;
    node.eventually("the first are gone", |node| Ok(node.leases()? == 0))?;
    let before_bytes = node.info("memory", "used_memory")?;

    // Time for all of them to be held at once, for as many as an ordinary test takes.
    let ttl = Duration::from_secs(3);
    let mut granted = 0;
    for batch in 0..locks.div_ceil(BATCH) {
        let keys = (batch * BATCH..locks.min((batch + 1) * BATCH)).map(|n| format!("key {n}"));
        granted += node.acquire_all(keys, "token", ttl)?;
    }
    ensure!(granted == locks as usize, "only {granted} of {locks} locks were granted");
    let peak_memory_bytes = node.info("memory", "used_memory")?.saturating_sub(before_bytes);

    let mut left = Leftovers { leases: 0, keys: 0, memory_bytes: 0, peak_memory_bytes };
    node.eventually("all of them are gone, and their memory", |node| {
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
