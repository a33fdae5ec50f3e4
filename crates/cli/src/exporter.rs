//! `quorlock exporter`: the figures of all nodes for Prometheus, over HTTP.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, http};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::fleet::facts::COUNTERS;
use crate::fleet::{Fleet, FleetArgs, NodeReport, Snapshot, State};
use crate::nodes;
use crate::output::say;
use crate::system::Signals;

const PATH: &str = "/metrics";
const HOME: &str = concat!("quorlock exporter ", env!("CARGO_PKG_VERSION"), ": see /metrics\n");
/// The pause after a failure to accept a connection, such as for the lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves the state and the counters of all nodes to Prometheus, under /metrics.
///
/// Each scrape asks every node once, with the time limit --node-timeout, which should be shorter
/// than the scrape timeout of Prometheus. A node that does not answer has `quorlock_node_up 0`.
/// Scrapes at the same time share one gathering. No metric contains a key, an owner or a token.
#[derive(clap::Args)]
#[command(after_help = [EXIT_CODES, nodes::SEE_ALSO].join("\n\n"))]
pub(crate) struct Exporter {
    /// The address to listen on; every client that reaches it can read the metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9871")]
    listen: SocketAddr,

    #[command(flatten)]
    fleet: FleetArgs,
}

const EXIT_CODES: &str = "Exit codes:
  0    a signal ended quorlock
  125  quorlock itself failed, or its arguments are not understood";

struct Exporting {
    fleet: Fleet,
    latest: Mutex<Option<Gathered>>,
}

#[derive(Clone)]
struct Gathered {
    snapshot: Arc<Snapshot>,
    took: Duration,
    ended: Instant,
}

pub(crate) async fn exporter(args: Exporter) -> anyhow::Result<ExitCode> {
    let (fleet, _) = args.fleet.load()?;
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}: choose another --listen", args.listen))?;
    say(format_args!("serving http://{}{PATH}", listener.local_addr()?));
    let exporting = Arc::new(Exporting { fleet, latest: Mutex::default() });
    // A signal may cut off a scrape. Prometheus repeats it.
    let _ = signals.interrupting(exporting.serve(listener)).await;
    Ok(ExitCode::SUCCESS)
}

impl Exporting {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let exporting = Arc::clone(&self);
            tokio::spawn(async move {
                let respond = async |request| exporting.respond(&request).await;
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .serve_connection(TokioIo::new(stream), service_fn(respond));
                // The client may end the connection at any time.
                let _ = connection.await;
            });
        }
    }

    /// Asks the nodes. Calls that arrive meanwhile share the snapshot.
    ///
    /// # Cancel safety
    /// When the call that asks the nodes is dropped, another waiting call asks them.
    async fn gather(&self) -> Gathered {
        let arrived = Instant::now();
        let mut latest = self.latest.lock().await;
        if let Some(gathered) = latest.as_ref().filter(|gathered| gathered.ended >= arrived) {
            return gathered.clone();
        }
        let started = Instant::now();
        let snapshot = Arc::new(self.fleet.gather().await);
        let gathered = Gathered { snapshot, took: started.elapsed(), ended: Instant::now() };
        latest.insert(gathered).clone()
    }

    async fn respond(&self, request: &Request<Incoming>) -> http::Result<Response<String>> {
        let response = Response::builder();
        match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, PATH) => {
                let Gathered { snapshot, took, .. } = self.gather().await;
                let accept = request.headers().get_all(ACCEPT).iter();
                let accept: Vec<_> = accept.filter_map(|value| value.to_str().ok()).collect();
                let format = Format::accepted(&accept.join(","));
                let response = response.header(CONTENT_TYPE, format.content_type());
                let metrics = render(&snapshot, took, format);
                response.header(VARY, "accept").body(metrics)
            }
            (&Method::GET | &Method::HEAD, "/") => {
                let text = "text/plain; charset=utf-8";
                response.header(CONTENT_TYPE, text).body(HOME.to_owned())
            }
            (_, PATH | "/") => {
                let response = response.status(StatusCode::METHOD_NOT_ALLOWED);
                response.header(ALLOW, "GET,HEAD").body(String::new())
            }
            _ => response.status(StatusCode::NOT_FOUND).body(String::new()),
        }
    }
}

