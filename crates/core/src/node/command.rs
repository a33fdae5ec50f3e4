//! Commands, their replies, and the settings of a node.

use super::{BlockedId, KeyBytes, Mode, Pattern, Reason};
use crate::{Fence, Ttl};

/// The settings of a node.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The largest ttl of a grant. A node that forgot its locks must abstain for that long.
    pub max_ttl: Ttl,
    /// How long a node abstains after its start, in milliseconds.
    /// A delay below the largest ttl that the node ever granted is not safe.
    pub rejoin_delay_ms: u64,
    /// How far ahead of the node's wall clock a proposed fence may lie, in milliseconds.
    pub max_clock_skew_ms: u64,
    /// How many clients may wait, for all keys together.
    pub max_waiters: usize,
    /// The number of fence counters.
    pub fence_stripes: usize,
    /// The number of shards of each hash table. Growth moves one shard at a time.
    pub table_shards: usize,
    /// A random seed, so that the hashes of two nodes differ.
    pub hash_seed: u64,
    /// Whether to unblock granted waiters only at the end of the turn.
    ///
    /// Redis 7.0 needs this: it drops the answer of a client that is unblocked and then, in the
    /// same turn, named by `CLIENT UNBLOCK`. On other servers, the deferral only adds delay.
    pub defer_wakes: bool,
}

/// The largest number of keys of one lock.
pub const KEYS_MAX: usize = 64;

/// The largest length of a key of a lock, in bytes.
///
/// The node copies the keys of locks and of waiters, and compares and propagates them in its turns.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// A parsed command.
///
/// The keys are unique, at least one and, except with [`Wants::Any`], in the order of their bytes.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a, N> {
    /// `LOCK.ACQUIRE`, `LOCK.MACQUIRE` or `LOCK.ACQUIREANY`.
    Acquire(Acquire<'a, N>),
    /// `LOCK.EXTEND` or `LOCK.MEXTEND`.
    Extend(Extend<'a, N>),
    /// `LOCK.RELEASE` or `LOCK.MRELEASE`.
    Release(Release<'a, N>),
    /// `LOCK.YIELD` or `LOCK.MYIELD`: releases the keys that the token holds if an older waiter
    /// wants one of them.
    Yield(Release<'a, N>),
    /// `LOCK.INSPECT`.
    Inspect(Inspect<'a, N>),
    /// `LOCK.REVOKE`.
    Revoke(Revoke<'a, N>),
    /// `LOCK.SCAN`.
    Scan(Scan<'a>),
}

/// Acquires a lock.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a, N> {
    /// The number of the database.
    pub db: u32,
    /// The keys to lock.
    pub keys: &'a [N],
    /// Whether to lock all of the keys or any one of them.
    pub wants: Wants,
    /// Proves later who holds the lock.
    pub token: &'a N,
    /// The requested duration.
    pub ttl: Ttl,
    /// Whether other holders may share the key. Only a lock of one key can be shared.
    pub mode: Mode,
    /// The holder's label, for people to read.
    pub owner: Option<&'a [u8]>,
    /// The client's ticket, which is also the fence that it proposes. With it, the request may be a
    /// repeated one. [`Fence::ZERO`] is the front of the queue, and proposes no fence.
    pub fence: Option<Fence>,
    /// How long the client waits for the lock, in milliseconds; zero if it does not wait.
    pub wait_ms: u64,
}

/// Whether a client wants all of its keys or any one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// All of the keys, at the same time.
    All,
    /// The first of the keys that is free, in the client's order.
    Any,
}

impl<N: AsRef<[u8]>> Acquire<'_, N> {
    pub(super) fn has_long_key(&self) -> bool {
        self.keys.iter().any(|key| key.as_ref().len() > KEY_BYTES_MAX)
    }
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
    /// The lock lasts at least this long from now.
    pub ttl: Ttl,
    /// [`Mode::Shared`] turns an exclusive lock of one key into a shared one. [`Mode::Exclusive`]
    /// leaves the lock as it is.
    pub mode: Mode,
    /// Raises the lock's fence to at least this value. `None` keeps the fence, but a new token
    /// gives the lock a larger one.
    pub fence: Option<Fence>,
    /// Replaces the token of the lock; `None` keeps the token.
    pub new_token: Option<&'a N>,
}

/// Releases each lock that the token holds on any of these keys, on all keys of that lock. On a key
/// that the token does not hold, its waiter leaves the queue.
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

/// Revokes a lock from its holder, on all its keys.
#[derive(Clone, Copy, Debug)]
pub struct Revoke<'a, N> {
    /// The number of the database.
    pub db: u32,
    /// One of the locked keys.
    pub key: &'a N,
    /// Whether the lock ends at once, and not at its deadline.
    pub ends_now: bool,
}

/// Lists one slice of the locks of a database.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The number of the database.
    pub db: u32,
    /// The cursor: zero at first, then the one that the previous call returned.
    pub cursor: u64,
    /// The pattern that listed keys match; `None` lists all keys.
    pub pattern: Option<&'a Pattern>,
    /// The largest number of leases to examine.
    pub count: u32,
}

/// The reply to a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The client holds the lock, with this fence.
    Granted(Fence),
    /// The client holds the lock on one of the keys.
    GrantedOne {
        /// The fence of the lock.
        fence: Fence,
        /// The index of the key among the keys of the command.
        key: usize,
    },
    /// A key is held, perhaps by the same token, or another client waits for it. The client gave no
    /// ticket; see [`CommandError::Held`].
    Refused,
    /// The client waits. Its answer follows later.
    Waits,
    /// The token holds the lock, with this fence.
    Extended(Fence),
    /// The token does not hold the lock.
    NotHeld,
    /// Whether the token held any of the keys.
    Released(bool),
    /// Whether the token, which held at least one of the keys, gave them up. Otherwise it still
    /// holds them. The reply is [`NotHeld`](Self::NotHeld) if it held none.
    Yielded(bool),
    /// The holder of the key; `None` if it is free.
    Inspected(Option<Box<Inspected>>),
    /// Whether there was a lock to revoke.
    Revoked(bool),
    /// The locks of one slice.
    Scanned(Box<Scanned>),
}

