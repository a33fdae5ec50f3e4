//! What accidents do to locks on real servers: each accident once with the protection and once without it, which shows
//! that it would do harm.
//!
//! - [`Scenario`]: one kind of accident; [`Tally`]: what has come of it.
//! - [`scenarios`]: all of them, by what happens.
//! - [`table()`]: runs them all, for people to read.
//! - [`random`]: five masters, several clients, and accidents at random.
//! - [`fences`]: five masters, several processes, and accidents of single masters: do fences grow?
//! - [`fuzz`]: one server and the model of it, which must agree after each of a great many steps.
//! - [`expire_unreleased`]: what a great many locks leave behind that nobody gives back.

pub mod fences;
pub mod fuzz;
mod leftovers;
mod node;
pub mod random;
mod scenario;
pub mod scenarios;
mod table;

pub use leftovers::{Leftovers, expire_unreleased};
pub use scenario::{Protected, Scenario, Tally, Twin};
pub use table::{Table, table};
