//! Quorlock side by side with its peers. Most figures compare two things that one run measures in
//! turn: absolute times of one machine say little about another machine.
//!
//! - [`peers`]: acquire and release on three nodes, beside `rslock`, also while one node is faulty
//! - [`throughput`]: many tasks that lock at the same time, beside a bare loop and `rslock`
//! - [`kinds`]: shared locks and semaphores beside an exclusive lock
//! - [`handover`]: handing a lock over to waiters
//! - [`cost`]: what a command costs the server, beside plain commands and scripts, and what leases
//!   and waiters cost other clients
//! - [`growth`]: processor time, up to three million leases and back
//! - [`bounds`]: the slowest command and the longest turn with ten thousand waiters or a million
//!   leases
//! - [`program`]: what `quorlock run` costs beside the command alone
//! - [`clients`]: the clients that are compared, and nodes of which one fails
//! - [`instruments`]: sockets, latencies, `INFO`, `SLOWLOG`, processors
//! - [`report`]: the table

mod bounds;
mod clients;
mod cost;
mod growth;
mod handover;
mod instruments;
mod kinds;
mod peers;
mod program;
mod report;
mod throughput;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use quorlock_testkit::{MODULE_VARIABLE, Server, module_path};
use tokio::runtime::Runtime;
use tokio::signal::ctrl_c;

use crate::report::Row;

/// Load average above which figures are unreliable. It does not grow with the number of cores,
/// because cores share caches.
const LOAD_MAX: f64 = 1.0;

/// Measures Quorlock side by side with its peers, and prints a table in Markdown.
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
    #[arg(long, value_name = "GROUP", value_parser = groups())]
    only: Vec<String>,

    /// Measure only this part of the groups; may be repeated
    #[arg(long, value_name = "PART", value_parser = parts())]
    part: Vec<String>,

    /// Shorten each measurement to a third, for rough figures
    #[arg(long)]
    quick: bool,
}

/// What can be measured alone.
struct Part {
    groups: &'static [&'static str],
    name: &'static str,
    measure: fn(&Runtime, Effort) -> anyhow::Result<Vec<Row>>,
}

const PARTS: [Part; 14] = [
    part(&["server-time"], "server-time", |_, effort| cost::of_commands(effort)),
    part(&["cost"], "plain", |_, effort| cost::plain(effort)),
    part(&["growth"], "growth", |_, _| growth::measure()),
    part(&["bounds"], "waiters", |_, _| bounds::with_waiters()),
    part(&["bounds"], "masses", |_, _| bounds::with_masses()),
    part(&["peers"], "peers", |on, effort| in_task(on, peers::measure(effort))),
    part(&["throughput"], "tasks", |on, effort| in_task(on, throughput::many_tasks(effort))),
    part(&["kinds"], "kinds", |on, effort| in_task(on, kinds::measure(effort))),
    part(&["handover", "waiting"], "one-node", |_, effort| handover::on_one_node(effort)),
    part(&["handover", "waiting"], "clients", |on, effort| {
        in_task(on, handover::between_clients(effort))
    }),
    part(&["handover", "waiting"], "one-client", |on, effort| {
        in_task(on, handover::between_tasks(effort))
    }),
    part(&["handover", "waiting"], "lost-node", |on, effort| {
        in_task(on, handover::with_a_lost_node(effort))
    }),
    part(&["cost", "waiting"], "many-waiters", |_, _| cost::of_many_waiters()),
    part(&["program"], "program", |_, effort| program::measure(effort)),
];
/// The groups that are measured only if they are named.
const LATER: [&str; 2] = ["waiting", "program"];

const fn part(
    groups: &'static [&'static str],
    name: &'static str,
    measure: fn(&Runtime, Effort) -> anyhow::Result<Vec<Row>>,
) -> Part {
    Part { groups, name, measure }
}

fn groups() -> PossibleValuesParser {
    PARTS.iter().flat_map(|part| part.groups).collect::<BTreeSet<_>>().into()
}

fn parts() -> PossibleValuesParser {
    PARTS.map(|part| part.name).into()
}

impl Args {
    fn selects(&self, part: &Part) -> bool {
        let is_selected = if self.only.is_empty() {
            !LATER.iter().any(|later| part.groups.contains(later))
        } else {
            self.only.iter().any(|name| part.groups.contains(&&**name))
        };
        is_selected && (self.part.is_empty() || self.part.iter().any(|name| name == part.name))
    }
}

/// Divides the length of each measurement: by one, or by three for rough figures.
#[derive(Clone, Copy)]
struct Effort(u32);

impl Effort {
    fn time(self, full: Duration) -> Duration {
        full / self.0
    }

    fn count(self, full: u32) -> u32 {
        full / self.0
    }
}

fn main() -> ExitCode {
    bench(&Args::parse()).unwrap_or_else(|error| {
        eprintln!("quorlock-bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn bench(args: &Args) -> anyhow::Result<ExitCode> {
    let parts: Vec<_> = PARTS.iter().filter(|part| args.selects(part)).collect();
    ensure!(!parts.is_empty(), "no selected group has such a part");
    require_release_builds()?;
    warn_of_a_busy_machine();
    let effort = Effort(if args.quick { 3 } else { 1 });
    let runtime = Runtime::new().context("cannot start the runtime that the clients need")?;
    let cores = thread::available_parallelism().context("cannot determine the number of cores")?;
    println!("{} on {cores} cores, and the clients run on the same cores.\n", server_version()?);
    println!("{}", report::HEADER);
    let mut misses = false;
    for part in parts {
        eprintln!("{} …", part.name);
        for row in (part.measure)(&runtime, effort).context(part.name)? {
            println!("{row}");
            misses |= row.misses_its_target();
        }
    }
    Ok(if args.check && misses { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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

/// Fails in a debug build, or with a debug build of the module, whose figures say nothing.
fn require_release_builds() -> anyhow::Result<()> {
    ensure!(!cfg!(debug_assertions), "this is a debug build: run `make bench`");
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
