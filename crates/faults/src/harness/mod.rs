//! What all runs with accidents share.
//!
//! - `accident`: what can go wrong with a master or its network
//! - `clients`: clients in tasks of this process
//! - `fleet`: masters, and the accidents that happen to them
//! - `history`: which client held which lock when, and the violations in it
//! - `node`: one master, and the commands of a lock
//! - `plain`: a connection for clients that do not use the client library
//! - `process`: clients in separate processes

mod accident;
mod clients;
mod fleet;
mod history;
mod node;
mod plain;
mod process;

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use redis::{Connection, cmd};

pub use self::accident::{Accident, AccidentCounts, Disk};
pub(crate) use self::clients::{held_span, held_until, random_of, run_clients};
pub(crate) use self::fleet::some_masters;
pub use self::fleet::{Fleet, Incident, Injectors, Master};
pub use self::history::{Disorder, Grant, History, Overlap, disorders, longest_gap, now, overlaps};
pub(crate) use self::node::{Answer, Held, LockMethod, Node, PATIENCE, port};
pub(crate) use self::plain::NodeConnection;
pub use self::process::Process;

pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

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
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() % 1_000_000 * 1000 + u64::from(since.subsec_millis())
}

/// Returns the result of a thread. A panic of the thread goes on in the caller.
pub(crate) fn result_of<T>(joined: thread::Result<T>) -> T {
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Reads a number from a section of `INFO`.
///
/// # Errors
/// When the server does not answer, or the section has no such number.
pub fn info(connection: &mut Connection, section: &str, field: &str) -> Result<u64> {
    let info: String = cmd("INFO").arg(section).query(connection)?;
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let value = value.with_context(|| format!("INFO {section} has no {field}"))?;
    value.trim().parse().with_context(|| format!("{field} is {value}"))
}
