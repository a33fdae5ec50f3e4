use quorlock_core::node::Mode;

use crate::world::{Answers, Clocks, World};
use crate::{Keys, Mutant, Property};

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
    let groups = [fences, holders, lost, several, revoked, shared];
    groups.into_iter().flat_map(|group| group(size)).collect()
}

/// Agreement on a fence: without clocks, with leases that end at any moment.
fn fences(size: Size) -> Vec<Check> {
    let world = World::new(3, 2);
    let lagging = World { counters: vec![5, 0, 5], ..world.clone() };
    let mut checks = vec![
        holds("fences: 3 nodes, 2 clients", world.clone()),
        holds("fences: 3 nodes that lag behind each other, 2 clients", lagging),
    ];
    if size == Size::Full {
        let at_once = |nodes, clients| at_once(World::new(nodes, clients));
        let restart = World { restarts: 1, ..world.clone() };
        checks.extend([
            holds(
                "fences: 3 nodes, 2 clients, and a request arrives twice",
                World { repeats: 1, ..world },
            ),
            holds(
                "fences: 3 nodes, 2 clients, and a node restarts far ahead of the others",
                restart.clone(),
            ),
            holds(
                "fences: 3 nodes, 2 clients, a node restarts, and the others have caught up",
                caught_up(restart),
            ),
            holds("fences: 3 nodes, 3 clients, answers arrive at once", at_once(3, 3)),
            holds("fences: 5 nodes, 2 clients, answers arrive at once", at_once(5, 2)),
        ]);
    }
    checks
}

/// Locks that clients hold, with clocks that end leases and validities.
fn holders(size: Size) -> Vec<Check> {
    let world = World { sudden_ends: false, rounds: Some(0), releases: false, ..World::new(3, 2) };
    let long = World { clocks: Some(clocks(3, 4)), ..world.clone() };
    let short = World { clocks: Some(clocks(2, 4)), ..world };
    let restart = caught_up(World { restarts: 1, ..short.clone() });
    let extend = World { rounds: Some(1), ..short.clone() };
    let release = World { clocks: Some(clocks(2, 3)), releases: true, ..short };
    let both = World { rounds: Some(1), ..restart.clone() };
    let mut checks = vec![
        holds("holders: 3 nodes, 2 clients", long),
        holds("holders: a node restarts, answers arrive at once", at_once(restart.clone())),
        holds("holders: locks are extended, answers arrive at once", at_once(extend.clone())),
    ];
    if size == Size::Full {
        checks.extend([
            holds("holders: locks are released", release),
            holds("holders: a node restarts", restart),
            holds("holders: locks are extended", extend),
            holds(
                "holders: a node restarts, locks are extended, answers arrive at once",
                at_once(both),
            ),
        ]);
    }
    checks
}

/// Locks that an operator deletes, with extensions and repairs.
fn lost(size: Size) -> Vec<Check> {
    let world =
        |clients| World { deletes: true, repair: true, rounds: Some(2), ..World::new(3, clients) };
    let mut checks =
        vec![holds("lost: 3 nodes, 1 holder, answers arrive at once", at_once(world(1)))];
    if size == Size::Full {
        checks.push(holds("lost: 3 nodes, 1 holder", world(1)));
        let two = World { releases: false, sudden_ends: false, ..at_once(world(2)) };
        checks.push(holds("lost: 3 nodes, 2 clients, only the operator ends a lease", two));
    }
    checks
}

/// Locks that an operator revokes on one node after another, with clocks and extensions.
fn revoked(size: Size) -> Vec<Check> {
    let mut checks = vec![
        holds("revoked: 3 nodes, 1 holder, answers arrive at once", revoked_holder(1)),
        holds(
            "revoked: 1 holder, and a node crashes and reads its keys again, answers arrive at once",
            crash(revoked_holder(1)),
        ),
    ];
    if size == Size::Full {
        let unextended = World { rounds: Some(0), ..revoked_holder(2) };
        checks.extend([
            holds("revoked: 3 nodes, 2 clients, answers arrive at once", revoked_holder(2)),
            holds(
                "revoked: 2 clients, and a node crashes and reads its keys again, answers arrive at once",
                crash(unextended),
            ),
        ]);
    }
    checks
}

