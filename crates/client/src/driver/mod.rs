//! The drivers of the state machines of `quorlock_core::client`. The machines decide, and the
//! drivers carry out the actions with sockets, tasks and timers. Each file uses those above it:
//!
//! - `timers`: times at which machines have something to do.
//! - `links`: the connections to the nodes.
//! - `network`: the nodes, through which requests go.
//! - `shards`: the calls, locks and releases.

mod links;
mod network;
mod shards;
mod timers;

pub(crate) use links::NodeInfo;
pub(crate) use network::Network;
pub(crate) use shards::{ReleaseResult, Shards, State};
pub(crate) use timers::sleep_until;
