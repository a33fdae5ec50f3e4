//! No accident lets two clients hold a lock at the same time. `make test-faults` runs longer.

use std::time::Duration;

use quorlock_faults::Protected;
use quorlock_faults::exclusion::{Plan, Report, run};
use quorlock_faults::harness::any_seed;

#[track_caller]
fn report_of(plan: Plan) -> Report {
    run(plan, |_, _| {}).unwrap_or_else(|error| panic!("seed {}: {error:#}", plan.seed))
}

#[test]
fn accidents_at_random_never_give_a_lock_two_holders() {
    let seed = any_seed();
    let plan = Plan { seed, duration: Duration::from_secs(15), protected: Protected::Yes };
    let report = report_of(plan);
    assert!(report.overlaps.is_empty(), "{report}");
    assert!(report.grants > 0, "a client was granted a lock: {report}");
    assert!(!report.accidents.is_empty(), "{report}");
}

#[test]
fn accidents_without_abstention_give_a_lock_two_holders() {
    // The run ends when two clients hold one lock, within seconds.
    let plan = Plan { seed: 1, duration: Duration::from_secs(120), protected: Protected::No };
    let report = report_of(plan);
    assert!(!report.overlaps.is_empty(), "{report}");
}
