//! All nodes together: which of them vote, whether they are a majority, and why a node does not
//! vote.

use quorlock_client::SystemRandom;
use quorlock_core::NodeError;
use quorlock_core::client::{ClientState, LinkAction, Links};
use quorlock_core::node_set::NodeSet;
use quorlock_core::quorum::{Majority, Moment};
use serde_json::{Value, json};

use super::facts::{Abstention, Facts, ModuleInfo};
use crate::output::{escape, ms};

/// The address of a node, without user and password, and what the node answered.
pub(crate) type Answer = (String, Result<Facts, NodeError>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeReport {
    pub(crate) name: String,
    pub(crate) answer: Result<Facts, NodeError>,
    pub(crate) state: State,
}

/// How a client treats a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The node grants locks, and its grants count.
    #[default]
    Voting,
    /// The node grants no locks for a while, since it may have forgotten some.
    Abstaining(Abstention),
    /// The server refuses or delays all writes, and so every request for a lock, for the reason
    /// that this word of [`Unwritable`] says.
    ///
    /// [`Unwritable`]: quorlock_core::node::Unwritable
    Unwritable(String),
    /// The node answers, but clients do not ask it for locks.
    NotCounted(NodeError),
    /// The node cannot be reached, does not answer, or sends an unexpected reply.
    Down(NodeError),
}

/// All nodes, in the order in which they were named.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) nodes: Vec<NodeReport>,
}

impl State {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Voting => "voting",
            Self::Abstaining(_) => "abstaining",
            Self::Unwritable(_) => "unwritable",
            Self::NotCounted(_) => "not counted",
            Self::Down(_) => "down",
        }
    }

    /// The name of the state without a space, for programs.
    pub(crate) fn word(&self) -> String {
        self.name().replace(' ', "_")
    }

    /// The error of a node that does not answer or is not counted.
    pub(crate) fn error(&self) -> Option<&NodeError> {
        match self {
            Self::NotCounted(error) | Self::Down(error) => Some(error),
            Self::Voting | Self::Abstaining(_) | Self::Unwritable(_) => None,
        }
    }

    /// Returns why the node does not vote: a word of the module, or the words of an error, escaped
    /// for a terminal.
    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            Self::Voting => None,
            Self::Abstaining(Abstention { reason, .. }) | Self::Unwritable(reason) => {
                Some(reason.clone())
            }
            Self::NotCounted(error) | Self::Down(error) => Some(escape(&error.to_string())),
        }
    }
}

impl Snapshot {
    pub(crate) fn new(answers: Vec<Answer>) -> Self {
        let why_not_asked = why_not_asked(&answers);
        let answers = answers.into_iter().zip(why_not_asked);
        let report = |((name, answer), why_not): (Answer, _)| {
            let state = state(&answer, why_not);
            NodeReport { name, answer, state }
        };
        Self { nodes: answers.map(report).collect() }
    }

    pub(crate) fn errors(&self) -> impl Iterator<Item = NodeError> {
        self.nodes.iter().filter_map(|node| node.state.error()).cloned()
    }

    pub(crate) fn voting(&self) -> usize {
        self.nodes.iter().filter(|node| node.state == State::Voting).count()
    }

    /// How many nodes must vote for a lock to be acquired.
    pub(crate) fn majority(&self) -> usize {
        Majority::of(self.nodes.len()).map_or(1, Majority::size)
    }

    pub(crate) fn has_majority(&self) -> bool {
        self.voting() >= self.majority()
    }

    pub(crate) fn json(&self) -> Value {
        let nodes: Value = self.nodes.iter().map(NodeReport::json).collect();
        json!({
            "majority": self.has_majority(),
            "voting": self.voting(),
            "needed": self.majority(),
            "nodes": nodes,
        })
    }

    pub(crate) fn modules(&self) -> impl Iterator<Item = (&NodeReport, &ModuleInfo)> {
        self.nodes.iter().filter_map(|node| Some((node, node.module()?)))
    }
}

impl NodeReport {
    pub(crate) fn facts(&self) -> Option<&Facts> {
        self.answer.as_ref().ok()
    }

    /// What the lock module of the node reports.
    pub(crate) fn module(&self) -> Option<&ModuleInfo> {
        self.facts()?.module.as_ref()
    }

    /// The set that the node belongs to.
    pub(crate) fn set(&self) -> Option<&NodeSet> {
        self.facts()?.hello.set.set()
    }

