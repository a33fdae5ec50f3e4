//! Distributed locks as native commands of Redis and Valkey: the server module.
//!
//! The decisions are in `quorlock_core::node`; this crate carries bytes between them and the server.
//!
//! - [`commands`]: what each command does.
//! - [`docs`]: what `COMMAND DOCS` and redis-cli say of them.
//! - [`handover`]: the end of a lock, and who has it next.
//! - [`waiting`]: the clients that wait.
//! - [`request`]: arguments into requests.
//! - [`error`]: every error that a command answers.
//! - [`config`]: what an operator can set.
//! - [`info`]: what `INFO lock` says.
//! - [`module`]: the state while the module is loaded.
//! - [`observe`]: what the server tells without being asked.
//! - [`upkeep`]: what the module does without being asked.
//! - [`tell`]: tells everybody what was written.
//! - [`audience`]: whether anybody listens to that.
//! - [`ffi`]: all that is unsafe.

// What a server loads has no other reader than who works on it.
#![allow(rustdoc::private_intra_doc_links)]

mod audience;
mod commands;
mod config;
mod docs;
mod error;
mod ffi;
mod handover;
mod info;
mod module;
mod observe;
mod request;
mod tell;
mod upkeep;
mod waiting;
