//! `quorlock inspect` and `quorlock list`.

use std::process::Output;

use crate::common::*;
use quorlock_testkit::Nodes;
use serde_json::Value;

/// The output of this subcommand and its arguments.
fn output_of(nodes: &Nodes, words: &[&str]) -> Output {
    on(nodes, words[0]).args(&words[1..]).output().unwrap()
}

/// Runs this subcommand until standard output contains this text.
#[track_caller]
fn until_shown(nodes: &Nodes, words: &[&str], text: &str) -> Output {
    let mut command = on(nodes, words[0]);
    output_until(command.args(&words[1..]), |output| stdout(output).contains(text))
}

/// Inspects the lock `k` until the JSON is right, and returns it.
#[track_caller]
fn until_json(nodes: &Nodes, words: &[&str], is_right: impl Fn(&Value) -> bool) -> (Value, Output) {
    let mut inspect = on(nodes, "inspect");
    // Standard output is empty when no node answers in time.
    let json = |output: &Output| serde_json::from_slice(&output.stdout).unwrap_or_default();
    let output =
        output_until(inspect.args(["k", "--json"]).args(words), |output| is_right(&json(output)));
    (json(&output), output)
}

/// Options of `quorlock acquire`.
const KEPT: [&str; 4] = ["--ttl", "40s", "--owner", "web-1"];

/// Acquires a lock that no process releases.
fn acquire(nodes: &Nodes, key: &str) {
    assert_ok(&on(nodes, "acquire").arg(key).args(KEPT).output().unwrap());
}

/// Nodes that grant the proposed fence, so that a lock has the same fence on all of them.
fn agreeing_nodes() -> Nodes {
    Nodes::start_with(3, |_, builder| builder.arg("lock.max-clock-skew", 1)).unwrap()
}

#[test]
fn key_that_is_free_foreign_or_on_a_minority_is_shown_as_such() {
    let nodes = Nodes::start(3);
    let output = output_of(&nodes, &["inspect", "k"]);
    assert_eq!(code(output.status), 123);
    let text = stdout(&output);
    assert!(text.starts_with("k: free\n"), "{text}");
    assert!(text.ends_with("asks for the lock acquires it.\n"), "{text}");
    assert_eq!(text.lines().count(), 6, "{text}");
    let output = output_of(&nodes, &["inspect", "k", "--json"]);
    assert_eq!((code(output.status), &json(&output)["state"]), (123, &"free".into()));

    nodes.iter().for_each(|node| exec(node, &["SET", "k", "v", "PX", "60000"]));
    let output = output_of(&nodes, &["inspect", "k"]);
    assert_ok(&output);
    assert_contains(stdout(&output), "k: taken by a program that uses SET\n");
    assert_eq!(json(&output_of(&nodes, &["inspect", "k", "--json"]))["state"], "foreign");
    assert_eq!(stdout(&output_of(&nodes, &["list"])).lines().count(), 1, "the key is no lock");

    exec(&nodes[0], &["LOCK.ACQUIRE", "l", "t", "60000"]);
    until_shown(&nodes, &["list"], "on a minority of the nodes only");
}

#[test]
fn held_lock_has_an_owner_a_fence_times_and_waiters() {
    let nodes = agreeing_nodes();
    let holder = Holder::start(&nodes, &["--ttl", "30s", "--owner", "web-3"]);
    wait_until_all_hold(&nodes);
    let waiter = start_script(&nodes, &["--owner", "\u{1b}[31mweb-4"], ":");
    let is_owner = |node: &Value| node["owner"] == "web-3";
    let (lock, _) = until_json(&nodes, &[], |lock| {
        lock["waiters"] == 1 && lock["nodes"].as_array().unwrap().iter().all(is_owner)
    });
    assert_eq!(
        (&lock["state"], &lock["owner"], &lock["revoked"]),
        (&"held".into(), &"web-3".into(), &false.into())
    );
    assert_eq!(lock["queue"][0]["owner"], "\u{1b}[31mweb-4");
    let ms = |name: &str| lock[name].as_u64().unwrap();
    assert!(ms("at_most_ms") <= 30_000 && ms("held_ms") < 20_000 && ms("fence") > 0, "{lock}");
    let output = output_until(on(&nodes, "inspect").arg("k"), |output| {
        let text = stdout(output);
        text.starts_with("k: held by web-3 on 3 of 3 nodes\n") && text.contains("  waiting  1: ")
    });
    let text = stdout(&output);
    assert_eq!(code(output.status), 0);
    assert!(text.contains(r"waiting  1: \u{1b}[31mweb-4 (") && !text.contains('\u{1b}'), "{text}");
    assert!(text.contains("from now at most, unless it is extended"), "{text}");
    drop(waiter);
    holder.release();
}

