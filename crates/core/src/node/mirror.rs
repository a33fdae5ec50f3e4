/// What the keyspace holds under a lock's key.
///
/// A lease is mirrored in an ordinary string whose value is the token. Decisions look at it through this trait, so that
/// no more of it is read than they need: most need no more than [`Mirror::seen`].
pub trait Mirror {
    /// What kind of thing is there.
    fn seen(&self) -> Seen;

    /// Whether a string is there with exactly this value.
    fn holds(&self, token: &[u8]) -> bool;

    /// When the string expires, in milliseconds of the wall clock; `None` when it does not.
    fn expires_at_ms(&self) -> Option<u64>;
}

/// The kind of thing under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    /// No key.
    Missing,
    /// A string: our mirror, or somebody else's.
    Text,
    /// Anything that is not a string.
    OtherType,
}
