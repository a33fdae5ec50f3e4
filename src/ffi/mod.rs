//! Everything that is `unsafe`, behind functions that are not.
//!
//! - [`entry`]: where the server calls in: load, unload, and the net that catches a panic.
//! - [`Arg`], [`Args`], [`Name`]: the server's strings, lent and made.
//! - [`Ctx`]: what a command can do: answer, replicate, notify.
//! - [`Key`]: an open key; the keyspace as the decisions see it.
//! - [`Blocked`]: the clients that wait.
//! - [`Client`]: who a client is.
//! - [`DetachedClient`]: the author of changes that no command made.
//! - [`command`]: registers the commands and their documentation.
//! - [`config`]: registers what an operator can set.
//! - [`info`]: the module's part of `INFO`.
//! - [`Timer`]: wakes the event loop.
//! - [`events`]: what the server tells without being asked.
//! - [`MainThread`]: state that only the server's main thread touches.
//! - [`clock`]: the monotonic clock that leases are measured on.

// The rest of the module is denied it; here is where it belongs.
#![allow(unsafe_code)]
// The constants of a C header come in whatever type they were written in; argc and argv are what everybody calls them.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::similar_names
)]
// What the server can do belongs to a call from it, whether or not its function takes the context.
#![allow(clippy::unused_self)]

mod api;
mod arg;
mod blocked;
mod client;
pub(crate) mod clock;
pub(crate) mod command;
pub(crate) mod config;
mod ctx;
mod detached_client;
mod entry;
pub(crate) mod events;
pub(crate) mod info;
mod key;
mod main_thread;
mod timer;

pub(crate) use arg::{Arg, Args, Name};
pub(crate) use blocked::Blocked;
pub(crate) use client::Client;
pub(crate) use ctx::{Ctx, LogLevel};
pub(crate) use detached_client::DetachedClient;
pub(crate) use key::Key;
pub(crate) use main_thread::MainThread;
pub(crate) use timer::Timer;
