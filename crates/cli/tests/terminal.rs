//! The program in a real terminal: `quorlock run` and `quorlock revoke` in the foreground with
//! Ctrl-C, Ctrl-Z and input, and the screen of `quorlock top`.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::*;
use quorlock_testkit::{Nodes, eventually, holds_within};
use rustix::process::{Pid, Signal, kill_process};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
const ENTER: &str = "\r";
const ROWS: u16 = 30;
const COLUMNS: u16 = 110;

/// Prints its arguments if the terminal is in the state that a shell needs.
const IN_SHELL: &str =
    "in_shell() { stty -a | grep -q '^isig icanon iexten echo ' && echo \"$@\"; }";
const STATUS: &str = "echo status $?";
/// Shows that the command has stopped, and continues it after a line of input.
const STOPPED_THEN_FG: &str = "echo stopped $?; read line; fg >/dev/null; echo status $?";

/// A shell with job control in a terminal.
struct Terminal {
    script: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Runs a script in a shell. In the script, `$Q` is `quorlock` and `$TOP` is `quorlock
    /// top`, on these nodes.
    fn start(nodes: &Nodes, script: &str) -> Self {
        let script = format!("stty rows {ROWS} cols {COLUMNS}; {IN_SHELL}; {script}");
        let mut command = Command::new("script");
        let line = "exec env --default-signal bash --norc -mc \"$SCRIPT\"";
        command.args(["-qec", line, "/dev/null"]).env("SCRIPT", script).env("SHELL", "/bin/sh");
        command.env("QUORLOCK_NODES", nodes.urls().join(",")).env("TERM", "xterm-256color");
        command.env("Q", QUORLOCK).env("TOP", format!("{QUORLOCK} top --interval 100ms"));
        let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let keyboard = script.stdin.take().unwrap();
        let mut output = script.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let parser = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                parser.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { script, keyboard, screen }
    }

    /// Starts this command under the lock `k`, and waits until it prints `ready`. Once the command
    /// has ended or stopped, the shell runs `rest`.
    #[track_caller]
    fn run(nodes: &Nodes, options: &str, command: &str, rest: &str) -> Self {
        let terminal =
            Self::start(nodes, &format!("$Q run {options} k -- sh -c '{command}'\n{rest}"));
        terminal.shows("ready");
        terminal
    }

