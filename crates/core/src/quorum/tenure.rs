use std::time::Duration;

use super::{ExtensionVerdict, Lifetime, Moment, reliable};
use crate::Ttl;

/// After a round that too few nodes confirmed, the next one is this part of the ttl later.
const TRIES_PER_TTL_IN_DOUBT: u32 = 10;

/// What a holder knows of its lock, from the grant to the end.
///
/// It is held until a deadline on the holder's own clocks. Extensions that a majority confirmed move that deadline, up to
/// the longest time that the lock is to be held at all. Once it has ended it stays so, whatever is answered later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tenure {
    lifetime: Lifetime,
    /// The time in which it may be held at all.
    at_most: Lifetime,
    /// Whether the last round of extends, if there was any, had a majority.
    confirmed: bool,
    end: Option<End>,
}

/// How things stand with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is certainly held for so long.
    Held(Duration),
    /// The same, but a majority did not confirm it when it was last asked.
    Uncertain(Duration),
    /// It may be another's.
    Lost(End),
}

/// Why a lock is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// A majority said that the token does not hold it.
    NotHeld,
    /// Its deadline came before a majority had confirmed an extension.
    Expired,
    /// It has been held for the longest time that it was to be held at all.
    HeldTooLong,
}

impl Tenure {
    /// Of a lock that was granted now, and is to be held for `max_hold` from now at most, however often it is extended.
    pub fn new(lifetime: Lifetime, now: Moment, max_hold: Duration) -> Self {
        let at_most = Lifetime::lasting(now, max_hold);
        Self { lifetime, at_most, confirmed: true, end: None }
    }

    /// How things stand.
    pub fn standing(&self, now: Moment) -> Standing {
        if let Some(end) = self.end {
            return Standing::Lost(end);
        }
        let (Some(allowed), Some(left)) = (self.at_most.remaining(now), self.lifetime.remaining(now)) else {
            let too_long = self.at_most.remaining(now).is_none();
            return Standing::Lost(if too_long { End::HeldTooLong } else { End::Expired });
        };
        let left = left.min(allowed);
        if self.confirmed { Standing::Held(left) } else { Standing::Uncertain(left) }
    }

    /// How much longer it is certainly held; `None` when it may be another's.
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        match self.standing(now) {
            Standing::Held(left) | Standing::Uncertain(left) => Some(left),
            Standing::Lost(_) => None,
        }
    }

    /// Takes down what a round of extends came to.
    pub fn settle(&mut self, verdict: ExtensionVerdict, now: Moment) {
        // What has ended stays so: others may have seen it end.
        if let Standing::Lost(end) = self.standing(now) {
            self.end = Some(end);
            return;
        }
        match verdict {
            ExtensionVerdict::Extended(lifetime) => {
                self.lifetime = self.lifetime.later(lifetime, now);
                self.confirmed = true;
            }
            ExtensionVerdict::Uncertain => self.confirmed = false,
            ExtensionVerdict::Lost => self.end = Some(End::NotHeld),
        }
    }

    /// Whether an extension could make it last longer.
    pub fn is_extensible(&self, now: Moment) -> bool {
        self.end.is_none()
            && self.lifetime.remaining(now).is_some_and(|left| Some(left) < self.at_most.remaining(now))
    }

    /// When it is to be extended: a third of the ttl after the last extension that was confirmed, or sooner when one was
    /// not. `None` when there is nothing to be gained.
    pub fn extend_in(&self, now: Moment, ttl: Ttl) -> Option<Duration> {
        if !self.is_extensible(now) {
            return None;
        }
        if !self.confirmed {
            return Some(ttl.duration() / TRIES_PER_TTL_IN_DOUBT);
        }
        let two_thirds = reliable(ttl).saturating_sub(ttl.duration() / 3);
        Some(self.lifetime.remaining(now)?.saturating_sub(two_thirds))
    }
}
