//! Which commands of a client the user may not run.

use quorlock_core::client::NodeError;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value, cmd};

use crate::fleet::{Node, Replies, replies};
use crate::output::escape;

/// A right that the user lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// The right to run this command.
    Command(&'static str),
    /// The right to use this key, which is escaped for a terminal.
    Key(String),
}

/// Only locks of several keys need these.
pub(super) const ONLY_FOR_SEVERAL_KEYS: [&str; 3] =
    ["LOCK.MACQUIRE", "LOCK.MEXTEND", "LOCK.MRELEASE"];

/// The commands of a client, in a form that changes nothing: the module refuses an empty token
/// after the server has checked the rights.
const COMMANDS: [(&str, &[&str]); 10] = [
    ("LOCK.ACQUIRE", &[KEY, "", "1"]),
    ("LOCK.EXTEND", &[KEY, "", "1"]),
    ("LOCK.RELEASE", &[KEY, ""]),
    ("LOCK.INSPECT", &[KEY]),
    ("LOCK.MACQUIRE", &["1", KEY, "", "1"]),
    ("LOCK.MEXTEND", &["1", KEY, "", "1"]),
    ("LOCK.MRELEASE", &["1", KEY, ""]),
    ("LOCK.ACQUIREANY", &["1", KEY, "", "1"]),
    ("INFO", &["lock"]),
    ("PING", &[]),
];

/// A placeholder for the key of `--lock`. Without that option, a denial of this key is ignored.
const KEY: &str = "quorlock-doctor";

/// Returns the rights that the user lacks; none if the node does not answer. With `key`, also
/// checks the right to use that key.
pub(super) async fn denied(node: &Node, key: Option<&str>) -> Vec<Denial> {
    node.ask(async |connection| ask(connection, key).await).await.unwrap_or_default()
}

async fn ask(
    connection: &mut MultiplexedConnection,
    key: Option<&str>,
) -> Result<Vec<Denial>, NodeError> {
    let user: Option<String> = cmd("ACL").arg("WHOAMI").query_async(connection).await.ok();
    if let Some(user) = user {
        let mut requests = Pipeline::with_capacity(COMMANDS.len());
        for (name, arguments) in COMMANDS {
            requests.cmd("ACL").arg("DRYRUN").arg(&user).arg(name).arg(with_key(arguments, key));
        }
        let replied: Replies<{ COMMANDS.len() }> = replies(&requests, connection).await?;
        if replied.iter().all(|reply| !matches!(reply, Err(NodeError::Denied { .. }))) {
            return Ok(denials(&replied, key));
        }
    }
    // A user that may not run ACL DRYRUN tries the commands themselves.
    let mut requests = Pipeline::with_capacity(COMMANDS.len());
    for (name, arguments) in COMMANDS {
        requests.cmd(name).arg(with_key(arguments, key));
    }
    let replied: Replies<{ COMMANDS.len() }> = replies(&requests, connection).await?;
    Ok(denials(&replied, key))
}

fn with_key<'a>(arguments: &[&'a str], key: Option<&'a str>) -> Vec<&'a str> {
    arguments
        .iter()
        .map(|argument| if *argument == KEY { key.unwrap_or(KEY) } else { argument })
        .collect()
}

/// Reads the replies of DRYRUN, or of the commands themselves.
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

#[cfg(test)]
mod tests {
    use super::*;

    const DRYRUN: &str = "User locker has no permissions to run the 'lock.release' command";
    const NOPERM_KEY: &str = "NOPERM No permissions to access a key";

    fn replies(words: &str, at: usize) -> Vec<Result<Value, NodeError>> {
        let mut replies: Vec<_> = COMMANDS.iter().map(|_| Ok(Value::Okay)).collect();
        let is_error = words.starts_with("NOPERM");
        replies[at] = if is_error {
            Err(NodeError::Denied { reason: words.into() })
        } else {
            Ok(Value::BulkString(words.into()))
        };
        replies
    }

    #[test]
    fn denied_command_differs_from_denied_key() {
        assert_eq!(denials(&replies(DRYRUN, 2), None), [Denial::Command("LOCK.RELEASE")]);
        let noperm = "NOPERM this user has no permissions to run the 'ping' command";
        assert_eq!(denials(&replies(noperm, 8), None), [Denial::Command("PING")]);
        assert_eq!(denials(&replies(NOPERM_KEY, 0), None), [], "no key was given");
        assert_eq!(
            denials(&replies(NOPERM_KEY, 0), Some("a\x07")),
            [Denial::Key("a\\u{7}".into())]
        );
        assert_eq!(
            denials(&replies("# lock", 7), None),
            [],
            "a reply to INFO means that INFO is allowed"
        );
    }

    #[test]
    fn commands_are_tried_with_the_given_key() {
        assert_eq!(with_key(COMMANDS[4].1, Some("orders/1")), ["1", "orders/1", "", "1"]);
        assert_eq!(with_key(COMMANDS[0].1, None), [KEY, "", "1"]);
    }
}
