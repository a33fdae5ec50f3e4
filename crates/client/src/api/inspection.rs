use std::fmt;
use std::time::Duration;

pub use quorlock_core::operator::{HeldLock, LeaseInfo, LockMode, LockState, WaiterInfo};

use quorlock_core::{rounded, time_in_units};

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

/// Who holds a lock: what nodes that refused it said last. It may be out of date.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The label, if any, of the client that holds the lock: the first one of several.
    pub owner: Option<String>,
    /// How long ago this client acquired the lock; `None` for a key that another program wrote.
    pub held_for: Option<Duration>,
    /// How many clients hold the lock, as far as the nodes say: one, unless it is shared or a lock
    /// on one of several keys.
    pub holders: u64,
    /// The kind of lock.
    pub mode: LockMode,
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

/// The state of the connection to one node: see [`Quorum::health`](crate::Quorum::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The node's address.
    pub node: String,
    /// Why the node cannot vote; `None` if the connection shows no reason. An abstention shows only
    /// in the answers to requests.
    pub error: Option<NodeError>,
    /// How long the connection has been up, silent or down.
    pub since: Duration,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// The version of the node's module; `None` without a connection or a module.
    pub module_version: Option<String>,
    /// The set that the node reports: `NAME ID MEMBERS`. `None` without a connection or a set.
    pub set: Option<String>,
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

impl Holder {
    pub(crate) fn of(lease: LeaseInfo) -> Self {
        let LeaseInfo { owner, held_for, holders, mode, .. } = lease;
        Self { owner, held_for, holders, mode }
    }
}

/// Shows `web-3:4711 and 2 others, since 12.3 s ago`.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.owner, self.mode) {
            // Another client chose the label, which must not forge a line of a log.
            (Some(owner), _) => write!(f, "{}", owner.escape_debug())?,
            (None, LockMode::Foreign) => write!(f, "a program that uses SET")?,
            (None, _) => write!(f, "an unnamed owner")?,
        }
        match self.holders {
            0 | 1 => {}
            2 => write!(f, " and 1 other")?,
            all => write!(f, " and {} others", all - 1)?,
        }
        match self.held_for {
            Some(time) => write!(f, ", since {} ago", time_in_units(time)),
            None => Ok(()),
        }
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
