//! Locks that are lost while the command runs.
//!
//! The tests that cut off a majority ask the masters, not a clock, whether the command was stopped
//! in time. When the command has ended, that majority still has the lock, so no other client can
//! have acquired it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::thread;

use common::{Net, PATIENCE, Running, code, is_alive, run_script, stderr, stdout};
use quorlock_testkit::{Direction, Masters, Proxy, eventually};
use rustix::process::Signal;

/// SIGKILL is sent a twentieth of the ttl before the lock ends. With this ttl, the time left is
/// enough on a busy machine.
const TTL: [&str; 2] = ["--ttl", "5s"];

/// A command that prints its process ID, and ends on SIGTERM.
const OBEDIENT: &str = "trap 'echo TERM; exit 9' TERM; echo $$; while :; do sleep 0.01; done";
/// A command that prints its process ID, and does not end on SIGTERM.
const STUBBORN: &str = "trap 'echo TERM' TERM; echo $$; while :; do sleep 0.01; done";

#[test]
fn command_is_terminated_before_another_client_can_acquire_the_lock() {
    let net = Net::start();
    let mut running = net.run(&TTL, OBEDIENT);
    let command = running.pid_line();
    net.cut_off_a_majority();
    assert_eq!(running.line(), "TERM");
    net.assert_ends_before_the_lock(command);
    let output = running.end();
    assert_eq!(code(output.status), 120);
    assert!(stderr(&output).contains("the command was stopped"), "{}", stderr(&output));
}

#[test]
fn command_that_ignores_sigterm_is_killed_before_the_lock_is_free() {
    let net = Net::start();
    let mut running = net.run(&TTL, STUBBORN);
    let command = running.pid_line();
    net.cut_off_a_majority();
    assert_eq!(running.line(), "TERM");
    net.assert_ends_before_the_lock(command);
    assert_eq!(code(running.end().status), 120);
}

#[test]
fn descendants_of_the_command_are_killed_before_the_lock_is_free() {
    let net = Net::start();
    // The command itself ends on SIGTERM; its child does not.
    let script = format!("sh -c '{}' & wait", STUBBORN.replace('\'', "\""));
    let mut running = net.run(&TTL, &script);
    let grandchild = running.pid_line();
    net.cut_off_a_majority();
    assert_eq!(running.line(), "TERM");
    net.assert_ends_before_the_lock(grandchild);
    assert_eq!(code(running.end().status), 120);
}

#[test]
fn majority_that_comes_back_in_time_is_no_loss() {
    let net = Net::start();
    let mut running = net.run(&TTL, "echo held; read go");
    assert_eq!(running.line(), "held");
    for proxy in &net.proxies[..2] {
        proxy.stall(Direction::ToServer);
    }
    let held_up = |proxy: &Proxy| proxy.waiting_bytes(Direction::ToServer) > 0;
    eventually(PATIENCE, "an extension is held up", || net.proxies[..2].iter().all(held_up));
    for proxy in &net.proxies {
        proxy.heal();
    }
    // This wait is longer than the ttl: its failure shows that the lock was extended.
    let mut second = run_script(&net.masters, &["--wait", "5500ms"], "echo ran");
    assert_eq!(code(second.output().unwrap().status), 121);
    running.say("go");
    let output = running.end();
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
}

#[test]
fn killed_majority_stops_the_command() {
    assert_stops_commands("not connected", kill_a_majority);
}

#[test]
fn deleted_key_stops_the_command() {
    assert_stops_commands("the lock is lost", delete_on_a_majority);
}

fn kill_a_majority(masters: &mut Masters) {
    masters[0].kill();
    masters[2].kill();
}

fn delete_on_a_majority(masters: &mut Masters) {
    for master in masters.iter().take(2) {
        redis::cmd("DEL").arg("k").exec(&mut master.connection()).unwrap();
    }
}

/// Asserts that the accident stops the commands [`OBEDIENT`] and [`STUBBORN`], and that standard
/// error contains the reason.
fn assert_stops_commands(reason: &str, accident: fn(&mut Masters)) {
    let stops = |script| {
        let mut masters = Masters::start(3);
        let mut running = Running::start(&mut run_script(&masters, &TTL, script));
        let command = running.pid_line();
        accident(&mut masters);
        let output = running.end();
        assert_eq!((code(output.status), stdout(&output)), (120, "TERM\n"));
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
        assert!(!is_alive(command));
        common::wait_until_free(&masters);
    };
    thread::scope(|scope| {
        scope.spawn(|| stops(OBEDIENT));
        scope.spawn(|| stops(STUBBORN));
    });
}

#[test]
fn quorlock_stopped_past_the_deadline_exits_with_120_on_resume() {
    let masters = Masters::start(3);
    let mut running = Running::start(&mut run_script(&masters, &["--ttl", "1s"], STUBBORN));
    let command = running.pid_line();
    running.signal(Signal::STOP);
    common::wait_until_free(&masters);
    running.signal(Signal::CONT);
    let output = running.end();
    assert_eq!(code(output.status), 120);
    assert!(!is_alive(command));
}
