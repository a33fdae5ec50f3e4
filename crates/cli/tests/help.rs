//! The texts of `--help`, and errors that point to it or say what to write instead.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::fs;

use common::{assert_contains, assert_error, code, quorlock, stderr, stdout};

fn assert_help_contains(subcommand: &[&str], things: &[&str]) {
    let output = quorlock().args(subcommand).arg("--help").output().unwrap();
    assert_eq!(code(output.status), 0);
    for thing in things {
        assert_contains(stdout(&output), thing);
    }
}

/// Asserts that the program fails with 125 and this hint, and shows no password.
#[track_caller]
fn assert_fails(arguments: &[&str], hint: &str) {
    let output = quorlock().args(arguments).args(["k", "--", "true"]).output().unwrap();
    assert_error(&output, 125, hint);
    assert!(!stderr(&output).contains("s3cret"), "{}", stderr(&output));
}

#[test]
fn help_names_options_exit_codes_and_environment_variables() {
    let subcommands =
        ["run", "acquire", "extend", "release", "inspect", "list", "revoke", "up"];
    assert_help_contains(&[], &subcommands);
    assert_help_contains(
        &[],
        &["status", "doctor", "top", "exporter", "restart-nodes", "quorlock run KEY -- COMMAND"],
    );
    for of_all in [
        &["--config", "--nodes", "--user", "--password-file", "--cacert", "--cert", "--key"][..],
        &["QUORLOCK_CONFIG", "QUORLOCK_NODES", "QUORLOCK_USER", "QUORLOCK_PASSWORD"],
        &["SSL_CERT_FILE", "XDG_CONFIG_HOME", "/etc/quorlock.toml", "tls.cacert", "defaults.ttl"],
    ] {
        assert_help_contains(&[], of_all);
    }
    for subcommand in ["acquire", "extend", "release", "status", "restart-nodes"] {
        assert_help_contains(
            &[subcommand],
            &["--nodes", "--config", "--cacert", "0 ", "122 ", "125 ", "quorlock --help"],
        );
    }
    for subcommand in ["inspect", "list", "revoke"] {
        assert_help_contains(&[subcommand], &["--nodes", "0 ", "122 ", "125 ", "quorlock --help"]);
    }
    assert_help_contains(&["revoke"], &["--now", "--yes", "121 ", "123 ", "128 +"]);
    assert_help_contains(&["list"], &["[PATTERN]", "--limit", "--json"]);
    assert_help_contains(
        &["doctor"],
        &["--ttl", "--lock", "--json", "--node-timeout", "0 ", "1 ", "2 ", "125 "],
    );
    assert_help_contains(
        &["exporter"],
        &["--listen", "127.0.0.1:", "--node-timeout", "/metrics", "0 ", "125 "],
    );
    assert_help_contains(&["top"], &["[PATTERN]", "--interval", "q quits", "0 ", "125 ", "128 +"]);
    for of_run in [
        &["<KEY>", "<COMMAND>", "--nodes", "--ttl", "--wait", "--node-timeout", "--owner"][..],
        &["-n, --no-wait", "-w <SECONDS>", "-c <STRING>", "-E, --conflict-exit-code <N>"],
        &["--verbose", "--hold-at-least", "0 3 * * *", "--kill-after", "--wait-all"],
        &["background", "watchdog", "--shared", "--permits", "QUORLOCK_PERMIT"],
        &["QUORLOCK_NODES", "QUORLOCK_KEY", "QUORLOCK_FENCE", "QUORLOCK_TTL_MS"],
        &["128 +", "120 ", "121 ", "122 ", "125 ", "126 ", "127 "],
    ] {
        assert_help_contains(&["run"], of_run);
    }
    assert_help_contains(&["up"], &["-n, --masters", "--port", "--keep", "--server", "--module"]);
    assert_help_contains(&["up"], &["QUORLOCK_SERVER", "QUORLOCK_MODULE", "0 ", "125 "]);
}

#[test]
fn short_help_fits_a_screen() {
    let help = quorlock().env("COLUMNS", "80").arg("-h").output().unwrap();
    let (_, commands) = stdout(&help).split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| line.starts_with("  "));
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names: Vec<_> = names.filter(|name| !["", "help"].contains(name)).collect();
    assert!(names.len() > 10 && names.contains(&"run"), "{names:?}");
    for arguments in [vec!["-h"]].into_iter().chain(names.into_iter().map(|name| vec![name, "-h"]))
    {
        let help = quorlock().env("COLUMNS", "80").args(&arguments).output().unwrap();
        let lines: Vec<_> = stdout(&help).lines().collect();
        // The last line of a screen is the prompt.
        assert!(lines.len() < 40, "{arguments:?}: {} lines", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{arguments:?}: {lines:?}");
        assert!(lines.iter().any(|line| line.contains("--help")), "{arguments:?}: {lines:?}");
    }
}

#[test]
fn run_without_separator_gets_a_hint() {
    let hint = "write `--` before the command";
    for words in
        [&["k", "echo", "hi"][..], &["-n", "k", "echo", "-n"], &["k", "--ttl", "5s", "true"]]
    {
        assert_error(&quorlock().arg("run").args(words).output().unwrap(), 125, hint);
    }
    for words in [
        &["run", "k", "--nonsense", "--", "true"][..],
        &["run", "k", "l", "--", "true"],
        &["run", "k"],
        &["release", "x", "y"],
    ] {
        let output = quorlock().args(words).output().unwrap();
        assert_eq!(code(output.status), 125, "{words:?}");
        assert!(!stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn wrong_command_line_exits_with_125_and_points_to_help() {
    for wrong in [
        ["run"].as_slice(),
        &["run", "k"],
        &["run", "k", "true"],
        &["walk"],
        &["run", "--ttl", "10", "k"],
    ] {
        let output = quorlock().args(wrong).output().unwrap();
        assert_eq!(code(output.status), 125, "{wrong:?}");
        assert_contains(stderr(&output), "--help");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn example_files_of_help_and_documentation_are_valid() {
    let help = quorlock().arg("--help").output().unwrap();
    let (_, of_help) = stdout(&help).split_once("File:\n").unwrap();
    let page = include_str!("../../../docs/operations/configuration.md");
    let (_, of_page) = page.split_once("```toml\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("quorlock.toml");
    for file in [of_help.split("\n\n").next().unwrap(), of_page.split("```").next().unwrap()] {
        fs::write(&path, file).unwrap();
        let mut run = quorlock();
        run.args(["run", "k", "--config"]).arg(&path).args(["--", "true"]);
        // The file is read, and the first file that it names is missing.
        let error = "cannot read the password from /etc/quorlock.password";
        assert_error(&run.output().unwrap(), 125, error);
    }
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
