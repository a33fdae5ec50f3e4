//! The tests of the module, on real servers. One program, so that they run beside each other.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod abstention;
mod acl;
mod architecture;
mod bad_input;
mod commands;
mod common;
mod config;
mod documentation;
mod error_table;
mod events;
mod info;
mod interop;
mod key_positions;
mod overwrites;
mod persistence;
mod replication;
mod scan;
mod secrets;
mod set;
mod shared;
mod waiting;
mod waiting_bounds;
