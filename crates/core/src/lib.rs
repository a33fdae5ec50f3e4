//! The decisions of Quorlock, and nothing else: what a node does with its leases, and what a client
//! makes of the answers of several nodes. State machines without I/O, without a clock and without
//! Redis. The server module, the client, the simulator and the model checker all run this code.
//!
//! - [`node`]: the leases of one server and the commands upon them.
//! - [`quorum`]: one round over N nodes, and what its answers amount to.
//! - [`client`]: the machines that drive those rounds, from a call to the last clean-up.
//! - [`Guard`]: when a command that a lock protects is stopped.
//! - [`Fence`], [`Ttl`]: what all of them speak of.

pub mod client;
mod fence;
mod guard;
pub mod node;
pub mod quorum;
mod ttl;

pub use fence::{Fence, InvalidFence};
pub use guard::{GraceTooLong, Guard, GuardAction};
pub use ttl::{Ttl, TtlError};
