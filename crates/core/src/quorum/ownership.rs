use std::time::Duration;

use super::{ExtensionVerdict, Moment, Validity, longest_validity};
use crate::Ttl;

/// A lock is extended when the ttl divided by this has passed.
const EXTENSIONS_PER_TTL: u32 = 3;
/// How many extensions are tried per ttl while the last one is unconfirmed.
const TRIES_PER_TTL_IN_DOUBT: u32 = 10;

/// The state of a lock as its holder knows it, from the grant to the end.
///
/// The lock is held until its [`Validity`] ends. An extension that a majority confirms prolongs the
/// validity, at most to the end of `max_hold`. A lock that has ended stays ended, whatever answers
/// arrive later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnershipState {
    validity: Validity,
    /// Ends after `max_hold`, however often the lock is extended.
    at_most: Validity,
    /// Whether a majority confirmed the last extension; true before the first one.
    confirmed: bool,
    end: Option<LossReason>,
}

/// The ownership of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The lock is certainly held for this long.
    Held(Duration),
    /// The lock is certainly held for this long. No majority confirmed the last extension.
    Uncertain(Duration),
    /// Another client may hold the lock.
    Lost(LossReason),
}

/// Why a lock is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// The nodes that reported that the token does not hold the lock rule out a majority.
    NotHeld,
    /// The validity ended before a majority confirmed an extension.
    Expired,
    /// The lock was held for `max_hold`.
    HeldTooLong,
    /// The holder released or detached the lock.
    GivenUp,
}

impl OwnershipState {
    /// Starts with a lock that was granted at `now` and may be held for `max_hold`.
    pub fn new(validity: Validity, now: Moment, max_hold: Duration) -> Self {
        let at_most = Validity::lasting(now, max_hold);
        Self { validity, at_most, confirmed: true, end: None }
    }

    /// The ownership of the lock at `now`.
    pub fn ownership(&self, now: Moment) -> Ownership {
        if let Some(end) = self.end {
            return Ownership::Lost(end);
        }
        let Some(allowed) = self.at_most.remaining(now) else {
            return Ownership::Lost(LossReason::HeldTooLong);
        };
        let Some(left) = self.validity.remaining(now) else {
            return Ownership::Lost(LossReason::Expired);
        };
        let left = left.min(allowed);
        if self.confirmed { Ownership::Held(left) } else { Ownership::Uncertain(left) }
    }

    /// How much longer the lock is certainly held; `None` once another client may hold it.
    pub fn remaining(&self, now: Moment) -> Option<Duration> {
        match self.ownership(now) {
            Ownership::Held(left) | Ownership::Uncertain(left) => Some(left),
            Ownership::Lost(_) => None,
        }
    }

    /// Ends the lock because its holder gives it up.
    pub fn give_up(&mut self) {
        self.end = Some(LossReason::GivenUp);
    }

    /// Whether the holder gave the lock up.
    pub fn was_given_up(&self) -> bool {
        self.end == Some(LossReason::GivenUp)
    }

    /// Applies the verdict of an extension round.
    pub fn settle(&mut self, verdict: ExtensionVerdict, now: Moment) {
        // A lock that has ended stays ended: another client may have acquired it since.
        if let Ownership::Lost(end) = self.ownership(now) {
            self.end = Some(end);
            return;
        }
        match verdict {
            ExtensionVerdict::Extended(validity) => {
                self.validity = self.validity.later(validity, now);
                self.confirmed = true;
            }
            ExtensionVerdict::Uncertain => self.confirmed = false,
            ExtensionVerdict::Lost => self.end = Some(LossReason::NotHeld),
        }
    }

    /// Whether an extension can prolong the validity.
    pub fn is_extensible(&self, now: Moment) -> bool {
        self.end.is_none()
            && self
                .validity
                .remaining(now)
                .is_some_and(|left| Some(left) < self.at_most.remaining(now))
    }

    /// The time until the next extension is due; `None` if an extension gains nothing.
    ///
    /// It is due a third of the ttl after a confirmed extension, and sooner after an unconfirmed
    /// one.
    pub fn next_extension_in(&self, now: Moment, ttl: Ttl) -> Option<Duration> {
        if !self.is_extensible(now) {
            return None;
        }
        if !self.confirmed {
            return Some(ttl.duration() / TRIES_PER_TTL_IN_DOUBT);
        }
        let interval = ttl.duration() / EXTENSIONS_PER_TTL;
        let left_when_due = longest_validity(ttl).saturating_sub(interval);
        Some(self.validity.remaining(now)?.saturating_sub(left_when_due))
    }
}
