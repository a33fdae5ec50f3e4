//! Findings from the nodes' answers: a pure function.

use quorlock_core::Ttl;
use serde::Serialize;

use super::rights::Denial;
use super::{fleet, node};
use crate::fleet::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Locks work, or will work soon, with less safety or capacity than they could have.
    Warning,
    /// A node never counts, refuses some requests of the programs, or is too far away for their
    /// ttl; or no majority votes.
    Error,
}

/// One fault, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The name of the check, for programs.
    pub(super) check: &'static str,
    /// The nodes with this fault, in the order in which the user names them; empty if the fault
    /// concerns all nodes together.
    pub(super) nodes: Vec<String>,
    pub(super) what: String,
    pub(super) todo: String,
}

impl Finding {
    pub(super) fn error(
        check: &'static str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        let (what, todo) = (what.into(), todo.into());
        Self { severity: Severity::Error, check, nodes: Vec::new(), what, todo }
    }

    pub(super) fn warning(
        check: &'static str,
        what: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, ..Self::error(check, what, todo) }
    }

    /// Makes this a finding about one node.
    pub(super) fn about(self, node: &str) -> Self {
        Self { nodes: vec![node.to_owned()], ..self }
    }

    fn is_same_fault(&self, other: &Self) -> bool {
        let key = |finding: &Self| (finding.severity, finding.check);
        key(self) == key(other) && self.what == other.what && self.todo == other.todo
    }
}