/// The locks of one slice of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The cursor of the next call; zero after the last slice.
    pub cursor: u64,
    /// The locks.
    pub locks: Vec<Listed>,
}

/// A lock in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Box<[u8]>,
    /// The description that INSPECT gives.
    pub inspected: Inspected,
}

/// The holder and the waiters of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The number of clients that wait for the key.
    pub waiters: usize,
    /// The first waiters, the oldest first.
    pub queue: Vec<ShownWaiter>,
    /// What holds the key.
    pub holder: Holder,
}

/// A client that waits for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownWaiter {
    /// Names the client.
    pub blocked_id: BlockedId,
    /// The client's label, if it gave one.
    pub owner: Option<Box<[u8]>>,
}

/// What holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A lease.
    Lease {
        /// The labels of its first holders, in the order of their grants; `None` for a holder
        /// without a label.
        owners: Vec<Option<Box<[u8]>>>,
        /// The number of holders: one, unless the lock is shared.
        holders: usize,
        /// Its fence; for a shared lock, the largest that a holder has had so far.
        fence: Fence,
        /// The time until the latest deadline of its holders, in milliseconds.
        ttl_ms: u64,
        /// The time since the grant to the first of its current holders, in milliseconds.
        held_ms: u64,
        /// Whether other holders may share the key.
        mode: Mode,
        /// The number of keys of its lock.
        keys: usize,
        /// Whether an operator revoked it. It ends by its deadline at the latest.
        revoked: bool,
    },
    /// A string without a lease.
    Foreign {
        /// The time left, in milliseconds; `None` for a string that does not expire.
        ttl_ms: Option<u64>,
    },
}

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandError {
    /// The refusal of a request with a ticket: a key is held, or another client waits for it.
    Held {
        /// The largest fence and ticket that the node knows for the keys.
        number: Fence,
        /// Whether a holder or a waiter is older than the client: by its ticket and then by its
        /// token. A holder without a ticket is older than every client.
        is_older: bool,
    },
    /// The ticket lies more than twice `lock.max-clock-skew` ahead of the node's wall clock.
    TicketTooFarAhead {
        /// The largest ticket that the node accepts now.
        largest: Fence,
    },
    /// The node may have forgotten who holds the keys.
    Abstaining {
        /// The reason.
        reason: Reason,
        /// How much longer the node abstains, in milliseconds; for a replica, the largest ttl.
        left_ms: u64,
    },
    /// A key is longer than [`KEY_BYTES_MAX`].
    KeyLength,
    /// One of the keys holds a value that is not a string.
    WrongType,
    /// The token holds these keys, but they are not exactly the keys of one lock.
    OtherKeys,
    /// The token holds the lock, and the node refuses the proposed fence.
    BadFence(FenceError),
    /// The token already waits on one of the keys, and the request has no fence, or would end
    /// several waits.
    AlreadyWaits,
    /// The limit of waiting clients is reached.
    QueueFull {
        /// The limit.
        max_waiters: usize,
    },
    /// An operator revoked the lock. Its holder still relies on it for `left_ms`.
    Revoked {
        /// The time left, in milliseconds.
        left_ms: u64,
    },
    /// A lock of several keys cannot be shared.
    SeveralShared,
    /// The new token of an EXTEND already holds the shared lock.
    TokenInUse,
    /// The key holds a string without an expiry. That is data and not a lock.
    NoExpiry,
    /// The server refused to write a key. Nothing is locked or revoked.
    NotWritten,
}

/// Why a node refused a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FenceError {
    /// The proposed fence is below the lock's fence, and a fence never decreases.
    #[error("FENCE is below the lock's fence {current}: propose {current} or more")]
    Below {
        /// The lease's fence.
        current: Fence,
    },
    /// The fence lies more than `lock.max-clock-skew` ahead of the node's wall clock.
    #[error(
        "FENCE is more than lock.max-clock-skew ahead of this server's clock: \
         the largest fence that it accepts now is {largest}"
    )]
    TooFarAhead {
        /// The largest fence that the node accepts now.
        largest: Fence,
    },
}

/// The answer to a client that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReply {
    /// The client holds the lock.
    Granted {
        /// The fence of this grant.
        fence: Fence,
        /// How long the client waited, in microseconds. The lock's ttl starts after that.
        waited_us: u64,
        /// The granted key, if the client waited for any of several.
        key: Option<KeyBytes>,
    },
    /// The client no longer waits, and does not hold the lock.
    Refused,
    /// The client no longer waits, and does not hold the lock, for this reason.
    Failed(CommandError),
}
