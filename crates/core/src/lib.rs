//! The decisions of Quorlock: state machines without I/O, without a clock and without Redis.
//!
//! They decide what a node does with its leases, and what a client concludes from the answers of
//! several nodes. The server module, the client, the simulator and the model checker all run this
//! code.
//!
//! - [`node`]: the leases of one server and the commands on them.
//! - [`quorum`]: one round over N nodes, and its verdict.
//! - [`client`]: the state machines of a client, from a call for a lock to its last RELEASE.
//! - [`operator`]: what an operator asks the nodes: to show locks, and to end one.
//! - [`NodeError`]: why a node did not vote, and whether the reason is permanent.
//! - [`redact_url`]: the URL of a node as it may be shown. [`unsupported_scheme`]: why a URL cannot
//!   be a node.
//! - [`node_set`]: the set that a node belongs to (`lock.set`), and which nodes a client admits.
//! - `mutants`: rules of a client that a simulator breaks on purpose.
//! - [`StopSchedule`]: when a command that a lock protects is stopped.
//! - [`Confirmation`]: whether the nodes still confirm the lock that protects a command.
//! - [`rounded`], [`time_in_units`]: a time for people to read.
//! - [`Fence`], [`Ttl`]: values that nodes and clients share.

pub mod client;
mod confirmation;
mod fence;
#[cfg_attr(
    not(feature = "mutants"),
    expect(dead_code, unreachable_pub, reason = "only simulators break rules")
)]
mod mutants;
pub mod node;
mod node_error;
pub mod node_set;
mod node_url;
pub mod operator;
pub mod quorum;
mod rounded;
mod stop_schedule;
mod ttl;

pub use confirmation::{Confirmation, LockCheck};
pub use fence::{Fence, InvalidFence};
#[cfg(feature = "mutants")]
pub use mutants::{ClientRule, break_rule};
pub use node_error::{Answer, NodeError};
pub use node_url::{redact_url, unsupported_scheme};
pub use rounded::{rounded, time_in_units};
pub use stop_schedule::{GraceTooLong, StopAction, StopSchedule};
pub use ttl::{Ttl, TtlError};
