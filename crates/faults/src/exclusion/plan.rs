use std::time::Duration;

use quorlock_testkit::Direction;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::{MASTERS, MAX_TTL, NETWORKS};
use crate::harness::{Accident, Disk, Incident, some_masters};

/// Longest time between the starts of two incidents. Incidents may overlap.
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// Number of masters whose clocks may be very wrong: fewer than half, because fences need a
/// majority whose clocks agree within `lock.max-clock-skew`.
const BAD_CLOCKS: usize = MASTERS / 2;

/// Draws the pause before an incident, and the incident.
pub(super) fn next_incident(rng: &mut StdRng) -> (Duration, Incident) {
    let pause = rng.random_range(Duration::ZERO..=PAUSE_MAX);
    let master = rng.random_range(0..MASTERS);
    let network = rng.random_range(0..NETWORKS);
    let direction = if rng.random_bool(0.5) { Direction::ToServer } else { Direction::ToClient };
    let duration = rng.random_range(MAX_TTL / 20..=MAX_TTL);
    let incident = |accident, masters, duration| Incident { accident, masters, network, duration };
    let incident = match rng.random_range(0..100) {
        0..6 => {
            let masters = vec![rng.random_range(0..BAD_CLOCKS)];
            let by_s = *[60, 3600, -60, -3600].choose(rng).unwrap_or(&60);
            incident(Accident::ClockStep { by_s }, masters, duration)
        }
        6..16 => {
            let by_s = *[3, -3].choose(rng).unwrap_or(&3);
            let masters = some_masters(rng, MASTERS, 1..=MASTERS);
            incident(Accident::ClockStep { by_s }, masters, duration)
        }
        16..30 => incident(Accident::Eviction, vec![master], Duration::ZERO),
        30..36 => {
            let (accident, down) = draw_kill(rng);
            incident(accident, vec![master], down)
        }
        // Kills a majority at the same time, so that too few masters may remember the locks.
        // Abstention must protect the locks even then.
        36..42 => {
            let masters = some_masters(rng, MASTERS, MASTERS / 2 + 1..=MASTERS);
            let (accident, down) = draw_kill(rng);
            incident(accident, masters, down)
        }
        42..54 => {
            let masters = some_masters(rng, MASTERS, 1..=MASTERS / 2);
            incident(Accident::Pause, masters, duration / 2)
        }
        54..60 => incident(Accident::Reload, vec![master], Duration::ZERO),
        60..80 => {
            let by = rng.random_range(Duration::from_millis(1)..=Duration::from_millis(80));
            incident(Accident::Delay(direction, by), vec![master], duration)
        }
        _ => incident(Accident::Hold(direction), vec![master], duration),
    };
    (pause, incident)
}

/// Draws the kill, and how long masters are down.
fn draw_kill(rng: &mut StdRng) -> (Accident, Duration) {
    let disks = [Disk::Kept, Disk::Synced, Disk::Synced, Disk::Emptied];
    let disk = *disks.choose(rng).unwrap_or(&Disk::Synced);
    // Most masters restart at once, so that clients still hold locks from before the kill.
    let stays_down = rng.random_bool(0.25);
    let down =
        if stays_down { rng.random_range(MAX_TTL / 20..=MAX_TTL / 2) } else { Duration::ZERO };
    (Accident::Kill(disk), down)
}