    /// Waits for this text on the screen, and returns its line.
    #[track_caller]
    fn shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contents().contains(text));
        self.contents()
            .lines()
            .find(|line| line.contains(text))
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    fn contents(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the terminal shows the shell again.
    #[track_caller]
    fn until_left(&self) {
        self.until("the screen of the shell", |screen| {
            !screen.alternate_screen() && !screen.hide_cursor()
        });
    }

    /// Waits until the screen meets the condition, which `what` describes.
    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        let holds = || is_so(self.screen.lock().unwrap().screen());
        assert!(holds_within(PATIENCE, holds), "no {what}, but\n{}", self.contents());
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The child of the shell, which is the child of script(1).
    fn top(&self) -> Pid {
        let child_of = |parent| children_of(parent)[0];
        child_of(child_of(Pid::from_child(&self.script)))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn ctrl_c_reaches_the_command_once_and_its_exit_code_reaches_the_shell() {
    let nodes = Nodes::start(3);
    let command = "trap \"echo INT\" INT; echo ready; read go; read go; echo go $go; exit 5";
    let mut terminal = Terminal::run(&nodes, "", command, STATUS);
    terminal.press(CTRL_C);
    terminal.shows("INT");
    terminal.press("first\n");
    terminal.press("second\n");
    // A second INT would interrupt the second `read`, and `go` would be empty.
    terminal.until("a line of input", |screen| {
        ["go first", "go second"].iter().any(|line| screen.contents().contains(line))
    });
    terminal.shows("status 5");
    assert_eq!(nodes_holding(&nodes), 0);
}

#[test]
fn ctrl_z_stops_the_command_and_fg_continues_it() {
    let nodes = Nodes::start(3);
    let command = "echo ready; while ! read go; do :; done; echo continued; exit 4";
    let mut terminal = Terminal::run(&nodes, "--ttl 30s", command, STOPPED_THEN_FG);
    terminal.press(CTRL_Z);
    terminal.shows("stopped 148");
    assert!(nodes_holding(&nodes) >= 2);
    terminal.press("continue\n");
    terminal.press("go\n");
    terminal.shows("continued");
    terminal.shows("status 4");
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
    terminal.shows("stopped 148");
    let next = format!("kill -0 {} 2>/dev/null && echo overlap; echo ran", pid.as_raw_pid());
    let output = run_script(&nodes, &["--wait", "10s"], &next).output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (0, "ran\n"));
    wait_until_ended(pid);
    terminal.press("continue\n");
    terminal.shows("the command was stopped");
    terminal.shows("status 120");
}

#[test]
fn rest_of_a_pipeline_survives_the_loss_of_the_lock() {
    let nodes = Nodes::start(1);
    let script = "set -o pipefail
                  $Q run --ttl 1s k -- sh -c 'echo ready; while :; do sleep 0.01; done' | { cat; echo cat ended; }
                  echo status $?";
    let terminal = Terminal::start(&nodes, script);
    terminal.shows("ready");
    exec(&nodes[0], &["DEL", "k"]);
    terminal.shows("cat ended");
    terminal.shows("status 120");
}

#[test]
fn revocation_needs_a_yes_and_stands_when_interrupted() {
    let nodes = Nodes::start(3);
    let holder = Holder::start(&nodes, &["--ttl", "30s", "--owner", "web-3"]);
    wait_until_all_hold(&nodes);
    let script = "$Q revoke k; echo first $?; $Q revoke k; echo second $?";
    let mut terminal = Terminal::start(&nodes, script);
    terminal.shows("web-3, fence ");
    terminal.press("n\n");
    terminal.shows("nothing was revoked");
    terminal.shows("first 125");
    assert_eq!(nodes_revoked(&nodes), 0);
    terminal.until("a second question", |screen| {
        screen.contents().matches("web-3, fence ").count() == 2
    });
    terminal.press("y\n");
    terminal.shows("revoked from web-3, ");
    eventually(PATIENCE, "the lock is revoked", || nodes_revoked(&nodes) == 3);
    terminal.press(CTRL_C);
    terminal.shows("interrupted: the revocation stands, and the lock ends within ");
    terminal.shows("second 130");
    holder.release();
}

fn acquire(nodes: &Nodes, key: &str, owner: &str) {
    let words = ["LOCK.ACQUIRE", key, "token", "60000", "FENCE", "7", "OWNER", owner];
    nodes.iter().for_each(|node| exec(node, &words));
}

#[test]
fn new_lock_is_shown_escaped_and_q_restores_the_terminal() {
    let nodes = Nodes::start(3);
    acquire(&nodes, "orders\x1b]0;pwned\x07", "\x1b[31mred\u{202e}");
    let mut terminal = Terminal::start(&nodes, "$TOP; in_shell status $?");
    terminal.shows("3 of 3 nodes vote");
    // The terminal would obey these codes and not show them.
    terminal.shows(r"orders\u{1b}]0;pwned\u{7}");
    terminal.shows(r"\u{1b}[31mred\u{202e}");
    acquire(&nodes, "nightly", "batch");
    terminal.shows("nightly");
    terminal.press("/nightly");
    terminal.press(ENTER);
    terminal.press(ENTER);
    terminal.shows("unless it is extended");
    terminal.press("\x1b");
    terminal.press("q");
    terminal.until_left();
    terminal.shows("status 0");
}

#[test]
fn signal_restores_the_terminal() {
    let nodes = Nodes::start(1);
    for (signal, status) in
        [(Signal::TERM, "status 143"), (Signal::HUP, "status 129"), (Signal::INT, "status 130")]
    {
        let terminal = Terminal::start(&nodes, "$TOP; in_shell status $?");
        terminal.shows("1 of 1 nodes vote");
        kill_process(terminal.top(), signal).unwrap();
        terminal.until_left();
        terminal.shows(status);
    }
}

/// Ctrl-Z stops the program the first time, and a signal of another process the second time.
#[test]
fn stopped_program_leaves_the_terminal_to_the_shell_and_fg_brings_it_back() {
    let nodes = Nodes::start(1);
    let mut terminal = Terminal::start(
        &nodes,
        "$TOP; in_shell stopped 1; read line; fg; in_shell stopped 2; read line; fg; in_shell status $?",
    );
    for by_key in [true, false] {
        terminal.shows("1 of 1 nodes vote");
        if by_key {
            terminal.press(CTRL_Z);
        } else {
            kill_process(terminal.top(), Signal::TSTP).unwrap();
        }
        terminal.until_left();
        terminal.shows(if by_key { "stopped 1" } else { "stopped 2" });
        terminal.press("x\n");
    }
    terminal.shows("1 of 1 nodes vote");
    terminal.press("q");
    terminal.shows("status 0");
}

/// With `--interval 100ms` alone, the program would list the locks up to ten times a second.
#[test]
fn ten_thousand_locks_are_listed_every_three_seconds() {
    const LOCKS: u64 = 10_000;
    let nodes = Nodes::start_with(1, |_, node| node.arg("lock.max-ttl", 3_600_000)).unwrap();
    let mut pipe = redis::pipe();
    for index in 0..LOCKS {
        let key = format!("orders/{index:05}");
        pipe.cmd("LOCK.ACQUIRE").arg(&[&key, "token", "3600000", "OWNER", "web-3"]).ignore();
    }
    pipe.exec(&mut nodes[0].connection()).unwrap();
    let mut terminal = Terminal::start(&nodes, "$TOP --node-timeout 10s");
    let title = terminal.shows("10000 locks");
    assert!(title.ends_with("every 3.0 s"), "{title}");
    let once = calls(&nodes[0], "lock.scan");
    eventually(PATIENCE, "they are listed again", || calls(&nodes[0], "lock.scan") > once);
    thread::sleep(Duration::from_secs(1));
    let twice = calls(&nodes[0], "lock.scan");
    assert!(twice <= 2 * once, "{once} LOCK.SCAN the first time, {twice} after a second more");
    terminal.press("\x1b[F");
    terminal.shows("orders/09999");
}
