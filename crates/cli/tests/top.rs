//! `quorlock top` in a real terminal, on real nodes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use quorlock_testkit::{Nodes, eventually};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const CTRL_Z: &str = "\x1a";
const ENTER: &str = "\r";
const ROWS: u16 = 30;
const COLUMNS: u16 = 110;

/// A shell with job control in a terminal.
struct Terminal {
    shell: KillOnDrop,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Runs a script in a shell. In the script, `$TOP` is `quorlock top` on these nodes.
    fn start(nodes: &Nodes, script: &str) -> Self {
        let (keyboard, mut shell) = shell_in_terminal(script);
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keyboard, size).unwrap();
        shell.env("TOP", format!("{QUORLOCK} top --interval 100ms"));
        shell.env("QUORLOCK_NODES", nodes.urls().join(",")).env("TERM", "xterm-256color");
        let shell = KillOnDrop(shell.spawn().unwrap());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let (mut output, parser, log) =
            (keyboard.try_clone().unwrap(), Arc::clone(&screen), Arc::clone(&written));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                log.lock().unwrap().extend(&bytes[..count]);
                parser.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { shell, keyboard, screen, written }
    }

    /// Waits for this text on the screen.
    #[track_caller]
    fn shows(&self, text: &str) {
        self.until(text, |screen| screen.contents().contains(text));
    }

    /// Waits until the terminal shows the shell again.
    #[track_caller]
    fn until_left(&self) {
        self.until("the screen of the shell", |screen| {
            !screen.alternate_screen() && !screen.hide_cursor()
        });
        eventually(PATIENCE, "the modes are those of the shell", || self.is_cooked());
    }

    /// Waits until the screen meets the condition, which `what` describes.
    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        let started = Instant::now();
        loop {
            let screen = self.screen.lock().unwrap();
            if is_so(screen.screen()) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "no {what}, but\n{}", screen.screen().contents());
            drop(screen);
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether the terminal is in the state that a shell needs.
    fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.keyboard).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    fn top(&self) -> Pid {
        let mut found = None;
        eventually(PATIENCE, "top runs", || {
            let mut processes = vec![Pid::from_child(&self.shell.0)];
            while let Some(process) = processes.pop() {
                let name = std::fs::read_to_string(format!("/proc/{}/comm", process.as_raw_pid()));
                if name.is_ok_and(|name| name.trim() == "quorlock") {
                    found = Some(process);
                }
                processes.extend(children_of(process));
            }
            found.is_some()
        });
        found.unwrap()
    }
}

fn acquire(nodes: &Nodes, key: &str, owner: &str) {
    let words = ["LOCK.ACQUIRE", key, "token", "60000", "FENCE", "7", "OWNER", owner];
    nodes.iter().for_each(|node| exec(node, &words));
}

#[test]
fn new_lock_is_shown_and_q_restores_the_terminal() {
    let nodes = Nodes::start(3);
    acquire(&nodes, "orders/42", "web-3");
    let mut terminal = Terminal::start(&nodes, "$TOP; echo status $?");
    terminal.shows("3 of 3 nodes vote");
    terminal.shows("orders/42");
    assert!(!terminal.is_cooked());
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
fn text_of_clients_cannot_control_the_terminal() {
    let nodes = Nodes::start(1);
    acquire(&nodes, "\x1b]0;pwned\x07", "\x1b[31mred\u{202e}");
    let mut terminal = Terminal::start(&nodes, "$TOP; echo status $?");
    terminal.shows("pwned");
    terminal.shows("red");
    let shown = String::from_utf8_lossy(&terminal.written.lock().unwrap()).into_owned();
    assert!(!shown.contains("\x1b]0;pwned"));
    assert!(!shown.contains(['\u{202e}', '\x07']));
    terminal.press("q");
    terminal.shows("status 0");
}

#[test]
fn signal_restores_the_terminal() {
    let nodes = Nodes::start(1);
    for (signal, status) in
        [(Signal::TERM, "status 143"), (Signal::HUP, "status 129"), (Signal::INT, "status 130")]
    {
        let terminal = Terminal::start(&nodes, "$TOP; echo status $?");
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
        "$TOP; echo stopped 1; read line; fg; echo stopped 2; read line; fg; echo status $?",
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

/// Measures from the beginning of the first listing to the beginning of the next. With `--interval
/// 100ms` alone, the program would list the locks up to ten times a second.
#[test]
fn listing_ten_thousand_locks_takes_less_than_a_hundredth_of_a_node() {
    const LOCKS: u64 = 10_000;
    let nodes = Nodes::start_with(1, |_, node| node.arg("lock.max-ttl", 3_600_000)).unwrap();
    let mut pipe = redis::pipe();
    for index in 0..LOCKS {
        let key = format!("orders/{index:05}");
        pipe.cmd("LOCK.ACQUIRE").arg(&[&key, "token", "3600000", "OWNER", "web-3"]).ignore();
    }
    pipe.exec(&mut nodes[0].connection()).unwrap();
    let spent_on_scans = || command_stats(&nodes[0], "lock.scan");
    let mut terminal = Terminal::start(&nodes, "$TOP --node-timeout 10s");
    let mut first = Instant::now();
    eventually(PATIENCE, "the first listing has begun", || {
        let before = Instant::now();
        let has_begun = spent_on_scans().0 > 0;
        if !has_begun {
            first = before;
        }
        has_begun
    });
    terminal.shows("10000 locks");
    let (mut spent, mut before_next) = (spent_on_scans(), Instant::now());
    let calls = spent.0;
    // The program responds to keys in the meantime.
    terminal.press("\x1b[F");
    terminal.shows("orders/09999");
    loop {
        // The program counts the INFO calls here as its own. Without this pause, it lists later.
        thread::sleep(Duration::from_millis(100));
        let latest = spent_on_scans();
        if latest.0 > calls {
            break;
        }
        (spent, before_next) = (latest, Instant::now());
        assert!(first.elapsed() < 3 * PATIENCE, "the next listing does not begin");
    }
    let share = spent.1.as_secs_f64() / before_next.duration_since(first).as_secs_f64();
    println!("LOCK.SCAN took {:.2} % of the node", share * 100.0);
    assert!(share < 0.01, "{share}");
}

#[test]
fn missing_terminal_is_an_error_that_says_what_to_use() {
    let nodes = Nodes::start(1);
    let output = on(&nodes, "top").output().unwrap();
    assert_error(&output, 125, "quorlock list --json");
}
