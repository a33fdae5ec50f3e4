use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{FenceProposals, RoundTrips, Token, limits};
use crate::NodeError;
use crate::mutants::{ClientRule, is_broken};
use crate::quorum::{Majority, Moment};

/// Random numbers for tokens and pauses.
pub trait Random {
    /// Returns 128 random bits from the operating system; `None` if it has none.
    fn bits(&mut self) -> Option<u128>;

    /// Returns a number below `end`, which may be predictable. `end` is never zero.
    fn below(&mut self, end: u64) -> u64;
}

/// The environment of a machine, which the driver passes with every event.
pub struct Context<'a> {
    /// The time, read before the first byte is sent.
    pub now: Moment,
    /// The wall clock in microseconds since 1970. A wrong wall clock endangers no lock.
    pub wall_us: u64,
    /// The state that all locks of the client share.
    pub client_state: &'a ClientState,
    /// The nodes as they are now.
    pub topology: &'a Topology,
    /// Random numbers.
    pub random: &'a mut dyn Random,
}

impl Context<'_> {
    /// A new token for a request of the call that began at `began`; `None` without random numbers.
    pub(super) fn new_token(&mut self, began: Moment) -> Option<Token> {
        if is_broken(ClientRule::ReusedToken) {
            return Some(Token::of_bits(began.raw.as_nanos() << 64 | began.boot.as_nanos()));
        }
        self.random.bits().map(Token::of_bits)
    }

    /// A random number below `end`, or zero.
    pub(super) fn random_index(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.random.below(end)).unwrap_or(0)
    }

    /// Returns a random time between half of `at_most` and all of it.
    pub(super) fn jitter(&mut self, at_most: Duration) -> Duration {
        let half = at_most / 2;
        let us = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).saturating_add(1);
        half + Duration::from_micros(self.random.below(us))
    }
}

/// The state that all locks of one client share, for concurrent use.
#[derive(Debug)]
pub struct ClientState {
    /// How many nodes decide.
    pub majority: Majority,
    /// The smoothed round trip of each node.
    pub round_trips: RoundTrips,
    /// The fences to propose.
    pub fences: FenceProposals,
    /// The places for calls that stand in line.
    pub places: Places,
}

/// The places for calls that stand in line: each has a wait connection to every node.
#[derive(Debug)]
pub struct Places(AtomicUsize);

impl Places {
    /// Makes this many free places.
    pub fn new(places: usize) -> Self {
        Self(AtomicUsize::new(places))
    }

    /// Takes a place. Returns whether one was free.
    pub(super) fn take(&self) -> bool {
        let one_less = |free: usize| free.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    pub(super) fn give_back(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl ClientState {
    /// Makes the state for a client of `majority.nodes()` nodes.
    pub fn new(majority: Majority) -> Self {
        Self {
            majority,
            round_trips: RoundTrips::new(majority.nodes()),
            fences: FenceProposals::default(),
            places: Places::new(limits::WAIT_CONNECTIONS_MAX),
        }
    }
}

/// The nodes of a client at one moment: how each is reached, and whether it may vote.
#[derive(Clone, Debug)]
pub struct Topology {
    /// All nodes, by index.
    pub nodes: Vec<NodeStatus>,
}

/// One node at one moment.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// The number of its connection, or why there is none.
    pub link: Result<u64, NodeError>,
    /// Whether the client asks it for locks, or why not. Either way, a lock that the node already
    /// has is released there, and extended unless the node is the same server as another one.
    pub admission: Result<(), NodeError>,
    /// How many restarts of its server this client has seen.
    pub incarnation: u64,
}

impl Topology {
    /// The connection for a request that acquires a lock.
    pub(super) fn route_acquire(&self, node: usize) -> Result<u64, NodeError> {
        // Without a connection, the error of the connection tells an operator more than an
        // undecided admission.
        let connection = self.route_inspect(node)?;
        self.nodes[node].admission.clone().map(|()| connection)
    }

    /// The connection for a request that only reads, even if the admission is undecided because too
    /// few nodes are connected.
    pub(crate) fn route_inspect(&self, node: usize) -> Result<u64, NodeError> {
        let status = &self.nodes[node];
        match &status.admission {
            Err(NodeError::AwaitsMajority) | Ok(()) => status.link.clone(),
            Err(error) => Err(error.clone()),
        }
    }

    /// The connection for an extension or a revocation.
    ///
    /// `was_asked` says whether the node was sent an ACQUIRE; it is true for a revocation.
    /// A server that is listed under two names must not confirm the lock twice.
    pub(crate) fn route_held(&self, node: usize, was_asked: bool) -> Result<u64, NodeError> {
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
}
