//! The models to check, with their expected verdicts, and the search through all their states.

use std::thread;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model as _, Path};

use crate::fleet::{ClientRule, Mutant, NodeRule};
use crate::model::{Action, FENCE_ONCE, Model};

/// The first models are so small that they are checked in seconds, even in a debug build. The
/// others take minutes in a release build.
pub const SMALL_MODELS: usize = 2;

/// A model to check, and the expected verdict.
#[derive(Clone, Debug)]
pub struct Check {
    pub name: String,
    pub model: Model,
    /// The property that the mutant breaks; `None` if no rule is broken.
    pub breaks: Option<&'static str>,
}

/// Returns the models in which no rule is broken, of which [`SMALL_MODELS`] come first.
pub fn models() -> Vec<Check> {
    let model = Model::new(3, 2);
    let restart = Model { restarts: 1, ..model.clone() };
    // All nodes accept the fences of the restarted node.
    let caught_up = Model { wall_after_restart_us: 50, ..restart.clone() };
    let at_once = |nodes, calls| Model { answers_at_once: true, ..Model::new(nodes, calls) };
    vec![
        holds("3 nodes, 2 calls", model.clone()),
        holds(
            "3 nodes that lag behind each other, 2 calls",
            Model { counters: vec![5, 0, 5], ..model.clone() },
        ),
        holds("3 nodes, 2 calls, and a request arrives twice", Model { repeats: 1, ..model }),
        holds("3 nodes, 2 calls, and a node restarts far ahead of the others", restart),
        holds("3 nodes, 2 calls, a node restarts, and the others have caught up", caught_up),
        holds("3 nodes, 3 calls, answers arrive at once", at_once(3, 3)),
        holds("5 nodes, 2 calls, answers arrive at once", at_once(5, 2)),
    ]
}

/// Returns a check for each rule of the agreement, broken in a model that is just large enough to
/// show the harm.
pub fn mutants() -> Vec<Check> {
    let model = |nodes| Model { answers_at_once: true, ..Model::new(nodes, 2) };
    let caught = |name: &str, model, mutant| Check {
        name: name.into(),
        model: Model { mutant, ..model },
        breaks: Some(FENCE_ONCE),
    };
    let any_token = Mutant::Node(NodeRule::FenceOfAnyToken);
    let of_grants = Mutant::Client(ClientRule::MajorityOfGrants);
    let clock = Model { restarts: 1, clock_goes_back: true, ..model(3) };
    vec![
        caught("an agreed fence stored without a token check", model(3), Some(any_token)),
        caught("a majority of the grants instead of N/2+1 nodes", model(4), Some(of_grants)),
        caught("a restart with a wall clock that went back", clock, None),
    ]
}

fn holds(name: &str, model: Model) -> Check {
    Check { name: name.into(), model, breaks: None }
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub states: usize,
    pub took: Duration,
    /// The first property that does not hold, and the steps that break it. If an expected event
    /// never happens, the check proves nothing, and there are no steps.
    pub broken: Option<(&'static str, Vec<Action>)>,
}

/// Checks a model on all processors, until all its states were seen, or until a property broke. The
/// search for the harm of a broken rule is breadth first, so its counterexample is short. Any other
/// search is depth first, which needs less memory.
pub fn run(check: &Check) -> Outcome {
    let began = Instant::now();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let search = check.model.clone().checker().threads(threads);
    let search = search.finish_when(HasDiscoveries::AnyFailures);
    match check.breaks {
        Some(_) => outcome(&search.spawn_bfs().join(), began),
        None => outcome(&search.spawn_dfs().join(), began),
    }
}

fn outcome(search: &impl Checker<Model>, began: Instant) -> Outcome {
    let mut found = search.discoveries();
    // A broken property comes before an event that never happens.
    let broken = search.model().properties().into_iter().find_map(|property| {
        let steps = found.remove(property.name).map(Path::into_actions);
        match property.expectation {
            Expectation::Sometimes => steps.is_none().then(|| (property.name, Vec::new())),
            _ => Some((property.name, steps?)),
        }
    });
    Outcome { states: search.unique_state_count(), took: began.elapsed(), broken }
}

impl Outcome {
    /// Returns whether a mutant broke the property that it is to break, or a model without one
    /// held.
    pub fn is_expected(&self, check: &Check) -> bool {
        self.broken.as_ref().map(|(property, _)| *property) == check.breaks
    }
}
