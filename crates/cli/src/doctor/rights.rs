//! Which rights the ACL user of a program lacks: to run a command, or to use the key of `--lock`.

use quorlock_core::client::NodeError;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value, cmd};

use crate::fleet::{Node, Replies, replies};
use crate::output::escape;

/// A right that the user lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    Command(&'static str),
    /// The key is escaped for a terminal.
    Key(String),
}

/// The commands that only locks of several keys and semaphores need.
pub(super) const COMMANDS_FOR_SEVERAL_KEYS: [&str; 4] =
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

/// Returns the rights that the user lacks; none if the node does not answer. `key` is that of
/// `--lock`.
pub(super) async fn denied(node: &Node, key: Option<&str>) -> Vec<Denial> {
    node.ask(async |connection| ask(connection, key).await).await.unwrap_or_default()
}

async fn ask(
    connection: &mut MultiplexedConnection,
    key: Option<&str>,
) -> Result<Vec<Denial>, NodeError> {
    let send = async |connection: &mut _, prefix: &[&str]| {
        let mut requests = Pipeline::with_capacity(COMMANDS.len());
        for (name, arguments) in COMMANDS {
            let words = [prefix, &[name], &with_key(arguments, key)].concat();
            requests.cmd(words[0]).arg(&words[1..]);
        }
        replies(&requests, connection).await
    };
    let user: Option<String> = cmd("ACL").arg("WHOAMI").query_async(connection).await.ok();
    if let Some(user) = user {
        let replied: Replies<{ COMMANDS.len() }> =
            send(connection, &["ACL", "DRYRUN", &user]).await?;
        if replied.iter().all(|reply| !matches!(reply, Err(NodeError::Denied { .. }))) {
            return Ok(denials(&replied, key));
        }
    }
    // The user may not run ACL WHOAMI or ACL DRYRUN: sends the commands themselves.
    let replied: Replies<{ COMMANDS.len() }> = send(connection, &[]).await?;
    Ok(denials(&replied, key))
}

fn with_key<'a>(arguments: &[&'a str], key: Option<&'a str>) -> Vec<&'a str> {
    let key = key.unwrap_or(PLACEHOLDER_KEY);
    let replace = |&argument: &&'a str| if argument == PLACEHOLDER_KEY { key } else { argument };
    arguments.iter().map(replace).collect()
}

fn denials(replies: &[Result<Value, NodeError>], key: Option<&str>) -> Vec<Denial> {
    let mut denials = Vec::new();
    for ((name, _), reply) in COMMANDS.iter().zip(replies) {
        let words = match reply {
            Err(NodeError::Denied { reason }) => reason.clone(),
            Ok(Value::BulkString(words)) => String::from_utf8_lossy(words).into_owned(),
            _ => continue,
        };
        if words.contains("permissions to run the") {
            denials.push(Denial::Command(name));
        } else if words.contains("permissions to access")
            && let Some(key) = key
            && !denials.iter().any(|denial| matches!(denial, Denial::Key(_)))
        {
            denials.push(Denial::Key(escape(key)));
        }
    }
    denials
}
