//! `quorlock run` and `quorlock revoke` in the foreground of a terminal: Ctrl-C, Ctrl-Z and reading
//! from the terminal.

use std::fs::File;
use std::io::Write as _;

use crate::common::*;
use quorlock_testkit::{Nodes, eventually};

const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;

const STATUS: &str = "echo status $?";
/// Shows that the command has stopped, and continues it after a line of input.
const STOPPED_THEN_FG: &str = "echo stopped $?; read line; fg >/dev/null; echo status $?";

/// A shell with job control in a terminal.
struct Terminal {
    _shell: KillOnDrop,
    keyboard: File,
    screen: Lines,
}

impl Terminal {
    /// Runs a script in a shell. In the script, `$Q` is `quorlock run` on these nodes.
    fn start(nodes: &Nodes, options: &str, script: &str) -> Self {
        let (keyboard, mut shell) = shell_in_terminal(script);
        shell
            .env("Q", format!("{QUORLOCK} run {options}"))
            .env("QUORLOCK", QUORLOCK)
            .env("QUORLOCK_NODES", nodes.urls().join(","));
        let screen = Lines::of(keyboard.try_clone().unwrap());
        Self { _shell: KillOnDrop(shell.spawn().unwrap()), keyboard, screen }
    }

    /// Starts this command under the lock `k`, and waits until it prints `ready`. Once the command
    /// has ended or stopped, the shell runs `rest`.
    #[track_caller]
    fn run(nodes: &Nodes, options: &str, command: &str, rest: &str) -> Self {
        let terminal = Self::start(nodes, options, &format!("$Q k -- sh -c '{command}'\n{rest}"));
        terminal.shows("ready");
        terminal
    }

    /// Waits for a line with this text, and returns the line.
    #[track_caller]
    fn shows(&self, text: &str) -> String {
        loop {
            let line = self.screen.next().unwrap_or_else(|| panic!("{text:?} was not shown"));
            if line.contains(text) {
                return line.trim().to_owned();
            }
        }
    }

    fn press(&mut self, key: u8) {
        self.keyboard.write_all(&[key]).unwrap();
    }

    fn type_line(&mut self, line: &str) {
        writeln!(self.keyboard, "{line}").unwrap();
    }
}

#[test]
fn ctrl_c_reaches_the_command_and_its_exit_code_reaches_the_shell() {
    let nodes = Nodes::start(3);
    let command = "trap \"echo INT; exit 5\" INT; echo ready; while :; do sleep 0.01; done";
    let mut terminal = Terminal::run(&nodes, "", command, STATUS);
    terminal.press(CTRL_C);
    terminal.shows("INT");
    assert_eq!(terminal.shows("status"), "status 5");
    assert_eq!(nodes_holding(&nodes), 0);
}

#[test]
fn ctrl_c_is_not_passed_on_a_second_time() {
    let nodes = Nodes::start(1);
    let command = "trap \"echo INT\" INT; echo ready; read go; read go; echo go $go";
    let mut terminal = Terminal::run(&nodes, "", command, STATUS);
    terminal.press(CTRL_C);
    terminal.shows("INT");
    terminal.type_line("first");
    terminal.type_line("second");
    // A second INT would interrupt the second `read`, and `go` would be empty.
    terminal.shows("go ");
    assert_eq!(terminal.shows("status"), "status 0");
}

#[test]
fn ctrl_z_stops_the_command_and_fg_continues_it() {
    let nodes = Nodes::start(3);
    let command = "echo ready; while ! read go; do :; done; echo continued; exit 4";
    let mut terminal = Terminal::run(&nodes, "--ttl 30s", command, STOPPED_THEN_FG);
    terminal.press(CTRL_Z);
    assert_eq!(terminal.shows("stopped "), "stopped 148");
    assert!(nodes_holding(&nodes) >= 2);
    terminal.type_line("continue");
    terminal.type_line("go");
    terminal.shows("continued");
    assert_eq!(terminal.shows("status"), "status 4");
    assert_eq!(nodes_holding(&nodes), 0);
}

#[test]
fn suspended_command_is_killed_before_the_next_holder_begins() {
    let nodes = Nodes::start(3);
    // The watchdog sends SIGTERM and SIGCONT. The command ignores SIGTERM, so only SIGKILL ends it.
    let command = "trap \"\" TERM; echo ready; echo pid $$; while :; do sleep 0.01; done";
    let mut terminal = Terminal::run(&nodes, "--ttl 5s", command, STOPPED_THEN_FG);
    let pid = crate::common::pid(terminal.shows("pid ").trim_start_matches("pid "));
    terminal.press(CTRL_Z);
    assert_eq!(terminal.shows("stopped "), "stopped 148");
    let next = format!("kill -0 {} 2>/dev/null && echo overlap; echo ran", pid.as_raw_pid());
    let output = run_script(&nodes, &["--wait", "10s"], &next).output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (0, "ran\n"));
    wait_until_ended(pid);
    terminal.type_line("continue");
    terminal.shows("the command was stopped");
    assert_eq!(terminal.shows("status"), "status 120");
}

#[test]
fn rest_of_a_pipeline_survives_the_loss_of_the_lock() {
    let nodes = Nodes::start(1);
    let script = "set -o pipefail
                  $Q k -- sh -c 'echo ready; while :; do sleep 0.01; done' | { cat; echo cat ended; }
                  echo status $?";
    let terminal = Terminal::start(&nodes, "--ttl 1s", script);
    terminal.shows("ready");
    exec(&nodes[0], &["DEL", "k"]);
    terminal.shows("cat ended");
    assert_eq!(terminal.shows("status"), "status 120");
}

#[test]
fn revocation_needs_a_yes_and_stands_when_interrupted() {
    let nodes = Nodes::start(3);
    let holder = Holder::start(&nodes, &["--ttl", "30s", "--owner", "web-3"]);
    let script = "\"$QUORLOCK\" revoke k; echo status $?; \"$QUORLOCK\" revoke k; echo status $?";
    let mut terminal = Terminal::start(&nodes, "", script);
    terminal.shows("web-3, fence ");
    terminal.type_line("n");
    terminal.shows("nothing was revoked");
    assert_eq!(terminal.shows("status"), "status 125");
    assert_eq!(nodes_revoked(&nodes), 0);
    terminal.shows("web-3, fence ");
    terminal.type_line("y");
    terminal.shows("revoked from web-3, ");
    eventually(PATIENCE, "the lock is revoked", || nodes_revoked(&nodes) == 3);
    terminal.press(CTRL_C);
    terminal.shows("interrupted: the revocation stands, and the lock ends within ");
    assert_eq!(terminal.shows("status"), "status 130");
    holder.release();
}
