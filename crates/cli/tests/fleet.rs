//! `quorlock status`, `doctor` and `restart-nodes` on healthy fleets, and on servers with real
//! faults.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::common::*;
use quorlock_testkit::{Inject as _, Nodes, Server, ServerBuilder, WallClock, eventually};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// The output of `quorlock SUBCOMMAND` with these nodes and options.
fn output_of(urls: &[String], subcommand: &str, options: &[&str]) -> Output {
    on_urls(urls, subcommand).args(options).output().unwrap()
}

#[test]
fn majority_that_votes_is_shown_with_exit_code_0() {
    let nodes = nodes_with(|_, node| node.tcp());
    let output = on(&nodes, "status").output().unwrap();
    assert_ok(&output);
    let text = stdout(&output);
    assert!(text.contains("eu 2") && text.contains("3 of 3 nodes vote: a majority."), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");

    let json = json(&on(&nodes, "status").arg("--json").output().unwrap());
    let node = &json["nodes"][0];
    assert_eq!((&node["state"], &node["set"]["id"]), (&"voting".into(), &"1".into()));
    assert!(node["clock_offset_us"].as_i64().unwrap().abs() < 1_000_000, "{node}");
    assert!(node["round_trip_us"].as_u64().unwrap() > 0);
    assert_eq!((&node["max_clock_skew_ms"], &node["max_waiters"]), (&60_000.into(), &1000.into()));
    assert_eq!(node["counters"]["grants"], 0);
}

#[test]
fn each_broken_node_is_shown_with_its_reason() {
    let node = Server::with_module().start().unwrap();
    let starting = Server::with_module().arg("lock.rejoin-delay", 60_000).start().unwrap();
    let plain = Server::builder().start().unwrap();
    let replica = Server::with_module().tcp().arg("replicaof", "127.0.0.1 1").start().unwrap();
    let password_protected = Server::with_module().arg("requirepass", "hidden").start().unwrap();
    let mut dead = Server::with_module().tcp().start().unwrap();
    dead.kill();
    let servers = [&node, &starting, &plain, &replica, &password_protected, &dead, &node];
    let mut urls = servers.map(Server::url).to_vec();
    urls[4] += "?pass=wrongpass";
    urls.push("redis-sentinel://lock-a/main".into());
    let output = output_of(&urls, "status", &["--json"]);
    assert_eq!(code(output.status), 122, "{}", stderr(&output));
    let json = json(&output);
    let doctor = crate::common::json(&output_of(&urls, "doctor", &["--json"]));
    let findings = doctor["findings"].as_array().unwrap();
    for (index, state, reason, check) in [
        (0, "voting", "", "rejoin-delay"),
        (1, "abstaining", "start", "abstaining"),
        (2, "not_counted", "module is not loaded", "module-missing"),
        (3, "not_counted", "replica", "replica"),
        (4, "not_counted", "AuthenticationFailed: check user, password", "denied"),
        (5, "down", "refused", "down"),
        (6, "not_counted", "same server", "same-server"),
        (7, "down", "Sentinel", "misconfigured"),
    ] {
        let node = &json["nodes"][index];
        assert_eq!(node["state"], state, "{node}");
        assert!(node["reason"].as_str().unwrap_or_default().contains(reason), "{node}");
        let is_found = |finding: &Value| {
            finding["check"] == check
                && finding["nodes"].as_array().unwrap().contains(&node["node"])
        };
        assert!(findings.iter().any(is_found), "no {check} of {node} in {doctor}");
    }
    for check in ["no-majority", "even-number", "no-set"] {
        assert!(findings.iter().any(|finding| finding["check"] == check), "{check}: {doctor}");
    }
    assert!((1..=60_000).contains(&json["nodes"][1]["abstain_left_ms"].as_u64().unwrap()));

    let output = output_of(&urls, "status", &[]);
    for secret in ["wrongpass", "hidden"] {
        assert!(!stdout(&output).contains(secret) && !stderr(&output).contains(secret));
    }
    assert_contains(stdout(&output), "1 of 8 nodes vote; a majority is 5.");
    assert!(stdout(&output).lines().all(|line| line.chars().count() <= 100), "{}", stdout(&output));
}

#[test]
fn node_whose_server_refuses_writes_does_not_vote() {
    let nodes = Nodes::start(3);
    // The user of a monitoring system may read INFO and nothing else.
    for node in &nodes {
        exec(node, &["ACL", "SETUSER", "watcher", "on", ">pass", "+info", "+ping"]);
    }
    let urls = urls_with(&nodes, "user=watcher&pass=pass");
    assert_ok(&output_of(&urls, "status", &[]));
    for node in nodes.iter().take(2) {
        exec(node, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    }
    assert_eq!(code(run_script(&nodes, &["--no-wait"], "true").status().unwrap()), 122);

    let output = output_of(&urls, "status", &["--json"]);
    assert_eq!(code(output.status), 122, "{}", stdout(&output));
    let json = json(&output);
    let node = &json["nodes"][1];
    let is_as_expected = node["state"] == "unwritable" && node["reason"] == "too-few-replicas";
    assert!(is_as_expected && node["advice"].is_string(), "{node}");
    let voting = &json["nodes"][2];
    assert_eq!(voting["state"], "voting");
    assert!(voting["clock_offset_us"].is_null() && voting["max_waiters"].is_null(), "{voting}");
    assert!(voting["round_trip_us"].as_u64().unwrap() > 0);
    let text = output_of(&urls, "status", &[]);
    assert_contains(stdout(&text), "\n  too-few-replicas: ");
    assert_contains(stdout(&text), "1 of 3 nodes vote; a majority is 2.");
    let (checks, _) = checks(&urls, &[]);
    assert_eq!(checks[..2], ["no-majority", "unwritable"], "{checks:?}");
}

#[test]
fn watch_prints_again_and_shows_changes() {
    let mut nodes = Nodes::start(1);
    let watch = Running::start(on(&nodes, "status").args(["--json", "--watch", "100ms"]));
    assert!(watch.line().contains("\"majority\":true"));
    nodes[0].kill();
    eventually(PATIENCE, "a change is shown", || watch.line().contains("\"majority\":false"));
    nodes[0].restart().unwrap();
    eventually(PATIENCE, "a change is shown", || watch.line().contains("\"majority\":true"));
    watch.signal(Signal::INT);
    assert_eq!(code(watch.wait_for_end().status), 130);
}

/// Three nodes of one set.
fn nodes_with(configure: impl Fn(usize, ServerBuilder) -> ServerBuilder) -> Nodes {
    Nodes::start_with(3, |index, node| {
        configure(index, node.arg("lock.set", format!("eu {} 1,2,3", index + 1)))
    })
    .unwrap()
}

fn healthy() -> Nodes {
    nodes_with(|_, node| node.arg("lock.max-ttl", 60_000))
}

/// The names of the checks with findings, except `rejoin-delay`, and the exit code.
#[track_caller]
fn checks(urls: &[String], options: &[&str]) -> (Vec<String>, i32) {
    let output = output_of(urls, "doctor", &[options, &["--json"]].concat());
    let json = json(&output);
    let findings = json["findings"].as_array().unwrap().iter();
    let checks = findings.map(|finding| finding["check"].as_str().unwrap().to_owned());
    // Most nodes of these tests have `lock.rejoin-delay 0`, which is a finding.
    let mut checks: Vec<_> = checks.filter(|check| check != "rejoin-delay").collect();
    checks.dedup();
    (checks, code(output.status))
}

/// The user of docs/operations/security.md has only the rights for locks.
#[test]
fn healthy_fleet_and_the_documented_user_have_no_findings() {
    // With a short max-ttl, the nodes abstain for a short time.
    let nodes = nodes_with(|_, node| node.arg("lock.max-ttl", 1000).arg("lock.rejoin-delay", -1));
    let page = include_str!("../../../docs/operations/security.md");
    let line = page.lines().find(|line| line.starts_with("user locker on")).unwrap();
    for node in &nodes {
        let words: Vec<_> = line.split_whitespace().skip(1).collect();
        redis::cmd("ACL").arg("SETUSER").arg(words).exec(&mut node.connection()).unwrap();
    }
    let urls = urls_with(&nodes, "user=locker&pass=a-long-password");
    let mut doctor = on_urls(&urls, "doctor");
    doctor.args(["--ttl", "1s", "--lock", "orders/1"]);
    let output = output_until(&mut doctor, |output| code(output.status) == 0);
    assert_eq!(stdout(&output), "Nothing was found. 3 of 3 nodes vote.\n");
}

#[test]
fn node_of_another_set_and_a_ttl_above_the_limit_are_found() {
    let nodes = healthy();
    let with = |url: String| vec![nodes[0].url(), nodes[1].url(), url];
    assert_eq!(checks(&nodes.urls(), &[]), (vec![], 1), "no finding but the rejoin-delay");
    let other = Server::with_module().arg("lock.set", "us 3 1,2,3").start().unwrap();
    assert_eq!(checks(&with(other.url()), &[]), (vec!["set-differs".into()], 2));
    // Two URLs name one server, and so one ID: neither of the two nodes is admitted.
    let (same_server, _) = checks(&with(nodes[0].url()), &[]);
    assert_eq!(same_server, ["no-majority", "set-differs", "same-server"]);
    assert_eq!(checks(&nodes.urls(), &["--ttl", "2m"]), (vec!["max-ttl".into()], 2));
}

#[test]
fn clock_that_is_stepped_is_found() {
    let clock = WallClock::new();
    let nodes = nodes_with(|index, node| if index == 1 { node.wall_clock(&clock) } else { node });
    assert_eq!(checks(&nodes.urls(), &[]).0, [""; 0]);
    clock.step_ms(-20_000);
    assert_eq!(checks(&nodes.urls(), &[]), (vec!["clock".into()], 1));
    clock.step_ms(-60_000);
    assert_eq!(checks(&nodes.urls(), &[]), (vec!["clock".into()], 2));
}

/// The findings are the same with and without the right to call ACL DRYRUN. The doctor changes
/// nothing.
#[test]
fn missing_rights_are_found_with_and_without_dryrun() {
    let nodes = healthy();
    for rights in [["+acl"].as_slice(), &[]] {
        for node in &nodes {
            let mut user = redis::cmd("ACL");
            user.arg(&["SETUSER", "locker", "reset", "on", ">pass", "~orders/*"]).arg(rights);
            user.arg(&["+info", "+ping", "+time", "+config|get"]);
            user.arg(&["+lock.acquire", "+lock.extend", "+lock.inspect"]);
            user.arg(&["+lock.macquire", "+lock.mextend"]);
            user.exec(&mut node.connection()).unwrap();
        }
        let urls = urls_with(&nodes, "user=locker&pass=pass");
        let output = output_of(&urls, "doctor", &["--lock", "orders/1"]);
        assert_eq!(code(output.status), 2, "{}", stdout(&output));
        // Joins the wrapped lines.
        let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
        for finding in [
            "may not run LOCK.RELEASE, which clients need",
            "may not run LOCK.MRELEASE and LOCK.ACQUIREANY, which locks of several keys",
            "+lock.release",
        ] {
            assert_contains(&text, finding);
        }
        assert!(!["PING", "INFO", "the key"].iter().any(|right| text.contains(right)), "{text}");
        let output = output_of(&urls, "doctor", &["--lock", "other"]);
        assert_contains(stdout(&output), "may not use the key other");
        assert!(!stdout(&output).contains("pass"), "{}", stdout(&output));
        for counter in ["lock_grants", "lock_refusals", "lock_extends", "lock_releases"] {
            assert_eq!(info_number(&nodes[0], counter), 0, "{counter}");
        }
    }
}

/// Nodes, and a command that restarts a node: it writes its host to a file, and the test does the
/// rest.
struct Fleet {
    nodes: Nodes,
    folder: TempDir,
}

impl Fleet {
    fn start() -> Self {
        Self { nodes: Nodes::start(3), folder: tempfile::tempdir().unwrap() }
    }

    fn asked_file(&self) -> PathBuf {
        self.folder.path().join("asked")
    }

    /// The hosts for which the command was run, in order.
    fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.asked_file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn restart_nodes(&self, options: &[&str], then: &str) -> Command {
        let mut command = on_urls(&self.nodes.urls(), "restart-nodes");
        command
            .env("QUORLOCK_NODES", "redis://:secret@a")
            .env("QUORLOCK_PASSWORD", "secret")
            .args(options)
            .arg("--")
            .args(["sh", "-c"]);
        command.arg(format!("echo {{host}} >>{}; {then}", self.asked_file().display()));
        command
    }

    fn output(&self, options: &[&str], then: &str) -> Output {
        self.restart_nodes(options, then).output().unwrap()
    }
}

fn socket(node: &Server) -> String {
    node.url().trim_start_matches("redis+unix://").to_owned()
}

fn votes(node: &Server) -> bool {
    let Ok(mut connection) = node.try_connection() else { return false };
    let info: redis::RedisResult<String> = redis::cmd("INFO").arg("lock").query(&mut connection);
    info.is_ok_and(|info| info.contains("lock_state:voting"))
}

#[test]
fn node_is_restarted_only_while_all_others_vote() {
    let mut fleet = Fleet::start();
    for node in fleet.nodes.iter_mut() {
        // From the next start on, a node abstains for a while.
        node.set_arg("lock.max-ttl", 1500);
        node.set_arg("lock.rejoin-delay", -1);
    }
    let running = Running::start(&mut fleet.restart_nodes(&[], "true"));
    for index in 0..3 {
        eventually(PATIENCE, "the command for the next node runs", || fleet.asked().len() > index);
        assert_eq!(
            fleet.asked(),
            fleet.nodes.iter().take(index + 1).map(socket).collect::<Vec<_>>()
        );
        assert!(fleet.nodes.iter().all(votes), "{index}: an earlier node does not vote yet");
        fleet.nodes[index].kill();
        fleet.nodes[index].restart().unwrap();
        eventually(PATIENCE, "the node abstains", || {
            fleet.nodes[index].log().contains("abstaining for 1")
        });
        assert_contains(&running.error_line(), "restarting ");
        assert_contains(&running.error_line(), "votes again");
    }
    assert_ok(&running.wait_for_end());
}

#[test]
fn failed_command_or_a_node_that_is_not_back_ends_the_restarts() {
    let fleet = Fleet::start();
    assert_error(&fleet.output(&[], "exit 3"), 125, "No further node was restarted");
    let shown = "echo ${QUORLOCK_NODES-none} ${QUORLOCK_PASSWORD-none}";
    let output = fleet.output(&["--limit", "1s"], shown);
    assert_error(&output, 122, "it was not restarted. No further node was restarted");
    assert_eq!(stdout(&output), "none none\n", "the command does not inherit the password");
    assert_eq!(fleet.asked().len(), 2);
}

#[test]
fn no_node_is_restarted_without_a_majority_of_the_others() {
    let mut fleet = Fleet::start();
    fleet.nodes[2].kill();
    let output = fleet.output(&["--limit", "1s"], "true");
    assert_error(&output, 122, "without it 1 nodes vote, and a lock needs 2");
    assert_eq!(fleet.asked(), [""; 0]);
    // The node that is down may be restarted.
    let down = socket(&fleet.nodes[2]);
    let output = fleet.output(&["--limit", "1s", &down], "true");
    assert_error(&output, 122, "is down after 1s");
    assert_eq!(fleet.asked(), [down]);
}
