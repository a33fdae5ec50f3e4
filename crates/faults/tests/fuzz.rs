//! A server and the model agree, step by step. `make fuzz-node` takes more steps.

use quorlock_faults::fuzz::{Plan, run};

#[test]
fn server_and_model_agree_after_each_step() {
    let plan = Plan { seed: 1, steps: 1200, first_episode: 0 };
    let report = run(plan, |_| {}).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(report.difference, None, "{}", report.difference.as_deref().unwrap_or_default());
    assert!(report.steps >= plan.steps, "{report:?}");
}
