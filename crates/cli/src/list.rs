//! `quorlock list`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use quorlock_client::{ListedLock, ScanError};
use quorlock_core::client::limits::LISTED_MAX;
use quorlock_core::quorum::Majority;
use serde_json::{Value, json};

use crate::locks::{Summary, Verdict, key_json};
use crate::nodes::{self, NodeArgs};
use crate::output::{self, escape_short, or_dash, say, time, with_plural};
use crate::table::table;
use crate::{exit, values};

const LIMIT_DEFAULT: u32 = 1000;

/// Lists the locks of all nodes, in the order of their keys.
///
/// The list is no snapshot: a lock that is acquired or released while the nodes list their locks
/// may be listed on some of the nodes only. Keys that other programs wrote with SET are not listed.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct List {
    /// The keys to list, as a SCAN pattern with *, ?, [a-c], [^a-c] and \. Without it, all keys
    #[arg(default_value = "*", hide_default_value = true)]
    #[arg(value_parser = values::pattern_parser())]
    pattern: OsString,

    /// Print JSON: one object, with times in milliseconds
    #[arg(long)]
    json: bool,

    /// List at most N locks, the first ones in the order of their keys; N is at most 100000
    #[arg(long, default_value_t = LIMIT_DEFAULT, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=LISTED_MAX as i64))]
    limit: u32,

    #[command(flatten)]
    nodes: NodeArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    the locks are listed, if there are any
  122  the lists of too many nodes may lack locks: no majority is left
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, a missing right, no module";

pub(crate) async fn list(args: List) -> anyhow::Result<ExitCode> {
    let quorum = args.nodes.connect().await?;
    let limit = usize::try_from(args.limit).unwrap_or(LISTED_MAX);
    let list = match quorum.scan(args.pattern.into_vec(), limit).await {
        Ok(list) => list,
        Err(ref error @ ScanError::NoAnswer { ref nodes }) => {
            say(error);
            return Ok(exit::no_answer(nodes));
        }
        Err(error) => return Err(error.into()),
    };
    let failed: Vec<_> =
        list.nodes.iter().filter_map(|(node, error)| Some((node, error.as_ref()?))).collect();
    let has_majority =
        Majority::of(list.nodes.len()).is_some_and(|majority| failed.len() <= majority.spare());
    let summaries = list.locks.iter().map(|listed| (listed, Summary::of(&listed.lock)));
    if args.json {
        let locks: Value = summaries.map(|(lock, summary)| key_json(&lock.key, &summary)).collect();
        let failed =
            failed.iter().map(|(node, error)| json!({ "node": node, "error": error.to_string() }));
        let failed: Value = failed.collect();
        let shown = json!({ "locks": locks, "truncated": list.is_truncated, "failed": failed });
        output::print(&output::json(&shown));
    } else {
        let heading = ["KEY", "STATE", "FENCE", "ENDS IN", "WAITING"].map(str::to_owned).to_vec();
        let rows: Vec<_> = std::iter::once(heading).chain(summaries.map(row)).collect();
        output::print(&table(&rows));
        for (node, error) in &failed {
            let error = escape_short(error.to_string());
            say(format_args!("the list of {node} may lack locks: {error}"));
        }
    }
    if list.is_truncated {
        let listed = with_plural(list.locks.len() as u64, "lock");
        let more = if limit < LISTED_MAX { "raise --limit, or give" } else { "give" };
        say(format_args!("only the first {listed} are listed: {more} a narrower pattern"));
    }
    if has_majority {
        return Ok(ExitCode::SUCCESS);
    }
    let errors = failed.into_iter().map(|(_, error)| error);
    Ok(ExitCode::from(exit::without_majority(errors, list.nodes.len())))
}

fn row((lock, summary): (&ListedLock, Summary<'_>)) -> Vec<String> {
    vec![
        escape_short(&lock.key),
        state(&summary),
        or_dash(summary.held.map(|held| held.fence.to_string())),
        or_dash(summary.held.map(|held| time(held.at_most))),
        summary.waiters.to_string(),
    ]
}

fn state(summary: &Summary<'_>) -> String {
    match summary.verdict {
        // The key is listed because a minority has a lease on it.
        Verdict::Free => "on a minority of the nodes only".to_owned(),
        _ => summary.headline(),
    }
}
