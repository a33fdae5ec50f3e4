//! Which rights the ACL user of a program lacks: to run a command, or to use the key of `--lock`.

use quorlock_core::NodeError;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value, cmd};

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
    let replies = node.ask(async |connection| ask(connection, key).await).await;
    replies.map(|replies| findings(&replies, key)).unwrap_or_default()
}

async fn ask(
    connection: &mut MultiplexedConnection,
    key: Option<&[u8]>,
) -> Result<Replies<{ COMMANDS.len() }>, NodeError> {
    let key = key.unwrap_or(PLACEHOLDER_KEY.as_bytes());
    let send = async |connection: &mut _, prefix: &[&str]| {
        let mut requests = Pipeline::with_capacity(COMMANDS.len());
        for (name, arguments) in COMMANDS {
            let request = match prefix {
                [first, rest @ ..] => requests.cmd(first).arg(rest).arg(name),
                [] => requests.cmd(name),
            };
            for argument in arguments {
                request.arg(if *argument == PLACEHOLDER_KEY { key } else { argument.as_bytes() });
            }
        }
        replies(&requests, connection).await
    };
    let user: Option<String> = cmd("ACL").arg("WHOAMI").query_async(connection).await.ok();
    if let Some(user) = user {
        let replied = send(connection, &["ACL", "DRYRUN", &user]).await?;
        if replied.iter().all(|reply| !matches!(reply, Err(NodeError::Denied { .. }))) {
            return Ok(replied);
        }
    }
    // The user may not run ACL WHOAMI or ACL DRYRUN: sends the commands themselves.
    send(connection, &[]).await
}

fn findings(replies: &[Result<Value, NodeError>], key: Option<&[u8]>) -> Vec<Finding> {
    let (mut for_all, mut for_several_keys, mut key_is_denied) = (Vec::new(), Vec::new(), false);
    for ((command, _), reply) in COMMANDS.into_iter().zip(replies) {
        let words = match reply {
            Err(NodeError::Denied { reason }) => reason.clone(),
            Ok(Value::BulkString(words)) => String::from_utf8_lossy(words).into_owned(),
            _ => continue,
        };
        if !words.contains("permissions to run the") {
            key_is_denied |= words.contains("permissions to access");
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
