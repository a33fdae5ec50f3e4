//! `quorlock restart-nodes`.

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::time::{Instant, sleep};

use crate::endpoint::Endpoint;
use crate::exit;
use crate::fleet::{Finding, Fleet, FleetArgs, Snapshot, State};
use crate::nodes;
use crate::nodes::SECRET_VARIABLES;
use crate::output::{ms, say};
use crate::values::{duration, text_of_ms};

const LIMIT_DEFAULT: &str = "10m";
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Restarts the nodes one at a time, and waits until each votes again.
///
/// A node that restarts grants no locks for lock.rejoin-delay, by default lock.max-ttl. So a node
/// is restarted only while the other nodes that vote are a majority. After an error, no further
/// node is restarted.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, EXAMPLE, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct RestartNodes {
    /// The nodes to restart, as HOST or HOST:PORT in the list of nodes. Without it, all nodes
    #[arg(value_name = "NODE")]
    only: Vec<String>,

    /// The command that restarts a node. {host} and {port} in its words stand for those of the node
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,

    /// How long to wait until a node votes again. Before a restart, the other nodes have the same
    /// time to become a majority
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = LIMIT_DEFAULT)]
    limit: Duration,

    #[command(flatten)]
    fleet: FleetArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    each node was restarted, and votes
  122  a node does not vote in time, or the others are no majority without it
  125  the command or quorlock itself failed, or the arguments are not understood";

const EXAMPLE: &str = "Example:
  quorlock restart-nodes -- ssh {host} sudo systemctl restart quorlock-node@main";

pub(crate) async fn restart_nodes(args: RestartNodes) -> anyhow::Result<ExitCode> {
    let (fleet, settings) = args.fleet.load()?;
    let endpoints = &settings.endpoints;
    let is_named =
        |endpoint: &Endpoint, name: &String| *name == endpoint.host() || *name == endpoint.name();
    for name in &args.only {
        let is_listed = endpoints.iter().any(|endpoint| is_named(endpoint, name));
        ensure!(is_listed, "{name} is not in the list of nodes: name a node as the list does");
    }
    ensure!(
        endpoints.len() > 2,
        "a fleet of {} has no majority while a node restarts: restart its nodes without this",
        endpoints.len()
    );
    let is_chosen = |endpoint: &Endpoint| {
        args.only.is_empty() || args.only.iter().any(|name| is_named(endpoint, name))
    };
    let chosen = endpoints.iter().enumerate().filter(|(_, endpoint)| is_chosen(endpoint));
    for (node, endpoint) in chosen {
        let name = endpoint.name();
        let others_are_majority =
            |snapshot: &Snapshot| voters_without(snapshot, node) >= snapshot.majority();
        let before = until(&fleet, args.limit, others_are_majority).await;
        let before = match before {
            Ok(snapshot) => run_id(&snapshot, node).map(str::to_owned),
            Err(snapshot) => {
                let (others, needed) = (voters_without(&snapshot, node), snapshot.majority());
                say(format_args!(
                    "{name} was not restarted: without it {others} nodes vote, and a lock needs {needed}"
                ));
                settings.explain_refusal(snapshot.errors());
                return Ok(ExitCode::from(exit::NO_MAJORITY));
            }
        };
        say(format_args!("restarting {name}"));
        restart(&args.command, endpoint)?;
        let votes_again = |snapshot: &Snapshot| {
            snapshot.nodes[node].state == State::Voting
                && run_id(snapshot, node) != before.as_deref()
        };
        if let Err(snapshot) = until(&fleet, args.limit, votes_again).await {
            let state = &snapshot.nodes[node].state;
            let reason =
                state.finding().map(|Finding { what, todo, .. }| format!("{what}: {todo}"));
            let reason = reason.unwrap_or_else(|| "it was not restarted".to_owned());
            let (state, limit) = (state.name(), text_of_ms(ms(args.limit)));
            say(format_args!(
                "{name} is {state} after {limit}: {reason}. No further node was restarted"
            ));
            settings.explain_refusal(snapshot.errors());
            return Ok(ExitCode::from(exit::NO_MAJORITY));
        }
        say(format_args!("{name} votes again"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until a snapshot is as wanted. Returns that snapshot, or the last one if the time is over.
async fn until(
    fleet: &Fleet,
    limit: Duration,
    is_wanted: impl Fn(&Snapshot) -> bool,
) -> Result<Snapshot, Snapshot> {
    let started = Instant::now();
    loop {
        let snapshot = fleet.gather().await;
        if is_wanted(&snapshot) {
            return Ok(snapshot);
        }
        if started.elapsed() >= limit {
            return Err(snapshot);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns how many nodes vote besides this one.
fn voters_without(snapshot: &Snapshot, node: usize) -> usize {
    snapshot.voting() - usize::from(snapshot.nodes[node].state == State::Voting)
}

/// The run id, which changes at each start of the server.
fn run_id(snapshot: &Snapshot, node: usize) -> Option<&str> {
    snapshot.nodes[node].facts()?.hello.run_id.as_deref()
}

fn restart(command: &[String], endpoint: &Endpoint) -> anyhow::Result<()> {
    let (host, port) = (endpoint.host(), endpoint.port().to_string());
    let mut words =
        command.iter().map(|word| word.replace("{host}", &host).replace("{port}", &port));
    let program = words.next().context("no command is given")?;
    // Nothing else is to be done meanwhile, so the call may block.
    let mut command = Command::new(&program);
    for name in SECRET_VARIABLES {
        command.env_remove(name);
    }
    let status = command.args(words).status();
    let status = status.with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("{program} failed for {}: {status}. No further node was restarted", endpoint.name());
    }
    Ok(())
}
