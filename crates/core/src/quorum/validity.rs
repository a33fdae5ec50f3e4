use std::time::Duration;

use crate::Ttl;
use crate::mutants::{ClientRule, is_broken};

/// The measured time divided by this does not count as validity: two clocks may drift apart by 1 %.
const DRIFT_PART: u32 = 100;
/// Does not count as validity either: the granularity of the servers' expiry.
const DRIFT_MIN: Duration = Duration::from_millis(2);

/// The part of a measured time that does not count as validity, as in the description of Redlock: a
/// hundredth of it and 2 ms.
pub fn drift(measured: Duration) -> Duration {
    if is_broken(ClientRule::NoDrift) {
        return Duration::ZERO;
    }
    measured / DRIFT_PART + DRIFT_MIN
}

/// The longest validity of a lock of `ttl`: zero if drift leaves nothing.
pub fn longest_validity(ttl: Ttl) -> Duration {
    ttl.duration().saturating_sub(drift(ttl.duration()))
}

/// The time in which a lock is certainly held. It begins before the client sends the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Validity {
    begins: Moment,
    lasts: Duration,
}

impl Validity {
    /// The validity of a lock of `ttl` requested at `sent`; `None` if drift leaves nothing.
    pub fn new(sent: Moment, ttl: Ttl) -> Option<Self> {
        Self::after_wait(sent, Duration::ZERO, ttl)
    }

    /// The validity of a lock that a node granted after a wait of `waited` by its own clock; `None`
    /// if drift leaves nothing.
    pub fn after_wait(sent: Moment, waited: Duration, ttl: Ttl) -> Option<Self> {
        let measured = ttl.duration().checked_add(waited)?;
        let lasts = measured.checked_sub(drift(measured))?;
        (!lasts.is_zero()).then_some(Self { begins: sent, lasts })
    }

    /// A validity that begins at `begins` and lasts for `lasts`.
    pub(super) fn lasting(begins: Moment, lasts: Duration) -> Self {
        Self { begins, lasts }
    }

    /// The time that is left, never zero; `None` once the validity is over.
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        self.lasts.checked_sub(now.since(self.begins)).filter(|left| !left.is_zero())
    }

    /// Returns the validity that ends later, as seen at `now`.
    #[must_use]
    pub fn later(self, other: Self, now: Moment) -> Self {
        if other.remaining(now) > self.remaining(now) { other } else { self }
    }
}

/// A moment on the two clocks of a client. Each clock counts from a fixed point of its own.
///
/// One clock does not suffice. The clock that counts the time in which the machine sleeps may be
/// slewed, and the clock that is never slewed stops during sleep. Elapsed time is the larger of the
/// two measurements, so a holder reports a lock lost too early rather than too late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moment {
    /// `CLOCK_BOOTTIME`, which counts the time in which the machine sleeps.
    pub boot: Duration,
    /// `CLOCK_MONOTONIC_RAW`, which is never slewed.
    pub raw: Duration,
}

impl Moment {
    /// The time that has passed since `earlier`.
    pub fn since(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot).max(self.raw.saturating_sub(earlier.raw))
    }

    /// Returns the moment `by` later on both clocks.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self { boot: self.boot.saturating_add(by), raw: self.raw.saturating_add(by) }
    }

    /// The time that is left until `later`: zero once one of the clocks has reached it.
    pub fn until(self, later: Self) -> Duration {
        later.boot.saturating_sub(self.boot).min(later.raw.saturating_sub(self.raw))
    }

    /// Whether at least one of the clocks has reached `deadline`.
    pub fn has_reached(self, deadline: Self) -> bool {
        self.until(deadline).is_zero()
    }

    /// Returns a deadline that is reached as soon as one of two deadlines is reached.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        Self { boot: self.boot.min(other.boot), raw: self.raw.min(other.raw) }
    }

    /// Returns a deadline that is not reached before both deadlines are reached.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        Self { boot: self.boot.max(other.boot), raw: self.raw.max(other.raw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_set_before_the_machine_slept_is_not_forgotten() {
        let before = Moment { boot: Duration::from_secs(110), raw: Duration::from_secs(110) };
        // The machine has slept for 1000 s.
        let after = Moment { boot: Duration::from_secs(1106), raw: Duration::from_secs(106) };
        let now = Moment { boot: Duration::from_secs(1101), raw: Duration::from_secs(101) };
        assert!(now.has_reached(before) && !now.has_reached(after));
        assert!(now.has_reached(before.earlier(after)) && now.has_reached(after.earlier(before)));
        assert!(!now.has_reached(before.later(after)));
    }
}
