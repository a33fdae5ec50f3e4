//! Whole fleets under a virtual clock: the state machines of `quorlock_core::client` and the nodes
//! of `quorlock_core::node`, with a network and clocks that a seed draws, and checkers.
//!
//! - [`Plan`]: what a seed draws. [`run`]: runs it. [`Report`]: the result.
//! - [`comparisons`]: what five rules about waiting and ties achieve. [`several_keys_cost`]: how
//!   much locks of several keys slow down locks of one key.
//! - [`Mutant`]: a rule broken on purpose, which the checkers must notice.

#[macro_use]
mod trace;
mod caller;
mod checks;
mod claims;
mod clock;
mod compare;
mod events;
mod host;
mod mutant;
mod network;
mod plan;
mod process;
mod simulation;
mod world;

use std::time::Duration;

pub use compare::{Comparison, SeveralKeysCost, comparisons, several_keys_cost};
pub(crate) use mutant::Broken;
pub use mutant::{ClientRule, Mutant, NodeRule};
pub use plan::{LockKind, Plan};
pub use simulation::run;

#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    pub violation: Option<String>,
    pub locks_of_each: Vec<u64>,
    /// Total time that each caller waited for its locks.
    pub waited_of_each: Vec<Duration>,
    pub longest_wait_of_each: Vec<Duration>,
    /// Largest number of locks of one set of keys that were held at the same time, such as the
    /// readers of one key, or the permits of one semaphore.
    pub most_together: usize,
    /// Longest time from one acquired lock to the next.
    pub longest_pause: Duration,
    /// Executed by the nodes.
    pub commands: u64,
    pub events: u64,
    /// Only repairs that were granted.
    pub repairs: u64,
    /// On the virtual clock.
    pub lasted: Duration,
    /// Duration of the part of the run in which programs made calls.
    pub called_for: Duration,
    /// Empty unless it was requested.
    pub trace: String,
}

impl Report {
    pub fn locks(&self) -> u64 {
        self.locks_of_each.iter().sum()
    }
}
