use std::fmt;
use std::time::{Duration, Instant};

use quorlock_core::quorum::Moment;

use crate::clock;

/// Whether a lock is held, as far as its holder can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The lock is certainly held until then.
    Held(Deadline),
    /// The same; but when the nodes were last asked, no majority of them confirmed it. Unless they do so again before the
    /// deadline, the lock is lost then.
    Uncertain(Deadline),
    /// The lock is not held any more, and may be another's. It stays so.
    Lost,
}

/// The end of a lock if nothing is done, on this machine's own clocks. The time that the machine sleeps counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    seen: Moment,
    left: Duration,
}

impl Ownership {
    /// The deadline, as long as the lock is held.
    pub fn until(self) -> Option<Deadline> {
        match self {
            Self::Held(until) | Self::Uncertain(until) => Some(until),
            Self::Lost => None,
        }
    }

    /// Whether the lock is lost.
    pub fn is_lost(self) -> bool {
        self == Self::Lost
    }
}

impl Deadline {
    pub(crate) fn new(seen: Moment, left: Duration) -> Self {
        Self { seen, left }
    }

    /// How much time is left until then; zero once it has passed.
    pub fn remaining(self) -> Duration {
        self.left.saturating_sub(clock::now().since(self.seen))
    }

    /// The same as an instant for timers: as far as this machine does not sleep in between, since those clocks stand still
    /// then.
    pub fn instant(self) -> Instant {
        Instant::now() + self.remaining()
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {:?}", self.remaining())
    }
}
