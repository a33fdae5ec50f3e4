//! One node: its leases, and what each command does to them.
//!
//! - [`Node`]: the state machine; each command is a method that returns what is to be written and answered.
//! - [`Acquire`], [`Extend`] and what they are answered.
//! - [`Mirror`]: what the keyspace holds under a lock's key, as far as a decision needs it.
//! - [`Lend`]: bytes that a caller lends for a call and that a lease keeps.
//! - [`Ticket`]: names one who waits.
//! - [`Reason`]: why a node stays out of elections for a while.
//! - [`Event`]: what happened to a mirror from outside.
//! - [`Stats`]: what was done so far.

mod abstention;
mod clock;
mod deadlines;
mod event;
mod fences;
mod lend;
mod machine;
mod mirror;
mod queue;
mod stats;
mod table;
mod verbs;

pub use abstention::Reason;
pub use clock::{Monotonic, Now};
pub use event::Event;
pub use lend::Lend;
pub use machine::Node;
pub use mirror::{Mirror, Seen};
pub use queue::Ticket;
pub use stats::Stats;
pub use verbs::{
    Acquire, Acquired, Adjusted, Due, Extend, Extended, FenceError, HandOver, Inspected, KEYS_MAX,
    MirrorWrite, Next, Released, Repair, Settings,
};
