//! The tests of the rules that need more than one module of the core.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod after_the_win;
mod client_parts;
mod fences;
mod late_answers;
mod late_calls;
mod lock_kinds;
mod node_state;
mod ownership;
mod protocol_vectors;
mod quorum;
mod random_answers;
mod random_steps;
mod revocation;
mod scan;
mod set;
mod shard;
mod support;
mod turns;
mod vectors;
mod waits;
