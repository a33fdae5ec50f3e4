/// A moment on a node's monotonic clock, which measures leases: microseconds since a fixed point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(u64);

impl Monotonic {
    /// The moment `us` microseconds after the clock's fixed point.
    pub const fn from_us(us: u64) -> Self {
        Self(us)
    }

    /// Microseconds after the clock's fixed point.
    pub const fn us(self) -> u64 {
        self.0
    }

    /// Returns the moment `us` microseconds later.
    #[must_use]
    pub const fn plus_us(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Microseconds since `earlier`; zero if that is not earlier.
    pub const fn us_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Milliseconds since `earlier`, rounded up; zero if that is not earlier.
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.us_since(earlier).div_ceil(1000)
    }
}

/// The two clocks of a node at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Now {
    /// The clock that decides when leases end. It never steps.
    pub monotonic: Monotonic,
    /// The wall clock in microseconds since 1970, for mirrors and fences. It ends no lease.
    pub wall_us: u64,
}

impl Now {
    /// The wall clock in milliseconds, the unit in which keys expire.
    pub const fn wall_ms(self) -> u64 {
        self.wall_us / 1000
    }

    /// The wall clock `us` microseconds from now, in milliseconds.
    pub(super) const fn wall_ms_after(self, us: u64) -> u64 {
        self.wall_us.saturating_add(us) / 1000
    }
}
