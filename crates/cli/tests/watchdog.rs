//! The watchdog: a `quorlock run` that is stopped or killed leaves no command beyond its lock.
//!
//! Each command locks one file with `flock` until all of its processes have ended. A command that
//! finds the file locked overlaps with the previous command, and prints `overlap`.

use std::fs;
use std::process::Command;

use crate::common::*;
use quorlock_testkit::{Direction, Nodes, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const TTL: [&str; 2] = ["--ttl", "5s"];
/// A ttl beyond the patience of the tests: a lock that ends sooner was released.
const LONG_TTL: [&str; 2] = ["--ttl", "60s"];
/// A command that prints its process ID, and ends on SIGTERM.
const OBEDIENT: &str = "trap 'echo TERM; exit' TERM; echo $$; while :; do sleep 0.01; done";
const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.01; done";
/// A command that ignores SIGTERM, with a child in its session and a child in another session.
const STUBBORN_ALL: &str = "trap '' TERM; setsid sh -c 'while :; do sleep 0.01; done' & \
                            sh -c 'while :; do sleep 0.01; done'";

/// A `quorlock run` that holds the lock, and whose command runs until a signal ends it.
struct FirstRun {
    nodes: Nodes,
    folder: TempDir,
    holder: Running,
    command: Pid,
}

impl FirstRun {
    fn start(rest: &str) -> Self {
        let nodes = Nodes::start(3);
        let folder = tempfile::tempdir().unwrap();
        let mut holder = start_script(&nodes, &TTL, &script(&folder, rest));
        let command = holder.pid_line();
        Self { nodes, folder, holder, command }
    }

    /// Runs a second command under the lock, and returns the last line that it prints.
    fn run_next(&self) -> String {
        let script = script(&self.folder, "true");
        let output = run_script(&self.nodes, &["--wait", "10s"], &script).output().unwrap();
        assert_ok(&output);
        stdout(&output).lines().last().unwrap_or_default().to_owned()
    }

    fn watchdog(&self) -> Pid {
        watchdog_of(self.holder.pid())
    }

    fn command_has_ended(&self) -> bool {
        !is_alive(self.command)
    }
}

/// A command that prints its process ID and whether it runs alone, and continues with `rest`.
fn script(folder: &TempDir, rest: &str) -> String {
    let file = folder.path().join("flock");
    format!("echo $$; exec 9>>{}; flock -n 9 && echo alone || echo overlap; {rest}", file.display())
}

fn kill(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
}

#[test]
fn stopped_quorlock_leaves_no_command_beyond_its_lock() {
    for rest in [STUBBORN, STUBBORN_ALL] {
        let first = FirstRun::start(rest);
        first.holder.signal(Signal::STOP);
        assert_eq!(first.run_next(), "alone");
        assert!(first.command_has_ended());
        first.holder.signal(Signal::CONT);
        let output = first.holder.wait_for_end();
        assert_error(&output, 120, "quorlock process may have been suspended");
    }
}

#[test]
fn stopped_quorlock_without_watchdog_leaves_a_command_beyond_its_lock() {
    let first = FirstRun::start(STUBBORN);
    let watchdog = first.watchdog();
    first.holder.signal(Signal::STOP);
    kill(watchdog, Signal::KILL);
    assert_eq!(first.run_next(), "overlap");
    assert!(!first.command_has_ended());
    first.holder.signal(Signal::CONT);
    assert_eq!(code(first.holder.wait_for_end().status), 120);
    assert!(!is_alive(first.command));
}

#[test]
fn killed_quorlock_leaves_no_command_beyond_its_lock() {
    for rest in [STUBBORN, STUBBORN_ALL] {
        let first = FirstRun::start(rest);
        first.holder.signal(Signal::KILL);
        assert_eq!(first.run_next(), "alone");
        assert!(first.command_has_ended());
    }
}

#[test]
fn killed_quorlock_without_watchdog_leaves_a_command_beyond_its_lock() {
    let first = FirstRun::start(STUBBORN);
    let watchdog = first.watchdog();
    first.holder.signal(Signal::STOP);
    kill(watchdog, Signal::KILL);
    first.holder.signal(Signal::KILL);
    assert_eq!(first.run_next(), "overlap");
    assert!(!first.command_has_ended());
    kill(first.command, Signal::KILL);
}

#[test]
fn command_of_a_killed_quorlock_gets_sigterm_first() {
    let nodes = Nodes::start(3);
    let script = "trap 'echo TERM; read go; exit' TERM; echo $$; while :; do sleep 0.01; done";
    let mut running = start_script(&nodes, &LONG_TTL, script);
    let command = running.pid_line();
    running.signal(Signal::KILL);
    assert_eq!(running.line(), "TERM");
    assert!(is_alive(command) && nodes_holding(&nodes) >= 2, "the lock has not ended yet");
    running.say("go");
    wait_until_ended(command);
}

#[test]
fn watchdog_of_a_killed_quorlock_releases_the_lock() {
    for (kind, of_next) in
        [(&[][..], &[][..]), (&["--shared"], &[]), (&["--permits", "1"], &["--permits", "1"])]
    {
        let nodes = Nodes::start(3);
        let mut running = start_script(&nodes, &[&LONG_TTL, kind].concat(), OBEDIENT);
        let command = running.pid_line();
        let watchdog = watchdog_of(running.pid());
        running.signal(Signal::KILL);
        // The wait is shorter than the ttl.
        let options = [&["--wait", "15s"], of_next].concat();
        assert_ok(&run_script(&nodes, &options, "true").output().unwrap());
        assert!(!is_alive(command), "{kind:?}");
        wait_until_ended(watchdog);
    }
}

#[test]
fn watchdog_leaves_the_lock_to_the_next_holder() {
    let nodes = Nodes::start(3);
    let mut running = start_script(&nodes, &LONG_TTL, OBEDIENT);
    let command = running.pid_line();
    let watchdog = watchdog_of(running.pid());
    kill(watchdog, Signal::STOP);
    running.signal(Signal::KILL);
    nodes.iter().for_each(|node| exec(node, &["DEL", "k"]));
    let handle = acquire_everywhere(&nodes, &LONG_TTL);
    kill(watchdog, Signal::CONT);
    wait_until_ended(command);
    wait_until_ended(watchdog);
    assert_eq!(nodes_holding(&nodes), 3, "{handle}");
}

#[test]
fn watchdog_ends_although_no_node_answers() {
    let net = Net::start();
    let mut running = net.run(&LONG_TTL, OBEDIENT);
    let command = running.pid_line();
    let watchdog = watchdog_of(running.pid());
    net.cut_off_a_majority();
    net.proxies[2].drop_bytes(Direction::ToServer);
    running.signal(Signal::KILL);
    wait_until_ended(command);
    wait_until_ended(watchdog);
}

#[test]
fn token_is_in_no_argument_environment_or_file_of_the_command() {
    let nodes = Nodes::start(1);
    let mut running = start_script(&nodes, &LONG_TTL, OBEDIENT);
    let command = running.pid_line();
    let watchdog = watchdog_of(running.pid());
    let token: String = redis::cmd("GET").arg("k").query(&mut nodes[0].connection()).unwrap();
    for process in [running.pid(), watchdog, command] {
        let folder = format!("/proc/{}", process.as_raw_pid());
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("{folder}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains(&token), "{file} of {process:?}");
        }
        for descriptor in fs::read_dir(format!("{folder}/fd")).unwrap().flatten() {
            let file = fs::read_link(descriptor.path()).unwrap_or_default();
            assert!(!file.to_string_lossy().contains("memfd"), "{file:?} of {process:?}");
        }
    }
}

#[test]
fn stopped_command_is_continued_to_clean_up() {
    let nodes = Nodes::start(3);
    let mut running = start_script(&nodes, &["--ttl", "20s"], OBEDIENT);
    let command = running.pid_line();
    kill(command, Signal::STOP);
    running.signal(Signal::KILL);
    assert_eq!(running.line(), "TERM");
    wait_until_ended(command);
}

#[test]
fn quorlock_stops_the_command_when_its_watchdog_is_killed() {
    for rest in ["trap 'exit 0' TERM; while :; do sleep 0.01; done", STUBBORN_ALL] {
        let first = FirstRun::start(rest);
        kill(first.watchdog(), Signal::KILL);
        assert_eq!(first.run_next(), "alone");
        let output = first.holder.wait_for_end();
        assert_error(&output, 125, "its watchdog was killed");
    }
}

#[test]
fn quorlock_stops_the_command_when_its_watchdog_is_stopped() {
    let net = Net::start();
    let mut running = net.run(&["--ttl", "10s"], &format!("echo $$; {STUBBORN}"));
    let command = running.pid_line();
    let watchdog = watchdog_of(running.pid());
    kill(watchdog, Signal::STOP);
    net.cut_off_a_majority();
    net.assert_ends_before_the_lock(command);
    assert_eq!(code(running.wait_for_end().status), 120);
    assert!(!is_alive(watchdog));
}

#[test]
fn watchdog_ends_with_the_command_and_ignores_signals() {
    let nodes = Nodes::start(1);
    let mut running = start_script(&nodes, &[], "echo held; read go; exit 3");
    assert_eq!(running.line(), "held");
    let watchdog = watchdog_of(running.pid());
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2]
    {
        kill(watchdog, signal);
    }
    running.say("go");
    assert_eq!(code(running.wait_for_end().status), 3);
    wait_until_ended(watchdog);
}

