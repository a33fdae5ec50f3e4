use quorlock_core::node::{Lend, Mirror, Seen};

/// A key or a token, short enough to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bytes<const N: usize>(pub(crate) [u8; N]);

/// What a server sees under a key: nothing, or a token.
#[derive(Clone, Copy)]
pub(crate) struct Seeing<const N: usize>(pub(crate) Option<Bytes<N>>);

impl<const N: usize> AsRef<[u8]> for Bytes<N> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> Lend for Bytes<N> {
    type Kept = Self;

    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn keep(&self) -> Self {
        *self
    }
}

impl<const N: usize> Mirror for Seeing<N> {
    fn seen(&self) -> Seen {
        if self.0.is_some() { Seen::Text } else { Seen::Missing }
    }

    fn holds(&self, token: &[u8]) -> bool {
        self.0.is_some_and(|held| held.as_ref() == token)
    }

    fn expires_at_ms(&self) -> Option<u64> {
        // No key of these servers ever lacks an expiry, and none is ever expired by them.
        self.0.map(|_| u64::MAX)
    }
}
