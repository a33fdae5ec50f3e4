//! `quorlock bench` on real masters.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{
    PATIENCE, Running, assert_contains, assert_error, assert_ok, code, info_number, json, on,
    stderr, stdout,
};
use quorlock_testkit::{Masters, Server, eventually};
use redis::Commands as _;
use rustix::process::Signal;

const SHORT: [&str; 4] = ["--duration", "300ms", "--tasks", "4"];

fn keys(masters: &Masters) -> Vec<String> {
    let keys_of = |master: &Server| master.connection().keys::<_, Vec<String>>("*").unwrap();
    masters.iter().flat_map(keys_of).collect()
}

fn grants(masters: &Masters) -> u64 {
    masters.iter().map(|master| info_number(master, "lock_grants")).sum()
}

#[test]
fn json_has_rates_and_percentiles_of_both_parts() {
    let masters = Masters::start(3);
    let options = ["--duration", "1500ms", "--tasks", "4", "--json"];
    let output = on(&masters, "bench").args(options).output().unwrap();
    assert_ok(&output);
    assert_contains(stderr(&output), "warning: this loads the 3 nodes");
    let json = json(&output);
    assert_eq!((&json["nodes"], &json["tasks"]), (&3.into(), &4.into()));
    let parts = json["parts"].as_array().unwrap();
    let names: Vec<_> = parts.iter().map(|part| &part["name"]).collect();
    assert_eq!(names, ["uncontended", "contended"]);
    let mut locks = 0;
    for part in parts {
        locks += part["locks"].as_u64().unwrap();
        assert!(part["locks_per_second"].as_f64().unwrap() > 0.0);
        for operation in ["acquire_us", "release_us"] {
            let times = ["p50", "p90", "p99", "p99_9", "max"]
                .map(|name| part[operation][name].as_f64().unwrap());
            assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
        }
    }
    // At least two of the three masters grant each lock. The third may be late.
    assert!(grants(&masters) >= 2 * locks);
    assert!(keys(&masters).is_empty());
}

#[test]
fn table_has_both_parts() {
    let masters = Masters::start(1);
    let output = on(&masters, "bench").args(SHORT).output().unwrap();
    assert_ok(&output);
    for word in
        ["1 node, 4 tasks", "uncontended", "contended", "locks/s", "p99.9", "acquire", "release"]
    {
        assert_contains(stdout(&output), word);
    }
}

#[test]
fn keys_have_the_prefix_and_are_gone_after_a_signal() {
    let masters = Masters::start(3);
    let bench =
        Running::start(on(&masters, "bench").args(["--duration", "1h", "--prefix", "mine:"]));
    let mut seen = Vec::new();
    eventually(PATIENCE, "the benchmark holds locks", || {
        seen = keys(&masters);
        !seen.is_empty()
    });
    assert!(seen.iter().all(|key| key.starts_with("mine:")), "{seen:?}");
    bench.signal(Signal::INT);
    assert_eq!(code(bench.wait_for_end().status), 130);
    // The locks were released: their ttl is not over yet.
    assert!(keys(&masters).is_empty());
}

#[test]
fn dead_majority_is_an_error() {
    let mut masters = Masters::start(3);
    masters.iter_mut().take(2).for_each(Server::kill);
    let output = on(&masters, "bench").args(SHORT).output().unwrap();
    assert_error(&output, 122, "not connected");
    assert_eq!(stdout(&output), "");
}
