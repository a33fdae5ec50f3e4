//! Whether readers and writers, and the holders of permits, are never too many. `make test-kinds`
//! runs it for longer.

use std::time::Duration;

use quorlock_faults::Protected;
use quorlock_faults::harness::any_seed;
use quorlock_faults::kinds::{Course, Kind, Mode, Plan, Report, run};

#[track_caller]
fn report(kind: Kind, course: Course, seconds: u64, protected: Protected) -> Report {
    let seed = any_seed();
    let plan = Plan { kind, course, seed, duration: Duration::from_secs(seconds), protected };
    run(plan, |_, _| {}).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"))
}

#[test]
fn accidents_never_put_a_writer_beside_a_reader() {
    let report = report(Kind::Shared, Course::Accidents, 4, Protected::Yes);
    assert_eq!(report.complaints(), [""; 0], "{report}");
    assert!(!report.accidents.is_empty(), "{report}");
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Downgraded] {
        assert!(report.count(mode) > 0, "{mode:?}: {report}");
    }
}

#[test]
fn readers_that_ask_one_node_read_beside_a_writer() {
    // It ends with the first.
    let report = report(Kind::Shared, Course::Calm, 60, Protected::No);
    assert!(!report.overlaps.is_empty(), "{report}");
}

#[test]
fn accidents_never_admit_more_holders_than_permits() {
    let report = report(Kind::Semaphore, Course::Accidents, 4, Protected::Yes);
    assert_eq!(report.complaints(), [""; 0], "{report}");
    assert!(!report.accidents.is_empty(), "{report}");
}

#[test]
fn counters_on_each_node_admit_too_many_holders() {
    // It ends with the first too many.
    let report = report(Kind::Semaphore, Course::Calm, 60, Protected::No);
    assert!(report.most_at_once > quorlock_faults::kinds::PERMITS, "{report}");
}

/// Stops one master after the other. `make test-kinds` also measures what that costs.
#[track_caller]
fn goes_on_without_any_one(kind: Kind, course: Course) {
    let report = report(kind, course, 2, Protected::Yes);
    assert_eq!(report.harm(), [""; 0], "{report}");
    assert!(report.refusals.is_empty(), "{report}");
    assert_eq!(report.without_one.len(), 5, "{report}");
    assert!(report.longest_gap < Duration::from_secs(2), "{report}");
}

#[test]
fn shared_locks_go_on_while_any_one_master_is_down() {
    goes_on_without_any_one(Kind::Shared, Course::OneDown);
}

#[test]
fn permits_go_on_while_any_one_master_is_paused() {
    goes_on_without_any_one(Kind::Semaphore, Course::OnePaused);
}
