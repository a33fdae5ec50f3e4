//! Model checking: runs the real state machines of `quorlock-core` for a few clients and nodes, and
//! tries every event that can happen to them, in every order.
//!
//! - [`World`]: a model. Its fields give its size and the events that may happen in it.
//! - [`Keys`]: the keys that a client locks
//! - [`Property`]: a property that must always hold
//! - [`Mutant`]: a rule broken on purpose, which the checker must notice
//! - [`models`] and [`mutants`]: the worlds that are checked, with their expected verdicts
//! - [`run`](run()): checks one of these worlds
//! - [`fleet`]: simulates fleets that are too large for the model checker; a seed draws the events
//!
//! The servers are `quorlock_core::node::memory::Server`, and the clients drive
//! `quorlock_core::quorum`. This crate adds a network and clocks. A mutant of a model changes the
//! code of this crate around the state machines, and never the state machines.

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
