//! No accident puts a writer beside a reader, or admits more holders than permits.
//!
//! `make test-kinds` runs longer.

use std::time::Duration;

use quorlock_faults::Protected;
use quorlock_faults::harness::any_seed;
use quorlock_faults::kinds::{Course, Kind, Mode, Plan, Report, run};

#[track_caller]
fn report_of(kind: Kind, course: Course, seconds: u64, protected: Protected) -> Report {
    let seed = any_seed();
    let plan = Plan { kind, course, seed, duration: Duration::from_secs(seconds), protected };
    run(plan, |_, _| {}).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"))
}

#[test]
fn accidents_never_put_a_writer_beside_a_reader() {
    let report = report_of(Kind::Shared, Course::Accidents, 4, Protected::Yes);
    assert_eq!(report.complaints(), [""; 0], "{report}");
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Downgraded] {
        assert!(report.count(mode) > 0, "{mode:?}: {report}");
    }
}

#[test]
fn readers_that_ask_one_node_read_beside_a_writer() {
    // The run ends with the first such reader.
    let report = report_of(Kind::Shared, Course::Calm, 60, Protected::No);
    assert!(!report.overlaps.is_empty(), "{report}");
}

#[test]
fn accidents_never_admit_more_holders_than_permits() {
    let report = report_of(Kind::Semaphore, Course::Accidents, 4, Protected::Yes);
    assert_eq!(report.complaints(), [""; 0], "{report}");
}

#[test]
fn run_without_an_accident_is_reported() {
    let report = report_of(Kind::Semaphore, Course::Accidents, 0, Protected::Yes);
    let complaint = "no accident was injected: the run proves nothing";
    assert!(report.complaints().iter().any(|found| found == complaint), "{report}");
}

#[test]
fn counters_on_each_node_admit_too_many_holders() {
    // The run ends when more clients than permits hold the semaphore.
    let report = report_of(Kind::Semaphore, Course::Calm, 60, Protected::No);
    assert!(report.most_at_once > quorlock_faults::kinds::PERMITS, "{report}");
}

/// Checks that clients acquire locks while one master after the other is down or paused.
///
/// `make test-kinds` also measures the cost.
#[track_caller]
fn check_without_each_master(kind: Kind, course: Course) {
    let report = report_of(kind, course, 2, Protected::Yes);
    assert_eq!(report.harm(), [""; 0], "{report}");
    assert!(report.failed_calls.is_empty(), "{report}");
    assert_eq!(report.without_one.len(), 5, "{report}");
    assert!(report.longest_gap < Duration::from_secs(2), "{report}");
}

#[test]
fn shared_locks_are_granted_while_any_one_master_is_down() {
    check_without_each_master(Kind::Shared, Course::OneDown);
}

#[test]
fn permits_are_granted_while_any_one_master_is_paused() {
    check_without_each_master(Kind::Semaphore, Course::OnePaused);
}
