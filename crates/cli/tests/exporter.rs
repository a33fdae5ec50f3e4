//! `quorlock exporter` on real nodes, and the alerts and the dashboard of contrib/, which use its
//! metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::common::*;
use quorlock_testkit::{Direction, Nodes, Proxy, Server, eventually};
use rustix::process::Signal;
use serde_json::Value;

struct Exporter {
    address: SocketAddr,
    process: Running,
}

impl Exporter {
    /// Starts an exporter for these nodes on a free port.
    fn start(urls: &[String], options: &[&str]) -> Self {
        let mut command = on_urls(urls, "exporter");
        let process = Running::start(command.args(["--listen", "127.0.0.1:0"]).args(options));
        let line = process.error_line();
        let address =
            line.trim_start_matches("quorlock: serving http://").trim_end_matches("/metrics");
        Self { address: address.parse().unwrap_or_else(|_| panic!("{line}")), process }
    }

    fn scrape(&self) -> String {
        assert_status(self.address, "/metrics", 200)
    }
}

/// Sends a GET request with these lines of the head, each of which ends in CRLF. Returns the head
/// of the response and its body.
fn get(address: SocketAddr, path: &str, lines: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // In HTTP/1.0, the response has no chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{lines}\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    (head.to_owned(), body.to_owned())
}

#[track_caller]
fn assert_status(address: SocketAddr, path: &str, status: u16) -> String {
    let (head, body) = get(address, path, "");
    assert!(head.starts_with(&format!("HTTP/1.0 {status} ")), "{head}");
    body
}

#[track_caller]
fn assert_has(text: &str, line: &str) {
    assert!(text.lines().any(|have| have == line), "no {line} in {text}");
}

#[test]
fn scrape_has_the_state_and_the_counters_of_each_node() {
    let mut nodes = Nodes::start_with(3, |_, node| node.tcp()).unwrap();
    let exporter = Exporter::start(&nodes.urls(), &[]);
    let names = [0, 1, 2].map(|index: usize| address(&nodes[index]));
    let acquire = ["LOCK.ACQUIRE", "a-secret-key", "a-secret-token", "60000", "OWNER", "an-owner"];
    exec(&nodes[0], &acquire);
    let text = exporter.scrape();
    assert_has(&text, &format!("quorlock_node_leases{{node=\"{}\"}} 1.0", names[0]));
    assert_has(&text, &format!("quorlock_node_grants_total{{node=\"{}\"}} 1", names[0]));
    assert_has(&text, &format!("quorlock_node_grants_total{{node=\"{}\"}} 0", names[1]));
    assert_has(&text, "quorlock_voting_nodes{} 3.0");
    for secret in ["a-secret-key", "a-secret-token", "an-owner"] {
        assert!(!text.contains(secret), "{text}");
    }

    nodes[2].kill();
    let text = exporter.scrape();
    assert_has(&text, &format!("quorlock_node_up{{node=\"{}\"}} 0.0", names[2]));
    assert_has(&text, "quorlock_voting_nodes{} 2.0");
    // The node is scraped again without a restart of the exporter.
    nodes[2].restart().unwrap();
    eventually(PATIENCE, "the node is up again", || {
        exporter.scrape().contains("voting_nodes{} 3.0")
    });

    assert_status(exporter.address, "/", 200);
    assert_status(exporter.address, "/other", 404);
    exporter.process.signal(Signal::TERM);
    assert_eq!(code(exporter.process.wait_for_end().status), 0);
}

#[test]
fn silent_node_costs_a_scrape_no_more_than_its_time_limit() {
    let nodes = Nodes::start(3);
    let proxy = Proxy::start(nodes[2].url());
    let urls = [nodes[0].url(), nodes[1].url(), proxy.url()];
    let exporter = Exporter::start(&urls, &["--node-timeout", "1s"]);
    assert!(exporter.scrape().contains("voting_nodes{} 3.0"));
    proxy.drop_bytes(Direction::ToServer);
    // On a busy machine a scrape may be late, but not every time.
    eventually(PATIENCE, "a scrape takes less than twice the limit", || {
        let started = Instant::now();
        let text = exporter.scrape();
        let took = started.elapsed();
        assert!(took >= Duration::from_secs(1), "the scrape did not wait for the node: {took:?}");
        assert!(text.contains("voting_nodes{} 2.0"), "{text}");
        took < Duration::from_secs(2)
    });
    proxy.heal();
    eventually(PATIENCE, "the node is up again", || {
        exporter.scrape().contains("voting_nodes{} 3.0")
    });
}

#[test]
fn scrape_asks_each_node_once_and_overlapping_scrapes_share_requests() {
    const SCRAPES: u64 = 8;
    // INFO and INFO lock.
    const INFOS_PER_SCRAPE: u64 = 2;
    let nodes = Nodes::start(1);
    let proxy = Proxy::start(nodes[0].url());
    let exporter = Exporter::start(&[proxy.url()], &["--node-timeout", "10s"]);
    let address = exporter.address;
    let info_calls = || calls(&nodes[0], "info");
    exporter.scrape();
    let before = info_calls();
    exporter.scrape();
    let connections = proxy.connections();
    // `info_calls` calls INFO itself, too.
    assert_eq!(info_calls() - before, INFOS_PER_SCRAPE + 1);

    let before = info_calls();
    proxy.hold(Direction::ToServer);
    thread::scope(|scope| {
        for _ in 0..SCRAPES {
            scope.spawn(|| assert_status(address, "/metrics", 200));
        }
        eventually(PATIENCE, "the node is asked", || proxy.waiting_bytes(Direction::ToServer) > 0);
        // The pause lets the other scrapes arrive. A scrape after `heal` would ask the node again.
        thread::sleep(Duration::from_millis(200));
        proxy.heal();
    });
    let asked = info_calls() - before - 1;
    assert!(asked < SCRAPES * INFOS_PER_SCRAPE / 2, "{asked}");
    assert_eq!(proxy.connections(), connections, "one connection is kept");
}

