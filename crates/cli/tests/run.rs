//! `quorlock run`: the command under its lock, and invalid command lines.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::slice;

use common::{
    Holder, LONG_NODE_TIMEOUT, QUORLOCK, address, assert_contains, assert_error,
    assert_not_acquired, code, exec, masters_holding, on, on_urls, quorlock, run_script,
    start_script, stderr, stdout, wait_for_waiter,
};
use quorlock_testkit::{Masters, Server};

#[test]
fn exit_code_of_the_command_is_passed_on_and_the_key_is_free() {
    let masters = Masters::start(3);
    for expected in [0, 1, 42, 255] {
        let output =
            run_script(&masters, &LONG_NODE_TIMEOUT, &format!("exit {expected}")).output().unwrap();
        assert_eq!((code(output.status), stderr(&output)), (expected, ""));
        assert_eq!(masters_holding(&masters), 0);
    }
}

#[test]
fn command_that_a_signal_killed_gives_exit_code_128_plus_the_signal() {
    let masters = Masters::start(1);
    for (signal, expected) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        let output = run_script(&masters, &LONG_NODE_TIMEOUT, &format!("kill -{signal} $$"))
            .output()
            .unwrap();
        assert_eq!(code(output.status), expected);
        assert_eq!(masters_holding(&masters), 0);
    }
}

#[test]
fn missing_command_gives_exit_code_127_and_a_file_that_cannot_run_126() {
    let masters = Masters::start(3);
    let plain_file = tempfile::NamedTempFile::new().unwrap();
    let plain_file = plain_file.path().to_str().unwrap();
    for (command, expected) in [("/no/such/command", 127), (plain_file, 126)] {
        let output = on(&masters, "run").args(["k", "--", command]).output().unwrap();
        assert_error(&output, expected, command);
        assert_eq!(masters_holding(&masters), 0);
    }
}

#[test]
fn waiting_run_acquires_the_lock_when_the_holder_ends() {
    let masters = Masters::start(3);
    let holder = Holder::start(&masters, &LONG_NODE_TIMEOUT);
    let waiting = start_script(&masters, &LONG_NODE_TIMEOUT, "echo ran");
    wait_for_waiter(&masters);
    holder.release();
    let output = waiting.wait_for_end();
    assert_eq!((code(output.status), stdout(&output), stderr(&output)), (0, "ran\n", ""));
}

