//! One driver for each state machine of `quorlock_core::client`. The machines decide, and the
//! drivers carry out the actions with sockets, tasks and timers.

mod acquire;
#[cfg(test)]
mod histories;
mod hold;
mod inspection;
mod links;
mod local_queues;
mod places_in_line;
mod releases;
mod renewer;
mod revocation;
mod rounds;
mod shared;
mod timers;
mod turns;

pub(crate) use acquire::{acquire, attach};
pub(crate) use hold::LockInner;
pub(crate) use inspection::{inspect, last_taken, main_lease, scan};
pub(crate) use releases::Releasing;
pub(crate) use revocation::Revoking;
pub(crate) use rounds::{downgrade, extend};
pub(crate) use shared::{NodeInfo, Shared};
