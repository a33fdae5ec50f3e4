//! Each test that a page of docs names exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use quorlock_faults::scenarios::{ALL, Scenario};

const SAFETY: &str = include_str!("../../../docs/safety.md");
const FENCING: &str = include_str!("../../../docs/fencing.md");
const RUN: &str = include_str!("../../../docs/run.md");
const LOCKS: &str = include_str!("../../../docs/locks.md");

/// Returns the names of all functions in the folders of tests, and of the tests of scenarios.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directories = [
        "tests",
        "crates/faults/tests",
        "crates/client/tests",
        "crates/testkit/tests",
        "crates/cli/tests",
    ];
    let files = directories
        .iter()
        .flat_map(|directory| fs::read_dir(root.join(directory)).expect(directory));
    let sources = files.filter_map(|file| fs::read_to_string(file.expect("a file").path()).ok());
    let names = |source: String| -> Vec<String> {
        source
            .lines()
            .filter_map(|line| Some(line.split_once("fn ")?.1.split_once('(')?.0.to_owned()))
            .collect()
    };
    sources.flat_map(names).chain(ALL.iter().map(|scenario| scenario.claim.to_owned())).collect()
}

/// Returns whether a code span is the name of a test. No other name has so many words.
fn is_test_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && text.matches('_').count() > 3
}

#[test]
fn tests_that_the_pages_name_exist() {
    let tests = tests();
    for (page, more_than) in [(SAFETY, 20), (FENCING, 3), (RUN, 7), (LOCKS, 3)] {
        let quoted = page.split('`').skip(1).step_by(2);
        let named: Vec<_> = quoted.filter(|text| is_test_name(text)).collect();
        assert!(named.len() > more_than, "{named:?}");
        for name in named {
            assert!(tests.contains(name), "there is no test {name}");
        }
    }
}

#[test]
fn safety_page_names_all_scenarios() {
    for Scenario { claim, .. } in ALL {
        assert!(SAFETY.contains(&format!("`{claim}`")), "docs/safety.md lacks {claim}");
    }
}

#[test]
fn claims_that_the_safety_page_quotes_are_in_the_named_table() {
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("steps");
    let pieces: Vec<_> = SAFETY.split(".steps](").collect();
    assert!(pieces.len() > 2, "{}", pieces.len());
    for before in &pieces[..pieces.len() - 1] {
        let table = before.rsplit('[').next().expect("the name of a table");
        let claim = before.rsplit('"').nth(1).expect("a quoted claim");
        let text = fs::read_to_string(tables.join(format!("{table}.steps"))).expect("the table");
        assert!(text.lines().any(|line| line.starts_with(claim)), "{table}: {claim}");
    }
}
