//! The decisions of Quorlock: state machines without I/O, without a clock and without Redis.
//!
//! They decide what a node does with its leases, and what a client concludes from the answers of
//! several nodes. The server module, the client, the simulator and the model checker all run this
//! code.
//!
//! - [`node`]: the leases of one server and the commands on them.
//! - [`quorum`]: one round over N nodes, and its verdict.
//! - [`client`]: the machines that drive those rounds, from a call to the last clean-up.
//! - [`Guard`]: when to stop a command that runs under a lock.
//! - [`Fence`], [`Ttl`]: the values that all of them share.

pub mod client;
mod fence;
mod guard;
pub mod node;
pub mod quorum;
mod ttl;

pub use fence::{Fence, InvalidFence};
pub use guard::{GraceTooLong, Guard, GuardAction};
pub use ttl::{Ttl, TtlError};
