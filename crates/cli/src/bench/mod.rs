//! `quorlock bench`: how fast the user's own nodes grant locks.
//!
//! - [`load`]: tasks that acquire and release.
//! - [`report`]: the measurements, and how they are printed.

mod load;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use self::load::{Clients, Load};
use self::report::Report;
use crate::duration::duration;
use crate::nodes::{self, NodeArgs};
use crate::signals::Signals;
use crate::{exit, say};

/// How long each client waits for silent nodes at the end.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(5);

/// Measures how fast the nodes grant and release locks.
///
/// Each task acquires and releases one lock after another. In the first part, each task has its own
/// key. In the second part, all tasks use the same key, each through its own connections. The tasks
/// load the nodes as much as they can: do not run this on busy nodes. The keys begin with --prefix,
/// and are removed at the end.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Bench {
    /// How long each of the two parts takes
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "TIME")]
    duration: Duration,

    /// How many tasks acquire locks at the same time
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    tasks: u16,

    /// The prefix of the keys
    #[arg(long, default_value = "quorlock-bench/", value_name = "TEXT")]
    prefix: String,

    /// Print JSON, with latencies in microseconds
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    nodes: NodeArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    the nodes were measured
  122  no lock was acquired
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, no module, a replica
  128 + the signal that ended quorlock";

pub(crate) async fn bench(args: Bench) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let nodes = args.nodes.load()?;
    ensure!(!args.duration.is_zero(), "--duration must be longer than 0, such as 5s");
    say(format_args!(
        "warning: this loads the {} nodes for twice {:?} with {} tasks",
        nodes.endpoints.len(),
        args.duration,
        args.tasks
    ));
    let (host, process) = (rustix::system::uname(), std::process::id());
    let load = Load {
        nodes: &nodes,
        tasks: args.tasks,
        duration: args.duration,
        key_prefix: format!("{}{}-{process}/", args.prefix, host.nodename().to_string_lossy()),
    };
    let mut clients = Clients::default();
    let measured = signals.interrupting(load.measure(&mut clients)).await;
    clients.clean_up(CLEAN_UP_LIMIT).await;
    let parts = match measured {
        Ok(Ok(Ok(parts))) => parts,
        Ok(Ok(Err(error))) => {
            say(format_args!("no lock was acquired: {error}"));
            return Ok(ExitCode::from(exit::NO_MAJORITY));
        }
        Ok(Err(error)) => return Err(error),
        Err(signal) => return Ok(exit::code_for_signal(signal)),
    };
    let report = Report { nodes: nodes.endpoints.len(), tasks: args.tasks, parts };
    report.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}
