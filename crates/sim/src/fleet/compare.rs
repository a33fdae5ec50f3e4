//! What each rule about waiting achieves: the same fleet, with the rule and without it.

use std::time::Duration;

use super::clock::{MS, Ns, SECOND};
use super::plan::{Habits, Plan};
use super::{ClientRule, Mutant, Report, run};

pub struct Comparison {
    pub rule: &'static str,
    /// A fleet in which the rule matters.
    pub case: &'static str,
    /// The figures with and without the rule.
    pub with: String,
    pub without: String,
}

/// A rule, the case, the mutant that breaks the rule, the plan, and the figure to print.
type Case = (&'static str, &'static str, ClientRule, Plan, fn(&Report) -> String);

pub fn comparisons() -> impl Iterator<Item = Comparison> {
    let plan = |hold, length| Plan::of_clients(16, &habits(hold), length);
    let (short, ten_minutes) = ((5 * MS, 15 * MS), 600 * SECOND);
    let cases: [Case; 2] = [
        (
            "a call raises its ticket above the numbers in refusals",
            "16 clients that hold the lock for 5 to 15 ms, for a minute",
            ClientRule::TicketNotRaised,
            plan(short, 60 * SECOND),
            shares,
        ),
        (
            "a call with some nodes yields to older calls",
            "16 clients that hold the lock for 5 to 15 ms, for 10 minutes",
            ClientRule::NeverYields,
            plan(short, ten_minutes),
            totals,
        ),
    ];
    cases.into_iter().map(|(rule, case, broken, plan, count)| Comparison {
        rule,
        case,
        with: count(&run(&plan, false)),
        without: count(&run(&plan.clone().with_mutant(Mutant::Client(broken)), false)),
    })
}

#[derive(Clone, Debug)]
pub struct SeveralKeysCost {
    /// Number of locks of one key in a run without other clients.
    pub alone: u64,
    /// Number of locks of one key in a run beside clients that lock two keys.
    pub beside: u64,
    /// Number of locks of two keys beside the locks of one key.
    pub several: u64,
    /// Mean and longest wait for a lock of one key, beside locks of two keys.
    pub single_waits: (Duration, Duration),
    /// Mean and longest wait for a lock of two keys.
    pub several_waits: (Duration, Duration),
}

/// Runs eight clients that lock one of four keys each, alone and beside four that lock two keys.
/// Each client rests for up to `rest_ms` after each lock, and holds a lock for 5 to 15 ms.
pub fn several_keys_cost(rest_ms: u64, seconds: u64) -> SeveralKeysCost {
    const SINGLE: usize = 8;
    let sets: Vec<Vec<usize>> = (0..SINGLE).map(|client| vec![client % 4]).collect();
    let pairs = [vec![0, 1], vec![1, 2], vec![2, 3], vec![0, 3]];
    let habits = Habits { rest: (0, rest_ms * MS), ..habits((5 * MS, 15 * MS)) };
    let length = seconds * SECOND;
    let alone = run(&Plan::of_clients(SINGLE, &habits, length).with_sets(4, sets.clone()), false);
    let all: Vec<Vec<usize>> = sets.into_iter().chain(pairs).collect();
    let beside = run(&Plan::of_clients(all.len(), &habits, length).with_sets(4, all), false);
    let waits = |from: usize, to: usize| {
        let locks: u64 = beside.locks_of_each[from..to].iter().sum();
        let waited: Duration = beside.waited_of_each[from..to].iter().sum();
        let longest = beside.longest_wait_of_each[from..to].iter().max().copied();
        (
            waited.checked_div(u32::try_from(locks).unwrap_or(u32::MAX)).unwrap_or(waited),
            longest.unwrap_or_default(),
        )
    };
    let clients = beside.locks_of_each.len();
    SeveralKeysCost {
        alone: alone.locks(),
        beside: beside.locks_of_each[..SINGLE].iter().sum(),
        several: beside.locks_of_each[SINGLE..].iter().sum(),
        single_waits: waits(0, SINGLE),
        several_waits: waits(SINGLE, clients),
    }
}

/// The habits of clients that wait without a limit, and call again at once.
fn habits(hold: (Ns, Ns)) -> Habits {
    Habits { ttls_ms: vec![10_000], hold, ..Habits::default() }
}

fn longest(report: &Report) -> f64 {
    report.longest_wait_of_each.iter().max().copied().unwrap_or_default().as_secs_f64()
}

fn shares(report: &Report) -> String {
    let most = report.locks_of_each.iter().max().copied().unwrap_or_default();
    let fewest = report.locks_of_each.iter().min().copied().unwrap_or_default();
    format!("{fewest} to {most} locks each, longest wait {:.1} s", longest(report))
}

fn totals(report: &Report) -> String {
    let pause = report.longest_pause.as_secs_f64();
    format!("{} locks, longest pause {pause:.1} s", report.locks())
}
