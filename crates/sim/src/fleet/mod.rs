//! Whole fleets under a virtual clock: the state machines of `quorlock_core::client` and the nodes
//! of `quorlock_core::node`, with a network and clocks that a seed draws, and checkers.
//!
//! - [`Plan`]: what a seed draws. [`run`]: runs it. [`Report`]: the result.
//! - [`Mutant`]: a rule broken on purpose, which the checkers must notice.

#[macro_use]
mod world;
mod caller;
mod checks;
mod claims;
mod clock;
mod connections;
mod events;
mod facts;
mod host;
mod inputs;
mod mutant;
mod network;
mod notes;
mod plan;
mod process;
mod simulation;

use std::time::Duration;

pub(crate) use mutant::Broken;
pub use mutant::{ClientRule, Mutant, NodeRule};
pub use plan::{LockKind, Plan};
pub use simulation::run;

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seed: u64,
    /// The first violation.
    pub violation: Option<String>,
    pub locks: u64,
    /// Largest number of locks of one set of keys that were held at the same time, such as the
    /// readers of one key, or the permits of one semaphore.
    pub most_together: usize,
    /// Executed by the nodes.
    pub commands: u64,
    pub events: u64,
    /// On the virtual clock.
    pub lasted: Duration,
    /// Empty unless it was requested.
    pub trace: String,
}
