use std::time::Duration;

pub use quorlock_core::client::{NodeRevocation, RevocationState};

use crate::clock;
use crate::driver::Revoking;

/// The revocation of a lock: see [`Quorum::revoke`](crate::Quorum::revoke).
///
/// Nodes that did not answer are asked again only while [`changed`](Self::changed) or
/// [`ended`](Self::ended) is awaited. A drop does not undo a revocation.
#[must_use = "nodes that did not answer are asked again only while this is awaited"]
pub struct Revocation {
    pub(crate) revoking: Revoking,
}

/// The progress of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevocationReport {
    /// The state of the revocation, according to the answers of the nodes.
    pub state: RevocationState,
    /// How much longer the holder may rely on the lock, as far as the nodes that answered know.
    ///
    /// In the state [`Revoked`](RevocationState::Revoked), this is the longest possible time. In
    /// the states `Unknown` and `Unconfirmed`, the holder may still extend the lock.
    pub remaining: Duration,
    /// The answer of each node, in the order in which the nodes were named.
    pub nodes: Vec<RevokedNode>,
}

/// The result of a revocation on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevokedNode {
    /// The node's address.
    pub node: String,
    /// The result on this node.
    pub result: NodeRevocation,
}

impl Revocation {
    /// The progress so far.
    pub fn report(&self) -> RevocationReport {
        let machine = &self.revoking.machine;
        let named = self.revoking.shared.nodes.iter().zip(machine.nodes());
        let nodes = named.map(|(node, result)| RevokedNode {
            node: node.name.to_string(),
            result: result.clone(),
        });
        RevocationReport {
            state: machine.state(),
            remaining: machine.remaining(clock::now()),
            nodes: nodes.collect(),
        }
    }

    /// Waits until the report may have changed: a node has answered again, or the lock has ended.
    ///
    /// Returns at once if the lock is over, and otherwise within about a quarter of a second, but
    /// later if all nodes are slow to answer.
    ///
    /// # Cancel safety
    /// Dropping the future loses no answer.
    pub async fn changed(&mut self) {
        if self.revoking.machine.state() != RevocationState::Over {
            self.revoking.step().await;
        }
    }

    /// Waits until the lock is over: released, ended by its deadline, or ended at once.
    ///
    /// In the state [`Revoked`](RevocationState::Revoked), the lock is over after
    /// [`RevocationReport::remaining`] at the latest. In other states, the holder may keep
    /// extending the lock: use a timeout.
    ///
    /// # Cancel safety
    /// Dropping the future loses no answer.
    pub async fn ended(&mut self) {
        while self.revoking.machine.state() != RevocationState::Over {
            self.revoking.step().await;
        }
    }

    pub(crate) async fn settle(&mut self) {
        while !self.revoking.machine.is_settled() {
            self.revoking.step().await;
        }
    }
}
