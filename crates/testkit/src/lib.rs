//! Real servers for tests, benchmarks and trying things out, and a network between them that can be made bad.
//!
//! - [`Server`]: one Redis or Valkey, in a directory of its own, that can be killed, paused and restarted
//! - [`Masters`]: several of them with the Quorlock module, independent of each other
//! - [`Proxy`]: stands before a server and delays, holds, swallows or cuts what passes, and counts it
//! - [`Stress`]: clients that wait on a server, and everything that can happen to them
//! - [`WallClock`]: steps the wall clock of a running server (Linux)
//! - [`PowerCut`]: kills a server and takes from its files what was not synced (Linux)
//! - [`eventually`] and [`eventually_async`]: wait for a condition, never for a time
//! - [`find_server_binary`] and [`module_path()`]: what there is to start, and what it loads
//!
//! Whatever is dropped takes everything it started with it: processes, threads, sockets and directories.

mod binary;
mod error;
mod eventually;
mod injector;
mod masters;
mod module;
mod proxy;
mod server;
mod stress;

pub use binary::{BINARY_VARIABLE, find_server_binary};
pub use error::{BinaryError, ModuleError, StartError};
pub use eventually::{eventually, eventually_async};
#[cfg(target_os = "linux")]
pub use injector::{PowerCut, WallClock};
pub use masters::Masters;
pub use module::{MODULE_VARIABLE, module_path};
pub use proxy::{Direction, Proxy};
pub use server::{Server, ServerBuilder};
pub use stress::{Stress, StressOutcome};
