//! `quorlock up`, which starts nodes on this machine; `scripts/demo`, which uses it; and `make
//! install`: the installed program starts the installed module, and a running server survives an
//! installation.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::*;
use quorlock_testkit::{Server, eventually, info, module_path};
use redis::{Client, Value};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

#[test]
fn signals_stop_all_nodes_and_delete_their_folders() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let up = Running::start(quorlock().args(["up", "-n", "3"]));
        let nodes: Vec<_> = up.nodes().split(',').map(process_and_folder).collect();
        assert_eq!(nodes.len(), 3);
        for (pid, folder) in &nodes {
            assert!(is_alive(*pid) && folder.is_dir());
        }
        up.signal(signal);
        let output = up.wait_for_end();
        assert_eq!(code(output.status), 0);
        assert_contains(stderr(&output), "All nodes are stopped");
        for (pid, folder) in &nodes {
            assert!(!is_alive(*pid), "{signal:?}");
            assert!(!folder.exists(), "{signal:?}");
        }
    }
}

fn connect_to(url: &str) -> redis::Connection {
    Client::open(url).unwrap().get_connection().unwrap()
}

/// The process and the folder of the server at this URL.
fn process_and_folder(url: &str) -> (Pid, PathBuf) {
    let mut connection = connect_to(url);
    let process = info(&mut connection, "server", "process_id").unwrap();
    let (_, folder): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("dir").query(&mut connection).unwrap();
    (pid(&process.to_string()), folder.into())
}

/// Starts nodes that keep their data in a folder. Returns the program and the list of nodes.
fn up_in(folder: &Path) -> (Running, String) {
    let up = Running::start(quorlock().args(["up", "-n", "3", "--keep"]).arg(folder));
    let nodes = up.nodes();
    (up, nodes)
}

/// Stops the nodes, and returns the standard error of the program.
#[track_caller]
fn stop(up: Running) -> String {
    // Not SIGINT: the program ignores it when a shell runs the tests in the background.
    up.signal(Signal::TERM);
    let output = up.wait_for_end();
    assert_ok(&output);
    stderr(&output).to_owned()
}

#[test]
fn kept_nodes_belong_to_one_program_and_abstain_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("nodes");
    let (up, nodes) = up_in(&folder);
    let connect_to_first = |nodes: &str| connect_to(nodes.split(',').next().unwrap());
    redis::cmd("SET").arg("a").arg("1").exec(&mut connect_to_first(&nodes)).unwrap();
    let run = |nodes: &str| {
        let mut run = quorlock();
        run.args(["run", "--no-wait"]).args(LONG_NODE_TIMEOUT);
        run.args(["--nodes", nodes, "k", "--", "true"]);
        let output = run.output().unwrap();
        (code(output.status), stderr(&output).to_owned())
    };
    assert_eq!(run(&nodes).0, 0);
    let second = quorlock().args(["up", "-n", "1", "--keep"]).arg(&folder).output().unwrap();
    assert_error(&second, 125, "another `quorlock up`");
    assert!(!stop(up).contains("forgotten"));

    let (up, nodes) = up_in(&folder);
    let kept: String = redis::cmd("GET").arg("a").query(&mut connect_to_first(&nodes)).unwrap();
    assert_eq!(kept, "1");
    let (code, error) = run(&nodes);
    assert_eq!(code, 122);
    assert!(error.contains("no majority of the nodes agreed: "), "{error}");
    assert!(error.contains("abstains"), "{error}");
    assert!(stop(up).contains("may have forgotten locks"));
}

#[test]
fn nodes_have_the_ports_that_follow_the_first() {
    let up_at = |n: &str, port: u16| {
        let mut command = quorlock();
        command.args(["up", "-n", n, "--port", &port.to_string()]);
        command
    };
    // Another program may take a free port before the nodes start.
    let start = || {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port().min(u16::MAX - 3);
        drop(probe);
        let up = Running::start(&mut up_at("3", port));
        up.stdout.next().map(|line| (up, line, port))
    };
    let (up, line, port) = (0..10).find_map(|_| start()).unwrap();
    let urls: Vec<_> = (port..port + 3).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    assert_eq!(line, format!("export QUORLOCK_NODES={}", urls.join(",")));

    assert_error(&up_at("1", port).output().unwrap(), 125, "choose another --port");
    stop(up);
}

#[test]
fn valkey_server_alone_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let server = quorlock_testkit::find_server_binary().unwrap();
    std::os::unix::fs::symlink(server, folder.path().join("valkey-server")).unwrap();
    let mut command = Command::new(QUORLOCK);
    command.env("PATH", folder.path()).env_remove("QUORLOCK_SERVER").args(["up", "-n", "1"]);
    let up = Running::start(&mut command);
    up.nodes();
    stop(up);
}

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo");

fn demo(options: &[&str]) -> Output {
    let mut demo = Command::new(DEMO);
    demo.env("QUORLOCK", QUORLOCK).stdin(Stdio::null()).args(options).output().unwrap()
}

#[test]
fn no_increment_is_lost_under_the_lock() {
    let output = demo(&[]);
    let said = stdout(&output);
    assert_eq!((code(output.status), stderr(&output)), (0, ""), "{said}");
    for result in ["Node 3 killed", "200 after 200", "none lost", "strictly growing: yes"] {
        assert!(said.contains(result), "no {result} in {said}");
    }
}

