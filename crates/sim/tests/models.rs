//! The small version of `make model`.

use std::process::Command;

use quorlock_sim::{Check, Size, Verdict, models, mutants, run};

const THREADS: usize = 2;

fn verdict(check: &Check) -> Verdict {
    run(check, THREADS, |_| {}).verdict
}

#[test]
fn every_property_holds_without_a_mutant() {
    for check in models(Size::Small) {
        let verdict = verdict(&check);
        assert!(matches!(verdict, Verdict::Holds), "{}: {verdict:#?}", check.name);
    }
}

#[test]
fn each_model_mutant_breaks_its_property() {
    for check in mutants() {
        let verdict = verdict(&check);
        let noticed =
            matches!(verdict, Verdict::Broken(property, _) if Some(property) == check.breaks);
        assert!(noticed, "{}: {verdict:#?}", check.name);
    }
}

#[test]
fn word_that_selects_nothing_is_an_error() {
    let program = env!("CARGO_BIN_EXE_quorlock-model");
    let ended = Command::new(program).arg("no such name").output().expect("it runs");
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("no such name"), "{ended:?}");
    assert!(ended.stdout.is_empty(), "{ended:?}");
}
