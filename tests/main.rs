//! The tests of the module, on real servers. One program, so that they run beside each other.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod abstention;
mod acl;
mod architecture;
mod commands;
mod common;
mod config;
mod documentation;
mod errors;
mod events;
mod info;
mod interop;
mod persistence;
mod replication;
mod secrets;
mod waiting;
