//! What each rule about waiting achieves: the same fleet, with the rule and without it.

use std::time::Duration;

use super::clock::{MS, Ns, SECOND};
use super::plan::{Habits, Plan};
use super::{ClientRule, Mutant, Report, run};

/// A rule, and a case in which it matters.
pub struct Comparison {
    /// The rule.
    pub rule: &'static str,
    /// The case.
    pub case: &'static str,
    /// The figure with the rule.
    pub with: String,
    /// The figure without it.
    pub without: String,
}

/// A rule, the case, the mutant that breaks the rule, the plan, and the figure to print.
type Case = (&'static str, &'static str, ClientRule, Plan, fn(&Report) -> String);

/// Runs each case with its rule and without it.
pub fn comparisons() -> impl Iterator<Item = Comparison> {
    let cases: [Case; 5] = [
        (
            "a refusal of the queue node decides a first attempt",
            "16 clients that hold the lock for 5 to 15 ms, of which 8 queue and 8 do not remember \
             contention, for a minute",
            ClientRule::QueueNodeOutvoted,
            newcomers(),
            shares,
        ),
        (
            "a client waits on the first node that refused it",
            "16 clients that hold the lock for 2 to 4 s, of which 15 do not reach the queue node, \
             for 10 minutes",
            ClientRule::WaitsOnQueueNode,
            unreachable_queue_node(),
            costs,
        ),
        (
            "a waiter stays in the queue",
            "16 clients that hold the lock for 200 to 400 ms, for 10 minutes",
            ClientRule::LeavesQueue,
            Plan::of_clients(16, &habits((200 * MS, 400 * MS)), 600 * SECOND),
            shares,
        ),
        (
            "a waiter bypasses the queue node if only that node refuses",
            "16 clients that hold the lock for 5 to 15 ms, with a ttl of 10 s; a RELEASE to the \
             queue node is lost every 20 s, for 10 minutes",
            ClientRule::NeverBypasses,
            lost_releases(),
            totals,
        ),
        (
            "the winner of a tie repeats its request",
            "16 clients that do not wait ask for a free lock at the same moment, \
             every second for 10 minutes",
            ClientRule::NoTieRepeat,
            meetings(),
            wins,
        ),
    ];
    cases.into_iter().map(|(rule, case, broken, plan, count)| Comparison {
        rule,
        case,
        with: count(&run(&plan, false)),
        without: count(&run(&plan.clone().with_mutant(Mutant::Client(broken)), false)),
    })
}

/// Figures of clients that lock one key, beside clients that lock two keys at once.
#[derive(Clone, Debug)]
pub struct SeveralKeysCost {
    /// Number of locks of one key in a run without other clients.
    pub alone: u64,
    /// Number of locks of one key in a run beside clients that lock two keys.
    pub beside: u64,
    /// Number of locks of two keys in that run.
    pub several: u64,
    /// Mean and longest wait for a lock of one key in that run.
    pub single_waits: (Duration, Duration),
    /// Mean and longest wait for a lock of two keys in that run.
    pub several_waits: (Duration, Duration),
}

/// Runs eight clients that lock one of four keys each, alone and beside four that lock two keys.
///
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

fn newcomers() -> Plan {
    Plan::of_clients(16, &habits((5 * MS, 15 * MS)), 60 * SECOND).with_newcomers(8)
}

fn unreachable_queue_node() -> Plan {
    Plan::of_clients(16, &habits((2 * SECOND, 4 * SECOND)), 600 * SECOND)
        .with_unreachable_queue_node(15)
}

fn lost_releases() -> Plan {
    Plan::of_clients(16, &habits((5 * MS, 15 * MS)), 600 * SECOND).with_lost_releases(20 * SECOND)
}

fn meetings() -> Plan {
    let habits = Habits { waits_percent: [100, 0, 0], ..habits((5 * MS, 15 * MS)) };
    Plan::of_clients(16, &habits, 600 * SECOND).with_meetings(SECOND)
}

fn longest(report: &Report) -> f64 {
    report.longest_wait_of_each.iter().max().copied().unwrap_or_default().as_secs_f64()
}

fn per_lock(report: &Report) -> u64 {
    report.commands / report.locks().max(1)
}

fn shares(report: &Report) -> String {
    let most = report.locks_of_each.iter().max().copied().unwrap_or_default();
    let fewest = report.locks_of_each.iter().min().copied().unwrap_or_default();
    format!("{fewest} to {most} locks each, longest wait {:.1} s", longest(report))
}

fn costs(report: &Report) -> String {
    format!(
        "{} commands per lock, {} locks, longest wait {:.1} s",
        per_lock(report),
        report.locks(),
        longest(report)
    )
}

fn totals(report: &Report) -> String {
    let pause = report.longest_pause.as_secs_f64();
    format!("{} locks, longest pause {pause:.1} s", report.locks())
}

fn wins(report: &Report) -> String {
    format!("{} locks, {} commands per lock", report.locks(), per_lock(report))
}
