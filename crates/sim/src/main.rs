//! Checks every model and every mutant, and prints the results as two tables.
//!
//! `--small` leaves out the large models. `--steps` prints the steps to the harm. Any other words
//! select the models and mutants whose names contain one of them; without such a model or mutant,
//! exits with 2.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use quorlock_sim::{Check, Outcome, Size, Verdict, models, mutants, run};

fn main() -> ExitCode {
    let (options, words): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word.starts_with('-'));
    if let Some(unknown) =
        options.iter().find(|option| !["--small", "--steps"].contains(&option.as_str()))
    {
        eprintln!(
            "quorlock-model: unknown option {unknown}: the options are --small and --steps, and \
             any other word selects models and broken rules by name"
        );
        return ExitCode::from(2);
    }
    let size =
        if options.iter().any(|option| option == "--small") { Size::Small } else { Size::Full };
    let prints_steps = options.iter().any(|option| option == "--steps");
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let mut states = 0;
    let mut as_expected = true;
    let is_wanted =
        |check: &Check| words.is_empty() || words.iter().any(|word| check.name.contains(word));
    let (mut models, mut mutants) = (models(size), mutants());
    models.retain(is_wanted);
    mutants.retain(is_wanted);
    if models.is_empty() && mutants.is_empty() {
        let words = words.join(" or ");
        eprintln!("quorlock-model: no model or broken rule has a name that contains {words}");
        return ExitCode::from(2);
    }

    println!("| model | states | longest path | seconds | |\n|---|---:|---:|---:|---|");
    for check in &models {
        let outcome = run(check, threads, |states| progress(check, states));
        let result = match &outcome.verdict {
            Verdict::Holds => "holds".into(),
            Verdict::Broken(property, path) => {
                format!("**broken**: {}, in {} steps", property.name(), path.len())
            }
            Verdict::Vacuous(never) => format!("**proves nothing**: this never happens: {never}"),
        };
        print_row(check, &outcome, outcome.depth, &result);
        as_expected &= matches!(outcome.verdict, Verdict::Holds);
        states += outcome.states;
        if prints_steps {
            print_steps(&outcome);
        }
    }
    println!(
        "\n| broken rule | states | steps to the harm | seconds | what breaks |\n\
         |---|---:|---:|---:|---|"
    );
    for check in &mutants {
        let outcome = run(check, threads, |states| progress(check, states));
        let (length, result) = match &outcome.verdict {
            Verdict::Broken(property, path) => (path.len(), property.name().into()),
            Verdict::Holds | Verdict::Vacuous(_) => (0, "**not caught**".into()),
        };
        print_row(check, &outcome, length, &result);
        as_expected &= matches!(outcome.verdict, Verdict::Broken(property, _) if Some(property) == check.breaks);
        states += outcome.states;
        if prints_steps {
            print_steps(&outcome);
        }
    }
    println!("\n{} states in {} s", grouped(states), began.elapsed().as_secs());
    if as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_row(check: &Check, outcome: &Outcome, steps: usize, result: &String) {
    clear_progress();
    let Outcome { states, took, .. } = outcome;
    println!(
        "| {} | {} | {steps} | {:.1} | {result} |",
        check.name,
        grouped(*states),
        took.as_secs_f64()
    );
}

fn print_steps(outcome: &Outcome) {
    if let Verdict::Broken(_, path) = &outcome.verdict {
        for step in path {
            println!("    {step:?}");
        }
    }
}

/// Shows progress on a terminal, in one line that is overwritten.
fn progress(check: &Check, states: usize) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{}: {} states", check.name, grouped(states));
        let _ = stderr().flush();
    }
}

fn clear_progress() {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// Formats a number with commas between groups of three digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
