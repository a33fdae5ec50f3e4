use std::time::Duration;

pub use quorlock_core::client::{NodeRevocation, RevocationState};

use crate::clock;
use crate::driver::Revoking;

/// A lock that is being taken back from its holder: see [`Quorum::revoke`](crate::Quorum::revoke).
///
/// Nodes that did not answer are asked again while [`changed`](Self::changed) or
/// [`ended`](Self::ended) is awaited. Dropping it asks no node any more. What the nodes have
/// revoked stays revoked.
#[must_use = "nodes that did not answer are asked again only while this is awaited"]
pub struct Revocation {
    pub(crate) revoking: Revoking,
}

/// How far a revocation is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevocationReport {
    /// What the nodes' answers amount to.
    pub state: RevocationState,
    /// How much longer the lock, or what its holder does under it, may last, as far as the nodes
    /// that answered know. That is the longest time in the state
    /// [`Revoked`](RevocationState::Revoked). In the states `Unknown` and `Unconfirmed` the holder
    /// may extend the lock.
    pub remaining: Duration,
    /// The answer of each node, in the order in which the nodes were named.
    pub nodes: Vec<RevokedNode>,
}

/// What a revocation came to on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevokedNode {
    /// The node's address.
    pub node: String,
    /// What became of the lock there.
    pub result: NodeRevocation,
}

impl Revocation {
    /// How far it is.
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

    /// Waits until a node has answered again, or the lock has ended: once a quarter of a second, or
    /// more often.
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
    /// It is over by [`RevocationReport::remaining`] if the state is
    /// [`Revoked`](RevocationState::Revoked). In other states this may take as long as the holder
    /// extends the lock: use a time-out.
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
