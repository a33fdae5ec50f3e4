use crate::fleet::{ClientRule, Mutant, NodeRule};
use crate::model::{Answers, Model, Property};

/// Which models to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Models that are checked in seconds, even in a debug build.
    Small,
    /// The models of `Small`, and more, which are checked in minutes in a release build.
    Full,
}

/// A model to check, and the expected verdict.
#[derive(Clone, Debug)]
pub struct Check {
    pub name: String,
    pub model: Model,
    /// The property that the mutant breaks; `None` if no rule is broken.
    pub breaks: Option<Property>,
}

/// Returns the models in which no rule is broken.
pub fn models(size: Size) -> Vec<Check> {
    let model = Model::new(3, 2);
    let restart = Model { restarts: 1, ..model.clone() };
    // All nodes accept the fences of the restarted node.
    let caught_up = Model { wall_after_restart_us: 50, ..restart.clone() };
    let at_once = |nodes, calls| Model { answers: Answers::AtOnce, ..Model::new(nodes, calls) };
    let mut checks = vec![
        holds("3 nodes, 2 calls", model.clone()),
        holds(
            "3 nodes that lag behind each other, 2 calls",
            Model { counters: vec![5, 0, 5], ..model.clone() },
        ),
    ];
    if size == Size::Full {
        checks.extend([
            holds("3 nodes, 2 calls, and a request arrives twice", Model { repeats: 1, ..model }),
            holds("3 nodes, 2 calls, and a node restarts far ahead of the others", restart),
            holds("3 nodes, 2 calls, a node restarts, and the others have caught up", caught_up),
            holds("3 nodes, 3 calls, answers arrive at once", at_once(3, 3)),
            holds("5 nodes, 2 calls, answers arrive at once", at_once(5, 2)),
        ]);
    }
    checks
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
