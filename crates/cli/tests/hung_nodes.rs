//! Two of three masters hang: the subcommands end in time, and `run` names the silent masters.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{PATIENCE, address, assert_contains, code, on, run_script, stderr, stdout};
use quorlock_testkit::{Masters, Server, eventually};

/// More than each of these subcommands takes, and less than the client's default limit to connect.
const AT_MOST: Duration = Duration::from_secs(4);

/// Three masters, of which only the last one answers.
fn two_hung_masters() -> Masters {
    let masters = Masters::start_with(3, |_, master| master.tcp()).unwrap();
    masters.iter().take(2).for_each(Server::pause);
    masters
}

#[track_caller]
fn output_in_time(command: &mut Command) -> Output {
    let started = Instant::now();
    let output = command.output().unwrap();
    let took = started.elapsed();
    assert!(took < AT_MOST, "{took:?}: {}{}", stdout(&output), stderr(&output));
    output
}

#[test]
fn run_that_does_not_wait_fails_soon_and_names_the_silent_masters() {
    let masters = two_hung_masters();
    for options in [&["-n"][..], &["--wait", "1s"], &["-n", "--node-timeout", "500ms"]] {
        let output = output_in_time(&mut run_script(&masters, options, "echo ran"));
        assert_eq!((code(output.status), stdout(&output)), (122, ""), "{options:?}");
        let said = stderr(&output);
        let [first, second, healthy] = [0, 1, 2].map(|node| address(&masters[node]));
        for reason in [
            format!("{first}, {second}: not connected (no answer yet)"),
            format!("{healthy}: connected, and votes once enough of the other nodes are connected"),
        ] {
            assert!(said.contains(&reason), "{options:?}: {said}");
        }
    }
    let output = output_in_time(on(&masters, "acquire").args(["k", "-n"]));
    assert_eq!(code(output.status), 122, "{}", stderr(&output));
}

#[test]
fn node_timeout_bounds_the_time_to_connect() {
    let masters = two_hung_masters();
    eventually(PATIENCE, "a run takes less than the second that it takes by default", || {
        let started = Instant::now();
        let output = run_script(&masters, &["-n", "--node-timeout", "10ms"], ":").output().unwrap();
        assert_eq!(code(output.status), 122);
        started.elapsed() < Duration::from_secs(1)
    });
}

#[test]
fn inspect_and_list_end_in_time_without_a_majority() {
    let masters = two_hung_masters();
    let free = format!("{}  free", address(&masters[2]));
    eventually(PATIENCE, "the healthy master is shown", || {
        let output = output_in_time(on(&masters, "inspect").arg("k"));
        assert_eq!(code(output.status), 122);
        stdout(&output).contains(&free)
    });
    assert_eq!(code(output_in_time(&mut on(&masters, "list")).status), 122);
}

#[test]
fn status_shows_that_the_healthy_master_votes() {
    let masters = two_hung_masters();
    let output = on(&masters, "status").args(["--node-timeout", "2s"]).output().unwrap();
    assert_eq!(code(output.status), 122);
    let text = stdout(&output);
    let state = |index: usize| {
        let line = text.lines().find(|line| line.contains(&address(&masters[index]))).unwrap();
        line.split_whitespace().nth(1).unwrap()
    };
    assert_eq!([state(0), state(1), state(2)], ["down", "down", "voting"], "{text}");
    assert!(text.contains("1 of 3 nodes vote; a majority is 2"), "{text}");
}

#[test]
fn doctor_ends_within_two_time_limits() {
    let masters = two_hung_masters();
    let limit = Duration::from_secs(2);
    let started = Instant::now();
    let output = on(&masters, "doctor").args(["--node-timeout", "2s"]).output().unwrap();
    assert!(started.elapsed() < 2 * limit, "{:?}", started.elapsed());
    assert_eq!(code(output.status), 2, "{}", stdout(&output));
    assert_contains(stdout(&output), "no answer within 2000 ms");
}
