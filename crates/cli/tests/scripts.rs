//! `quorlock acquire`, `extend` and `release`: locks for scripts.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::*;
use quorlock_testkit::{Nodes, Server, eventually, holds_within};
use rustix::process::Signal;
use serde_json::Value;

/// A ttl that is long enough for a busy machine.
const TTL: [&str; 2] = ["--ttl", "60s"];
/// A handle that no node knows.
const HANDLE: &str = "quorlock1:k:0123456789abcdef0123456789abcdef:1000:1:1";

/// Acquires the lock `k`, and returns its handle.
fn acquire(nodes: &Nodes) -> String {
    acquire_everywhere(nodes, &TTL)
}

/// Releases the lock `k`, and waits until no node has it.
#[track_caller]
fn release(nodes: &Nodes, handle: &str) {
    let output = with_handle(nodes, &["release"], handle);
    // A release that too few nodes answered in time may have released the lock.
    assert!([0, 120].contains(&code(output.status)) && output.stdout.is_empty(), "{output:?}");
    wait_until_free(nodes);
}

/// Runs this subcommand and its options with the handle on its standard input.
#[track_caller]
fn with_handle(nodes: &Nodes, words: &[&str], handle: &str) -> Output {
    let mut command = on(nodes, words[0]);
    command.args(&words[1..]).arg("-");
    let output = output_retried_on_122(|| with_input(&mut command, handle));
    assert!(!stderr(&output).contains(token(handle)), "{}", stderr(&output));
    output
}

/// The token in a handle that is not JSON.
fn token(handle: &str) -> &str {
    handle.split(':').nth(2).unwrap_or("no token at all")
}

#[test]
fn extended_lock_lasts_longer_and_only_its_new_handle_is_valid() {
    let nodes = Nodes::start(3);
    let mut handles = Vec::new();
    let output = output_retried_on_122(|| {
        handles = vec![acquire_everywhere(&nodes, &["--ttl", "20s"])];
        let extended = with_input(on(&nodes, "extend").args(["--ttl", "50s", "-"]), &handles[0]);
        if code(extended.status) != 0 {
            return extended;
        }
        handles.push(stdout(&extended).to_owned());
        with_input(on(&nodes, "extend").arg("-"), &handles[1])
    });
    assert_eq!((code(output.status), stderr(&output)), (0, ""));
    let ttl_ms = |node: &Server| -> i64 {
        redis::cmd("PTTL").arg("k").query(&mut node.connection()).unwrap()
    };
    let ttl_ms = nodes.iter().map(ttl_ms).max().unwrap();
    assert!(ttl_ms > 25_000, "{ttl_ms}");
    for (old, subcommand) in handles.iter().flat_map(|old| [(old, "extend"), (old, "release")]) {
        let output = with_handle(&nodes, &[subcommand], old);
        assert_eq!((code(output.status), stdout(&output)), (120, ""), "{subcommand}");
    }
    assert!(nodes_holding(&nodes) >= 2);
    let last = stdout(&output);
    assert_eq!(last.lines().count(), 1);
    release(&nodes, last);
    assert_error(&with_handle(&nodes, &["release"], last), 120, "nothing to release");
}

#[test]
fn json_has_handle_key_fence_and_times() {
    let nodes = Nodes::start(3);
    let now_ms = || {
        u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
    };
    let before_ms = now_ms();
    let mut first = Value::Null;
    let output = output_retried_on_122(|| {
        let words = ["--json", "--ttl", "30s", "a \"key\""];
        let output = on(&nodes, "acquire").args(words).output().unwrap();
        first = json(&output);
        // `extend` reads the handle from this JSON, and `release` reads the handle alone.
        with_input(on(&nodes, "extend").args(["--json", "-"]), stdout(&output))
    });
    assert_eq!(first["key"], "a \"key\"");
    assert_eq!(first["ttl_ms"], 30_000);
    let expires_ms = first["expires_unix_ms"].as_u64().unwrap();
    assert!((before_ms + 20_000..=now_ms() + 30_000).contains(&expires_ms), "{expires_ms}");
    let second = json(&output);
    assert!(second["fence"].as_u64().unwrap() > first["fence"].as_u64().unwrap());
    release(&nodes, second["handle"].as_str().unwrap());
}

