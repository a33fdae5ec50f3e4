//! Quorlock side by side with its peers. Most figures compare two things that one run measures in
//! turn: absolute times of one machine say little about another machine.
//!
//! - [`server_time`]: what a command costs the server, beside plain commands and scripts that do
//!   the same
//! - [`plain`]: plain commands of other clients, beside a server without the module
//! - [`quorum`]: acquire and release on three nodes, beside `rslock`
//! - [`throughput`]: many tasks that lock at the same time, beside a loop that only sends the
//!   same commands, and beside `rslock`
//! - [`faults`]: acquire and release with one of three nodes paused, dead, or unable to reply
//! - [`growth`]: the slowest command, the longest turn, and memory, up to three million leases and
//!   back
//! - [`bounds`]: the slowest command and the longest turn while ten thousand clients wait
//! - [`masses`]: the same with a million readers or leases
//! - [`versions`]: server time of one build of the module, beside that of another
//! - [`waiting`]: handing a lock over to waiters
//! - [`kinds`]: shared locks and semaphores beside an exclusive lock
//! - [`program`]: what `quorlock run` costs beside the command alone
//! - [`probes`]: instruments: sockets, latencies, `INFO`, `SLOWLOG`, processors
//! - [`report`]: progress on stderr, and tables on stdout

mod bounds;
mod faults;
mod growth;
mod kinds;
mod masses;
mod plain;
mod probes;
mod program;
mod quorum;
mod report;
mod server_time;
mod throughput;
mod versions;
mod waiting;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, thread};

use anyhow::{Context as _, bail, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use quorlock_testkit::{MODULE_VARIABLE, Server, module_path};
use tokio::runtime::Runtime;
use tokio::signal::ctrl_c;

use crate::report::{Progress, Row, TargetRow, peer_table, target_table};
use crate::waiting::Waiting;
use crate::waiting::processes::Behaviour;

/// Load average above which figures are unreliable. It does not grow with the number of cores,
/// because cores share caches.
const LOAD_MAX: f64 = 1.0;

/// Measures Quorlock side by side with its peers, and prints tables in Markdown.
///
/// Starts servers of its own: the redis-server or valkey-server on PATH, or the program that
/// `QUORLOCK_SERVER` names.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Exit with 1 when a target is missed
    #[arg(long)]
    check: bool,

    /// Measure only this group; may be repeated. Without it, all groups but waiting and program
    #[arg(long, value_enum)]
    only: Vec<Group>,

    /// Measure only the server time of this build of the module, beside that of --against
    #[arg(long, value_name = "FILE", requires = "against", conflicts_with = "only")]
    module: Option<PathBuf>,

    /// The other build of the module, of an earlier version for example
    #[arg(long, value_name = "FILE", requires = "module")]
    against: Option<PathBuf>,

    #[command(flatten)]
    waiting: Waiting,

    #[command(subcommand)]
    role: Option<Role>,
}

/// What this program does when it has started itself as a child process.
#[derive(Subcommand)]
enum Role {
    /// Competes for a lock
    #[command(hide = true, name = waiting::processes::NAME)]
    Worker(Behaviour),
}

/// A group of measurements that can run alone.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// What a command costs the server
    ServerTime,
    /// Plain commands of clients without locks, beside 100,000 leases
    Plain,
    /// Acquire and release on three nodes
    Quorum,
    /// Locks per second of many tasks
    Throughput,
    /// Acquire and release with one of three nodes faulty
    Faults,
    /// The slowest command on the way to three million leases and back
    Growth,
    /// The slowest command and turn while ten thousand clients wait, and with a million leases
    Bounds,
    /// Shared locks and semaphores beside an exclusive lock
    Kinds,
    /// Handing a lock over to waiters
    Waiting,
    /// `quorlock run` beside the command alone
    Program,
}

