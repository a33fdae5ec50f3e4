//! The state of the nodes as JSON.

use quorlock_core::client::NodeError;
use serde::Serialize;

use crate::fleet::info::COUNTERS;
use crate::fleet::{NodeReport, Report, State, advice, unwritable_advice};

#[derive(Serialize)]
struct Status {
    /// Whether a majority votes.
    majority: bool,
    voting: usize,
    needed: usize,
    nodes: Vec<Node>,
}

#[derive(Default, Serialize)]
struct Node {
    #[serde(rename = "node")]
    name: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    abstain_left_ms: Option<u128>,
    module: Option<String>,
    server: Option<String>,
    set: Option<Set>,
    evicts: Option<bool>,
    max_ttl_ms: Option<u64>,
    max_waiters: Option<u64>,
    max_clock_skew_ms: Option<u64>,
    leases: Option<u64>,
    waiters: Option<u64>,
    round_trip_us: Option<u128>,
    clock_offset_us: Option<i64>,
    counters: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct Set {
    name: String,
    id: String,
    members: String,
}

pub(crate) fn render(report: &Report) -> anyhow::Result<String> {
    let status = Status {
        majority: report.has_majority(),
        voting: report.voting(),
        needed: report.majority(),
        nodes: report.iter().map(|(node, state)| of_node(node, state)).collect(),
    };
    Ok(serde_json::to_string(&status)? + "\n")
}

fn of_node(node: &NodeReport, state: &State) -> Node {
    let mut shown = Node {
        name: node.name.clone(),
        state: state_name(state),
        reason: state.error().map(NodeError::to_string),
        advice: state.error().and_then(advice),
        ..Node::default()
    };
    if let State::Abstaining(abstention) = state {
        shown.reason = Some(abstention.reason.clone());
        shown.abstain_left_ms = abstention.left.map(|left| left.as_millis());
    }
    if let State::Unwritable(reason) = state {
        shown.reason = Some(reason.clone());
        shown.advice = Some(unwritable_advice(reason).1);
    }
    let Some(facts) = node.facts() else { return shown };
    shown.server = Some(facts.info.server.clone());
    shown.evicts = Some(facts.info.evicts());
    shown.round_trip_us = Some(facts.round_trip.as_micros());
    shown.clock_offset_us = facts.clock_offset_us;
    shown.max_waiters = facts.max_waiters;
    shown.max_clock_skew_ms = facts.max_clock_skew_ms;
    let Some(lock) = node.module() else { return shown };
    shown.module = Some(lock.version.clone());
    shown.set = lock.set.set().map(|set| Set {
        name: set.name().to_owned(),
        id: set.id().to_string(),
        members: set.members().to_string(),
    });
    shown.max_ttl_ms = lock.max_ttl_ms;
    (shown.leases, shown.waiters) = (Some(lock.leases), Some(lock.waiters));
    let counters = COUNTERS.iter().zip(lock.counters);
    shown.counters =
        counters.filter_map(|(name, count)| Some(((*name).to_owned(), count?.into()))).collect();
    shown
}

/// Returns the name of the state, without a space.
pub(crate) fn state_name(state: &State) -> &'static str {
    match state {
        State::NotCounted(_) => "not_counted",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::report::tests::{down, voting};

    #[test]
    fn node_that_is_down_has_a_reason_and_advice() {
        let mut nodes = voting(3);
        nodes[2].answer = Err(down());
        let json: serde_json::Value =
            serde_json::from_str(&render(&Report::new(nodes)).unwrap()).unwrap();
        assert_eq!(
            (&json["majority"], &json["voting"], &json["needed"]),
            (&true.into(), &2.into(), &2.into())
        );
        assert_eq!(json["nodes"][0]["state"], "voting");
        assert_eq!(json["nodes"][0]["set"]["members"], "1,2,3");
        let node = &json["nodes"][2];
        assert_eq!((&node["state"], &node["module"]), (&"down".into(), &serde_json::Value::Null));
        assert!(node["reason"].as_str().unwrap().contains("refused"), "{node}");
        assert!(node["advice"].as_str().unwrap().contains("start the server"), "{node}");
    }
}