#[test]
fn increments_are_lost_without_the_lock_and_the_demo_fails() {
    let output = demo(&["--without-lock"]);
    assert_eq!(code(output.status), 1, "{}", stdout(&output));
    assert_contains(stdout(&output), "LOST");
}

const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install");

/// The folder to install to, and the built files to install.
struct Installation {
    root: TempDir,
    built: TempDir,
}

impl Installation {
    fn new() -> Self {
        let built = tempfile::tempdir().unwrap();
        fs::copy(QUORLOCK, built.path().join("quorlock")).unwrap();
        fs::copy(module_path().unwrap(), built.path().join("libquorlock.so")).unwrap();
        Self { root: tempfile::tempdir().unwrap(), built }
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut install = Command::new(INSTALL);
        install.args(words).env("BUILT", self.built.path()).env("DESTDIR", self.root.path());
        install.env("PREFIX", "/usr").output().unwrap()
    }

    fn install(&self) {
        let output = self.run(&[]);
        assert_eq!((code(output.status), stderr(&output)), (0, ""));
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn module(&self) -> PathBuf {
        self.path("usr/lib/quorlock/libquorlock.so")
    }

    fn start_server(&self) -> Server {
        let builder = Server::builder().module(self.module());
        let server = builder.arg("lock.rejoin-delay", 0).start().unwrap();
        assert!(grants(&server, "before"));
        server
    }

    /// The installed files, relative to `root`.
    fn files(&self) -> Vec<String> {
        let mut find = Command::new("find");
        find.arg(self.root.path()).args(["-type", "f", "-printf", "%P\n"]);
        let output = find.output().unwrap();
        let mut files: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
        files.sort();
        files
    }
}

/// Whether the server runs, and grants this key.
fn grants(server: &Server, key: &str) -> bool {
    let Ok(mut connection) = server.try_connection() else { return false };
    let reply = redis::cmd("LOCK.ACQUIRE").arg(key).arg("token").arg(60_000).query(&mut connection);
    matches!(reply, Ok(Value::Int(_)))
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
fn installed_program_finds_the_installed_module() {
    let prefix = Installation::new();
    prefix.install();
    let program = prefix.path("usr/bin/quorlock");
    let up = Running::start(Command::new(&program).args(["up", "-n", "1"]));
    let nodes = up.nodes();
    let modules: Value = redis::cmd("MODULE").arg("LIST").query(&mut connect_to(&nodes)).unwrap();
    let path = prefix.module().canonicalize().unwrap();
    assert!(format!("{modules:?}").contains(path.to_str().unwrap()), "{modules:?}");

    let mut run = Command::new(&program);
    let output = run.args(["run", "k", "--nodes", &nodes, "--", "echo", "done"]).output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (0, "done\n"), "{}", stderr(&output));
    stop(up);
}

#[test]
fn running_server_survives_an_installation_over_its_module() {
    let prefix = Installation::new();
    prefix.install();
    let server = prefix.start_server();
    let old = inode(&prefix.module());
    prefix.install();
    assert_ne!(inode(&prefix.module()), old, "the module is another file now");
    for n in 0..100 {
        assert!(grants(&server, &format!("after/{n}")));
    }
    assert!(server.is_running());

    // The baseline: `cp` writes over the file of the module.
    let server = prefix.start_server();
    let mut cp = Command::new("cp");
    assert!(cp.arg(module_path().unwrap()).arg(prefix.module()).status().unwrap().success());
    eventually(PATIENCE, "the server crashes", || {
        let _ = grants(&server, "after");
        !server.is_running()
    });
}

#[test]
fn changed_configuration_survives_and_a_missing_build_changes_nothing() {
    let prefix = Installation::new();
    prefix.install();
    let configuration = prefix.path("etc/quorlock/main.conf");
    let text = fs::read_to_string(&configuration).unwrap();
    assert!(text.contains("\nloadmodule /usr/lib/quorlock/libquorlock.so\n"), "{text}");
    assert_eq!(fs::metadata(&configuration).unwrap().mode() & 0o777, 0o640);
    let unit =
        fs::read_to_string(prefix.path("usr/lib/systemd/system/quorlock-node@.service")).unwrap();
    assert!(unit.contains("/etc/quorlock/%i.conf"), "{unit}");
    let files = prefix.files();
    assert!(files.contains(&"usr/share/man/man1/quorlock-run.1".to_owned()), "{files:?}");
    assert!(!files.iter().any(|file| file.contains(".new")), "{files:?}");

    fs::write(&configuration, "port 7001\n").unwrap();
    prefix.install();
    assert_eq!(fs::read_to_string(&configuration).unwrap(), "port 7001\n");
    assert_eq!(prefix.files(), files);
    assert_eq!(code(prefix.run(&["--uninstall"]).status), 0);
    assert_eq!(prefix.files(), ["etc/quorlock/main.conf"]);

    fs::remove_file(prefix.built.path().join("libquorlock.so")).unwrap();
    assert_error(&prefix.run(&[]), 1, "make build");
    assert_eq!(prefix.files(), ["etc/quorlock/main.conf"]);
}
