use std::sync::atomic::{AtomicBool, Ordering};

use super::mutants::{Mutant, is_broken};
use crate::quorum::Majority;

/// Which nodes voted when any call of the client last asked them for a lock.
///
/// An attempt can be decided before a node has answered. Then the answer to an earlier attempt
/// shows whether the node votes.
#[derive(Debug)]
pub struct Voters {
    failed: Box<[AtomicBool]>,
}

impl Voters {
    pub(super) fn new(nodes: usize) -> Self {
        Self { failed: (0..nodes).map(|_| AtomicBool::new(false)).collect() }
    }

    /// Records that a node granted or refused a lock.
    pub(super) fn voted(&self, node: usize) {
        self.failed[node].store(false, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, node: usize) {
        self.failed[node].store(true, Ordering::Relaxed);
    }

    /// Whether the node is expected to vote.
    pub(super) fn includes(&self, node: usize) -> bool {
        !self.failed[node].load(Ordering::Relaxed)
    }
}

/// Whether a majority can do without one of the nodes that may vote.
///
/// Without such a spare node, all locks share one order of the nodes. With an order for each key, a
/// client of several keys and a client of one of them could wait on different nodes. If both nodes
/// granted, each client would also need the other's node, and perhaps neither would ever win.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    Available,
    /// A majority needs every node that may vote, or too few may vote to form one.
    Exhausted,
}

impl Spare {
    /// `voters` is the number of nodes that may vote.
    pub(super) fn of(voters: usize, majority: Majority) -> Self {
        if voters <= majority.size() && !is_broken(Mutant::KeysWaitApart) {
            Self::Exhausted
        } else {
            Self::Available
        }
    }
}
