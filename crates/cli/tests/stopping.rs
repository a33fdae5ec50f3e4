//! How `quorlock run` stops its command when the lock is lost, waits for background processes
//! (`--wait-all`), reports an uncertain lock, and keeps its lock while nodes fail.
//!
//! The tests that cut off a majority ask the nodes, not a clock, whether the command was stopped
//! in time. When the command has ended, that majority still has the lock, so no other client can
//! have acquired it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::common::*;
use quorlock_testkit::{Direction, Nodes, Proxy, eventually};
use rustix::process::Signal;

/// SIGKILL is sent a twentieth of the ttl before the validity ends: with this ttl, early enough on
/// a busy machine.
const TTL: [&str; 2] = ["--ttl", "5s"];

/// A command that prints its process ID, and ends on SIGTERM.
const OBEDIENT: &str = "trap 'echo TERM; exit 9' TERM; echo $$; while :; do sleep 0.01; done";
/// A command that prints its process ID, and does not end on SIGTERM.
const STUBBORN: &str = "trap 'echo TERM' TERM; echo $$; while :; do sleep 0.01; done";

#[test]
fn command_is_terminated_before_another_client_can_acquire_the_lock() {
    let output = lose_lock_of(&TTL, OBEDIENT);
    assert_contains(stderr(&output), "the command was stopped");
}

#[test]
fn command_that_ignores_sigterm_is_killed_before_the_lock_is_free() {
    lose_lock_of(&TTL, STUBBORN);
}

#[test]
fn descendants_of_the_command_are_killed_before_the_lock_is_free() {
    // The command itself ends on SIGTERM; its child does not.
    lose_lock_of(&TTL, &format!("sh -c '{}' & wait", STUBBORN.replace('\'', "\"")));
}

#[test]
fn killed_majority_stops_the_command() {
    assert_stops_commands(&TTL, "not connected", kill_a_majority);
}

#[test]
fn deleted_key_stops_the_command() {
    // With this ttl, SIGKILL follows SIGTERM after 600 ms.
    assert_stops_commands(&["--ttl", "12s"], "the lock is lost", delete_on_a_majority);
}

fn kill_a_majority(nodes: &mut Nodes) {
    nodes[0].kill();
    nodes[2].kill();
}

fn delete_on_a_majority(nodes: &mut Nodes) {
    nodes.iter().take(2).for_each(|node| exec(node, &["DEL", "k"]));
}

/// Asserts that the accident stops the commands [`OBEDIENT`] and [`STUBBORN`], and that standard
/// error contains the reason.
fn assert_stops_commands(ttl: &[&str], reason: &str, accident: fn(&mut Nodes)) {
    let stops = |script| {
        let mut nodes = Nodes::start(3);
        let mut running = start_script(&nodes, ttl, script);
        let command = running.pid_line();
        crate::common::wait_until_all_hold(&nodes);
        accident(&mut nodes);
        let output = running.wait_for_end();
        assert_error(&output, 120, reason);
        assert_eq!(stdout(&output), "TERM\n");
        assert!(!is_alive(command));
        crate::common::wait_until_free(&nodes);
    };
    thread::scope(|scope| {
        scope.spawn(|| stops(OBEDIENT));
        scope.spawn(|| stops(STUBBORN));
    });
}

#[test]
fn quorlock_stopped_past_the_deadline_exits_with_120_on_resume() {
    let nodes = Nodes::start(3);
    let mut running = start_script(&nodes, &["--ttl", "1s"], STUBBORN);
    let command = running.pid_line();
    running.signal(Signal::STOP);
    crate::common::wait_until_free(&nodes);
    running.signal(Signal::CONT);
    assert_eq!(code(running.wait_for_end().status), 120);
    assert!(!is_alive(command));
}

/// A command that needs 3.4 s to clean up after SIGTERM.
const SLOW: &str =
    "trap 'echo TERM; sleep 3.4; echo cleaned; exit 9' TERM; echo $$; while :; do sleep 0.01; done";

/// A command that exits with 7. Its background process prints its process ID, and ends when the
/// file `go` exists.
fn in_background(shell: &str, go: &Path) -> String {
    let go = go.display();
    // The command ends only when the background process has begun.
    format!(
        "{shell} -c 'echo $$; : >{go}.begun; while ! [ -e {go} ]; do sleep 0.01; done' &
             while ! [ -e {go}.begun ]; do sleep 0.01; done; exit 7"
    )
}

#[test]
fn longer_kill_after_sends_sigterm_earlier() {
    let output = lose_lock_of(&["--ttl", "10s", "--kill-after", "4s"], SLOW);
    assert_eq!(stdout(&output), "cleaned\n");
}

#[test]
fn default_grace_is_too_short_for_a_slow_command() {
    // With this ttl, the default grace is 2.8 s.
    assert_eq!(stdout(&lose_lock_of(&["--ttl", "10s"], SLOW)), "");
}

#[test]
fn shorter_kill_after_sends_sigterm_later_and_limits_the_grace() {
    let net = Net::start();
    let mut running = net.run(&["--ttl", "10s", "--kill-after", "800ms"], SLOW);
    let command = running.pid_line();
    let started = Instant::now();
    net.cut_off_a_majority();
    assert_eq!(running.line(), "TERM");
    // By default, SIGTERM is sent when a third of the ttl is left: 6.7 s after the last extension.
    assert!(started.elapsed() > Duration::from_millis(7500), "{:?}", started.elapsed());
    net.assert_ends_before_the_lock(command);
    let output = running.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (120, ""));
}