/// The owner label of a lock.
fn owner(nodes: &Nodes, key: &str) -> String {
    let output = on(nodes, "inspect").args(["--json", key]).output().unwrap();
    json(&output)["owner"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn detached_lock_is_labelled_with_the_script_that_keeps_its_handle() {
    let nodes = Nodes::start(3);
    let urls = nodes.urls().join(",");
    let script = "echo $$; handle=$(quorlock acquire --ttl 60s k)
        echo acquired; read go; quorlock extend \"$handle\"; echo extended; read go";
    let running = Running::start(&mut crate::common::shell(script, &urls));
    let label = format!(":{} (detached)", running.line());
    assert_eq!(running.line(), "acquired");
    assert!(owner(&nodes, "k").ends_with(&label), "{}", owner(&nodes, "k"));
    running.say("go");
    running.line();
    assert_eq!(running.line(), "extended");
    let seen = owner(&nodes, "k");
    assert!(seen.ends_with(&label), "{seen}");

    let output = on(&nodes, "acquire").args(["--owner", "me", "l"]).output().unwrap();
    assert_ok(&output);
    assert_eq!(owner(&nodes, "l"), "me");
}

#[test]
fn script_acquires_as_many_permits_as_there_are() {
    let nodes = Nodes::start(3);
    let acquire = || {
        let words = ["--json", "--permits", "2", "--wait", "5s", "--ttl", "60s", "k"];
        let output = on(&nodes, "acquire").args(words).output().unwrap();
        assert_ok(&output);
        json(&output)
    };
    let (first, second) = (acquire(), acquire());
    let mut permits = [first["permit"].as_u64().unwrap(), second["permit"].as_u64().unwrap()];
    permits.sort_unstable();
    assert_eq!(permits, [0, 1]);
    let refused = |options: &[&str]| {
        output_retried_on_122(|| {
            on(&nodes, "acquire").args(options).args(["-n", "k"]).output().unwrap()
        })
    };
    let held = refused(&["--permits", "2"]);
    assert_error(&held, 121, "another client ");
    assert_eq!(stdout(&held), "");
    // A permit that is extended keeps its slot, and is released by its last handle.
    let output = with_handle(&nodes, &["extend", "--json"], &first.to_string());
    assert_eq!(json(&output)["permit"], first["permit"]);
    assert_error(&refused(&["--permits", "1"]), 121, "use the same `--permits` everywhere");
    let last = json(&output)["handle"].as_str().unwrap().to_owned();
    let released = with_input(on(&nodes, "release").arg("-"), &last);
    assert!([0, 122].contains(&code(released.status)), "{released:?}");
    assert_eq!(acquire()["permit"], first["permit"]);
}

#[test]
fn missing_majority_gives_exit_code_122() {
    let mut nodes = Nodes::start(3);
    let handle = acquire(&nodes);
    nodes[0].kill();
    nodes[1].kill();
    let output = with_handle(&nodes, &["extend"], &handle);
    assert_eq!((code(output.status), stdout(&output)), (122, ""));
    let output = with_input(on(&nodes, "release").arg("-"), &handle);
    assert_error(&output, 122, ". The lock ends by its ttl");
}

#[test]
fn signal_ends_the_wait_for_a_handle_and_the_attempt_to_connect() {
    for subcommand in ["extend", "release"] {
        let waiting =
            Running::start(on_urls(&["redis+unix:///nowhere".into()], subcommand).arg("-"));
        // This is more than a pipe holds: once it is written, the program reads.
        waiting.say(&" ".repeat(200_000));
        waiting.signal(Signal::TERM);
        let signal = waiting.wait_for_end().status.signal();
        assert_eq!(signal, Some(Signal::TERM.as_raw()), "{subcommand}");
    }

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let running = Running::start(on_urls(&[url], "extend").arg(HANDLE));
    let _connection = silent.accept().unwrap();
    let sent = Instant::now();
    running.signal(Signal::TERM);
    assert_eq!(code(running.wait_for_end().status), 143);
    // By itself, the attempt would end after 2 s.
    assert!(sent.elapsed() < Duration::from_millis(1800), "the program waited for the node");
}

#[test]
fn lock_whose_handle_cannot_be_printed_is_released() {
    let nodes = Nodes::start(3);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = on(&nodes, "acquire");
    command.args(TTL).arg("k").stdout(full).stderr(Stdio::piped());
    eventually(PATIENCE, "a majority answers the release in time", || {
        nodes.iter().for_each(|node| exec(node, &["DEL", "k"]));
        let output = command.output().unwrap();
        assert_error(&output, 125, "cannot print the handle: ");
        stderr(&output).contains("the lock is released")
            && holds_within(Duration::from_secs(1), || nodes_holding(&nodes) == 0)
    });
}

#[test]
fn error_of_a_ttl_that_is_too_long_names_the_limit() {
    let nodes = Nodes::start(3);
    let output = on(&nodes, "acquire").args(["--ttl", "5m", "k"]).output().unwrap();
    let advice = "at most 60000 ms: lower the ttl or raise lock.max-ttl";
    assert_error(&output, 125, advice);
    let handle = acquire(&nodes);
    assert_error(&with_handle(&nodes, &["extend", "--ttl", "5m"], &handle), 125, advice);
}

#[test]
fn text_that_is_no_handle_is_refused_and_not_shown() {
    let part = HANDLE.strip_suffix(":1:1").unwrap();
    for other in ["", "\n", part, "{}", "{\"handle\": 5}", "{\"handle\": \"x\"}"] {
        for subcommand in ["extend", "release"] {
            let mut command = on_urls(&["redis+unix:///nowhere".into()], subcommand);
            let output = with_input(command.arg("-"), other);
            assert_error(&output, 125, "quorlock acquire");
            assert!(!stderr(&output).contains(token(HANDLE)), "{}", stderr(&output));
        }
    }
}

#[test]
fn shared_lock_of_a_script_stays_shared() {
    let nodes = Nodes::start(3);
    let shared = ["--ttl", "60s", "--wait", "5s", "--shared", "k"];
    let handles = [(); 2].map(|()| {
        let output = on(&nodes, "acquire").args(shared).output().unwrap();
        assert_ok(&output);
        stdout(&output).to_owned()
    });
    assert_ok(&with_handle(&nodes, &["extend"], &handles[0]));
    let output = on(&nodes, "acquire").args(shared).output().unwrap();
    assert_ok(&output);
}
