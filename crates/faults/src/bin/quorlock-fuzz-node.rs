//! `quorlock-fuzz-node`: compares a real server with a model of it, step by step.
//!
//! The seed decides the random choices. The timing, and so the steps, differ from run to run: a
//! seed that failed need not fail again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use quorlock_faults::any_seed;
use quorlock_faults::fuzz::{Plan, Report, run};
use quorlock_testkit::find_server_binary;

/// Compares a real server with the model of it, step by step.
///
/// The steps are requests and disconnections of clients, commands of operators, and accidents.
/// Stops at the first difference, prints it with its seed and episode, and exits with 1.
#[derive(Parser)]
#[command(name = "quorlock-fuzz-node", version)]
struct Args {
    /// Seed of all random choices [default: a new one for each run]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// The number of steps
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    steps: u64,

    /// The number of the first episode. Each episode starts a new server
    #[arg(long, default_value_t = 0, value_name = "N")]
    episode: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let plan = Plan {
        seed: args.seed.unwrap_or_else(any_seed),
        steps: args.steps,
        first_episode: args.episode,
    };
    match find_server_binary() {
        Ok(path) => eprintln!("server: {}; seed {}", path.display(), plan.seed),
        Err(error) => {
            eprintln!("quorlock-fuzz-node: {error}");
            return ExitCode::FAILURE;
        }
    }
    match compare(plan) {
        Ok(Report { difference: None, .. }) => ExitCode::SUCCESS,
        Ok(Report { difference: Some(difference), .. }) => {
            eprintln!("quorlock-fuzz-node: the server and the model differ: {difference}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("quorlock-fuzz-node: seed {}: {error:#}", plan.seed);
            ExitCode::FAILURE
        }
    }
}

fn compare(plan: Plan) -> anyhow::Result<Report> {
    let (started, mut shown) = (Instant::now(), Instant::now());
    let report = run(plan, |report| {
        if shown.elapsed() >= Duration::from_secs(10) {
            shown = Instant::now();
            let (seconds, Report { steps, episodes, .. }) = (started.elapsed().as_secs(), report);
            eprintln!("{seconds} s: {steps} of {} steps, {episodes} episodes", plan.steps);
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
    Ok(report)
}
