//! The tests of the program, on real nodes. One program, so that they run beside each other.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(clippy::wildcard_imports, reason = "the helpers of all tests")]

mod common;
mod config;
mod exporter;
mod failing_nodes;
mod fleet;
mod inspect;
mod pages;
mod revoke;
mod run;
mod scripts;
mod stopping;
mod terminal;
mod up;
