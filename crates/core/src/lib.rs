//! The decisions of Quorlock, and nothing else: what a node does with its leases, and what a client
//! makes of the answers of several nodes. State machines without I/O, without a clock and without
//! Redis. The server module, the client, the simulator and the model checker all run this code.
//!
//! - [`node`]: the leases of one server and the commands upon them.
//! - [`quorum`]: one round over N nodes, and what its answers amount to.
//! - [`client`]: the machines that drive those rounds, from a call to the last clean-up.
//! - [`StopSchedule`]: when a command that a lock protects is stopped.
//! - [`Confirmation`]: whether the nodes still confirm the lock of that command.
//! - [`Fence`], [`Ttl`]: what all of them speak of.

pub mod client;
mod confirmation;
mod fence;
pub mod node;
pub mod quorum;
mod stop_schedule;
mod ttl;

pub use confirmation::{Confirmation, LockCheck};
pub use fence::{Fence, InvalidFence};
pub use stop_schedule::{GraceTooLong, StopAction, StopSchedule};
pub use ttl::{Ttl, TtlError};
