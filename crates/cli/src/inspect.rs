//! `quorlock inspect`: one lock, or all slots of a semaphore; and `quorlock list`: all locks.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use quorlock_client::{Inspection, Quorum, ScanError, WaiterInfo};
use quorlock_core::client::limits::LISTED_MAX;
use quorlock_core::quorum::Majority;
use serde_json::{Value, json};

use crate::acquire::warn_of_larger;
use crate::locks::{
    Summary, Verdict, answers, key_json, leases, node_json, queue_json, text, waiters_text,
};
use crate::nodes::{self, NodeArgs};
use crate::output::{self, escape_short, or_dash, say, table, time, with_heading, with_plural};
use crate::{exit, values};

/// Shows the holder of a lock: since when, until when, on which nodes, and the waiters.
///
/// The answer may be out of date when it is printed. To act on a free lock, acquire it.
#[derive(clap::Args)]
#[command(after_help = [INSPECT_EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Inspect {
    /// The lock's name: the key on every node
    #[arg(value_parser = values::key_parser())]
    key: OsString,

    /// Show the semaphore KEY with N permits: its slots, their holders and the waiters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    permits: Option<u8>,

    /// Print JSON, with times in milliseconds
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    nodes: NodeArgs,
}

const INSPECT_EXIT_CODES: &str = "Exit codes:
  0    the lock or a permit is held, or a program wrote its key with SET
  122  too few nodes answered, or no majority of them agrees
  123  the lock or every permit is free
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, a missing right, no module";

pub(crate) async fn inspect(args: Inspect) -> anyhow::Result<ExitCode> {
    let quorum = args.nodes.connect().await?;
    let key = args.key.into_vec();
    if let Some(permits) = args.permits {
        return inspect_semaphore(&quorum, &key, permits.into(), args.json).await;
    }
    let inspection = answers(quorum.inspect(&key).await)?;
    let summary = Summary::of(&inspection);
    if args.json {
        let mut shown = key_json(&key, &summary);
        shown["nodes"] = inspection.nodes.iter().map(node_json).collect();
        output::print(&output::json(&shown));
    } else {
        output::print(&text(&key, &inspection, &summary));
    }
    Ok(ExitCode::from(summary.code()))
}

async fn inspect_semaphore(
    quorum: &Quorum,
    name: &[u8],
    permits: usize,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let slots = answers(quorum.inspect_semaphore(name).await)?;
    let semaphore = Semaphore::new(name, permits, &slots);
    output::print(&if json { output::json(&semaphore.json()) } else { semaphore.text() });
    if let Some(larger_permits) = semaphore.larger_permits {
        warn_of_larger(name, permits, larger_permits);
    }
    Ok(ExitCode::from(semaphore.code()))
}

struct Semaphore<'a> {
    name: &'a [u8],
    permits: usize,
    /// The key of each slot that is shown, and the state of its lock.
    slots: Vec<(&'a [u8], Summary<'a>)>,
    /// A lower bound for the permits that another client gives this semaphore; `None` if no client
    /// gives more than `permits`, as far as the nodes show.
    larger_permits: Option<usize>,
}

impl<'a> Semaphore<'a> {
    /// Takes the keys and inspections of all 64 slots, also of the slots beyond `permits`.
    fn new(name: &'a [u8], permits: usize, slots: &'a [(Vec<u8>, Inspection)]) -> Self {
        let last = slots.iter().rposition(|(_, slot)| leases(slot).next().is_some());
        let larger_permits = last.map(|last| last + 1).filter(|used| *used > permits);
        // Includes the slots of clients with more permits, so that `held` counts them too.
        let shown = &slots[..larger_permits.unwrap_or(permits).min(slots.len())];
        let slots = shown.iter().map(|(key, slot)| (&**key, Summary::of(slot))).collect();
        Self { name, permits, slots, larger_permits }
    }

    /// Returns a lower bound for the number of clients that wait, and the clients that a node
    /// lists.
    ///
    /// A client stands in line on every node that it reaches, and there in the queue of every slot
    /// that it accepts. Therefore only the longest queue counts. A client that waits only in
    /// shorter ones is not counted.
    fn waiters(&self) -> (u64, &[WaiterInfo]) {
        let slots = || self.slots.iter().map(|(_, slot)| slot);
        let longest = slots().map(|slot| slot.queue).max_by_key(|queue| queue.len());
        (slots().map(|slot| slot.waiters).max().unwrap_or(0), longest.unwrap_or_default())
    }

