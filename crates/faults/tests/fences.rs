//! Fences grow, whatever happens to single masters. `make test-fences` runs longer.

use std::path::PathBuf;
use std::time::Duration;

use quorlock_faults::Protected;
use quorlock_faults::fences::{Plan, Report, run};
use quorlock_faults::harness::any_seed;

#[track_caller]
fn report_of(duration: Duration, protected: Protected) -> Report {
    let seed = any_seed();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_quorlock-faults"));
    run(Plan { seed, duration, protected, program }, |_, _| {})
        .unwrap_or_else(|error| panic!("seed {seed}: {error:#}"))
}

#[test]
fn fences_grow_whatever_happens_to_single_masters() {
    let report = report_of(Duration::from_secs(6), Protected::Yes);
    assert!(report.disorders.is_empty(), "{report}");
    assert!(report.fences > 1, "there are fences to compare: {report}");
    assert!(!report.accidents.is_empty(), "{report}");
}

#[test]
fn fences_without_agreement_repeat_or_fall() {
    // The run ends soon after the first such fence.
    let report = report_of(Duration::from_secs(60), Protected::No);
    assert!(!report.disorders.is_empty(), "{report}");
}
