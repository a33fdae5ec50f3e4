//! `quorlock-model`: tries every order of events in small models of the agreement on fences, and
//! breaks each of its rules once.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use quorlock_sim::{Check, Outcome, Verdict, models, mutants, run_all};

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
    let began = Instant::now();
    let (mut states, mut as_expected) = (0, true);
    let mut print = |check: &Check, outcome: &Outcome| {
        states += outcome.states;
        as_expected &= outcome.is_expected(check);
        print_row(check, outcome);
        if steps && let Verdict::Broken(_, path) = &outcome.verdict {
            for step in path {
                println!("    {step:?}");
            }
        }
    };
    println!("| model | states | seconds | |\n|---|---:|---:|---|");
    run_all(&models(), &mut print);
    println!("\n| broken rule | states | seconds | what breaks |\n|---|---:|---:|---|");
    run_all(&mutants(), &mut print);
    println!("\n{} states in {} s", grouped(states), began.elapsed().as_secs());
    if as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_row(check: &Check, outcome: &Outcome) {
    let Outcome { states, took, verdict } = outcome;
    let mut result = match verdict {
        Verdict::Holds => "holds".into(),
        Verdict::Broken(property, path) => {
            format!("{}, in {} steps", property.name(), path.len())
        }
        Verdict::Vacuous(never) => format!("this never happens: {never}"),
    };
    if !outcome.is_expected(check) {
        result = format!("**{result}**");
    }
    println!("| {} | {} | {:.1} | {result} |", check.name, grouped(*states), took.as_secs_f64());
}

/// Formats a number with commas between groups of three digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
