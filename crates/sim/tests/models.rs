//! The small version of `make model`.

use std::process::Command;

use quorlock_sim::{Size, models, mutants, run_all};

#[test]
fn every_property_holds_without_a_mutant() {
    run_all(&models(Size::Small), |check, outcome| {
        assert!(outcome.is_expected(check), "{}: {:#?}", check.name, outcome.verdict);
    });
}

#[test]
fn each_model_mutant_breaks_its_property() {
    run_all(&mutants(), |check, outcome| {
        assert!(outcome.is_expected(check), "{}: {:#?}", check.name, outcome.verdict);
    });
}

#[test]
fn word_that_selects_nothing_is_an_error() {
    let program = env!("CARGO_BIN_EXE_quorlock-model");
    let ended = Command::new(program).arg("no such name").output().expect("it runs");
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("no such name"), "{ended:?}");
    assert!(ended.stdout.is_empty(), "{ended:?}");
}
