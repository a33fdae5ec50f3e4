//! The small version of `make model`.

use quorlock_sim::{Check, SMALL_MODELS, models, mutants, run};

fn assert_expected(checks: &[Check]) {
    for check in checks {
        let outcome = run(check);
        assert!(outcome.is_expected(check), "{}: {:#?}", check.name, outcome.broken);
    }
}

#[test]
fn every_property_holds_without_a_mutant() {
    assert_expected(&models()[..SMALL_MODELS]);
}

#[test]
fn each_model_mutant_breaks_its_property() {
    assert_expected(&mutants());
}
