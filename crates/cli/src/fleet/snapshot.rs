//! All nodes together: which of them vote, whether they are a majority, and why a node does not
//! vote.

use std::time::Duration;

use quorlock_core::client::{ClientState, LinkAction, Links, NodeError, Random};
use quorlock_core::node::Unwritable;
use quorlock_core::node_set::NodeSet;
use quorlock_core::quorum::{Majority, Moment};
use serde_json::{Value, json};

use super::info::{Abstention, COUNTERS, Info, ModuleInfo};
use crate::output::{escape, ms, short_time};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeReport {
    /// The address, without user and password.
    pub(crate) name: String,
    pub(crate) answer: Result<Facts, NodeError>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) info: Info,
    /// `lock.max-clock-skew`; `None` if the node does not show it.
    pub(crate) max_clock_skew_ms: Option<u64>,
    /// `lock.max-waiters`; `None` if the node does not show it.
    pub(crate) max_waiters: Option<u64>,
    pub(crate) round_trip: Duration,
    /// How far the node's wall clock is ahead of this machine's; `None` if the user may not run
    /// TIME.
    pub(crate) clock_offset_us: Option<i64>,
}

/// How a client treats a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The node grants locks, and its grants count.
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

/// All nodes and their states, in the order in which the nodes were named.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) nodes: Vec<NodeReport>,
    pub(crate) states: Vec<State>,
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

    /// Returns why the node does not vote, for how long, and what to do; escaped for a terminal.
    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            Self::Voting => None,
            Self::Abstaining(Abstention { reason, left: Some(left) }) => Some(format!(
                "{reason}: may have forgotten locks; votes again in {}",
                short_time(*left)
            )),
            Self::Abstaining(Abstention { reason, left: None }) => {
                Some(format!("{reason}: grants no locks, and does not say for how long"))
            }
            Self::Unwritable(reason) => {
                let (what, todo) = unwritable_advice(reason);
                Some(format!("{reason}: {what}: {todo}"))
            }
            Self::NotCounted(error) | Self::Down(error) => Some(match advice(error) {
                Some(advice) => format!("{}: {advice}", escape(&error.to_string())),
                None => escape(&error.to_string()),
            }),
        }
    }
}

impl Snapshot {
    pub(crate) fn new(nodes: Vec<NodeReport>) -> Self {
        let states = states(&nodes);
        Self { nodes, states }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NodeReport, &State)> {
        self.nodes.iter().zip(&self.states)
    }

    pub(crate) fn errors(&self) -> impl Iterator<Item = NodeError> {
        self.states.iter().filter_map(State::error).cloned()
    }

    pub(crate) fn voting(&self) -> usize {
        self.states.iter().filter(|state| **state == State::Voting).count()
    }

    /// How many nodes must vote for a lock to be acquired.
    pub(crate) fn majority(&self) -> usize {
        Majority::of(self.nodes.len()).map_or(1, Majority::size)
    }

    pub(crate) fn has_majority(&self) -> bool {
        self.voting() >= self.majority()
    }

    pub(crate) fn json(&self) -> Value {
        let nodes: Value = self.iter().map(|(node, state)| node.json(state)).collect();
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
        self.facts()?.info.lock.as_ref()
    }

    /// The set that the node belongs to.
    pub(crate) fn set(&self) -> Option<&NodeSet> {
        self.facts()?.info.hello.set.set()
    }

