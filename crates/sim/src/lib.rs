//! Model checking: the real state machines of `quorlock-core`, a few clients and nodes, and everything that can happen
//! to them, in every order.
//!
//! - [`World`]: what is checked. Its fields say how large it is and what may happen in it.
//! - [`Keys`]: what each client locks.
//! - [`Property`]: what must always hold.
//! - [`Mutant`]: a rule that is broken, to see that the checker notices.
//! - [`models`] and [`mutants`]: the worlds that are checked, and what must come of each.
//! - [`run`](run()): checks one of them.
//! - [`fleet`]: whole fleets, which are more than can be checked: a seed draws what happens.
//!
//! The servers are `quorlock_core::node::memory::Server`, and the clients drive `quorlock_core::quorum`. This crate adds a
//! network and clocks. A mutant differs at the seams between them, never in the code that is checked.

mod agreement;
mod catalogue;
mod client;
pub mod fleet;
mod keys;
mod lock;
mod message;
mod mutant;
mod pool;
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
