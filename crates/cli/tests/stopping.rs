//! How `quorlock run` stops its command when the lock is lost, waits for background processes
//! (`--wait-all`), reports an uncertain lock, and keeps its lock while nodes fail; and how its
//! watchdog leaves no command beyond the lock when `quorlock run` is stopped or killed.
//!
//! The tests that cut off a majority ask the nodes, not a clock, whether the command was stopped
//! in time. When the command has ended, that majority still has the lock, so no other client can
//! have acquired it.

use std::path::Path;
use std::process::Command;
use std::{fs, thread};

use crate::common::*;
use quorlock_testkit::{Direction, Nodes, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;

/// SIGKILL is sent a twentieth of the ttl before the validity ends: with this ttl, early enough on
/// a busy machine.
const TTL: [&str; 2] = ["--ttl", "5s"];
/// A ttl beyond the patience of the tests: a lock that ends sooner was released.
const LONG_TTL: [&str; 2] = ["--ttl", "60s"];

/// A command that prints its process ID, and ends on SIGTERM.
const OBEDIENT: &str = "trap 'echo TERM; exit 9' TERM; echo $$; while :; do sleep 0.01; done";
/// A command that prints its process ID, and does not end on SIGTERM.
const STUBBORN: &str = "trap 'echo TERM' TERM; echo $$; while :; do sleep 0.01; done";

#[test]
fn command_and_its_descendants_end_before_the_lock_is_free() {
    // The command of the last script ends on SIGTERM; its child does not.
    let with_child = format!("sh -c '{}' & wait", STUBBORN.replace('\'', "\""));
    for script in [OBEDIENT, STUBBORN, &with_child] {
        let output = lose_lock_of(&TTL, script);
        assert_contains(stderr(&output), "the command was stopped");
    }
}

#[test]
fn deleted_key_stops_the_command() {
    let stops = |script| {
        let nodes = Nodes::start(3);
        // With this ttl, SIGKILL follows SIGTERM after 600 ms.
        let running = start_script(&nodes, &["--ttl", "12s"], script);
        let command = running.pid_line();
        wait_until_all_hold(&nodes);
        nodes.iter().take(2).for_each(|node| exec(node, &["DEL", "k"]));
        let output = running.wait_for_end();
        assert_error(&output, 120, "the lock is lost");
        assert_eq!(stdout(&output), "TERM\n");
        assert!(!is_alive(command));
        wait_until_free(&nodes);
    };
    thread::scope(|scope| {
        scope.spawn(|| stops(OBEDIENT));
        scope.spawn(|| stops(STUBBORN));
    });
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
    // The baseline: with this ttl, the default grace is 2.8 s.
    assert_eq!(stdout(&lose_lock_of(&["--ttl", "10s"], SLOW)), "");
}

#[test]
fn uncertain_lock_is_reported_once_and_so_is_its_confirmation() {
    let net = Net::start();
    let running = net.run(&["--ttl", "4s"], "echo held; read go");
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
    let running = start_script(&nodes, &[], &in_background("sh", &go));
    let background = running.pid_line();
    wait_until_free(&nodes);
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
        let running = start_script(&nodes, &options, &in_background(shell, &go));
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
    let running = start_script(&nodes, &["--wait-all"], &script);
    let (command, background) = (running.pid_line(), running.pid_line());
    wait_until_ended(command);
    running.signal(Signal::TERM);
    assert_eq!(code(running.wait_for_end().status), 7);
    assert!(!is_alive(background));
}

#[test]
fn loss_ends_background_processes_in_other_sessions() {
    let net = Net::start();
    let running = net.run(
        &["--ttl", "10s", "--wait-all"],
        "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.01; done' & read go; exit 7",
    );
    let background = running.pid_line();
    running.say("go");
    net.cut_off_a_majority();
    net.assert_ends_before_the_lock(background);
    assert_eq!(code(running.wait_for_end().status), 120);
}

/// A command that ignores SIGTERM, with a child in its session and a child in another session.
const STUBBORN_ALL: &str = "trap '' TERM; setsid sh -c 'while :; do sleep 0.01; done' & \
                            sh -c 'while :; do sleep 0.01; done'";

/// A `quorlock run` that holds the lock, and whose command runs until a signal ends it.
struct FirstRun {
    nodes: Nodes,
    file: NamedTempFile,
    holder: Running,
    command: Pid,
}

impl FirstRun {
    fn start(rest: &str) -> Self {
        let nodes = Nodes::start(3);
        let file = NamedTempFile::new().unwrap();
        let script = alone(file.path(), &format!("echo $$; {rest}"));
        let holder = start_script(&nodes, &TTL, &script);
        assert_eq!(holder.line(), "alone");
        let command = holder.pid_line();
        Self { nodes, file, holder, command }
    }

    /// Runs a second command under the lock, and returns what it prints.
    fn run_next(&self) -> String {
        let script = alone(self.file.path(), "true");
        let output = run_script(&self.nodes, &["--wait", "10s"], &script).output().unwrap();
        assert_ok(&output);
        stdout(&output).trim_end().to_owned()
    }
}

/// Starts a run of the command [`OBEDIENT`]. Returns it, the command, and the watchdog.
fn start_obedient(nodes: &Nodes, options: &[&str]) -> (Running, Pid, Pid) {
    let running = start_script(nodes, &[&LONG_TTL, options].concat(), OBEDIENT);
    let (command, watchdog) = (running.pid_line(), watchdog_of(running.pid()));
    (running, command, watchdog)
}

fn kill(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
}

/// Without a watchdog is the baseline.
#[test]
fn stopped_or_killed_quorlock_leaves_no_command_beyond_its_lock() {
    for (signal, rest, has_watchdog) in [
        (Signal::STOP, STUBBORN, true),
        (Signal::STOP, STUBBORN_ALL, true),
        (Signal::STOP, STUBBORN, false),
        (Signal::KILL, STUBBORN, true),
        (Signal::KILL, STUBBORN_ALL, true),
        (Signal::KILL, STUBBORN, false),
    ] {
        let first = FirstRun::start(rest);
        if !has_watchdog {
            // A running `quorlock run` would stop the command in place of its watchdog.
            let watchdog = watchdog_of(first.holder.pid());
            first.holder.signal(Signal::STOP);
            kill(watchdog, Signal::KILL);
        }
        first.holder.signal(signal);
        assert_eq!(first.run_next(), if has_watchdog { "alone" } else { "together" });
        assert_eq!(is_alive(first.command), !has_watchdog);
        if signal == Signal::STOP {
            first.holder.signal(Signal::CONT);
            let output = first.holder.wait_for_end();
            assert_error(&output, 120, "quorlock process may have been suspended");
            assert!(!is_alive(first.command));
        } else if !has_watchdog {
            kill(first.command, Signal::KILL);
        }
    }
}

/// SIGTERM reaches a stopped command only after SIGCONT.
#[test]
fn command_of_a_killed_quorlock_gets_sigterm_first_also_when_it_is_stopped() {
    let nodes = Nodes::start(3);
    let script = "trap 'echo TERM; read go; exit' TERM; echo $$; while :; do sleep 0.01; done";
    let running = start_script(&nodes, &LONG_TTL, script);
    let command = running.pid_line();
    kill(command, Signal::STOP);
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
        let (running, command, watchdog) = start_obedient(&nodes, kind);
        running.signal(Signal::KILL);
        // The wait is shorter than the ttl.
        let options = [&["--wait", "15s"], of_next].concat();
        assert_ok(&run_script(&nodes, &options, "true").output().unwrap());
        assert!(!is_alive(command), "{kind:?}");
        wait_until_ended(watchdog);
    }
}

