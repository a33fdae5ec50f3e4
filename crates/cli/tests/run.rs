//! `quorlock run`: the command under its lock, and invalid command lines.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::process::Command;

use common::{
    Holder, LONG_NODE_LIMIT, QUORLOCK, Running, code, masters_holding, quorlock, run_on,
    run_script, stderr, stdout,
};
use quorlock_testkit::{Masters, Server};

#[test]
fn exit_code_of_the_command_is_passed_on_and_the_key_is_free() {
    let masters = Masters::start(3);
    for expected in [0, 1, 42, 255] {
        let output =
            run_script(&masters, &LONG_NODE_LIMIT, &format!("exit {expected}")).output().unwrap();
        assert_eq!(code(output.status), expected);
        assert_eq!(stderr(&output), "");
        assert_eq!(masters_holding(&masters), 0);
    }
}

#[test]
fn command_that_a_signal_killed_gives_exit_code_128_plus_the_signal() {
    let masters = Masters::start(1);
    for (signal, expected) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        let output =
            run_script(&masters, &LONG_NODE_LIMIT, &format!("kill -{signal} $$")).output().unwrap();
        assert_eq!(code(output.status), expected);
        assert_eq!(masters_holding(&masters), 0);
    }
}

#[test]
fn missing_command_gives_exit_code_127_and_a_file_that_cannot_run_126() {
    let masters = Masters::start(3);
    let plain_file = tempfile::NamedTempFile::new().unwrap();
    for (command, expected) in
        [("/no/such/command", 127), (plain_file.path().to_str().unwrap(), 126)]
    {
        let output = run_on(masters.urls()).args(["k", "--", command]).output().unwrap();
        assert_eq!(code(output.status), expected);
        assert!(stderr(&output).contains(command), "{}", stderr(&output));
        assert_eq!(masters_holding(&masters), 0);
    }
}

#[test]
fn waiting_run_acquires_the_lock_when_the_holder_ends() {
    let masters = Masters::start(3);
    let holder = Holder::start(&masters, &LONG_NODE_LIMIT);
    let waiting = Running::start(&mut run_script(&masters, &LONG_NODE_LIMIT, "echo ran"));
    holder.release();
    let output = waiting.end();
    assert_eq!((code(output.status), stdout(&output), stderr(&output)), (0, "ran\n", ""));
}

#[test]
fn command_gets_its_key_and_a_fence_that_grows() {
    let masters = Masters::start(3);
    let mut last = 0;
    for _ in 0..5 {
        let output =
            run_script(&masters, &LONG_NODE_LIMIT, "echo $QUORLOCK_KEY; echo $QUORLOCK_FENCE")
                .output()
                .unwrap();
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
        let mut command = run_on(masters.urls());
        code(command.args(options).args(["--no-wait", "k", "--", "true"]).output().unwrap().status)
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
        let options = [&["--permits", "2", "--no-wait"], options].concat();
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
        let mut command = run_on(masters.urls());
        assert_eq!(
            code(command.args(wrong).args(["k", "--", "true"]).output().unwrap().status),
            125
        );
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
    let mut run = run_on(masters.urls());
    let output =
        run.arg(key).args(["--", "sh", "-c", "printf %s \"$QUORLOCK_KEY\""]).output().unwrap();
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
        command.env("QUORLOCK_NODES", environment).arg("run").args(LONG_NODE_LIMIT);
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
    let url = master.url();
    let host_and_port = url.trim_start_matches("redis://").trim_end_matches('/');
    assert_eq!(code(run_on([host_and_port]).args(["k", "--", "true"]).status().unwrap()), 0);
}

#[test]
fn command_uses_the_standard_streams_of_quorlock() {
    let masters = Masters::start(1);
    let mut running = Running::start(&mut run_script(
        &masters,
        &LONG_NODE_LIMIT,
        "read line; echo \"out $line\"; echo err >&2",
    ));
    running.say("in");
    let output = running.end();
    assert_eq!((stdout(&output), stderr(&output)), ("out in\n", "err\n"));
}

#[test]
fn lock_is_renewed_while_the_command_runs_longer_than_the_ttl() {
    let masters = Masters::start(3);
    let holder = Holder::start(&masters, &["--ttl", "2s", "--node-limit", "200ms"]);
    // The wait is longer than the ttl: without renewals, the lock would end within it.
    let output = run_script(&masters, &["--wait", "2500ms"], "echo ran").output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (121, ""));
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
    let output = run_script(&masters, &LONG_NODE_LIMIT, "echo ran").output().unwrap();
    assert_eq!((code(output.status), stdout(&output), stderr(&output)), (0, "ran\n", ""));
    masters[1].resume();
    common::wait_until_free(&masters);
}

