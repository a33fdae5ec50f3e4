//! What a node is asked, and what it answers: what is to be written, and told to whom.

use super::{Reason, Ticket};
use crate::{Fence, Ttl};

/// The limits of a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bounds every grant, and so how long a node that forgot must stay silent.
    pub max_ttl: Ttl,
    /// How long a node that has just started abstains, in milliseconds. Less than the largest ttl it ever granted is
    /// not safe.
    pub rejoin_delay_ms: u64,
    /// How far ahead of the node's wall clock a proposed fence may lie, in milliseconds.
    pub max_clock_skew_ms: u64,
    /// How many may wait, for all keys together.
    pub max_waiters: usize,
    /// How many fence counters there are.
    pub fence_stripes: usize,
    /// Makes the hash of this node unlike that of any other.
    pub hash_seed: u64,
}

/// The most keys that one lock may have.
pub const KEYS_MAX: usize = 64;

/// `LOCK.ACQUIRE` or `LOCK.MACQUIRE`, parsed.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a, L> {
    /// The number of the database.
    pub db: u32,
    /// The keys to lock, at least one, each once and in the order of their bytes.
    pub keys: &'a [L],
    /// What will prove who holds it.
    pub token: &'a L,
    /// For how long.
    pub ttl: Ttl,
    /// Who asks, for people to read.
    pub owner: Option<&'a L>,
    /// The fence that the client proposes.
    pub fence: Option<Fence>,
    /// Whether the client may wait when somebody else holds the lock.
    pub may_wait: bool,
}

/// What becomes of an [`Acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Acquired {
    /// The lock is the caller's: write the mirrors (the token, expiring at `expires_at_ms`), then answer the fence.
    Granted {
        /// The fence of this grant.
        fence: Fence,
        /// When the mirrors expire, in milliseconds of the wall clock.
        expires_at_ms: u64,
    },
    /// Somebody holds one of the keys, or waits for it.
    Refused,
    /// The same, and the client may wait: pass it to [`Node::enqueue`](super::Node::enqueue).
    MustWait,
    /// The same, and so many wait already that this one may not.
    QueueFull {
        /// How many may.
        max_waiters: usize,
    },
    /// The node may have forgotten who holds them.
    Abstaining {
        /// Why.
        reason: Reason,
        /// For how much longer, in milliseconds; a replica, which has no end of it, names the largest ttl.
        left_ms: u64,
    },
    /// One of the keys holds something that is not a string.
    WrongType,
}

/// `LOCK.EXTEND` or `LOCK.MEXTEND`, parsed.
#[derive(Clone, Copy, Debug)]
pub struct Extend<'a, L> {
    /// The number of the database.
    pub db: u32,
    /// The locked keys, at least one, each once and in the order of their bytes.
    pub keys: &'a [L],
    /// The token that holds them.
    pub token: &'a L,
    /// The lock is to last at least this long from now.
    pub ttl: Ttl,
    /// Raise the lock's fence to this.
    pub fence: Option<Fence>,
    /// Hand the lock over to this token.
    pub new_token: Option<&'a L>,
}

/// What is to be done to a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorWrite {
    /// It is right as it is, or something else is there that is not ours to touch.
    Nothing,
    /// Write the token (the new one, if the lock was handed over) with this expiry.
    Set {
        /// In milliseconds of the wall clock.
        expires_at_ms: u64,
    },
    /// Only the expiry changes.
    Expire {
        /// In milliseconds of the wall clock.
        expires_at_ms: u64,
    },
}

/// What becomes of an [`Extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Extended {
    /// The token holds the lock.
    Held {
        /// Its fence now.
        fence: Fence,
    },
    /// The token does not hold the lock: it never did, or does no more.
    NotHeld,
    /// The token holds these keys, and they are not all keys of one lock.
    OtherKeys,
    /// The token holds the lock, and the proposed fence cannot be.
    BadFence(FenceError),
    /// One of the keys holds something that is not a string.
    WrongType,
}

/// Why a fence was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// A fence never goes down.
    #[error("FENCE is below the lock's fence {current}: propose a larger one")]
    Below {
        /// The lease's fence.
        current: Fence,
    },
    /// More ahead of the wall clock than any clock should be.
    #[error(
        "FENCE lies more than lock.max-clock-skew ahead of this server's clock: largest accepted now {largest}"
    )]
    TooFarAhead {
        /// The largest that would have been accepted.
        largest: Fence,
    },
}

/// What becomes of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// The token held the lock, and holds it no more.
    Released(
        /// Whether the key is to be deleted.
        DeleteMirror,
    ),
    /// The token did not hold the lock.
    NotHeld(
        /// Whether the key, left over from a lease of this token that has ended, is to be deleted.
        DeleteMirror,
    ),
    /// The key holds something that is not a string.
    WrongType,
}

type DeleteMirror = bool;

/// Who holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspected<'a> {
    /// Nobody.
    Free,
    /// A lease.
    Lease {
        /// How many wait for it.
        waiters: usize,
        /// How many keys its lock has.
        keys: usize,
        /// The label that its holder gave.
        owner: Option<&'a [u8]>,
        /// Its fence.
        fence: Fence,
        /// How much longer, in milliseconds.
        ttl_ms: u64,
    },
    /// A string that no lease is behind.
    Foreign {
        /// How many wait for it.
        waiters: usize,
        /// How much longer, in milliseconds; `None` for a string that does not expire.
        ttl_ms: Option<u64>,
    },
    /// Something that is not a string.
    WrongType,
}

/// A lease whose deadline has come.
#[derive(Debug)]
pub struct Due<'a, B> {
    /// The number of the database.
    pub db: u32,
    /// Its key.
    pub key: &'a B,
}

/// What a settled lease leaves to be done: see [`Node::settle`](super::Node::settle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Adjusted {
    /// Delete the key: it carries the token of a lease that has ended.
    DeleteMirror {
        /// Whether by its deadline, and not with another key of its lock.
        expired: bool,
    },
    /// Nothing.
    Nothing,
}

/// What is to be done about a lost mirror: see [`Node::repair`](super::Node::repair).
#[derive(Debug)]
#[must_use]
pub enum Repair<'a, B> {
    /// Write it again.
    Set {
        /// The token.
        token: &'a B,
        /// In milliseconds of the wall clock.
        expires_at_ms: u64,
    },
    /// Nothing, for now.
    Nothing,
}

/// Who is next for a key: see [`Node::hand_over`](super::Node::hand_over).
#[derive(Debug)]
#[must_use]
pub enum Next<'a, B> {
    /// Nobody, for now.
    Nobody,
    /// This one, whose the lock is.
    Granted(HandOver<'a, B>),
    /// This one, if its other keys are free as well: look at all of them and call
    /// [`Node::hand_over_all`](super::Node::hand_over_all).
    Several {
        /// Who waits.
        ticket: Ticket,
        /// For which keys.
        keys: Vec<&'a B>,
    },
}

/// A lock that is handed over to the next in its queue: write the mirrors, then answer whoever has the ticket. When one
/// cannot be written, [`Node::revoke`](super::Node::revoke) it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct HandOver<'a, B> {
    /// Who waited.
    pub ticket: Ticket,
    /// The token that holds the lock now.
    pub token: &'a B,
    /// The fence of this grant.
    pub fence: Fence,
    /// How long it waited, in microseconds. The lock's time begins only now.
    pub waited_us: u64,
    /// When the mirrors expire, in milliseconds of the wall clock.
    pub expires_at_ms: u64,
}
