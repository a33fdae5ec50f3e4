//! Commands and their replies.

use super::{KeyBytes, Mode, Pattern, Reason, Ticket};
use crate::{Fence, Ttl};

/// The limits of a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bounds every grant, and so how long a node that forgot must abstain.
    pub max_ttl: Ttl,
    /// How long a node that has just started abstains, in milliseconds. Less than the largest ttl
    /// that it ever granted is not safe.
    pub rejoin_delay_ms: u64,
    /// How far ahead of the node's wall clock a proposed fence may lie, in milliseconds.
    pub max_clock_skew_ms: u64,
    /// How many clients may wait, for all keys together.
    pub max_waiters: usize,
    /// The number of fence counters.
    pub fence_stripes: usize,
    /// The number of parts of each hash table. A part is the most that growth moves at once.
    pub table_shards: usize,
    /// Makes the hash of this node unlike that of any other.
    pub hash_seed: u64,
    /// Whether waiters that were granted a lock are unblocked at the end of the turn. Redis 7.0
    /// drops the answer of one that is unblocked and then, in the same turn, named by
    /// `CLIENT UNBLOCK`. Elsewhere it would only take longer.
    pub defer_wakes: bool,
}

/// The most keys that one lock may have.
pub const KEYS_MAX: usize = 64;

/// A command, parsed. The keys of a lock are at least one, each once and in the order of their
/// bytes.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a, N> {
    /// `LOCK.ACQUIRE` or `LOCK.MACQUIRE`.
    Acquire(Acquire<'a, N>),
    /// `LOCK.ACQUIREANY`: one of the keys, which are in the order of the client's choice.
    AcquireAny(Acquire<'a, N>),
    /// `LOCK.EXTEND` or `LOCK.MEXTEND`.
    Extend(Extend<'a, N>),
    /// `LOCK.RELEASE` or `LOCK.MRELEASE`.
    Release(Release<'a, N>),
    /// `LOCK.INSPECT`.
    Inspect(Inspect<'a, N>),
    /// `LOCK.REVOKE`.
    Revoke(Revoke<'a, N>),
    /// `LOCK.SCAN`.
    Scan(Scan<'a>),
}

/// Takes a lock.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a, N> {
    /// The number of the database.
    pub db: u32,
    /// The keys to lock.
    pub keys: &'a [N],
    /// What will prove who holds it.
    pub token: &'a N,
    /// For how long.
    pub ttl: Ttl,
    /// Whether others may hold the key as well. Only a lock of one key is shared.
    pub mode: Mode,
    /// The holder's label, for people to read.
    pub owner: Option<&'a [u8]>,
    /// The fence that the client proposes.
    pub fence: Option<Fence>,
    /// How long the client waits for the lock, in milliseconds.
    pub wait_ms: u64,
}

/// Moves the deadline of a lock forward, never back.
#[derive(Clone, Copy, Debug)]
pub struct Extend<'a, N> {
    /// The number of the database.
    pub db: u32,
    /// The locked keys.
    pub keys: &'a [N],
    /// The token that holds them.
    pub token: &'a N,
    /// The lock is to last at least this long from now.
    pub ttl: Ttl,
    /// [`Mode::Shared`] makes an exclusive lock of one key a shared one. A shared lock stays shared.
    pub mode: Mode,
    /// Raise the lock's fence to this.
    pub fence: Option<Fence>,
    /// Give the lock to this token.
    pub new_token: Option<&'a N>,
}

/// Releases the lock that a token holds on a key, including the lock's other keys.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a, N> {
    /// The number of the database.
    pub db: u32,
    /// The locked keys.
    pub keys: &'a [N],
    /// The token that holds them.
    pub token: &'a N,
}

/// Describes the holder of a key.
#[derive(Clone, Copy, Debug)]
pub struct Inspect<'a, N> {
    /// The number of the database.
    pub db: u32,
    /// The key.
    pub key: &'a N,
}

/// Takes a lock back from its holder, on all its keys.
#[derive(Clone, Copy, Debug)]
pub struct Revoke<'a, N> {
    /// The number of the database.
    pub db: u32,
    /// One of the locked keys.
    pub key: &'a N,
    /// A random value that replaces the token in the mirror. No client knows it.
    pub unknown: &'a N,
    /// Whether the lock ends at once, and not at its deadline.
    pub ends_now: bool,
}

/// Lists the locks of a database, a slice in each call.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The number of the database.
    pub db: u32,
    /// Where to go on: zero at first, and then what the last call returned.
    pub cursor: u64,
    /// What the keys match.
    pub pattern: Option<&'a Pattern>,
    /// How many leases to look at, at most.
    pub count: u32,
}

