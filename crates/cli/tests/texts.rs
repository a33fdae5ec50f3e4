//! Errors say what to write instead.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{code, quorlock, stderr};

/// Asserts that the program fails with 125 and this hint, and shows no password.
#[track_caller]
fn assert_fails(arguments: &[&str], hint: &str) {
    let output = quorlock().args(arguments).args(["k", "--", "true"]).output().unwrap();
    assert_eq!(code(output.status), 125, "{arguments:?}");
    assert!(stderr(&output).contains(hint), "no {hint} in {}", stderr(&output));
    assert!(!stderr(&output).contains("s3cret"), "{}", stderr(&output));
}

#[test]
fn wrong_list_of_nodes_is_an_error_that_says_what_to_write() {
    assert_fails(&["run", "--nodes", "a:1 b:2 c:3"], "separate the nodes by commas");
    assert_fails(
        &["run", "--nodes", "redis://:s3cret@a redis://:s3cret@b"],
        "separate the nodes by commas",
    );
    assert_fails(&["run", "--nodes", "a:1", "b:2", "c:3"], "separate them by commas");
    assert_fails(&["run", "--nodes", "/tmp/s"], "write redis+unix:///tmp/s");
    assert_fails(
        &["run", "--nodes", "http://:s3cret@a"],
        "write redis://host:port, rediss://host:port for TLS",
    );
    assert_fails(&["run", "--nodes", "u:s3cret@a:b"], "write redis://host:port");
    assert_fails(&["run", "--nodes", "redis-sentinel://:s3cret@a"], "Sentinel");
    assert_fails(&["run"], "--nodes");
}

#[test]
fn time_without_a_valid_unit_is_an_error_that_says_what_to_write() {
    assert_fails(&["run", "--wait", "10"], "give a unit, such as 10s");
    assert_fails(&["run", "--ttl", "1.5"], "give a unit, such as 1.5s");
    assert_fails(&["run", "--ttl", "10d"], "ms, s, m or h");
}
