//! `quorlock restart-nodes`: one node at a time, and only while the others are a majority.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{
    PATIENCE, Running, assert_contains, assert_error, assert_ok, code, on_urls, stderr, stdout,
};
use quorlock_testkit::{Masters, Server, eventually};
use tempfile::TempDir;

/// Masters with a password. A command that restarts a node writes its host to a file, and the test
/// does the rest.
struct Fleet {
    masters: Masters,
    folder: TempDir,
}

impl Fleet {
    fn start() -> Self {
        let masters = Masters::start_with(3, |_, master| master.arg("requirepass", "secret"));
        Self { masters: masters.unwrap(), folder: tempfile::tempdir().unwrap() }
    }

    fn asked_file(&self) -> PathBuf {
        self.folder.path().join("asked")
    }

    /// The hosts for which the command was run, in order.
    fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.asked_file()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn restart_nodes(&self, options: &[&str], then: &str) -> Command {
        let mut command = on_urls(&self.masters.urls(), "restart-nodes");
        command.env("QUORLOCK_PASSWORD", "secret").args(options).arg("--").args(["sh", "-c"]);
        command.arg(format!("echo {{host}} >>{}; {then}", self.asked_file().display()));
        command
    }

    fn output(&self, options: &[&str], then: &str) -> Output {
        self.restart_nodes(options, then).output().unwrap()
    }
}

fn socket(master: &Server) -> String {
    master.url().trim_start_matches("redis+unix://").to_owned()
}

fn votes(master: &Server) -> bool {
    let Ok(mut connection) = master.try_connection() else { return false };
    let auth = redis::cmd("AUTH").arg("secret").exec(&mut connection);
    let info: redis::RedisResult<String> = redis::cmd("INFO").arg("lock").query(&mut connection);
    auth.is_ok() && info.is_ok_and(|info| info.contains("lock_state:voting"))
}

#[test]
fn node_is_restarted_only_while_all_others_vote() {
    let mut fleet = Fleet::start();
    for master in &mut fleet.masters {
        // From the next start on, a master abstains for a while.
        master.set_arg("lock.max-ttl", 1500);
        master.set_arg("lock.rejoin-delay", -1);
    }
    let mut running = Running::start(&mut fleet.restart_nodes(&[], "true"));
    for index in 0..3 {
        eventually(PATIENCE, "the next node is to be restarted", || fleet.asked().len() > index);
        assert_eq!(
            fleet.asked(),
            fleet.masters.iter().take(index + 1).map(socket).collect::<Vec<_>>()
        );
        assert!(fleet.masters.iter().all(votes), "{index}: an earlier node does not vote yet");
        fleet.masters[index].kill();
        fleet.masters[index].restart().unwrap();
        eventually(PATIENCE, "the node abstains", || {
            fleet.masters[index].log().contains("abstaining for 1500 ms (start)")
        });
        assert_contains(&running.error_line(), "restarting ");
        assert_contains(&running.error_line(), "votes again");
    }
    assert_ok(&running.wait_for_end());
}

#[test]
fn node_that_is_not_back_within_the_limit_ends_the_restarts() {
    let fleet = Fleet::start();
    let output = fleet.output(&["--limit", "1s"], "true");
    assert_error(&output, 122, "it was not restarted. No further node was restarted");
    assert_eq!(fleet.asked().len(), 1);
}

#[test]
fn command_does_not_inherit_the_password() {
    let fleet = Fleet::start();
    let output = fleet.output(&["--limit", "1s"], "echo ${QUORLOCK_PASSWORD-none}");
    assert_error(&output, 122, "it was not restarted");
    assert_eq!(stdout(&output), "none\n");
}

#[test]
fn refusal_says_which_settings_of_a_file_are_not_used() {
    let fleet = Fleet::start();
    let file = fleet.folder.path().join("quorlock.toml");
    fs::write(&file, "nodes = ['elsewhere']\nuser = 'operator'\n").unwrap();
    let mut command = on_urls(&fleet.masters.urls(), "restart-nodes");
    command.env("QUORLOCK_CONFIG", &file).args(["--limit", "1s", "--", "true"]);
    assert_error(&command.output().unwrap(), 122, "not used: user of ");
}

#[test]
fn failed_command_ends_the_restarts() {
    let fleet = Fleet::start();
    assert_error(&fleet.output(&[], "exit 3"), 125, "No further node was restarted");
    assert_eq!(fleet.asked().len(), 1);
}

#[test]
fn no_node_is_restarted_without_a_majority_of_the_others() {
    let mut fleet = Fleet::start();
    fleet.masters[2].kill();
    let output = fleet.output(&["--limit", "1s"], "true");
    assert_error(&output, 122, "without it 1 nodes vote, and a lock needs 2");
    assert_eq!(fleet.asked(), [""; 0]);
    // The node that is down may be restarted.
    let down = socket(&fleet.masters[2]);
    let output = fleet.output(&["--limit", "1s", &down], "true");
    assert_error(&output, 122, "is down after 1s");
    assert_eq!(fleet.asked(), [down]);
}

#[test]
fn unknown_node_and_small_fleet_are_refused() {
    let fleet = Fleet::start();
    assert_error(&fleet.output(&["elsewhere"], "true"), 125, "elsewhere is not in the list");
    let mut two = on_urls(&fleet.masters.urls()[..2], "restart-nodes");
    let output = two.args(["--", "true"]).output().unwrap();
    assert_error(&output, 125, "no majority while a node restarts");
    assert!(Path::new(&fleet.asked_file()).metadata().is_err());
    assert_eq!((code(output.status), stdout(&output)), (125, ""), "{}", stderr(&output));
}
