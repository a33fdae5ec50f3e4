//! Distributed locks as native commands of Redis and Valkey: the server module.
//!
//! `quorlock_core::node` makes every decision. This crate carries bytes between the node and the
//! server.
//!
//! - [`commands`]: the handler of each command.
//! - [`inspection`]: what `LOCK.INSPECT` and `LOCK.SCAN` show.
//! - [`request`]: parses arguments.
//! - [`error`]: the error replies of the commands.
//! - [`docs`]: the table of the commands, and the reply of `LOCK.HELP`.
//! - [`server_events`]: passes the server's events on to the node.
//! - [`before_sleep`]: runs the node's jobs at the end of each turn of the server's loop.
//! - [`module`]: the state of the loaded module.
//! - [`config`]: the settings `lock.*`.
//! - [`info`]: the fields of `INFO lock`.
//! - [`ffi`]: all unsafe code, with the keys and clients of the server.

// Only contributors read the docs of this crate, so links to private items are allowed.
#![allow(rustdoc::private_intra_doc_links)]

mod before_sleep;
mod commands;
mod config;
mod docs;
mod error;
mod ffi;
mod info;
mod inspection;
mod module;
mod request;
mod server_events;
