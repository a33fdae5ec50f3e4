//! `quorlock doctor`: finds faults of the nodes, and says what to do.
//!
//! - [`checks`]: what is wrong with one node, or with all of them together.
//! - [`rights`]: which commands the user may not run, and whether it may use a key.

mod checks;
mod rights;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use quorlock_core::Ttl;
use serde_json::json;

use crate::acquire::DEFAULT_TTL;
use crate::fleet::{Finding, FleetArgs, Severity, Snapshot};
use crate::output::{self, escape, ms, paragraph, try_print, with_plural};
use crate::values::duration;
use crate::{nodes, values};

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
    #[arg(long, value_name = "KEY", value_parser = values::key_parser())]
    lock: Option<OsString>,

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

/// The width of the labels, and the indentation of the other lines.
const INDENT: usize = 9;

const WARNINGS: u8 = 1;
const ERRORS: u8 = 2;

pub(crate) async fn doctor(args: Doctor) -> anyhow::Result<ExitCode> {
    let (fleet, nodes) = args.fleet.load()?;
    let ttl = args.ttl.or(nodes.defaults.ttl).unwrap_or(DEFAULT_TTL);
    let ttl = Ttl::from_ms(ms(ttl));
    let ttl = ttl.ok().context("--ttl must be at least 1ms and at most 168h, such as 10s")?;
    let snapshot = fleet.gather().await;
    let key = args.lock.as_ref().map(|key| key.as_bytes());
    let rights = fleet.nodes.iter().zip(&snapshot.nodes).map(async |(node, report)| {
        match report.answer {
            Ok(_) => rights::check(node, key).await,
            // Asking a node that is down would take up to the time limit once more.
            Err(_) => Vec::new(),
        }
    });
    let rights = join_all(rights).await;
    let findings = findings(&snapshot, rights, ttl);
    let text = if args.json { json(&findings, &snapshot) } else { text(&findings, &snapshot) };
    try_print(&text, "the findings")?;
    nodes.explain_refusal(snapshot.errors());
    Ok(match findings.first().map(|finding| finding.severity) {
        None => ExitCode::SUCCESS,
        Some(Severity::Warning) => ExitCode::from(WARNINGS),
        Some(Severity::Error) => ExitCode::from(ERRORS),
    })
}

/// Returns all findings, errors first. `rights` are the findings about the user on each node,
/// and `ttl` is the longest ttl that programs use.
fn findings(snapshot: &Snapshot, rights: Vec<Vec<Finding>>, ttl: Ttl) -> Vec<Finding> {
    let mut findings = checks::of_fleet(snapshot);
    let clock_here_is_wrong = checks::offset_from_this_machine_us(snapshot).is_some();
    for (node, rights) in snapshot.nodes.iter().zip(rights) {
        let mut of_node = checks::of_node(node, ttl);
        of_node.retain(|finding| finding.check != "clock" || !clock_here_is_wrong);
        for finding in of_node.into_iter().chain(rights) {
            let mut about_nodes = findings.iter_mut().filter(|other| !other.nodes.is_empty());
            match about_nodes.find(|other| other.is_same_fault(&finding)) {
                Some(other) => other.nodes.push(node.name.clone()),
                None => findings.push(finding.about(&node.name)),
            }
        }
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn json(findings: &[Finding], snapshot: &Snapshot) -> String {
    output::json(&json!({
        "errors": count(findings, Severity::Error),
        "warnings": count(findings, Severity::Warning),
        "voting": snapshot.voting(),
        "nodes": snapshot.nodes.len(),
        "findings": findings,
    }))
}

fn text(findings: &[Finding], snapshot: &Snapshot) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        let label = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let nodes = match &finding.nodes[..] {
            [] => String::new(),
            nodes => format!("{}: ", escape(&nodes.join(", "))),
        };
        let (first, rest) = (format!("{label:INDENT$}"), " ".repeat(INDENT));
        lines.push(paragraph(&format!("{nodes}{}", finding.what), &first, &rest));
        lines.push(paragraph(&format!("> {}", finding.todo), &rest, &rest) + "\n");
    }
    let (errors, warnings) = (count(findings, Severity::Error), count(findings, Severity::Warning));
    let (voting, nodes) = (snapshot.voting(), snapshot.nodes.len());
    lines.push(match (errors, warnings) {
        (0, 0) => format!("Nothing was found. {voting} of {nodes} nodes vote.\n"),
        _ => format!(
            "{}, {}. {voting} of {nodes} nodes vote.\n",
            with_plural(errors, "error"),
            with_plural(warnings, "warning")
        ),
    });
    lines.concat()
}

