use std::time::Duration;

/// A moment on a client's two clocks, each since a fixed point of its own.
///
/// No single clock will do: one that counts the time a machine sleeps may be slewed, and one that is
/// never slewed stops while it sleeps. Time that has passed is what the faster of the two says, so
/// that a holder errs towards "lost".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moment {
    /// A clock that goes on while the machine sleeps (`CLOCK_BOOTTIME`).
    pub boot: Duration,
    /// A clock that nobody slews (`CLOCK_MONOTONIC_RAW`).
    pub raw: Duration,
}

impl Moment {
    /// How much time passed since `earlier`.
    pub fn since(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot).max(self.raw.saturating_sub(earlier.raw))
    }

    /// This moment, `by` later on both clocks.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self { boot: self.boot.saturating_add(by), raw: self.raw.saturating_add(by) }
    }

    /// How much time is left until `later`: zero once either clock has reached it.
    pub fn until(self, later: Self) -> Duration {
        later.boot.saturating_sub(self.boot).min(later.raw.saturating_sub(self.raw))
    }

    /// Whether either clock has reached `deadline`.
    pub fn has_reached(self, deadline: Self) -> bool {
        self.until(deadline).is_zero()
    }

    /// The one of two deadlines that comes first.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        if (other.raw, other.boot) < (self.raw, self.boot) { other } else { self }
    }

    /// The one of two deadlines that comes last.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        if (other.raw, other.boot) < (self.raw, self.boot) { self } else { other }
    }
}
