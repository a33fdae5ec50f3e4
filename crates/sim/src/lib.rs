//! Model checking: runs the real state machines of `quorlock-core` for a few clients and nodes, and
//! tries every event that can happen to them, in every order.
//!
//! - [`World`]: a model: its size, and the events that may happen in it
//! - [`Keys`]: the keys that a client locks
//! - [`Property`]: a property that must always hold
//! - [`Mutant`]: a rule broken on purpose, which the checker must notice
//! - [`models`] and [`mutants`]: the worlds to check, with their expected verdicts
//! - [`run`](run()): checks a world
//! - [`fleet`]: simulates fleets that are too large for the model checker; a seed draws the events
//!
//! The servers are `quorlock_core::node::memory::Server`, and the clients drive
//! `quorlock_core::quorum`. This crate adds a network and clocks.

#![allow(
    missing_docs,
    reason = "this crate is internal: an item has a doc where its name and type say too little"
)]

mod agreement;
mod catalogue;
mod client;
pub mod fleet;
mod interner;
mod keys;
mod lock;
mod message;
mod mutant;
mod property;
mod run;
mod server;
mod world;

pub use catalogue::{Check, Size, models, mutants};
pub use keys::Keys;
pub use message::{Answer, Body, Message, Request};
pub use mutant::Mutant;
pub use property::Property;
pub use run::{Outcome, Verdict, run};
pub use world::{Action, Answers, Clocks, State, World};
