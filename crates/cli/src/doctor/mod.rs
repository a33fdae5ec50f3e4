//! `quorlock doctor`: finds faults of the nodes, and says what to do.
//!
//! - [`findings`]: findings from the nodes' answers; [`node`] is the part about one node, [`fleet`]
//!   the part about all of them.
//! - [`rights`]: which commands the user may not run, and whether it may use a key.
//! - [`print`]: prints the findings as text or as JSON.

mod findings;
mod fleet;
mod node;
mod print;
mod rights;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::{StringValueParser, TypedValueParser as _};
use quorlock_core::Ttl;

use self::findings::{Severity, findings};
pub(crate) use self::node::name_of_check;
use crate::args::{DEFAULT_TTL, check_key};
use crate::duration::duration;
use crate::fleet::{FleetArgs, Node};
use crate::nodes;

/// Checks the nodes, their configuration and the rights of the user, and says what to do.
///
/// Run it with the --user and on the machine of the programs that acquire locks: it checks rights,
/// round trips and clocks from there. It changes nothing on the nodes.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Doctor {
    /// The longest ttl that the programs use [default: 10s]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    ttl: Option<Duration>,

    /// A lock that the programs acquire: also check that the user may use this key
    #[arg(long, value_name = "KEY", value_parser = StringValueParser::new().try_map(check_key))]
    lock: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    fleet: FleetArgs,
}

const EXIT_CODES: &str = "Exit codes, as monitoring plugins have them:
  0    nothing was found
  1    there are warnings: locks work, or work again soon
  2    there are errors: a node cannot vote until it is corrected, a node
       refuses requests, or no majority votes
  125  quorlock itself failed, or its arguments are not understood";

const WARNINGS: u8 = 1;
const ERRORS: u8 = 2;

pub(crate) async fn doctor(args: Doctor) -> anyhow::Result<ExitCode> {
    let (fleet, nodes) = args.fleet.load()?;
    let ttl = args.ttl.or(nodes.defaults.ttl).unwrap_or(DEFAULT_TTL);
    let ttl = u64::try_from(ttl.as_millis()).ok().and_then(|ms| Ttl::from_ms(ms).ok());
    let ttl = ttl.context("--ttl must be at least 1ms and at most 168h, such as 10s")?;
    let report = fleet.gather().await;
    // Skips nodes that are down: asking one again would take up to the time limit once more.
    let denials = fleet
        .each_answering(&report, async |node: &Node| {
            rights::denied(node, args.lock.as_deref()).await
        })
        .await;
    let findings = findings(&report, &denials, ttl);
    print::print(&findings, &report, args.json)?;
    nodes.explain_refusal(report.errors());
    Ok(match findings.iter().map(|finding| finding.severity).max() {
        None => ExitCode::SUCCESS,
        Some(Severity::Warning) => ExitCode::from(WARNINGS),
        Some(Severity::Error) => ExitCode::from(ERRORS),
    })
}
