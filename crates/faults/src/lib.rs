//! What accidents do to locks on real servers: each with the protection, and without it in a
//! baseline, which shows the harm.
//!
//! - [`Scenario`]: one kind of accident; [`Tally`]: its result
//! - [`scenarios`]: all accidents of a single node, and the table of them
//! - [`exclusion`]: five masters, several clients, and accidents at random: does one client hold a
//!   lock at a time?
//! - [`fences`]: five masters, several processes, and accidents of single masters: do fences grow?
//! - [`kinds`]: five masters, readers and writers or clients of a semaphore, and accidents: do too
//!   many of them hold the lock?
//! - [`stress`]: clients that wait on one server, and everything that can end a wait
//! - [`fuzz`]: one server and the model of it, which must agree after each step
//! - [`harness`]: the parts of which these are made, for other tests and benchmarks too

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
