//! What is wrong with the nodes together.

use std::collections::BTreeMap;

use quorlock_core::node_set::Members;

use super::findings::Finding;
use super::node::{CLOCK_WARNING_DIVISOR, max_clock_skew_us};
use crate::fleet::{NodeReport, Report};
use crate::status::signed_time;

pub(super) fn findings(report: &Report) -> Vec<Finding> {
    let checks = [majority, number, set, versions, max_ttls, clock_here];
    checks.into_iter().filter_map(|check| check(report)).collect()
}

fn majority(report: &Report) -> Option<Finding> {
    let (voting, nodes, needed) = (report.voting(), report.nodes.len(), report.majority());
    (!report.has_majority()).then(|| {
        Finding::error(
            "no-majority",
            format!(
                "{voting} of {nodes} nodes vote, and a lock needs {needed}: none can be acquired"
            ),
            "check the nodes that do not vote: the other findings have the reasons",
        )
    })
}

fn number(report: &Report) -> Option<Finding> {
    match report.nodes.len() {
        1 => Some(Finding::warning(
            "single-node",
            "there is one node: when it stops, no lock can be acquired",
            "use 3 nodes, or 5 to survive the loss of 2",
        )),
        2 => Some(Finding::warning(
            "even-number",
            "there are two nodes: when one of them stops, no lock can be acquired",
            "use 3 nodes",
        )),
        nodes if nodes % 2 == 0 => Some(Finding::warning(
            "even-number",
            format!(
                "{nodes} nodes survive the loss of {} of them, but so do {} nodes",
                nodes / 2 - 1,
                nodes - 1
            ),
            format!("use {} or {} nodes", nodes - 1, nodes + 1),
        )),
        _ => None,
    }
}

fn set(report: &Report) -> Option<Finding> {
    let sets: Vec<_> = report.modules().map(|(_, lock)| lock.set.set()).collect();
    if sets.is_empty() {
        return None;
    }
    if sets.iter().all(Option::is_none) {
        return Some(Finding::warning(
            "no-set",
            "no node has a lock.set: two programs with different lists of nodes could hold the same lock",
            "write lock.set \"NAME ID MEMBERS\" into the redis.conf of each node and restart them one at a time",
        ));
    }
    let changing =
        sets.into_iter().flatten().find(|set| matches!(set.members(), Members::Changing { .. }))?;
    Some(Finding::warning(
        "set-changes",
        format!(
            "the members of the set {} are being changed: {}",
            changing.name(),
            changing.members()
        ),
        "complete the change on every node before you begin the next change",
    ))
}

fn versions(report: &Report) -> Option<Finding> {
    let by_version = groups(report.modules().map(|(node, lock)| (lock.version.clone(), node)))?;
    Some(Finding::warning(
        "module-versions",
        format!("the nodes have different versions of the module: {by_version}"),
        "load the same version everywhere: restart the nodes one at a time, each after the \
         previous one votes again",
    ))
}

fn max_ttls(report: &Report) -> Option<Finding> {
    let max_ttls = report
        .modules()
        .filter_map(|(node, lock)| Some((format!("{} ms", lock.max_ttl_ms?), node)));
    let by_max_ttl = groups(max_ttls)?;
    Some(Finding::warning(
        "max-ttl-differs",
        format!("the nodes have different values of lock.max-ttl: {by_max_ttl}"),
        "write the same value into the redis.conf of each node: each refuses a ttl above its own",
    ))
}

fn clock_here(report: &Report) -> Option<Finding> {
    let offset_us = offset_from_this_machine_us(report)?;
    Some(Finding::warning(
        "clock-here",
        format!("the clocks of all nodes differ from this machine's by {}", signed_time(offset_us)),
        "synchronize the clock of this machine, with chrony for example",
    ))
}

/// Returns the least offset of the nodes' clocks, if they agree with each other but not with this
/// machine's.
pub(super) fn offset_from_this_machine_us(report: &Report) -> Option<i64> {
    let clocks = || report.nodes.iter().filter_map(NodeReport::facts);
    let offsets: Vec<_> = clocks().filter_map(|facts| facts.clock_offset_us).collect();
    let tolerated_us = clocks().map(max_clock_skew_us).min()? / CLOCK_WARNING_DIVISOR;
    let (least, most) = (*offsets.iter().min()?, *offsets.iter().max()?);
    let agree = most.abs_diff(least) <= tolerated_us;
    let differ = offsets.iter().all(|offset| offset.unsigned_abs() > tolerated_us);
    (offsets.len() > 1 && agree && differ).then_some(least)
}

/// Groups the nodes by value: `A on a, b; B on c`. Returns `None` if all values are equal.
fn groups<'a>(values: impl Iterator<Item = (String, &'a NodeReport)>) -> Option<String> {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (value, node) in values {
        groups.entry(value).or_default().push(&node.name);
    }
    let text = |(value, nodes): (&String, &Vec<&str>)| format!("{value} on {}", nodes.join(", "));
    (groups.len() > 1).then(|| groups.iter().map(text).collect::<Vec<_>>().join("; "))
}
