//! The tests of the client, on real nodes. One program, so that they run beside each other.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod blocking;
mod common;
mod connections;
mod errors;
mod examples;
mod fences;
mod kinds;
mod membership;
mod nodes;
mod operators;
mod renewal;
mod results;
mod secrets;
