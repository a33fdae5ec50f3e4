//! `quorlock doctor`: real servers with real faults.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::Output;
use std::time::Duration;

use common::{
    PATIENCE, assert_contains, assert_error, code, info_number, json, on_urls, stderr, stdout,
    urls_with,
};
use quorlock_testkit::{
    Direction, Inject as _, Masters, Proxy, Server, ServerBuilder, WallClock, eventually,
};

/// Three masters of one set.
fn masters_with(configure: impl Fn(usize, ServerBuilder) -> ServerBuilder) -> Masters {
    Masters::start_with(3, |index, master| {
        configure(index, master.arg("lock.set", format!("eu {} 1,2,3", index + 1)))
    })
    .unwrap()
}

fn healthy() -> Masters {
    masters_with(|_, master| master.arg("lock.max-ttl", 60_000))
}

fn doctor(urls: &[String], options: &[&str]) -> Output {
    on_urls(urls, "doctor").args(options).output().unwrap()
}

/// The names of the checks with findings, except `rejoin-delay`, and the exit code.
#[track_caller]
fn checks(urls: &[String], options: &[&str]) -> (Vec<String>, i32) {
    let output = doctor(urls, &[options, &["--json"]].concat());
    let json = json(&output);
    let findings = json["findings"].as_array().unwrap().iter();
    let checks = findings.map(|finding| finding["check"].as_str().unwrap().to_owned());
    // Most masters of these tests have `lock.rejoin-delay 0`, which is a finding.
    let mut checks: Vec<_> = checks.filter(|check| check != "rejoin-delay").collect();
    checks.dedup();
    (checks, code(output.status))
}

#[test]
fn empty_name_of_a_lock_is_refused() {
    let output = doctor(&["redis+unix:///nowhere".into()], &["--lock", ""]);
    assert_error(&output, 125, "the lock needs a name");
}

#[test]
fn healthy_fleet_has_no_findings() {
    // With a short max-ttl, the masters abstain for a short time.
    let masters =
        masters_with(|_, master| master.arg("lock.max-ttl", 1000).arg("lock.rejoin-delay", -1));
    let mut last = String::new();
    eventually(PATIENCE, "all masters vote", || {
        let output = doctor(&masters.urls(), &["--ttl", "1s"]);
        last = stdout(&output).to_owned();
        code(output.status) == 0
    });
    assert_eq!(last, "Nothing was found. 3 of 3 nodes vote.\n");
}

#[test]
fn each_fault_of_a_server_is_found() {
    let masters = healthy();
    let with = |url: String| vec![masters[0].url(), masters[1].url(), url];
    assert_eq!(checks(&masters.urls(), &[]), (vec![], 1), "no finding but the rejoin-delay");

    let other = |set: &str| Server::with_module().arg("lock.set", set).start().unwrap();
    let third = || Server::with_module().arg("lock.set", "eu 3 1,2,3");
    assert_eq!(checks(&with(other("eu 3 1,2,3,4").url()), &[]), (vec!["set-differs".into()], 2));
    assert_eq!(checks(&with(other("us 3 1,2,3").url()), &[]), (vec!["set-differs".into()], 2));
    // With the default rejoin-delay, a master abstains at first.
    let starting = third().arg("lock.rejoin-delay", -1).start().unwrap();
    assert_eq!(checks(&with(starting.url()), &[]), (vec!["abstaining".into()], 1));
    let plain = Server::builder().start().unwrap();
    assert_eq!(checks(&with(plain.url()), &[]), (vec!["module-missing".into()], 2));
    let cluster = Server::builder().arg("cluster-enabled", "yes").tcp().start().unwrap();
    assert_eq!(checks(&with(cluster.url()), &[]), (vec!["cluster-or-sentinel".into()], 2));
    let replica = third().arg("replicaof", "127.0.0.1 1").start().unwrap();
    assert_eq!(checks(&with(replica.url()), &[]), (vec!["replica".into()], 2));
    // Two URLs name one server, and so one ID: neither of the two nodes is admitted.
    let (same_server, _) = checks(&with(masters[0].url()), &[]);
    assert_eq!(same_server, ["no-majority", "set-differs", "same-server"]);
    let evicting = third().arg("maxmemory-policy", "volatile-ttl").arg("maxmemory", "100mb");
    let evicting = evicting.start().unwrap();
    assert_eq!(checks(&with(evicting.url()), &[]), (vec!["evicts".into()], 1));
    assert_eq!(checks(&with("127.0.0.1:1".into()), &[]), (vec!["down".into()], 1));
    assert_eq!(checks(&masters.urls(), &["--ttl", "2m"]), (vec!["max-ttl".into()], 2));
    assert_eq!(checks(&masters.urls()[..1], &[]).1, 2);
}

