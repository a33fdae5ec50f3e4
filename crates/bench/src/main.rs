//! Quorlock side by side with its peers. Each figure is a ratio of two things measured in turn in one run, because what a
//! machine does in a microsecond is of little interest to the owner of another one.
//!
//! - [`server_time`]: what a command costs the server, beside the plain commands and scripts that do the same
//! - [`quorum`]: acquire and release on three nodes, beside `rslock`
//! - [`faults`]: the same with one of the three nodes paused, dead, or behind a network that swallows replies
//! - [`latencies`]: how long things took
//! - [`progress`]: how far the run has come, on stderr
//! - [`table`]: what came of it, on stdout, as markdown

mod faults;
mod latencies;
mod progress;
mod quorum;
mod server_time;
mod table;

use std::process::ExitCode;
use std::thread;

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, ValueEnum};
use quorlock_testkit::{MODULE_VARIABLE, Server, module_path};
use tokio::runtime::Runtime;
use tokio::signal::ctrl_c;

use crate::progress::Progress;
use crate::table::{Row, Table};

/// Measures Quorlock side by side with its peers on servers of its own, and prints a table in markdown.
///
/// The server is the redis-server or valkey-server on PATH, or what `QUORLOCK_SERVER` names.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Exit with 1 when a target is missed
    #[arg(long)]
    check: bool,

    /// Measure only this; may be repeated
    #[arg(long, value_enum)]
    only: Vec<Group>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// What a command costs the server
    ServerTime,
    /// Acquire and release on three nodes
    Quorum,
    /// The same with one of the three nodes out of order
    Faults,
}

fn main() -> ExitCode {
    bench(Args::parse()).unwrap_or_else(|error| {
        eprintln!("quorlock-bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn bench(args: Args) -> anyhow::Result<ExitCode> {
    require_release_builds()?;
    let groups = if args.only.is_empty() { Group::value_variants().to_vec() } else { args.only };

    let progress = Progress::new(groups.iter().map(|group| group.steps()).sum());
    let runtime = Runtime::new().context("cannot start the runtime that the clients need")?;
    let mut table = Table::default();
    for group in groups {
        table.extend(match group {
            Group::ServerTime => server_time::measure(&progress)?,
            Group::Quorum => in_task(&runtime, quorum::measure(progress.clone()))?,
            Group::Faults => in_task(&runtime, faults::measure(progress.clone()))?,
        });
    }
    progress.finish();

    let cores = thread::available_parallelism().context("cannot tell how many cores there are")?;
    println!(
        "{} on {cores} cores, with the clients on the same ones. Server time is the mean of {} calls in the best of {} \
         rounds; all else is the p50 of acquire + release.\n\n{table}",
        server_version()?,
        server_time::KEYS,
        server_time::ROUNDS,
    );
    Ok(if args.check && table.misses_a_target() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Group {
    /// How many steps of progress it takes.
    fn steps(self) -> u64 {
        match self {
            Self::ServerTime => server_time::STEPS,
            Self::Quorum => quorum::STEPS,
            Self::Faults => faults::STEPS,
        }
    }
}

/// Measures in a task of its own, as in a program that serves requests. Ctrl-C is caught, because a server that is paused
/// does not hear of it.
fn in_task(
    runtime: &Runtime,
    measuring: impl Future<Output = anyhow::Result<Vec<Row>>> + Send + 'static,
) -> anyhow::Result<Vec<Row>> {
    runtime.block_on(async {
        tokio::select! {
            measured = tokio::spawn(measuring) => measured?,
            _ = ctrl_c() => bail!("interrupted"),
        }
    })
}

/// Figures of a debug build say nothing.
fn require_release_builds() -> anyhow::Result<()> {
    ensure!(!cfg!(debug_assertions), "this is a debug build: run `make bench`");
    let module = module_path().context("there is no module to measure: run `make bench`, which builds it")?;
    if module.parent().is_some_and(|directory| directory.ends_with("debug")) {
        bail!(
            "{} is a debug build of the module: build the other with `cargo build --release -p quorlock`, and unset \
             {MODULE_VARIABLE} or set it to that one",
            module.display()
        );
    }
    Ok(())
}

/// What the server calls itself, as people do.
fn server_version() -> anyhow::Result<String> {
    let server = Server::builder().start()?;
    let info: String = redis::cmd("INFO").arg("server").query(&mut server.connection())?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    // Valkey also gives a version of Redis that it is compatible with.
    field("valkey_version")
        .map(|version| format!("Valkey {version}"))
        .or_else(|| field("redis_version").map(|version| format!("Redis {version}")))
        .context("the server does not say which version it is")
}