#[test]
fn shared_lock_is_shown_with_every_holder() {
    let nodes = agreeing_nodes();
    let owners = ["web-1", "web-2", "web-3"];
    let holders = owners.map(|owner| Holder::start(&nodes, &["--shared", "--owner", owner]));
    let (lock, _) = until_json(&nodes, &[], |lock| {
        lock["holders"] == 3
            && lock["nodes"].as_array().unwrap().iter().all(|node| node["holders"] == 3)
    });
    assert_eq!((&lock["mode"], &lock["holders"]), (&"shared".into(), &3.into()));
    assert_eq!(lock["owners"], serde_json::json!(owners));
    let output = until_shown(&nodes, &["inspect", "k"], "k: shared by 3 clients on 3 of 3 nodes\n");
    let text = stdout(&output);
    assert!(text.contains("  holders  3: web-1, web-2, web-3\n"), "{text}");
    assert!(text.contains("web-1 +2"), "{text}");
    until_shown(&nodes, &["list"], "shared by 3 clients on 3 of 3");
    holders.into_iter().for_each(Holder::release);
}

#[test]
fn semaphore_is_shown_as_a_whole() {
    let nodes = agreeing_nodes();
    let is_free = |slot: &Value| slot["state"] == "free";
    let permits = ["--permits", "2"];
    let (free, output) = until_json(&nodes, &permits, |free| {
        free["slots"].as_array().is_some_and(|slots| slots.iter().all(is_free))
    });
    assert_eq!((&free["held"], code(output.status)), (&0.into(), 123));
    let options = |owner| ["--permits", "2", "--owner", owner];
    let holders = ["web-1", "web-2"].map(|owner| Holder::start(&nodes, &options(owner)));
    let waiter = start_script(&nodes, &options("web-3"), ":");
    let (shown, output) =
        until_json(&nodes, &permits, |shown| shown["waiters"] == 1 && shown["held"] == 2);
    assert_eq!((code(output.status), stderr(&output)), (0, ""));
    assert_eq!(shown["permits"], 2);
    assert_eq!(shown["queue"][0]["owner"], "web-3");
    let mut owners: Vec<_> = (0..2).map(|slot| shown["slots"][slot]["owner"].as_str()).collect();
    owners.sort_unstable();
    assert_eq!(owners, [Some("web-1"), Some("web-2")]);
    let start = "k: 2 of 2 permits held\n  waiting  1: web-3 (";
    let output = until_shown(&nodes, &["inspect", "k", "--permits", "2"], start);
    assert_contains(stdout(&output), "1     k:01  held by web-");
    drop(waiter);
    holders.into_iter().for_each(Holder::release);
}

#[test]
fn larger_number_of_permits_is_noticed() {
    let nodes = agreeing_nodes();
    let holders = [(); 3].map(|()| Holder::start(&nodes, &["--permits", "3"]));
    let (_, output) = until_json(&nodes, &["--permits", "2"], |shown| {
        shown["held"] == 3 && shown["larger_permits"] == 3
    });
    assert_contains(stderr(&output), "another client gives k at least 3 permits");
    let (shown, output) = until_json(&nodes, &["--permits", "3"], |shown| shown["held"] == 3);
    assert_eq!((&shown["larger_permits"], stderr(&output)), (&Value::Null, ""));
    // `quorlock run` warns, too, when the semaphore is full.
    let waiting = start_script(&nodes, &["--permits", "2"], ":");
    assert!(waiting.error_line().contains("at least 3 permits"));
    drop(waiting);
    holders.into_iter().for_each(Holder::release);
}