#[test]
fn client_gets_the_format_that_it_accepts() {
    let nodes = Nodes::start_with(3, |_, node| node.tcp()).unwrap();
    let exporter = Exporter::start(&nodes.urls(), &[]);
    let accepting = |accept: &str| {
        let line = format!("Accept: {accept}\r\n");
        get(exporter.address, "/metrics", &line)
    };
    let (head, text) = accepting("text/plain; version=0.0.4");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert_has(&text, "# TYPE quorlock_node_grants_total counter");
    assert!(!text.contains("# EOF"), "{text}");
    let (head, open_metrics) = accepting("application/openmetrics-text; version=1.0.0");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert_has(&open_metrics, "# TYPE quorlock_node_grants counter");
    assert!(open_metrics.ends_with("# EOF\n"), "{open_metrics}");

    // promtool reads the older format.
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(["check", "metrics"]);
    let output = with_input(promtool, &text);
    assert_eq!((code(output.status), stdout(&output), stderr(&output)), (0, "", ""), "{text}");
    assert_ne!(code(with_input(promtool, &open_metrics).status), 0);
}

fn contrib(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(contrib(path)).unwrap()
}

fn promtool(arguments: &[&str], file: &Path) {
    let output = Command::new("promtool").args(arguments).arg(file).output();
    assert_ok(&output.expect("promtool is there: `make setup` installs it"));
}

#[test]
fn rules_are_valid_and_each_alert_fires_after_its_time_and_not_before() {
    promtool(&["check", "rules"], &contrib("prometheus/quorlock-alerts.yml"));
    promtool(&["test", "rules"], &contrib("prometheus/quorlock-alerts-test.yml"));
    let (rules, tests) =
        (read("prometheus/quorlock-alerts.yml"), read("prometheus/quorlock-alerts-test.yml"));
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let is_tested = tests.contains(&format!("30m, alertname: {alert}}}"));
        assert!(is_tested, "{alert} is not tested on a good fleet");
        assert!(tests.contains(&format!("  alertname: {alert}\n")), "{alert} is not provoked");
    }
}

/// Every query of the dashboard.
fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("grafana/quorlock.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let query = |target: &Value| {
        let query = target["expr"].as_str().unwrap().replace("$instance", ".*");
        query.replace("$node", ".*").replace("$__rate_interval", "1m")
    };
    targets.map(query).collect()
}

/// The names of the labels of a series such as `name{label="value"}`, by the name of its metric.
fn labels(series: &str) -> Option<(&str, BTreeSet<&str>)> {
    let (metric, labels) = series.split_once('{')?;
    let names = labels.rsplit_once('}')?.0.split('"').step_by(2);
    let names = names.map(|name| name.trim_matches([',', ' ', '=']));
    Some((metric, names.filter(|name| !name.is_empty()).collect()))
}

/// So the tests of promtool, whose series are written by hand, also hold for the exporter.
#[test]
fn alerts_and_dashboard_use_metrics_that_the_exporter_has() {
    let good = Nodes::start(1);
    let set = ["lock.set", "lock.rejoin-delay"];
    let abstaining = Server::with_module().arg(set[0], "eu 1 1").arg(set[1], 60_000).start();
    let (of_good, of_abstaining) = (
        Exporter::start(&good.urls(), &[]),
        Exporter::start(&[abstaining.as_ref().unwrap().url()], &[]),
    );
    let scraped = of_good.scrape() + &of_abstaining.scrape();
    let exported: BTreeMap<_, _> = scraped.lines().filter_map(labels).collect();

    let tests = read("prometheus/quorlock-alerts-test.yml");
    let provoked = tests.lines().filter_map(|line| line.split('\'').nth(1).and_then(labels));
    for (metric, mut labels) in provoked.filter(|(metric, _)| *metric != "up") {
        // Prometheus adds these two.
        labels.retain(|label| !["job", "instance"].contains(label));
        assert!(labels.is_subset(&exported[metric]), "{metric}: {labels:?}");
    }
    let (rules, queries) = (read("prometheus/quorlock-alerts.yml"), dashboard_queries());
    assert!(queries.len() > 20);
    for text in queries.iter().chain([&rules]) {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for metric in words.filter(|word| word.starts_with("quorlock_")) {
            assert!(exported.contains_key(metric), "no {metric} in {scraped}");
        }
    }
    // promtool checks queries in the form of rules.
    let rule = |query: &String| format!("      - record: checked\n        expr: {query:?}\n");
    let rules = queries.iter().map(rule).collect::<String>();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("groups:\n  - name: dashboard\n    rules:\n{rules}")).unwrap();
    promtool(&["check", "rules", "--lint=none"], file.path());
}
