//! `quorlock status`: the state of every node.
//!
//! - [`table`]: for people.
//! - [`json`]: for programs.

pub(crate) mod json;
mod table;

use std::io::{IsTerminal as _, Write as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};

pub(crate) use self::table::{reason, short_time, signed_time};
use crate::duration::duration;
use crate::fleet::{FleetArgs, Report};
use crate::signals::Signals;
use crate::{exit, nodes};

/// The interval of `--watch` without a value.
const WATCH_EVERY: &str = "2s";
/// A shorter interval of `--watch` makes the output unreadable.
const WATCH_EVERY_MIN: Duration = Duration::from_millis(100);

/// Moves the cursor to the top left corner of the terminal and erases all below it.
const REDRAW: &str = "\x1b[H\x1b[J";

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
    #[arg(long, value_parser = duration, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = WATCH_EVERY)]
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
        let report = fleet.gather().await;
        write(&text(&report, args.json)?)?;
        nodes.explain_refusal(report.errors());
        let code = if report.has_majority() { exit::SUCCESS } else { exit::NO_MAJORITY };
        return Ok(ExitCode::from(code));
    };
    ensure!(
        every >= WATCH_EVERY_MIN,
        "the interval of --watch must be at least {WATCH_EVERY_MIN:?}: write --watch 2s, for example"
    );
    let redraws = stdout().is_terminal() && !args.json;
    let watching = async {
        loop {
            let text = text(&fleet.gather().await, args.json)?;
            write(&if redraws { format!("{REDRAW}{text}") } else { text })?;
            tokio::time::sleep(every).await;
        }
    };
    match Signals::listen()?.interrupting(watching).await {
        Ok(ended) => ended,
        Err(signal) => Ok(exit::code_for_signal(signal)),
    }
}

fn text(report: &Report, json: bool) -> anyhow::Result<String> {
    if json { json::render(report) } else { Ok(table::render(report)) }
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut stdout = stdout();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot print the state")
}
