use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::{MASTERS, MAX_TTL, NETWORKS};
use crate::harness::{Accident, Disk, Incident, some_masters};

/// Longest time between the starts of two incidents. Incidents may overlap.
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// Draws the pause before an incident, and the incident.
pub(super) fn next_incident(rng: &mut StdRng) -> (Duration, Incident) {
    let pause = rng.random_range(Duration::ZERO..=PAUSE_MAX);
    let network = rng.random_range(0..NETWORKS);
    let duration = rng.random_range(MAX_TTL / 20..=MAX_TTL);
    let stays_down = rng.random_bool(0.25);
    let down = if stays_down { duration / 2 } else { Duration::ZERO };
    let disk = *[Disk::Kept, Disk::Emptied, Disk::Emptied].choose(rng).unwrap_or(&Disk::Kept);
    let (accident, masters, duration) = match rng.random_range(0..100) {
        // In most cases the master restarts at once, while clients still hold locks from before.
        0..20 => (Accident::Kill(disk), some_masters(rng, MASTERS, 1..=1), down),
        // Kills a majority at the same time, so that too few masters may remember the locks.
        // Abstention must protect the locks even then.
        20..35 => {
            (Accident::Kill(disk), some_masters(rng, MASTERS, MASTERS / 2 + 1..=MASTERS), down)
        }
        35..45 => (Accident::Shutdown, some_masters(rng, MASTERS, 1..=1), down),
        45..70 => (Accident::Pause, some_masters(rng, MASTERS, 1..=MASTERS / 2), duration / 2),
        _ => (Accident::Cut, some_masters(rng, MASTERS, 1..=2), duration),
    };
    (pause, Incident { accident, masters, network, duration })
}
