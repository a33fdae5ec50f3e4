//! What `--help` promises.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so at once")]

mod common;

use common::{code, quorlock, stderr, stdout};

fn help_names(verb: &[&str], things: &[&str]) {
    let output = quorlock().args(verb).arg("--help").output().unwrap();
    assert_eq!(code(output.status), 0);
    for thing in things {
        assert!(stdout(&output).contains(thing), "no {thing} in {}", stdout(&output));
    }
}

#[test]
fn help_names_options_exit_codes_and_environment_variables() {
    help_names(&[], &["run", "up", "quorlock run KEY -- COMMAND"]);
    let of_run = [
        ["<KEY>", "<COMMAND>", "--nodes", "--ttl", "--wait", "--node-limit", "--owner"].as_slice(),
        ["-n, --no-wait", "-w <SECONDS>", "-c <STRING>", "-E, --conflict-exit-code <N>", "--verbose"]
            .as_slice(),
        ["--hold-at-least", "0 3 * * *", "--kill-after", "--wait-all", "background", "watchdog"].as_slice(),
        ["QUORLOCK_NODES", "QUORLOCK_KEY", "QUORLOCK_FENCE", "QUORLOCK_TTL_MS"].as_slice(),
        ["128 +", "120 ", "121 ", "122 ", "125 ", "126 ", "127 "].as_slice(),
    ];
    help_names(&["run"], &of_run.concat());
    let of_up = ["-n, --masters", "--server", "--module", "QUORLOCK_SERVER", "QUORLOCK_MODULE", "0 ", "125 "];
    help_names(&["up"], &of_up);
}

#[test]
fn a_wrong_command_line_has_a_code_of_its_own_and_points_to_help() {
    for wrong in
        [["run"].as_slice(), &["run", "k"], &["run", "k", "true"], &["walk"], &["run", "--ttl", "10", "k"]]
    {
        let output = quorlock().args(wrong).output().unwrap();
        assert_eq!(code(output.status), 125, "{wrong:?}");
        assert!(stderr(&output).contains("--help"), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}