fn count(findings: &[Finding], severity: Severity) -> u64 {
    findings.iter().filter(|finding| finding.severity == severity).count() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorlock_core::NodeError;
    use quorlock_core::node_set::SetReport;
    use unicode_width::UnicodeWidthStr as _;

    use super::Severity::{Error, Warning};
    use super::*;
    use crate::fleet::State;
    use crate::fleet::snapshot::Answer;
    use crate::fleet::snapshot::tests::{facts, module, voting};
    use crate::output::COLUMNS;

    fn found(nodes: Vec<Answer>) -> Vec<Finding> {
        let rights = vec![Vec::new(); nodes.len()];
        findings(&Snapshot::new(nodes), rights, Ttl::from_ms(10_000).unwrap())
    }

    /// Changes the last of three nodes. Returns the checks and severities of the findings.
    fn after(change: impl Fn(&mut Answer)) -> Vec<(&'static str, Severity)> {
        let mut nodes = voting(3);
        change(&mut nodes[2]);
        found(nodes).into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    /// JSON, too: its texts may be printed on a terminal.
    #[test]
    fn texts_of_a_server_are_escaped_in_findings_and_states() {
        let mut nodes = voting(3);
        nodes[2].1 = Err(NodeError::NotAdmitted { reason: "us; \u{1b}[2J".to_owned() });
        let json = Snapshot::new(nodes.clone()).json();
        let mut shown = vec![json["nodes"][2]["reason"].as_str().unwrap().to_owned()];
        shown.extend(found(nodes).into_iter().flat_map(|finding| [finding.what, finding.todo]));
        assert_eq!(shown.iter().filter(|text| text.contains("\\u{1b}[2J")).count(), 2);
        assert!(shown.iter().all(|text| !text.contains('\u{1b}')), "{shown:?}");
    }

    /// The faults that the tests with real servers do not cause, and exact limits.
    #[test]
    fn each_fault_makes_one_finding() {
        let harmless: [fn(&mut Answer); 3] = [
            |_| (),
            |node| facts(node).clock_offset_us = Some(5_000_000),
            |node| facts(node).round_trip = Duration::from_millis(100),
        ];
        for change in harmless {
            assert_eq!(after(change), []);
        }
        let faults: [(fn(&mut Answer), _, _); 12] = [
            (|node| facts(node).clock_offset_us = Some(-7_000_000), "clock", Warning),
            (|node| facts(node).clock_offset_us = Some(61_000_000), "clock", Error),
            (|node| facts(node).round_trip = Duration::from_millis(700), "round-trip", Warning),
            (|node| facts(node).round_trip = Duration::from_millis(1300), "round-trip", Error),
            (
                |node| module(node).state = State::Unwritable("writes-paused".into()),
                "unwritable",
                Warning,
            ),
            (|node| facts(node).hello.set = SetReport::Unset, "set-differs", Error),
            (|node| facts(node).hello.mode = Some("cluster".into()), "cluster-or-sentinel", Error),
            (|node| facts(node).maxmemory_policy = Some("volatile-ttl".into()), "evicts", Warning),
            (|node| module(node).version = "0.2.0".into(), "module-versions", Warning),
            (|node| module(node).max_ttl_ms = Some(90_000), "max-ttl-differs", Warning),
            (|node| module(node).rejoin_delay_ms = Some(0), "rejoin-delay", Warning),
            (|node| module(node).waiters = 900, "waiters", Warning),
        ];
        for (change, check, severity) in faults {
            assert_eq!(after(change), [(check, severity)]);
        }
    }

    #[test]
    fn fault_of_several_nodes_or_of_all_together_is_one_finding() {
        // Returns the checks, and the numbers of the nodes that they name.
        let checks = |count: usize, change: fn(usize, &mut Answer)| {
            let mut nodes = voting(count);
            nodes.iter_mut().enumerate().for_each(|(index, node)| change(index, node));
            let findings = found(nodes).into_iter();
            findings.map(|finding| (finding.check, finding.nodes.len())).collect::<Vec<_>>()
        };
        let delays = checks(3, |index, node| {
            module(node).rejoin_delay_ms = Some(u64::from(index == 2));
        });
        assert_eq!(delays, [("rejoin-delay", 2), ("rejoin-delay", 1)]);
        let clocks = checks(3, |_, node| facts(node).clock_offset_us = Some(120_000_000));
        assert_eq!(clocks, [("clock-here", 0)]);
        let sets = checks(3, |index, node| {
            let set = format!("eu {} 1,2,3>1,2,3,4", index + 1);
            facts(node).hello.set = SetReport::Set(set.parse().unwrap());
        });
        assert_eq!(sets, [("set-changes", 0)]);
        for (count, check) in [(4, "even-number"), (2, "even-number"), (1, "single-node")] {
            assert_eq!(checks(count, |_, _| ()), [(check, 0)]);
        }
        assert_eq!(found(voting(2))[0].todo, "use 3 nodes", "one node is no better than two");
    }

    #[test]
    fn findings_fit_100_columns_and_cannot_control_the_terminal() {
        let finding =
            Finding::error("x", "word ".repeat(50), "do \x1b[2J that").about(&"n".repeat(200));
        let text = text(&[finding], &Snapshot::new(voting(3)));
        assert!(
            text.lines().all(|line| line.width() <= COLUMNS) && !text.contains('\x1b'),
            "{text}"
        );
        assert!(text.starts_with("error    nnn"), "{text}");
        assert!(text.ends_with("1 error, 0 warnings. 3 of 3 nodes vote.\n"), "{text}");
    }
}
