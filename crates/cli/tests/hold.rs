//! `--hold-at-least`: many machines start a job, and one of them runs it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use common::{
    LONG_NODE_TIMEOUT, PATIENCE, Running, assert_error, code, exec, masters_holding, on,
    run_script, start_script, stderr, stdout, wait_until_ended,
};
use quorlock_testkit::Masters;
use rustix::process::Signal;

const JOB: &str = "sleep 0.05; echo ran; exit 3";
/// The time between the starts of the job on two successive machines.
const STAGGER: Duration = Duration::from_millis(600);

/// How many of five machines, which start one after the other, run the job.
fn machines_that_run(options: &[&str]) -> usize {
    let masters = Masters::start(5);
    let machine = |number| {
        thread::sleep(STAGGER * number);
        let options = [&LONG_NODE_TIMEOUT[..], &["--wait", "1s"], options].concat();
        let output = run_script(&masters, &options, JOB).output().unwrap();
        let ran = stdout(&output) == "ran\n";
        // The code is 122 when the host is so busy that the last request of the wait is unanswered.
        let expected: &[i32] = if ran { &[3] } else { &[121, 122] };
        assert!(expected.contains(&code(output.status)), "{}: {}", output.status, stderr(&output));
        ran
    };
    thread::scope(|scope| {
        let machines: Vec<_> = (0..5).map(|number| scope.spawn(move || machine(number))).collect();
        machines.into_iter().map(|machine| machine.join().unwrap()).filter(|ran| *ran).count()
    })
}

/// Standard error, without the reasons to wait: on a busy machine, the first attempt to acquire the
/// lock may fail.
fn said(output: &Output) -> String {
    let is_reason = |line: &&str| line.starts_with("quorlock: waiting: ");
    stderr(output).lines().filter(|line| !is_reason(line)).collect()
}

/// Starts a run whose command has ended with 7, and which holds the lock.
fn start_hold(masters: &Masters, options: &[&str]) -> Running {
    let mut running = start_script(masters, options, "echo $$; exit 7");
    wait_until_ended(running.pid_line());
    running
}

#[test]
fn held_job_is_run_by_one_of_five_machines() {
    assert_eq!(machines_that_run(&["--hold-at-least", "5s"]), 1);
}

#[test]
fn job_that_is_not_held_is_run_by_several_machines() {
    assert!(machines_that_run(&[]) > 1);
}

#[test]
fn lock_is_renewed_during_the_hold_and_the_exit_code_kept() {
    let masters = Masters::start(3);
    let options = ["--hold-at-least", "4500ms", "--ttl", "3s", "--node-timeout", "300ms"];
    let started = Instant::now();
    let mut running = start_script(&masters, &options, "echo over; exit 7");
    assert_eq!(running.line(), "over");
    while started.elapsed() < Duration::from_secs(4) {
        assert!(masters_holding(&masters) >= 2, "after {:?}", started.elapsed());
        thread::sleep(Duration::from_millis(10));
    }
    let output = running.wait_for_end();
    assert_eq!((code(output.status), &*said(&output)), (7, ""));
    assert!(started.elapsed() >= Duration::from_millis(4500));
    assert_eq!(masters_holding(&masters), 0);
}

#[test]
fn signal_during_the_hold_releases_the_lock_at_once() {
    let masters = Masters::start(3);
    let running =
        start_hold(&masters, &[&LONG_NODE_TIMEOUT[..], &["--hold-at-least", "1h"]].concat());
    assert!(masters_holding(&masters) >= 2);
    running.signal(Signal::TERM);
    let output = running.wait_for_end();
    assert_eq!((code(output.status), &*said(&output)), (7, ""));
    assert_eq!(masters_holding(&masters), 0);
}

#[test]
fn usr1_and_usr2_do_not_end_the_hold() {
    let masters = Masters::start(1);
    let started = Instant::now();
    let running =
        start_hold(&masters, &[&LONG_NODE_TIMEOUT[..], &["--hold-at-least", "3s"]].concat());
    running.signal(Signal::USR1);
    running.signal(Signal::USR2);
    let output = running.wait_for_end();
    assert_eq!((code(output.status), &*said(&output)), (7, ""));
    assert!(started.elapsed() >= Duration::from_secs(3));
}

#[test]
fn signal_that_ends_the_command_prevents_the_hold() {
    let masters = Masters::start(3);
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut running = start_script(&masters, &["--hold-at-least", "1h"], "echo held; read go");
        assert_eq!(running.line(), "held");
        running.signal(signal);
        assert_eq!(code(running.wait_for_end().status), expected);
        assert_eq!(masters_holding(&masters), 0);
    }
}

#[test]
fn lock_is_not_held_for_a_command_that_cannot_be_run() {
    let masters = Masters::start(1);
    let mut run = on(&masters, "run");
    run.args(["--hold-at-least", "1h", "k", "--", "/no/such/command"]);
    assert_eq!(code(run.status().unwrap()), 127);
}

#[test]
fn hold_does_not_outlast_a_longer_command() {
    let masters = Masters::start(1);
    let started = Instant::now();
    let output = run_script(&masters, &["--hold-at-least", "1ms"], "sleep 0.1").output().unwrap();
    assert_eq!(code(output.status), 0);
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn loss_during_the_hold_is_reported_and_changes_no_exit_code() {
    let masters = Masters::start(1);
    let running = start_hold(&masters, &["--hold-at-least", "1h", "--ttl", "1s"]);
    exec(&masters[0], &["DEL", "k"]);
    let output = running.wait_for_end();
    assert_error(&output, 7, "before --hold-at-least was over");
}