    pub(crate) fn json(&self) -> Value {
        let (facts, lock) = (self.facts(), self.module());
        let set = self.set().map(|set| {
            let (id, members) = (set.id().to_string(), set.members().to_string());
            json!({ "name": set.name(), "id": id, "members": members })
        });
        let mut shown = json!({
            "node": self.name,
            "state": self.state.word(),
            "module": lock.map(|lock| &lock.version),
            "server": facts.map(|facts| &facts.server),
            "set": set,
            "evicts": facts.map(Facts::evicts),
            "max_ttl_ms": lock.and_then(|lock| lock.max_ttl_ms),
            "max_waiters": facts.and_then(|facts| facts.max_waiters),
            "max_clock_skew_ms": facts.and_then(|facts| facts.max_clock_skew_ms),
            "leases": lock.map(|lock| lock.leases),
            "waiters": lock.map(|lock| lock.waiters),
            "round_trip_us": facts.map(|facts| u64::try_from(facts.round_trip.as_micros()).ok()),
            "clock_offset_us": facts.and_then(|facts| facts.clock_offset_us),
            "longest_wait_us": lock.and_then(|lock| lock.longest_wait_us),
            "counters": lock.map(|lock| lock.counters.clone()).unwrap_or_default(),
        });
        if let Some(reason) = self.state.reason() {
            shown["reason"] = reason.into();
        }
        if let Some(finding) = self.state.finding() {
            shown["advice"] = finding.todo.into();
        }
        if let State::Abstaining(Abstention { left: Some(left), .. }) = self.state {
            shown["abstain_left_ms"] = ms(left).into();
        }
        shown
    }
}

fn state(answer: &Result<Facts, NodeError>, why_not_asked: Option<NodeError>) -> State {
    match (answer, why_not_asked) {
        (Err(error @ (NodeError::Denied { .. } | NodeError::ErrorReply(_))), _) => {
            State::NotCounted(error.clone())
        }
        (Err(error), _) => State::Down(error.clone()),
        (Ok(_), Some(error)) if error != NodeError::AwaitsMajority => State::NotCounted(error),
        // `AwaitsMajority`: too few other nodes answered, or the node's own set cannot be
        // parsed. The node is not refused, and its own report decides.
        (Ok(facts), _) => {
            facts.module.as_ref().map_or(State::Voting, |module| module.state.clone())
        }
    }
}

/// Returns for each node why a client would not ask it for locks; `None` if the client would. The
/// client's state machine [`Links`] decides this.
fn why_not_asked(answers: &[Answer]) -> Vec<Option<NodeError>> {
    let Some(majority) = Majority::of(answers.len()) else { return Vec::new() };
    let now = Moment::default();
    let mut links = Links::new(answers.iter().map(|(name, _)| name.as_str().into()), None, now);
    links.handle_timeout(now, &ClientState::new(majority), &mut SystemRandom);
    while let Some(action) = links.poll() {
        let LinkAction::Connect(id) = action else { continue };
        match &answers[id.node].1 {
            Ok(facts) => {
                links.handle_connected(id, facts.hello.clone(), now);
            }
            Err(error) => links.handle_connect_failed(id, error.clone(), now),
        }
    }
    links.health().into_iter().map(|health| health.error).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use quorlock_core::client::Hello;
    use quorlock_core::node_set::SetReport;

    use super::*;

    /// Makes `count` nodes that vote and belong to the set `eu`, each with its own run id.
    pub(crate) fn voting(count: usize) -> Vec<Answer> {
        let members: Vec<_> = (1..=count).map(|id| id.to_string()).collect();
        let node = |index: usize| {
            let set = format!("eu {} {}", index + 1, members.join(","));
            let module = ModuleInfo {
                version: "0.1.0".into(),
                max_ttl_ms: Some(60_000),
                ..ModuleInfo::default()
            };
            let facts = Facts {
                server: "redis 7.0.15".into(),
                hello: Hello {
                    run_id: Some(format!("run-{index}").into()),
                    module_version: Some("0.1.0".into()),
                    set: SetReport::Set(set.parse().unwrap()),
                    ..Hello::default()
                },
                maxmemory_policy: Some("noeviction".into()),
                module: Some(module),
                max_clock_skew_ms: Some(60_000),
                max_waiters: Some(1000),
                round_trip: Duration::from_micros(400),
                clock_offset_us: Some(0),
                ..Facts::default()
            };
            (format!("lock-{index}:6379"), Ok(facts))
        };
        (0..count).map(node).collect()
    }

    pub(crate) fn facts(node: &mut Answer) -> &mut Facts {
        node.1.as_mut().unwrap()
    }

    pub(crate) fn module(node: &mut Answer) -> &mut ModuleInfo {
        facts(node).module.as_mut().unwrap()
    }
}
