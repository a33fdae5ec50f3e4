use std::collections::VecDeque;
use std::time::Duration;

use super::{Context, LeaseInfo, NodeError, limits};
use crate::Fence;
use crate::quorum::{Majority, Moment};

/// The revocation of the lock on a key, from the first request until the lock is over.
///
/// Each node is asked to revoke what it has. Nodes that do not answer are asked again, and so are
/// nodes where the key was free, because a request of the holder may be on its way there. Before it
/// is asked again, a node is looked at: a lock that was granted after the revocation began is left
/// alone.
///
/// Call [`poll`](Self::poll) when it begins and after each event, until it returns `None`.
#[derive(Debug)]
pub struct Revocation {
    majority: Majority,
    mode: RevokeMode,
    began: Moment,
    nodes: Vec<Node>,
    /// The fences of what was revoked; `None` is a string of a client without the module.
    fences: Vec<Option<Fence>>,
    /// No majority extends the lock any more, whatever is still on its way.
    certain: bool,
    /// By then it has ended, once that is certain.
    ends_at: Option<Moment>,
    over: bool,
    asks: VecDeque<RevokeAsk>,
}

/// Whether the holder may finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeMode {
    /// The lock stays taken until its deadline, on which its holder relies.
    AtDeadline,
    /// The lock ends at once. Its holder may still run.
    Now,
}

/// A question to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokeAsk {
    /// The index of the node.
    pub node: usize,
    /// The number of its connection.
    pub connection: u64,
    /// What to ask.
    pub question: RevokeQuestion,
}

/// What a node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeQuestion {
    /// `LOCK.REVOKE key`, and then `LOCK.INSPECT key`.
    Revoke,
    /// `LOCK.REVOKE key NOW`.
    RevokeNow,
    /// `LOCK.INSPECT key`.
    Look,
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeReply {
    /// What REVOKE replied: whether there was a lock. `None` for [`RevokeQuestion::Look`].
    pub was_locked: Option<bool>,
    /// What has the key after that; `None` when it is free.
    pub lease: Option<LeaseInfo>,
    /// Why the node may have forgotten a lock, if it may have.
    pub abstains: Option<String>,
}

/// How far a revocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RevocationState {
    /// Too few nodes have answered. The holder may extend the lock.
    Unknown,
    /// A majority answered, and on some of these nodes the key was free. The holder cannot extend
    /// the lock, unless a request that was on its way acquires the key there.
    Unconfirmed,
    /// A majority holds the lock and refuses to extend it. It ends by its deadline.
    Revoked,
    /// A majority of the nodes does not hold the lock any more: its holder released it, it ended by
    /// its deadline or at once, or there was none.
    Over,
}

/// What the revocation came to on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeRevocation {
    /// The node has not answered yet.
    Pending,
    /// The lock is revoked there, and lasts as long as this says.
    Revoked(LeaseInfo),
    /// The lock was revoked there, and has ended since.
    Ended,
    /// The key is free there.
    Free,
    /// A lock that was granted after the revocation began has the key there.
    Other(LeaseInfo),
    /// The node did not answer, refused, or may have forgotten the lock.
    Failed(NodeError),
}

#[derive(Debug)]
struct Node {
    result: NodeRevocation,
    /// When the lease that is revoked there ends at the earliest, by the clocks of this client.
    revoked_until: Option<Moment>,
    /// By when it has ended.
    ended_by: Option<Moment>,
    is_asked: bool,
    /// Whether REVOKE was ever sent to it.
    was_asked: bool,
    next_at: Moment,
}

impl Revocation {
    /// Begins to revoke whatever lock a key has.
    pub fn new(mode: RevokeMode, ctx: &Context<'_>) -> Self {
        let node = |_| Node {
            result: NodeRevocation::Pending,
            revoked_until: None,
            ended_by: None,
            is_asked: false,
            was_asked: false,
            next_at: ctx.now,
        };
        let mut this = Self {
            majority: ctx.fleet.majority,
            mode,
            began: ctx.now,
            nodes: (0..ctx.topology.nodes().len()).map(node).collect(),
            fences: Vec::new(),
            certain: false,
            ends_at: None,
            over: false,
            asks: VecDeque::new(),
        };
        this.handle_timeout(ctx);
        this
    }

