//! All `unsafe` code, behind safe functions.
//!
//! - [`entry`]: the server's entry points: load, unload, and calls of commands.
//! - [`Arg`], [`Args`], [`Name`]: strings of the server: lent by it, or made by this module.
//! - [`Ctx`]: the context of a call: replies, propagates, notifies.
//! - [`ServerKeyspace`], [`Key`]: what the node does with the server's keys and clients.
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

mod arg;
mod blocked;
pub(crate) mod clock;
pub(crate) mod command;
pub(crate) mod config;
mod ctx;
mod entry;
pub(crate) mod events;
pub(crate) mod info;
mod keyspace;
mod timer;

pub(crate) use arg::{Arg, Args, Name};
pub(crate) use blocked::{Blocked, Client};
pub(crate) use ctx::{Ctx, LogLevel};
pub(crate) use keyspace::{Key, ServerKeyspace};
pub(crate) use timer::Timer;

/// Calls a function of the module API.
///
/// Every supported server has the function: on other servers [`entry`] refuses to load the
/// module.
macro_rules! api {
    ($function:ident ( $($argument:expr),* $(,)? )) => {{
        // The mutable static is written only while the module is being loaded.
        let function = redis_module::raw::$function;
        match function {
            Some(function) => function($($argument),*),
            None => $crate::ffi::missing(stringify!($function)),
        }
    }};
}
use api;

#[cold]
fn missing(name: &str) -> ! {
    panic!("the server lacks {name}, which was there when the module was loaded");
}

/// A static that only the server's main thread uses.
///
/// The server calls a module only from that thread. Calls nest: an event may arrive during a
/// command. The threads of `io-threads` only read and write sockets.
pub(crate) struct MainThread<T>(T);

// SAFETY: see above; this module starts no thread, so no other thread can reach it.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    pub(crate) fn get(&self) -> &T {
        &self.0
    }
}
