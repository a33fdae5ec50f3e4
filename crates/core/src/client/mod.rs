//! One client of several nodes.
//!
//! - [`NodeSet`] and [`agree`]: which set of nodes a node belongs to, and which nodes a client
//!   admits.

mod set;

pub use set::{Admission, AgreedSet, Agreement, NotAdmitted, SetReport, agree};
pub use set::{InvalidSet, MEMBERS_MAX, MemberList, Members, NAME_MAX_BYTES, NodeId, NodeSet};
