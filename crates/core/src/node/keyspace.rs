//! What a node needs of its server.

use super::{BlockedId, Change, Listeners, ServerEvent};

/// The keys of a server, and all other effects of a node on it.
///
/// The module implements this over the server's API; tests and simulators implement it in memory.
/// Calls apply to the database of the last key that was opened. An implementation decides nothing.
pub trait Keyspace {
    /// A key or a token in the server's own type of string: an argument of a command, or made by
    /// [`name`](Self::name).
    type Name: AsRef<[u8]>;
    /// An open key. The node never opens a key that is already open.
    type Entry;

    /// Makes a name from bytes that the node stores.
    fn name(&mut self, bytes: &[u8]) -> Self::Name;

    /// Returns a random value that no client knows, for the mirror of a shared or a revoked lock.
    fn random_value(&mut self) -> Self::Name;

    /// Opens a key. A key that has expired counts as missing. A master that is not paused removes
    /// it first, and reports that as an event.
    fn open(&mut self, db: u32, key: &Self::Name, access: Access) -> Self::Entry;

    /// The type of the value under the key.
    fn kind(&self, entry: &Self::Entry) -> Kind;

    /// Whether the key holds a string with exactly this value.
    fn holds(&self, entry: &Self::Entry, value: &[u8]) -> bool;

    /// When the key expires, in milliseconds of the wall clock; `None` if it does not.
    fn expires_at_ms(&self, entry: &Self::Entry) -> Option<u64>;

    /// Writes a string with an expiry. If the server refuses the string or the expiry, the key is
    /// deleted.
    ///
    /// # Errors
    /// If the server refuses the write.
    fn set(
        &mut self,
        entry: &mut Self::Entry,
        value: &Self::Name,
        expires_at_ms: u64,
    ) -> Result<(), WriteRefused>;

    /// Changes when the string expires.
    ///
    /// # Errors
    /// If the server refuses the write.
    fn expire(&mut self, entry: &mut Self::Entry, expires_at_ms: u64) -> Result<(), WriteRefused>;

    /// Deletes the key.
    fn delete(&mut self, entry: &mut Self::Entry);

    /// Sends a change to replicas and to the append-only file.
    fn propagate(&mut self, key: &Self::Name, change: Change<'_, Self::Name>);

    /// Counts a change that is not propagated, for the server's save points.
    fn count_change(&mut self);

    /// Returns the listeners that the server reports. Takes several microseconds.
    fn listeners(&mut self) -> Listeners;

    /// Invalidates WATCH and client-side caches of the key.
    fn invalidate(&mut self, key: &Self::Name);

    /// Sends the keyspace events of a change.
    fn notify(&mut self, key: &Self::Name, change: Change<'_, Self::Name>);

    /// Whether the server publishes keyspace events of any kind.
    fn publishes_events(&self) -> bool;

    /// Whether the client of this command may be blocked: not in MULTI, and not in a script.
    fn may_block(&self) -> bool;

    /// Blocks the client of this command; `None` if the server refuses.
    ///
    /// The id names the client until the client is answered or gone.
    fn block(&mut self) -> Option<BlockedId>;

    /// Unblocks a client whose [answer](super::Node::answer) is ready.
    fn wake(&mut self, blocked_id: BlockedId);

    /// The next event that arrived while the node was busy.
    fn next_event(&mut self) -> Option<ServerEvent>;

    /// Whether the server must not write now: clients are paused, or it fails over to a replica.
    fn writes_are_paused(&self) -> bool;

    /// Whether the server has reached its memory limit.
    fn memory_is_short(&self) -> bool;
}

/// The purpose of opening a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read it.
    Read,
    /// To read and write it.
    Write,
}

/// The type of the value under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The key does not exist.
    Missing,
    /// A string: a mirror, or a foreign string.
    Text,
    /// Any other type.
    Other,
}

/// The server refused a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server refused the write")]
pub struct WriteRefused;
