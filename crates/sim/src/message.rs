use quorlock_core::Fence;
use quorlock_core::node::memory::Name;

/// A message in transit between a client and a node.
///
/// It may arrive at any later time, before or after other messages, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub client: u8,
    /// The number of the client's attempt.
    pub attempt: u8,
    pub node: u8,
    pub body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    Request(Request),
    /// An answer, with its request.
    Reply(Request, Answer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// ACQUIRE, with the proposed fence.
    Acquire(Fence),
    /// EXTEND … FENCE, which stores the fence that the client chose from the grants.
    StoreFence(Fence),
    /// EXTEND, in this round of extensions.
    Extend(u8),
    /// ACQUIRE by the holder on a node that misses its lock, in this round of extensions.
    Repair(u8),
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The token holds the key, with this fence.
    Held(Fence),
    /// The node did not grant the key, or the token does not hold it.
    NotHeld,
    /// The token holds the key, but the node does not accept the requested fence.
    BadFence,
    /// The token holds the key, but may not extend the lock: an operator revoked it.
    Revoked,
    /// The node does not vote: it abstains or answers with another error.
    Silent,
    /// The token held the key until this RELEASE.
    Released,
}

impl Message {
    pub fn is_request(&self) -> bool {
        matches!(self.body, Body::Request(_))
    }

    /// The token of the attempt.
    pub(crate) fn token(&self) -> Name {
        Name::from_slice(&[self.client, self.attempt])
    }
}

/// The output of a client, which the world carries out and checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Sends a request to this node.
    Ask(usize, Request),
    /// Sends a request to all nodes.
    AskAll(Request),
    /// The client reports the lock to its program, with this fence.
    Won(Fence),
    /// This round of extensions has extended the lock.
    Extended(u8),
}
