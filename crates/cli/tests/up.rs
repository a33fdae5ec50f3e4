//! `quorlock up`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so at once")]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{QUORLOCK, Running, code, is_alive, quorlock, stderr};
use redis::Client;
use rustix::process::{Pid, Signal};

#[test]
fn the_printed_line_names_masters_that_work() {
    let mut up = Running::start(quorlock().args(["up", "-n", "3"]));
    let line = up.line();
    let nodes = line.strip_prefix("export QUORLOCK_NODES=").unwrap();
    assert_eq!(nodes.split(',').count(), 3);
    let script = format!("{line}; \"$0\" run k -- sh -c 'exit 42'");
    let mut shell = Command::new("sh");
    let status = shell.arg("-c").arg(script).arg(QUORLOCK).status().unwrap();
    assert_eq!(code(status), 42);
}

#[test]
fn signals_stop_all_masters_and_delete_their_folders() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut up = Running::start(quorlock().args(["up", "-n", "3"]));
        let line = up.line();
        let nodes = line.strip_prefix("export QUORLOCK_NODES=").unwrap();
        let masters: Vec<_> = nodes.split(',').map(what_runs_at).collect();
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

/// The process and the folder of a server.
fn what_runs_at(url: &str) -> (Pid, PathBuf) {
    let mut connection = Client::open(url).unwrap().get_connection().unwrap();
    let info: String = redis::cmd("INFO").arg("server").query(&mut connection).unwrap();
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
    let (_, folder): (String, String) =
        redis::cmd("CONFIG").arg("GET").arg("dir").query(&mut connection).unwrap();
    (Pid::from_raw(pid.parse().unwrap()).unwrap(), folder.into())
}

#[test]
fn a_server_or_module_that_is_not_there_is_an_error_that_says_what_to_do() {
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
    refused(&["--module", "/no/such/file"], None, &["/no/such/file", "cargo build"]);
    refused(&[], Some("QUORLOCK_SERVER"), &["/no/such/file", "QUORLOCK_SERVER"]);
    refused(&[], Some("QUORLOCK_MODULE"), &["/no/such/file", "QUORLOCK_MODULE"]);
    let mut without_any = Command::new(QUORLOCK);
    without_any.env("PATH", "/nowhere").env_remove("QUORLOCK_SERVER").arg("up");
    let output = without_any.output().unwrap();
    assert_eq!(code(output.status), 125);
    assert!(stderr(&output).contains("install"), "{}", stderr(&output));
}

#[test]
fn a_module_that_is_none_is_an_error_with_the_servers_own_words() {
    let output = quorlock().args(["up", "-n", "1", "--module", "/bin/sh"]).output().unwrap();
    assert_eq!(code(output.status), 125);
    assert!(stderr(&output).contains("/bin/sh"), "{}", stderr(&output));
}

#[test]
fn no_masters_and_too_many_are_refused() {
    for n in ["0", "65", "-1", "x"] {
        assert_eq!(code(quorlock().args(["up", "-n", n]).output().unwrap().status), 125);
    }
}
