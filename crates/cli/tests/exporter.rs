//! `quorlock exporter` on real nodes, and the alerts and the dashboard of contrib/ with a real
//! Prometheus that scrapes it.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::common::*;
use quorlock_testkit::{
    Direction, Inject as _, Nodes, Proxy, ReservedPort, Server, WallClock, eventually, holds_within,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

struct Exporter {
    address: SocketAddr,
    process: Running,
}

impl Exporter {
    /// Starts an exporter for these nodes on a free port.
    fn start(urls: &[String], options: &[&str]) -> Self {
        let mut command = on_urls(urls, "exporter");
        let mut process = Running::start(command.args(["--listen", "127.0.0.1:0"]).args(options));
        let line = process.error_line();
        let address =
            line.trim_start_matches("quorlock: serving http://").trim_end_matches("/metrics");
        Self { address: address.parse().unwrap_or_else(|_| panic!("{line}")), process }
    }

    fn scrape(&self) -> String {
        let (status, text) = get(self.address, "/metrics");
        assert_eq!(status, 200, "{text}");
        text
    }
}

/// Sends a GET request, and returns the status and the body.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    try_get(address, path).unwrap_or_else(|error| panic!("{address}{path}: {error}"))
}

/// As [`get`], but returns an error of the connection.
fn try_get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let (head, body) = get_with(address, path, "")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, body))
}

/// Sends a GET request with more lines of the head, each of which ends in CRLF. Returns the head of
/// the response and its body.
fn get_with(address: SocketAddr, path: &str, lines: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // In HTTP/1.0, the response has no chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{lines}\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    Ok((head.to_owned(), body.to_owned()))
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

    assert_eq!(get(exporter.address, "/").0, 200);
    assert_eq!(get(exporter.address, "/other").0, 404);
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
    let info_calls = || command_stats(&nodes[0], "info").0;
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
            scope.spawn(|| assert_eq!(get(address, "/metrics").0, 200));
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
        get_with(exporter.address, "/metrics", &line).unwrap()
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

/// How often Prometheus scrapes and evaluates in this test.
const INTERVAL: &str = "1s";

/// The alert that needs two versions of the module: only the tests of promtool provoke it.
const ONLY_WITH_PROMTOOL: &str = "QuorlockModuleVersionsDiffer";

fn contrib(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(contrib(path)).unwrap()
}

fn alerts() -> BTreeSet<String> {
    let rules = read("prometheus/quorlock-alerts.yml");
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

fn promtool(arguments: &[&str], file: &str) {
    let output = Command::new("promtool").args(arguments).arg(contrib(file)).output();
    assert_ok(&output.expect("promtool is there: `make setup` installs it"));
}

#[test]
fn rules_are_valid_and_each_alert_fires_after_its_time_and_not_before() {
    promtool(&["check", "rules"], "prometheus/quorlock-alerts.yml");
    promtool(&["test", "rules"], "prometheus/quorlock-alerts-test.yml");
    let tests = read("prometheus/quorlock-alerts-test.yml");
    for alert in alerts() {
        let is_tested = tests.contains(&format!("30m, alertname: {alert}}}"));
        assert!(is_tested, "{alert} is not tested on a good fleet");
        assert!(tests.contains(&format!("  alertname: {alert}\n")), "{alert} is not provoked");
    }
}

fn reserve_port() -> (ReservedPort, SocketAddr) {
    let port = ReservedPort::new(None).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
    (port, address)
}

struct Prometheus {
    address: SocketAddr,
    _port: ReservedPort,
    _process: KillOnDrop,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts Prometheus with the alerts of contrib/, but without their waiting times.
    fn start(targets: &[SocketAddr]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rules = read("prometheus/quorlock-alerts.yml");
        let rules = rules.lines().filter(|line| !line.trim().starts_with("for: "));
        let rules = rules.fold(String::new(), |rules, line| rules + line + "\n");
        fs::write(folder.path().join("rules.yml"), rules).unwrap();
        let targets: Vec<_> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let config = format!(
            "global: {{scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}, evaluation_interval: {INTERVAL}}}\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n  - job_name: quorlock\n    static_configs:\n      - targets: [{}]\n",
            targets.join(", ")
        );
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let log = folder.path().join("log");
        // Prometheus does not report a port that it chose, so the test chooses a free port.
        let (port, address) = reserve_port();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .expect("prometheus is there: `make setup` installs it");
        let process = KillOnDrop(process);
        let is_ready = || matches!(try_get(address, "/-/ready"), Ok((200, _)));
        let log = || fs::read_to_string(&log).unwrap();
        assert!(holds_within(PATIENCE, is_ready), "Prometheus is not ready: {}", log());
        Self { address, _port: port, _process: process, _folder: folder }
    }

    fn ask(&self, path: &str) -> Value {
        let (status, text) = get(self.address, path);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()["data"].take()
    }

    fn query(&self, query: &str) -> Vec<Value> {
        let query: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        self.ask(&format!("/api/v1/query?query={query}"))["result"].as_array().unwrap().clone()
    }

    fn firing(&self, exporter: SocketAddr) -> BTreeSet<String> {
        let alerts = self.ask("/api/v1/alerts")["alerts"].take();
        let of_exporter = |alert: &&Value| {
            alert["labels"]["instance"] == exporter.to_string() && alert["state"] == "firing"
        };
        let name = |alert: &Value| alert["labels"]["alertname"].as_str().unwrap().to_owned();
        alerts.as_array().unwrap().iter().filter(of_exporter).map(name).collect()
    }
}

/// Every query of the dashboard: the name of the panel and the expression.
fn dashboard_queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("grafana/quorlock.json")).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$instance", ".*").replace("$node", ".*");
            let query = query.replace("$__rate_interval", "1m");
            assert!(!query.contains('$'), "{query}");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}

