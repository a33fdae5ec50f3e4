//! Distributed locks as native commands of Redis and Valkey: the server module.
//!
//! Everything is decided in `quorlock_core::node`. This crate carries bytes between it and the
//! server.
//!
//! - [`commands`]: the handler of each command.
//! - [`inspection`]: what `LOCK.INSPECT` and `LOCK.SCAN` show.
//! - [`request`]: parses arguments.
//! - [`error`]: the text of every error.
//! - [`help`]: what `LOCK.HELP` says.
//! - [`docs`]: what `COMMAND DOCS` and redis-cli show.
//! - [`keyspace`]: the server's keys, as the node sees them.
//! - [`server_events`]: passes on what the server reports.
//! - [`before_sleep`]: runs the node's jobs at the end of each turn of the server's loop.
//! - [`module`]: the state while the module is loaded.
//! - [`config`]: what an operator can set.
//! - [`info`]: the fields of `INFO lock`.
//! - [`ffi`]: everything that is unsafe.

// A library that only a server loads has no readers but the people who work on it.
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
