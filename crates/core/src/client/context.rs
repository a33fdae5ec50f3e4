use std::sync::Arc;

use smallvec::SmallVec;

use super::{FenceProposals, Keys, NodeError, RoundTrips, Token};
use crate::quorum::{Majority, Moment, order};

/// Random numbers for tokens and pauses.
pub trait Random {
    /// 128 bits of the operating system; `None` if it has none.
    fn bits(&mut self) -> Option<u128>;

    /// A number below `end`, which is not zero. It need not be hard to guess.
    fn below(&mut self, end: u64) -> u64;
}

/// What a machine is told with everything that happens.
pub struct Context<'a> {
    /// The time, read before anything is sent.
    pub now: Moment,
    /// The wall clock in microseconds since 1970. Nothing is unsafe if it is wrong.
    pub wall_us: u64,
    /// What all locks of the client share.
    pub fleet: &'a Fleet,
    /// The nodes as they are now.
    pub topology: &'a Topology,
    /// Random numbers.
    pub random: &'a mut dyn Random,
}

impl Context<'_> {
    pub(super) fn token(&mut self) -> Option<Token> {
        self.random.bits().map(Token::of_bits)
    }

    /// A random time between half of `at_most` and all of it.
    pub(super) fn jitter(&mut self, at_most: std::time::Duration) -> std::time::Duration {
        let half = at_most / 2;
        let us = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
        half + std::time::Duration::from_micros(self.random.below(us))
    }
}

/// What all locks of one client share, without a lock of its own.
#[derive(Debug)]
pub struct Fleet {
    /// How many nodes decide.
    pub majority: Majority,
    /// How long each node takes to answer.
    pub round_trips: RoundTrips,
    /// What fence to propose.
    pub fences: FenceProposals,
}

impl Fleet {
    /// Of so many nodes.
    pub fn new(majority: Majority) -> Self {
        Self {
            majority,
            round_trips: RoundTrips::new(majority.nodes()),
            fences: FenceProposals::default(),
        }
    }
}

/// The nodes of a client at one moment: how each is reached, and whether it may vote.
#[derive(Clone, Debug)]
pub struct Topology {
    nodes: Vec<NodeStatus>,
}

/// One node at one moment.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// The number of its connection, or why there is none.
    pub link: Result<u64, NodeError>,
    /// Whether it may be asked for locks, or why not. Locks that it holds are extended and released
    /// all the same.
    pub admission: Result<(), NodeError>,
    /// How many starts of its server this client has seen.
    pub incarnation: u64,
    /// What names the server for all clients alike, once it is known.
    pub identity: Option<Arc<str>>,
}

impl Topology {
    /// Of these nodes.
    pub fn new(nodes: Vec<NodeStatus>) -> Self {
        Self { nodes }
    }

    /// All nodes.
    pub fn nodes(&self) -> &[NodeStatus] {
        &self.nodes
    }

    /// The connection for a request that acquires a lock.
    pub(super) fn route_acquire(&self, node: usize) -> Result<u64, NodeError> {
        let status = &self.nodes[node];
        status.admission.clone()?;
        status.link.clone()
    }

    /// The connection for a request that only reads. It may also go to nodes of a minority, of
    /// which it is unknown whether they belong to the set.
    pub(super) fn route_inspect(&self, node: usize) -> Result<u64, NodeError> {
        let status = &self.nodes[node];
        match &status.admission {
            Err(NodeError::Down { .. }) | Ok(()) => status.link.clone(),
            Err(error) => Err(error.clone()),
        }
    }

    /// The connection for a request that extends a lock, which the node `was_asked` for or not. A
    /// server that has another node's vote must not confirm the lock twice.
    pub(super) fn route_held(&self, node: usize, was_asked: bool) -> Result<u64, NodeError> {
        let status = &self.nodes[node];
        match &status.admission {
            Err(error @ NodeError::SameServer { .. }) => Err(error.clone()),
            Err(error) if !was_asked => Err(error.clone()),
            Err(_) | Ok(()) => status.link.clone(),
        }
    }

    /// The connection for any other request.
    pub(super) fn route(&self, node: usize) -> Result<u64, NodeError> {
        self.nodes[node].link.clone()
    }

    pub(super) fn incarnation(&self, node: usize) -> u64 {
        self.nodes[node].incarnation
    }

    /// The order of the nodes for a key: the same for all clients that know the nodes. Nodes that
    /// have not introduced themselves come last.
    pub fn order(&self, key: &[u8]) -> SmallVec<[usize; 7]> {
        let identity = |status: &NodeStatus| status.identity.clone();
        let known: SmallVec<[(usize, Arc<str>); 7]> = (self.nodes.iter().enumerate())
            .filter_map(|(node, status)| Some((node, identity(status)?)))
            .collect();
        let ranked = order(key, known.iter().map(|(_, identity)| identity.as_bytes()));
        let unknown = (0..self.nodes.len()).filter(|&node| self.nodes[node].identity.is_none());
        ranked.into_iter().map(|place| known[place].0).chain(unknown).collect()
    }

    /// The order of the nodes for each key.
    pub(super) fn orders(&self, keys: &Keys) -> SmallVec<[SmallVec<[usize; 7]>; 1]> {
        keys.iter().map(|key| self.order(key)).collect()
    }
}
