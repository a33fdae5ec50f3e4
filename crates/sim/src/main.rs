//! Checks every model and every mutant, and prints the results as two tables.
//!
//! With `--small`, checks smaller models; with `--steps`, prints the counterexample of each mutant;
//! with words, checks only models whose names contain one of them.

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
            "quorlock-model: there is no {unknown}: only --small, --steps, and words of names"
        );
        return ExitCode::from(2);
    }
    let size =
        if options.iter().any(|option| option == "--small") { Size::Small } else { Size::Full };
    let steps = options.iter().any(|option| option == "--steps");
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let mut states = 0;
    let mut as_expected = true;
    let is_named = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let wanted = |check: &Check| is_named(&check.name);

    println!("| model | states | longest way | seconds | |\n|---|---:|---:|---:|---|");
    for check in models(size).iter().filter(|check| wanted(check)) {
        let outcome = run(check, threads, |states| progress(check, states));
        let result = match &outcome.verdict {
            Verdict::Holds => "holds".into(),
            Verdict::Broken(property, way) => {
                format!("**broken**: {}, in {} steps", property.name(), way.len())
            }
            Verdict::Vacuous(never) => format!("**proves nothing**: never {never}"),
        };
        row(check, &outcome, outcome.depth, &result);
        as_expected &= matches!(outcome.verdict, Verdict::Holds);
        states += outcome.states;
        show(steps, &outcome);
    }
    println!(
        "\n| broken rule | states | counterexample | seconds | what breaks |\n|---|---:|---:|---:|---|"
    );
    for check in mutants().iter().filter(|check| wanted(check)) {
        let outcome = run(check, threads, |states| progress(check, states));
        let (length, result) = match &outcome.verdict {
            Verdict::Broken(property, way) => (way.len(), property.name().into()),
            Verdict::Holds | Verdict::Vacuous(_) => (0, "**not caught**".into()),
        };
        row(check, &outcome, length, &result);
        as_expected &= matches!(outcome.verdict, Verdict::Broken(property, _) if Some(property) == check.breaks);
        states += outcome.states;
        show(steps, &outcome);
    }
    println!("\n{} states in {} s", grouped(states), began.elapsed().as_secs());
    if as_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn row(check: &Check, outcome: &Outcome, steps: usize, result: &String) {
    clear();
    let Outcome { states, took, .. } = outcome;
    println!(
        "| {} | {} | {steps} | {:.1} | {result} |",
        check.name,
        grouped(*states),
        took.as_secs_f64()
    );
}

fn show(steps: bool, outcome: &Outcome) {
    if let (true, Verdict::Broken(_, way)) = (steps, &outcome.verdict) {
        for step in way {
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

fn clear() {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
