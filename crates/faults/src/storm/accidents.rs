use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use quorlock_testkit::{Accident, Direction, Disk, Fleet, FleetNode, Incident};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, index};
use rand::{RngExt as _, SeedableRng as _};

use super::clients::RunState;
use super::{CHECK_INTERVAL, Kind, MAX_TTL, NETWORKS, NODES, Plan};

/// Number of nodes whose clocks may be very wrong: fewer than half, because fences need a
/// majority whose clocks agree within `lock.max-clock-skew`.
const BAD_CLOCKS: usize = NODES / 2;

#[derive(Clone, Copy)]
enum Draw {
    /// A step by a minute or an hour.
    FarStep,
    /// A step by a few seconds, of any nodes.
    NearStep,
    Eviction,
    Kill,
    /// A majority is killed at the same time, so that too few nodes may remember the locks.
    /// Abstention must protect the locks even then.
    KillMajority,
    Shutdown,
    Pause,
    Reload,
    Delay,
    Hold,
    Cut,
}

/// How often each accident is drawn, in percent: for exclusive locks, for fences, and for shared
/// locks and permits.
///
/// Fences rely on the clock that a restarted node reads. So where fences are checked, clocks are
/// wrong only while the node runs, or never.
const WEIGHTS: [(Draw, [u32; 3]); 11] = [
    (Draw::FarStep, [6, 30, 0]),
    (Draw::NearStep, [10, 0, 0]),
    (Draw::Eviction, [14, 0, 0]),
    (Draw::Kill, [6, 30, 20]),
    (Draw::KillMajority, [12, 0, 15]),
    (Draw::Shutdown, [0, 20, 10]),
    (Draw::Pause, [12, 20, 25]),
    (Draw::Reload, [6, 0, 0]),
    (Draw::Delay, [18, 0, 0]),
    (Draw::Hold, [16, 0, 0]),
    (Draw::Cut, [0, 0, 30]),
];

/// Injects incidents while `goes_on`, which receives the elapsed time, and then lets all nodes
/// recover. Incidents may overlap.
pub(super) fn inject_at_random(
    fleet: &mut Fleet,
    plan: Plan,
    state: &RunState,
    mut goes_on: impl FnMut(Duration) -> bool,
) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(plan.seed);
    // Longest time between the starts of two incidents.
    let pause_max = Duration::from_millis(if plan.kind == Kind::Exclusive { 400 } else { 800 });
    let mut saved = 0;
    let began = Instant::now();
    let mut next_at = began + rng.random_range(Duration::ZERO..=pause_max);
    while goes_on(began.elapsed()) {
        fleet.recover_until(Instant::now())?;
        if Instant::now() >= next_at {
            let mut incident = draw(plan.kind, &mut rng);
            if plan.kind == Kind::Fences {
                // A node must not start with a wrong clock: it would grant smaller fences.
                incident.nodes.retain(|&node| !fleet.is_affected(node));
            }
            if let Accident::Kill(_) | Accident::Shutdown = incident.accident {
                // A restart resets the count.
                let saved_by = |&node: &usize| fleet.nodes[node].saved_leases();
                saved += incident.nodes.iter().map(saved_by).sum::<u64>();
            }
            let (name, hits) = (incident.accident.name(), fleet.inject(incident)?);
            state.record().accidents.add(name, hits);
            next_at = Instant::now() + rng.random_range(Duration::ZERO..=pause_max);
        }
        let wake_at = fleet.next_recovery().into_iter().chain([next_at]).min();
        let pause =
            wake_at.map_or(CHECK_INTERVAL, |at| at.saturating_duration_since(Instant::now()));
        thread::sleep(pause.min(CHECK_INTERVAL));
    }
    fleet.recover_all()?;
    saved += fleet.nodes.iter().map(FleetNode::saved_leases).sum::<u64>();
    state.record().counts.add("leases that outlived their keys", usize::try_from(saved)?);
    Ok(())
}

fn draw(kind: Kind, rng: &mut StdRng) -> Incident {
    let column = match kind {
        Kind::Exclusive => 0,
        Kind::Fences => 1,
        Kind::Shared | Kind::Permits => 2,
    };
    let drawn = WEIGHTS.choose_weighted(rng, |(_, weights)| weights[column]);
    let (draw, _) = *drawn.expect("each column has weights");
    let network = rng.random_range(0..NETWORKS);
    let direction = if rng.random() { Direction::ToServer } else { Direction::ToClient };
    let lasts = rng.random_range(MAX_TTL / 20..=MAX_TTL);
    // Most nodes restart at once, while clients still hold locks from before.
    let down = if rng.random_bool(0.25) { lasts / 2 } else { Duration::ZERO };
    let disks = [Disk::Kept, Disk::Emptied, Disk::Emptied, Disk::Synced];
    let disk = disks.choose(rng).copied().unwrap_or(Disk::Synced);
    let far = *[60, 3600, -60, -3600].choose(rng).unwrap_or(&60);
    let near = *[3, -3].choose(rng).unwrap_or(&3);
    let late = rng.random_range(Duration::from_millis(1)..=Duration::from_millis(80));
    let one = vec![rng.random_range(0..NODES)];
    let mut some = |amounts: RangeInclusive<usize>| {
        let amount = rng.random_range(amounts);
        index::sample(rng, NODES, amount).into_vec()
    };
    let (accident, nodes, duration) = match draw {
        // With single accidents, all clocks may be wrong in turn.
        Draw::FarStep if kind == Kind::Fences => (Accident::ClockStep { by_s: far }, one, lasts),
        Draw::FarStep => (Accident::ClockStep { by_s: far }, vec![one[0] % BAD_CLOCKS], lasts),
        Draw::NearStep => (Accident::ClockStep { by_s: near }, some(1..=NODES), lasts),
        Draw::Eviction => (Accident::Eviction, one, Duration::ZERO),
        Draw::Kill => (Accident::Kill(disk), one, down),
        Draw::KillMajority => (Accident::Kill(disk), some(NODES / 2 + 1..=NODES), down),
        Draw::Shutdown => (Accident::Shutdown, one, down),
        Draw::Pause if kind == Kind::Fences => (Accident::Pause, one, lasts / 2),
        Draw::Pause => (Accident::Pause, some(1..=NODES / 2), lasts / 2),
        Draw::Reload => (Accident::Reload, one, Duration::ZERO),
        Draw::Delay => (Accident::Delay(direction, late), one, lasts),
        Draw::Hold => (Accident::Hold(direction), one, lasts),
        Draw::Cut => (Accident::Cut, some(1..=2), lasts),
    };
    Incident { accident, nodes, network, duration }
}
