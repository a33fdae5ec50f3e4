//! The decisions of Quorlock, and nothing else: what a node does with its leases, and what a client makes of the
//! answers of several nodes. Functions of (state, now, input) that return what is to be done: no I/O, no clock, no
//! Redis. The server module, the client, the simulator and the model checker all run this code.
//!
//! - [`node`]: the leases of one server and the commands upon them.
//! - [`client`]: one client of several nodes: which nodes it admits.
//! - [`quorum`]: one attempt over N nodes, from the first byte sent to the last straggler.
//! - [`Fence`], [`Ttl`]: what both of them speak of.

pub mod client;
mod fence;
pub mod node;
pub mod quorum;
mod ttl;

pub use fence::{Fence, NotAFence};
pub use ttl::{Ttl, TtlError};
