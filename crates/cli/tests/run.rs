//! `quorlock run`: the command under its lock, its exit codes, the options that `flock` has too,
//! signals, and `--hold-at-least`, with which one of many machines runs a job.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use quorlock_testkit::{Nodes, eventually};
use rustix::process::Signal;

#[test]
fn run_without_permits_hides_the_permit_of_an_outer_run() {
    let nodes = Nodes::start(1);
    let urls = nodes.urls().join(",");
    let inner = format!("{QUORLOCK} run --nodes {urls} inner -c 'echo ${{QUORLOCK_PERMIT-none}}'");
    let outer = format!("echo $QUORLOCK_PERMIT; {inner}");
    let output = run_script(&nodes, &["--permits", "1"], &outer).output().unwrap();
    assert_eq!(stdout(&output), "0\nnone\n", "{}", stderr(&output));
}

#[test]
fn key_may_be_any_bytes() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let nodes = Nodes::start(1);
    let key = OsStr::from_bytes(b"a b\xff%s\n");
    let mut run = on(&nodes, "run");
    run.arg(key).args(["--", "sh", "-c", "printf %s \"$QUORLOCK_KEY\""]);
    let output = run.output().unwrap();
    assert_eq!(code(output.status), 0);
    assert_eq!(output.stdout, key.as_bytes());
}

#[test]
fn wait_for_nodes_that_cannot_vote_is_reported() {
    let mut nodes = Nodes::start(3);
    nodes[0].kill();
    nodes[1].kill();
    let waiting = start_script(&nodes, &LONG_NODE_TIMEOUT, "echo ran");
    let said = waiting.error_line();
    assert!(said.contains("waiting: no majority of the nodes agreed"), "{said}");
    assert!(said.contains("connected, and votes once enough of the other nodes are"), "{said}");
    assert_eq!(said.matches("not connected").count(), 1, "both nodes in one entry: {said}");
    nodes[0].restart().unwrap();
    let output = waiting.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (0, "ran\n"));
}

#[test]
fn refused_run_names_the_holder_and_gives_code_121_or_the_chosen_one() {
    let nodes = Nodes::start(3);
    let holder = Holder::start(&nodes, &[&LONG_NODE_TIMEOUT[..], &["--owner", "web-3"]].concat());
    for (options, expected) in [
        (["--no-wait"].as_slice(), 121),
        (&["-n"], 121),
        (&["--wait", "50ms"], 121),
        (&["-w", "0.05"], 121),
        (&["-n", "-E", "0"], 0),
        (&["-w", "0", "--conflict-exit-code", "75"], 75),
    ] {
        let options = [&LONG_NODE_TIMEOUT, options].concat();
        let mut run = run_script(&nodes, &options, "echo ran");
        let output = output_retried_on_122(|| run.output().unwrap());
        assert_eq!((code(output.status), stdout(&output)), (expected, ""), "{options:?}");
        if expected == 0 {
            assert_eq!(stderr(&output), "", "cron sends no mail");
        } else {
            assert_contains(stderr(&output), "not acquired: another client ");
            assert!(!stderr(&output).contains("refused"), "{}", stderr(&output));
        }
    }
    // On a busy machine, the nodes may say it too late.
    eventually(PATIENCE, "the holder is named", || {
        let output = run_script(&nodes, &["-n"], "true").output().unwrap();
        stderr(&output).contains("another client holds the lock: web-3, since ")
    });
    assert!(nodes_holding(&nodes) >= 2, "a refused run does not release the lock");
    holder.release();
    assert_eq!(nodes_holding(&nodes), 0);
}

