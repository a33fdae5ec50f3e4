use std::time::Duration;

use super::Moment;
use crate::Ttl;
use crate::client::mutants::{Mutant, is_broken};

/// How much less than its ttl a lock is relied upon: 1 % of the time that two clocks may have drifted apart in, and
/// 2 ms for the granularity of the servers' expiry. As the description of Redlock has it.
pub fn drift(measured: Duration) -> Duration {
    if is_broken(Mutant::NoDrift) {
        return Duration::ZERO;
    }
    measured / 100 + Duration::from_millis(2)
}

/// How long a lock of `ttl` can be relied upon at most: zero when drift eats it all.
pub fn reliable(ttl: Ttl) -> Duration {
    ttl.duration().saturating_sub(drift(ttl.duration()))
}

/// How long a lock is certainly held: for a time that begins before the first byte of its request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    begins: Moment,
    lasts: Duration,
}

impl Lifetime {
    /// The lifetime of a lock of `ttl` that was asked for at `sent`. `None` when nothing is left of the ttl after drift.
    pub fn new(sent: Moment, ttl: Ttl) -> Option<Self> {
        Self::after_wait(sent, Duration::ZERO, ttl)
    }

    /// The same for a lock that was granted after the node had made the request wait for `waited`, by the node's clock.
    pub fn after_wait(sent: Moment, waited: Duration, ttl: Ttl) -> Option<Self> {
        let measured = ttl.duration().checked_add(waited)?;
        let lasts = measured.checked_sub(drift(measured))?;
        (!lasts.is_zero()).then_some(Self { begins: sent, lasts })
    }

    /// A time that begins at `begins` and lasts for `lasts`.
    pub(super) fn lasting(begins: Moment, lasts: Duration) -> Self {
        Self { begins, lasts }
    }

    /// What is left of it: `None` once it is over, so a validity that is not positive cannot be had.
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        self.lasts.checked_sub(now.since(self.begins)).filter(|left| !left.is_zero())
    }

    /// The same lock, once it is known to be lost.
    #[must_use]
    pub fn over(self) -> Self {
        Self { lasts: Duration::ZERO, ..self }
    }

    /// The one of two that ends later, as seen at `now`.
    #[must_use]
    pub fn later(self, other: Self, now: Moment) -> Self {
        if other.remaining(now) > self.remaining(now) { other } else { self }
    }
}
