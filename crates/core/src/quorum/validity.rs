use std::time::Duration;

use super::Moment;
use crate::Ttl;
use crate::client::mutants::{Mutant, is_broken};

/// The part of a ttl that does not count as validity, as the description of Redlock says.
///
/// Two clocks may drift apart by 1 % of the time. 2 ms cover the granularity of the servers'
/// expiry.
pub fn drift(measured: Duration) -> Duration {
    if is_broken(Mutant::NoDrift) {
        return Duration::ZERO;
    }
    measured / 100 + Duration::from_millis(2)
}

/// The longest validity of a lock of `ttl`: zero if drift leaves nothing.
pub fn reliable(ttl: Ttl) -> Duration {
    ttl.duration().saturating_sub(drift(ttl.duration()))
}

/// How long a lock is certainly held, from before the first byte of its request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Validity {
    begins: Moment,
    lasts: Duration,
}

impl Validity {
    /// The validity of a lock of `ttl` requested at `sent`; `None` if drift takes all of it.
    pub fn new(sent: Moment, ttl: Ttl) -> Option<Self> {
        Self::after_wait(sent, Duration::ZERO, ttl)
    }

    /// The same for a grant after a wait of `waited`, by the node's clock.
    pub fn after_wait(sent: Moment, waited: Duration, ttl: Ttl) -> Option<Self> {
        let measured = ttl.duration().checked_add(waited)?;
        let lasts = measured.checked_sub(drift(measured))?;
        (!lasts.is_zero()).then_some(Self { begins: sent, lasts })
    }

    /// A validity that begins at `begins` and lasts for `lasts`.
    pub(super) fn lasting(begins: Moment, lasts: Duration) -> Self {
        Self { begins, lasts }
    }

    /// The time that is left; `None` once it is over. A validity is always positive.
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        self.lasts.checked_sub(now.since(self.begins)).filter(|left| !left.is_zero())
    }

    /// The validity of a lock that is known to be lost: none.
    #[must_use]
    pub fn over(self) -> Self {
        Self { lasts: Duration::ZERO, ..self }
    }

    /// Returns the validity that ends later, as seen at `now`.
    #[must_use]
    pub fn later(self, other: Self, now: Moment) -> Self {
        if other.remaining(now) > self.remaining(now) { other } else { self }
    }
}
