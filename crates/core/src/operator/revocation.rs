use std::collections::VecDeque;
use std::time::Duration;

use super::LeaseInfo;
use crate::client::{Context, limits};
use crate::quorum::{Majority, Moment};
use crate::{Fence, NodeError};

/// The revocation of the lock on a key, from the first request until the lock is over.
///
/// At the start, the machine sends REVOKE to each connected node. After that, it inspects every
/// node at intervals, even if the key was free there: a request of the holder may be in flight. A
/// node that has the lock and has not revoked it is sent REVOKE, unless the lock was granted after
/// the revocation began.
///
/// Call [`poll`](Self::poll) at the start and after each event, until it returns `None`.
#[derive(Debug)]
pub struct Revocation {
    majority: Majority,
    mode: RevokeMode,
    began: Moment,
    nodes: Vec<Node>,
    /// The fences of the revoked leases; `None` for a foreign string.
    fences: Vec<Option<Fence>>,
    /// Whether no majority extends the lock any more, whatever is still in flight.
    certain: bool,
    over: bool,
    requests: VecDeque<RevokeRequest>,
}

/// When a revoked lock ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeMode {
    /// At its deadline, on which its holder relies.
    AtDeadline,
    /// At once. Its holder may still run.
    Now,
}

/// A request to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokeRequest {
    /// The index of the node.
    pub node: usize,
    /// The number of its connection.
    pub connection: u64,
    /// The commands to send.
    pub command: RevokeCommand,
}

/// The commands of a [`RevokeRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeCommand {
    /// `LOCK.REVOKE key`, and then `LOCK.INSPECT key`.
    Revoke,
    /// `LOCK.REVOKE key NOW`.
    RevokeNow,
    /// `LOCK.INSPECT key`.
    Inspect,
}

/// A node's answer to a [`RevokeRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeReply {
    /// Whether REVOKE found a lock; false for [`RevokeCommand::Inspect`].
    pub was_locked: bool,
    /// The lease or foreign string under the key after that; `None` if the key is free, and for
    /// [`RevokeCommand::RevokeNow`].
    pub lease: Option<LeaseInfo>,
    /// Why the node abstains, if it does: it may have forgotten a lock.
    pub abstains: Option<String>,
}

/// The progress of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RevocationState {
    /// Too few nodes have answered. The holder may still extend the lock.
    Unknown,
    /// A majority answered, and some of these nodes do not hold the lock. The holder can extend it
    /// only if a request that was in flight acquires the key there.
    Unconfirmed,
    /// A majority holds the lock and refuses to extend it. The lock ends by its deadline.
    Revoked,
    /// A majority of the nodes does not hold the lock any more: its holder released it, it ended by
    /// its deadline or at once, or there was none.
    Over,
}

/// The result of a revocation on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeRevocation {
    /// The node has not answered yet.
    Pending,
    /// The lock is revoked there, and ends with the ttl of this lease.
    Revoked(LeaseInfo),
    /// The lock was revoked there, and has ended since.
    Ended,
    /// The key is free there.
    Free,
    /// A lock that was granted after the revocation began holds the key there.
    Other(LeaseInfo),
    /// The node did not answer, refused, or may have forgotten the lock.
    Failed(NodeError),
}

#[derive(Debug)]
struct Node {
    result: NodeRevocation,
    /// The earliest moment at which the lease that the node has revoked ends, by the clocks of this
    /// client.
    revoked_until: Moment,
    /// The latest moment at which the revoked lease ends.
    ended_by: Option<Moment>,
    /// When the next request is due; `None` while one is in flight.
    next_at: Option<Moment>,
}

impl Revocation {
    /// Begins to revoke whatever lock a key has.
    pub fn new(mode: RevokeMode, ctx: &Context<'_>) -> Self {
        let node = |_| Node {
            result: NodeRevocation::Pending,
            revoked_until: ctx.now,
            ended_by: None,
            next_at: Some(ctx.now),
        };
        let mut this = Self {
            majority: ctx.client_state.majority,
            mode,
            began: ctx.now,
            nodes: (0..ctx.topology.nodes.len()).map(node).collect(),
            fences: Vec::new(),
            certain: false,
            over: false,
            requests: VecDeque::new(),
        };
        this.handle_timeout(ctx);
        this
    }

