//! What a node needs of its server.

use super::{ServerEvent, Ticket};

/// The keys of a server, and whatever else the node does there.
///
/// The module implements this over the server's API; tests and simulators implement it in memory.
/// Calls concern the database of the last key that was opened. Nothing here decides anything.
pub trait Keyspace {
    /// A key or a token as the server has it: an argument of a command, or made from bytes.
    type Name: AsRef<[u8]>;
    /// An open key. A key is open once at a time.
    type Entry;

    /// Makes a name from bytes that the node kept.
    fn name(&mut self, bytes: &[u8]) -> Self::Name;

    /// A random value that no client knows, for the mirror of a shared lock.
    fn unknown(&mut self) -> Self::Name;

    /// Opens a key. If its expiry has come, the server removes it first, and an event says so.
    fn open(&mut self, db: u32, key: &Self::Name, access: Access) -> Self::Entry;

    /// The type of what is under the key.
    fn kind(&self, entry: &Self::Entry) -> Kind;

    /// Whether a string is there with exactly this value.
    fn holds(&self, entry: &Self::Entry, value: &[u8]) -> bool;

    /// When the key expires, in milliseconds of the wall clock; `None` when it does not.
    fn expires_at_ms(&self, entry: &Self::Entry) -> Option<u64>;

    /// Writes a string that expires. If the server refuses either part, the key is gone.
    ///
    /// # Errors
    /// When the server refuses.
    fn set(
        &mut self,
        entry: &mut Self::Entry,
        value: &Self::Name,
        expires_at_ms: u64,
    ) -> Result<(), WriteRefused>;

    /// Changes when the string expires.
    ///
    /// # Errors
    /// When the server refuses.
    fn expire(&mut self, entry: &mut Self::Entry, expires_at_ms: u64) -> Result<(), WriteRefused>;

    /// Deletes the key.
    fn delete(&mut self, entry: &mut Self::Entry);

    /// Sends a change to replicas and to the append-only file.
    fn propagate(&mut self, key: &Self::Name, change: Change<'_, Self::Name>);

    /// Counts a change that is not propagated, for the server's save points.
    fn count_change(&mut self);

    /// Who receives what is propagated, as the server's figures say. Costs several microseconds.
    fn listeners(&mut self) -> Listeners;

    /// Invalidates WATCH and the caches of clients that track the key. A client that asked not to
    /// be told of its own changes is told of those of another author.
    fn invalidate(&mut self, key: &Self::Name, author: Author);

    /// Sends the keyspace events of a change.
    fn notify(&mut self, key: &Self::Name, change: Change<'_, Self::Name>);

    /// Whether the server publishes keyspace events of any kind.
    fn publishes_events(&self) -> bool;

    /// Whether the client of this command may be blocked: not in MULTI, and not in scripts.
    fn may_block(&self) -> bool;

    /// Blocks the client of this command, unless the server refuses. The ticket names it until it
    /// is answered or gone.
    fn block(&mut self) -> Option<Ticket>;

    /// Unblocks a client, whose [answer](super::Node::answer) is ready.
    fn wake(&mut self, ticket: Ticket);

    /// The next event that came while the node was busy.
    fn next_event(&mut self) -> Option<ServerEvent>;

    /// Whether the server must not write now: its clients are paused, or it hands over to a
    /// replica.
    fn writes_are_paused(&self) -> bool;

    /// Whether the server has reached its memory limit.
    fn memory_is_short(&self) -> bool;
}

/// What a key is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To look at it.
    Read,
    /// To look at it and to write it.
    Write,
}

/// The type of what is under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No key.
    Missing,
    /// A string: a mirror, or a foreign string.
    Text,
    /// Anything that is not a string.
    Other,
}

/// A change of a key.
#[derive(Debug)]
pub enum Change<'a, N> {
    /// It was set to this value, with this expiry in milliseconds of the wall clock.
    Set {
        /// The value.
        value: &'a N,
        /// When it expires.
        expires_at_ms: u64,
    },
    /// Its expiry was set to this time, in milliseconds of the wall clock.
    Expire {
        /// When it expires.
        expires_at_ms: u64,
    },
    /// It was deleted.
    Delete,
    /// It was deleted because its time was over.
    Expired,
}

impl<N> Clone for Change<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for Change<'_, N> {}

/// Who changed a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// The client of the command.
    Client,
    /// A waiter that was granted the lock meanwhile, or the node itself.
    Other,
}

/// The server did not take a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server did not take the write")]
pub struct WriteRefused;

/// Who receives what a server propagates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a listener of its own")]
pub struct Listeners {
    /// An append-only file.
    pub append_only_file: bool,
    /// A backlog from which replicas may resume.
    pub backlog: bool,
    /// Replicas that are connected.
    pub replicas: bool,
    /// A forked child, whose snapshot may be for a replica or for an append-only file.
    pub child: bool,
}