/// The figures of a node: the field of [`NodeReport::json`], how many of its units are one unit of
/// the metric, and the name and the meaning of the metric.
const FIGURES: [(&str, f64, &str, &str); 10] = [
    ("abstain_left_ms", 1e3, "abstain_left_seconds", "How much longer the node abstains"),
    ("round_trip_us", 1e6, "round_trip_seconds", "The fastest of three round trips"),
    ("clock_offset_us", 1e6, "clock_offset_seconds", "The node's wall clock less the exporter's"),
    ("max_clock_skew_ms", 1e3, "max_clock_skew_seconds", "lock.max-clock-skew"),
    ("max_waiters", 1.0, "max_waiters", "lock.max-waiters"),
    ("evicts", 1.0, "evicts", "Whether maxmemory-policy lets the server evict the keys of locks"),
    ("leases", 1.0, "leases", "Locks that are held"),
    ("waiters", 1.0, "waiters", "Clients that wait for a lock"),
    ("max_ttl_ms", 1e3, "max_ttl_seconds", "lock.max-ttl"),
    ("longest_wait_us", 1e6, "longest_wait_seconds", "Longest wait for a lock, since the start"),
];

/// Writes the metrics of a snapshot.
#[expect(clippy::cast_precision_loss, reason = "no list has 2^53 nodes")]
fn render(snapshot: &Snapshot, took: Duration, format: Format) -> String {
    let mut metrics = Metrics { text: String::new(), format };
    let mut one = |name, help, value| metrics.gauge(name, help, [(String::new(), value)]);
    one("nodes", "Nodes that the exporter was given", snapshot.nodes.len() as f64);
    one("voting_nodes", "Nodes that vote", snapshot.voting() as f64);
    let needed = "Nodes that must vote for a lock to be acquired";
    one("majority_nodes", needed, snapshot.majority() as f64);
    one("gathering_seconds", "How long asking all nodes took", took.as_secs_f64());

    let states = snapshot.nodes.iter().map(|node| {
        let reason = match node.state.error() {
            Some(_) => node.state.finding().map(|finding| finding.check.to_owned()),
            None => node.state.reason(),
        };
        let state = [("state", node.state.word()), ("reason", reason.unwrap_or_default())];
        (labels(node, &state), 1.0)
    });
    metrics.gauge("node_state", "1 for the state that the node is in, with the reason", states);
    let mut each = |name, help, value: &dyn Fn(&NodeReport) -> Option<f64>| {
        let values =
            snapshot.nodes.iter().filter_map(|node| Some((labels(node, &[]), value(node)?)));
        metrics.gauge(name, help, values);
    };
    let nodes: Vec<_> =
        snapshot.nodes.iter().map(|node| (labels(node, &[]), node.json())).collect();
    let is_down = |node: &NodeReport| matches!(node.state, State::Down(_));
    let while_up = |node: &NodeReport, is_so: bool| (!is_down(node)).then(|| f64::from(is_so));
    each("node_up", "Whether the server answers", &|node| Some(f64::from(!is_down(node))));
    each(
        "node_admitted",
        "Whether clients ask the node for locks: 0 for a replica, another set, no module and the like",
        &|node| while_up(node, !matches!(node.state, State::NotCounted(_))),
    );
    each("node_voting", "Whether the node grants locks", &|node| {
        Some(f64::from(node.state == State::Voting))
    });
    each(
        "node_abstaining",
        "Whether the node grants no locks for a while, since it may have forgotten some",
        &|node| while_up(node, matches!(node.state, State::Abstaining(_))),
    );
    for (field, units, name, help) in FIGURES {
        let value = |field: &Value| field.as_f64().or(field.as_bool().map(f64::from));
        let figures = nodes
            .iter()
            .filter_map(|(labels, json)| Some((labels.clone(), value(&json[field])? / units)));
        metrics.gauge(&format!("node_{name}"), help, figures);
    }
    let info = snapshot.modules().filter_map(|(node, lock)| {
        let set = node.set();
        let info = [
            ("module_version", lock.version.clone()),
            ("server", node.facts()?.server.clone()),
            ("set_name", set.map(|set| set.name().to_owned()).unwrap_or_default()),
            ("set_id", set.map(|set| set.id().to_string()).unwrap_or_default()),
            ("set_members", set.map(|set| set.members().to_string()).unwrap_or_default()),
        ];
        Some((labels(node, &info), 1.0))
    });
    metrics.gauge("node_info", "Versions and lock.set of the node", info);
    for (name, help) in COUNTERS {
        let counts = nodes.iter().filter_map(|(labels, json)| {
            Some((labels.clone(), json["counters"][name].as_u64()?.to_string()))
        });
        metrics.add(&format!("node_{name}_total"), help, "counter", counts);
    }
    match format {
        Format::Text => metrics.text,
        Format::OpenMetrics => metrics.text + "# EOF\n",
    }
}

