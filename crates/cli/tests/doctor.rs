//! `quorlock doctor`: real servers with real faults.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::Output;
use std::time::Duration;

use common::{code, quorlock, stderr, stdout};
use quorlock_testkit::{Direction, Inject as _, Masters, Proxy, Server, ServerBuilder};
use serde_json::Value;

/// Healthy masters of one set.
fn healthy(count: usize) -> Masters {
    let members: Vec<_> = (1..=count).map(|id| id.to_string()).collect();
    Masters::start_with(count, |index, master| {
        master
            .arg("lock.set", format!("eu {} {}", index + 1, members.join(",")))
            .arg("lock.max-ttl", 60_000)
    })
    .unwrap()
}

fn doctor(urls: &[String], options: &[&str]) -> Output {
    quorlock().args(["doctor", "--nodes"]).arg(urls.join(",")).args(options).output().unwrap()
}

/// The names of the checks with findings, except `rejoin-delay`, and the exit code.
#[track_caller]
fn checks(urls: &[String], options: &[&str]) -> (Vec<String>, i32) {
    let output = doctor(urls, &[options, &["--json"]].concat());
    let json: Value =
        serde_json::from_str(stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let findings = json["findings"].as_array().unwrap();
    let checks = findings.iter().map(|finding| finding["check"].as_str().unwrap().to_owned());
    // Most masters of these tests have `lock.rejoin-delay 0`, which is a finding.
    let mut checks: Vec<_> = checks.filter(|check| check != "rejoin-delay").collect();
    checks.dedup();
    (checks, code(output.status))
}

/// Starts a master with the default rejoin-delay: it abstains, and has no other finding.
fn abstaining(builder: ServerBuilder) -> Server {
    builder.arg("lock.rejoin-delay", -1).start().unwrap()
}

#[test]
fn empty_name_of_a_lock_is_refused() {
    let output = doctor(&["redis+unix:///nowhere".into()], &["--lock", ""]);
    assert_eq!(code(output.status), 125);
    assert!(stderr(&output).contains("the lock needs a name"), "{}", stderr(&output));
}

#[test]
fn healthy_fleet_has_no_findings() {
    // With a short max-ttl, the masters abstain for a short time.
    let masters = Masters::start_with(3, |index, master| {
        let master = master.arg("lock.set", format!("eu {} 1,2,3", index + 1));
        master.arg("lock.max-ttl", 1000).arg("lock.rejoin-delay", -1)
    })
    .unwrap();
    let mut last = String::new();
    quorlock_testkit::eventually(common::PATIENCE, "all masters vote", || {
        let output = doctor(&masters.urls(), &["--ttl", "1s"]);
        last = stdout(&output).to_owned();
        code(output.status) == 0
    });
    assert_eq!(last, "Nothing was found. 3 of 3 nodes vote.\n");
}

#[test]
fn each_fault_of_a_server_is_found() {
    let masters = healthy(3);
    let with = |url: String| vec![masters[0].url(), masters[1].url(), url];
    assert_eq!(checks(&masters.urls(), &[]), (vec![], 1), "no finding but the rejoin-delay");

    let other = |set: &str| Server::with_module().arg("lock.set", set).start().unwrap();
    assert_eq!(checks(&with(other("eu 3 1,2,3,4").url()), &[]), (vec!["set-differs".into()], 2));
    assert_eq!(checks(&with(other("us 3 1,2,3").url()), &[]), (vec!["set-differs".into()], 2));
    let starting = abstaining(Server::with_module().arg("lock.set", "eu 3 1,2,3"));
    assert_eq!(checks(&with(starting.url()), &[]), (vec!["abstaining".into()], 1));
    let plain = Server::builder().start().unwrap();
    assert_eq!(checks(&with(plain.url()), &[]), (vec!["module-missing".into()], 2));
    let cluster = Server::builder().arg("cluster-enabled", "yes").tcp().start().unwrap();
    assert_eq!(checks(&with(cluster.url()), &[]), (vec!["cluster-or-sentinel".into()], 2));
    let replica =
        Server::with_module().arg("lock.set", "eu 3 1,2,3").arg("replicaof", "127.0.0.1 1");
    let replica = replica.start().unwrap();
    assert_eq!(checks(&with(replica.url()), &[]), (vec!["replica".into()], 2));
    // Two URLs name one server, and so one ID: neither of the two nodes is admitted.
    assert_eq!(
        checks(&with(masters[0].url()), &[]).0,
        ["no-majority", "set-differs", "same-server"]
    );
    let evicting =
        Server::with_module().arg("lock.set", "eu 3 1,2,3").arg("maxmemory-policy", "volatile-ttl");
    let evicting = evicting.arg("maxmemory", "100mb").start().unwrap();
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
    let masters = healthy(3);
    let proxy = Proxy::start(masters[2].url());
    proxy.delay(Direction::ToServer, Duration::from_millis(60));
    let urls = [masters[0].url(), masters[1].url(), proxy.url()];
    assert_eq!(checks(&urls, &["--ttl", "10s"]), (vec![], 1));
    assert_eq!(checks(&urls, &["--ttl", "2s"]), (vec!["round-trip".into()], 1));
    assert_eq!(checks(&urls, &["--ttl", "400ms"]), (vec!["round-trip".into()], 2));
}

#[test]
fn clock_that_is_stepped_is_found() {
    let clock = quorlock_testkit::WallClock::new();
    let masters = Masters::start_with(3, |index, master| {
        let master = master.arg("lock.set", format!("eu {} 1,2,3", index + 1));
        if index == 1 { master.wall_clock(&clock) } else { master }
    })
    .unwrap();
    assert_eq!(checks(&masters.urls(), &[]).0, [""; 0]);
    clock.step_ms(-20_000);
    assert_eq!(checks(&masters.urls(), &[]), (vec!["clock".into()], 1));
    clock.step_ms(-60_000);
    assert_eq!(checks(&masters.urls(), &[]), (vec!["clock".into()], 2));
}

/// The findings are the same for a user who may call ACL DRYRUN and for a user who may not. The
/// doctor changes nothing.
#[test]
fn missing_rights_are_found_with_and_without_dryrun() {
    let masters = healthy(3);
    for rights in [["+acl"].as_slice(), &[]] {
        for master in &masters {
            let mut user = redis::cmd("ACL");
            user.arg(&["SETUSER", "locker", "reset", "on", ">pass", "~orders/*"]).arg(rights);
            user.arg(&[
                "+info",
                "+ping",
                "+time",
                "+config|get",
                "+lock.acquire",
                "+lock.extend",
                "+lock.inspect",
            ]);
            user.arg(&["+lock.macquire", "+lock.mextend"]);
            user.exec(&mut master.connection()).unwrap();
        }
        let urls: Vec<_> =
            masters.urls().iter().map(|url| format!("{url}?user=locker&pass=pass")).collect();
        let output = doctor(&urls, &["--lock", "orders/1"]);
        assert_eq!(code(output.status), 2, "{}", stdout(&output));
        // Joins the wrapped lines.
        let text = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("may not run LOCK.RELEASE, which clients need"), "{text}");
        let denied = "may not run LOCK.MRELEASE and LOCK.ACQUIREANY, which locks of several keys";
        assert!(text.contains(denied), "{text}");
        assert!(
            text.contains("+lock.release") && !text.contains("PING") && !text.contains("the key"),
            "{text}"
        );
        let output = doctor(&urls, &["--lock", "other"]);
        assert!(stdout(&output).contains("may not use the key other"), "{}", stdout(&output));
        assert!(!stdout(&output).contains("pass"), "{}", stdout(&output));
        let info: String =
            redis::cmd("INFO").arg("lock").query(&mut masters[0].connection()).unwrap();
        for counter in ["grants", "refusals", "extends", "releases"] {
            assert!(info.contains(&format!("lock_{counter}:0\r\n")), "{info}");
        }
    }
}

