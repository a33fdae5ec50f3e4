//! Seeds that run in a test. `make sim` runs more.

use std::sync::OnceLock;

use quorlock_sim::fleet::{ClientRule, LockKind, Mutant, NodeRule, Plan, Report, run};
use quorlock_sim::in_parallel;

/// Number of seeds of exclusive locks.
const SEEDS: u64 = 200;
/// Number of seeds of each of the other kinds of lock.
const SEEDS_OF_KIND: u64 = 50;

/// A mutant must be caught by a seed below this one.
const MUTANT_SEEDS: u64 = 100_000;

/// Runs seeds until a checker finds a violation. Returns the report of that seed.
fn first_bad(seeds: u64, plan: impl Fn(u64) -> Plan + Sync) -> Option<Report> {
    let bad = OnceLock::new();
    in_parallel((0..seeds).take_while(|_| bad.get().is_none()), |seed| {
        let report = run(&plan(seed), false);
        if report.violation.is_some() {
            let _ = bad.set(report);
        }
    });
    bad.into_inner()
}

#[test]
fn fleets_keep_every_promise_under_faults() {
    for (kind, seeds) in [
        (LockKind::Exclusive, SEEDS),
        (LockKind::Shared, SEEDS_OF_KIND),
        (LockKind::Permits, SEEDS_OF_KIND),
    ] {
        let plan = |seed| Plan::draw_of(kind, seed);
        if let Some(Report { seed, violation, .. }) = first_bad(seeds, plan) {
            panic!("{kind} {seed}: {violation:?}");
        }
    }
}

#[test]
fn several_readers_and_several_permits_are_held_at_once() {
    let most = |kind| {
        let together = |seed| run(&Plan::draw_of(kind, seed), false).most_together;
        (0..10).map(together).max().unwrap_or_default()
    };
    assert_eq!(most(LockKind::Exclusive), 1);
    assert!(most(LockKind::Shared) > 2);
    assert!(most(LockKind::Permits) > 2);
}

#[test]
fn seed_reproduces_its_run_to_the_byte() {
    for seed in [3, 7, 42] {
        let plan = Plan::draw_of(LockKind::Exclusive, seed);
        let (one, another) = (run(&plan, true), run(&plan, true));
        assert!(one.locks > 0, "seed {seed}");
        assert_eq!(one.trace, another.trace, "seed {seed}");
    }
}

/// Seeds with rare orders of events in which a state machine was once wrong.
const FIXED_DEFECTS: [u64; 39] = [
    477, 5852, 28_746, 53_641, 82_478, 1768, 5132, 6085, 6670, 7052, 7611, 9257, 9436, 13_636,
    15_671, 15_842, 15_996, 17_048, 17_648, 17_707, 18_598, 18_991, 20_775, 21_232, 22_343, 22_536,
    23_930, 14_974, 25_428, 27_687, 30_778, 32_768, 49_098, 49_737, 51_542, 73_586, 74_786, 87_407,
    36_995,
];

/// Such seeds of the other kinds of lock.
const FIXED_DEFECTS_OF_KINDS: [(LockKind, u64); 21] = [
    (LockKind::Permits, 4994),
    (LockKind::Permits, 8797),
    (LockKind::Shared, 220),
    (LockKind::Shared, 399),
    (LockKind::Shared, 5281),
    (LockKind::Shared, 7586),
    (LockKind::Shared, 12_684),
    (LockKind::Shared, 13_594),
    (LockKind::Shared, 28_096),
    (LockKind::Shared, 29_938),
    (LockKind::Shared, 126),
    (LockKind::Shared, 2351),
    (LockKind::Shared, 3040),
    (LockKind::Permits, 3743),
    (LockKind::Permits, 4255),
    (LockKind::Permits, 57),
    (LockKind::Permits, 91),
    (LockKind::Permits, 274),
    (LockKind::Permits, 337),
    (LockKind::Permits, 7201),
    (LockKind::Permits, 7807),
];

