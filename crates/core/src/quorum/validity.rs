use std::time::Duration;

use super::Moment;
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
