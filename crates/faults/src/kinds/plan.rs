use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, seq};

use super::{MASTERS, MAX_TTL, NETWORKS};
use crate::harness::{Accident, Disk, Incident};

/// Longest time between the starts of two incidents. Incidents may overlap.
const APART_MAX: Duration = Duration::from_millis(800);

/// Draws the next incident, and the time from the last one to it.
pub(super) fn next_incident(rng: &mut StdRng) -> (Duration, Incident) {
    let apart = rng.random_range(Duration::ZERO..=APART_MAX);
    let network = rng.random_range(0..NETWORKS);
    let lasts = rng.random_range(MAX_TTL / 20..=MAX_TTL);
    let is_down = rng.random_bool(0.25);
    let down = if is_down { lasts / 2 } else { Duration::ZERO };
    let disk = *[Disk::Kept, Disk::Emptied, Disk::Emptied].choose(rng).unwrap_or(&Disk::Kept);
    let (accident, masters, lasts) = match rng.random_range(0..100) {
        // Mostly restarted at once, so that what was granted before is still held after.
        0..20 => (Accident::Kill(disk), some(rng, 1, 1), down),
        // So many at once that no majority remembers: abstention covers that too.
        20..35 => (Accident::Kill(disk), some(rng, MASTERS / 2 + 1, MASTERS), down),
        35..45 => (Accident::Shutdown, some(rng, 1, 1), down),
        45..70 => (Accident::Pause, some(rng, 1, MASTERS / 2), lasts / 2),
        _ => (Accident::Cut, some(rng, 1, 2), lasts),
    };
    (apart, Incident { accident, masters, network, lasts })
}

/// Draws different masters, at least `min` and at most `max`.
fn some(rng: &mut StdRng, min: usize, max: usize) -> Vec<usize> {
    let amount = rng.random_range(min..=max);
    seq::index::sample(rng, MASTERS, amount).into_vec()
}
