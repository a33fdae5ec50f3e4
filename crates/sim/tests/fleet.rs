//! Seeds that run in a test; `make sim` runs more.

use std::sync::atomic::{AtomicU64, Ordering};

use quorlock_sim::fleet::{Mutant, Plan, Report, run};

const SEEDS: u64 = 200;

/// Runs seeds on two threads until one of them is bad.
fn first_bad(seeds: u64, plan: impl Fn(u64) -> Plan + Sync) -> Option<Report> {
    let next = AtomicU64::new(0);
    let search = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return None;
            }
            let report = run(&plan(seed), false);
            if report.violation.is_some() {
                next.store(seeds, Ordering::Relaxed);
                return Some(report);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(search), scope.spawn(search)];
        threads.into_iter().find_map(|thread| thread.join().expect("a run does not panic"))
    })
}

#[test]
fn fleets_keep_every_promise_under_faults() {
    if let Some(Report { seed, violation, .. }) = first_bad(SEEDS, Plan::draw) {
        panic!("seed {seed}: {violation:?}");
    }
}

#[test]
fn seed_reproduces_its_run_to_the_byte() {
    for seed in [3, 7, 42] {
        let plan = Plan::draw(seed);
        let (one, another) = (run(&plan, true), run(&plan, true));
        assert!(one.locks() > 0, "seed {seed}");
        assert_eq!(one.trace, another.trace, "seed {seed}");
    }
}

#[test]
fn node_that_does_not_abstain_is_noticed() {
    let found = first_bad(250, |seed| Plan::draw(seed).with_mutant(Mutant::NoAbstention));
    assert!(found.is_some());
}
