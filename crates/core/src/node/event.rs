/// What happened to the key of a lease from outside: not by a command of the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The server removed the key because its expiry had come, by the wall clock.
    Expired,
    /// The server removed the key to save memory.
    Evicted,
    /// Somebody removed, replaced or renamed the key by a command.
    Removed,
    /// Somebody put something under the key by a command (the target of a RENAME, RESTORE, COPY or MOVE).
    Replaced,
}
