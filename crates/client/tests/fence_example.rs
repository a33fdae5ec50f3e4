//! The example `fence_sqlite` shows what a late write does without a fence and with a fence.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::PathBuf;
use std::process::Command;

/// The program of an example. Builds it if Cargo has not: `cargo test --test fence_example` builds
/// no examples.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let example = profile.join("examples").join(name);
    if !example.is_file() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--package", "quorlock-client", "--example", name]);
        build.arg("--target-dir").arg(profile.parent().unwrap());
        assert!(build.status().unwrap().success());
    }
    example
}

#[test]
fn late_write_wins_without_a_fence_and_is_refused_with_it() {
    let output = Command::new(example("fence_sqlite")).output().unwrap();
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{story}\n{}", String::from_utf8_lossy(&output.stderr));
    let outcomes: Vec<_> =
        story.lines().filter_map(|line| line.trim().strip_prefix("=> ")).collect();
    assert_eq!(outcomes, ["2 sold, 9 left of 10: WRONG", "1 sold, 9 left of 10: right"], "{story}");
}
