//! Faults for real servers, and a network between them that can fail.
//!
//! The servers are those of `quorlock-localserver`, which this crate exports too.
//!
//! - [`Proxy`]: a network before a server that delays, holds, drops or cuts traffic, and counts it
//! - [`WallClock`]: steps the wall clock of a running server (Linux)
//! - [`PowerCut`]: kills a server and takes from its files what was not synced (Linux)
//! - [`Inject`]: starts a server with a wall clock or a power cut (Linux)
//! - [`eventually`] and [`eventually_async`]: wait for a condition, never for a time
//!
//! A value that is dropped takes along everything it started: processes, threads, sockets and
//! directories.

mod eventually;
#[cfg(target_os = "linux")]
mod injector;
mod proxy;

pub use eventually::{eventually, eventually_async};
#[cfg(target_os = "linux")]
pub use injector::{Inject, PowerCut, WallClock};
pub use proxy::{Direction, Proxy};
pub use quorlock_localserver::{
    BINARY_VARIABLE, BinaryError, MODULE_VARIABLE, Masters, ModuleError, Server, ServerBuilder,
    StartError, find_server_binary, holds_within, module_path,
};
