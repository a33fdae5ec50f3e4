use std::fmt;
use std::str::FromStr;

/// A fencing token: an integer that only grows for a key, so that the resource behind a lock can reject whoever
/// comes late. Below 2^53, so that every language reads it as an exact number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

/// Why something is no [`Fence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fence is a whole number between 1 and {}", Fence::MAX.0)]
pub struct InvalidFence;

impl Fence {
    /// The largest fence there is: 2^53 − 1.
    pub const MAX: Self = Self((1 << 53) - 1);
    /// Below every fence that a node gives.
    pub const ZERO: Self = Self(0);

    /// `None` unless `value` is between 1 and [`Fence::MAX`].
    pub const fn new(value: u64) -> Option<Self> {
        if value == 0 || value > Self::MAX.0 { None } else { Some(Self(value)) }
    }

    /// The fence of a wall clock, in microseconds since 1970, kept far enough below [`Fence::MAX`] that a clock which
    /// is centuries wrong leaves room to count on.
    pub const fn of_wall_us(wall_us: u64) -> Self {
        const CEILING: u64 = Fence::MAX.0 - (1 << 50);
        Self(if wall_us > CEILING { CEILING } else { wall_us })
    }

    /// As a plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next larger fence.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(if self.0 < Self::MAX.0 { self.0 + 1 } else { self.0 })
    }

    /// This fence and `more` above it, at most [`Fence::MAX`].
    #[must_use]
    pub const fn saturating_add(self, more: u64) -> Self {
        let sum = self.0.saturating_add(more);
        Self(if sum > Self::MAX.0 { Self::MAX.0 } else { sum })
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads what [`Fence`] prints: how it comes out of an environment variable or a header.
impl FromStr for Fence {
    type Err = InvalidFence;

    fn from_str(text: &str) -> Result<Self, InvalidFence> {
        text.parse().ok().and_then(Self::new).ok_or(InvalidFence)
    }
}
