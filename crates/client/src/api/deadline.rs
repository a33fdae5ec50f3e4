use std::fmt;
use std::time::{Duration, Instant};

use quorlock_core::quorum::Moment;

use crate::clock;

/// Whether a lock is held, as far as its holder knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The lock is certainly held until this deadline.
    Held(Deadline),
    /// The lock is held until this deadline, but no majority confirmed the last extension. Unless a
    /// later extension succeeds, the lock is lost at the deadline.
    Uncertain(Deadline),
    /// The lock is not held any more, and another client may hold it. A lost lock stays lost.
    Lost,
}

/// When a lock ends unless it is extended, by this machine's own clocks. Time in suspend counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    measured_at: Moment,
    left: Duration,
}

impl Ownership {
    /// The deadline; `None` if the lock is lost.
    pub fn until(self) -> Option<Deadline> {
        match self {
            Self::Held(until) | Self::Uncertain(until) => Some(until),
            Self::Lost => None,
        }
    }

    /// Whether the lock is lost, released or detached.
    pub fn is_lost(self) -> bool {
        self == Self::Lost
    }
}

impl Deadline {
    pub(crate) fn new(measured_at: Moment, left: Duration) -> Self {
        Self { measured_at, left }
    }

    /// How much time is left; zero once the deadline has passed.
    pub fn remaining(self) -> Duration {
        self.left.saturating_sub(clock::now().since(self.measured_at))
    }

    /// The deadline as an instant for timers.
    ///
    /// The clock of timers stops while the machine sleeps, so a timer may fire after the deadline.
    pub fn instant(self) -> Instant {
        Instant::now() + self.remaining()
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {:?}", self.remaining())
    }
}
