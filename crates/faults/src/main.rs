//! `quorlock-faults`: what accidents do to locks on real servers, as a table; or five masters and accidents at random, to
//! see whether two hold the same lock, or whether fences grow.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::{Parser, Subcommand};
use quorlock_faults::{Protected, expire_unreleased, fences, random, table};
use quorlock_testkit::find_server_binary;

/// For so long no lock need be had while single masters have accidents, of which two may be away at the same time.
const OUTAGE_MAX: Duration = Duration::from_secs(15);
/// Locks that expire unreleased, and must leave nothing behind.
const UNRELEASED: u32 = 1_000_000;

/// Injects faults into real servers and counts the harm that they do to locks: a table of all faults, each with the
/// protection and without it. Ends with 1 when there is harm with the protection, or none without it.
#[derive(Parser)]
#[command(name = "quorlock-faults", version)]
struct Args {
    /// How often each fault is injected
    #[arg(long, default_value_t = 3, value_name = "TIMES", conflicts_with = "run", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Instead of the table: five masters, eight processes that lock, and accidents of single masters for so long; ends
    /// with 1 when a fence is not larger than the one before
    #[arg(long, value_name = "SECONDS", group = "run", value_parser = clap::value_parser!(u64).range(1..))]
    fences: Option<u64>,

    /// Instead of the table: five masters, several clients, and accidents at random for so long
    #[arg(long, value_name = "SECONDS", group = "run", value_parser = clap::value_parser!(u64).range(1..))]
    random: Option<u64>,

    /// Decides which accidents happen [default: another one each time]
    #[arg(long, requires = "run", value_name = "N")]
    seed: Option<u64>,

    /// With --random, masters vote at once after a restart: ends with the first lock that two hold, and with 1 when there
    /// was none. With --fences, clients do not agree on fences: ends with the first that is not larger than the one
    /// before, and with 1 when there was none
    #[arg(long, requires = "run")]
    unprotected: bool,

    #[command(subcommand)]
    role: Option<Role>,
}

/// What this program does when it is started by itself.
#[derive(Subcommand)]
enum Role {
    /// Takes locks and tells of their fences
    #[command(hide = true, name = fences::NAME)]
    FencesClient(fences::Behaviour),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(any_seed);
    let protected = if args.unprotected { Protected::No } else { Protected::Yes };
    let outcome = match args {
        Args { role: Some(Role::FencesClient(behaviour)), .. } => behaviour.run().map(|()| Vec::new()),
        Args { fences: Some(seconds), .. } => growth(seed, Duration::from_secs(seconds), protected),
        Args { random: Some(seconds), .. } => {
            accidents(random::Plan { seed, duration: Duration::from_secs(seconds), protected })
        }
        Args { rounds, .. } => faults(rounds),
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

/// Accidents at random, and what is wrong with it.
fn accidents(plan: random::Plan) -> Result<Vec<String>> {
    eprintln!("server: {}; seed {}", find_server_binary()?.display(), plan.seed);
    let report = random::run(plan, |elapsed, grants| {
        eprintln!("{} s: {grants} locks granted", elapsed.as_secs());
    })?;
    println!("{report}");
    Ok(complaints(&report))
}

fn complaints(report: &random::Report) -> Vec<String> {
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

/// Whether fences grow, and what is wrong with that.
fn growth(seed: u64, duration: Duration, protected: Protected) -> Result<Vec<String>> {
    eprintln!("server: {}; seed {seed}", find_server_binary()?.display());
    let plan = fences::Plan { seed, duration, protected, program: std::env::current_exe()? };
    let report = fences::run(plan, |elapsed, fences| eprintln!("{} s: {fences} locks", elapsed.as_secs()))?;
    println!("{report}");
    let mut complaints = Vec::new();
    match protected {
        Protected::Yes if !report.disorders.is_empty() => {
            complaints.push(format!("fences do not grow; seed {seed}"));
        }
        Protected::No if report.disorders.is_empty() => {
            complaints.push("without agreement fences grew as well, so that nothing is shown".into());
        }
        _ => {}
    }
    if report.fences == 0 {
        complaints.push("no lock was granted, so that nothing is shown".into());
    } else if report.longest_gap > OUTAGE_MAX {
        complaints.push(format!("no lock was granted for {} s; seed {seed}", report.longest_gap.as_secs()));
    }
    Ok(complaints)
}

fn any_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() % 1_000_000 * 1000 + u64::from(since.subsec_millis())
}
