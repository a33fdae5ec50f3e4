//! One client: machines without I/O, clock, task or lock. A driver feeds them events and carries
//! out the actions that they return. The client crate and the simulator drive the same machines.
//!
//! - [`limits`]: every time limit, interval and bound of a client.
//! - [`Spec`]: the description of a lock.
//! - [`Acquire`]: one call, up to the lock or the error. Attempts, waits on the queue node, pauses.
//!   `attempt`: one attempt on all nodes.
//! - [`Hold`]: one lock, from the grant to the end. Ownership, extension, repair.
//! - [`Release`]: releases one token on every node that may have it, until each has answered.
//! - [`Links`]: the connections to the nodes. Back-off, liveness, admission.
//! - [`PlaceQueue`]: the queue of a program's calls for one lock, and that for blocking
//!   connections.
//! - [`Slots`]: the keys of which a call takes one. [`SlotMemory`]: which of them are likely free.
//! - [`agree`]: which nodes belong to the set of the majority, so that [`Links`] lets them vote.
//! - [`summarize`]: what the nodes say about a key, for [`LockState`].
//! - [`Listing`]: the locks that the nodes list, merged by key.
//! - [`Revocation`]: takes a lock back from its holder, on all nodes.
//! - [`RenewalBatches`]: sends extensions that are due together in one batch. [`Hold::renew_in`]
//!   says when each is due.
//! - `mutants`: rules that a simulator breaks on purpose.
//! - [`Fleet`] and [`Topology`]: what the locks of a client share, and which nodes may vote now.
//!   [`RoundTrips`]: how far each node is. [`FenceProposals`]: which fence to propose.
//! - [`NodeError`]: why a node did not vote, and whether that is permanent.

mod acquire;
mod attempt;
mod context;
mod fence_proposals;
mod hold;
mod inspection;
mod keys;
pub mod limits;
mod links;
mod listing;
#[cfg_attr(
    not(feature = "mutants"),
    expect(dead_code, unreachable_pub, reason = "only simulators break rules")
)]
pub(crate) mod mutants;
mod node_error;
mod node_set;
mod place_queue;
mod release;
mod renewal_batches;
mod request;
mod revocation;
mod round_trips;
mod slots;
mod spec;
mod token;

pub use acquire::{Acquire, Action, Failure, Grant, Outcome, Reason};
pub use context::{Context, Fleet, NodeStatus, Random, Topology};
pub use fence_proposals::FenceProposals;
pub use hold::{Hold, HoldAction};
pub use inspection::{
    HeldLock, LeaseInfo, LockMode, LockState, WaiterInfo, inspection_answer, inspection_routes,
    summarize,
};
pub use keys::{InvalidKeys, Keys};
pub use links::{Hello, LinkAction, LinkHealth, Links, Notice};
pub use listing::{ListedLock, Listing};
#[cfg(feature = "mutants")]
pub use mutants::{Mutant, break_rule};
pub use node_error::{Answer, NodeError};
pub use node_set::{
    Admission, AgreedSet, Agreement, InvalidSet, MEMBERS_MAX, MemberList, Members, NAME_MAX_BYTES,
    NodeId, NodeSet, NotAdmitted, SetReport, agree,
};
pub use place_queue::{Called, Entry, PlaceQueue};
pub use release::{Release, Send};
pub use renewal_batches::RenewalBatches;
pub use request::{Command, Delivery, Request, RequestId, Response};
pub use revocation::{
    NodeRevocation, Revocation, RevocationState, RevokeAsk, RevokeMode, RevokeQuestion, RevokeReply,
};
pub use round_trips::RoundTrips;
pub use slots::{SlotMemory, Slots};
pub use spec::{InvalidSpec, Spec};
pub use token::Token;

pub use crate::node::Mode;