    fn json(&self, state: &State) -> Value {
        let (facts, lock) = (self.facts(), self.module());
        let set = self.set().map(|set| {
            let (id, members) = (set.id().to_string(), set.members().to_string());
            json!({ "name": set.name(), "id": id, "members": members })
        });
        let counters = lock.into_iter().flat_map(|lock| COUNTERS.iter().zip(lock.counters));
        let counters: Value =
            counters.filter_map(|((name, _), count)| Some((*name, count?))).collect();
        let mut shown = json!({
            "node": self.name,
            "state": state.word(),
            "module": lock.map(|lock| &lock.version),
            "server": facts.map(|facts| &facts.info.server),
            "set": set,
            "evicts": facts.map(|facts| facts.info.evicts()),
            "max_ttl_ms": lock.and_then(|lock| lock.max_ttl_ms),
            "max_waiters": facts.and_then(|facts| facts.max_waiters),
            "max_clock_skew_ms": facts.and_then(|facts| facts.max_clock_skew_ms),
            "leases": lock.map(|lock| lock.leases),
            "waiters": lock.map(|lock| lock.waiters),
            "round_trip_us": facts.map(|facts| u64::try_from(facts.round_trip.as_micros()).ok()),
            "clock_offset_us": facts.and_then(|facts| facts.clock_offset_us),
            "counters": counters,
        });
        let (reason, advice) = match state {
            State::Voting => (None, None),
            State::Abstaining(abstention) => (Some(abstention.reason.clone()), None),
            State::Unwritable(reason) => (Some(reason.clone()), Some(unwritable_advice(reason).1)),
            State::NotCounted(error) | State::Down(error) => {
                (Some(escape(&error.to_string())), advice(error))
            }
        };
        if let Some(reason) = reason {
            shown["reason"] = reason.into();
        }
        if let Some(advice) = advice {
            shown["advice"] = advice.into();
        }
        if let State::Abstaining(Abstention { left: Some(left), .. }) = state {
            shown["abstain_left_ms"] = ms(*left).into();
        }
        shown
    }
}

/// Returns what a server refuses and what to do, for a word of [`Unwritable`]. A newer module may
/// report a word that this program does not know.
pub(crate) fn unwritable_advice(reason: &str) -> (&'static str, &'static str) {
    match Unwritable::ALL.into_iter().find(|known| known.word() == reason) {
        Some(Unwritable::Loading) => {
            ("it loads its data, and answers no request", "wait until the server has loaded it")
        }
        Some(Unwritable::MemoryFull) => (
            "its memory is full: it refuses new locks, while held locks can be extended",
            "raise maxmemory, or remove what other programs store on this server",
        ),
        Some(Unwritable::SaveFailed) => (
            "its last save to disk failed: it refuses all writes, and extends no lock",
            "see the log of the server, correct its disk, and send BGSAVE",
        ),
        Some(Unwritable::TooFewReplicas) => (
            "it has fewer replicas than min-replicas-to-write: it refuses all writes, and extends \
             no lock",
            "connect its replicas, or CONFIG SET min-replicas-to-write 0: locks need no replica",
        ),
        Some(Unwritable::WritesPaused) => (
            "its writes are paused, by CLIENT PAUSE or FAILOVER: every request for a lock waits",
            "wait, or end the pause with CLIENT UNPAUSE",
        ),
        None => ("it refuses writes", "see the log of the server"),
    }
}

/// Returns one sentence that says what to do, if the error itself does not.
pub(crate) fn advice(error: &NodeError) -> Option<&'static str> {
    match error {
        NodeError::Down { reason } if reason.contains("refused") => {
            Some("start the server, or correct its address")
        }
        NodeError::Down { reason } if reason.contains("lookup") || reason.contains("resolve") => {
            Some("correct the host name, or its entry in the DNS")
        }
        NodeError::Down { reason } if reason.contains("No such file") => {
            Some("start the server, or correct the path of its socket")
        }
        NodeError::Down { .. } => Some("check that the server runs, and the network to it"),
        NodeError::TimedOut { .. } => {
            Some("check that the server is not stopped or overloaded, or raise --node-timeout")
        }
        NodeError::ErrorReply(words) if words.starts_with("LOADING") => {
            Some("wait until the server has loaded its data")
        }
        NodeError::UnexpectedReply => {
            Some("check that the address is that of a Redis or Valkey server")
        }
        NodeError::Misconfigured { reason } if reason.contains("certificate") => {
            Some("check the node's certificate, and --cacert")
        }
        _ => None,
    }
}