/// Every subcommand that needs a majority for an answer about one lock, and `list`. A long wait
/// changes nothing.
#[test]
fn permanent_errors_give_exit_code_125_in_every_subcommand() {
    let nodes = Nodes::start(3);
    let handle = acquire_everywhere(&nodes, &["--ttl", "60s"]);
    for node in &nodes {
        exec(node, &["ACL", "SETUSER", "watcher", "on", ">pass", "~*", "+info", "+ping"]);
    }
    let good = nodes[2].url();
    let [wrong_password, no_right] =
        ["user=watcher&pass=wrong", "user=watcher&pass=pass"].map(|query| urls_with(&nodes, query));
    let most_wrong = vec![wrong_password[0].clone(), no_right[1].clone(), good];
    for nodes in [wrong_password, no_right, most_wrong] {
        for words in [
            &["inspect", "k"][..],
            &["inspect", "k", "--permits", "2"],
            &["list"],
            &["extend", handle.trim()],
            &["release", handle.trim()],
            &["acquire", "k", "--no-wait"],
            &["run", "k", "--wait", "1h", "--", "echo", "ran"],
            &["revoke", "k", "--yes"],
        ] {
            let output = on_urls(&nodes, words[0]).args(&words[1..]).output().unwrap();
            assert_eq!(code(output.status), 125, "{nodes:?} {}: {}", words[0], stderr(&output));
            assert!(!stdout(&output).contains("ran"));
        }
    }
    // A user that may see a lock, and not revoke it.
    assert_ok(&on(&nodes, "acquire").args(["--ttl", "60s", "l"]).output().unwrap());
    for node in nodes.iter().take(2) {
        let viewer = ["ACL", "SETUSER", "watcher", "+lock.inspect"];
        exec(node, &viewer);
    }
    let [first, second, _] = &urls_with(&nodes, "user=watcher&pass=pass")[..] else { panic!() };
    let urls = [first.clone(), second.clone(), nodes[2].url()];
    let output = on_urls(&urls, "revoke").args(["l", "--yes"]).output().unwrap();
    assert_error(&output, 125, "Revoke it again when a majority of the nodes accepts that");
    // A majority that only does not answer may answer later.
    for words in [&["inspect", "k"][..], &["list"]] {
        let mut down = vec![nodes[0].url()];
        down.extend(["127.0.0.1:1".to_owned(), "127.0.0.2:1".to_owned()]);
        let output = on_urls(&down, words[0]).args(&words[1..]).output().unwrap();
        assert_eq!(code(output.status), 122, "{}: {}", words[0], stderr(&output));
    }
}

#[test]
fn verbose_run_says_when_the_lock_was_acquired_and_released() {
    let mut nodes = Nodes::start(3);
    let verbose = [&LONG_NODE_TIMEOUT[..], &["--verbose"]].concat();
    let output = run_script(&nodes, &verbose, "echo ran").output().unwrap();
    let lines: Vec<_> = stderr(&output).lines().collect();
    let [acquired, released] = lines[..] else { panic!("{lines:?}") };
    assert!(acquired.starts_with("quorlock: acquired after "), "{acquired}");
    // A healthy node that has not answered yet is no news.
    assert!(acquired.contains(", fence ") && !acquired.contains("held on"), "{acquired}");
    assert!(released.starts_with("quorlock: released after "), "{released}");

    let holder = Holder::start(&nodes, &["--owner", "web-3"]);
    let waiting = start_script(&nodes, &verbose, "echo ran");
    let said = waiting.error_line();
    assert!(
        said.starts_with("quorlock: waiting: another client holds the lock: web-3, since "),
        "{said}"
    );
    holder.release();
    assert_eq!(code(waiting.wait_for_end().status), 0);

    nodes[0].kill();
    let said = start_script(&nodes, &verbose, "echo ran").error_line();
    assert!(said.ends_with(", without 1 of 3 nodes"), "{said}");
}

const JOB: &str = "sleep 0.05; echo ran; exit 3";
/// The time between the starts of the job on two successive machines.
const STAGGER: Duration = Duration::from_millis(600);

