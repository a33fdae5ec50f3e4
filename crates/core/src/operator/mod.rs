//! What an operator asks the nodes: who holds a lock, which locks there are, and to end one.
//! Nothing here acquires a lock.
//!
//! - [`summarize`]: what the answers of the nodes about one key mean together.
//! - [`Listing`]: the locks of all nodes, merged.
//! - [`Revocation`]: ends a lock on a majority, now or at its deadline.

mod inspection;
mod listing;
mod revocation;

pub use inspection::{
    HeldLock, LeaseInfo, LockMode, LockState, WaiterInfo, inspection_answer, inspection_routes,
    main_lease, summarize,
};
pub use listing::{ListedLock, Listing};
pub use revocation::{
    NodeRevocation, Revocation, RevocationState, RevokeCommand, RevokeMode, RevokeReply,
    RevokeRequest,
};
