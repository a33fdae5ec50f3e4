//! `quorlock-faults`: causes accidents on real servers, and prints what they do to locks.
//!
//! Without options it prints a table of all accidents to a single node. `--random`, `--fences` and
//! `--kinds` instead run clients on five masters, and cause accidents meanwhile.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use quorlock_faults::harness::any_seed;
use quorlock_faults::kinds::{Course, Kind};
use quorlock_faults::scenarios::{expire_unreleased, table};
use quorlock_faults::{Protected, exclusion, fences, kinds};
use quorlock_testkit::find_server_binary;

/// Longest allowed time without a grant in a run of `--fences`. Each accident hits one master, but
/// accidents of several masters may coincide, so that no majority votes for some seconds.
const OUTAGE_MAX: Duration = Duration::from_secs(15);
/// Number of locks that expire unreleased.
const UNRELEASED: u32 = 1_000_000;

/// Causes accidents on real servers, and counts the harm that they do to locks.
///
/// Prints a table of all accidents, each with the protection and without. Exits with 1 when an
/// accident does harm despite the protection, when no accident was injected, or when a run without
/// the protection does not have the expected result.
#[derive(Parser)]
#[command(name = "quorlock-faults", version)]
struct Args {
    /// How often each accident happens
    #[arg(long, default_value_t = 3, value_name = "TIMES", conflicts_with = "run", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Instead of the table: runs eight client processes on five masters for this time, with
    /// accidents to single masters; exits with 1 when a fence is not larger than an earlier one
    #[arg(long, value_name = "SECONDS", group = "run", value_parser = clap::value_parser!(u64).range(1..))]
    fences: Option<u64>,

    /// Instead of the table: runs clients on five masters for this time, with accidents at random
    #[arg(long, value_name = "SECONDS", group = "run", value_parser = clap::value_parser!(u64).range(1..))]
    random: Option<u64>,

    /// Instead of the table: runs readers and writers of one key, then clients of a semaphore, on
    /// five masters: without accidents, with one master down or paused, and with accidents at
    /// random, each for about this time or a third of it
    #[arg(long, value_name = "SECONDS", group = "run", value_parser = clap::value_parser!(u64).range(1..))]
    kinds: Option<u64>,

    /// Seed of the accidents and of the clients [default: a new one for each run]
    #[arg(long, requires = "run", value_name = "N")]
    seed: Option<u64>,

    /// Removes one protection, and exits with 1 when there was no harm
    ///
    /// With --random, masters vote at once after a restart. The run ends when two clients hold one
    /// lock. With --fences, a client uses the largest fence of its grants, without agreement. The
    /// run ends when a fence is not larger than an earlier one. With --kinds, a reader asks only
    /// one node, and a semaphore is a counter on each node. The runs end when a writer holds the
    /// lock beside a reader, and when more clients than permits hold the semaphore.
    #[arg(long, requires = "run")]
    unprotected: bool,

    #[command(subcommand)]
    role: Option<Role>,
}

/// What this program does when it runs as a child process of itself.
#[derive(Subcommand)]
enum Role {
    /// Acquires locks and prints their fences
    #[command(hide = true, name = fences::SUBCOMMAND)]
    FencesClient(fences::ClientArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(any_seed);
    let protected = if args.unprotected { Protected::No } else { Protected::Yes };
    let outcome = match args {
        Args { role: Some(Role::FencesClient(client)), .. } => client.run().map(|()| Vec::new()),
        Args { fences: Some(seconds), .. } => {
            run_fences(seed, Duration::from_secs(seconds), protected)
        }
        Args { random: Some(seconds), .. } => {
            run_random(exclusion::Plan { seed, duration: Duration::from_secs(seconds), protected })
        }
        Args { kinds: Some(seconds), .. } => {
            run_kinds(seed, Duration::from_secs(seconds), protected)
        }
        Args { rounds, .. } => run_scenarios(rounds),
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

fn run_scenarios(rounds: u32) -> Result<Vec<String>> {
    eprintln!("server: {}", find_server_binary()?.display());
    let table = table(rounds, |scenario| eprintln!("{}", scenario.accident))?;
    println!("{table}");
    eprintln!("{UNRELEASED} locks that expire unreleased");
    let left = expire_unreleased(UNRELEASED)?;
    println!(
        "{UNRELEASED} locks that expired unreleased left {} leases, {} keys and {} KiB of the {} KiB that they used.",
        left.leases,
        left.keys,
        left.memory_bytes >> 10,
        left.peak_memory_bytes >> 10
    );
    Ok(table.complaints())
}

fn run_random(plan: exclusion::Plan) -> Result<Vec<String>> {
    eprintln!("server: {}; seed {}", find_server_binary()?.display(), plan.seed);
    let report = exclusion::run(plan, |elapsed, grants| {
        eprintln!("{} s: {grants} locks granted", elapsed.as_secs());
    })?;
    println!("{report}");
    let mut complaints = Vec::new();
    match plan.protected {
        Protected::Yes if !report.overlaps.is_empty() => {
            complaints.push(format!("two clients held the same lock; seed {}", plan.seed));
        }
        Protected::No if report.overlaps.is_empty() => {
            complaints.push("no harm without abstention: the run proves nothing".into());
        }
        _ => {}
    }
    if plan.protected == Protected::Yes && report.accidents.is_empty() {
        complaints.push("no accident was injected: the run proves nothing".into());
    }
    if report.grants == 0 {
        complaints.push("no lock was granted: the run proves nothing".into());
    }
    Ok(complaints)
}

fn run_fences(seed: u64, duration: Duration, protected: Protected) -> Result<Vec<String>> {
    eprintln!("server: {}; seed {seed}", find_server_binary()?.display());
    let plan = fences::Plan { seed, duration, protected, program: std::env::current_exe()? };
    let report =
        fences::run(plan, |elapsed, fences| eprintln!("{} s: {fences} locks", elapsed.as_secs()))?;
    println!("{report}");
    let mut complaints = Vec::new();
    match protected {
        Protected::Yes if !report.disorders.is_empty() => {
            complaints.push(format!("fences do not grow; seed {seed}"));
        }
        Protected::No if report.disorders.is_empty() => {
            complaints.push("fences grew even without agreement: the run proves nothing".into());
        }
        _ => {}
    }
    if protected == Protected::Yes && report.accidents.is_empty() {
        complaints.push("no accident was injected: the run proves nothing".into());
    }
    if report.fences == 0 {
        complaints.push("no lock was granted: the run proves nothing".into());
    } else if report.longest_gap > OUTAGE_MAX {
        let seconds = report.longest_gap.as_secs();
        complaints.push(format!("no lock was granted for {seconds} s; seed {seed}"));
    }
    Ok(complaints)
}

fn run_kinds(seed: u64, duration: Duration, protected: Protected) -> Result<Vec<String>> {
    eprintln!("server: {}; seed {seed}", find_server_binary()?.display());
    let mut complaints = Vec::new();
    for kind in [Kind::Shared, Kind::Semaphore] {
        let parts = match protected {
            Protected::Yes => &[
                (Course::Calm, duration / 3),
                (Course::OneDown, duration / 3),
                (Course::OnePaused, duration),
                (Course::Accidents, duration),
            ][..],
            Protected::No => &[(Course::Calm, duration)],
        };
        for &(course, duration) in parts {
            let plan = kinds::Plan { kind, course, seed, duration, protected };
            let report = kinds::run(plan, |elapsed, holds| {
                eprintln!("{} s: {holds} locks", elapsed.as_secs());
            })?;
            println!("{report}");
            complaints.extend(report.complaints());
        }
    }
    Ok(complaints)
}
