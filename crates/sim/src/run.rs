use std::thread;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model as _};

use crate::world::{Action, World};
use crate::{Check, Property};

/// How often progress is reported.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// What came of a check.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Different states that were reached.
    pub states: usize,
    /// Steps that were taken to reach them; some lead to the same state.
    pub steps: usize,
    /// The longest way, in steps.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// What was found.
    pub verdict: Verdict,
}

/// What was found.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Nothing, in any state that can be reached.
    Holds,
    /// A property does not hold, and these steps show it.
    Broken(Property, Vec<Action>),
    /// What ought to happen somewhere never does: nothing is proved by that.
    Vacuous(&'static str),
}

/// Checks until everything was seen, or until the property was broken that must be.
///
/// A mutant is searched breadth first, so that its counterexample is a shortest one; where nothing is to be found, depth
/// first, which needs less memory.
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
    let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    Outcome { states, steps, depth: depth.saturating_sub(1), took, verdict: verdict(&checker, breaks) }
}

/// What is broken may break more than what it must.
fn verdict(checker: &impl Checker<World>, breaks: Option<Property>) -> Verdict {
    let mut discoveries = checker.discoveries();
    let world = checker.model();
    let broken = breaks.into_iter().chain(world.must_hold()).find_map(|property| {
        let path = discoveries.remove(property.name())?;
        Some(Verdict::Broken(property, path.into_actions()))
    });
    let vacuous = || world.must_happen().find(|name| !discoveries.contains_key(name)).map(Verdict::Vacuous);
    broken.or_else(vacuous).unwrap_or(Verdict::Holds)
}
