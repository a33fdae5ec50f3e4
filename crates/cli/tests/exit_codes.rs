//! Exit codes of `quorlock run` when the command was not started, and the options that `flock` has
//! too.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::time::{Duration, Instant};

use common::{
    Holder, LONG_NODE_TIMEOUT, PATIENCE, acquire_everywhere, address, assert_contains,
    assert_error, assert_ok, code, exec, masters_holding, on, on_urls, output_retried_on_122,
    run_script, start_script, stderr, stdout, urls_with, wait_until_free,
};
use quorlock_testkit::{Masters, Server};

#[test]
fn held_lock_gives_exit_code_121_or_the_chosen_code() {
    let masters = Masters::start(3);
    let holder = Holder::start(&masters, &LONG_NODE_TIMEOUT);
    for (options, expected) in [
        (["--no-wait"].as_slice(), 121),
        (&["-n"], 121),
        (&["--wait", "50ms"], 121),
        (&["-w", "0.05"], 121),
        (&["-n", "-E", "0"], 0),
        (&["-w", "0", "--conflict-exit-code", "75"], 75),
    ] {
        let options = [&LONG_NODE_TIMEOUT, options].concat();
        let mut run = run_script(&masters, &options, "echo ran");
        let output = output_retried_on_122(|| run.output().unwrap());
        assert_eq!((code(output.status), stdout(&output)), (expected, ""), "{options:?}");
        if expected == 0 {
            assert_eq!(stderr(&output), "", "cron sends no mail");
        } else {
            assert_contains(stderr(&output), "not acquired: another client ");
            assert!(!stderr(&output).contains("refused"), "{}", stderr(&output));
        }
    }
    assert!(masters_holding(&masters) >= 2, "a refused run does not release the lock");
    holder.release();
    assert_eq!(masters_holding(&masters), 0);
}

#[test]
fn missing_majority_gives_exit_code_122_and_not_the_conflict_code() {
    let mut masters = Masters::start(3);
    let run = |masters: &Masters| {
        let options = ["--wait", "100ms", "-E", "99"];
        let output = run_script(masters, &options, "echo ran").output().unwrap();
        assert_error(&output, 122, "no majority of the nodes agreed");
        assert_eq!(stdout(&output), "");
        stderr(&output).to_owned()
    };
    masters[0].kill();
    masters[1].kill();
    assert!(run(&masters).contains("not connected"));

    let abstaining = Masters::start_with(3, |_, builder| builder.arg("lock.rejoin-delay", 60_000));
    assert!(run(&abstaining.unwrap()).contains("abstains"));
}

