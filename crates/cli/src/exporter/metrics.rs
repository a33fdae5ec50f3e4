//! Metrics from a report of the nodes: a pure function.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::doctor::name_of_check;
use crate::fleet::info::{COUNTERS, ModuleInfo};
use crate::fleet::{Facts, NodeReport, Report, State};
use crate::status::json::state_name;

/// Names and values of labels. No value may be a key, an owner or a token.
type Labels = Vec<(&'static str, String)>;

/// Returns the metrics in the format `OpenMetrics`.
pub(super) fn render(report: &Report, took: Duration) -> String {
    let mut metrics = Metrics(Registry::with_prefix("quorlock"));
    add_fleet_metrics(&mut metrics, report, took);
    add_node_metrics(&mut metrics, report);
    add_server_metrics(&mut metrics, report);
    add_module_metrics(&mut metrics, report);
    let mut text = String::new();
    if encode(&mut text, &metrics.0).is_err() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# the metrics cannot be written");
    }
    text
}

fn add_fleet_metrics(metrics: &mut Metrics, report: &Report, took: Duration) {
    let mut one = |name, help, value| metrics.gauge(name, help, [(Labels::new(), value)]);
    one("nodes", "Nodes that the exporter was given", number(report.nodes.len()));
    one("voting_nodes", "Nodes that vote", number(report.voting()));
    one(
        "majority_nodes",
        "Nodes that must vote for a lock to be acquired",
        number(report.majority()),
    );
    one("gathering_seconds", "How long asking all nodes took", took.as_secs_f64());
}

fn add_node_metrics(metrics: &mut Metrics, report: &Report) {
    let each = |value: &dyn Fn(&State) -> Option<bool>| -> Vec<_> {
        let values =
            report.iter().map(|(node, state)| Some((labels(node), zero_or_one(value(state)?))));
        values.flatten().collect()
    };
    let is_down = |state: &State| matches!(state, State::Down(_));
    metrics.gauge("node_up", "Whether the server answers", each(&|state| Some(!is_down(state))));
    metrics.gauge(
        "node_admitted",
        "Whether clients ask the node for locks: 0 for a replica, another set, no module and the like",
        each(&|state| (!is_down(state)).then_some(!matches!(state, State::NotCounted(_)))),
    );
    metrics.gauge(
        "node_voting",
        "Whether the node grants locks",
        each(&|state| Some(*state == State::Voting)),
    );
    metrics.gauge(
        "node_abstaining",
        "Whether the node grants no locks for a while, since it may have forgotten some",
        each(&|state| (!is_down(state)).then_some(matches!(state, State::Abstaining(_)))),
    );
    let left = report.iter().filter_map(|(node, state)| match state {
        State::Abstaining(abstention) => Some((labels(node), abstention.left?.as_secs_f64())),
        _ => None,
    });
    metrics.gauge("node_abstain_left_seconds", "How much longer the node abstains", left);
    let states = report.iter().map(|(node, state)| {
        let reason = match state {
            State::Abstaining(abstention) => abstention.reason.clone(),
            State::Unwritable(reason) => reason.clone(),
            _ => state.error().map(name_of_check).unwrap_or_default().to_owned(),
        };
        let mut labels = labels(node);
        labels.extend([("state", state_name(state).to_owned()), ("reason", reason)]);
        (labels, 1.0)
    });
    metrics.gauge("node_state", "1 for the state that the node is in, with the reason", states);
}

#[expect(clippy::cast_precision_loss, reason = "no clock is off by 2^53 us, which is 285 years")]
fn add_server_metrics(metrics: &mut Metrics, report: &Report) {
    let mut each = |name, help, value: &dyn Fn(&Facts) -> Option<f64>| {
        let values =
            report.nodes.iter().filter_map(|node| Some((labels(node), value(node.facts()?)?)));
        metrics.gauge(name, help, values);
    };
    each("node_round_trip_seconds", "The fastest of three round trips", &|facts| {
        Some(facts.round_trip.as_secs_f64())
    });
    each(
        "node_clock_offset_seconds",
        "How far the node's wall clock is ahead of the exporter's",
        &|facts| Some(facts.clock_offset_us? as f64 / 1e6),
    );
    each("node_max_clock_skew_seconds", "lock.max-clock-skew", &|facts| {
        Some(Duration::from_millis(facts.max_clock_skew_ms?).as_secs_f64())
    });
    each("node_max_waiters", "lock.max-waiters", &|facts| Some(facts.max_waiters? as f64));
    each(
        "node_evicts",
        "Whether maxmemory-policy lets the server evict the keys of locks",
        &|facts| Some(zero_or_one(facts.info.evicts())),
    );
}

#[expect(clippy::cast_precision_loss, reason = "no server has 2^53 locks")]
fn add_module_metrics(metrics: &mut Metrics, report: &Report) {
    let mut each = |name, help, value: &dyn Fn(&ModuleInfo) -> Option<f64>| {
        let modules = report.modules();
        let values = modules.filter_map(|(node, lock)| Some((labels(node), value(lock)?)));
        metrics.gauge(name, help, values);
    };
    each("node_leases", "Locks that are held", &|lock| Some(lock.leases as f64));
    each("node_waiters", "Clients that wait for a lock", &|lock| Some(lock.waiters as f64));
    each("node_max_ttl_seconds", "lock.max-ttl", &|lock| {
        Some(Duration::from_millis(lock.max_ttl_ms?).as_secs_f64())
    });
    each(
        "node_longest_wait_seconds",
        "The longest wait that ended with a lock, since the start",
        &|lock| Some(Duration::from_micros(lock.longest_wait_us?).as_secs_f64()),
    );
    let info = report.modules().filter_map(|(node, lock)| {
        let server = node.facts()?.info.server.clone();
        let set = lock.set.set();
        let mut labels = labels(node);
        labels.extend([
            ("module_version", lock.version.clone()),
            ("server", server),
            ("set_name", set.map(|set| set.name().to_owned()).unwrap_or_default()),
            ("set_id", set.map(|set| set.id().to_string()).unwrap_or_default()),
            ("set_members", set.map(|set| set.members().to_string()).unwrap_or_default()),
        ]);
        Some((labels, 1.0))
    });
    metrics.gauge("node_info", "Versions and lock.set of the node", info);
    for (index, name) in COUNTERS.into_iter().enumerate() {
        let modules = report.modules();
        let counts = modules.filter_map(|(node, lock)| Some((labels(node), lock.counters[index]?)));
        metrics.counter(&format!("node_{name}"), help_of(name), counts);
    }
}

