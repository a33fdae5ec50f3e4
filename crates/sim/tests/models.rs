//! The small version of `make model`.

use quorlock_sim::{SMALL_MODELS, models, mutants, run_all};

#[test]
fn every_property_holds_without_a_mutant() {
    run_all(&models()[..SMALL_MODELS], |check, outcome| {
        assert!(outcome.is_expected(check), "{}: {:#?}", check.name, outcome.verdict);
    });
}

#[test]
fn each_model_mutant_breaks_its_property() {
    run_all(&mutants(), |check, outcome| {
        assert!(outcome.is_expected(check), "{}: {:#?}", check.name, outcome.verdict);
    });
}
