use std::thread;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model as _};

use crate::world::{Action, World};
use crate::{Check, Property};

/// Interval between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Number of distinct states that were reached.
    pub states: usize,
    /// Number of steps that were tried. Several steps may lead to the same state.
    pub steps: usize,
    /// Number of steps of the longest path that the search followed.
    pub depth: usize,
    /// How long the check took.
    pub took: Duration,
    /// Whether the properties hold.
    pub verdict: Verdict,
}

/// The verdict of a check.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The properties hold in all reachable states.
    Holds,
    /// A property does not hold, as these steps show.
    Broken(Property, Vec<Action>),
    /// An expected event never happens, so the check proves nothing.
    Vacuous(&'static str),
}

/// Checks a world until all its states were seen, or until the expected property was broken.
///
/// The search of a mutant is breadth first, so its counterexample is as short as possible. The
/// search of other models is depth first, which needs less memory.
pub fn run(check: &Check, threads: usize, progress: impl FnMut(usize)) -> Outcome {
    let checker = check.world.clone().checker();
    match check.breaks {
        Some(property) => {
            let found = HasDiscoveries::AnyOf([property.name()].into());
            watch(checker.finish_when(found).spawn_bfs(), Some(property), progress)
        }
        None => watch(checker.threads(threads).spawn_dfs(), None, progress),
    }
}

fn watch(
    mut checker: impl Checker<World>,
    breaks: Option<Property>,
    mut progress: impl FnMut(usize),
) -> Outcome {
    let began = Instant::now();
    let mut reported = began;
    let handles = checker.handles();
    while handles.iter().any(|handle| !handle.is_finished()) {
        if reported.elapsed() >= PROGRESS_EVERY {
            reported = Instant::now();
            progress(checker.unique_state_count());
        }
        thread::sleep(Duration::from_millis(1));
    }
    for handle in handles {
        if let Err(panic) = handle.join() {
            std::panic::resume_unwind(panic);
        }
    }
    let took = began.elapsed();
    let (states, steps, depth) =
        (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    Outcome {
        states,
        steps,
        depth: depth.saturating_sub(1),
        took,
        verdict: verdict(&checker, breaks),
    }
}

/// Returns the verdict. If a mutant also breaks other properties, reports the expected one.
fn verdict(checker: &impl Checker<World>, breaks: Option<Property>) -> Verdict {
    let mut discoveries = checker.discoveries();
    let world = checker.model();
    let broken = breaks.into_iter().chain(world.must_hold()).find_map(|property| {
        let path = discoveries.remove(property.name())?;
        Some(Verdict::Broken(property, path.into_actions()))
    });
    let vacuous =
        || world.must_happen().find(|name| !discoveries.contains_key(name)).map(Verdict::Vacuous);
    broken.or_else(vacuous).unwrap_or(Verdict::Holds)
}
