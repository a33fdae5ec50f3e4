//! Starts local Redis and Valkey servers, and stops them.
//!
//! `quorlock up` starts its nodes with this crate, and so do the tests and the benchmarks.
//!
//! - [`Server`]: one server in a directory of its own, which can be killed, paused and restarted
//! - [`Nodes`]: several independent servers with the Quorlock module
//! - [`find_server_binary`] and [`module_path()`]: the program to start, and the module to load
//! - [`StartHook`]: changes the command that starts a server, for programs that inject faults
//! - [`ReservedPort`]: a port for a program that this process starts
//! - [`holds_within`]: waits for a condition
//! - [`in_parallel`]: does the same with several values at the same time
//!
//! When a [`Server`] or [`Nodes`] is dropped, its processes are killed and its temporary
//! directories are removed. A directory that the caller chose stays.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

mod error;
mod find;
mod nodes;
mod server;

pub use error::StartError;
pub use find::{BINARY_VARIABLE, MODULE_VARIABLE, find_server_binary, module_path};
pub use nodes::Nodes;
pub use server::{ReservedPort, Server, ServerBuilder, StartHook};

/// Interval between two checks of a condition.
pub const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Returns whether `condition` holds within `timeout`, by checking it every few milliseconds.
///
/// Checks the condition at least once. The last check begins when the time is up.
pub fn holds_within(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        let time_is_up = started.elapsed() >= timeout;
        if condition() {
            return true;
        }
        if time_is_up {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Calls `f` with each item in a thread of its own, and returns the results in the order of items.
///
/// A panic of `f` continues in the caller when all calls have ended.
pub fn in_parallel<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    f: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let f = &f;
        let running: Vec<_> = items.into_iter().map(|item| scope.spawn(move || f(item))).collect();
        let results = running.into_iter().map(ScopedJoinHandle::join);
        results.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
