use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quorlock_core::NodeError;
use quorlock_core::client::limits;
use quorlock_core::operator::{self, RevokeMode, RevokeReply};
pub use quorlock_core::operator::{NodeRevocation, RevocationState};
use quorlock_core::quorum::Moment;

use crate::clock;
use crate::driver::{Network, sleep_until};
use crate::transport::Connection;

/// A node's answer, with the index of the node and the time of the request.
type PendingReply = BoxFuture<'static, (usize, Moment, Result<RevokeReply, NodeError>)>;

/// The revocation of a lock: see [`Quorum::revoke`](crate::Quorum::revoke).
///
/// Nodes that did not answer are asked again only while [`changed`](Self::changed) or
/// [`ended`](Self::ended) is awaited. A drop does not undo a revocation.
#[must_use = "nodes that did not answer are asked again only while this is awaited"]
pub struct Revocation {
    network: Arc<Network>,
    machine: operator::Revocation,
    key: Arc<[u8]>,
    pending: FuturesUnordered<PendingReply>,
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
    /// Sends the first requests.
    pub(crate) fn start(network: &Arc<Network>, key: &[u8], mode: RevokeMode) -> Self {
        let mut this = Self {
            network: Arc::clone(network),
            machine: network.with_context(|ctx| operator::Revocation::new(mode, ctx)),
            key: key.into(),
            pending: FuturesUnordered::new(),
        };
        this.act();
        this
    }

    /// The progress so far.
    pub fn report(&self) -> RevocationReport {
        let machine = &self.machine;
        let nodes = self.network.names().zip(machine.nodes().cloned());
        let nodes = nodes.map(|(node, result)| RevokedNode { node, result });
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
        if self.machine.state() != RevocationState::Over {
            self.step().await;
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
        while self.machine.state() != RevocationState::Over {
            self.step().await;
        }
    }

    pub(crate) async fn settle(&mut self) {
        while !self.machine.is_settled() {
            self.step().await;
        }
    }

    fn act(&mut self) {
        while let Some(ask) = self.machine.poll() {
            let (network, key) = (Arc::clone(&self.network), Arc::clone(&self.key));
            self.pending.push(Box::pin(async move {
                let (sent, route) = (clock::now(), (ask.node, ask.connection));
                let revoke =
                    async |connection: &Connection| connection.revoke(&key, ask.command).await;
                let limit = limits::OPERATOR_TIMEOUT;
                (ask.node, sent, network.ask_in_time(route, limit, revoke).await)
            }));
        }
    }

    /// Waits for the next answer, or for the time of the next request. Dropping the future loses no
    /// answer.
    async fn step(&mut self) {
        let due = self.machine.poll_timeout();
        tokio::select! {
            biased;
            Some((node, sent, reply)) = self.pending.next() => {
                self.network.with_context(|ctx| self.machine.handle_reply(node, sent, reply, ctx));
            }
            () = sleep_until(due), if due.is_some() || self.pending.is_empty() => {
                self.network.with_context(|ctx| self.machine.handle_timeout(ctx));
            }
        }
        self.act();
    }
}
