//! `quorlock-model`: tries every order of events in small models of the agreement on fences, and
//! breaks each of its rules once.

use std::process::ExitCode;

use clap::Parser;
use quorlock_sim::{Check, Outcome, Verdict, models, mutants, run};

/// Checks models of the agreement on fences, with each rule and without it, and prints two tables.
///
/// Exits with 1 if a model breaks a property, or if a broken rule is not noticed.
#[derive(Parser)]
#[command(name = "quorlock-model", version)]
struct Args {
    /// Print the steps to the harm
    #[arg(long)]
    steps: bool,
}

fn main() -> ExitCode {
    let Args { steps } = Args::parse();
    let mut as_expected = true;
    let mut check_all = |checks: Vec<Check>| {
        for check in checks {
            let outcome = run(&check);
            as_expected &= outcome.is_expected(&check);
            print_row(&check, &outcome);
            if steps && let Verdict::Broken(_, path) = &outcome.verdict {
                for step in path {
                    println!("    {step:?}");
                }
            }
        }
    };
    println!("| model | states | seconds | |\n|---|---:|---:|---|");
    check_all(models());
    println!("\n| broken rule | states | seconds | what breaks |\n|---|---:|---:|---|");
    check_all(mutants());
    if as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_row(check: &Check, outcome: &Outcome) {
    let Outcome { states, took, verdict } = outcome;
    let mut result = match verdict {
        Verdict::Holds => "holds".into(),
        Verdict::Broken(property, path) => format!("{property}, in {} steps", path.len()),
        Verdict::Vacuous(never) => format!("this never happens: {never}"),
    };
    if !outcome.is_expected(check) {
        result = format!("**{result}**");
    }
    println!("| {} | {states} | {:.1} | {result} |", check.name, took.as_secs_f64());
}
