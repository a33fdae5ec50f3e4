//! Waiting: many clients that go after one key, on a virtual clock and a network with random delays, and what becomes of
//! them when a rule about who waits where is left out.
//!
//! - [`Rule`]: the rules.
//! - [`Scene`]: who goes after the key, and for how long.
//! - [`play`]: plays a scene, and keeps an [`Account`] of it.
//! - [`comparisons`]: a scene for each rule, to be played with it and without it.
//!
//! Nothing of it is decided here: the servers are `quorlock_core::node::memory::Server`, and where a client goes next is what
//! `quorlock_core::quorum::Pursuit` says. A rule is left out at the seam between them.

mod account;
mod client;
mod comparison;
mod network;
mod play;
mod rule;
mod scene;
mod server;

pub use account::Account;
pub use comparison::{Comparison, comparisons};
pub use play::play;
pub use rule::Rule;
pub use scene::Scene;
