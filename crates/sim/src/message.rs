use quorlock_core::Fence;
use quorlock_core::node::memory::Name;

/// A message in transit between a client and a node. It may arrive at any time, in any order, or
/// never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// The client.
    pub client: u8,
    /// The attempt of the client.
    pub attempt: u8,
    /// The node.
    pub node: u8,
    /// The content.
    pub body: Body,
}

/// The content of a message, by its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    /// A request to the node.
    Request(Request),
    /// An answer to the client, which knows the request.
    Reply(Request, Answer),
}

/// A request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// ACQUIRE, with the proposed fence.
    Acquire(Fence),
    /// EXTEND … FENCE, for the agreement on a fence.
    Tell(Fence),
    /// EXTEND, in this round.
    Extend(u8),
    /// ACQUIRE by the holder on a node that missed its lock, in this round of extensions.
    Repair(u8),
    /// RELEASE.
    Release,
}

/// An answer of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The token holds the key, with this fence.
    Held(Fence),
    /// The token does not hold the key.
    NotHeld,
    /// The token holds the key, but the node does not accept this fence.
    BadFence,
    /// The token holds the key, but cannot extend it: an operator revoked the lock.
    Revoked,
    /// The node abstains.
    Silent,
    /// RELEASE found that the token held the key.
    Released,
}

impl Message {
    /// Returns whether the message goes to a node.
    pub fn is_request(&self) -> bool {
        matches!(self.body, Body::Request(_))
    }

    /// Returns the token of the lock.
    pub(crate) fn token(&self) -> Name {
        Name::from_slice(&[self.client, self.attempt])
    }
}

/// The output of a client, which the world carries out and judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A request to this node.
    Ask(usize, Request),
    /// A request to all nodes.
    AskAll(Request),
    /// The lock is reported, with this fence.
    Won(Fence),
    /// This round of extensions has extended the lock.
    Extended(u8),
}
