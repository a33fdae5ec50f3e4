//! Causes accidents on real servers, and checks what they do to locks, with and without the
//! protection.
//!
//! - [`scenarios`]: all accidents to a single node, and the table of their results
//! - [`storm`]: accidents to five nodes while clients compete for their locks
//! - [`history`]: which client held which lock when, and the violations in it
//! - [`fuzz`]: compares one server with a model of it after each step

#![allow(
    missing_docs,
    reason = "this crate is internal: an item has a doc where its name and type say too little"
)]

pub mod fuzz;
pub mod history;
pub mod scenarios;
pub mod storm;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Whether the protection under test is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protected {
    /// The module and the client run as the documentation describes.
    Yes,
    /// One protection is removed. Such a run is a baseline.
    No,
}

/// Returns a seed that differs from run to run: a test must pass with every seed.
pub fn any_seed() -> u64 {
    u64::from(rand::random::<u32>())
}

/// Waits until a condition holds. Fails when it does not hold within the limit.
pub(crate) fn wait_until(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let started = Instant::now();
    while !holds()? {
        ensure!(started.elapsed() < limit, "not within {} s: {what}", limit.as_secs());
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
