//! `quorlock-faults`: what accidents do to locks on real servers, as a table; or five masters and accidents at random.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Parser;
use quorlock_faults::random::{self, Plan, Report};
use quorlock_faults::{Protected, expire_unreleased, table};
use quorlock_testkit::find_server_binary;

/// Locks that expire unreleased, and must leave nothing behind.
const UNRELEASED: u32 = 1_000_000;

/// Injects faults into real servers and counts the harm that they do to locks: a table of all faults, each with the
/// protection and without it. Ends with 1 when there is harm with the protection, or none without it.
#[derive(Parser)]
#[command(name = "quorlock-faults", version)]
struct Args {
    /// How often each fault is injected
    #[arg(long, default_value_t = 3, value_name = "TIMES", conflicts_with = "random", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Instead of the table: five masters, several clients, and accidents at random for so long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    random: Option<u64>,

    /// Decides which accidents happen [default: another one each time]
    #[arg(long, requires = "random", value_name = "N")]
    seed: Option<u64>,

    /// Masters vote at once after a restart: ends with the first lock that two hold, and with 1 when there was none
    #[arg(long, requires = "random")]
    unprotected: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.random {
        None => faults(args.rounds),
        Some(seconds) => accidents(Plan {
            seed: args.seed.unwrap_or_else(any_seed),
            duration: Duration::from_secs(seconds),
            protected: if args.unprotected { Protected::No } else { Protected::Yes },
        }),
    };
    match outcome {
        Ok(complaints) if complaints.is_empty() => ExitCode::SUCCESS,
        Ok(complaints) => {
            for complaint in complaints {
                eprintln!("quorlock-faults: {complaint}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("quorlock-faults: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The table, and what is wrong with it.
fn faults(rounds: u32) -> Result<Vec<String>> {
    eprintln!("server: {}", find_server_binary()?.display());
    let table = table(rounds, |scenario| eprintln!("{}", scenario.fault))?;
    println!("{table}");
    eprintln!("{UNRELEASED} locks that expire unreleased");
    let left = expire_unreleased(UNRELEASED)?;
    println!(
        "{UNRELEASED} locks that expired unreleased left {} leases, {} keys and {} KiB, of {} KiB that they had taken.",
        left.leases,
        left.keys,
        left.memory_bytes >> 10,
        left.peak_memory_bytes >> 10
    );
    Ok(table.complaints())
}

/// A run at random, and what is wrong with it.
fn accidents(plan: Plan) -> Result<Vec<String>> {
    eprintln!("server: {}; seed {}", find_server_binary()?.display(), plan.seed);
    let report = random::run(plan, |elapsed, grants| {
        eprintln!("{} s: {grants} locks granted", elapsed.as_secs());
    })?;
    println!("{report}");
    Ok(complaints(&report))
}

fn complaints(report: &Report) -> Vec<String> {
    let mut complaints = Vec::new();
    match report.plan.protected {
        Protected::Yes if !report.overlaps.is_empty() => {
            complaints.push(format!("two held the same lock; seed {}", report.plan.seed));
        }
        Protected::No if report.overlaps.is_empty() => {
            complaints.push("without abstaining nobody was harmed either, so that nothing is shown".into());
        }
        _ => {}
    }
    if report.grants == 0 {
        complaints.push("no lock was granted, so that nothing is shown".into());
    }
    complaints
}

fn any_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() % 1_000_000 * 1000 + u64::from(since.subsec_millis())
}