/// Returns a world of clients whose locks an operator revokes.
fn revoked_holder(clients: usize) -> World {
    World {
        answers: Answers::AtOnce,
        sudden_ends: false,
        releases: false,
        rounds: Some(1),
        revokes: true,
        clocks: Some(clocks(2, 3)),
        ..World::new(3, clients)
    }
}

/// Readers that share the lock, and writers.
fn shared(size: Size) -> Vec<Check> {
    let one_writer = readers_and_writers(&[Mode::Shared, Mode::Exclusive]);
    let two_readers = readers_and_writers(&[Mode::Shared, Mode::Shared, Mode::Exclusive]);
    let timed = |world: World| World {
        answers: Answers::AtOnce,
        sudden_ends: false,
        rounds: Some(0),
        clocks: Some(clocks(2, 3)),
        ..world
    };
    let short = |world: World| World { clocks: Some(clocks(1, 2)), ..timed(world) };
    let mut checks = vec![
        holds("shared: 3 nodes, a reader and a writer", one_writer.clone()),
        holds(
            "shared: a reader and a writer with clocks, answers arrive at once",
            short(one_writer.clone()),
        ),
        holds(
            "shared: a node crashes and reads its keys again, answers arrive at once",
            World { releases: false, ..crash(short(one_writer.clone())) },
        ),
    ];
    if size == Size::Full {
        checks.extend([
            holds(
                "shared: a reader and a writer with a longer ttl, answers arrive at once",
                timed(one_writer.clone()),
            ),
            holds(
                "shared: a reader and a writer with a longer ttl, and a node crashes and reads its \
                 keys again, answers arrive at once",
                crash(timed(one_writer)),
            ),
            holds(
                "shared: two readers and a writer, answers arrive at once",
                at_once(two_readers.clone()),
            ),
            holds(
                "shared: two readers and a writer with clocks, answers arrive at once",
                World { releases: false, clocks: Some(clocks(2, 2)), ..timed(two_readers) },
            ),
        ]);
    }
    checks
}

/// Returns a world of three nodes, with one client for each of these modes.
fn readers_and_writers(modes: &[Mode]) -> World {
    World { modes: modes.to_vec(), ..World::new(3, modes.len()) }
}

/// Locks of several keys beside locks of one key.
fn several(size: Size) -> Vec<Check> {
    let world = |keys: &[Keys]| World { keys: keys.to_vec(), ..World::new(3, keys.len()) };
    let timed = |world: World| World {
        sudden_ends: false,
        rounds: Some(0),
        releases: false,
        clocks: Some(clocks(2, 4)),
        ..world
    };
    let one = world(&[Keys::Both, Keys::B]);
    let each = world(&[Keys::Both, Keys::A, Keys::B]);
    let mut checks = vec![
        holds(
            "several keys: 3 nodes, one client locks both keys, one locks the second",
            one.clone(),
        ),
        holds(
            "several keys: one client locks both keys, one locks the second, with clocks, answers \
             arrive at once",
            at_once(timed(one.clone())),
        ),
    ];
    if size == Size::Full {
        let release = World { releases: true, clocks: Some(clocks(2, 3)), ..timed(one.clone()) };
        let extend = World { rounds: Some(1), clocks: Some(clocks(2, 3)), ..timed(one) };
        checks.extend([
            holds(
                "several keys: a third client locks the first key, answers arrive at once",
                at_once(each),
            ),
            holds("several keys: locks are released, answers arrive at once", at_once(release)),
            holds("several keys: locks are extended, answers arrive at once", at_once(extend)),
        ]);
    }
    checks
}

