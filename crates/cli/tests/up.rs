//! `quorlock up`, which starts masters on this machine.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{QUORLOCK, Running, code, is_alive, quorlock, stderr};
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
        let output = up.end();
        assert_eq!(code(output.status), 0);
        assert!(stderr(&output).contains("All masters are stopped"), "{}", stderr(&output));
        for (pid, folder) in &masters {
            assert!(!is_alive(*pid), "{signal:?}");
            assert!(!folder.exists(), "{signal:?}");
        }
    }
}

/// The process and the folder of the server at this URL.
fn process_and_folder(url: &str) -> (Pid, PathBuf) {
    let mut connection = Client::open(url).unwrap().get_connection().unwrap();
    let info: String = redis::cmd("INFO").arg("server").query(&mut connection).unwrap();
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
    let (_, folder): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("dir").query(&mut connection).unwrap();
    (Pid::from_raw(pid.parse().unwrap()).unwrap(), folder.into())
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
        assert_eq!(code(output.status), 125);
        assert!(output.stdout.is_empty());
        for hint in hints {
            assert!(stderr(&output).contains(hint), "no {hint} in {}", stderr(&output));
        }
    };
    refused(&["--server", "/no/such/file"], None, &["/no/such/file", "--server"]);
    refused(&["--module", "/no/such/file"], None, &["--module names /no/such/file", "cargo build"]);
    refused(&[], Some("QUORLOCK_SERVER"), &["/no/such/file", "QUORLOCK_SERVER"]);
    refused(&[], Some("QUORLOCK_MODULE"), &["/no/such/file", "QUORLOCK_MODULE", "--module"]);
    let mut without_any = Command::new(QUORLOCK);
    without_any.env("PATH", "/nowhere").env_remove("QUORLOCK_SERVER").arg("up");
    let output = without_any.output().unwrap();
    assert_eq!(code(output.status), 125);
    assert!(stderr(&output).contains("install"), "{}", stderr(&output));
}

#[test]
fn file_that_is_no_module_is_an_error_that_names_the_file() {
    let output = quorlock().args(["up", "-n", "1", "--module", "/bin/sh"]).output().unwrap();
    assert_eq!(code(output.status), 125);
    assert!(stderr(&output).contains("/bin/sh"), "{}", stderr(&output));
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

/// Stops the masters. Returns the standard error of the program.
#[track_caller]
fn stop(up: Running) -> String {
    up.signal(Signal::INT);
    let output = up.end();
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
    stderr(&output).to_owned()
}

fn get(url: &str, key: &str) -> Option<String> {
    redis::cmd("GET")
        .arg(key)
        .query(&mut Client::open(url).unwrap().get_connection().unwrap())
        .unwrap()
}

#[test]
fn kept_masters_keep_their_data_and_abstain_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("masters");
    let (up, nodes) = up_in(&folder);
    let url = nodes.split(',').next().unwrap();
    redis::cmd("SET")
        .arg("a")
        .arg("1")
        .exec(&mut Client::open(url).unwrap().get_connection().unwrap())
        .unwrap();
    let run = |nodes: &str| {
        let output = quorlock()
            .args(["run", "--no-wait", "--nodes", nodes, "k", "--", "true"])
            .output()
            .unwrap();
        (code(output.status), stderr(&output).to_owned())
    };
    assert_eq!(run(&nodes).0, 0);
    assert!(!stop(up).contains("forgotten"));

    let (up, nodes) = up_in(&folder);
    assert_eq!(get(nodes.split(',').next().unwrap(), "a").as_deref(), Some("1"));
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
    assert_eq!(code(output.status), 125);
    assert!(stderr(&output).contains("another `quorlock up`"), "{}", stderr(&output));
    stop(up);
    stop(up_in(folder.path()).0);
}

#[test]
fn masters_have_the_ports_that_follow_the_first() {
    // Another program may take a free port before the masters start.
    let start = || {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port().min(u16::MAX - 3);
        drop(probe);
        let mut up =
            Running::start(quorlock().args(["up", "-n", "3", "--port", &port.to_string()]));
        up.try_line().map(|line| (up, line, port))
    };
    let (up, line, port) = (0..10).find_map(|_| start()).unwrap();
    let urls: Vec<_> = (port..port + 3).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    assert_eq!(line, format!("export QUORLOCK_NODES={}", urls.join(",")));

    let taken = quorlock().args(["up", "-n", "1", "--port", &port.to_string()]).output().unwrap();
    assert_eq!(code(taken.status), 125);
    assert!(stderr(&taken).contains("choose another --port"), "{}", stderr(&taken));
    stop(up);
    let beyond = quorlock().args(["up", "-n", "3", "--port", "65534"]).output().unwrap();
    assert_eq!(code(beyond.status), 125);
    assert!(stderr(&beyond).contains("choose a smaller --port"), "{}", stderr(&beyond));
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
    assert_eq!(code(up.end().status), 0);
}
