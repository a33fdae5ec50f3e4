//! Causes accidents on real servers, and checks what they do to locks, with and without the
//! protection.
//!
//! - [`scenarios`]: all accidents to a single node, and the table of their results
//! - [`storm`]: accidents to five nodes while clients compete for their locks
//! - [`history`]: which client held which lock when, and the violations in it
//! - [`fuzz`]: compares one server with a model of it after each step
//! - [`harness`]: what these modules share

#![allow(
    missing_docs,
    reason = "this crate is internal: an item has a doc where its name and type say too little"
)]

pub mod fuzz;
pub mod harness;
pub mod history;
pub mod scenarios;
pub mod storm;

pub use harness::Protected;
