//! `quorlock-sim`: runs fleets of the simulator, or checks the models of the agreement on fences.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Parser, ValueEnum as _};
use quorlock_sim::fleet::{LockKind, Mutant, Plan, Report, run};
use quorlock_sim::{Check, Verdict, in_parallel, models, mutants};

/// Runs whole fleets of clients and nodes under a virtual clock, with faults that a seed draws.
///
/// Exits with 1 if a checker finds a violation, or if a mutant is caught by no seed.
#[derive(Parser)]
#[command(name = "quorlock-sim", version)]
struct Args {
    /// Run one seed, of exclusive locks unless --kind names another kind, and print its report
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from", "mutants"])]
    seed: Option<u64>,

    /// Print the trace of the run
    #[arg(long, requires = "seed")]
    trace: bool,

    /// Run this many seeds of each kind of lock
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seeds: u64,

    /// The first of these seeds
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,

    /// Only this kind of lock
    #[arg(long, value_enum)]
    kind: Option<LockKind>,

    /// Break this rule, which the checkers must notice
    #[arg(long, value_name = "NAME", value_parser = parse_mutant)]
    mutant: Option<Mutant>,

    /// For each mutant, or only for the one of --mutant, find the first seed that catches it
    #[arg(long)]
    mutants: bool,

    /// Check the models of the agreement on fences instead, with each rule and without it
    #[arg(long, exclusive = true)]
    models: bool,
}

fn parse_mutant(name: &str) -> Result<Mutant, String> {
    let found = Mutant::all().find(|mutant| mutant.name() == name);
    found.ok_or_else(|| {
        let names: Vec<_> = Mutant::all().map(Mutant::name).collect();
        format!("use one of: {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let Args { seed, trace, seeds, from, kind, mutant, mutants, models } = Args::parse();
    if models {
        return check_models();
    }
    if mutants {
        let is_wanted = |m: &Mutant| {
            mutant.is_none_or(|only| only == *m) && kind.is_none_or(|kind| m.kind() == kind)
        };
        return first_seeds(from, seeds, is_wanted);
    }
    let plan = |kind, seed| {
        let plan = Plan::draw_of(kind, seed);
        match mutant {
            Some(mutant) => plan.with_mutant(mutant),
            None => plan,
        }
    };
    if let Some(seed) = seed {
        let report = run(&plan(kind.unwrap_or(LockKind::Exclusive), seed), trace);
        print!("{}", report.trace);
        let is_bad = report.violation.is_some();
        println!("{:#?}", Report { trace: String::new(), ..report });
        return if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let kinds = kind.map_or(LockKind::value_variants().to_vec(), |kind| vec![kind]);
    let bad = kinds.into_iter().filter(|&kind| !all_pass(kind, from, seeds, &plan)).count();
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what the search of each model finds, and the steps to each harm.
fn check_models() -> ExitCode {
    let check_all = |checks: Vec<Check>| {
        println!("\n| model | states | seconds | |\n|---|---:|---:|---|");
        checks.iter().filter(|check| !search(check)).count()
    };
    let wrong = check_all(models()) + check_all(mutants());
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Searches one model, and prints its row. Returns whether the verdict is the expected one.
fn search(check: &Check) -> bool {
    let outcome = quorlock_sim::run(check);
    let mut result = match &outcome.verdict {
        Verdict::Holds => "holds".into(),
        Verdict::Broken(property, steps) => format!("{property}: {steps:?}"),
        Verdict::Vacuous(never) => format!("this never happens: {never}"),
    };
    if !outcome.is_expected(check) {
        result = format!("**{result}**");
    }
    let (states, seconds) = (outcome.states, outcome.took.as_secs_f64());
    println!("| {} | {states} | {seconds:.1} | {result} |", check.name);
    outcome.is_expected(check)
}

/// Prints the first seed that catches each mutant.
fn first_seeds(from: u64, seeds: u64, is_wanted: impl Fn(&Mutant) -> bool) -> ExitCode {
    println!("| rule that is broken | kind | first seed | what the checkers say |");
    println!("|---|---|---:|---|");
    let mut all_caught = true;
    for mutant in Mutant::all().filter(is_wanted) {
        let caught = |seed| Some((seed, run(&Plan::of_mutant(mutant, seed), false).violation?));
        let (name, kind) = (mutant.name(), mutant.kind());
        if let Some((seed, what)) = (from..from + seeds).find_map(caught) {
            println!("| {name} | {kind} | {seed} | {what:.100} |");
        } else {
            all_caught = false;
            println!("| {name} | {kind} | **none** | |");
        }
    }
    if all_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs these seeds of a kind on all processors. Returns whether all pass without a violation.
fn all_pass(
    kind: LockKind,
    from: u64,
    seeds: u64,
    plan: &(impl Fn(LockKind, u64) -> Plan + Sync),
) -> bool {
    let [bad, commands, locks] = [const { AtomicU64::new(0) }; 3];
    let began = Instant::now();
    in_parallel(from..from + seeds, |seed| {
        let report = run(&plan(kind, seed), false);
        commands.fetch_add(report.commands, Ordering::Relaxed);
        locks.fetch_add(report.locks, Ordering::Relaxed);
        if let Some(what) = report.violation {
            bad.fetch_add(1, Ordering::Relaxed);
            println!("{kind} {seed}: {what:.200}");
        }
    });
    let seconds = began.elapsed().as_secs().max(1);
    let (bad, commands, locks) = (bad.into_inner(), commands.into_inner(), locks.into_inner());
    println!(
        "{kind}: {seeds} seeds, {} a minute: {locks} locks, {commands} commands, {bad} violations",
        seeds * 60 / seconds
    );
    bad == 0
}