    /// What to ask next.
    pub fn poll(&mut self) -> Option<RevokeAsk> {
        self.asks.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` when the lock is over.
    pub fn poll_timeout(&self) -> Option<Moment> {
        if self.over {
            return None;
        }
        let nodes = self.nodes.iter().filter(|node| !node.is_asked).map(|node| node.next_at);
        nodes.chain(self.ends_at).reduce(Moment::earlier)
    }

    /// Asks the nodes that are due, and ends with the deadline of the lock.
    pub fn handle_timeout(&mut self, ctx: &Context<'_>) {
        self.over |= self.certain && self.ends_at.is_some_and(|at| ctx.now.has_reached(at));
        for node in 0..self.nodes.len() {
            let is_due =
                !self.nodes[node].is_asked && ctx.now.has_reached(self.nodes[node].next_at);
            if is_due && !self.over {
                let is_first = !self.nodes[node].was_asked && ctx.now == self.began;
                self.ask(
                    node,
                    if is_first { RevokeQuestion::Revoke } else { RevokeQuestion::Look },
                    ctx,
                );
            }
        }
    }

    fn ask(&mut self, node: usize, question: RevokeQuestion, ctx: &Context<'_>) {
        match ctx.topology.route_held(node, true) {
            Ok(connection) => {
                self.nodes[node].is_asked = true;
                self.nodes[node].was_asked |= question != RevokeQuestion::Look;
                self.asks.push_back(RevokeAsk { node, connection, question });
            }
            Err(error) => self.fail(node, error, ctx.now),
        }
    }

    /// A node that has revoked the lock keeps it so while it does not answer.
    fn fail(&mut self, node: usize, error: NodeError, now: Moment) {
        let node = &mut self.nodes[node];
        node.next_at = now.plus(limits::REVOKE_REPEAT);
        if !matches!(node.result, NodeRevocation::Revoked(_) | NodeRevocation::Ended) {
            node.result = NodeRevocation::Failed(error);
        }
    }

    /// Takes the answer of a node to a question that was sent at `sent`.
    pub fn handle_reply(
        &mut self,
        node: usize,
        sent: Moment,
        reply: Result<RevokeReply, NodeError>,
        ctx: &Context<'_>,
    ) {
        self.nodes[node].is_asked = false;
        self.nodes[node].next_at = ctx.now.plus(limits::REVOKE_REPEAT);
        match reply {
            Err(error) => self.fail(node, error, ctx.now),
            Ok(RevokeReply { was_locked, lease: Some(lease), .. }) => {
                self.handle_lease(node, (sent, was_locked == Some(true)), lease, ctx);
            }
            Ok(RevokeReply { was_locked, lease: None, abstains }) => {
                let was_revoked = matches!(
                    self.nodes[node].result,
                    NodeRevocation::Revoked(_) | NodeRevocation::Ended
                );
                let has_revoked = was_locked == Some(true);
                self.nodes[node].result = match abstains {
                    // What is free there may be forgotten, unless this very command has ended it.
                    Some(reason) if !has_revoked => {
                        NodeRevocation::Failed(NodeError::Abstains { reason })
                    }
                    _ if has_revoked || was_revoked => NodeRevocation::Ended,
                    _ => NodeRevocation::Free,
                };
                self.nodes[node].revoked_until = None;
                if self.mode == RevokeMode::AtDeadline {
                    self.nodes[node].ended_by = None;
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
        // No answer tells that a foreign string is revoked.
        let was_foreign = lease.fence.is_none()
            && matches!(&self.nodes[node].result, NodeRevocation::Revoked(lease) if lease.fence.is_none());
        let was_there = lease.held.is_some_and(|held| {
            // It was granted before the revocation began, by clocks that may differ.
            held > with_drift(ctx.now.since(self.began))
        });
        let may_be_ours = self.fences.is_empty() && lease.held.is_none();
        let is_ours = is_known || was_there || is_revoked_now || may_be_ours;
        if is_revoked_now || was_foreign || (lease.revoked && is_ours) {
            if !is_known {
                self.fences.push(lease.fence);
            }
            let left = lease.ttl.unwrap_or_default();
            let node = &mut self.nodes[node];
            node.revoked_until = Some(sent.plus(without_drift(left)));
            node.ended_by = Some(ctx.now.plus(with_drift(left)));
            node.result = NodeRevocation::Revoked(lease);
        } else if is_ours {
            // It came to this node after the node was asked, or the node was not asked yet.
            self.nodes[node].result = NodeRevocation::Pending;
            self.ask(node, RevokeQuestion::Revoke, ctx);
        } else {
            self.nodes[node].revoked_until = None;
            self.nodes[node].result = NodeRevocation::Other(lease);
        }
    }

    fn settle(&mut self, ctx: &Context<'_>) {
        let now = ctx.now;
        self.certain = self.certain || self.is_certain(now);
        if self.certain {
            self.ends_at = self.end();
        }
        let is_gone = |node: &&Node| {
            let result = &node.result;
            matches!(
                result,
                NodeRevocation::Ended | NodeRevocation::Free | NodeRevocation::Other(_)
            )
        };
        self.over |= self.nodes.iter().filter(is_gone).count() >= self.majority.size();
        self.over |= self.certain && self.ends_at.is_some_and(|at| now.has_reached(at));
        let is_answered = self.nodes.iter().all(|node| node.result != NodeRevocation::Pending);
        if self.mode == RevokeMode::Now && !self.over && (self.certain || is_answered) {
            for node in 0..self.nodes.len() {
                let is_revoked = matches!(self.nodes[node].result, NodeRevocation::Revoked(_));
                if is_revoked && !self.nodes[node].is_asked {
                    self.ask(node, RevokeQuestion::RevokeNow, ctx);
                }
            }
        }
    }

    /// Whether a majority has revoked leases at the same time.
    ///
    /// From then on, no majority extends any lock of the key, whichever these leases belong to: a
    /// node that was ahead of the others when it granted has another fence. A node gets the lock
    /// again only by a repair, which needs a majority of extensions in the same round. Nodes whose
    /// revoked lease has ended are not counted, since they could have been repaired while fewer
    /// were revoked. Nodes where the key was free are not counted either: a repair that began
    /// before may be on its way.
    fn is_certain(&self, now: Moment) -> bool {
        let is_live =
            |node: &&Node| node.revoked_until.is_some_and(|until| !now.has_reached(until));
        let is_revoked =
            |node: &&Node| matches!(node.result, NodeRevocation::Revoked(_)) && is_live(node);
        self.nodes.iter().filter(is_revoked).count() >= self.majority.size()
    }

    /// When so few nodes hold the lock that the others are a majority. A node that has not answered
    /// may hold it for longer than any that has.
    fn end(&self) -> Option<Moment> {
        let mut ends: Vec<Moment> = self.nodes.iter().filter_map(|node| node.ended_by).collect();
        ends.sort_unstable_by_key(|end| (end.raw, end.boot));
        ends.reverse();
        let unknown = self.nodes.iter().filter(|node| {
            matches!(node.result, NodeRevocation::Pending | NodeRevocation::Failed(_))
        });
        let last = self.majority.spare().saturating_sub(unknown.count());
        ends.get(last).or(ends.last()).copied()
    }

    /// How far it is.
    pub fn state(&self) -> RevocationState {
        let has_answered = |node: &&Node| {
            !matches!(node.result, NodeRevocation::Pending | NodeRevocation::Failed(_))
        };
        if self.over {
            RevocationState::Over
        } else if self.certain {
            RevocationState::Revoked
        } else if self.nodes.iter().filter(has_answered).count() >= self.majority.size() {
            RevocationState::Unconfirmed
        } else {
            RevocationState::Unknown
        }
    }

    /// Whether no question is open: each node has answered, or failed.
    pub fn is_settled(&self) -> bool {
        self.nodes.iter().all(|node| !node.is_asked && node.result != NodeRevocation::Pending)
    }

    /// How much longer the lock, or its holder after [`RevokeMode::Now`], may last: the longest
    /// time of the nodes that answered. It is certain in the states
    /// [`Revoked`](RevocationState::Revoked) and [`Over`](RevocationState::Over) only.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.end().map_or(Duration::ZERO, |end| now.until(end))
    }

    /// What became of it on each node, in the order of the nodes.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeRevocation> {
        self.nodes.iter().map(|node| &node.result)
    }
}

/// The longest time that may have passed here while a node measured this.
fn with_drift(measured: Duration) -> Duration {
    measured + crate::quorum::drift(measured)
}

/// The shortest time that may have passed here while a node measured this.
fn without_drift(measured: Duration) -> Duration {
    measured.saturating_sub(crate::quorum::drift(measured))
}
