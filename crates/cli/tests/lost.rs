//! Locks that are lost while the command runs.
//!
//! The tests that cut off a majority ask the masters, not a clock, whether the command was stopped
//! in time. When the command has ended, that majority still has the lock, so no other client can
//! have acquired it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::thread;

use common::{
    Net, PATIENCE, assert_contains, assert_error, assert_not_acquired, assert_ok, code, exec,
    is_alive, lose_lock_of, run_script, start_script, stderr, stdout,
};
use quorlock_testkit::{Direction, Masters, Proxy, eventually};
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
fn majority_that_comes_back_in_time_is_no_loss() {
    let net = Net::start();
    let mut running = net.run(&TTL, "echo held; read go");
    assert_eq!(running.line(), "held");
    let majority = &net.proxies[..2];
    for proxy in majority {
        proxy.hold(Direction::ToServer);
    }
    let held_up = |proxy: &Proxy| proxy.waiting_bytes(Direction::ToServer) > 0;
    eventually(PATIENCE, "an extension is held up", || majority.iter().all(held_up));
    net.proxies.iter().for_each(Proxy::heal);
    // This wait is longer than the ttl: its failure shows that the lock was extended.
    let mut second = run_script(&net.masters, &["--wait", "5500ms"], "echo ran");
    assert_not_acquired(&second.output().unwrap());
    running.say("go");
    assert_ok(&running.wait_for_end());
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

fn kill_a_majority(masters: &mut Masters) {
    masters[0].kill();
    masters[2].kill();
}

fn delete_on_a_majority(masters: &mut Masters) {
    masters.iter().take(2).for_each(|master| exec(master, &["DEL", "k"]));
}

/// Asserts that the accident stops the commands [`OBEDIENT`] and [`STUBBORN`], and that standard
/// error contains the reason.
fn assert_stops_commands(ttl: &[&str], reason: &str, accident: fn(&mut Masters)) {
    let stops = |script| {
        let mut masters = Masters::start(3);
        let mut running = start_script(&masters, ttl, script);
        let command = running.pid_line();
        common::wait_until_all_hold(&masters);
        accident(&mut masters);
        let output = running.wait_for_end();
        assert_error(&output, 120, reason);
        assert_eq!(stdout(&output), "TERM\n");
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
    let mut running = start_script(&masters, &["--ttl", "1s"], STUBBORN);
    let command = running.pid_line();
    running.signal(Signal::STOP);
    common::wait_until_free(&masters);
    running.signal(Signal::CONT);
    assert_eq!(code(running.wait_for_end().status), 120);
    assert!(!is_alive(command));
}
