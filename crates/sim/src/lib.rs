//! Two proofs that run the real state machines of `quorlock-core`, with a network and clocks of
//! their own.
//!
//! - [`fleet`] simulates whole fleets of clients and nodes. A seed draws the events.
//! - [`Model`] is a model of the agreement on fences, so small that [`run`] tries every event in
//!   every order. [`models`] and [`mutants`] are the models to check, with their expected verdicts.

#![allow(
    missing_docs,
    reason = "this crate is internal: an item has a doc where its name and type say too little"
)]

mod catalogue;
pub mod fleet;
mod model;

pub use catalogue::{Check, Outcome, Size, Verdict, models, mutants, run, run_all};
pub use model::{Action, Answers, Message, Model, Property};