#[test]
fn grace_above_two_fifths_of_the_ttl_is_refused() {
    let nodes = Nodes::start(1);
    let output =
        run_script(&nodes, &["--ttl", "10s", "--kill-after", "5s"], "echo ran").output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (125, ""));
    assert_contains(
        stderr(&output),
        "for this --ttl: it must be at most 4s, two fifths of the ttl",
    );
}

#[test]
fn uncertain_lock_is_reported_once_and_so_is_its_confirmation() {
    let net = Net::start();
    let mut running = net.run(&["--ttl", "4s"], "echo held; read go");
    assert_eq!(running.line(), "held");
    net.proxies[..2].iter().for_each(|proxy| proxy.hold(Direction::ToServer));
    let mut said = running.error_line();
    // The first attempt to acquire the lock may have failed on a busy machine.
    while said.starts_with("quorlock: waiting: ") {
        said = running.error_line();
    }
    assert!(said.starts_with("quorlock: cannot confirm the lock, "), "{said}");
    assert!(said.ends_with(" s left"), "{said}");
    net.proxies.iter().for_each(Proxy::heal);
    assert_eq!(running.error_line(), "quorlock: the lock is confirmed again");
    running.say("go");
    let output = running.wait_for_end();
    assert_eq!((code(output.status), stderr(&output)), (0, ""));
}

#[test]
fn lock_is_released_while_background_processes_go_on() {
    let (nodes, folder) = (Nodes::start(3), tempfile::tempdir().unwrap());
    let go = folder.path().join("go");
    let mut running = start_script(&nodes, &[], &in_background("sh", &go));
    let background = running.pid_line();
    crate::common::wait_until_free(&nodes);
    assert!(is_alive(background));
    fs::write(&go, "").unwrap();
    assert_eq!(code(running.wait_for_end().status), 7);
}

#[test]
fn wait_all_keeps_the_lock_until_background_processes_have_ended() {
    for shell in ["sh", "setsid sh"] {
        let (nodes, folder) = (Nodes::start(3), tempfile::tempdir().unwrap());
        let go = folder.path().join("go");
        let options = ["--wait-all", "--ttl", "3s", "--node-timeout", "300ms"];
        let mut running = start_script(&nodes, &options, &in_background(shell, &go));
        let background = running.pid_line();
        let mut second = run_script(&nodes, &["--wait", "3500ms"], "echo ran");
        assert_not_acquired(&second.output().unwrap());
        assert!(is_alive(background));
        fs::write(&go, "").unwrap();
        let output = running.wait_for_end();
        assert_eq!((code(output.status), stderr(&output)), (7, ""), "{shell}");
        assert_eq!(nodes_holding(&nodes), 0);
    }
}

#[test]
fn signal_reaches_background_processes_that_are_waited_for() {
    let (nodes, folder) = (Nodes::start(1), tempfile::tempdir().unwrap());
    let script = format!("echo $$; {}", in_background("sh", &folder.path().join("go")));
    let mut running = start_script(&nodes, &["--wait-all"], &script);
    let (command, background) = (running.pid_line(), running.pid_line());
    wait_until_ended(command);
    running.signal(Signal::TERM);
    assert_eq!(code(running.wait_for_end().status), 7);
    assert!(!is_alive(background));
}

#[test]
fn loss_ends_background_processes_in_other_sessions() {
    let net = Net::start();
    let mut running = net.run(
        &["--ttl", "10s", "--wait-all"],
        "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.01; done' & read go; exit 7",
    );
    let background = running.pid_line();
    running.say("go");
    net.cut_off_a_majority();
    net.assert_ends_before_the_lock(background);
    assert_eq!(code(running.wait_for_end().status), 120);
}

#[test]
fn command_survives_repeated_losses_of_two_of_five_nodes() {
    let mut nodes = Nodes::start(5);
    let options = ["--ttl", "3s", "--node-timeout", "300ms"];
    let mut running = start_script(&nodes, &options, "echo held; read go; echo done");
    assert_eq!(running.line(), "held");
    for first in 0..5 {
        let second = (first + 1) % 5;
        nodes[first].kill();
        nodes[second].pause();
        let lost = Instant::now();
        let output = run_script(&nodes, &["--wait", "3500ms"], "echo ran").output().unwrap();
        assert_not_acquired(&output);
        assert!(lost.elapsed() > Duration::from_secs(3));
        nodes[second].resume();
        nodes[first].restart().unwrap();
        // The next two nodes may fail only when these two have the lock again.
        eventually(PATIENCE, "all nodes have the lock again", || nodes_holding(&nodes) == 5);
    }
    running.say("go");
    let output = running.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (0, "done\n"), "{}", stderr(&output));
}

#[test]
fn sixteen_runs_on_four_of_five_nodes_never_overlap() {
    let mut nodes = Nodes::start(5);
    nodes[2].kill();
    crate::common::assert_runs_never_overlap(&nodes, 16, 1);
}

#[test]
fn command_does_not_inherit_sockets_of_quorlock() {
    let nodes = Nodes::start(1);
    let mut plain = Command::new("sh");
    let list = "ls -l /proc/self/fd | grep -c socket; true";
    let expected = plain.args(["-c", list]).stdin(Stdio::null()).output().unwrap();
    let output = run_script(&nodes, &[], list).output().unwrap();
    assert_eq!(stdout(&output), stdout(&expected));
}