#[test]
fn revoked_lock_is_shown_as_revoked() {
    let nodes = agreeing_nodes();
    acquire_everywhere(&nodes, &KEPT);
    let revoke = |count: usize, start: &str| {
        nodes.iter().take(count).for_each(|node| exec(node, &["LOCK.REVOKE", "k"]));
        let output = until_shown(&nodes, &["inspect", "k"], start);
        assert_eq!(code(output.status), 0);
        stdout(&output).to_owned()
    };
    let text = revoke(1, "k: held by web-1 on 3 of 3 nodes\n");
    assert!(text.contains("revoked it on 1 of 3 nodes only: the holder can extend it"), "{text}");
    let text = revoke(3, "k: held by web-1 on 3 of 3 nodes, revoked\n");
    assert!(text.contains("The holder cannot extend it any more."), "{text}");
    assert!(!text.contains("unless it is extended"), "{text}");
    until_json(&nodes, &[], |lock| lock["revoked"] == true);
}

#[test]
fn node_that_is_down_is_named_with_the_reason() {
    let mut nodes = agreeing_nodes();
    acquire_everywhere(&nodes, &KEPT);
    nodes[1].kill();
    let output = until_shown(&nodes, &["inspect", "k"], "k: held by web-1 on 2 of 3 nodes");
    assert_ok(&output);
    assert_contains(stdout(&output), "not connected");
    until_json(&nodes, &[], |lock| lock["nodes"][1]["error"].is_string());
    let listed = until_shown(&nodes, &["list"], "held by web-1 on 2 of 3 nodes");
    assert_eq!(code(listed.status), 0);
    assert_contains(stderr(&listed), "may lack locks");

    nodes[2].kill();
    let output = until_shown(&nodes, &["inspect", "k"], "k: unknown: too few nodes answered");
    assert_eq!(code(output.status), 122);
    assert_eq!(code(output_of(&nodes, &["list"]).status), 122);
    nodes[0].kill();
    for output in [output_of(&nodes, &["inspect", "k"]), output_of(&nodes, &["list"])] {
        assert_error(&output, 122, "no node");
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn locks_are_listed_in_the_order_of_their_keys() {
    let nodes = agreeing_nodes();
    let empty = output_of(&nodes, &["list"]);
    assert_eq!((code(empty.status), stdout(&empty).lines().count()), (0, 1));
    for key in ["orders/9", "a\u{1b}]0;x\u{7}", "orders/10", "zoo"] {
        acquire(&nodes, key);
    }
    let keys = |words: &[&str]| {
        let output = output_of(&nodes, &[&["list"], words].concat());
        assert_ok(&output);
        let lines = stdout(&output).lines().skip(1);
        let keys = lines.map(|line| line.split("  ").next().unwrap().to_owned());
        (keys.collect::<Vec<_>>(), stderr(&output).to_owned())
    };
    let escaped = r"a\u{1b}]0;x\u{7}";
    assert_eq!(keys(&[]).0, [escaped, "orders/10", "orders/9", "zoo"]);
    assert_eq!(keys(&["orders/*"]).0, ["orders/10", "orders/9"]);
    assert_eq!(keys(&["orders/[0-9]"]).0, ["orders/9"]);
    let (first, said) = keys(&["--limit", "2"]);
    assert_eq!(first, [escaped, "orders/10"]);
    assert!(said.contains("only the first 2 locks are listed: raise --limit"), "{said}");
    let output = output_of(&nodes, &["list", "orders/*", "--json", "--limit", "1"]);
    let all = json(&output);
    assert_eq!((&all["truncated"], all["locks"].as_array().unwrap().len()), (&true.into(), 1));
    let lock = &all["locks"][0];
    assert_eq!((&lock["key"], &lock["owner"]), (&"orders/10".into(), &"web-1".into()));
}
