//! Distributed locks as native commands of Redis and Valkey: the server module.
//!
//! `quorlock_core::node` makes every decision. This crate carries bytes between it and the server.
//!
//! - [`commands`]: the handler of each command.
//! - [`inspection`]: what `LOCK.INSPECT` and `LOCK.SCAN` show.
//! - [`request`]: parses arguments.
//! - [`error`]: the text of every error.
//! - [`help`]: the reply of `LOCK.HELP`.
//! - [`docs`]: the text of `COMMAND DOCS` and of redis-cli's hints.
//! - [`keyspace`]: the server's keys, as the node sees them.
//! - [`server_events`]: passes the server's events on to the node.
//! - [`before_sleep`]: runs the node's jobs at the end of each turn of the server's loop.
//! - [`module`]: the state while the module is loaded.
//! - [`config`]: the settings of an operator.
//! - [`info`]: the fields of `INFO lock`.
//! - [`ffi`]: all unsafe code.

// Only contributors read the docs of a library that a server loads.
#![allow(rustdoc::private_intra_doc_links)]

mod before_sleep;
mod commands;
mod config;
mod docs;
mod error;
mod ffi;
mod help;
mod info;
mod inspection;
mod keyspace;
mod module;
mod request;
mod server_events;