    /// Returns how many slots have this exit code.
    fn count(&self, code: u8) -> usize {
        self.slots.iter().filter(|(_, slot)| slot.code() == code).count()
    }

    fn held(&self) -> usize {
        self.count(exit::SUCCESS)
    }

    /// Returns the first of these codes that a slot has: held, failed, unknown, free.
    fn code(&self) -> u8 {
        let codes = [exit::SUCCESS, exit::FAILED, exit::NO_MAJORITY];
        codes.into_iter().find(|code| self.count(*code) > 0).unwrap_or(exit::FREE)
    }

    fn text(&self) -> String {
        let (held, permits) = (self.held(), with_plural(self.permits as u64, "permit"));
        let mut text = format!("{}: {held} of {permits} held\n", escape_short(self.name));
        let (waiters, queue) = self.waiters();
        if waiters > 0 {
            text.extend(["  waiting  ", &waiters_text(waiters, queue), "\n"]);
        }
        let rows = self.slots.iter().enumerate().map(|(index, (key, slot))| {
            [vec![index.to_string()], row(key, slot.headline(), slot)].concat()
        });
        let heading = ["SLOT", "KEY", "STATE", "FENCE", "HELD FOR", "ENDS IN", "WAITING"];
        text + &table(&with_heading(heading, rows))
    }

    fn json(&self) -> Value {
        let slots: Value = self.slots.iter().map(|(key, slot)| key_json(key, slot)).collect();
        let (waiters, queue) = self.waiters();
        let mut shown = json!({
            "name": String::from_utf8_lossy(self.name),
            "permits": self.permits,
            "held": self.held(),
            "larger_permits": self.larger_permits,
            "waiters": waiters,
            "queue": queue_json(queue),
            "slots": slots,
        });
        if let Some(hex) = output::key_hex(self.name) {
            shown["name_hex"] = hex.into();
        }
        shown
    }
}

const LIMIT_DEFAULT: u32 = 1000;

/// Lists the locks of all nodes, in the order of their keys.
///
/// The list is no snapshot: a lock that is acquired or released while the nodes list their locks
/// may be listed on some of the nodes only. Keys that other programs wrote with SET are not listed.
#[derive(clap::Args)]
#[command(after_help = [LIST_EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
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

const LIST_EXIT_CODES: &str = "Exit codes:
  0    the locks are listed, if there are any
  122  the lists of too many nodes may lack locks: no majority is left
  125  quorlock itself failed, its arguments are not understood, or too many
       nodes fail permanently: a wrong password, a missing right, no module";

pub(crate) async fn list(args: List) -> anyhow::Result<ExitCode> {
    let quorum = args.nodes.connect().await?;
    let limit = usize::try_from(args.limit).unwrap_or(LISTED_MAX);
    let list = quorum.scan(args.pattern.into_vec(), limit).await;
    let list = list.map_err(|error| match &error {
        ScanError::NoAnswer { nodes } => exit::no_answer(&error, nodes),
        _ => error.into(),
    })?;
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
        let rows = summaries.map(|(listed, summary)| {
            // The key is listed because a minority has a lease on it.
            let is_free = summary.verdict == Verdict::Free;
            let on_minority = is_free.then(|| "on a minority of the nodes only".to_owned());
            row(&listed.key, on_minority.unwrap_or_else(|| summary.headline()), &summary)
        });
        let heading = ["KEY", "STATE", "FENCE", "HELD FOR", "ENDS IN", "WAITING"];
        output::print(&table(&with_heading(heading, rows)));
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

fn row(key: &[u8], state: String, summary: &Summary<'_>) -> Vec<String> {
    vec![
        escape_short(key),
        state,
        or_dash(summary.held.map(|held| held.fence.to_string())),
        or_dash(summary.held_for.map(time)),
        or_dash(summary.held.map(|held| time(held.at_most))),
        summary.waiters.to_string(),
    ]
}