/// How many of five machines, which start one after the other, run the job.
fn machines_that_run(options: &[&str]) -> usize {
    let nodes = Nodes::start(5);
    let options = [&LONG_NODE_TIMEOUT[..], &["--wait", "1s"], options].concat();
    let machines = [(); 5].map(|()| {
        thread::sleep(STAGGER);
        start_script(&nodes, &options, JOB)
    });
    let ran = |machine: Running| {
        let output = machine.wait_for_end();
        if code(output.status) != 3 {
            assert_not_acquired(&output);
        }
        stdout(&output) == "ran\n"
    };
    machines.into_iter().map(ran).filter(|ran| *ran).count()
}

/// Standard error, without the reasons to wait: on a busy machine, the first attempt to acquire the
/// lock may fail.
fn said(output: &Output) -> String {
    let is_reason = |line: &&str| line.starts_with("quorlock: waiting: ");
    stderr(output).lines().filter(|line| !is_reason(line)).collect()
}

/// Starts a run whose command has ended with 7, and which holds the lock.
fn start_hold(nodes: &Nodes, options: &[&str]) -> Running {
    let running = start_script(nodes, options, "echo $$; exit 7");
    wait_until_ended(running.pid_line());
    running
}

#[test]
fn held_job_is_run_by_one_of_five_machines() {
    assert_eq!(machines_that_run(&["--hold-at-least", "5s"]), 1);
}

#[test]
fn job_that_is_not_held_is_run_by_several_machines() {
    assert!(machines_that_run(&[]) > 1);
}

#[test]
fn lock_is_renewed_during_the_hold_despite_usr1_and_usr2() {
    let nodes = Nodes::start(3);
    let options = ["--hold-at-least", "4500ms", "--ttl", "3s", "--node-timeout", "300ms"];
    let started = Instant::now();
    let running = start_hold(&nodes, &options);
    running.signal(Signal::USR1);
    running.signal(Signal::USR2);
    while started.elapsed() < Duration::from_secs(4) {
        assert!(nodes_holding(&nodes) >= 2, "after {:?}", started.elapsed());
        thread::sleep(Duration::from_millis(10));
    }
    let output = running.wait_for_end();
    assert_eq!((code(output.status), &*said(&output)), (7, ""));
    assert!(started.elapsed() >= Duration::from_millis(4500));
    assert_eq!(nodes_holding(&nodes), 0);
}

#[test]
fn signal_before_or_during_the_hold_ends_it() {
    let nodes = Nodes::start(3);
    let held = [&LONG_NODE_TIMEOUT[..], &["--hold-at-least", "1h"]].concat();
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let running = start_script(&nodes, &held, "echo held; read go");
        assert_eq!(running.line(), "held");
        running.signal(signal);
        assert_eq!(code(running.wait_for_end().status), expected);
        assert_eq!(nodes_holding(&nodes), 0);
    }
    let running = start_hold(&nodes, &held);
    assert!(nodes_holding(&nodes) >= 2);
    running.signal(Signal::TERM);
    let output = running.wait_for_end();
    assert_eq!((code(output.status), &*said(&output)), (7, ""));
    assert_eq!(nodes_holding(&nodes), 0);
}

#[test]
fn loss_during_the_hold_or_at_the_end_is_reported_and_changes_no_exit_code() {
    let nodes = Nodes::start(1);
    let running = start_hold(&nodes, &["--hold-at-least", "1h", "--ttl", "1s"]);
    exec(&nodes[0], &["DEL", "k"]);
    assert_error(&running.wait_for_end(), 7, "before --hold-at-least was over");

    let running = start_script(&nodes, &LONG_NODE_TIMEOUT, "echo held; read go; exit 7");
    assert_eq!(running.line(), "held");
    exec(&nodes[0], &["DEL", "k"]);
    running.say("go");
    assert_error(&running.wait_for_end(), 7, "had ended before");
}

