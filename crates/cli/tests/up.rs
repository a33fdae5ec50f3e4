//! `quorlock up`, which starts masters on this machine.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{
    LONG_NODE_TIMEOUT, QUORLOCK, Running, assert_contains, assert_error, assert_ok, code, is_alive,
    pid, quorlock, stderr,
};
use redis::Client;
use rustix::process::{Pid, Signal};

#[test]
fn printed_line_names_masters_that_work() {
    let mut up = Running::start(quorlock().args(["up", "-n", "3"]));
    let line = up.line();
    assert_eq!(line.split(',').count(), 3);
    let script = format!("{line}; \"$0\" run k -- sh -c 'exit 42'");
    let mut shell = Command::new("sh");
    let status = shell.arg("-c").arg(script).arg(QUORLOCK).status().unwrap();
    assert_eq!(code(status), 42);
}

#[test]
fn signals_stop_all_masters_and_delete_their_folders() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut up = Running::start(quorlock().args(["up", "-n", "3"]));
        let masters: Vec<_> = up.nodes().split(',').map(process_and_folder).collect();
        assert_eq!(masters.len(), 3);
        for (pid, folder) in &masters {
            assert!(is_alive(*pid) && folder.is_dir());
        }
        up.signal(signal);
        let output = up.wait_for_end();
        assert_eq!(code(output.status), 0);
        assert_contains(stderr(&output), "All masters are stopped");
        for (pid, folder) in &masters {
            assert!(!is_alive(*pid), "{signal:?}");
            assert!(!folder.exists(), "{signal:?}");
        }
    }
}

fn connect(url: &str) -> redis::Connection {
    Client::open(url).unwrap().get_connection().unwrap()
}

/// The process and the folder of the server at this URL.
fn process_and_folder(url: &str) -> (Pid, PathBuf) {
    let mut connection = connect(url);
    let info: String = redis::cmd("INFO").arg("server").query(&mut connection).unwrap();
    let process = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
    let (_, folder): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("dir").query(&mut connection).unwrap();
    (pid(process), folder.into())
}

#[test]
fn missing_server_or_module_is_an_error_that_says_what_to_do() {
    let refused = |options: &[&str], environment: Option<&str>, hints: &[&str]| {
        let mut command = quorlock();
        command.arg("up").args(options);
        if let Some(variable) = environment {
            command.env(variable, "/no/such/file");
        }
        let output = command.output().unwrap();
        assert!(output.stdout.is_empty());
        for hint in hints {
            assert_error(&output, 125, hint);
        }
    };
    refused(&["--server", "/no/such/file"], None, &["/no/such/file", "--server"]);
    refused(&["--module", "/no/such/file"], None, &["--module names /no/such/file", "cargo build"]);
    refused(&[], Some("QUORLOCK_SERVER"), &["/no/such/file", "QUORLOCK_SERVER"]);
    refused(&[], Some("QUORLOCK_MODULE"), &["/no/such/file", "QUORLOCK_MODULE", "--module"]);
    let mut without_any = Command::new(QUORLOCK);
    without_any.env("PATH", "/nowhere").env_remove("QUORLOCK_SERVER").arg("up");
    let output = without_any.output().unwrap();
    assert_error(&output, 125, "install");
}

#[test]
fn file_that_is_no_module_is_an_error_that_names_the_file() {
    let output = quorlock().args(["up", "-n", "1", "--module", "/bin/sh"]).output().unwrap();
    assert_error(&output, 125, "/bin/sh");
}

#[test]
fn invalid_number_of_masters_is_refused() {
    for n in ["0", "65", "-1", "x"] {
        assert_eq!(code(quorlock().args(["up", "-n", n]).output().unwrap().status), 125);
    }
}

/// Starts masters that keep their data in a folder. Returns the program and the list of nodes.
fn up_in(folder: &Path) -> (Running, String) {
    let mut up = Running::start(quorlock().args(["up", "-n", "3", "--keep"]).arg(folder));
    let nodes = up.nodes();
    (up, nodes)
}

/// Stops the masters, and returns the standard error of the program.
#[track_caller]
fn stop(up: Running) -> String {
    up.signal(Signal::INT);
    let output = up.wait_for_end();
    assert_ok(&output);
    stderr(&output).to_owned()
}

#[test]
fn kept_masters_keep_their_data_and_abstain_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("masters");
    let (up, nodes) = up_in(&folder);
    let connect_to_first = |nodes: &str| connect(nodes.split(',').next().unwrap());
    redis::cmd("SET").arg("a").arg("1").exec(&mut connect_to_first(&nodes)).unwrap();
    let run = |nodes: &str| {
        let mut run = quorlock();
        run.args(["run", "--no-wait"]).args(LONG_NODE_TIMEOUT);
        run.args(["--nodes", nodes, "k", "--", "true"]);
        let output = run.output().unwrap();
        (code(output.status), stderr(&output).to_owned())
    };
    assert_eq!(run(&nodes).0, 0);
    assert!(!stop(up).contains("forgotten"));

    let (up, nodes) = up_in(&folder);
    let kept: String = redis::cmd("GET").arg("a").query(&mut connect_to_first(&nodes)).unwrap();
    assert_eq!(kept, "1");
    let (code, error) = run(&nodes);
    assert_ne!(code, 0);
    assert!(error.contains("abstains"), "{error}");
    assert!(stop(up).contains("may have forgotten locks"));
}

#[test]
fn folder_is_used_by_one_program_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (up, _) = up_in(folder.path());
    let output = quorlock().args(["up", "-n", "1", "--keep"]).arg(folder.path()).output().unwrap();
    assert_error(&output, 125, "another `quorlock up`");
    stop(up);
    stop(up_in(folder.path()).0);
}

#[test]
fn masters_have_the_ports_that_follow_the_first() {
    let up_at = |n: &str, port: u16| {
        let mut command = quorlock();
        command.args(["up", "-n", n, "--port", &port.to_string()]);
        command
    };
    // Another program may take a free port before the masters start.
    let start = || {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port().min(u16::MAX - 3);
        drop(probe);
        let mut up = Running::start(&mut up_at("3", port));
        up.try_line().map(|line| (up, line, port))
    };
    let (up, line, port) = (0..10).find_map(|_| start()).unwrap();
    let urls: Vec<_> = (port..port + 3).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    assert_eq!(line, format!("export QUORLOCK_NODES={}", urls.join(",")));

    assert_error(&up_at("1", port).output().unwrap(), 125, "choose another --port");
    stop(up);
    assert_error(&up_at("3", 65_534).output().unwrap(), 125, "choose a smaller --port");
}

#[test]
fn valkey_server_alone_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let server = quorlock_testkit::find_server_binary().unwrap();
    std::os::unix::fs::symlink(server, folder.path().join("valkey-server")).unwrap();
    let mut command = Command::new(QUORLOCK);
    command.env("PATH", folder.path()).env_remove("QUORLOCK_SERVER").args(["up", "-n", "1"]);
    let mut up = Running::start(&mut command);
    assert!(up.line().starts_with("export QUORLOCK_NODES="));
    // Not SIGINT: the program ignores it when a shell runs the tests in the background.
    up.signal(Signal::TERM);
    assert_eq!(code(up.wait_for_end().status), 0);
}