fn set_of_three() -> Nodes {
    Nodes::start_with(3, |index, node| node.arg("lock.set", format!("eu {} 1,2,3", index + 1)))
        .unwrap()
}

/// Five nodes, each with a different fault.
struct Broken {
    /// Its queue is full, and its clock is stepped while locks are held.
    crowded: Server,
    clock: WallClock,
    evicting: Server,
    _others: [Server; 3],
    urls: Vec<String>,
    waiting: Vec<redis::Connection>,
}

impl Broken {
    fn start() -> Self {
        let clock = WallClock::new();
        let node = |id: u8| Server::with_module().arg("lock.set", format!("eu {id} 1,2,3,4,5"));
        let crowded = node(1).arg("lock.max-waiters", 4).wall_clock(&clock).start().unwrap();
        let starting = node(2).arg("lock.rejoin-delay", 600_000).start().unwrap();
        let evicting = node(3).arg("maxmemory-policy", "allkeys-random").start().unwrap();
        let mut dead = node(4).tcp().start().unwrap();
        dead.kill();
        let other_set = Server::with_module().arg("lock.set", "us 5 1,2,3,4,5").start().unwrap();
        let urls = [&crowded, &starting, &evicting, &dead, &other_set].map(Server::url).to_vec();
        let others = [starting, dead, other_set];
        Self { crowded, clock, evicting, _others: others, urls, waiting: Vec::new() }
    }

    /// Fills a queue, and provokes the faults that counters count. Before the call, Prometheus must
    /// have scraped these counters as zero.
    fn provoke(&mut self) {
        exec(&self.crowded, &["LOCK.ACQUIRE", "held", "t", "60000"]);
        for token in ["a", "b", "c", "d"] {
            let mut connection = self.crowded.connection();
            let mut wait = redis::cmd("LOCK.ACQUIRE");
            wait.arg(&["held", token, "60000", "WAIT", "600000"]);
            connection.send_packed_command(&wait.get_packed_command()).unwrap();
            self.waiting.push(connection);
        }
        exec(&self.crowded, &["LOCK.ACQUIRE", "removed", "t", "60000"]);
        exec(&self.crowded, &["DEL", "removed"]);
        self.clock.step_ms(90_000);
        exec(&self.evicting, &["LOCK.ACQUIRE", "evicted", "t", "60000"]);
        exec(&self.evicting, &["CONFIG", "SET", "maxmemory", "1"]);
        eventually(PATIENCE, "a key was evicted", || {
            info_number(&self.evicting, "lock_saved_from_eviction") > 0
        });
        exec(&self.evicting, &["CONFIG", "SET", "maxmemory", "0"]);
        exec(&self.evicting, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    }
}

#[test]
fn every_alert_fires_on_broken_fleets_and_none_on_a_good_one() {
    let good = set_of_three();
    let mut one_missing = set_of_three();
    one_missing[0].kill();
    let mut broken = Broken::start();
    let of_good = Exporter::start(&good.urls(), &[]);
    let of_one_missing = Exporter::start(&one_missing.urls(), &[]);
    let of_broken = Exporter::start(&broken.urls, &[]);
    let (_port, no_exporter) = reserve_port();
    let of_all = [of_good.address, of_one_missing.address, of_broken.address, no_exporter];
    let prometheus = Prometheus::start(&of_all);
    // All 3 good nodes are up, 2 of the 3 in `one_missing`, and 4 of the 5 broken nodes.
    eventually(PATIENCE, "all nodes were scraped", || {
        prometheus.query("quorlock_node_saved_from_eviction_total == 0").len() == 3 + 2 + 4
    });
    broken.provoke();

    let mut expected = alerts();
    expected.remove(ONLY_WITH_PROMTOOL);
    let (mut firing, mut false_alerts) = (BTreeSet::new(), BTreeSet::new());
    let mut all_fire = |firing: &mut BTreeSet<String>| {
        false_alerts.extend(prometheus.firing(of_good.address));
        for exporter in [of_broken.address, of_one_missing.address, no_exporter] {
            firing.extend(prometheus.firing(exporter));
        }
        expected.is_subset(firing)
    };
    let started = Instant::now();
    while !all_fire(&mut firing) {
        let missing: Vec<_> = expected.difference(&firing).collect();
        assert!(started.elapsed() < PATIENCE, "these do not fire: {missing:?}");
        thread::sleep(Duration::from_millis(50));
    }
    let of_missing = BTreeSet::from(["QuorlockNoSpareNode", "QuorlockNodeDown"].map(str::to_owned));
    eventually(PATIENCE, &format!("only {of_missing:?} fire"), || {
        prometheus.firing(of_one_missing.address) == of_missing
    });
    assert_eq!(false_alerts, BTreeSet::new());

    let queries = dashboard_queries();
    assert!(queries.len() > 20);
    for (panel, query) in queries {
        eventually(PATIENCE, &format!("{panel} shows numbers: {query}"), || {
            let result = prometheus.query(&query);
            !result.is_empty() && result.iter().all(|series| series["value"][1] != "NaN")
        });
    }
}

#[test]
fn address_that_is_taken_is_an_error_that_says_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut exporter = on_urls(&["a".into()], "exporter");
    let output = exporter.args(["--listen", &address]).output().unwrap();
    assert_error(&output, 125, "choose another --listen");
}
