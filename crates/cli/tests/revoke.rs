//! `quorlock revoke`: the command of the old holder ends before the next holder begins.

use std::iter;
use std::path::Path;
use std::process::Output;

use crate::common::*;
use quorlock_testkit::{Direction, Nodes, Proxy, Server, eventually};
use tempfile::NamedTempFile;

const TTL: [&str; 4] = ["--ttl", "3s", "--node-timeout", "300ms"];
/// With this ttl, a command runs for up to 450 ms after its lock was lost.
const LONG_TTL: &str = "9s";

/// Ends slowly after SIGTERM.
fn obedient(file: &Path) -> String {
    alone(file, "trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.02; done")
}

fn stubborn(file: &Path) -> String {
    alone(file, "trap '' TERM; while :; do sleep 0.02; done")
}

fn revoke(nodes: &Nodes, options: &[&str]) -> Running {
    Running::start(on(nodes, "revoke").args(options).arg("k"))
}

/// Waits until a line of standard error has this text.
#[track_caller]
fn wait_for_message(running: &Running, text: &str) {
    let mut said = iter::from_fn(|| running.stderr.next());
    assert!(said.any(|line| line.contains(text)), "{text:?} was not said");
}

#[track_caller]
fn revoke_to_the_end(nodes: &Nodes, options: &[&str]) -> Output {
    let output = revoke(nodes, options).wait_for_end();
    assert_ok(&output);
    output
}

/// Starts a revocation, and waits until a majority has revoked the lock.
#[track_caller]
fn revoke_and_wait(nodes: &Nodes) -> Running {
    let revocation = revoke(nodes, &["--yes"]);
    wait_for_message(&revocation, "revoked; the lock ends within");
    revocation
}

/// A holder whose command runs this script, and a waiter whose command says whether it is alone.
/// Both commands lock the file.
fn holder_and_waiter(
    nodes: &Nodes,
    ttl: &str,
    script: fn(&Path) -> String,
) -> (NamedTempFile, Running, Running) {
    let file = NamedTempFile::new().unwrap();
    let options = ["--ttl", ttl, "--node-timeout", "300ms"];
    let holder = start_script(nodes, &options, &script(file.path()));
    assert_eq!(holder.line(), "alone");
    wait_until_all_hold(nodes);
    let waiter = start_script(nodes, &["--owner", "web-4"], &alone(file.path(), ""));
    let has_waiter = |node: &Server| info_number(node, "lock_waiters") > 0;
    eventually(PATIENCE, "a client waits", || nodes.iter().any(has_waiter));
    (file, holder, waiter)
}

#[test]
fn revoked_command_is_stopped_before_the_next_holder_begins() {
    let mut next_is_named = false;
    for script in [obedient, stubborn] {
        let nodes = Nodes::start(3);
        let (_file, holder, waiter) = holder_and_waiter(&nodes, "4s", script);
        let output = revoke_to_the_end(&nodes, &["--yes"]);
        let (answers, said) = (stdout(&output), stderr(&output));
        // On a busy machine, the node on which the waiter waits may answer the inspection late.
        next_is_named |= said.contains("then web-4 acquires the lock");
        assert_contains(said, "quorlock: the lock is over");
        // A late answer is on standard error.
        let revoked = [answers, said].concat().matches("revoked from ").count();
        assert_eq!(revoked, 3, "{answers}{said}");
        assert_eq!(waiter.line(), "alone");
        assert_eq!(code(waiter.wait_for_end().status), 0);
        let mut said = iter::from_fn(|| holder.stderr.next());
        let news = said.find(|line| line.contains("an operator revoked the lock on ")).unwrap();
        // The news may precede the answer of the third node.
        let is_named =
            |node: &&Server| news.contains(node.url().trim_start_matches("redis+unix://"));
        assert!(nodes.iter().filter(is_named).count() >= 2, "{news}");
        assert!(news.contains("the command is stopped before that"), "{news}");
        // The last message does not contain the nodes' answers, which are out of date by then.
        let last = "quorlock: the command was stopped: an operator revoked the lock";
        assert!(said.any(|line| line == last));
        assert_eq!(code(holder.wait_for_end().status), 120);
    }
    assert!(next_is_named);
}

