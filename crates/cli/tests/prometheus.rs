//! The alerts and the dashboard of contrib/, with a real Prometheus that scrapes the real exporter.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::http::{Exporter, get, try_get};
use common::{KillOnDrop, PATIENCE, info_number, stderr};
use quorlock_testkit::{Inject as _, Masters, Server, WallClock, eventually, holds_within};
use serde_json::Value;

/// How often Prometheus scrapes and evaluates in this test.
const INTERVAL: &str = "300ms";

/// The alert that needs two versions of the module: only the tests of promtool provoke it.
const ONLY_WITH_PROMTOOL: [&str; 1] = ["QuorlockModuleVersionsDiffer"];

fn contrib(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(path)
}

fn alerts() -> BTreeSet<String> {
    let rules = fs::read_to_string(contrib("prometheus/quorlock-alerts.yml")).unwrap();
    rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .map(str::to_owned)
        .collect()
}

fn promtool(arguments: &[&str], file: &str) {
    let file = contrib(file);
    let output = Command::new("promtool").args(arguments).arg(&file).output();
    let output = output.expect("promtool is there: `make setup` installs it");
    assert!(
        output.status.success(),
        "{} {}",
        String::from_utf8_lossy(&output.stdout),
        stderr(&output)
    );
}

#[test]
fn rules_are_valid_and_each_alert_fires_after_its_time_and_not_before() {
    promtool(&["check", "rules"], "prometheus/quorlock-alerts.yml");
    promtool(&["test", "rules"], "prometheus/quorlock-alerts-test.yml");
    let tests = fs::read_to_string(contrib("prometheus/quorlock-alerts-test.yml")).unwrap();
    for alert in alerts() {
        assert!(
            tests.contains(&format!("30m, alertname: {alert}}}")),
            "{alert} is not tested on a good fleet"
        );
        assert!(tests.contains(&format!("  alertname: {alert}\n")), "{alert} is not provoked");
    }
}

struct Prometheus {
    address: SocketAddr,
    _process: KillOnDrop,
    /// Its configuration and its data.
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts Prometheus with the alerts of contrib/, but without their waiting times.
    fn start(targets: &[SocketAddr]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rules = fs::read_to_string(contrib("prometheus/quorlock-alerts.yml")).unwrap();
        let rules: String = rules
            .lines()
            .filter(|line| !line.trim().starts_with("for: "))
            .fold(String::new(), |rules, line| rules + line + "\n");
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
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = port.local_addr().unwrap();
        drop(port);
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
        Self { address, _process: process, _folder: folder }
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

    /// The alerts that fire for this exporter.
    fn firing(&self, exporter: SocketAddr) -> BTreeSet<String> {
        let alerts = self.ask("/api/v1/alerts")["alerts"].take();
        let of_exporter = |alert: &&Value| {
            alert["labels"]["instance"] == exporter.to_string() && alert["state"] == "firing"
        };
        let name = |alert: &Value| alert["labels"]["alertname"].as_str().unwrap().to_owned();
        alerts.as_array().unwrap().iter().filter(of_exporter).map(name).collect()
    }
}

fn run(server: &Server, words: &[&str]) {
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.connection()).unwrap();
}

