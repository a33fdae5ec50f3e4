//! Causes accidents on real servers, and checks what they do to locks, with and without the
//! protection.
//!
//! - [`Scenario`]: one kind of accident, and its expected [`Baseline`]; [`Tally`]: the result
//! - [`scenarios`]: all accidents to a single node, and the table of their results
//! - [`exclusion`]: random accidents to five masters; no two clients may hold a lock at a time
//! - [`fences`]: accidents to single masters out of five; the fences of each lock must grow
//! - [`kinds`]: accidents to five masters; shared locks and semaphores must not have too many
//!   holders
//! - [`stress`]: clients that wait on one server, and everything that can end a wait
//! - [`fuzz`]: compares one server with a model of it after each step
//! - [`harness`]: the parts that these modules, other tests and benchmarks share

#![allow(
    missing_docs,
    reason = "this crate is internal: an item has a doc where its name and type say too little"
)]

pub mod exclusion;
pub mod fences;
pub mod fuzz;
pub mod harness;
pub mod kinds;
mod scenario;
pub mod scenarios;
pub mod stress;

pub use harness::Protected;
pub use scenario::{Baseline, Scenario, Tally};