/// The user of docs/operations/security.md, with only the rights for locks.
#[test]
fn user_of_the_documentation_has_all_rights() {
    let masters = healthy(3);
    let page = include_str!("../../../docs/operations/security.md");
    let line = page.lines().find(|line| line.starts_with("user locker on")).unwrap();
    for master in &masters {
        let words = line.split_whitespace().skip(1);
        redis::cmd("ACL")
            .arg("SETUSER")
            .arg(words.collect::<Vec<_>>())
            .exec(&mut master.connection())
            .unwrap();
    }
    let password = "a-long-password";
    let urls: Vec<_> =
        masters.urls().iter().map(|url| format!("{url}?user=locker&pass={password}")).collect();
    assert_eq!(checks(&urls, &["--lock", "orders/1"]), (vec![], 1));
}

#[test]
fn wrong_password_is_an_error_and_is_not_shown() {
    let masters = Masters::start_with(3, |_, master| master.arg("requirepass", "right")).unwrap();
    let urls: Vec<_> = masters.urls().iter().map(|url| format!("{url}?pass=wrongone")).collect();
    let output = doctor(&urls, &[]);
    assert_eq!(code(output.status), 2);
    assert!(stdout(&output).contains("correct user, password or ACL"), "{}", stdout(&output));
    assert!(!stdout(&output).contains("wrongone") && !stderr(&output).contains("wrongone"));
}
