use std::fmt;

pub use quorlock_core::client::{HeldLock, LeaseInfo, LockMode, LockState, WaiterInfo};

use quorlock_core::rounded;

use crate::NodeError;

/// What the nodes say about a key: see [`Quorum::inspect`](crate::Quorum::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// What a majority of the nodes agrees on.
    pub state: LockState,
    /// The answer of each node, in the order in which the nodes were named.
    pub nodes: Vec<NodeInspection>,
}

/// What one node says about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInspection {
    /// The node's address.
    pub node: String,
    /// The lease on this node; `None` when the key is free there. An error when the node did not
    /// answer, may not vote, or may have forgotten the lock.
    pub lease: Result<Option<LeaseInfo>, NodeError>,
}

/// The locks of all nodes: see [`Quorum::scan`](crate::Quorum::scan).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockList {
    /// The locks, in the order of their keys.
    pub locks: Vec<ListedLock>,
    /// Whether there are more locks than the limit of the list.
    pub is_truncated: bool,
    /// The address of each node, in the order in which the nodes were named, and why its list may
    /// lack locks; `None` if its list is complete.
    pub nodes: Vec<(String, Option<NodeError>)>,
}

/// A key that at least one node lists.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLock {
    /// The key.
    pub key: Vec<u8>,
    /// What the nodes say about the key. A [free](LockState::Free) key is listed when a minority of
    /// the nodes has a lock under it. The client of that lock is acquiring or releasing it, or is
    /// gone.
    pub lock: Inspection,
}

impl Inspection {
    /// The addresses of the nodes that hold the lock; none unless the key is
    /// [held](LockState::Held).
    pub fn holding_nodes(&self) -> impl Iterator<Item = &str> {
        let nodes = match &self.state {
            LockState::Held(held) => held.nodes.as_slice(),
            LockState::Free | LockState::Unclear => &[],
        };
        nodes.iter().map(|&node| self.nodes[node].node.as_str())
    }
}

/// The state in the first line, and the answer of each node in one more line.
impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            LockState::Free => write!(f, "free")?,
            LockState::Unclear => write!(f, "unclear")?,
            LockState::Held(held) => {
                let (on, of) = (held.nodes.len(), self.nodes.len());
                match held.mode {
                    LockMode::Shared => write!(f, "shared by {}, ", held.holders)?,
                    _ => write!(f, "held by {}, ", owner(held.owner.as_deref()))?,
                }
                write!(
                    f,
                    "fence {}, on {on} of {of} nodes, for {:?} at most",
                    held.fence,
                    rounded(held.at_most)
                )?;
            }
        }
        for NodeInspection { node, lease } in &self.nodes {
            write!(f, "\n{node}: ")?;
            match lease {
                Ok(None) => write!(f, "free")?,
                Ok(Some(lease)) => {
                    write!(f, "held by {}", owner(lease.owner.as_deref()))?;
                    if let Some(fence) = lease.fence {
                        write!(f, ", fence {fence}")?;
                    }
                    if let Some(ttl) = lease.ttl {
                        write!(f, ", for {:?} at most", rounded(ttl))?;
                    }
                    write!(f, ", {} waiting", lease.waiters)?;
                }
                Err(error) => write!(f, "{error}")?,
            }
        }
        Ok(())
    }
}

fn owner(owner: Option<&str>) -> &str {
    owner.unwrap_or("an unnamed owner")
}