fn states(nodes: &[NodeReport]) -> Vec<State> {
    let state = |(node, why_not): (&NodeReport, Option<NodeError>)| match (&node.answer, why_not) {
        (Err(error), _) if is_error_reply(error) => State::NotCounted(error.clone()),
        (Err(error), _) => State::Down(error.clone()),
        (Ok(_), Some(error)) if error != NodeError::AwaitsMajority => State::NotCounted(error),
        // `AwaitsMajority`: too few other nodes answered, or the node's own set cannot be
        // parsed. The node is not refused, and its own report decides.
        (Ok(_), _) => match node.module() {
            Some(ModuleInfo { unwritable: Some(reason), .. }) => State::Unwritable(reason.clone()),
            Some(ModuleInfo { abstention: Some(abstention), .. }) => {
                State::Abstaining(abstention.clone())
            }
            _ => State::Voting,
        },
    };
    nodes.iter().zip(why_not_asked(nodes)).map(state).collect()
}

fn is_error_reply(error: &NodeError) -> bool {
    matches!(error, NodeError::Denied { .. } | NodeError::ErrorReply(_))
}

/// Returns for each node why a client would not ask it for locks; `None` if the client would. The
/// client's state machine [`Links`] decides this.
fn why_not_asked(nodes: &[NodeReport]) -> Vec<Option<NodeError>> {
    let Some(majority) = Majority::of(nodes.len()) else { return Vec::new() };
    let now = Moment::default();
    let mut links = Links::new(nodes.iter().map(|node| node.name.as_str().into()), None, now);
    links.handle_timeout(now, &ClientState::new(majority), &mut NotRandom);
    while let Some(action) = links.poll() {
        let LinkAction::Connect { node, connection } = action else { continue };
        match &nodes[node].answer {
            Ok(facts) => {
                links.handle_connected(node, connection, facts.info.hello.clone(), now);
            }
            Err(error) => links.handle_connect_failed(node, connection, error.clone(), now),
        }
    }
    links.health().into_iter().map(|health| health.error).collect()
}

/// Only pauses between attempts to connect are random, and no such pause happens here.
struct NotRandom;

impl Random for NotRandom {
    fn bits(&mut self) -> Option<u128> {
        None
    }

    fn below(&mut self, _end: u64) -> u64 {
        0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use quorlock_core::client::Hello;
    use quorlock_core::node_set::SetReport;

    use super::*;

    /// Makes `count` nodes that vote and belong to the set `eu`, each with its own run id.
    pub(crate) fn voting(count: usize) -> Vec<NodeReport> {
        let members: Vec<_> = (1..=count).map(|id| id.to_string()).collect();
        let node = |index: usize| {
            let set = format!("eu {} {}", index + 1, members.join(","));
            let module = ModuleInfo {
                version: "0.1.0".into(),
                max_ttl_ms: Some(60_000),
                ..ModuleInfo::default()
            };
            let info = Info {
                server: "redis 7.0.15".into(),
                hello: Hello {
                    run_id: Some(format!("run-{index}").into()),
                    module_version: Some("0.1.0".into()),
                    set: SetReport::Set(set.parse().unwrap()),
                    ..Hello::default()
                },
                maxmemory_policy: Some("noeviction".into()),
                lock: Some(module),
                ..Info::default()
            };
            let facts = Facts {
                info,
                max_clock_skew_ms: Some(60_000),
                max_waiters: Some(1000),
                round_trip: Duration::from_micros(400),
                clock_offset_us: Some(0),
            };
            NodeReport { name: format!("lock-{index}:6379"), answer: Ok(facts) }
        };
        (0..count).map(node).collect()
    }

    pub(crate) fn facts(node: &mut NodeReport) -> &mut Facts {
        node.answer.as_mut().unwrap()
    }

    pub(crate) fn module(node: &mut NodeReport) -> &mut ModuleInfo {
        facts(node).info.lock.as_mut().unwrap()
    }

    pub(crate) fn abstention(left_ms: u64) -> Abstention {
        Abstention { reason: "start".into(), left: Some(Duration::from_millis(left_ms)) }
    }

    #[test]
    fn every_reason_of_a_down_node_has_its_advice() {
        for (reason, hint) in [
            ("Connection refused (os error 111)", "start the server"),
            ("failed to lookup address information", "host name"),
            ("No such file or directory (os error 2)", "socket"),
            ("broken pipe", "network"),
        ] {
            let advice = advice(&NodeError::Down { reason: reason.into() }).unwrap();
            assert!(advice.contains(hint), "{reason}: {advice}");
        }
        assert_eq!(advice(&NodeError::NoModule), None, "the error itself says what to do");
    }
}
