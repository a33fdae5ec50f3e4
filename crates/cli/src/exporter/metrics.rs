//! Metrics from a snapshot of the nodes, in the two formats of Prometheus.

use std::time::Duration;

use crate::doctor::name_of_check;
use crate::fleet::info::{COUNTERS, ModuleInfo};
use crate::fleet::{Facts, NodeReport, Snapshot, State};

/// Names and values of labels. No value may be a key, an owner or a token.
type Labels = Vec<(&'static str, String)>;

pub(super) fn render(snapshot: &Snapshot, took: Duration, format: Format) -> String {
    let mut metrics = Metrics { text: String::new(), format };
    add_fleet_metrics(&mut metrics, snapshot, took);
    add_node_metrics(&mut metrics, snapshot);
    add_server_metrics(&mut metrics, snapshot);
    add_module_metrics(&mut metrics, snapshot);
    match format {
        Format::Text => metrics.text,
        Format::OpenMetrics => metrics.text + "# EOF\n",
    }
}

fn add_fleet_metrics(metrics: &mut Metrics, snapshot: &Snapshot, took: Duration) {
    let mut one = |name, help, value| metrics.gauge(name, help, [(Labels::new(), value)]);
    one("nodes", "Nodes that the exporter was given", number(snapshot.nodes.len()));
    one("voting_nodes", "Nodes that vote", number(snapshot.voting()));
    one(
        "majority_nodes",
        "Nodes that must vote for a lock to be acquired",
        number(snapshot.majority()),
    );
    one("gathering_seconds", "How long asking all nodes took", took.as_secs_f64());
}

fn add_node_metrics(metrics: &mut Metrics, snapshot: &Snapshot) {
    let each = |value: &dyn Fn(&State) -> Option<bool>| -> Vec<_> {
        let values =
            snapshot.iter().map(|(node, state)| Some((labels(node), zero_or_one(value(state)?))));
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
    let left = snapshot.iter().filter_map(|(node, state)| match state {
        State::Abstaining(abstention) => Some((labels(node), abstention.left?.as_secs_f64())),
        _ => None,
    });
    metrics.gauge("node_abstain_left_seconds", "How much longer the node abstains", left);
    let states = snapshot.iter().map(|(node, state)| {
        let reason = match state {
            State::Abstaining(abstention) => abstention.reason.clone(),
            State::Unwritable(reason) => reason.clone(),
            _ => state.error().map(name_of_check).unwrap_or_default().to_owned(),
        };
        let mut labels = labels(node);
        labels.extend([("state", state.word().to_owned()), ("reason", reason)]);
        (labels, 1.0)
    });
    metrics.gauge("node_state", "1 for the state that the node is in, with the reason", states);
}

#[expect(clippy::cast_precision_loss, reason = "no clock is off by 2^53 us, which is 285 years")]
fn add_server_metrics(metrics: &mut Metrics, snapshot: &Snapshot) {
    let mut each = |name, help, value: &dyn Fn(&Facts) -> Option<f64>| {
        let values =
            snapshot.nodes.iter().filter_map(|node| Some((labels(node), value(node.facts()?)?)));
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
fn add_module_metrics(metrics: &mut Metrics, snapshot: &Snapshot) {
    let mut each = |name, help, value: &dyn Fn(&ModuleInfo) -> Option<f64>| {
        let modules = snapshot.modules();
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
    let info = snapshot.modules().filter_map(|(node, lock)| {
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
        let modules = snapshot.modules();
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

/// The metrics that are written so far.
struct Metrics {
    text: String,
    format: Format,
}

impl Metrics {
    fn gauge(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        // A float has a point in the format `OpenMetrics`.
        let samples = values.into_iter().map(|(labels, value)| (labels, format!("{value:?}")));
        self.add(name, help, "gauge", samples);
    }

    fn counter(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let samples = values.into_iter().map(|(labels, count)| (labels, count.to_string()));
        self.add(name, help, "counter", samples);
    }

    fn add(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        samples: impl Iterator<Item = (Labels, String)>,
    ) {
        let total = if kind == "counter" { "_total" } else { "" };
        // The older format names a counter as its samples.
        let of_metric = if self.format == Format::Text { total } else { "" };
        let mut heading = format!(
            "# HELP quorlock_{name}{of_metric} {help}.\n# TYPE quorlock_{name}{of_metric} {kind}\n"
        );
        for (labels, value) in samples {
            self.text += &std::mem::take(&mut heading);
            let labels =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value)));
            let labels = labels.collect::<Vec<_>>().join(",");
            self.text.extend(["quorlock_", name, total, "{", &labels, "} ", &value, "\n"]);
        }
    }
}

/// Escapes the value of a label.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
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

/// How the metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The older format, which every tool for Prometheus reads.
    Text,
    OpenMetrics,
}

impl Format {
    /// Chooses the format that the header Accept prefers. Without a preference, it is the older
    /// one, as in the libraries of Prometheus.
    pub(super) fn accepted(header: &str) -> Self {
        let quality = |types: &[&str], version: &str| {
            let qualities = header.split(',').filter_map(|entry| {
                let mut parts = entry.split(';').map(str::trim);
                let media_type = parts.next()?.to_ascii_lowercase();
                let mut quality = 1.0;
                for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                    match name.trim().to_ascii_lowercase().as_str() {
                        "q" => quality = value.trim().parse().unwrap_or(0.0),
                        "version" if value.trim().trim_matches('"') != version => return None,
                        _ => {}
                    }
                }
                types.contains(&&*media_type).then_some(quality)
            });
            qualities.fold(0.0_f64, f64::max)
        };
        let open_metrics = quality(&["application/openmetrics-text"], "1.0.0");
        let text = quality(&["text/plain", "text/*", "*/*"], "0.0.4");
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// The HTTP content type.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::snapshot::tests::{abstention, facts, module, voting};

    #[test]
    fn abstaining_and_unwritable_nodes_are_admitted_and_a_replica_is_not() {
        let mut nodes = voting(3);
        module(&mut nodes[0]).abstention = Some(abstention(1500));
        facts(&mut nodes[1]).info.is_replica = true;
        module(&mut nodes[2]).unwritable = Some("memory-full".into());
        nodes[2].name = "a\"\\b\n".into();
        let text = render(&Snapshot::new(nodes), Duration::from_millis(5), Format::OpenMetrics);
        for line in [
            "quorlock_nodes{} 3.0",
            "quorlock_gathering_seconds{} 0.005",
            "quorlock_node_abstaining{node=\"lock-0:6379\"} 1.0",
            "quorlock_node_abstain_left_seconds{node=\"lock-0:6379\"} 1.5",
            "quorlock_node_admitted{node=\"lock-0:6379\"} 1.0",
            "quorlock_node_admitted{node=\"lock-1:6379\"} 0.0",
            r#"quorlock_node_state{node="lock-1:6379",state="not_counted",reason="replica"} 1.0"#,
            r#"quorlock_node_state{node="a\"\\b\n",state="unwritable",reason="memory-full"} 1.0"#,
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in {text}");
        }
    }

    #[test]
    fn every_counter_is_explained() {
        for name in COUNTERS {
            assert_ne!(help_of(name), help_of("another"), "{name}");
        }
    }

    #[test]
    fn format_is_the_one_that_the_client_prefers() {
        // Prometheus 2.42, 3.0 and with a protocol of its own choice.
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,\
             application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let text_first =
            "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5";
        for (accept, format) in [
            (prometheus_2, Format::OpenMetrics),
            (prometheus_3, Format::OpenMetrics),
            (text_first, Format::Text),
            ("text/plain; version=0.0.4", Format::Text),
            ("application/openmetrics-text; version=1.0.0; charset=utf-8", Format::OpenMetrics),
            ("Application/OpenMetrics-Text", Format::OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0, text/plain;q=0", Format::Text),
            ("*/*", Format::Text),
            ("", Format::Text),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
