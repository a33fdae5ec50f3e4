//! One client: machines without I/O, clock, task or lock, which a driver feeds with what happens
//! and which say what to do next. The client crate and the simulator drive the same machines.
//!
//! - [`Acquire`]: from a call to a lock or an error. Attempts, waiting, pauses.
//! - [`Hold`]: from the grant to the end. Ownership, extension, repair.
//! - [`Release`]: one token on every node that may have it, until each has answered.
//! - [`Links`]: the connections to the nodes. Back-off, liveness, admission.
//! - [`Line`]: the calls of one program that are after the same lock, and the seats of calls that
//!   wait.
//! - [`Slots`]: the keys of which a call takes one, and [`SlotMemory`], which of them are likely
//!   free.
//! - [`agree`]: which nodes belong to the set of the majority.
//! - [`summarize`]: what the nodes say about a key, for [`LockState`].
//! - [`Listing`]: the locks that the nodes list, merged by key.
//! - [`Revocation`]: takes a lock back from its holder, on all nodes.
//! - [`Renewals`]: when the next extension of each lock is due.
//! - `mutants`: rules that a simulator breaks on purpose.
//! - [`Fleet`] and [`Topology`]: what the locks of a client share. [`limits`]: every limit.

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
mod local_queue;
#[cfg_attr(
    not(feature = "mutants"),
    expect(dead_code, unreachable_pub, reason = "only simulators break rules")
)]
pub(crate) mod mutants;
mod node_error;
mod node_set;
mod release;
mod renewal_batches;
mod request;
mod revocation;
mod round_trips;
mod slots;
mod token;

pub use acquire::{Acquire, Action, Failure, Grant, InvalidSpec, Outcome, Reason, Spec};
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
pub use local_queue::{Called, Entry, Line};
#[cfg(feature = "mutants")]
pub use mutants::{Mutant, break_rule};
pub use node_error::{Answer, NodeError};
pub use node_set::{
    Admission, AgreedSet, Agreement, InvalidSet, MEMBERS_MAX, MemberList, Members, NAME_MAX_BYTES,
    NodeId, NodeSet, NotAdmitted, SetReport, agree,
};
pub use release::{Release, Send};
pub use renewal_batches::Renewals;
pub use request::{Command, Delivery, Request, RequestId, Response};
pub use revocation::{
    NodeRevocation, Revocation, RevocationState, RevokeAsk, RevokeMode, RevokeQuestion, RevokeReply,
};
pub use round_trips::RoundTrips;
pub use slots::{SlotMemory, Slots};
pub use token::Token;

pub use crate::node::Mode;