/// The baseline of the test above: an operator deletes the lock instead of revoking it.
#[test]
fn deleted_lock_has_two_holders_for_a_while() {
    let nodes = Nodes::start(3);
    let (_file, _holder, waiter) = holder_and_waiter(&nodes, LONG_TTL, stubborn);
    nodes.iter().for_each(|node| exec(node, &["DEL", "k"]));
    assert_eq!(waiter.line(), "together");
}

#[test]
fn option_now_ends_the_lock_while_its_holder_runs() {
    let nodes = Nodes::start(3);
    let (_file, holder, waiter) = holder_and_waiter(&nodes, LONG_TTL, stubborn);
    let output = revoke_to_the_end(&nodes, &["--now", "--yes"]);
    assert_contains(stderr(&output), "may continue to run at the same time as the next holder");
    assert_contains(stderr(&output), "may still run for");
    assert_eq!(waiter.line(), "together");
    assert_eq!(code(holder.wait_for_end().status), 120);
}

/// The append-only file of the node that crashes has the revocation.
#[test]
fn revocation_stands_when_a_node_is_down_and_another_crashes() {
    let mut nodes = Nodes::start_with(3, |_, builder| {
        builder.arg("appendonly", "yes").arg("appendfsync", "always").arg("lock.rejoin-delay", 0)
    })
    .unwrap();
    let (_file, holder, waiter) = holder_and_waiter(&nodes, "4s", obedient);
    nodes[2].kill();
    let revocation = revoke_and_wait(&nodes);
    nodes[0].kill();
    nodes[0].restart().unwrap();
    assert_ok(&revocation.wait_for_end());
    assert_eq!(waiter.line(), "alone");
    assert_eq!(code(holder.wait_for_end().status), 120);
}

#[test]
fn minority_that_revokes_is_reported_and_does_not_end_the_lock() {
    let Net { nodes, proxies } = Net::start();
    let file = NamedTempFile::new().unwrap();
    let holder = start_script(&nodes, &TTL, &obedient(file.path()));
    assert_eq!(holder.line(), "alone");
    wait_until_all_hold(&nodes);
    proxies[1..].iter().for_each(Proxy::cut);
    let urls = [nodes[0].url(), proxies[1].url(), proxies[2].url()];
    let revocation = on_urls(&urls, "revoke").args(["k", "--yes"]).output().unwrap();
    assert_error(&revocation, 122, "too few nodes revoked the lock: the holder may extend it");
    assert_eq!(stdout(&revocation).matches("revoked from ").count(), 1, "{}", stdout(&revocation));
    eventually(PATIENCE, "the revoked lease has ended", || nodes_holding(&nodes) == 2);
    proxies.iter().for_each(Proxy::heal);
    // The lock is revoked on the other two nodes, which are a majority.
    revoke_to_the_end(&nodes, &["--yes"]);
    assert_eq!(code(holder.wait_for_end().status), 120);
}

#[test]
fn lock_is_revoked_later_on_a_node_that_answers_late() {
    let net = Net::start();
    let (nodes, late) = (&net.nodes, &net.proxies[2]);
    let (_file, _holder, waiter) = holder_and_waiter(nodes, "4s", obedient);
    late.drop_bytes(Direction::ToServer);
    let revocation = Running::start(on_urls(&net.urls(), "revoke").args(["k", "--yes"]));
    wait_for_message(&revocation, "revoked; the lock ends within");
    assert_eq!(nodes_revoked(nodes), 2);
    late.cut();
    late.heal();
    eventually(PATIENCE, "the third node is asked again", || nodes_revoked(nodes) == 3);
    wait_for_message(&revocation, ": revoked from ");
    assert_eq!(code(revocation.wait_for_end().status), 0);
    assert_eq!(waiter.line(), "alone");
}

#[test]
fn free_lock_is_not_revoked_and_a_revoked_lock_is_not_extended() {
    let nodes = Nodes::start(3);
    let output = on(&nodes, "revoke").args(["k", "--yes"]).output().unwrap();
    assert_error(&output, 123, "k is free");
    let output = on(&nodes, "acquire").args(["k", "--ttl", "4s"]).output().unwrap();
    let handle = stdout(&output).trim().to_owned();
    let revocation = revoke_and_wait(&nodes);
    let output = output_retried_on_122(|| with_input(on(&nodes, "extend").arg("-"), &handle));
    assert_error(&output, 120, "an operator revoked the lock");
    assert_eq!(stdout(&output), "");
    assert_ok(&revocation.wait_for_end());
}
