use std::ops::RangeInclusive;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use quorlock_testkit::{Accident, Direction, Disk, Fleet, Incident};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, index};
use rand::{RngExt as _, SeedableRng as _};

use super::clients::RunState;
use super::{CHECK_INTERVAL, Course, Kind, MAX_TTL, NETWORKS, NODES, Plan};

/// Number of nodes whose clocks may be very wrong: fewer than half, because fences need a majority
/// whose clocks agree within `lock.max-clock-skew`. Clocks that are wrong one after the other are
/// too many, too: a node that restarts after its clock was set back forgets its larger fences.
const BAD_CLOCKS: usize = NODES / 2;

/// Injects incidents, or none in a calm storm, while `goes_on`, which receives the elapsed time.
/// Then lets all nodes recover. Incidents may overlap.
pub(super) fn inject_at_random(
    fleet: &mut Fleet,
    plan: Plan,
    state: &RunState,
    mut goes_on: impl FnMut(Duration) -> bool,
) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(plan.seed);
    // Longest time between the starts of two incidents.
    let pause_max = Duration::from_millis(if plan.kind == Kind::Exclusive { 400 } else { 800 });
    let began = Instant::now();
    let mut next_at = began + rng.random_range(Duration::ZERO..=pause_max);
    while goes_on(began.elapsed()) {
        fleet.recover_until(Instant::now())?;
        if plan.course == Course::Accidents && Instant::now() >= next_at {
            let mut incident = draw(plan.kind, &mut rng);
            if plan.kind == Kind::Fences {
                // A node must not start with a wrong clock: it would grant smaller fences.
                incident.nodes.retain(|&node| !fleet.is_affected(node));
            }
            let (name, hits) = (incident.accident.name(), fleet.inject(incident)?);
            state.record().accidents.add(name, hits);
            next_at = Instant::now() + rng.random_range(Duration::ZERO..=pause_max);
        }
        thread::sleep(CHECK_INTERVAL);
    }
    fleet.recover_all()
}

/// Draws an incident. Each row begins with how often it is drawn, in percent: for exclusive locks,
/// for fences, and for shared locks and permits.
///
/// Fences rely on the clock that a restarted node reads. So where fences are checked, clocks are
/// wrong only while the node runs, or never.
fn draw(kind: Kind, rng: &mut StdRng) -> Incident {
    let column = match kind {
        Kind::Exclusive => 0,
        Kind::Fences => 1,
        Kind::Shared | Kind::Permits => 2,
    };
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
    let far_nodes = vec![one[0] % BAD_CLOCKS];
    let paused = if kind == Kind::Fences { one.clone() } else { some(1..=NODES / 2) };
    let at_once = Duration::ZERO;
    let rows = [
        // By a minute or an hour, and by a few seconds.
        ([6, 30, 0], Accident::ClockStep { by_s: far }, far_nodes, lasts),
        ([10, 0, 0], Accident::ClockStep { by_s: near }, some(1..=NODES), lasts),
        ([14, 0, 0], Accident::Eviction, one.clone(), at_once),
        ([6, 30, 20], Accident::Kill(disk), one.clone(), down),
        // Of a majority at the same time, so that too few nodes may remember the locks. Abstention
        // must protect the locks even then.
        ([12, 0, 15], Accident::Kill(disk), some(NODES / 2 + 1..=NODES), down),
        ([0, 20, 10], Accident::Shutdown, one.clone(), down),
        ([12, 20, 25], Accident::Pause, paused, lasts / 2),
        ([6, 0, 0], Accident::Reload, one.clone(), at_once),
        ([18, 0, 0], Accident::Delay(direction, late), one.clone(), lasts),
        ([16, 0, 0], Accident::Hold(direction), one, lasts),
        ([0, 0, 30], Accident::Cut, some(1..=2), lasts),
    ];
    let drawn = rows.choose_weighted(rng, |(percent, ..)| percent[column]);
    let (_, accident, nodes, duration) = drawn.expect("each column has percents").clone();
    Incident { accident, nodes, network, duration }
}