#[test]
fn command_gets_its_key_and_a_fence_that_grows() {
    let masters = Masters::start(3);
    let mut last = 0;
    for _ in 0..5 {
        let script = "echo $QUORLOCK_KEY; echo $QUORLOCK_FENCE";
        let output = run_script(&masters, &LONG_NODE_TIMEOUT, script).output().unwrap();
        let (key, fence) = stdout(&output).trim_end().split_once('\n').unwrap();
        assert_eq!(key, "k");
        let fence = fence.parse::<u64>().unwrap();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[test]
fn readers_run_together_and_a_writer_does_not_run_beside_them() {
    let masters = Masters::start(3);
    let readers = [(); 2].map(|()| Holder::start(&masters, &["--shared"]));
    let exit_code = |options: &[&str]| {
        let options = [options, &["--no-wait"], &LONG_NODE_TIMEOUT].concat();
        code(run_script(&masters, &options, "true").output().unwrap().status)
    };
    assert_eq!(exit_code(&["--shared"]), 0);
    assert_eq!(exit_code(&[]), 121);
    readers.into_iter().for_each(Holder::release);
    assert_eq!(exit_code(&[]), 0);
}

#[test]
fn no_more_commands_run_than_permits_and_each_knows_its_permit() {
    let masters = Masters::start(3);
    let first = Holder::start(&masters, &["--permits", "2"]);
    let with_permit = |options: &[&str], script: &str| {
        let options = [&["--permits", "2", "--no-wait"], options, &LONG_NODE_TIMEOUT].concat();
        run_script(&masters, &options, script).output().unwrap()
    };
    let output = with_permit(&[], "echo $QUORLOCK_PERMIT");
    assert!(["0\n", "1\n"].contains(&stdout(&output)), "{}", stdout(&output));
    let second = Holder::start(&masters, &["--permits", "2"]);
    assert_eq!(code(with_permit(&[], "true").status), 121);
    second.release();
    assert_eq!(code(with_permit(&[], "true").status), 0);
    first.release();
    for wrong in
        [["--permits", "0"].as_slice(), &["--permits", "65"], &["--permits", "2", "--shared"]]
    {
        let output = run_script(&masters, wrong, "true").output().unwrap();
        assert_eq!(code(output.status), 125);
    }
}

#[test]
fn run_without_permits_hides_the_permit_of_an_outer_run() {
    let masters = Masters::start(1);
    let nodes = masters.urls().join(",");
    let inner = format!("{QUORLOCK} run --nodes {nodes} inner -c 'echo ${{QUORLOCK_PERMIT-none}}'");
    let outer = format!("echo $QUORLOCK_PERMIT; {inner}");
    let output = run_script(&masters, &["--permits", "1"], &outer).output().unwrap();
    assert_eq!(stdout(&output), "0\nnone\n", "{}", stderr(&output));
}

#[test]
fn owner_of_the_lock_is_shown_by_lock_inspect() {
    let masters = Masters::start(1);
    let owner_seen_with = |options: &[&str]| {
        let holder = Holder::start(&masters, options);
        let inspected: redis::Value =
            redis::cmd("LOCK.INSPECT").arg("k").query(&mut masters[0].connection()).unwrap();
        holder.release();
        format!("{inspected:?}")
    };
    assert!(owner_seen_with(&["--owner", "the night watch"]).contains("the night watch"));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(owner_seen_with(&[]).contains(&format!("{host}:")), "the default owner names the host");
}

#[test]
fn key_may_be_any_bytes() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let masters = Masters::start(1);
    let key = OsStr::from_bytes(b"a b\xff%s\n");
    let mut run = on(&masters, "run");
    run.arg(key).args(["--", "sh", "-c", "printf %s \"$QUORLOCK_KEY\""]);
    let output = run.output().unwrap();
    assert_eq!(code(output.status), 0);
    assert_eq!(output.stdout, key.as_bytes());
}

#[test]
fn masters_are_named_by_option_or_by_environment_and_the_option_wins() {
    let masters = Masters::start(3);
    let urls = masters.urls().join(",");
    let no_server = "redis://127.0.0.1:1";
    let try_with = |option: Option<&str>, environment: &str| {
        let mut command = quorlock();
        command.env("QUORLOCK_NODES", environment).arg("run").args(LONG_NODE_TIMEOUT);
        if let Some(option) = option {
            command.args(["--nodes", option]);
        }
        code(command.args(["--no-wait", "k", "--", "true"]).output().unwrap().status)
    };
    assert_eq!(try_with(None, &urls), 0);
    assert_eq!(try_with(Some(&urls), no_server), 0);
    assert_eq!(try_with(Some(no_server), &urls), 122);
    // A list may contain spaces and an empty entry.
    assert_eq!(try_with(None, &format!(" {} , ", masters.urls().join(" , "))), 0);
}

#[test]
fn master_may_be_named_by_host_and_port_alone() {
    let master = Server::with_module().tcp().start().unwrap();
    let mut run = on_urls(&[address(&master)], "run");
    assert_eq!(code(run.args(["k", "--", "true"]).status().unwrap()), 0);
}

#[test]
fn command_uses_the_standard_streams_of_quorlock() {
    let masters = Masters::start(1);
    let script = "read line; echo \"out $line\"; echo err >&2";
    let mut running = start_script(&masters, &LONG_NODE_TIMEOUT, script);
    running.say("in");
    let output = running.wait_for_end();
    assert_eq!((stdout(&output), stderr(&output)), ("out in\n", "err\n"));
}

#[test]
fn lock_is_renewed_while_the_command_runs_longer_than_the_ttl() {
    let masters = Masters::start(3);
    let holder = Holder::start(&masters, &["--ttl", "2s", "--node-timeout", "200ms"]);
    // The wait is longer than the ttl: without renewals, the lock would end within it.
    let output = run_script(&masters, &["--wait", "2500ms"], "echo ran").output().unwrap();
    assert_not_acquired(&output);
    holder.release();
}

#[test]
fn runs_of_the_same_key_never_overlap() {
    common::assert_runs_never_overlap(&Masters::start(3), 4, 5);
}

#[test]
fn dead_or_hanging_minority_does_not_block_a_run() {
    let mut masters = Masters::start(5);
    masters[0].kill();
    masters[1].pause();
    let output = run_script(&masters, &LONG_NODE_TIMEOUT, "echo ran").output().unwrap();
    assert_eq!((code(output.status), stdout(&output), stderr(&output)), (0, "ran\n", ""));
    masters[1].resume();
    common::wait_until_free(&masters);
}

#[test]
fn command_that_outlives_its_lock_is_reported_as_unprotected() {
    let masters = Masters::start(1);
    let mut running = start_script(&masters, &LONG_NODE_TIMEOUT, "echo held; read go; exit 7");
    assert_eq!(running.line(), "held");
    exec(&masters[0], &["DEL", "k"]);
    running.say("go");
    let output = running.wait_for_end();
    assert_error(&output, 7, "had ended before");
}

#[test]
fn wait_for_masters_that_cannot_vote_is_reported() {
    let mut masters = Masters::start(3);
    masters[0].kill();
    masters[1].kill();
    let mut waiting = start_script(&masters, &LONG_NODE_TIMEOUT, "echo ran");
    let said = waiting.error_line();
    assert!(said.contains("waiting: no majority of the nodes agreed"), "{said}");
    assert!(said.contains("connected, and votes once enough of the other nodes are"), "{said}");
    assert_eq!(said.matches("not connected").count(), 1, "both masters in one entry: {said}");
    masters[0].restart().unwrap();
    let output = waiting.wait_for_end();
    assert_eq!((code(output.status), stdout(&output)), (0, "ran\n"));

    masters[0].kill();
    let output = run_script(&masters, &["--wait", "20ms"], "echo ran").output().unwrap();
    assert_error(&output, 122, "not acquired: no majority of the nodes agreed");
    assert_eq!(stdout(&output), "");
}

#[test]
fn invalid_lock_is_an_error_that_says_why() {
    let masters = Masters::start(1);
    let assert_refused = |urls: &[String], words: &[&str], hint: &str| {
        let output = on_urls(urls, "run").args(words).args(["--", "true"]).output().unwrap();
        assert_error(&output, 125, hint);
    };
    let urls = masters.urls();
    assert_refused(&urls, &["--ttl", "0", "k"], "ttl");
    assert_refused(&urls, &["--ttl", "1ms", "k"], "at least 100ms");
    assert_refused(&urls, &["--node-timeout", "2s", "k"], "--node-timeout must be");
    assert_refused(&urls, &["--owner", &"x".repeat(257), "k"], "256 bytes");
    assert_refused(&urls, &[""], "needs a name");
    assert_refused(&["redis://h:1", "redis://h:1"].map(str::to_owned), &["k"], "listed twice");
}

#[test]
fn missing_masters_are_an_error_that_says_how_to_name_them() {
    for empty in [None, Some(""), Some(" , ")] {
        let mut command = quorlock();
        if let Some(empty) = empty {
            command.env("QUORLOCK_NODES", empty);
        }
        let output = command.args(["run", "k", "--", "true"]).output().unwrap();
        assert_eq!(code(output.status), 125);
        for hint in ["--nodes", "QUORLOCK_NODES", "redis://", "quorlock up"] {
            assert_contains(stderr(&output), hint);
        }
    }
}

#[test]
fn password_is_never_shown() {
    let guarded = Server::with_module().tcp().arg("requirepass", "another").start().unwrap();
    let address = address(&guarded);
    let nodes = [
        // Wrong passwords, no server, and invalid URLs.
        format!("redis://:hunter2@{address}"),
        format!("redis://default:hunter2@{address}/0"),
        "redis://:hunter2@127.0.0.1:1".to_owned(),
        "redis://:hunter2@127.0.0.1:99999".to_owned(),
        "redis://:hunter2@".to_owned(),
        "redis://:hunter2/@127.0.0.1".to_owned(),
        "http://someone:hunter2@127.0.0.1".to_owned(),
        ":hunter2@127.0.0.1:x".to_owned(),
    ];
    for node in nodes {
        let run = |options: &[&str]| {
            let mut run = on_urls(slice::from_ref(&node), "run");
            run.args(options).args(["k", "--", "true"]).output().unwrap()
        };
        for wait in ["0", "5ms"] {
            let output = run(&["--wait", wait]);
            assert!([122, 125].contains(&code(output.status)), "{node}");
            assert_ne!(stderr(&output), "", "{node}");
            assert!(!stderr(&output).contains("hunter2"), "{}", stderr(&output));
        }
        // An error of the command line does not show the password.
        let output = run(&["--nonsense"]);
        assert_eq!(code(output.status), 125);
        assert!(!stderr(&output).contains("hunter2"), "{}", stderr(&output));
    }
    let mut help = quorlock();
    help.env("QUORLOCK_NODES", "redis://:hunter2@h").args(["run", "--help"]);
    let help = help.output().unwrap();
    assert!(!stdout(&help).contains("hunter2"));
}

#[test]
fn ttl_above_the_limit_of_the_nodes_gives_exit_code_125_and_advice() {
    let masters = Masters::start(3);
    let output = on(&masters, "run").args(["--ttl", "2m", "k", "--", "true"]).output().unwrap();
    assert_error(&output, 125, "lower --ttl to at most 60s or raise lock.max-ttl");
}
