use std::thread;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model as _};

use crate::world::{Action, World};
use crate::{Check, Property};

const PROGRESS_EVERY: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub struct Outcome {
    pub states: usize,
    /// Number of steps of the longest path that the search followed.
    pub depth: usize,
    pub took: Duration,
    pub verdict: Verdict,
}

#[derive(Clone, Debug)]
pub enum Verdict {
    Holds,
    /// The property, and the steps that break it.
    Broken(Property, Vec<Action>),
    /// An expected event never happens, so the check proves nothing.
    Vacuous(&'static str),
}

/// Checks a world until all its states were seen, or until the property broke that its mutant is to
/// break. The search of a mutant is breadth first, so its counterexample is as short as possible.
/// The search of other models is depth first, which needs less memory.
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
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth().saturating_sub(1),
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
