//! Whole fleets under a virtual clock: the machines of `quorlock_core::client` against the node of
//! `quorlock_core::node`, with a network and clocks that a seed draws, and checkers.
//!
//! - [`Plan`]: what a seed draws. [`run`]: runs it. [`Report`]: the result.
//! - [`comparisons`]: what each rule about waiting achieves. [`mixed`]: locks of several keys
//!   beside others.
//! - [`Mutant`]: a rule broken on purpose, which the checkers must notice.
//! - `histories`: compares what the driver of this folder sends with what that of the client sends.
//!
//! No part of a client or of a node is imitated. This folder moves messages and keeps time.

#[macro_use]
mod trace;
mod caller;
mod checks;
mod claims;
mod clock;
mod compare;
mod events;
#[cfg(test)]
mod histories;
mod host;
mod mutant;
mod network;
mod plan;
mod process;
mod simulation;
mod world;

use std::time::Duration;

pub use compare::{Comparison, Mixed, comparisons, mixed};
pub use mutant::{ClientRule, Mutant, NodeRule};
pub use plan::{Kind, Plan};
pub use simulation::run;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed of its plan.
    pub seed: u64,
    /// The violation, if any.
    pub violation: Option<String>,
    /// Number of locks of each caller.
    pub locks_of_each: Vec<u64>,
    /// Total time that each caller waited for its locks.
    pub waited_of_each: Vec<Duration>,
    /// Longest time that each caller waited for a lock.
    pub longest_wait_of_each: Vec<Duration>,
    /// Largest number of locks of one set of keys that were held at the same time: readers of one
    /// key, or permits of one semaphore.
    pub most_together: usize,
    /// Longest time between two grants.
    pub longest_pause: Duration,
    /// Number of commands that the nodes executed.
    pub commands: u64,
    /// Number of events.
    pub events: u64,
    /// Number of repairs that were granted.
    pub repairs: u64,
    /// Its duration on the virtual clock.
    pub lasted: Duration,
    /// The part of it in which calls were made.
    pub called_for: Duration,
    /// The trace, if it was requested.
    pub trace: String,
}

impl Report {
    /// Returns the number of locks that were acquired.
    pub fn locks(&self) -> u64 {
        self.locks_of_each.iter().sum()
    }
}
