use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Check;
use crate::fleet::Broken;
use crate::model::{Action, Model, Property, State};

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

/// Checks several worlds on all processors, and reports each outcome in the order of the checks.
pub fn run_all(checks: &[Check], mut report: impl FnMut(&Check, &Outcome)) {
    let next = AtomicUsize::new(0);
    let (sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let index = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(check) = checks.get(index)
                    && sender.send((index, run(check))).is_ok()
                {}
            });
        }
        drop(sender);
        let mut ended = BTreeMap::new();
        let mut unreported = (0..).zip(checks).peekable();
        for (index, outcome) in outcomes {
            ended.insert(index, outcome);
            while let Some(outcome) = unreported.peek().and_then(|(index, _)| ended.remove(index))
                && let Some((_, check)) = unreported.next()
            {
                report(check, &outcome);
            }
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
