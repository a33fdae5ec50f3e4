//! The models to check, with their expected verdicts, and the search through all their states.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::fleet::{Broken, ClientRule, Mutant, NodeRule};
use crate::in_parallel;
use crate::model::{Action, Answers, Model, Property, State};

/// The first models are so small that they are checked in seconds, even in a debug build. The
/// others take minutes in a release build.
pub const SMALL_MODELS: usize = 2;

/// A model to check, and the expected verdict.
#[derive(Clone, Debug)]
pub struct Check {
    pub name: String,
    pub model: Model,
    /// The property that the mutant breaks; `None` if no rule is broken.
    pub breaks: Option<Property>,
}

/// Returns the models in which no rule is broken, of which [`SMALL_MODELS`] come first.
pub fn models() -> Vec<Check> {
    let model = Model::new(3, 2);
    let restart = Model { restarts: 1, ..model.clone() };
    // All nodes accept the fences of the restarted node.
    let caught_up = Model { wall_after_restart_us: 50, ..restart.clone() };
    let at_once = |nodes, calls| Model { answers: Answers::AtOnce, ..Model::new(nodes, calls) };
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
    let model = |nodes| Model { answers: Answers::AtOnceOrNever, ..Model::new(nodes, 2) };
    let caught = |name: &str, model, mutant| Check {
        name: name.into(),
        model: Model { mutant, ..model },
        breaks: Some(Property::FenceOnce),
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

#[derive(Clone, Debug)]
pub struct Outcome {
    pub states: usize,
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

/// The states that a search has seen, and how it reached them.
struct Seen {
    hashes: HashSet<u64>,
    /// For each state: the index of the state before it, and which of its actions led here.
    steps: Vec<(u32, u8)>,
}

/// Checks a model until all its states were seen, or until a property broke. The search for the
/// harm of a broken rule is breadth first, so its counterexample is as short as possible. Any other
/// search is depth first, which needs less memory.
pub fn run(check: &Check) -> Outcome {
    let model = &check.model;
    let _broken = Broken::new(model.mutant);
    let began = Instant::now();
    let mut seen = Seen { hashes: HashSet::new(), steps: Vec::new() };
    let (mut all_have_agreed, mut stores_fence) = (false, false);
    let mut open = VecDeque::from([(model.start(), seen.index_of((0, 0)))]);
    let next = |open: &mut VecDeque<_>| match check.breaks {
        Some(_) => open.pop_front(),
        None => open.pop_back(),
    };
    let mut broken = None;
    while broken.is_none()
        && let Some((state, index)) = next(&mut open)
    {
        all_have_agreed |= state.all_have_agreed();
        stores_fence |= state.stores_fence();
        for (choice, action) in (0..).zip(model.actions(&state)) {
            let after = model.after(&state, action);
            if !seen.hashes.insert(hash(&after)) {
                continue;
            }
            let reached = seen.index_of((index, choice));
            if let Some(property) = after.broken() {
                broken = Some(Verdict::Broken(property, seen.path_to(reached, model)));
                break;
            }
            open.push_back((after, reached));
        }
    }
    let verdict = broken.unwrap_or(match (all_have_agreed, stores_fence) {
        (false, _) => Verdict::Vacuous("each call agrees on a fence"),
        (_, false) => Verdict::Vacuous("a node is asked to store a fence"),
        (true, true) => Verdict::Holds,
    });
    Outcome { states: seen.steps.len(), took: began.elapsed(), verdict }
}

/// Checks several models on all processors, and reports each outcome in the order of the checks.
///
/// # Panics
/// When a report panics.
pub fn run_all(checks: &[Check], report: impl FnMut(&Check, &Outcome) + Send) {
    let ended = Mutex::new((BTreeMap::new(), 0, report));
    in_parallel(checks.iter().enumerate(), |(index, check)| {
        let outcome = run(check);
        let (outcomes, reported, report) = &mut *ended.lock().expect("a report does not panic");
        outcomes.insert(index, outcome);
        while let Some(outcome) = outcomes.remove(reported) {
            report(&checks[*reported], &outcome);
            *reported += 1;
        }
    });
}

impl Outcome {
    /// Whether a mutant broke the property that it is to break, or a model without one held.
    pub fn is_expected(&self, check: &Check) -> bool {
        match self.verdict {
            Verdict::Holds => check.breaks.is_none(),
            Verdict::Broken(property, _) => check.breaks == Some(property),
            Verdict::Vacuous(_) => false,
        }
    }
}

impl Seen {
    fn index_of(&mut self, step: (u32, u8)) -> u32 {
        self.steps.push(step);
        u32::try_from(self.steps.len() - 1).expect("a model has fewer states")
    }

    /// The actions that lead from the first state to this one.
    fn path_to(&self, mut index: u32, model: &Model) -> Vec<Action> {
        let mut choices = Vec::new();
        while index > 0 {
            let (before, choice) = self.steps[index as usize];
            choices.push(choice);
            index = before;
        }
        let mut state = model.start();
        let steps = choices.into_iter().rev().map(|choice| {
            let action = model.actions(&state)[usize::from(choice)];
            state = model.after(&state, action);
            action
        });
        steps.collect()
    }
}

fn hash(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
