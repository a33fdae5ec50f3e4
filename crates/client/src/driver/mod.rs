//! The drivers of the state machines of `quorlock_core::client`. The machines decide, and the
//! drivers carry out the actions with sockets, tasks and timers.

mod calls;
mod inspection;
mod links;
mod lock;
mod revocation;
mod shards;
mod shared;
mod timers;

pub(crate) use calls::{acquire, attach};
pub(crate) use inspection::{inspect, last_taken, main_lease, scan};
pub(crate) use lock::LockInner;
pub(crate) use revocation::Revoking;
pub(crate) use shared::{NodeInfo, Shared};
