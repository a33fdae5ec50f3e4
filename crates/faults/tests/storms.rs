//! Storms of some seconds. `make test-faults`, `make test-fences` and `make test-kinds` run longer.

use std::time::Duration;

use quorlock_faults::Protected::{self, No, Yes};
use quorlock_faults::any_seed;
use quorlock_faults::history::Mode;
use quorlock_faults::scenarios::expire_unreleased;
use quorlock_faults::storm::{Course, Kind, Outcome, Plan, run};

#[track_caller]
fn outcome_of(kind: Kind, course: Course, seconds: u64, protected: Protected) -> Outcome {
    let seed = any_seed();
    let plan = Plan { kind, course, seed, duration: Duration::from_secs(seconds), protected };
    run(plan, |_, _| {}).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"))
}

/// Checks that a storm with the protection does no harm, and that accidents have happened.
#[track_caller]
fn check_storm(kind: Kind, seconds: u64) -> Outcome {
    let outcome = outcome_of(kind, Course::Accidents, seconds, Yes);
    assert_eq!(outcome.complaints(), [""; 0], "{outcome}");
    outcome
}

/// Checks that the same storm without the protection does harm, soon after which it ends.
#[track_caller]
fn check_baseline(kind: Kind, course: Course) {
    let outcome = outcome_of(kind, course, 120, No);
    assert_eq!(outcome.complaints(), [""; 0], "{outcome}");
}

#[test]
fn accidents_at_random_never_give_a_lock_two_holders() {
    check_storm(Kind::Exclusive, 15);
}

#[test]
fn accidents_without_abstention_give_a_lock_two_holders() {
    check_baseline(Kind::Exclusive, Course::Accidents);
}

#[test]
fn fences_grow_whatever_happens_to_single_nodes() {
    check_storm(Kind::Fences, 6);
}

#[test]
fn fences_without_agreement_repeat_or_fall() {
    check_baseline(Kind::Fences, Course::Accidents);
}

#[test]
fn accidents_never_put_a_writer_beside_a_reader() {
    let outcome = check_storm(Kind::Shared, 4);
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Downgraded] {
        assert!(outcome.count(mode) > 0, "{mode:?}: {outcome}");
    }
}

#[test]
fn readers_that_ask_one_node_read_beside_a_writer() {
    check_baseline(Kind::Shared, Course::Calm);
}

#[test]
fn accidents_never_admit_more_holders_than_permits() {
    check_storm(Kind::Permits, 4);
}

#[test]
fn counters_on_each_node_admit_too_many_holders() {
    check_baseline(Kind::Permits, Course::Calm);
}

#[test]
fn run_without_an_accident_is_reported() {
    let outcome = outcome_of(Kind::Permits, Course::Accidents, 0, Yes);
    let complaint = "no accident was injected: the storm proves nothing";
    assert!(outcome.complaints().iter().any(|found| found == complaint), "{outcome}");
}

/// Checks that clients acquire locks while one node after the other is down or paused.
///
/// `make test-kinds` also measures the cost.
#[track_caller]
fn check_without_each_node(kind: Kind, course: Course) {
    let outcome = outcome_of(kind, course, 2, Yes);
    assert_eq!(outcome.harm, [""; 0], "{outcome}");
    // A slow machine may let a client learn of its lock too late.
    let failed = outcome.record.failed_calls.to_string();
    assert!(failed == "none" || failed.ends_with("too late") && !failed.contains(','), "{outcome}");
    assert_eq!(outcome.record.without_one.len(), 5, "{outcome}");
}

#[test]
fn shared_locks_are_granted_while_any_one_node_is_down() {
    check_without_each_node(Kind::Shared, Course::OneDown);
}

#[test]
fn permits_are_granted_while_any_one_node_is_paused() {
    check_without_each_node(Kind::Permits, Course::OnePaused);
}

#[test]
fn expired_unreleased_locks_leave_no_lease_no_key_and_no_memory() {
    let left = expire_unreleased(100_000).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(left.memory_bytes < left.peak_memory_bytes / 10, "{left:?}");
}
