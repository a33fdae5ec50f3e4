//! `quorlock status`: the state of every node.

use std::io::{IsTerminal as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use crate::fleet::{Finding, FleetArgs, NodeReport, Snapshot};
use crate::output::{
    self, COLUMNS, Fit, escape, fitted, or_dash, paragraph, short_time, signed_time, try_print,
    with_heading,
};
use crate::system::Signals;
use crate::values::interval;
use crate::{exit, nodes};

/// The interval of `--watch` without a value.
const WATCH_EVERY: &str = "2s";

/// Moves the cursor to the top left corner of the terminal and erases all below it.
const REDRAW: &str = "\x1b[H\x1b[J";

/// Precedes the reasons below a node.
const INDENT: &str = "  ";

const HEADINGS: [&str; 9] =
    ["NODE", "STATE", "MODULE", "SERVER", "SET", "LEASES", "WAITERS", "ROUND TRIP", "CLOCK"];

/// Shows the state of every node, and whether a majority votes.
///
/// Each node is asked separately. If a node does not vote, the line below it has the reason. CLOCK
/// is how far the node's wall clock is ahead of this machine's, to within half a round trip. `-`
/// stands for an unknown value.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Status {
    /// Print JSON; with --watch one line each time
    #[arg(long)]
    json: bool,

    /// Repeat at this interval, and redraw the terminal [default interval: 2s]
    #[arg(long, value_parser = interval, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = WATCH_EVERY)]
    watch: Option<Duration>,

    #[command(flatten)]
    fleet: FleetArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    a majority of the nodes votes
  122  fewer than a majority of the nodes vote: no lock can be acquired
  125  quorlock itself failed, or its arguments are not understood
  128 + the signal that ended --watch";

pub(crate) async fn status(args: Status) -> anyhow::Result<ExitCode> {
    let (fleet, nodes) = args.fleet.load()?;
    let Some(every) = args.watch else {
        let snapshot = fleet.gather().await;
        try_print(&text(&snapshot, args.json), "the state")?;
        nodes.explain_refusal(snapshot.errors());
        let code = if snapshot.has_majority() { exit::SUCCESS } else { exit::NO_MAJORITY };
        return Ok(ExitCode::from(code));
    };
    let redraws = stdout().is_terminal() && !args.json;
    let watching = async {
        loop {
            let text = text(&fleet.gather().await, args.json);
            try_print(&if redraws { format!("{REDRAW}{text}") } else { text }, "the state")?;
            tokio::time::sleep(every).await;
        }
    };
    Signals::listen()?.interrupting(watching).await?
}

fn text(snapshot: &Snapshot, json: bool) -> String {
    if json { output::json(&snapshot.json()) } else { table(snapshot) }
}

/// Formats the table. The lines below a node that does not vote say why, and for how long.
fn table(snapshot: &Snapshot) -> String {
    let rows = with_heading(HEADINGS, snapshot.nodes.iter().map(cells));
    let fit = Fit {
        numbers_from: Some(5),
        shortened: &[(0, 20), (4, 8), (3, 8), (0, 10)],
        left_out: &[],
        starts_with_address: true,
    };
    let mut lines = fitted(&rows, &fit, COLUMNS).into_iter();
    let mut shown = Vec::from_iter(lines.next().map(|heading| heading + "\n"));
    for (line, node) in lines.zip(&snapshot.nodes) {
        shown.push(line + "\n");
        if let Some(Finding { what, todo, .. }) = node.state.finding() {
            shown.push(paragraph(&format!("{what}: {todo}"), INDENT, INDENT));
        }
    }
    let (voting, nodes, needed) = (snapshot.voting(), snapshot.nodes.len(), snapshot.majority());
    let verdict = if snapshot.has_majority() {
        ": a majority".to_owned()
    } else {
        format!("; a majority is {needed}. No lock can be acquired")
    };
    format!("{}\n{voting} of {nodes} nodes vote{verdict}.\n", shown.concat())
}

fn cells(node: &NodeReport) -> Vec<String> {
    let facts = node.facts();
    let module = node.module();
    vec![
        escape(&node.name),
        node.state.name().to_owned(),
        or_dash(module.map(|module| module.version.clone())),
        or_dash(facts.map(|facts| facts.server.clone())),
        or_dash(node.set().map(|set| format!("{} {}", set.name(), set.id()))),
        or_dash(module.map(|module| module.leases.to_string())),
        or_dash(module.map(|module| module.waiters.to_string())),
        or_dash(facts.map(|facts| short_time(facts.round_trip))),
        or_dash(facts.and_then(|facts| facts.clock_offset_us).map(signed_time)),
    ]
}
