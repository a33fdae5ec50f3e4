//! Whole fleets under a virtual clock: the machines of `quorlock_core::client` against the node of
//! `quorlock_core::node`, with a network and clocks that a seed draws, and checkers that watch.
//!
//! - [`Plan`]: what a seed draws. [`run`]: runs it. [`Report`]: what came of it.
//! - [`comparisons`]: what each rule about waiting is for. [`mixed`]: locks of several keys beside others.
//! - [`Mutant`]: a rule that is broken, to see that the checkers notice.
//! - `histories`: what the driver of this folder sends is what that of the client sends.
//!
//! Nothing of a client or of a node is imitated. This folder moves messages and keeps time.

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
pub use mutant::{ClientRule, Mutant};
pub use plan::Plan;
pub use simulation::run;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed of its plan.
    pub seed: u64,
    /// What went wrong, if anything did.
    pub violation: Option<String>,
    /// How many locks each caller acquired.
    pub locks_of_each: Vec<u64>,
    /// How long each caller waited for its locks, in all.
    pub waited_of_each: Vec<Duration>,
    /// The longest time that each caller waited for a lock.
    pub longest_wait_of_each: Vec<Duration>,
    /// The longest time between two grants.
    pub longest_pause: Duration,
    /// How many commands the nodes carried out.
    pub commands: u64,
    /// How many things happened.
    pub events: u64,
    /// How many repairs were granted.
    pub repairs: u64,
    /// How long it lasted, on the virtual clock.
    pub lasted: Duration,
    /// For how long calls were made.
    pub called_for: Duration,
    /// What happened, if that was asked for.
    pub trace: String,
}

impl Report {
    /// How many locks were acquired.
    pub fn locks(&self) -> u64 {
        self.locks_of_each.iter().sum()
    }
}
