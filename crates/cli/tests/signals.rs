//! Signals that reach `quorlock run`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use common::{
    Holder, LONG_NODE_TIMEOUT, PATIENCE, QUORLOCK, Running, code, command_stats, masters_holding,
    run_script, start_script, stderr, stdout, wait_until_ended,
};
use quorlock_testkit::{Masters, eventually};
use rustix::process::Signal;

#[test]
fn signal_is_passed_on_and_the_lock_released_when_the_command_ends() {
    let masters = Masters::start(3);
    for (signal, name, expected) in [
        (Signal::TERM, "TERM", 3),
        (Signal::INT, "INT", 4),
        (Signal::HUP, "HUP", 5),
        (Signal::USR1, "USR1", 6),
    ] {
        let script = format!("trap 'echo {name}; exit {expected}' {name}; echo started; read go");
        let mut running = start_script(&masters, &LONG_NODE_TIMEOUT, &script);
        assert_eq!(running.line(), "started");
        running.signal(signal);
        let output = running.wait_for_end();
        assert_eq!((code(output.status), stdout(&output).trim_end()), (expected, name));
        assert_eq!(stderr(&output), "");
        assert_eq!(masters_holding(&masters), 0);
    }
}

#[test]
fn command_that_survives_a_signal_keeps_its_lock() {
    let masters = Masters::start(3);
    let script = "trap 'echo reloaded' HUP; echo started; while ! read go; do :; done; echo done";
    let mut running = start_script(&masters, &LONG_NODE_TIMEOUT, script);
    assert_eq!(running.line(), "started");
    running.signal(Signal::HUP);
    assert_eq!(running.line(), "reloaded");
    assert!(masters_holding(&masters) >= 2);
    running.say("go");
    let output = running.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (0, "done\n"));
    assert_eq!(masters_holding(&masters), 0);
}

#[test]
fn signal_reaches_descendants_of_the_command() {
    let masters = Masters::start(1);
    let script = "sh -c 'echo $$; while :; do sleep 0.01; done' & wait";
    let mut running = start_script(&masters, &LONG_NODE_TIMEOUT, script);
    let grandchild = running.pid_line();
    running.signal(Signal::TERM);
    assert_eq!(code(running.wait_for_end().status), 143);
    wait_until_ended(grandchild);
}

#[test]
fn signal_ends_the_wait_for_a_lock() {
    let masters = Masters::start(3);
    let holder = Holder::start(&masters, &LONG_NODE_TIMEOUT);
    let times_asked =
        || -> u64 { masters.iter().map(|master| command_stats(master, "lock.acquire").0).sum() };
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let asked_before = times_asked();
        let waiting = start_script(&masters, &LONG_NODE_TIMEOUT, "echo ran");
        eventually(PATIENCE, "the run has asked all masters", || times_asked() >= asked_before + 3);
        waiting.signal(signal);
        let output = waiting.wait_for_end();
        assert_eq!((code(output.status), stdout(&output)), (expected, ""));
    }
    holder.release();
    assert_eq!(masters_holding(&masters), 0);
}

#[test]
fn hang_up_under_nohup_reaches_no_process() {
    let masters = Masters::start(1);
    let run = run_script(&masters, &LONG_NODE_TIMEOUT, "echo started; read go; echo done");
    let mut command = Command::new("nohup");
    let arguments = run.get_args().skip_while(|argument| *argument != "run");
    command.process_group(0).arg(QUORLOCK).args(arguments);
    let mut running = Running::start(&mut command);
    assert_eq!(running.line(), "started");
    running.signal(Signal::HUP);
    running.say("go");
    let output = running.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (0, "done\n"));
}