/// Returns a check for each mutant, in a world that is just large enough to show the harm.
pub fn mutants() -> Vec<Check> {
    let at_once = |nodes, clients| at_once(World::new(nodes, clients));
    let fences = |nodes| World { answers: Answers::AtOnceOrNever, ..World::new(nodes, 2) };
    let holders =
        World { sudden_ends: false, rounds: Some(0), clocks: Some(clocks(2, 3)), ..at_once(3, 2) };
    let lost = World { deletes: true, repair: true, rounds: Some(2), ..at_once(3, 1) };
    let overlapping = |world: World| World { keys: vec![Keys::Both, Keys::B], ..world };
    // The first client cannot reach node 2, and the last client cannot reach node 0. So their
    // majorities have only one node in common.
    let downwards = World { counters: vec![0, 7, 4], cut: vec![(0, 2), (2, 0)], ..at_once(3, 3) };
    vec![
        caught(
            Mutant::SomeOfTheKeys,
            Property::OneHolder,
            overlapping(World { releases: false, proposals: vec![5, 1], ..holders.clone() }),
        ),
        caught(Mutant::FenceOfTheFirstKey, Property::FenceOnce, overlapping(at_once(3, 2))),
        caught(Mutant::FenceStoredWithoutToken, Property::FenceOnce, fences(3)),
        caught(Mutant::StoredFenceDecreases, Property::FencesGrow, downwards),
        caught(Mutant::MajorityOfGrants, Property::FenceOnce, fences(4)),
        caught(Mutant::LargestAtOnce, Property::FenceOnce, fences(3)),
        caught(Mutant::ClockBackAtRestart, Property::FenceOnce, World { restarts: 1, ..fences(3) }),
        caught(
            Mutant::TokenUsedTwice,
            Property::OneHolder,
            // The harm needs no tick, but the checker looks for two holders only with clocks.
            World { attempts: 2, clocks: Some(clocks(2, 0)), ..holders.clone() },
        ),
        caught(
            Mutant::NoAbstention,
            Property::OneHolder,
            caught_up(World { restarts: 1, releases: false, ..holders.clone() }),
        ),
        caught(Mutant::NoDrift, Property::OneHolder, World { releases: false, ..holders.clone() }),
        caught(
            Mutant::ValidFromAnswer,
            Property::OneHolder,
            World { releases: false, answers: Answers::Travel, ..holders.clone() },
        ),
        caught(Mutant::ExtendRevives, Property::LostStaysLost, lost.clone()),
        caught(Mutant::RepairAtOnce, Property::LostStaysLost, lost.clone()),
        // The harm needs one more round: a node is repaired only after an earlier round has found
        // that the node misses the lock.
        caught(
            Mutant::RepairOnLateGrant,
            Property::LostStaysLost,
            World { rounds: Some(3), ..lost },
        ),
        caught(
            Mutant::RevokeFreesAtOnce,
            Property::OneHolder,
            World { rounds: Some(0), ..revoked_holder(2) },
        ),
        caught(Mutant::RevokeKeepsToken, Property::RevokedStaysRevoked, crash(revoked_holder(1))),
        caught(Mutant::ExtendOfRevoked, Property::RevokedStaysRevoked, revoked_holder(1)),
        caught(
            Mutant::ReaderBesideWriter,
            Property::OneHolder,
            World { releases: false, modes: vec![Mode::Shared, Mode::Exclusive], ..holders },
        ),
        caught(
            Mutant::ReaderChoosesFence,
            Property::FenceOnce,
            World { modes: vec![Mode::Shared, Mode::Exclusive], ..at_once(3, 2) },
        ),
        caught(
            Mutant::MirrorNamesHolder,
            Property::OneHolder,
            World {
                disk: true,
                restarts: 1,
                releases: true,
                modes: vec![Mode::Shared, Mode::Shared, Mode::Exclusive],
                sudden_ends: false,
                rounds: Some(0),
                clocks: Some(clocks(2, 0)),
                ..at_once(1, 3)
            },
        ),
    ]
}

fn at_once(world: World) -> World {
    World { answers: Answers::AtOnce, ..world }
}

/// Adds one restart of a node that reads its keys again.
fn crash(world: World) -> World {
    World { disk: true, restarts: 1, ..world }
}

fn holds(name: &str, world: World) -> Check {
    Check { name: name.into(), world, breaks: None }
}

fn caught(mutant: Mutant, breaks: Property, world: World) -> Check {
    Check {
        name: mutant.to_string(),
        world: World { mutant: Some(mutant), ..world },
        breaks: Some(breaks),
    }
}

/// Returns the world with wall clocks that advance after a restart, so that all nodes accept the
/// fences of the restarted node.
fn caught_up(world: World) -> World {
    World { wall_after_restart_us: 50, ..world }
}

/// Returns clocks with the largest allowed difference in rate.
///
/// The clocks of nodes are 1 % faster than the clocks of clients. A lease ends after `ttl` steps,
/// and the validity of its holder must end before that.
fn clocks(ttl: u64, ticks: u8) -> Clocks {
    const NODE_MS: u64 = 101;
    Clocks { ticks, ttl_ms: ttl * NODE_MS, node_ms: NODE_MS, client_ms: 100 }
}
