//! Distributed locks as native commands of Redis and Valkey: the server module.
//!
//! The decisions are in `quorlock_core::node`; this crate carries bytes between them and the server.
//!
//! - [`commands`]: what each command does.
//! - [`docs`]: what `COMMAND DOCS` and redis-cli say of them.
//! - [`request`]: arguments into requests.
//! - [`error`]: every error that a command answers.
//! - [`module`]: the state while the module is loaded, and what it does without being asked.
//! - [`audience`]: whether anybody listens to what is written.
//! - [`ffi`]: all that is unsafe.

// What a server loads has no other reader than who works on it.
#![allow(rustdoc::private_intra_doc_links)]

mod audience;
mod commands;
mod docs;
mod error;
mod ffi;
mod module;
mod request;
