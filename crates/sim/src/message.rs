use quorlock_core::Fence;
use quorlock_core::node::memory::Name;

/// Something on its way between a client and a node. It may arrive at any time, in any order, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// Who asks.
    pub client: u8,
    /// Which of its attempts this belongs to.
    pub attempt: u8,
    /// Who is asked.
    pub node: u8,
    /// What.
    pub body: Body,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    /// To the node.
    Request(Request),
    /// Back to the client, which knows what it is the answer to.
    Reply(Request, Answer),
}

/// What a node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// ACQUIRE, with the fence that is proposed.
    Acquire(Fence),
    /// EXTEND … FENCE, of the agreement on a fence.
    Tell(Fence),
    /// EXTEND, of this round.
    Extend(u8),
    /// ACQUIRE by the holder on a node that missed its lock, in this round of extensions.
    Repair(u8),
    /// RELEASE.
    Release,
}

/// What a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The token holds the key, with this fence.
    Held(Fence),
    /// It does not.
    NotHeld,
    /// It does, but the node does not take this fence.
    BadFence,
    /// It does, and can no longer extend it: an operator revoked the lock.
    Revoked,
    /// The node abstains.
    Silent,
    /// RELEASE found the token holding the key.
    Released,
}

impl Message {
    /// Whether it is on its way to a node.
    pub fn is_request(&self) -> bool {
        matches!(self.body, Body::Request(_))
    }

    /// The token of the lock that this is about.
    pub(crate) fn token(&self) -> Name {
        Name::from_slice(&[self.client, self.attempt])
    }
}