/// Every query of the dashboard: the name of the panel and the expression.
fn dashboard_queries() -> Vec<(String, String)> {
    let text = fs::read_to_string(contrib("grafana/quorlock.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
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

fn set_of(id: usize, count: usize) -> String {
    let members: Vec<_> = (1..=count).map(|id| id.to_string()).collect();
    format!("eu {id} {}", members.join(","))
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
        let master = |id| Server::with_module().arg("lock.set", set_of(id, 5));
        let crowded = master(1).arg("lock.max-waiters", 4).wall_clock(&clock).start().unwrap();
        let starting = master(2).arg("lock.rejoin-delay", 600_000).start().unwrap();
        let evicting = master(3).arg("maxmemory-policy", "allkeys-random").start().unwrap();
        let mut dead = master(4).tcp().start().unwrap();
        dead.kill();
        let other_set = Server::with_module().arg("lock.set", "us 5 1,2,3,4,5").start().unwrap();
        let urls = [&crowded, &starting, &evicting, &dead, &other_set].map(Server::url).to_vec();
        Self {
            crowded,
            clock,
            evicting,
            _others: [starting, dead, other_set],
            urls,
            waiting: Vec::new(),
        }
    }

    /// Provokes the faults that counters count. Before the call, Prometheus must have scraped these
    /// counters as zero.
    fn provoke(&mut self) {
        run(&self.crowded, &["LOCK.ACQUIRE", "held", "t", "60000"]);
        for token in ["a", "b", "c", "d"] {
            let mut connection = self.crowded.connection();
            let mut wait = redis::cmd("LOCK.ACQUIRE");
            wait.arg(&["held", token, "60000", "WAIT", "600000"]);
            connection.send_packed_command(&wait.get_packed_command()).unwrap();
            self.waiting.push(connection);
        }
        run(&self.crowded, &["LOCK.ACQUIRE", "removed", "t", "60000"]);
        run(&self.crowded, &["DEL", "removed"]);
        self.clock.step_ms(90_000);
        run(&self.evicting, &["LOCK.ACQUIRE", "evicted", "t", "60000"]);
        run(&self.evicting, &["CONFIG", "SET", "maxmemory", "1"]);
        eventually(PATIENCE, "a key was evicted", || {
            info_number(&self.evicting, "lock_saved_from_eviction") > 0
        });
        run(&self.evicting, &["CONFIG", "SET", "maxmemory", "0"]);
    }
}

#[test]
fn every_alert_fires_on_broken_fleets_and_none_on_a_good_one() {
    let good = Masters::start_with(3, |index, master| master.arg("lock.set", set_of(index + 1, 3)))
        .unwrap();
    let mut one_missing =
        Masters::start_with(3, |index, master| master.arg("lock.set", set_of(index + 1, 3)))
            .unwrap();
    one_missing[0].kill();
    let mut broken = Broken::start();
    let of_good = Exporter::start(&good.urls(), &[]);
    let of_one_missing = Exporter::start(&one_missing.urls(), &[]);
    let of_broken = Exporter::start(&broken.urls, &[]);
    let no_exporter = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let prometheus = Prometheus::start(&[
        of_good.address,
        of_one_missing.address,
        of_broken.address,
        no_exporter,
    ]);
    // All 3 good nodes are up, 2 of the 3 in `one_missing`, and 4 of the 5 broken nodes.
    eventually(PATIENCE, "all nodes were scraped", || {
        prometheus.query("quorlock_node_saved_from_eviction_total == 0").len() == 3 + 2 + 4
    });
    broken.provoke();

    let expected: BTreeSet<_> = alerts()
        .into_iter()
        .filter(|alert| !ONLY_WITH_PROMTOOL.contains(&alert.as_str()))
        .collect();
    let mut firing = BTreeSet::new();
    let all_fire = |firing: &mut BTreeSet<String>| {
        for exporter in [of_broken.address, of_one_missing.address, no_exporter] {
            firing.extend(prometheus.firing(exporter));
        }
        expected.is_subset(firing)
    };
    let started = std::time::Instant::now();
    while !all_fire(&mut firing) {
        let missing: Vec<_> = expected.difference(&firing).collect();
        assert!(started.elapsed() < PATIENCE, "these do not fire: {missing:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(prometheus.firing(of_good.address), BTreeSet::new());
    let only: Vec<_> = prometheus.firing(of_one_missing.address).into_iter().collect();
    assert_eq!(only, ["QuorlockNoSpareNode", "QuorlockNodeDown"]);

    let queries = dashboard_queries();
    assert!(queries.len() > 20);
    for (panel, query) in queries {
        let result = prometheus.query(&query);
        assert!(!result.is_empty(), "{panel} shows nothing: {query}");
        assert!(result.iter().all(|series| series["value"][1] != "NaN"), "{panel}: {query}");
    }
}
