//! Helpers that run the program in a separate process group, as a service manager does, and that
//! ask the nodes about a lock.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use std::{iter, thread};

pub(crate) use quorlock_testkit::calls;
use quorlock_testkit::{Direction, Nodes, Proxy, Server, eventually, holds_within, info};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The time limit of every wait. Each step of a test takes less time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A node timeout for healthy nodes, which may answer late on a busy machine.
pub(crate) const LONG_NODE_TIMEOUT: [&str; 2] = ["--node-timeout", "1s"];

pub(crate) const QUORLOCK: &str = env!("CARGO_BIN_EXE_quorlock");

/// The program, without the configuration of the user who runs the tests.
pub(crate) fn quorlock() -> Command {
    // A shell that runs the tests in the background makes them and their children ignore SIGINT:
    // `env` restores the default.
    let mut command = Command::new("env");
    command.args(["--default-signal", QUORLOCK]);
    for variable in ["NODES", "KEY", "FENCE", "CONFIG", "USER", "PASSWORD"] {
        command.env_remove(format!("QUORLOCK_{variable}"));
    }
    command.env("XDG_CONFIG_HOME", "/nowhere").stdin(Stdio::null()).process_group(0);
    command
}

/// `quorlock SUBCOMMAND` with these nodes.
pub(crate) fn on_urls(urls: &[String], subcommand: &str) -> Command {
    let mut command = quorlock();
    command.arg(subcommand).arg("--nodes").arg(urls.join(","));
    command
}

pub(crate) fn on(nodes: &Nodes, subcommand: &str) -> Command {
    on_urls(&nodes.urls(), subcommand)
}

/// `quorlock run … k -- sh -c SCRIPT`.
pub(crate) fn run_script(nodes: &Nodes, options: &[&str], script: &str) -> Command {
    let mut command = on(nodes, "run");
    command.args(options).args(["k", "--", "sh", "-c", script]);
    command
}

pub(crate) fn start_script(nodes: &Nodes, options: &[&str], script: &str) -> Running {
    Running::start(&mut run_script(nodes, options, script))
}

/// The host and the port of a node on TCP.
pub(crate) fn address(node: &Server) -> String {
    node.url().trim_start_matches("redis://").trim_end_matches('/').to_owned()
}

pub(crate) fn urls_with(nodes: &Nodes, query: &str) -> Vec<String> {
    nodes.iter().map(|node| format!("{}?{query}", node.url())).collect()
}

/// A shell with these nodes and `quorlock` in its `PATH`, which ends when a line fails.
pub(crate) fn shell(script: &str, nodes: &str) -> Command {
    let folder = Path::new(QUORLOCK).parent().unwrap().display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", script]).env("PATH", path);
    shell.env("QUORLOCK_NODES", nodes).env("XDG_CONFIG_HOME", "/nowhere");
    shell
}