#[test]
fn signal_is_passed_on_and_the_lock_kept_until_the_command_ends() {
    let nodes = Nodes::start(3);
    for (signal, name, expected) in [
        (Signal::TERM, "TERM", 3),
        (Signal::INT, "INT", 4),
        (Signal::HUP, "HUP", 5),
        (Signal::USR1, "USR1", 6),
    ] {
        let script = format!(
            "trap 'echo {name}' {name}; echo started; while ! read go; do :; done; exit {expected}"
        );
        let running = start_script(&nodes, &LONG_NODE_TIMEOUT, &script);
        assert_eq!(running.line(), "started");
        running.signal(signal);
        assert_eq!(running.line(), name);
        let mut second = run_script(&nodes, &["--wait", "300ms"], "echo ran");
        assert_not_acquired(&second.output().unwrap());
        running.say("go");
        let output = running.wait_for_end();
        assert_eq!((code(output.status), stdout(&output), stderr(&output)), (expected, "", ""));
        assert_eq!(nodes_holding(&nodes), 0);
    }
}

#[test]
fn signal_ends_the_wait_for_a_lock() {
    let nodes = Nodes::start(3);
    let holder = Holder::start(&nodes, &LONG_NODE_TIMEOUT);
    let times_asked = || -> u64 { nodes.iter().map(|node| calls(node, "lock.acquire")).sum() };
    let mut acquire = on(&nodes, "acquire");
    acquire.arg("k");
    for (mut command, signal, expected) in [
        (run_script(&nodes, &LONG_NODE_TIMEOUT, "echo ran"), Signal::TERM, 143),
        (acquire, Signal::INT, 130),
    ] {
        let asked_before = times_asked();
        let waiting = Running::start(&mut command);
        eventually(PATIENCE, "the program has asked all nodes", || {
            times_asked() >= asked_before + 3
        });
        waiting.signal(signal);
        let output = waiting.wait_for_end();
        assert_eq!((code(output.status), stdout(&output)), (expected, ""));
    }
    holder.release();
    assert_eq!(nodes_holding(&nodes), 0);
}

#[test]
fn hang_up_under_nohup_reaches_no_process() {
    let nodes = Nodes::start(1);
    let run = run_script(&nodes, &LONG_NODE_TIMEOUT, "echo started; read go; echo done");
    let mut command = Command::new("nohup");
    let arguments = run.get_args().skip_while(|argument| *argument != "run");
    command.process_group(0).arg(QUORLOCK).args(arguments);
    let running = Running::start(&mut command);
    assert_eq!(running.line(), "started");
    running.signal(Signal::HUP);
    running.say("go");
    let output = running.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (0, "done\n"));
}

#[test]
fn exit_code_of_the_command_is_passed_on_and_the_key_is_free() {
    let nodes = Nodes::start(3);
    let plain_file = tempfile::NamedTempFile::new().unwrap();
    let plain_file = plain_file.path().to_str().unwrap();
    for (command, expected) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["/no/such/command"], 127),
        (&[plain_file], 126),
    ] {
        let mut run = on(&nodes, "run");
        // A command that cannot be run is not held for.
        let hold = if expected < 128 && expected > 125 { "1h" } else { "0" };
        run.args(LONG_NODE_TIMEOUT).args(["--hold-at-least", hold, "k", "--"]);
        let output = run.args(command).output().unwrap();
        assert_eq!(code(output.status), expected, "{}", stderr(&output));
        assert_eq!(stderr(&output).contains(command[0]), [126, 127].contains(&expected));
        assert_eq!(nodes_holding(&nodes), 0);
    }
}

#[test]
fn shell_command_gets_its_key_its_ttl_and_a_fence_that_grows() {
    let nodes = Nodes::start(3);
    let line = "echo $QUORLOCK_KEY $QUORLOCK_TTL_MS $QUORLOCK_FENCE; exit 7";
    let mut last = 0;
    for _ in 0..3 {
        let mut run = on(&nodes, "run");
        let output = run.args(["--ttl", "5s", "k", "-c", line]).output().unwrap();
        assert_eq!(code(output.status), 7, "{}", stderr(&output));
        let fence = stdout(&output).strip_prefix("k 5000 ").unwrap().trim().parse::<u64>();
        assert!(fence.as_ref().unwrap() > &last, "{fence:?} after {last}");
        last = fence.unwrap();
    }
}
