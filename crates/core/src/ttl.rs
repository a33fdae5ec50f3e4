use std::time::Duration;

/// The requested duration of a lock: a positive number of whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u64);

/// Why a number of milliseconds is not a valid [`Ttl`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ttl must be between 1 and {max_ms} milliseconds")]
pub struct TtlError {
    /// The largest valid ttl, in milliseconds.
    pub max_ms: u64,
}

impl Ttl {
    /// The largest ttl that any setting allows, in milliseconds: a week.
    pub const MAX_MS: u64 = 7 * 24 * 60 * 60 * 1000;
    /// The ttl of a lock for which a program chooses none: 10 s.
    pub const DEFAULT: Self = Self(10_000);

    /// Returns a ttl of `ms` milliseconds.
    ///
    /// # Errors
    /// If `ms` is not between 1 and [`Ttl::MAX_MS`].
    pub const fn from_ms(ms: u64) -> Result<Self, TtlError> {
        Self::from_ms_up_to(ms, Self::MAX_MS)
    }

    /// Returns a ttl of `ms` milliseconds.
    ///
    /// # Errors
    /// If `ms` is not between 1 and `max_ms`.
    pub const fn from_ms_up_to(ms: u64, max_ms: u64) -> Result<Self, TtlError> {
        if ms == 0 || ms > max_ms { Err(TtlError { max_ms }) } else { Ok(Self(ms)) }
    }

    /// The ttl in milliseconds.
    pub const fn ms(self) -> u64 {
        self.0
    }

    /// The ttl in microseconds.
    pub const fn us(self) -> u64 {
        self.0 * 1000
    }

    /// The ttl as a [`Duration`].
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}