fn main() -> ExitCode {
    bench(Args::parse()).unwrap_or_else(|error| {
        eprintln!("quorlock-bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn bench(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(Role::Worker(behaviour)) = args.role {
        return waiting::processes::run(&behaviour).map(|()| ExitCode::SUCCESS);
    }
    require_release_build()?;
    if let (Some(module), Some(against)) = (&args.module, &args.against) {
        return compare_modules(module, against, args.check);
    }
    require_release_module()?;
    warn_of_a_busy_machine();
    let groups = if args.only.is_empty() { Group::DEFAULT.to_vec() } else { args.only };

    let progress = Progress::new(groups.iter().map(|group| group.steps(&args.waiting)).sum());
    let runtime = Runtime::new().context("cannot start the runtime that the clients need")?;
    let (mut rows, mut targets): (Vec<Row>, Vec<TargetRow>) = (Vec::new(), Vec::new());
    for group in groups {
        let progress = progress.clone();
        match group {
            Group::ServerTime => rows.extend(server_time::measure(&progress)?),
            Group::Plain => rows.extend(plain::measure(&progress)?),
            Group::Quorum => rows.extend(in_task(&runtime, quorum::measure(progress))?),
            Group::Throughput => rows.extend(in_task(&runtime, throughput::measure(progress))?),
            Group::Faults => rows.extend(in_task(&runtime, faults::measure(progress))?),
            Group::Kinds => {
                let (rows_of_kinds, targets_of_kinds) =
                    in_task(&runtime, kinds::measure(progress))?;
                rows.extend(rows_of_kinds);
                targets.extend(targets_of_kinds);
            }
            Group::Growth => targets.extend(growth::measure(&progress)?),
            Group::Bounds => targets.extend(bounds::measure(&progress)?),
            Group::Program => targets.extend(program::measure(&progress)?),
            Group::Waiting => {
                targets.extend(in_task(&runtime, args.waiting.clone().measure(progress))?);
            }
        }
    }
    progress.finish();

    let cores = thread::available_parallelism().context("cannot determine the number of cores")?;
    let server = server_version()?;
    if !rows.is_empty() {
        println!(
            "{server} on {cores} cores, and the clients run on the same cores. The server time of a command is the mean of all \
             calls in the best round. The time of a plain command is the mean in the best of {} rounds. Where \
             tasks run at the same time, the time of a lock is the duration of the run, divided by the number of locks that \
             all tasks acquired. All other figures are the p50 of acquire + release.\n\n{}",
            plain::ROUNDS,
            peer_table(&rows),
        );
    }
    if !targets.is_empty() {
        println!(
            "{server} on {cores} cores, and the clients run on the same cores.\n\n{}",
            target_table(&targets)
        );
    }
    let misses_a_target = rows.iter().any(Row::misses_its_target) || misses_any(&targets);
    Ok(if args.check && misses_a_target { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Group {
    const DEFAULT: [Self; 8] = [
        Self::ServerTime,
        Self::Plain,
        Self::Growth,
        Self::Bounds,
        Self::Quorum,
        Self::Throughput,
        Self::Faults,
        Self::Kinds,
    ];

    fn steps(self, waiting: &Waiting) -> u64 {
        match self {
            Self::ServerTime => server_time::STEPS,
            Self::Plain => plain::STEPS,
            Self::Quorum => quorum::STEPS,
            Self::Throughput => throughput::STEPS,
            Self::Faults => faults::STEPS,
            Self::Growth => growth::STEPS,
            Self::Bounds => bounds::STEPS,
            Self::Kinds => kinds::STEPS,
            Self::Waiting => waiting.steps(),
            Self::Program => program::STEPS,
        }
    }
}

fn compare_modules(module: &Path, against: &Path, check: bool) -> anyhow::Result<ExitCode> {
    warn_of_a_busy_machine();
    let progress = Progress::new(versions::STEPS);
    let targets = versions::measure(module, against, &progress)?;
    progress.finish();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{}, load {}.\n\n{}", server_version()?, load.trim(), target_table(&targets));
    let fails = check && misses_any(&targets);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn misses_any(targets: &[TargetRow]) -> bool {
    targets.iter().any(|target| !target.met)
}

/// Measures in a spawned task, as in a program that serves requests.
///
/// Catches Ctrl-C, so that the servers are dropped: a paused server would not end on Ctrl-C.
fn in_task<T: Send + 'static>(
    runtime: &Runtime,
    measuring: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    runtime.block_on(async {
        tokio::select! {
            measured = tokio::spawn(measuring) => measured?,
            _ = ctrl_c() => bail!("interrupted"),
        }
    })
}

/// Fails in a debug build, whose figures say nothing.
fn require_release_build() -> anyhow::Result<()> {
    ensure!(!cfg!(debug_assertions), "this is a debug build: run `make bench`");
    Ok(())
}

fn require_release_module() -> anyhow::Result<()> {
    let module = module_path()
        .context("there is no module to measure: run `make bench`, which builds it")?;
    if module.parent().is_some_and(|directory| directory.ends_with("debug")) {
        bail!(
            "{} is a debug build of the module: run `cargo build --release -p quorlock`, and unset {MODULE_VARIABLE} or set \
             it to the release build",
            module.display()
        );
    }
    Ok(())
}

/// Warns if other programs run: they may slow one side of a ratio more than the other.
fn warn_of_a_busy_machine() {
    let load = fs::read_to_string("/proc/loadavg").ok();
    let load = load.as_deref().and_then(|load| load.split(' ').next());
    if let Some(load) = load.filter(|load| load.parse().is_ok_and(|load: f64| load > LOAD_MAX)) {
        eprintln!(
            "the load average is {load} before the start: run this again while no other programs run"
        );
    }
}

fn server_version() -> anyhow::Result<String> {
    let server = Server::builder().start()?;
    let info: String = redis::cmd("INFO").arg("server").query(&mut server.connection())?;
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    // Valkey also reports a version of Redis with which it is compatible.
    field("valkey_version")
        .map(|version| format!("Valkey {version}"))
        .or_else(|| field("redis_version").map(|version| format!("Redis {version}")))
        .context("the server does not say which version it is")
}
