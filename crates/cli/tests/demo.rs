//! `scripts/demo`, which `make demo` runs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::{Command, Output, Stdio};

use common::{QUORLOCK, assert_contains, code, stderr, stdout};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo");

fn demo(options: &[&str]) -> Output {
    let mut demo = Command::new(DEMO);
    demo.env("QUORLOCK", QUORLOCK).stdin(Stdio::null()).args(options).output().unwrap()
}

#[test]
fn no_increment_is_lost_under_the_lock() {
    let output = demo(&[]);
    let said = stdout(&output);
    assert_eq!((code(output.status), stderr(&output)), (0, ""), "{said}");
    for result in ["Master 3 killed", "200 after 200", "none lost", "strictly growing: yes"] {
        assert!(said.contains(result), "no {result} in {said}");
    }
}

#[test]
fn increments_are_lost_without_the_lock_and_the_demo_fails() {
    let output = demo(&["--without-lock"]);
    assert_eq!(code(output.status), 1, "{}", stdout(&output));
    assert_contains(stdout(&output), "LOST");
}
