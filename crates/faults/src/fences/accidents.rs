use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::MAX_TTL;
use crate::node::Node;

/// Until the next accident of the same master begins.
const APART_MAX: Duration = Duration::from_secs(3);
/// How long one lasts.
const LASTS_MAX: Duration = Duration::from_millis(700);
/// Far beyond what is believed, and a little.
const STEPS_S: [i64; 4] = [10, -10, 3600, -3600];
/// How often it is looked whether the run is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Lets accidents happen to one master until it is told to stop, and says how often each has. It is well again after
/// each of them: what fences rely on is that a clock which was wrong is not the first thing that a master sees after it
/// has forgotten everything. What happens to the others meanwhile is up to them.
pub(super) fn happen_to(
    node: &mut Node,
    mut rng: StdRng,
    stop: &AtomicBool,
) -> Result<BTreeMap<&'static str, u32>> {
    let mut happened = BTreeMap::new();
    loop {
        nap(rng.random_range(Duration::ZERO..=APART_MAX), stop);
        if stop.load(Ordering::Relaxed) {
            return Ok(happened);
        }
        let lasts = rng.random_range(Duration::ZERO..=LASTS_MAX);
        let name = match rng.random_range(0..10) {
            0..3 => {
                node.server.kill();
                start_again(node, lasts)?;
                "kill -9, start"
            }
            3..5 => {
                node.server.shutdown();
                start_again(node, lasts)?;
                "shutdown, start"
            }
            5..7 => {
                node.server.pause();
                thread::sleep(lasts);
                node.server.resume();
                "SIGSTOP, SIGCONT"
            }
            _ => {
                let by_s = *STEPS_S.choose(&mut rng).unwrap_or(&STEPS_S[0]);
                node.step_clock(by_s)?;
                thread::sleep(lasts);
                node.step_clock(-by_s)?;
                if by_s > 0 { "wall clock ahead for a while" } else { "wall clock behind for a while" }
            }
        };
        *happened.entry(name).or_default() += 1;
    }
}

/// After a while, and until it votes.
fn start_again(node: &mut Node, after: Duration) -> Result<()> {
    // Mostly at once: the shorter it was away, the more is still held that it may have forgotten.
    if after > LASTS_MAX / 2 {
        thread::sleep(after);
    }
    let started = Instant::now();
    node.restart(-1)?;
    node.eventually("it votes", |node| {
        Ok(node.call::<String>(&["INFO", "lock"])?.contains("lock_state:voting"))
    })?;
    ensure!(started.elapsed() >= MAX_TTL, "it did not abstain");
    Ok(())
}

fn nap(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK_EVERY);
    }
}