#[test]
fn permanent_error_gives_exit_code_125_at_once_despite_a_long_wait() {
    let guarded = Server::with_module().tcp().arg("requirepass", "another").start().unwrap();
    let guarded_url = format!("redis://:wrong@{}", address(&guarded));
    let without_module = Server::builder().start().unwrap();
    let demoted = Masters::start_with(3, |_, builder| builder.tcp()).unwrap();
    let mut master = Server::with_module().tcp().start().unwrap();
    for replica in demoted.iter().take(2) {
        exec(replica, &["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    }
    for (nodes, hint) in [
        (vec![guarded_url], "check user, password and ACL"),
        (vec![without_module.url()], "loadmodule"),
        (demoted.urls(), "name its master instead"),
    ] {
        let started = Instant::now();
        let mut run = on_urls(&nodes, "run");
        let output = run.args(["--wait", "1h", "k", "--", "echo", "ran"]).output().unwrap();
        assert_error(&output, 125, hint);
        assert_eq!(stdout(&output), "");
        assert!(started.elapsed() < PATIENCE, "{hint}");
    }
    master.kill();
}

/// Every subcommand that needs a majority for an answer about one lock, and `list`.
#[test]
fn permanent_errors_give_exit_code_125_in_every_subcommand() {
    let masters = Masters::start(3);
    let handle = acquire_everywhere(&masters, &["--ttl", "60s"]);
    for master in &masters {
        exec(master, &["ACL", "SETUSER", "watcher", "on", ">pass", "~*", "+info", "+ping"]);
    }
    let good = masters[2].url();
    let [wrong_password, no_right] = ["user=watcher&pass=wrong", "user=watcher&pass=pass"]
        .map(|query| urls_with(&masters, query));
    let most_wrong = vec![wrong_password[0].clone(), no_right[1].clone(), good];
    for nodes in [wrong_password, no_right, most_wrong] {
        for words in [
            &["inspect", "k"][..],
            &["inspect", "k", "--permits", "2"],
            &["list"],
            &["extend", handle.trim()],
            &["release", handle.trim()],
            &["acquire", "k", "--no-wait"],
            &["revoke", "k", "--yes"],
        ] {
            let output = on_urls(&nodes, words[0]).args(&words[1..]).output().unwrap();
            assert_eq!(code(output.status), 125, "{nodes:?} {}: {}", words[0], stderr(&output));
        }
    }
    // A user that may see a lock, and not revoke it.
    assert_ok(&on(&masters, "acquire").args(["--ttl", "60s", "l"]).output().unwrap());
    for master in masters.iter().take(2) {
        let viewer = ["ACL", "SETUSER", "watcher", "+lock.inspect"];
        exec(master, &viewer);
    }
    let [first, second, _] = &urls_with(&masters, "user=watcher&pass=pass")[..] else { panic!() };
    let nodes = [first.clone(), second.clone(), masters[2].url()];
    let output = on_urls(&nodes, "revoke").args(["l", "--yes"]).output().unwrap();
    assert_error(&output, 125, "Revoke it again when a majority of the nodes accepts that");
    // A majority that only does not answer may answer later.
    for words in [&["inspect", "k"][..], &["list"]] {
        let mut down = vec![masters[0].url()];
        down.extend(["127.0.0.1:1".to_owned(), "127.0.0.2:1".to_owned()]);
        let output = on_urls(&down, words[0]).args(&words[1..]).output().unwrap();
        assert_eq!(code(output.status), 122, "{}: {}", words[0], stderr(&output));
    }
}

#[test]
fn shell_command_is_run_by_the_shell() {
    let masters = Masters::start(1);
    let line = "echo $QUORLOCK_KEY; echo $QUORLOCK_TTL_MS; exit 7";
    let output = on(&masters, "run").args(["--ttl", "5s", "k", "-c", line]).output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (7, "k\n5000\n"));
    let both = on(&masters, "run").args(["k", "-c", line, "--", "true"]).output().unwrap();
    assert_eq!(code(both.status), 125);
}

#[test]
fn verbose_run_says_when_the_lock_was_acquired_and_released() {
    let mut masters = Masters::start(3);
    let verbose = [&LONG_NODE_TIMEOUT[..], &["--verbose"]].concat();
    let output = run_script(&masters, &verbose, "echo ran").output().unwrap();
    let lines: Vec<_> = stderr(&output).lines().collect();
    let [acquired, released] = lines[..] else { panic!("{lines:?}") };
    assert!(acquired.starts_with("quorlock: acquired after "), "{acquired}");
    // A healthy node that has not answered yet is no news.
    assert!(acquired.contains(", fence ") && !acquired.contains("held on"), "{acquired}");
    assert!(released.starts_with("quorlock: released after "), "{released}");

    let holder = Holder::start(&masters, &["--owner", "web-3"]);
    let mut waiting = start_script(&masters, &verbose, "echo ran");
    let said = waiting.error_line();
    assert!(
        said.starts_with("quorlock: waiting: another client holds the lock: web-3, since "),
        "{said}"
    );
    holder.release();
    assert_eq!(code(waiting.wait_for_end().status), 0);

    masters[0].kill();
    let said = start_script(&masters, &verbose, "echo ran").error_line();
    assert!(said.ends_with(", without 1 of 3 nodes"), "{said}");
}

#[test]
fn wait_may_be_a_fraction_of_a_second() {
    let masters = Masters::start(1);
    let holder = Holder::start(&masters, &LONG_NODE_TIMEOUT);
    let exit_code = |wait: &str| {
        let mut run = run_script(&masters, &["-w", wait], "echo ran");
        code(output_retried_on_122(|| run.output().unwrap()).status)
    };
    let started = Instant::now();
    assert_eq!(exit_code("0.3"), 121);
    assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
    for wrong in ["-1", "x", "1s"] {
        assert_eq!(exit_code(wrong), 125, "{wrong}");
    }
    holder.release();
    wait_until_free(&masters);
}
