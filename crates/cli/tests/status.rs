//! `quorlock status`: it asks each node separately, and shows healthy and broken nodes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::Output;

use common::{
    PATIENCE, Running, assert_contains, assert_ok, code, exec, json, on, on_urls, run_script,
    stderr, stdout, urls_with,
};
use quorlock_testkit::{Direction, Masters, Proxy, Server, eventually};
use rustix::process::Signal;

fn status_of(urls: &[String], options: &[&str]) -> Output {
    on_urls(urls, "status").args(options).output().unwrap()
}

#[test]
fn majority_that_votes_is_shown_with_exit_code_0() {
    let masters = Masters::start_with(3, |index, master| {
        master.tcp().arg("lock.set", format!("eu {} 1,2,3", index + 1))
    })
    .unwrap();
    let output = on(&masters, "status").output().unwrap();
    assert_ok(&output);
    let text = stdout(&output);
    assert!(text.contains("eu 2") && text.contains("3 of 3 nodes vote: a majority."), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");

    let json = json(&on(&masters, "status").arg("--json").output().unwrap());
    let node = &json["nodes"][0];
    assert_eq!((&node["state"], &node["set"]["id"]), (&"voting".into(), &"1".into()));
    assert!(node["clock_offset_us"].as_i64().unwrap().abs() < 1_000_000, "{node}");
    assert!(node["round_trip_us"].as_u64().unwrap() > 0);
    assert_eq!((&node["max_clock_skew_ms"], &node["max_waiters"]), (&60_000.into(), &1000.into()));
    assert_eq!(node["counters"]["grants"], 0);
}

#[test]
fn each_broken_node_is_shown_with_its_reason() {
    let master = Server::with_module().start().unwrap();
    let starting = Server::with_module().arg("lock.rejoin-delay", 60_000).start().unwrap();
    let plain = Server::builder().start().unwrap();
    let replica = Server::with_module().tcp().arg("replicaof", "127.0.0.1 1").start().unwrap();
    let password_protected = Server::with_module().arg("requirepass", "hidden").start().unwrap();
    let mut dead = Server::with_module().tcp().start().unwrap();
    dead.kill();
    let servers = [&master, &starting, &plain, &replica, &password_protected, &dead, &master];
    let mut urls = servers.map(Server::url).to_vec();
    urls[4] += "?pass=wrongpass";
    urls.push("redis-sentinel://lock-a/main".into());
    let output = status_of(&urls, &["--json"]);
    assert_eq!(code(output.status), 122, "{}", stderr(&output));
    let json = json(&output);
    for (index, state, reason) in [
        (0, "voting", ""),
        (1, "abstaining", "start"),
        (2, "not_counted", "module is not loaded"),
        (3, "not_counted", "replica"),
        (4, "not_counted", "AuthenticationFailed: check user, password"),
        (5, "down", "refused"),
        (6, "not_counted", "same server"),
        (7, "down", "Sentinel"),
    ] {
        let node = &json["nodes"][index];
        assert_eq!(node["state"], state, "{node}");
        assert!(node["reason"].as_str().unwrap_or_default().contains(reason), "{node}");
    }
    assert!((1..=60_000).contains(&json["nodes"][1]["abstain_left_ms"].as_u64().unwrap()));

    let output = status_of(&urls, &[]);
    for secret in ["wrongpass", "hidden"] {
        assert!(!stdout(&output).contains(secret) && !stderr(&output).contains(secret));
    }
    assert_contains(stdout(&output), "1 of 8 nodes vote; a majority is 5.");
    assert!(stdout(&output).lines().all(|line| line.chars().count() <= 100), "{}", stdout(&output));
}

/// A minority that does not answer does not change the exit code.
#[test]
fn silent_node_is_shown_with_the_time_limit() {
    let masters = Masters::start(3);
    let proxy = Proxy::start(masters[2].url());
    proxy.drop_bytes(Direction::ToServer);
    let urls = [masters[0].url(), masters[1].url(), proxy.url()];
    let output = status_of(&urls, &["--json", "--node-timeout", "1s"]);
    assert_ok(&output);
    let node = &json(&output)["nodes"][2];
    assert_eq!(node["reason"], "no answer within 1000 ms");
    assert!(proxy.dropped_bytes(Direction::ToServer) > 0, "the node was asked");
}

/// Makes a master refuse or delay writes, in the way that the word names.
fn make_unwritable(master: &Server, reason: &str) {
    match reason {
        "memory-full" => exec(master, &["CONFIG", "SET", "maxmemory", "1mb"]),
        "too-few-replicas" => exec(master, &["CONFIG", "SET", "min-replicas-to-write", "1"]),
        "writes-paused" => exec(master, &["CLIENT", "PAUSE", "600000", "WRITE"]),
        "save-failed" => {
            // A folder in the place of the file cannot be replaced.
            std::fs::create_dir(master.dir().join("dump.rdb")).unwrap();
            exec(master, &["CONFIG", "SET", "save", "3600 1"]);
            exec(master, &["BGSAVE"]);
            eventually(PATIENCE, "the save has failed", || {
                let info: String =
                    redis::cmd("INFO").arg("persistence").query(&mut master.connection()).unwrap();
                info.contains("rdb_last_bgsave_status:err")
            });
        }
        other => panic!("{other}"),
    }
}

#[test]
fn node_whose_server_refuses_writes_does_not_vote() {
    for reason in ["memory-full", "too-few-replicas", "save-failed", "writes-paused"] {
        let masters = Masters::start(3);
        // The user of a monitoring system may read INFO and nothing else.
        for master in &masters {
            exec(master, &["ACL", "SETUSER", "watcher", "on", ">pass", "+info", "+ping"]);
        }
        let urls = urls_with(&masters, "user=watcher&pass=pass");
        assert_ok(&status_of(&urls, &[]));
        masters.iter().take(2).for_each(|master| make_unwritable(master, reason));
        assert_eq!(code(run_script(&masters, &["--no-wait"], "true").status().unwrap()), 122);

        let output = status_of(&urls, &["--json"]);
        assert_eq!(code(output.status), 122, "{}", stdout(&output));
        let node = &json(&output)["nodes"][1];
        assert_eq!((&node["state"], &node["reason"]), (&"unwritable".into(), &reason.into()));
        assert!(node["advice"].is_string(), "{node}");
        assert_eq!(json(&output)["nodes"][2]["state"], "voting");
        let text = status_of(&urls, &[]);
        assert_contains(stdout(&text), &format!("\n  {reason}: "));
        assert_contains(stdout(&text), "1 of 3 nodes vote; a majority is 2.");

        let doctor = json(&on_urls(&urls, "doctor").arg("--json").output().unwrap());
        let findings = doctor["findings"].as_array().unwrap();
        let mut checks = findings.iter().map(|finding| &finding["check"]);
        assert!(checks.any(|check| check == "unwritable"), "{doctor}");
        assert_eq!((&findings[0]["check"], &doctor["voting"]), (&"no-majority".into(), &1.into()));
    }
}

#[test]
fn watch_prints_again_and_shows_changes() {
    let mut masters = Masters::start(1);
    let mut watch = Running::start(on(&masters, "status").args(["--json", "--watch", "100ms"]));
    assert!(watch.line().contains("\"majority\":true"));
    masters[0].kill();
    eventually(PATIENCE, "a change is shown", || watch.line().contains("\"majority\":false"));
    masters[0].restart().unwrap();
    eventually(PATIENCE, "a change is shown", || watch.line().contains("\"majority\":true"));
    watch.signal(Signal::INT);
    assert_eq!(code(watch.wait_for_end().status), 130);
}

#[test]
fn user_with_only_info_and_ping_still_sees_the_state() {
    let master = Server::with_module().start().unwrap();
    exec(&master, &["ACL", "SETUSER", "locker", "on", ">pass", "~*", "+info", "+ping"]);
    let url = master.url() + "?user=locker&pass=pass";
    let node = &json(&status_of(&[url], &["--json"]))["nodes"][0];
    assert_eq!(node["state"], "voting", "{node}");
    assert!(node["clock_offset_us"].is_null() && node["max_waiters"].is_null(), "{node}");
    assert!(node["round_trip_us"].as_u64().unwrap() > 0);
}