#[test]
fn seeds_of_fixed_defects_pass() {
    for seed in FIXED_DEFECTS {
        assert_eq!(
            run(&Plan::draw_of(LockKind::Exclusive, seed), false).violation,
            None,
            "seed {seed}"
        );
    }
    for (kind, seed) in FIXED_DEFECTS_OF_KINDS {
        let violation = run(&Plan::draw_of(kind, seed), false).violation;
        assert_eq!(violation, None, "{kind} {seed}");
    }
}

/// For each mutant: a seed that catches it, and a part of the violation that the checker reports.
///
/// After a change of the state machines or of the plans, another seed may be needed: `quorlock-sim
/// --mutants --seeds 100000` finds it.
const CAUGHT: [(Mutant, u64, &str); 28] = [
    (Mutant::NoAbstention, 202, "is held, but only 0 nodes"),
    (Mutant::Client(ClientRule::LateRelease), 2, "a majority was free"),
    (Mutant::Client(ClientRule::HeldOutOfTurn), 0, "has not asked any node"),
    (Mutant::Client(ClientRule::NoDeadline), 2, "too late"),
    (Mutant::Client(ClientRule::TicketNotRaised), 1, "overtakes"),
    (Mutant::Client(ClientRule::YieldingCounts), 10, "is held, but only 1 nodes"),
    (Mutant::Client(ClientRule::NeverYields), 19, "none of them got it"),
    (Mutant::Client(ClientRule::SliceNotRenewed), 1, "for a free lock"),
    (Mutant::Client(ClientRule::ReusedToken), 14, "after 1700000006998344"),
    (Mutant::Client(ClientRule::SilentNotReleased), 0, "has released"),
    (Mutant::Client(ClientRule::ReleaseElsewhere), 30, "has released"),
    (Mutant::Client(ClientRule::EarlyRepair), 48, "after an operator has ended it"),
    (Mutant::Client(ClientRule::NoDrift), 5, "two holders"),
    (Mutant::Client(ClientRule::ValidFromAnswer), 248, "two holders"),
    (Mutant::Client(ClientRule::LargestFence), 0, "has fence"),
    (Mutant::Client(ClientRule::RevokedRepaired), 1137, "nodes revoked it"),
    (Mutant::Client(ClientRule::PauseIsSilence), 152, "as silent, but only"),
    (Mutant::Client(ClientRule::ExclusiveUntilConfirmed), 18, "two holders"),
    (Mutant::Node(NodeRule::SharedPassesQueue), 0, "overtakes"),
    (Mutant::Node(NodeRule::RevokedAdmitsHolders), 137, "lets a reader join"),
    (Mutant::Node(NodeRule::AnyWaitsForFirst), 527, "overtakes"),
    (Mutant::Node(NodeRule::PassesUnheard), 75, "overtakes"),
    (Mutant::Node(NodeRule::ExtendRevives), 41, "a majority was free"),
    (Mutant::Node(NodeRule::RevokeFreesAtOnce), 37, "two holders"),
    (Mutant::Node(NodeRule::SomeOfTheKeys), 0, "has fence"),
    (Mutant::Node(NodeRule::FenceOfFirstKey), 0, "has fence"),
    (Mutant::Node(NodeRule::SharedBesideExclusive), 0, "overtakes"),
    (Mutant::Node(NodeRule::SharedChoosesFence), 0, "has fence"),
];

#[test]
fn each_mutant_is_caught() {
    let missed = Mutant::all().filter_map(|mutant| {
        let known = CAUGHT.iter().find(|(caught, ..)| *caught == mutant);
        let Some(&(_, seed, says)) = known else { return Some((mutant, None, None)) };
        let violation = run(&Plan::of_mutant(mutant, seed), false).violation;
        let is_noticed = violation.as_ref().is_some_and(|what| what.contains(says));
        (!is_noticed || seed >= MUTANT_SEEDS).then_some((mutant, Some(seed), violation))
    });
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn seed_of_a_mutant_passes_without_the_mutant() {
    for (mutant, seed, _) in CAUGHT.iter().filter(|(_, seed, _)| *seed >= SEEDS_OF_KIND) {
        let plan = Plan::draw_of(mutant.kind(), *seed);
        assert_eq!(run(&plan, false).violation, None, "seed {seed}");
    }
}
