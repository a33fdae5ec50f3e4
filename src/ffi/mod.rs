//! All `unsafe` code, behind safe functions.
//!
//! - [`entry`]: the server's entry points: load, unload, and calls of commands.
//! - [`Arg`], [`Args`], [`Name`]: strings of the server: lent by it, or made by this module.
//! - [`Ctx`]: the context of a call: replies, propagates, notifies.
//! - [`Key`]: an open key.
//! - [`Blocked`]: the clients that wait.
//! - [`Client`]: the identity of a client.
//! - [`command`]: registers the commands and their documentation.
//! - [`config`]: registers the settings.
//! - [`info`]: the module's part of `INFO`.
//! - [`Timer`]: wakes the event loop.
//! - [`events`]: subscribes to the server's events.
//! - [`MainThread`]: state that only the server's main thread uses.
//! - [`clock`]: the clocks of the node.

// The rest of this crate denies unsafe code.
#![allow(unsafe_code)]
// The C header's constants have the types of their literals. argc and argv are the usual names.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::similar_names
)]
// Some methods of a context call API functions that take no context.
#![allow(clippy::unused_self)]

mod api;
mod arg;
mod blocked;
mod client;
pub(crate) mod clock;
pub(crate) mod command;
pub(crate) mod config;
mod ctx;
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
pub(crate) use key::Key;
pub(crate) use main_thread::MainThread;
pub(crate) use timer::Timer;