#[test]
fn watchdog_ends_although_no_node_answers() {
    let net = Net::start();
    let running = net.run(&LONG_TTL, OBEDIENT);
    let command = running.pid_line();
    let watchdog = watchdog_of(running.pid());
    net.cut_off_a_majority();
    net.proxies[2].drop_bytes(Direction::ToServer);
    running.signal(Signal::KILL);
    wait_until_ended(command);
    wait_until_ended(watchdog);
}

#[test]
fn token_is_in_no_argument_environment_or_file_and_no_socket_is_inherited() {
    let nodes = Nodes::start(1);
    let (running, command, watchdog) = start_obedient(&nodes, &[]);
    let token: String = redis::cmd("GET").arg("k").query(&mut nodes[0].connection()).unwrap();
    for process in [running.pid(), watchdog, command] {
        let folder = format!("/proc/{}", process.as_raw_pid());
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("{folder}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains(&token), "{file} of {process:?}");
        }
        for descriptor in fs::read_dir(format!("{folder}/fd")).unwrap().flatten() {
            let file = fs::read_link(descriptor.path()).unwrap_or_default();
            let is_socket = file.to_string_lossy().contains("socket:");
            assert!(!is_socket || process != command, "{file:?}");
        }
    }
}

#[test]
fn quorlock_stops_the_command_when_its_watchdog_is_killed() {
    for rest in ["trap 'exit 0' TERM; while :; do sleep 0.01; done", STUBBORN_ALL] {
        let first = FirstRun::start(rest);
        kill(watchdog_of(first.holder.pid()), Signal::KILL);
        assert_eq!(first.run_next(), "alone");
        let output = first.holder.wait_for_end();
        assert_error(&output, 125, "its watchdog was killed");
    }
}

#[test]
fn quorlock_stops_the_command_when_its_watchdog_is_stopped() {
    let net = Net::start();
    let running = net.run(&["--ttl", "10s"], STUBBORN);
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
    let running = start_script(&nodes, &[], "echo held; read go; exit 3");
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
fn pipeline_ends_with_the_command_also_when_quorlock_was_killed() {
    let nodes = Nodes::start(1);
    let mut pipeline = Command::new("sh");
    pipeline.arg("-c").arg("{ exec \"$0\" run k -- sh -c 'echo $$; read go; echo done'; } | cat");
    pipeline.arg(QUORLOCK).env("QUORLOCK_NODES", nodes.urls().join(","));
    let running = Running::start(&mut pipeline);
    running.pid_line();
    running.say("go");
    let output = running.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (0, "done\n"));

    let running = Running::start(&mut pipeline);
    let command = running.pid_line();
    // The shell of the pipeline has two children, quorlock and `cat`. Only quorlock has children.
    let mut children = children_of(running.pid()).into_iter();
    let quorlock = children.find(|child| !children_of(*child).is_empty());
    kill(quorlock.unwrap(), Signal::KILL);
    assert_eq!(stdout(&running.wait_for_end()), "");
    wait_until_ended(command);
}
