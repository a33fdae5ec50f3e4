//! One client: state machines without I/O, clock, task or mutex. A driver, in the client crate or
//! the simulator, feeds them events and carries out the actions that they return.
//!
//! - [`limits`]: every time limit, interval and bound of a client.
//! - [`Spec`]: the description of a lock.
//! - [`Acquire`]: one call to acquire a lock: it asks, stands in line, gives way.
//! - [`Hold`]: one lock, from the grant to the end: ownership, extension, repair, release.
//! - [`Release`]: releases one token on every node that may have it, until each has answered.
//! - [`Action`]: what these three ask their driver to do.
//! - `LateTimer`: answers that arrived while the process did not run are read before requests
//!   expire.
//! - [`Links`]: the connections to the nodes: back-off, liveness, admission.
//! - [`Hello`]: what a node reports about itself when a client connects.
//! - [`Shard`]: all calls, locks and releases of a client, or of a part of its keys.
//! - [`LocalQueue`]: the queue in which calls of this program wait for their turn.
//! - [`ClientState`]: the state that all locks of a client share. [`RoundTrips`]: the smoothed
//!   round trip of each node. [`FenceProposals`]: which fence to propose.
//! - [`Topology`]: the connection of each node, and whether the node may vote now.
//! - [`Context`]: what a driver passes to a machine with each event.
//! - [`Command`], [`Request`], [`Response`]: what a machine sends to a node, and what it receives.
//! - [`Keys`], [`Token`]: the keys of a lock, and the proof of who holds it.

mod acquire;
mod context;
mod fence_proposals;
mod hello;
mod hold;
mod keys;
mod late_timer;
pub mod limits;
mod links;
mod local_queue;
mod reach;
mod release;
mod request;
mod round_trips;
mod shard;
mod spec;
mod token;

pub use acquire::Acquire;
pub use context::{ClientState, Context, NodeStatus, Places, Random, Topology};
pub use fence_proposals::FenceProposals;
pub use hello::Hello;
pub use hold::Hold;
pub use keys::{InvalidKeys, Keys};
pub use links::{ConnectionId, LinkAction, LinkHealth, Links, Notice};
pub use local_queue::{CalledNumbers, LocalQueue};
pub use release::Release;
pub use request::{
    Action, Command, Delivery, Failure, OutgoingRequest, Reason, Request, RequestId, Response,
};
pub use round_trips::RoundTrips;
pub use shard::{Shard, ShardAction};
pub use spec::{InvalidSpec, Spec};
pub use token::Token;

pub use crate::node::Mode;
