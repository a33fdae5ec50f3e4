//! Real servers for tests, and faults for them and for the network in front of them.
//!
//! `quorlock-localserver` starts the servers. This crate re-exports it.
//!
//! - [`Fleet`]: nodes behind networks, and the [`Accident`]s that happen to them
//! - [`Proxy`]: a network in front of a server: delays, holds, drops, cuts and counts its traffic
//! - [`WallClock`]: steps the wall clock of a running server
//! - [`PowerCut`]: kills a server, and removes the unsynced bytes from its files
//! - [`Inject`]: starts a server with a [`WallClock`] or a [`PowerCut`]
//! - [`eventually`] and [`eventually_async`]: wait for a condition, never for a time
//!
//! When a value is dropped, everything that it started is removed: processes, threads, sockets and
//! directories.

#![allow(
    missing_docs,
    reason = "this crate is internal: an item has a doc where its name and type say too little"
)]

mod eventually;
mod fleet;
mod injector;
mod proxy;

pub use eventually::{eventually, eventually_async};
pub use fleet::{Accident, Disk, Fleet, FleetNode, Incident, Injectors, calls, info};
pub use injector::{Inject, PowerCut, WallClock};
pub use proxy::{Direction, Proxy};
pub use quorlock_localserver::{
    BINARY_VARIABLE, MODULE_VARIABLE, Nodes, ReservedPort, Server, ServerBuilder, StartError,
    find_server_binary, holds_within, in_parallel, module_path,
};
