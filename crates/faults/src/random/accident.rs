use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, seq};

use super::cluster::{GROUPS, MASTERS, MAX_TTL};
use quorlock_testkit::Direction;

/// What may happen. Each names the masters that it happens to.
#[derive(Clone, Debug)]
pub(super) enum Accident {
    /// For a while.
    ClockStep { masters: Vec<usize>, by_s: i64, lasts: Duration },
    /// Memory is short until the keys of locks are evicted.
    Eviction { master: usize },
    /// Killed, and started again after a while.
    Restart { masters: Vec<usize>, disk: Disk, down: Duration },
    /// Stands still for a while.
    Pause { masters: Vec<usize>, lasts: Duration },
    /// Loads its data again.
    Reload { master: usize },
    /// Some clients reach a master late.
    Delay { master: usize, group: usize, direction: Direction, by: Duration, lasts: Duration },
    /// Some clients do not reach a master, or hear nothing of it, for a while, and then all at once.
    Hold { master: usize, group: usize, direction: Direction, lasts: Duration },
}

/// What is found on the disk after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    /// What the process had written.
    Kept,
    /// What it had synced.
    Cut,
    Emptied,
}

/// Until the next accident begins; they go on beside each other.
const APART_MAX: Duration = Duration::from_millis(400);

/// Masters whose clocks may be very wrong: fewer than half of them, since fences need a majority whose clocks agree to
/// `lock.max-clock-skew`.
const BAD_CLOCKS: usize = MASTERS / 2;

impl Accident {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::ClockStep { by_s, .. } if *by_s > 0 => "wall clock stepped ahead",
            Self::ClockStep { .. } => "wall clock stepped back",
            Self::Eviction { .. } => "eviction",
            Self::Restart { disk: Disk::Kept, .. } => "kill -9, restart with the disk",
            Self::Restart { disk: Disk::Cut, .. } => "power cut, restart",
            Self::Restart { disk: Disk::Emptied, .. } => "kill -9, restart on an empty disk",
            Self::Pause { .. } => "SIGSTOP, SIGCONT",
            Self::Reload { .. } => "DEBUG RELOAD",
            Self::Delay { .. } => "late packets",
            Self::Hold { .. } => "held packets",
        }
    }

    /// How many masters it happens to.
    pub(super) fn times(&self) -> usize {
        match self {
            Self::ClockStep { masters, .. } | Self::Restart { masters, .. } | Self::Pause { masters, .. } => {
                masters.len()
            }
            Self::Eviction { .. } | Self::Reload { .. } | Self::Delay { .. } | Self::Hold { .. } => 1,
        }
    }

    /// How long after the last, and what.
    pub(super) fn next(rng: &mut StdRng) -> (Duration, Self) {
        let apart = rng.random_range(Duration::ZERO..=APART_MAX);
        let master = rng.random_range(0..MASTERS);
        let group = rng.random_range(0..GROUPS);
        let direction = if rng.random_bool(0.5) { Direction::ToServer } else { Direction::ToClient };
        let lasts = rng.random_range(MAX_TTL / 20..=MAX_TTL);
        let accident = match rng.random_range(0..100) {
            0..6 => Self::ClockStep {
                masters: vec![rng.random_range(0..BAD_CLOCKS)],
                by_s: *[60, 3600, -60, -3600].choose(rng).unwrap_or(&60),
                lasts,
            },
            6..16 => {
                let by_s = *[3, -3].choose(rng).unwrap_or(&3);
                Self::ClockStep { masters: some(rng, 1, MASTERS), by_s, lasts }
            }
            16..30 => Self::Eviction { master },
            30..36 => Self::restart(rng, vec![master]),
            // So many at once that no majority remembers: abstaining is for that too.
            36..42 => {
                let masters = some(rng, MASTERS / 2 + 1, MASTERS);
                Self::restart(rng, masters)
            }
            42..54 => Self::Pause { masters: some(rng, 1, MASTERS / 2), lasts: lasts / 2 },
            54..60 => Self::Reload { master },
            60..80 => {
                let by = rng.random_range(Duration::from_millis(1)..=Duration::from_millis(80));
                Self::Delay { master, group, direction, by, lasts }
            }
            _ => Self::Hold { master, group, direction, lasts },
        };
        (apart, accident)
    }

    fn restart(rng: &mut StdRng, masters: Vec<usize>) -> Self {
        let disk = *[Disk::Kept, Disk::Cut, Disk::Cut, Disk::Emptied].choose(rng).unwrap_or(&Disk::Cut);
        // Mostly at once, so that what was granted before is still held after.
        let down =
            if rng.random_bool(0.25) { rng.random_range(MAX_TTL / 20..=MAX_TTL / 2) } else { Duration::ZERO };
        Self::Restart { masters, disk, down }
    }
}

/// That many different masters.
fn some(rng: &mut StdRng, min: usize, max: usize) -> Vec<usize> {
    let amount = rng.random_range(min..=max);
    seq::index::sample(rng, MASTERS, amount).into_vec()
}