    /// Returns the next request to send.
    pub fn poll(&mut self) -> Option<RevokeRequest> {
        self.requests.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` when the lock is over.
    pub fn poll_timeout(&self) -> Option<Moment> {
        if self.over {
            return None;
        }
        let nodes = self.nodes.iter().filter_map(|node| node.next_at);
        nodes.chain(self.ends_at()).reduce(Moment::earlier)
    }

    /// Asks the nodes that are due. Ends the revocation at the deadline of the lock.
    pub fn handle_timeout(&mut self, ctx: &Context<'_>) {
        self.end_in_time(ctx.now);
        let is_first = ctx.now == self.began;
        let command = if is_first { RevokeCommand::Revoke } else { RevokeCommand::Inspect };
        for node in 0..self.nodes.len() {
            let is_due = self.nodes[node].next_at.is_some_and(|at| ctx.now.has_reached(at));
            if !self.over && is_due {
                self.ask(node, command, ctx);
            }
        }
    }

    fn ask(&mut self, node: usize, command: RevokeCommand, ctx: &Context<'_>) {
        match ctx.topology.route_held(node, true) {
            Ok(connection) => {
                self.nodes[node].next_at = None;
                self.requests.push_back(RevokeRequest { node, connection, command });
            }
            Err(error) => self.fail(node, error, ctx.now),
        }
    }

    /// Records an error. A lock that the node has revoked stays revoked.
    fn fail(&mut self, node: usize, error: NodeError, now: Moment) {
        let node = &mut self.nodes[node];
        node.next_at = Some(now.plus(limits::PAUSE_MAX));
        if !node.was_revoked() {
            node.result = NodeRevocation::Failed(error);
        }
    }

    /// Processes a node's answer to a request that was sent at `sent`.
    pub fn handle_reply(
        &mut self,
        node: usize,
        sent: Moment,
        reply: Result<RevokeReply, NodeError>,
        ctx: &Context<'_>,
    ) {
        self.nodes[node].next_at = Some(ctx.now.plus(limits::PAUSE_MAX));
        match reply {
            Err(error) => self.fail(node, error, ctx.now),
            Ok(RevokeReply { was_locked, lease: Some(lease), .. }) => {
                self.handle_lease(node, (sent, was_locked), lease, ctx);
            }
            Ok(RevokeReply { was_locked, lease: None, abstains }) => {
                let node = &mut self.nodes[node];
                node.result = match abstains {
                    // The node may have forgotten the lock, unless this REVOKE has just found it.
                    Some(reason) if !was_locked => {
                        NodeRevocation::Failed(NodeError::Abstains { reason })
                    }
                    _ if was_locked || node.was_revoked() => NodeRevocation::Ended,
                    _ => NodeRevocation::Free,
                };
                if self.mode == RevokeMode::AtDeadline {
                    node.ended_by = None;
                }
            }
        }
        self.settle(ctx);
    }

    fn handle_lease(
        &mut self,
        node: usize,
        (sent, is_revoked_now): (Moment, bool),
        lease: LeaseInfo,
        ctx: &Context<'_>,
    ) {
        let is_known = self.fences.contains(&lease.fence);
        // INSPECT does not say whether a foreign string is revoked.
        let was_foreign = lease.fence.is_none()
            && matches!(
                &self.nodes[node].result,
                NodeRevocation::Revoked(LeaseInfo { fence: None, .. })
            );
        let was_there = lease.held_for.is_some_and(|held| {
            // Granted before the revocation began, even if the clocks drift apart.
            held > with_drift(ctx.now.since(self.began))
        });
        let may_be_ours = self.fences.is_empty() && lease.held_for.is_none();
        let is_ours = is_known || was_there || is_revoked_now || may_be_ours;
        if is_revoked_now || was_foreign || (lease.revoked && is_ours) {
            if !is_known {
                self.fences.push(lease.fence);
            }
            let left = lease.ttl.unwrap_or_default();
            let node = &mut self.nodes[node];
            node.revoked_until = sent.plus(without_drift(left));
            node.ended_by = Some(ctx.now.plus(with_drift(left)));
            node.result = NodeRevocation::Revoked(lease);
        } else if is_ours {
            // The lock reached the node after REVOKE, or the node has not been sent REVOKE.
            self.nodes[node].result = NodeRevocation::Pending;
            self.ask(node, RevokeCommand::Revoke, ctx);
        } else {
            self.nodes[node].result = NodeRevocation::Other(lease);
        }
    }

    fn settle(&mut self, ctx: &Context<'_>) {
        self.certain = self.certain || self.is_certain(ctx.now);
        self.over |= self.on_majority(|Node { result, .. }| {
            matches!(
                result,
                NodeRevocation::Ended | NodeRevocation::Free | NodeRevocation::Other(_)
            )
        });
        self.end_in_time(ctx.now);
        let is_answered = self.nodes.iter().all(|node| node.result != NodeRevocation::Pending);
        if self.mode == RevokeMode::Now && !self.over && (self.certain || is_answered) {
            for node in 0..self.nodes.len() {
                let Node { result, next_at, .. } = &self.nodes[node];
                if matches!(result, NodeRevocation::Revoked(_)) && next_at.is_some() {
                    self.ask(node, RevokeCommand::RevokeNow, ctx);
                }
            }
        }
    }

    /// Whether a majority of the nodes holds revoked leases at this moment.
    ///
    /// From then on, no majority extends any lock of the key. The leases may have different fences,
    /// because a node that was ahead of the others granted a larger one.
    ///
    /// A node gets the lock again only by a repair, which needs a majority of extensions in the
    /// same round. Two kinds of nodes therefore do not count:
    ///
    /// - A node whose revoked lease has ended: it may have been repaired while fewer nodes had
    ///   revoked the lock.
    /// - A node where the key was free: a repair that began before may be in flight.
    fn is_certain(&self, now: Moment) -> bool {
        self.on_majority(|node| {
            matches!(node.result, NodeRevocation::Revoked(_))
                && !now.has_reached(node.revoked_until)
        })
    }

    fn on_majority(&self, holds: impl Fn(&Node) -> bool) -> bool {
        self.nodes.iter().filter(|node| holds(node)).count() >= self.majority.size()
    }

    fn end_in_time(&mut self, now: Moment) {
        self.over |= self.ends_at().is_some_and(|end| now.has_reached(end));
    }

    /// When the lock has ended at the latest; `None` until the revocation is certain.
    fn ends_at(&self) -> Option<Moment> {
        self.end().filter(|_| self.certain)
    }

    /// When the nodes that do not hold the lock are a majority. A node that has not answered may
    /// hold the lock longer than all nodes that have answered.
    fn end(&self) -> Option<Moment> {
        let mut ends: Vec<Moment> = self.nodes.iter().filter_map(|node| node.ended_by).collect();
        ends.sort_unstable_by_key(|end| (end.raw, end.boot));
        ends.reverse();
        let unknown = self.nodes.iter().filter(|node| !node.has_answered());
        let last = self.majority.spare().saturating_sub(unknown.count());
        ends.get(last).or(ends.last()).copied()
    }

    /// The progress so far.
    pub fn state(&self) -> RevocationState {
        if self.over {
            RevocationState::Over
        } else if self.certain {
            RevocationState::Revoked
        } else if self.on_majority(Node::has_answered) {
            RevocationState::Unconfirmed
        } else {
            RevocationState::Unknown
        }
    }

    /// Whether each node has answered or failed, and no request is in flight.
    pub fn is_settled(&self) -> bool {
        self.nodes
            .iter()
            .all(|node| node.next_at.is_some() && node.result != NodeRevocation::Pending)
    }

    /// How much longer the lock may last, or its holder may run after [`RevokeMode::Now`],
    /// according to the nodes that answered. This time is certain only in the states
    /// [`Revoked`](RevocationState::Revoked) and [`Over`](RevocationState::Over).
    pub fn remaining(&self, now: Moment) -> Duration {
        self.end().map_or(Duration::ZERO, |end| now.until(end))
    }

    /// The result on each node, in the order of the nodes.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeRevocation> {
        self.nodes.iter().map(|node| &node.result)
    }
}

impl Node {
    fn was_revoked(&self) -> bool {
        matches!(self.result, NodeRevocation::Revoked(_) | NodeRevocation::Ended)
    }

    fn has_answered(&self) -> bool {
        !matches!(self.result, NodeRevocation::Pending | NodeRevocation::Failed(_))
    }
}

/// The longest time that may have passed here while a node measured `measured`.
fn with_drift(measured: Duration) -> Duration {
    measured + crate::quorum::drift(measured)
}

/// The shortest time that may have passed here while a node measured `measured`.
fn without_drift(measured: Duration) -> Duration {
    measured.saturating_sub(crate::quorum::drift(measured))
}
