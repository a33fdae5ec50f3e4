//! `make install`: the installed files work, and a running server survives the installation.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{PATIENCE, QUORLOCK, Running, assert_error, code, stderr, stdout};
use quorlock_testkit::{Server, eventually, module_path};
use redis::Value;
use rustix::process::Signal;
use tempfile::TempDir;

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
    let mut up = Running::start(Command::new(&program).args(["up", "-n", "1"]));
    let nodes = up.nodes();
    let mut client = redis::Client::open(&*nodes).unwrap().get_connection().unwrap();
    let modules: Value = redis::cmd("MODULE").arg("LIST").query(&mut client).unwrap();
    let path = prefix.module().canonicalize().unwrap();
    assert!(format!("{modules:?}").contains(path.to_str().unwrap()), "{modules:?}");

    let mut run = Command::new(&program);
    let output = run.args(["run", "k", "--nodes", &nodes, "--", "echo", "done"]).output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (0, "done\n"), "{}", stderr(&output));
    up.signal(Signal::TERM);
    assert_eq!(code(up.wait_for_end().status), 0);
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
}

/// The baseline of the test above: `cp` writes over the file of the module.
#[test]
fn running_server_crashes_when_its_module_is_overwritten() {
    let prefix = Installation::new();
    prefix.install();
    let server = prefix.start_server();
    let copied =
        Command::new("cp").arg(module_path().unwrap()).arg(prefix.module()).status().unwrap();
    assert!(copied.success());
    eventually(PATIENCE, "the server crashes", || {
        let _ = grants(&server, "after");
        !server.is_running()
    });
}

#[test]
fn changed_configuration_survives_reinstallation_and_removal() {
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
}

#[test]
fn missing_build_is_an_error_that_says_what_to_do() {
    let prefix = Installation::new();
    fs::remove_file(prefix.built.path().join("libquorlock.so")).unwrap();
    let output = prefix.run(&[]);
    assert_error(&output, 1, "make build");
    assert!(prefix.files().is_empty());
}