#[test]
fn command_that_outlives_its_lock_is_reported_as_unprotected() {
    let masters = Masters::start(1);
    let mut running =
        Running::start(&mut run_script(&masters, &LONG_NODE_LIMIT, "echo held; read go; exit 7"));
    assert_eq!(running.line(), "held");
    redis::cmd("DEL").arg("k").exec(&mut masters[0].connection()).unwrap();
    running.say("go");
    let output = running.end();
    assert_eq!(code(output.status), 7);
    assert!(stderr(&output).contains("had ended before"), "{}", stderr(&output));
}

#[test]
fn wait_for_masters_that_cannot_vote_is_reported() {
    let mut masters = Masters::start(3);
    masters[0].kill();
    masters[1].kill();
    let mut waiting = Running::start(&mut run_script(&masters, &LONG_NODE_LIMIT, "echo ran"));
    let said = waiting.error_line();
    assert!(said.contains("waiting: too few nodes vote"), "{said}");
    masters[0].restart().unwrap();
    let output = waiting.end();
    assert_eq!((code(output.status), stdout(&output)), (0, "ran\n"));

    masters[0].kill();
    let output = run_script(&masters, &["--wait", "20ms"], "echo ran").output().unwrap();
    assert_eq!((code(output.status), stdout(&output)), (122, ""));
    assert!(stderr(&output).contains("not acquired: too few nodes vote"), "{}", stderr(&output));
}

#[test]
fn invalid_lock_is_an_error_that_says_why() {
    let masters = Masters::start(1);
    let refused = |command: &mut Command| {
        let output = command.args(["--", "true"]).output().unwrap();
        assert_eq!(code(output.status), 125);
        stderr(&output).to_owned()
    };
    assert!(refused(run_on(masters.urls()).args(["--ttl", "0", "k"])).contains("ttl"));
    assert!(refused(run_on(masters.urls()).args(["--ttl", "1ms", "k"])).contains("at least 100ms"));
    assert!(
        refused(run_on(masters.urls()).args(["--node-limit", "2s", "k"]))
            .contains("--node-limit must be")
    );
    assert!(
        refused(run_on(masters.urls()).args(["--owner", &"x".repeat(257), "k"]))
            .contains("256 bytes")
    );
    assert!(refused(run_on(masters.urls()).arg("")).contains("needs a name"));
    assert!(refused(run_on(["redis://h:1", "redis://h:1"]).arg("k")).contains("listed twice"));
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
            assert!(stderr(&output).contains(hint), "no {hint} in {}", stderr(&output));
        }
    }
}

#[test]
fn password_is_never_shown() {
    let guarded = Server::with_module().tcp().arg("requirepass", "another").start().unwrap();
    let address = guarded.url().trim_start_matches("redis://").trim_end_matches('/').to_owned();
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
        for wait in ["0", "5ms"] {
            let output =
                run_on([&node]).args(["--wait", wait, "k", "--", "true"]).output().unwrap();
            assert!([122, 125].contains(&code(output.status)), "{node}");
            assert_ne!(stderr(&output), "", "{node}");
            assert!(!stderr(&output).contains("hunter2"), "{}", stderr(&output));
        }
        // An error of the command line does not show the password.
        let output = run_on([&node]).args(["--nonsense", "k", "--", "true"]).output().unwrap();
        assert_eq!(code(output.status), 125);
        assert!(!stderr(&output).contains("hunter2"), "{}", stderr(&output));
    }
    let help = quorlock()
        .env("QUORLOCK_NODES", "redis://:hunter2@h")
        .args(["run", "--help"])
        .output()
        .unwrap();
    assert!(!stdout(&help).contains("hunter2"));
}

#[test]
fn ttl_above_the_limit_of_the_nodes_gives_exit_code_125_and_advice() {
    let masters = Masters::start(3);
    let output = run_on(masters.urls()).args(["--ttl", "2m", "k", "--", "true"]).output().unwrap();
    assert_eq!(code(output.status), 125);
    let advice = "lower --ttl to at most 60s or raise lock.max-ttl";
    assert!(stderr(&output).contains(advice), "{}", stderr(&output));
}
