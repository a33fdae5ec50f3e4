//! `quorlock-sim`: runs fleets of the simulator, or checks the models of the agreement on fences.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Parser, ValueEnum as _};
use quorlock_sim::fleet::{LockKind, Mutant, Plan, Report, run};
use quorlock_sim::{in_parallel, models, mutants};

/// Runs whole fleets of clients and nodes under a virtual clock, with faults that a seed draws.
///
/// Exits with 1 if a checker finds a violation, or if there is no seed that catches a mutant.
#[derive(Parser)]
#[command(name = "quorlock-sim", version)]
struct Args {
    /// Run one seed, of exclusive locks unless --kind or --mutant says otherwise, with its report
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

    /// Break this rule, which shows its harm in one kind of lock, and find the first seed that
    /// catches it
    #[arg(long, value_name = "NAME", value_parser = parse_mutant, conflicts_with = "kind")]
    mutant: Option<Mutant>,

    /// Find the first seed that catches each mutant
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
    let args = Args::parse();
    let is_expected = if args.models {
        models_are_expected()
    } else if let Some(seed) = args.seed {
        passes(&args, seed)
    } else if args.mutants || args.mutant.is_some() {
        all_are_caught(&args)
    } else {
        let kinds = LockKind::value_variants().iter().copied();
        let kinds = kinds.filter(|kind| args.kind.is_none_or(|only| only == *kind));
        kinds.filter(|&kind| !all_pass(kind, &args)).count() == 0
    };
    if is_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what the search of each model finds, and the steps to each harm. Returns whether all
/// verdicts are the expected ones.
fn models_are_expected() -> bool {
    let mut all_expected = true;
    for checks in [models(), mutants()] {
        println!("\n| model | states | seconds | |\n|---|---:|---:|---|");
        for check in checks {
            let outcome = quorlock_sim::run(&check);
            let (states, seconds) = (outcome.states, outcome.took.as_secs_f64());
            let broken = outcome.broken.as_ref();
            let found = broken.map(|(property, steps)| match &steps[..] {
                [] => format!("never happens: {property}"),
                steps => format!("{property}: {steps:?}"),
            });
            let found = found.unwrap_or_else(|| "holds".into());
            let mark = if outcome.is_expected(&check) { "" } else { "**" };
            println!("| {} | {states} | {seconds:.1} | {mark}{found}{mark} |", check.name);
            all_expected &= outcome.is_expected(&check);
        }
    }
    all_expected
}

/// Runs one seed, and prints its report. Returns whether it passes without a violation.
fn passes(args: &Args, seed: u64) -> bool {
    let plan = match args.mutant {
        Some(mutant) => Plan::of_mutant(mutant, seed),
        None => Plan::draw_of(args.kind.unwrap_or(LockKind::Exclusive), seed),
    };
    let report = run(&plan, args.trace);
    print!("{}", report.trace);
    let passes = report.violation.is_none();
    println!("{:#?}", Report { trace: String::new(), ..report });
    passes
}

/// Prints the first seed that catches each mutant. Returns whether all are caught.
fn all_are_caught(args: &Args) -> bool {
    println!("| rule that is broken | kind | first seed | what the checkers say |");
    println!("|---|---|---:|---|");
    let is_wanted = |mutant: &Mutant| {
        args.mutant.is_none_or(|only| only == *mutant)
            && args.kind.is_none_or(|kind| kind == mutant.kind())
    };
    let mut all_caught = true;
    for mutant in Mutant::all().filter(is_wanted) {
        let caught = |seed| Some((seed, run(&Plan::of_mutant(mutant, seed), false).violation?));
        let (name, kind) = (mutant.name(), mutant.kind());
        if let Some((seed, what)) = args.all_seeds().find_map(caught) {
            println!("| {name} | {kind} | {seed} | {what:.100} |");
        } else {
            all_caught = false;
            println!("| {name} | {kind} | **none** | |");
        }
    }
    all_caught
}

/// Runs seeds of a kind on all processors. Returns whether all pass without a violation.
fn all_pass(kind: LockKind, args: &Args) -> bool {
    let [bad, commands, locks] = [const { AtomicU64::new(0) }; 3];
    let began = Instant::now();
    in_parallel(args.all_seeds(), |seed| {
        let report = run(&Plan::draw_of(kind, seed), false);
        commands.fetch_add(report.commands, Ordering::Relaxed);
        locks.fetch_add(report.locks, Ordering::Relaxed);
        if let Some(what) = report.violation {
            bad.fetch_add(1, Ordering::Relaxed);
            println!("{kind} {seed}: {what:.200}");
        }
    });
    let (seeds, seconds) = (args.seeds, began.elapsed().as_secs().max(1));
    let (bad, commands, locks) = (bad.into_inner(), commands.into_inner(), locks.into_inner());
    println!(
        "{kind}: {seeds} seeds, {} a minute: {locks} locks, {commands} commands, {bad} violations",
        seeds * 60 / seconds
    );
    bad == 0
}

impl Args {
    fn all_seeds(&self) -> Range<u64> {
        self.from..self.from + self.seeds
    }
}