/// The metrics that are written so far.
struct Metrics {
    text: String,
    format: Format,
}

impl Metrics {
    fn gauge(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, f64)>) {
        // A float has a point in the format `OpenMetrics`.
        let samples = values.into_iter().map(|(labels, value)| (labels, format!("{value:?}")));
        self.add(name, help, "gauge", samples);
    }

    fn add(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        samples: impl Iterator<Item = (String, String)>,
    ) {
        // The older format names a counter as its samples.
        let metric = match self.format {
            Format::Text => name,
            Format::OpenMetrics => name.trim_end_matches("_total"),
        };
        let mut heading =
            format!("# HELP quorlock_{metric} {help}.\n# TYPE quorlock_{metric} {kind}\n");
        for (labels, value) in samples {
            self.text += &std::mem::take(&mut heading);
            self.text.extend(["quorlock_", name, "{", &labels, "} ", &value, "\n"]);
        }
    }
}

/// Formats the labels of a sample. No value may be a key, an owner or a token.
fn labels(node: &NodeReport, others: &[(&str, String)]) -> String {
    let label = |name: &str, value: &str| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    let others = others.iter().map(|(name, value)| format!(",{}", label(name, value)));
    label("node", &node.name) + &others.collect::<String>()
}

/// How the metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// The older format, which every tool for Prometheus reads.
    Text,
    OpenMetrics,
}

impl Format {
    /// Chooses the format that the header Accept prefers. Without a preference, it is the older
    /// one, as in the libraries of Prometheus.
    fn accepted(header: &str) -> Self {
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
    fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::facts::Abstention;
    use crate::fleet::snapshot::tests::{facts, module, voting};

    #[test]
    fn state_and_figures_of_each_node_are_shown_in_seconds_and_ones() {
        let mut nodes = voting(3);
        let left = Some(Duration::from_millis(1500));
        module(&mut nodes[0]).state =
            State::Abstaining(Abstention { reason: "start".into(), left });
        facts(&mut nodes[1]).hello.is_replica = true;
        module(&mut nodes[2]).state = State::Unwritable("memory-full".into());
        nodes[2].0 = "a\"\\b\n".into();
        facts(&mut nodes[0]).clock_offset_us = Some(-250_000);
        facts(&mut nodes[0]).maxmemory_policy = Some("allkeys-lru".into());
        module(&mut nodes[0]).longest_wait_us = Some(1_500_000);
        let text = render(&Snapshot::new(nodes), Duration::from_millis(5), Format::OpenMetrics);
        for line in [
            "quorlock_nodes{} 3.0",
            "quorlock_gathering_seconds{} 0.005",
            "quorlock_node_abstaining{node=\"lock-0:6379\"} 1.0",
            "quorlock_node_abstain_left_seconds{node=\"lock-0:6379\"} 1.5",
            "quorlock_node_round_trip_seconds{node=\"lock-0:6379\"} 0.0004",
            "quorlock_node_clock_offset_seconds{node=\"lock-0:6379\"} -0.25",
            "quorlock_node_max_clock_skew_seconds{node=\"lock-0:6379\"} 60.0",
            "quorlock_node_max_waiters{node=\"lock-0:6379\"} 1000.0",
            "quorlock_node_max_ttl_seconds{node=\"lock-0:6379\"} 60.0",
            "quorlock_node_longest_wait_seconds{node=\"lock-0:6379\"} 1.5",
            "quorlock_node_evicts{node=\"lock-0:6379\"} 1.0",
            "quorlock_node_evicts{node=\"lock-1:6379\"} 0.0",
            "quorlock_node_admitted{node=\"lock-0:6379\"} 1.0",
            "quorlock_node_admitted{node=\"lock-1:6379\"} 0.0",
            r#"quorlock_node_state{node="lock-1:6379",state="not_counted",reason="replica"} 1.0"#,
            r#"quorlock_node_state{node="a\"\\b\n",state="unwritable",reason="memory-full"} 1.0"#,
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in {text}");
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