#[test]
fn missing_set_and_even_number_of_nodes_are_found() {
    let masters = Masters::start(2);
    assert_eq!(checks(&masters.urls(), &[]), (vec!["even-number".into(), "no-set".into()], 1));
}

#[test]
fn distant_node_is_found_by_its_round_trip() {
    let masters = healthy();
    let proxy = Proxy::start(masters[2].url());
    proxy.delay(Direction::ToServer, Duration::from_millis(60));
    let urls = [masters[0].url(), masters[1].url(), proxy.url()];
    assert_eq!(checks(&urls, &["--ttl", "10s"]), (vec![], 1));
    assert_eq!(checks(&urls, &["--ttl", "2s"]), (vec!["round-trip".into()], 1));
    assert_eq!(checks(&urls, &["--ttl", "400ms"]), (vec!["round-trip".into()], 2));
}

#[test]
fn clock_that_is_stepped_is_found() {
    let clock = WallClock::new();
    let masters =
        masters_with(|index, master| if index == 1 { master.wall_clock(&clock) } else { master });
    assert_eq!(checks(&masters.urls(), &[]).0, [""; 0]);
    clock.step_ms(-20_000);
    assert_eq!(checks(&masters.urls(), &[]), (vec!["clock".into()], 1));
    clock.step_ms(-60_000);
    assert_eq!(checks(&masters.urls(), &[]), (vec!["clock".into()], 2));
}

/// The findings are the same with and without the right to call ACL DRYRUN. The doctor changes
/// nothing.
#[test]
fn missing_rights_are_found_with_and_without_dryrun() {
    let masters = healthy();
    for rights in [["+acl"].as_slice(), &[]] {
        for master in &masters {
            let mut user = redis::cmd("ACL");
            user.arg(&["SETUSER", "locker", "reset", "on", ">pass", "~orders/*"]).arg(rights);
            user.arg(&["+info", "+ping", "+time", "+config|get"]);
            user.arg(&["+lock.acquire", "+lock.extend", "+lock.inspect"]);
            user.arg(&["+lock.macquire", "+lock.mextend"]);
            user.exec(&mut master.connection()).unwrap();
        }
        let urls = urls_with(&masters, "user=locker&pass=pass");
        let output = doctor(&urls, &["--lock", "orders/1"]);
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
        assert!(!text.contains("PING") && !text.contains("the key"), "{text}");
        let output = doctor(&urls, &["--lock", "other"]);
        assert_contains(stdout(&output), "may not use the key other");
        assert!(!stdout(&output).contains("pass"), "{}", stdout(&output));
        for counter in ["lock_grants", "lock_refusals", "lock_extends", "lock_releases"] {
            assert_eq!(info_number(&masters[0], counter), 0, "{counter}");
        }
    }
}

/// The user of docs/operations/security.md, with only the rights for locks.
#[test]
fn user_of_the_documentation_has_all_rights() {
    let masters = healthy();
    let page = include_str!("../../../docs/operations/security.md");
    let line = page.lines().find(|line| line.starts_with("user locker on")).unwrap();
    for master in &masters {
        let words: Vec<_> = line.split_whitespace().skip(1).collect();
        redis::cmd("ACL").arg("SETUSER").arg(words).exec(&mut master.connection()).unwrap();
    }
    let urls = urls_with(&masters, "user=locker&pass=a-long-password");
    assert_eq!(checks(&urls, &["--lock", "orders/1"]), (vec![], 1));
}

#[test]
fn wrong_password_is_an_error_and_is_not_shown() {
    let masters = Masters::start_with(3, |_, master| master.arg("requirepass", "right")).unwrap();
    let output = doctor(&urls_with(&masters, "pass=wrongone"), &[]);
    assert_eq!(code(output.status), 2);
    assert_contains(stdout(&output), "correct user, password or ACL");
    assert!(!stdout(&output).contains("wrongone") && !stderr(&output).contains("wrongone"));
}
