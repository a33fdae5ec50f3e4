//! The tests of the rules that need more than one module of the core.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod after_the_win;
mod fences;
mod node_state;
mod protocol_vectors;
mod quorum;
mod random_steps;
mod revocation;
mod scan;
mod set;
mod shard;
mod support;
mod turns;
mod vectors;
mod waits;