fn help_of(counter: &str) -> &'static str {
    match counter {
        "grants" => "Locks granted",
        "refusals" => "Requests refused because the lock is held, or other clients wait for it",
        "abstained" => "Requests answered with ABSTAIN",
        "extends" => "Locks extended",
        "releases" => "Locks released by their holders",
        "ended_by_deadline" => "Locks that ended by their deadline",
        "ended_by_operator" => "Locks that a command such as DEL has ended",
        "revoked" => "Locks that LOCK.REVOKE revoked",
        "saved_from_clock_step" => "Locks that outlived their key, which expired early",
        "saved_from_eviction" => "Locks that outlived their key, which was evicted",
        "handovers" => "Locks granted to a client that had waited",
        _ => "A counter of INFO lock",
    }
}

struct Metrics(Registry);

impl Metrics {
    fn gauge(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.0.register(name, help, family);
    }

    fn counter(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, count) in values {
            family.get_or_create(&labels).inner().store(count, Ordering::Relaxed);
        }
        self.0.register(name, help, family);
    }
}

fn labels(node: &NodeReport) -> Labels {
    vec![("node", node.name.clone())]
}

fn zero_or_one(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "no list has 2^53 nodes")]
fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::report::tests::{abstention, down, facts, module, voting};

    fn text(nodes: Vec<NodeReport>) -> String {
        render(&Report::new(nodes), Duration::from_millis(5))
    }

    #[track_caller]
    fn assert_has_line(text: &str, line: &str) {
        assert!(text.lines().any(|have| have == line), "no {line} in {text}");
    }

    #[test]
    fn metrics_of_each_node_have_its_name() {
        let mut nodes = voting(3);
        module(&mut nodes[0]).counters[0] = Some(7);
        facts(&mut nodes[1]).clock_offset_us = Some(-1_500_000);
        let text = text(nodes);
        assert_has_line(&text, "quorlock_nodes{} 3.0");
        assert_has_line(&text, "quorlock_majority_nodes{} 2.0");
        assert_has_line(&text, "quorlock_node_grants_total{node=\"lock-0:6379\"} 7");
        assert_has_line(&text, "quorlock_node_clock_offset_seconds{node=\"lock-1:6379\"} -1.5");
        let state = r#"quorlock_node_state{node="lock-2:6379",state="voting",reason=""} 1.0"#;
        assert_has_line(&text, state);
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn node_that_is_down_has_a_state_and_no_leases() {
        let mut nodes = voting(3);
        nodes[0].answer = Err(down());
        let text = text(nodes);
        assert_has_line(&text, "quorlock_node_up{node=\"lock-0:6379\"} 0.0");
        assert_has_line(&text, "quorlock_node_voting{node=\"lock-0:6379\"} 0.0");
        let state = r#"quorlock_node_state{node="lock-0:6379",state="down",reason="down"} 1.0"#;
        assert_has_line(&text, state);
        assert!(!text.contains("quorlock_node_leases{node=\"lock-0:6379\"}"), "{text}");
    }

    #[test]
    fn abstaining_node_is_admitted_and_replica_is_not() {
        let mut nodes = voting(3);
        module(&mut nodes[0]).abstention = Some(abstention(1500));
        facts(&mut nodes[1]).info.is_replica = true;
        let text = text(nodes);
        assert_has_line(&text, "quorlock_node_abstaining{node=\"lock-0:6379\"} 1.0");
        assert_has_line(&text, "quorlock_node_abstain_left_seconds{node=\"lock-0:6379\"} 1.5");
        assert_has_line(&text, "quorlock_node_admitted{node=\"lock-0:6379\"} 1.0");
        assert_has_line(&text, "quorlock_node_admitted{node=\"lock-1:6379\"} 0.0");
        assert_has_line(
            &text,
            "quorlock_node_state{node=\"lock-1:6379\",state=\"not_counted\",reason=\"replica\"} 1.0",
        );
    }

    #[test]
    fn unwritable_node_is_admitted_and_does_not_vote() {
        let mut nodes = voting(3);
        module(&mut nodes[0]).unwritable = Some("memory-full".into());
        let text = text(nodes);
        assert_has_line(&text, "quorlock_voting_nodes{} 2.0");
        assert_has_line(&text, "quorlock_node_admitted{node=\"lock-0:6379\"} 1.0");
        assert_has_line(
            &text,
            "quorlock_node_state{node=\"lock-0:6379\",state=\"unwritable\",reason=\"memory-full\"} 1.0",
        );
    }

    #[test]
    fn every_counter_is_explained() {
        for name in COUNTERS {
            assert_ne!(help_of(name), help_of("another"), "{name}");
        }
    }
}
