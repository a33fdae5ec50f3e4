//! The small version of `make model`.

use quorlock_sim::{Check, Size, Verdict, models, mutants, run};

const THREADS: usize = 2;

fn verdict(check: &Check) -> Verdict {
    run(check, THREADS, |_| {}).verdict
}

#[test]
fn every_rule_holds_as_it_is() {
    for check in models(Size::Small) {
        let verdict = verdict(&check);
        assert!(matches!(verdict, Verdict::Holds), "{}: {verdict:#?}", check.name);
    }
}

#[test]
fn every_rule_that_is_broken_is_noticed() {
    for check in mutants() {
        let verdict = verdict(&check);
        let noticed =
            matches!(verdict, Verdict::Broken(property, _) if Some(property) == check.breaks);
        assert!(noticed, "{}: {verdict:#?}", check.name);
    }
}