/// The reply to a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The lock is the client's, with this fence.
    Granted(Fence),
    /// The lock of one of the keys is the client's.
    GrantedOne {
        /// Its fence.
        fence: Fence,
        /// The index of the key among those of the command.
        key: usize,
    },
    /// Another holds one of the keys, or waits for it.
    Refused,
    /// The client was blocked; its answer comes later.
    Waits,
    /// The token holds the lock, with this fence.
    Extended(Fence),
    /// The token does not hold the lock.
    NotHeld,
    /// Whether the token held any of the keys. It holds none of them now.
    Released(bool),
    /// The holder of the key; `None` when it is free.
    Inspected(Option<Inspected>),
    /// Whether there was a lock to revoke.
    Revoked(bool),
    /// The locks of one slice.
    Scanned(Scanned),
}

/// The locks of one slice of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Where the next call goes on; zero after the last slice.
    pub cursor: u64,
    /// The locks.
    pub locks: Vec<Listed>,
}

/// A lock of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Box<[u8]>,
    /// What INSPECT says of it.
    pub inspected: Inspected,
}

/// The holder of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The number of clients that wait for it.
    pub waiters: usize,
    /// The first of them, in the order in which they came.
    pub queue: Vec<ShownWaiter>,
    /// What holds it.
    pub holder: Holder,
}

/// A client that waits for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownWaiter {
    /// Names the client.
    pub ticket: Ticket,
    /// The label that it gave.
    pub owner: Option<Box<[u8]>>,
}

/// What holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A lease.
    Lease {
        /// The labels that its holders gave, in the order of their grants; those of the first few
        /// of many.
        owners: Vec<Option<Box<[u8]>>>,
        /// How many hold it: one, unless it is shared.
        holders: usize,
        /// Its fence; of a shared lock the largest that a holder was given.
        fence: Fence,
        /// The time left, in milliseconds, until the last of its holders ends.
        ttl_ms: u64,
        /// The time since the grant, in milliseconds, of the first of its holders.
        held_ms: u64,
        /// Whether others may hold the key as well.
        mode: Mode,
        /// The number of keys of its lock.
        keys: usize,
        /// Whether an operator revoked it: it ends by its deadline at the latest.
        revoked: bool,
    },
    /// A string with no lease behind it.
    Foreign {
        /// The time left, in milliseconds; `None` for a string that does not expire.
        ttl_ms: Option<u64>,
    },
}

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandError {
    /// The node may have forgotten who holds the keys.
    Abstaining {
        /// Why.
        reason: Reason,
        /// For how much longer, in milliseconds. A replica abstains without end and names the
        /// largest ttl.
        left_ms: u64,
    },
    /// One of the keys holds something that is not a string.
    WrongType,
    /// The token holds these keys, but they are not all keys of one lock.
    OtherKeys,
    /// The token holds the lock, and the proposed fence cannot be.
    BadFence(FenceError),
    /// No more clients may wait.
    QueueFull {
        /// How many may.
        max_waiters: usize,
    },
    /// An operator revoked the lock. Its holder keeps it for this much longer, in milliseconds.
    Revoked {
        /// The time left.
        left_ms: u64,
    },
    /// A lock of several keys is exclusive.
    SeveralShared,
    /// The new token of a hand-over holds the lock already.
    TokenInUse,
    /// A string without an expiry is data, and no lock that can be revoked.
    NoExpiry,
    /// The server did not take a key. Nothing is locked, or revoked.
    NotWritten,
}

/// Why a fence was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FenceError {
    /// A fence never goes down.
    #[error("FENCE is below the lock's fence {current}: propose a larger one")]
    Below {
        /// The lease's fence.
        current: Fence,
    },
    /// More ahead of the wall clock than any clock should be.
    #[error(
        "FENCE lies more than lock.max-clock-skew ahead of this server's clock: \
         largest accepted now {largest}"
    )]
    TooFarAhead {
        /// The largest that would have been accepted.
        largest: Fence,
    },
}

/// What a client that waited is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReply {
    /// The lock is the client's.
    Granted {
        /// The fence of this grant.
        fence: Fence,
        /// How long the client waited, in microseconds. The lock's time begins only now.
        waited_us: u64,
        /// Its key, if the client waited for any of several.
        key: Option<KeyBytes>,
    },
    /// The client waits no more, without the lock.
    Refused,
    /// The same, and this is why.
    Failed(CommandError),
}
