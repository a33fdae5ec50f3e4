//! `quorlock-faults`: causes accidents on real servers, and prints what they do to locks.
//!
//! Without options it prints a table of all accidents to a single node. `--storm` instead runs
//! clients on five nodes, and causes accidents meanwhile. `--fuzz` compares a server with a model.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{ArgGroup, Parser};
use quorlock_faults::fuzz;
use quorlock_faults::scenarios::{ALL, HEAD, Row, expire_unreleased};
use quorlock_faults::storm::{Course, Kind, Plan, run};
use quorlock_faults::{Protected, any_seed};
use quorlock_testkit::find_server_binary;

/// Number of locks that expire unreleased.
const UNRELEASED: u32 = 1_000_000;

/// Causes accidents on real servers, and counts the harm that they do to locks.
///
/// Prints a table of all accidents, each with the protection and without. Exits with 1 when an
/// accident does harm despite the protection, when no accident was injected, or when a run without
/// the protection does not have the expected result.
#[derive(Parser)]
#[command(name = "quorlock-faults", version)]
#[command(group(ArgGroup::new("random").args(["storm", "fuzz"])))]
struct Args {
    /// How often each accident happens
    #[arg(long, default_value_t = 3, value_name = "TIMES", conflicts_with = "random", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Instead of the table: runs clients of this kind of lock on five nodes; repeatable
    #[arg(long, value_name = "KIND")]
    storm: Vec<Kind>,

    /// What happens to the nodes [default: all that there is for the kind of lock]
    #[arg(long, requires = "storm")]
    course: Option<Course>,

    /// How long a storm takes. Without accidents, and with one node down, a third of it
    #[arg(long, requires = "storm", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Seed of all random choices, but not of the timing [default: a new one for each run]
    #[arg(long, requires = "random", value_name = "N")]
    seed: Option<u64>,

    /// Instead of the table: compares a server with a model of it after each of so many random
    /// steps, which are requests, disconnections, commands of operators, and accidents. Prints the
    /// first difference with its seed and episode
    #[arg(long, value_name = "STEPS")]
    fuzz: Option<u64>,

    /// The number of the first episode of steps. Each episode starts a new server
    #[arg(long, requires = "fuzz", default_value_t = 0, value_name = "N")]
    episode: u64,

    /// Removes the protection that the kind of lock names; exits with 1 when there was no harm
    #[arg(long, requires = "storm")]
    unprotected: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.fuzz {
        Some(steps) => run_steps(&args, steps),
        None if args.storm.is_empty() => run_scenarios(args.rounds),
        None => run_storms(&args),
    };
    let complaints = outcome.unwrap_or_else(|error| vec![format!("{error:#}")]);
    for complaint in &complaints {
        eprintln!("quorlock-faults: {complaint}");
    }
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_scenarios(rounds: u32) -> Result<Vec<String>> {
    eprintln!("server: {}", find_server_binary()?.display());
    let mut complaints = Vec::new();
    println!("{HEAD}");
    for scenario in ALL {
        let row = Row::of(scenario, rounds)?;
        println!("{row}");
        complaints.extend(row.complaints());
    }
    eprintln!("{UNRELEASED} locks that expire unreleased");
    let left = expire_unreleased(UNRELEASED)?;
    println!(
        "{UNRELEASED} locks that expired unreleased left no lease, no key, and {} KiB of the {} KiB that they used.",
        left.memory_bytes >> 10,
        left.peak_memory_bytes >> 10
    );
    Ok(complaints)
}

fn run_storms(args: &Args) -> Result<Vec<String>> {
    let seed = args.seed.unwrap_or_else(any_seed);
    eprintln!("server: {}; seed {seed}", find_server_binary()?.display());
    let protected = if args.unprotected { Protected::No } else { Protected::Yes };
    let duration = Duration::from_secs(args.seconds);
    let mut complaints = Vec::new();
    for &kind in &args.storm {
        let plans = match args.course {
            Some(course) => vec![Plan { kind, course, seed, duration, protected }],
            None => Plan::all(kind, seed, duration, protected),
        };
        for plan in plans {
            let outcome = run(plan, |elapsed, holds| {
                eprintln!("{} s: {holds} locks", elapsed.as_secs());
            })?;
            println!("{outcome}");
            complaints.extend(outcome.complaints());
        }
    }
    Ok(complaints)
}

fn run_steps(args: &Args, steps: u64) -> Result<Vec<String>> {
    let seed = args.seed.unwrap_or_else(any_seed);
    eprintln!("server: {}; seed {seed}", find_server_binary()?.display());
    let plan = fuzz::Plan { seed, steps, first_episode: args.episode };
    let (started, mut shown) = (Instant::now(), Instant::now());
    let report = fuzz::run(plan, |report| {
        if shown.elapsed() >= Duration::from_secs(10) {
            shown = Instant::now();
            let (seconds, episodes) = (started.elapsed().as_secs(), report.episodes);
            eprintln!("{seconds} s: {} of {steps} steps, {episodes} episodes", report.steps);
        }
    })?;
    let kinds: Vec<_> =
        report.kinds.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
    println!(
        "{} steps of {} episodes in {} s; {} episodes ended early because a step had no certain \
         result. {}",
        report.steps,
        report.episodes,
        started.elapsed().as_secs(),
        report.cut_short,
        kinds.join(", ")
    );
    let differs = |difference| format!("the server and the model differ: {difference}");
    Ok(report.difference.into_iter().map(differs).collect())
}
