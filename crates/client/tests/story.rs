//! The example that shows why a lock needs a fence reaches both of its endings.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::path::PathBuf;
use std::process::Command;

/// The example of this test. Cargo builds it with the tests, unless it builds only some of them.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let profile = this.parent().unwrap().parent().unwrap();
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
    let told = Command::new(example("fence_sqlite")).output().unwrap();
    let story = String::from_utf8(told.stdout).unwrap();
    assert!(told.status.success(), "{story}\n{}", String::from_utf8_lossy(&told.stderr));
    let ends: Vec<_> = story.lines().filter_map(|line| line.trim().strip_prefix("=> ")).collect();
    assert_eq!(ends, ["2 sold, 9 left of 10: WRONG", "1 sold, 9 left of 10: right"], "{story}");
}