/// Runs a script on a machine that has this `/etc/quorlock.toml` and no other configuration, and
/// the programs of `make install` in `/usr/local/bin`, with the environment that cron sets.
pub(crate) fn from_cron(config: &Path, script: &str) -> Command {
    const PREPARE: &str = "mount -t tmpfs none /etc && cp \"$1\" /etc/quorlock.toml &&
        mount -t tmpfs none /usr/local/bin && ln -s \"$2\" /usr/local/bin/quorlock &&
        exec sh -e -c \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", PREPARE, "sh"]);
    command.arg(config).arg(QUORLOCK).arg(script);
    command.env_clear().envs([("HOME", "/nowhere"), ("LOGNAME", "root"), ("SHELL", "/bin/sh")]);
    command.env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

/// The output of a program, which is run again a few times while it ends with 122: on a busy
/// machine, the answers of a majority may be late.
pub(crate) fn output_retried_on_122(mut run: impl FnMut() -> Output) -> Output {
    let mut output = run();
    for _ in 0..4 {
        if output.status.code() != Some(122) {
            break;
        }
        output = run();
    }
    output
}

/// Runs a program until its output is right: on a busy machine, the answer of a node may be late.
#[track_caller]
pub(crate) fn output_until(command: &mut Command, is_right: impl Fn(&Output) -> bool) -> Output {
    let mut output = None;
    let is_right = || is_right(output.insert(command.output().unwrap()));
    assert!(holds_within(PATIENCE, is_right), "{output:?}");
    output.unwrap()
}

/// Acquires the lock `k` with `quorlock acquire`, on all nodes. Returns the handle.
#[track_caller]
pub(crate) fn acquire_everywhere(nodes: &Nodes, options: &[&str]) -> String {
    let mut handle = String::new();
    eventually(PATIENCE, "all nodes hold the lock", || {
        nodes.iter().for_each(|node| exec(node, &["DEL", "k"]));
        let output = on(nodes, "acquire").args(options).arg("k").output().unwrap();
        assert_ok(&output);
        stdout(&output).clone_into(&mut handle);
        // A node that the program reached too late does not get the lock later.
        holds_within(Duration::from_secs(1), || nodes_holding(nodes) == nodes.len())
    });
    handle
}

pub(crate) fn with_input(command: &mut Command, input: &str) -> Output {
    let mut running = Running::start(command);
    let stdin = running.stdin.take();
    stdin.expect("it is piped").write_all(input.as_bytes()).expect("the program reads");
    running.wait_for_end()
}

/// A running program. Dropping it sends SIGTERM first, so that the program can end its children.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    pub(crate) stdout: Lines,
    pub(crate) stderr: Lines,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program is there");
        let stdin = child.stdin.take();
        let stdout = Lines::of(child.stdout.take().expect("it is piped"));
        let stderr = Lines::of(child.stderr.take().expect("it is piped"));
        Self { child, stdin, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the next line of standard output.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.stdout.next().expect("there is a line of standard output")
    }

    #[track_caller]
    pub(crate) fn error_line(&self) -> String {
        self.stderr.next().expect("there is a line of standard error")
    }

    /// Waits for the next line of standard output, which is a process ID.
    #[track_caller]
    pub(crate) fn pid_line(&self) -> Pid {
        pid(&self.line())
    }

    /// Waits for the line that `quorlock up` prints, and returns its list of nodes.
    #[track_caller]
    pub(crate) fn nodes(&self) -> String {
        let line = self.line();
        line.strip_prefix("export QUORLOCK_NODES=").expect("the line names the nodes").to_owned()
    }

    pub(crate) fn say(&self, line: &str) {
        let mut stdin = self.stdin.as_ref().expect("standard input is piped, and stays open");
        writeln!(stdin, "{line}").expect("the command reads");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the program runs");
    }

    /// Waits until all writers to the output have ended, and returns the output not read yet.
    #[track_caller]
    pub(crate) fn wait_for_end(mut self) -> Output {
        let mut status = None;
        eventually(PATIENCE, "the program ends", || {
            status = self.child.try_wait().expect("the program is a child of the test");
            status.is_some()
        });
        Output {
            status: status.unwrap_or_default(),
            stdout: self.stdout.rest().into_bytes(),
            stderr: self.stderr.rest().into_bytes(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = self.pid();
        let mut has_ended = || !matches!(self.child.try_wait(), Ok(None));
        if !has_ended() {
            let _ = kill_process(pid, Signal::TERM);
            holds_within(PATIENCE, has_ended);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The lines of a pipe. A thread reads them, so that a test can wait with a time limit.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(pipe).lines().map_while(Result::ok);
            // Reads on after the end of the test: the program may not block.
            lines.for_each(|line| drop(sender.send(line)));
        });
        Self(receiver)
    }

    /// Waits for the next line. Returns `None` at the end.
    #[track_caller]
    pub(crate) fn next(&self) -> Option<String> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("nothing was printed within {} s", PATIENCE.as_secs())
            }
        }
    }

    #[track_caller]
    fn rest(&self) -> String {
        iter::from_fn(|| self.next()).map(|line| line + "\n").collect()
    }
}

/// A `quorlock run` that holds the lock `k` until [`Holder::release`].
pub(crate) struct Holder(Running);

impl Holder {
    pub(crate) fn start(nodes: &Nodes, options: &[&str]) -> Self {
        let running = start_script(nodes, options, "echo held; read go");
        assert_eq!(running.line(), "held");
        Self(running)
    }

    pub(crate) fn release(self) {
        self.0.say("go");
        assert_ok(&self.0.wait_for_end());
    }
}

#[track_caller]
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().expect("no signal ended the program")
}

pub(crate) fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).expect("the output is text")
}

pub(crate) fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).expect("the output is text")
}

#[track_caller]
pub(crate) fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "no {part:?} in {text}");
}

#[track_caller]
pub(crate) fn assert_ok(output: &Output) {
    assert_eq!(code(output.status), 0, "{}{}", stdout(output), stderr(output));
}

/// Asserts that the program ended with this code, and that standard error contains this text.
#[track_caller]
pub(crate) fn assert_error(output: &Output, expected: i32, text: &str) {
    assert_eq!(code(output.status), expected, "{}{}", stdout(output), stderr(output));
    assert_contains(stderr(output), text);
}

/// Asserts that the program waited in vain for a lock that is held, and ran no command.
#[track_caller]
pub(crate) fn assert_not_acquired(output: &Output) {
    // The code is 122 when the last request of the wait is answered too late.
    assert!([121, 122].contains(&code(output.status)), "{}: {}", output.status, stderr(output));
    assert_eq!(stdout(output), "");
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(output), stderr(output)))
}

pub(crate) fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("\n```{language}\n");
    page.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[track_caller]
pub(crate) fn pid(text: &str) -> Pid {
    let pid = text.parse().ok().and_then(Pid::from_raw);
    pid.unwrap_or_else(|| panic!("{text:?} is no process ID"))
}

