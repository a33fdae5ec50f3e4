use std::fmt;
use std::str::FromStr;

/// A fencing token: an integer below 2^53 that grows with the locks of a key. Only the fences of
/// locks that are shared at the same time may be equal or in any order.
///
/// The protected resource rejects a client whose fence is below the largest that it has seen.
/// Every language represents an integer below 2^53 exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

/// Why a value is not a valid [`Fence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fence is a whole number between 1 and {}", Fence::MAX.0)]
pub struct InvalidFence;

impl Fence {
    /// The largest fence: 2^53 − 1.
    pub const MAX: Self = Self((1 << 53) - 1);
    /// Smaller than every fence that a node grants.
    pub const ZERO: Self = Self(0);

    /// Returns the fence `value`; `None` unless it is between 1 and [`Fence::MAX`].
    pub const fn new(value: u64) -> Option<Self> {
        if value == 0 || value > Self::MAX.0 { None } else { Some(Self(value)) }
    }

    /// The fence that stands for a time of the wall clock, in microseconds since 1970.
    ///
    /// The result is at most [`Fence::MAX`] − 2^50, so that a node can grant larger fences even if
    /// its wall clock is centuries ahead.
    pub const fn of_wall_us(wall_us: u64) -> Self {
        const CEILING: u64 = Fence::MAX.0 - (1 << 50);
        Self(if wall_us > CEILING { CEILING } else { wall_us })
    }

    /// The fence as an integer.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next larger fence, at most [`Fence::MAX`].
    #[must_use]
    pub const fn next(self) -> Self {
        Self(if self.0 < Self::MAX.0 { self.0 + 1 } else { self.0 })
    }

    /// This fence plus `more`, at most [`Fence::MAX`].
    #[must_use]
    pub const fn saturating_add(self, more: u64) -> Self {
        let sum = self.0.saturating_add(more);
        Self(if sum > Self::MAX.0 { Self::MAX.0 } else { sum })
    }
}

/// For the fence as a number of a protocol or a file.
///
/// ```
/// # use quorlock_core::Fence;
/// assert_eq!(u64::from(Fence::of_wall_us(7)), 7);
/// ```
impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

/// For the type `BIGINT` of SQL and for the replies of a server, which have a sign.
impl From<Fence> for i64 {
    fn from(fence: Fence) -> Self {
        fence.0.cast_signed()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parses the text that [`Fence`] prints, for example from an environment variable or a header.
impl FromStr for Fence {
    type Err = InvalidFence;

    fn from_str(text: &str) -> Result<Self, InvalidFence> {
        text.parse().ok().and_then(Self::new).ok_or(InvalidFence)
    }
}