#[test]
fn watchdog_refuses_to_start_without_quorlock_run() {
    let output = quorlock().args(["__watchdog", "true"]).output().unwrap();
    assert_error(&output, 125, "only `quorlock run` starts a watchdog");
    let help = quorlock().arg("--help").output().unwrap();
    assert!(!stdout(&help).contains("watchdog"));
}

#[test]
fn pipeline_ends_with_the_command_also_when_quorlock_was_killed() {
    let nodes = Nodes::start(1);
    let mut pipeline = Command::new("sh");
    pipeline.arg("-c").arg("{ exec \"$0\" run k -- sh -c 'echo $$; read go; echo done'; } | cat");
    pipeline.arg(QUORLOCK).env("QUORLOCK_NODES", nodes.urls().join(","));
    let mut running = Running::start(&mut pipeline);
    running.pid_line();
    running.say("go");
    let output = running.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (0, "done\n"));

    let mut running = Running::start(&mut pipeline);
    let command = running.pid_line();
    // The shell of the pipeline has two children, quorlock and `cat`. Only quorlock has children.
    let shell = running.pid();
    let mut quorlock = None;
    eventually(PATIENCE, "quorlock runs", || {
        let mut children = children_of(shell).into_iter();
        quorlock = children.find(|child| !children_of(*child).is_empty());
        quorlock.is_some()
    });
    kill(quorlock.unwrap(), Signal::KILL);
    assert_eq!(stdout(&running.wait_for_end()), "");
    wait_until_ended(command);
}