/// Returns all findings, errors first. `denials` are the missing rights of the user on each node,
/// and `ttl` is the longest ttl that programs use.
pub(super) fn findings(report: &Report, denials: &[Vec<Denial>], ttl: Ttl) -> Vec<Finding> {
    let mut findings = fleet::findings(report);
    let clock_here_is_wrong = fleet::offset_from_this_machine_us(report).is_some();
    for ((node, state), denials) in report.iter().zip(denials) {
        let mut of_node = node::findings(node, state, denials, ttl);
        of_node.retain(|finding| finding.check != "clock" || !clock_here_is_wrong);
        for finding in of_node {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorlock_core::client::NodeError;
    use quorlock_core::node_set::SetReport;

    use super::*;
    use crate::fleet::NodeReport;
    use crate::fleet::report::tests::{abstention, down, facts, module, voting};

    const TTL_MS: u64 = 10_000;

    fn found_with(nodes: Vec<NodeReport>, denials: &[Denial], ttl_ms: u64) -> Vec<Finding> {
        let denials = vec![denials.to_vec(); nodes.len()];
        findings(&Report::new(nodes), &denials, Ttl::from_ms(ttl_ms).unwrap())
    }

    fn found(nodes: Vec<NodeReport>) -> Vec<Finding> {
        found_with(nodes, &[], TTL_MS)
    }

    /// Changes the last of three nodes. Returns the checks and severities of the findings.
    fn after(change: impl Fn(&mut NodeReport)) -> Vec<(&'static str, Severity)> {
        let mut nodes = voting(3);
        change(&mut nodes[2]);
        let findings = found(nodes);
        assert!(
            findings.iter().all(|finding| !finding.todo.is_empty() && !finding.what.is_empty())
        );
        findings.into_iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    use Severity::{Error, Warning};

    #[test]
    fn healthy_nodes_have_no_findings() {
        assert_eq!(found(voting(3)), []);
        assert_eq!(found(voting(5)), []);
    }

    #[test]
    fn each_fault_of_one_node_makes_one_finding() {
        let faults: [(fn(&mut NodeReport), _, _); 15] = [
            (|node| node.answer = Err(down()), "down", Warning),
            (|node| module(node).abstention = Some(abstention(9000)), "abstaining", Warning),
            (|node| module(node).unwritable = Some("memory-full".into()), "unwritable", Error),
            (|node| module(node).unwritable = Some("writes-paused".into()), "unwritable", Warning),
            (|node| facts(node).info.lock = None, "module-missing", Error),
            (|node| facts(node).info.is_replica = true, "replica", Error),
            (|node| facts(node).info.mode = Some("cluster".into()), "cluster-or-sentinel", Error),
            (|node| facts(node).info.run_id = Some("run-0".into()), "same-server", Error),
            (|node| module(node).set = SetReport::Unset, "set-differs", Error),
            (
                |node| facts(node).info.maxmemory_policy = Some("allkeys-lru".into()),
                "evicts",
                Warning,
            ),
            (|node| module(node).version = "0.2.0".into(), "module-versions", Warning),
            (|node| module(node).max_ttl_ms = Some(90_000), "max-ttl-differs", Warning),
            (|node| module(node).rejoin_delay_ms = Some(0), "rejoin-delay", Warning),
            (|node| module(node).waiters = 900, "waiters", Warning),
            (
                |node| node.answer = Err(NodeError::Denied { reason: "WRONGPASS".into() }),
                "denied",
                Error,
            ),
        ];
        for (change, check, severity) in faults {
            assert_eq!(after(change), [(check, severity)]);
        }
    }

    #[test]
    fn nodes_with_the_same_fault_share_a_finding() {
        let mut nodes = voting(3);
        module(&mut nodes[0]).rejoin_delay_ms = Some(0);
        module(&mut nodes[1]).rejoin_delay_ms = Some(0);
        module(&mut nodes[2]).rejoin_delay_ms = Some(1);
        let findings = found(nodes);
        let shared: Vec<_> = findings.iter().map(|finding| finding.nodes.len()).collect();
        assert_eq!(shared, [2, 1], "{findings:?}");
    }

    #[test]
    fn clock_is_measured_against_the_skew_that_the_node_accepts() {
        let offset = |seconds: i64| {
            move |node: &mut NodeReport| facts(node).clock_offset_us = Some(seconds * 1_000_000)
        };
        assert_eq!(after(offset(5)), []);
        assert_eq!(after(offset(-7)), [("clock", Warning)]);
        assert_eq!(after(offset(61)), [("clock", Error)]);
        assert_eq!(after(offset(-61)), [("clock", Error)]);
    }

    #[test]
    fn wrong_clock_of_this_machine_is_one_finding_without_nodes() {
        let mut nodes = voting(3);
        for node in &mut nodes {
            facts(node).clock_offset_us = Some(120_000_000);
        }
        let findings = found(nodes);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!((findings[0].check, findings[0].nodes.len()), ("clock-here", 0));
    }

    #[test]
    fn distant_node_needs_a_longer_ttl() {
        let round_trip =
            |ms| move |node: &mut NodeReport| facts(node).round_trip = Duration::from_millis(ms);
        assert_eq!(after(round_trip(100)), []);
        assert_eq!(after(round_trip(500)), [("round-trip", Warning)]);
        assert_eq!(after(round_trip(1300)), [("round-trip", Error)]);
    }

    #[test]
    fn ttl_above_the_limit_of_the_nodes_is_an_error() {
        let findings = found_with(voting(3), &[], 61_000);
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert!(finding.check == "max-ttl" && finding.todo.contains("60s"), "{finding:?}");
        assert_eq!(finding.nodes.len(), 3);
    }

    #[test]
    fn even_number_of_nodes_and_single_node_are_found() {
        let checks =
            |count| found(voting(count)).iter().map(|finding| finding.check).collect::<Vec<_>>();
        assert_eq!(checks(4), ["even-number"]);
        assert_eq!(checks(2), ["even-number"]);
        assert_eq!(found(voting(2))[0].todo, "use 3 nodes", "one node is no better than two");
        assert_eq!(checks(1), ["single-node"]);
    }

    #[test]
    fn missing_majority_is_an_error_of_its_own() {
        let mut nodes = voting(3);
        nodes[0].answer = Err(down());
        nodes[1].answer = Err(down());
        let findings = found(nodes);
        assert_eq!((findings[0].check, findings[0].severity), ("no-majority", Error));
    }

    #[test]
    fn set_that_is_missing_or_changing_is_found() {
        let mut nodes = voting(3);
        for node in &mut nodes {
            module(node).set = SetReport::Unset;
        }
        assert_eq!(found(nodes)[0].check, "no-set");
        let mut nodes = voting(3);
        for (index, node) in nodes.iter_mut().enumerate() {
            let set = format!("eu {} 1,2,3>1,2,3,4", index + 1);
            module(node).set = SetReport::Set(set.parse().unwrap());
        }
        let findings = found(nodes);
        assert_eq!((findings.len(), findings[0].check), (1, "set-changes"));
    }

    #[test]
    fn commands_that_the_user_may_not_run_are_named() {
        let denials = [Denial::Command("LOCK.RELEASE"), Denial::Command("PING")];
        let findings = found_with(voting(3), &denials, TTL_MS);
        assert_eq!((findings.len(), findings[0].nodes.len()), (1, 3));
        assert!(findings[0].what.contains("LOCK.RELEASE and PING"), "{}", findings[0].what);
        assert!(findings[0].todo.contains("+lock.release +ping"), "{}", findings[0].todo);
        assert_eq!(findings[0].severity, Error);
        let findings = found_with(voting(3), &[Denial::Command("LOCK.MACQUIRE")], TTL_MS);
        assert_eq!(findings[0].severity, Warning, "only locks of several keys need it");
        let findings = found_with(voting(3), &[Denial::Key("orders/1".into())], TTL_MS);
        assert!(findings[0].what.contains("orders/1"));
    }
}