/// Whether the process runs. A zombie does not.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z')))
}

#[track_caller]
pub(crate) fn wait_until_ended(process: Pid) {
    eventually(PATIENCE, "the process has ended", || !is_alive(process));
}

/// The only child of a `quorlock run` whose command runs.
#[track_caller]
pub(crate) fn watchdog_of(quorlock: Pid) -> Pid {
    let children = children_of(quorlock);
    let [watchdog] = children[..] else { panic!("not one child, but {children:?}") };
    watchdog
}

pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", parent.as_raw_pid()));
    let lists = threads.into_iter().flatten().flatten().filter_map(|thread| {
        let list = std::fs::read_to_string(thread.path().join("children")).ok()?;
        Some(list.split_whitespace().map(pid).collect::<Vec<_>>())
    });
    lists.flatten().collect()
}

/// A script that locks this file with `flock` until all of its processes have ended. Prints
/// `alone`, or `together` if another command has locked the file, and continues with `then`.
pub(crate) fn alone(file: &Path, then: &str) -> String {
    format!("exec 9>{}; flock -n 9 && echo alone || echo together; {then}", file.display())
}

/// The number of running nodes that have the key `k`.
pub(crate) fn nodes_holding(nodes: &Nodes) -> usize {
    nodes.iter().filter(|node| node.is_running() && has_key(node)).count()
}

/// The number of running nodes on which the lock `k` is revoked.
pub(crate) fn nodes_revoked(nodes: &Nodes) -> usize {
    let is_revoked = |node: &&Server| {
        let mut connection = node.connection();
        let fields: HashMap<String, redis::Value> =
            redis::cmd("LOCK.INSPECT").arg("k").query(&mut connection).unwrap_or_default();
        fields.get("revoked") == Some(&redis::Value::Int(1))
    };
    nodes.iter().filter(|node| node.is_running()).filter(is_revoked).count()
}

#[track_caller]
pub(crate) fn exec(server: &Server, words: &[&str]) {
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.connection()).unwrap();
}

/// Whether the node has the key `k`.
pub(crate) fn has_key(node: &Server) -> bool {
    redis::cmd("EXISTS").arg("k").query(&mut node.connection()).expect("the node runs")
}

#[track_caller]
pub(crate) fn wait_until_all_hold(nodes: &Nodes) {
    let all_hold = || nodes_holding(nodes) == nodes.len();
    eventually(PATIENCE, "all nodes hold the lock", all_hold);
}

#[track_caller]
pub(crate) fn wait_until_free(nodes: &Nodes) {
    eventually(PATIENCE, "no running node has the key", || nodes_holding(nodes) == 0);
}

/// A number in the output of `INFO lock`.
#[track_caller]
pub(crate) fn info_number(server: &Server, name: &str) -> u64 {
    info(&mut server.connection(), "lock", name).unwrap()
}

/// Three nodes, and a proxy in front of each.
pub(crate) struct Net {
    pub(crate) nodes: Nodes,
    pub(crate) proxies: Vec<Proxy>,
}

impl Net {
    pub(crate) fn start() -> Self {
        let nodes = Nodes::start(3);
        let proxies = nodes.iter().map(|node| Proxy::start(node.url())).collect();
        Self { nodes, proxies }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.proxies.iter().map(Proxy::url).collect()
    }

    pub(crate) fn run(&self, options: &[&str], script: &str) -> Running {
        let mut run = on_urls(&self.urls(), "run");
        run.args(["--node-timeout", "100ms"]).args(options);
        Running::start(run.args(["k", "--", "sh", "-c", script]))
    }

    #[track_caller]
    pub(crate) fn cut_off_a_majority(&self) {
        wait_until_all_hold(&self.nodes);
        self.proxies[..2].iter().for_each(|proxy| proxy.drop_bytes(Direction::ToServer));
    }

    /// Asserts that a process ends, and never runs after the lock has ended on the nodes.
    #[track_caller]
    pub(crate) fn assert_ends_before_the_lock(&self, process: Pid) {
        eventually(PATIENCE, "the process has ended", || {
            // The lock is checked first: a process that is still alive after the lock has ended
            // has outlived the lock.
            let holds = self.nodes.iter().take(2).all(has_key);
            let has_ended = !is_alive(process);
            assert!(holds || has_ended, "the process runs without the lock");
            has_ended
        });
    }
}

/// Runs a script that prints a process ID and, on SIGTERM, `TERM`. Then cuts off a majority. The
/// process must end before the lock, and the program must exit with 120. Returns the output after
/// `TERM`.
#[track_caller]
pub(crate) fn lose_lock_of(options: &[&str], script: &str) -> Output {
    let net = Net::start();
    let running = net.run(options, script);
    let process = running.pid_line();
    net.cut_off_a_majority();
    assert_eq!(running.line(), "TERM");
    net.assert_ends_before_the_lock(process);
    let output = running.wait_for_end();
    assert_eq!(code(output.status), 120);
    output
}
