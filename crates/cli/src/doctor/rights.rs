//! Which rights the ACL user of a program lacks: to run a command, or to use the key of `--lock`.

use quorlock_core::NodeError;
use redis::{Pipeline, Value};

use crate::fleet::{Finding, Node, Replies, replies};
use crate::output::escape_short;

/// The commands that only locks of several keys and semaphores need.
const COMMANDS_FOR_SEVERAL_KEYS: [&str; 4] =
    ["LOCK.MACQUIRE", "LOCK.MEXTEND", "LOCK.MRELEASE", "LOCK.ACQUIREANY"];

/// The commands of a client, in a form that changes nothing: the module refuses an empty token
/// after the server has checked the rights.
const COMMANDS: [(&str, &[&str]); 10] = [
    ("LOCK.ACQUIRE", &[PLACEHOLDER_KEY, "", "1"]),
    ("LOCK.EXTEND", &[PLACEHOLDER_KEY, "", "1"]),
    ("LOCK.RELEASE", &[PLACEHOLDER_KEY, ""]),
    ("LOCK.INSPECT", &[PLACEHOLDER_KEY]),
    ("LOCK.MACQUIRE", &["1", PLACEHOLDER_KEY, "", "1"]),
    ("LOCK.MEXTEND", &["1", PLACEHOLDER_KEY, "", "1"]),
    ("LOCK.MRELEASE", &["1", PLACEHOLDER_KEY, ""]),
    ("LOCK.ACQUIREANY", &["1", PLACEHOLDER_KEY, "", "1"]),
    ("INFO", &["lock"]),
    ("PING", &[]),
];

/// The key in [`COMMANDS`]. The key of `--lock` replaces it. Without `--lock`, a denial of the
/// right to use it is ignored.
const PLACEHOLDER_KEY: &str = "quorlock-doctor";

/// Returns the findings about the rights of the user; none if the node does not answer. `key` is
/// that of `--lock`.
pub(super) async fn check(node: &Node, key: Option<&[u8]>) -> Vec<Finding> {
    let requests = requests(key.unwrap_or(PLACEHOLDER_KEY.as_bytes()));
    let replies: Result<Replies<{ COMMANDS.len() }>, _> =
        node.ask(async |connection| replies(&requests, connection).await).await;
    replies.map(|replies| findings(&replies, key)).unwrap_or_default()
}

fn requests(key: &[u8]) -> Pipeline {
    let mut requests = Pipeline::with_capacity(COMMANDS.len());
    for (name, arguments) in COMMANDS {
        let request = requests.cmd(name);
        for argument in arguments {
            request.arg(if *argument == PLACEHOLDER_KEY { key } else { argument.as_bytes() });
        }
    }
    requests
}

fn findings(replies: &[Result<Value, NodeError>], key: Option<&[u8]>) -> Vec<Finding> {
    let (mut for_all, mut for_several_keys, mut key_is_denied) = (Vec::new(), Vec::new(), false);
    for ((command, _), reply) in COMMANDS.into_iter().zip(replies) {
        let Err(NodeError::Denied { reason }) = reply else { continue };
        if !reason.contains("permissions to run the") {
            key_is_denied |= reason.contains("permissions to access");
        } else if COMMANDS_FOR_SEVERAL_KEYS.contains(&command) {
            for_several_keys.push(command);
        } else {
            for_all.push(command);
        }
    }
    let mut findings = Vec::new();
    for (finding, commands, needed_by) in [
        (Finding::error as fn(_, String, String) -> _, for_all, "clients"),
        (Finding::warning, for_several_keys, "locks of several keys and semaphores"),
    ] {
        let Some((last, others)) = commands.split_last() else { continue };
        let and = if others.is_empty() { "" } else { " and " };
        let names = format!("{}{and}{last}", others.join(", "));
        let rights = commands.join(" +").to_lowercase();
        findings.push(finding(
            "rights",
            format!("the user may not run {names}, which {needed_by} need"),
            format!("give the user +{rights}, with ACL SETUSER and in the server's ACL file"),
        ));
    }
    if let (Some(key), true) = (key, key_is_denied) {
        findings.push(Finding::error(
            "rights",
            format!("the user may not use the key {}", escape_short(key)),
            "give the user its keys, such as ~orders/*, with ACL SETUSER and in the server's ACL \
             file",
        ));
    }
    findings
}
