use crate::fleet::{ClientRule, Mutant, NodeRule};
use crate::world::{Answers, Property, World};

/// Which models to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Models that are checked in seconds, even in a debug build.
    Small,
    /// The models of `Small`, and more, which are checked in minutes in a release build.
    Full,
}

/// A world to check, and the expected verdict.
#[derive(Clone, Debug)]
pub struct Check {
    pub name: String,
    pub world: World,
    /// The property that the mutant breaks; `None` if no rule is broken.
    pub breaks: Option<Property>,
}

/// Returns the models in which no rule is broken.
pub fn models(size: Size) -> Vec<Check> {
    let world = World::new(3, 2);
    let restart = World { restarts: 1, ..world.clone() };
    // All nodes accept the fences of the restarted node.
    let caught_up = World { wall_after_restart_us: 50, ..restart.clone() };
    let at_once = |nodes, calls| World { answers: Answers::AtOnce, ..World::new(nodes, calls) };
    let mut checks = vec![
        holds("3 nodes, 2 calls", world.clone()),
        holds(
            "3 nodes that lag behind each other, 2 calls",
            World { counters: vec![5, 0, 5], ..world.clone() },
        ),
    ];
    if size == Size::Full {
        checks.extend([
            holds("3 nodes, 2 calls, and a request arrives twice", World { repeats: 1, ..world }),
            holds("3 nodes, 2 calls, and a node restarts far ahead of the others", restart),
            holds("3 nodes, 2 calls, a node restarts, and the others have caught up", caught_up),
            holds("3 nodes, 3 calls, answers arrive at once", at_once(3, 3)),
            holds("5 nodes, 2 calls, answers arrive at once", at_once(5, 2)),
        ]);
    }
    checks
}

/// Returns a check for each rule of the agreement, broken in a world that is just large enough to
/// show the harm.
pub fn mutants() -> Vec<Check> {
    let world = |nodes| World { answers: Answers::AtOnceOrNever, ..World::new(nodes, 2) };
    let caught = |name: &str, world, mutant| Check {
        name: name.into(),
        world: World { mutant, ..world },
        breaks: Some(Property::FenceOnce),
    };
    let any_token = Mutant::Node(NodeRule::FenceOfAnyToken);
    let of_grants = Mutant::Client(ClientRule::MajorityOfGrants);
    let clock = World { restarts: 1, clock_goes_back: true, ..world(3) };
    vec![
        caught("an agreed fence stored without a token check", world(3), Some(any_token)),
        caught("a majority of the grants instead of N/2+1 nodes", world(4), Some(of_grants)),
        caught("a restart with a wall clock that went back", clock, None),
    ]
}

fn holds(name: &str, world: World) -> Check {
    Check { name: name.into(), world, breaks: None }
}
