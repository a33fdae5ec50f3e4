//! Encodes requests as commands of Redis, and reads replies as responses.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, RedisError, Value, from_redis_value};
use quorlock_core::client::{Command, Keys, Mode, Request, Response, Spec};
use quorlock_core::{Fence, NodeError};

/// Room for the arguments of a command besides its keys.
const OTHER_ARGS: usize = 12;
const OTHER_BYTES: usize = 160;

/// The name of the command for one key, and for several: the same, with a number of keys.
const ANY: [&str; 2] = ["LOCK.ACQUIREANY"; 2];

/// A request in its encoded form. Cheap to clone, since most requests go to several nodes.
#[derive(Clone)]
pub(crate) struct Outgoing {
    pub(super) packet: Arc<Cmd>,
    command: Command,
    /// The keys of which the node may grant any one, for ACQUIREANY; `None` for other requests.
    any: Option<Keys>,
}

impl Outgoing {
    pub(crate) fn new(spec: &Spec, request: &Request) -> Self {
        let asks_for_any =
            matches!(request.command, Command::AcquireAny { .. } | Command::Wait { .. });
        let any = (asks_for_any && spec.any.is_some()).then(|| spec.keys.clone());
        Self { packet: Arc::new(build(spec, request)), command: request.command, any }
    }

    pub(super) fn read(&self, reply: Result<Value, RedisError>) -> Response {
        let value = match reply {
            Ok(Value::ServerError(error)) => return read_refusal(&error.into()),
            Ok(value) => value,
            Err(error) => return read_refusal(&error),
        };
        self.read_value(value).unwrap_or(Response::Failed(NodeError::UnexpectedReply))
    }

    /// `None` if the reply is not one to this command.
    fn read_value(&self, value: Value) -> Option<Response> {
        Some(match (self.command, value) {
            (Command::Release, Value::Int(0)) => Response::No,
            (Command::Yield, Value::Int(0)) => Response::Kept,
            (Command::Release | Command::Yield, Value::Int(1))
            | (Command::Ping, Value::SimpleString(_)) => Response::Yes,
            (Command::Release | Command::Ping, _) => return None,
            (_, Value::Nil) => Response::No,
            (Command::Wait { .. } | Command::AcquireAny { .. }, value @ Value::Array(_)) => {
                return self.read_grant(value);
            }
            (
                Command::Acquire { .. } | Command::Extend { .. } | Command::SwapToken { .. },
                Value::Int(fence),
            ) => {
                let fence = Fence::new(u64::try_from(fence).ok()?)?;
                Response::Granted { fence, waited: Duration::ZERO, key: None }
            }
            _ => return None,
        })
    }

    /// Reads a grant: the fence, and if the reply has them, the time waited and the key.
    fn read_grant(&self, value: Value) -> Option<Response> {
        let (fence, waited_us, key) = match (self.command, &self.any) {
            (Command::Wait { .. }, None) => {
                let (fence, waited_us) = from_redis_value::<(u64, u64)>(value).ok()?;
                (fence, waited_us, None)
            }
            (Command::Wait { .. }, Some(_)) => {
                let (fence, waited_us, key) =
                    from_redis_value::<(u64, u64, Vec<u8>)>(value).ok()?;
                (fence, waited_us, Some(key))
            }
            _ => {
                let (fence, key) = from_redis_value::<(u64, Vec<u8>)>(value).ok()?;
                (fence, 0, Some(key))
            }
        };
        let key = match key {
            Some(key) => Some(self.any.as_ref()?.iter().position(|asked| asked == key)?),
            None => None,
        };
        let waited = Duration::from_micros(waited_us);
        Some(Response::Granted { fence: Fence::new(fence)?, waited, key })
    }
}

fn build(spec: &Spec, request: &Request) -> Cmd {
    let Request { token, command } = request;
    let (token, ttl_ms, keys) = (token.as_str(), spec.ttl.ms(), &spec.keys);
    let [one, several] = match command {
        Command::Ping => return ::redis::cmd("PING"),
        Command::AcquireAny { .. } => ANY,
        Command::Wait { .. } if spec.any.is_some() => ANY,
        Command::Acquire { .. } | Command::Wait { .. } => ["LOCK.ACQUIRE", "LOCK.MACQUIRE"],
        Command::Extend { .. } | Command::SwapToken { .. } => ["LOCK.EXTEND", "LOCK.MEXTEND"],
        Command::Release => ["LOCK.RELEASE", "LOCK.MRELEASE"],
        Command::Yield => ["LOCK.YIELD", "LOCK.MYIELD"],
    };
    let key_bytes: usize = keys.iter().map(<[u8]>::len).sum();
    let mut cmd = Cmd::with_capacity(OTHER_ARGS + keys.len(), OTHER_BYTES + key_bytes);
    if keys.len() == 1 && one != several {
        cmd.arg(one);
    } else {
        cmd.arg(several).arg(keys.len());
    }
    for key in keys.iter() {
        cmd.arg(key);
    }
    match command {
        Command::Acquire { fence }
        | Command::AcquireAny { fence }
        | Command::Wait { fence, .. } => {
            cmd.arg(token).arg(ttl_ms);
            if let Command::Wait { wait, .. } = command {
                let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                cmd.arg("WAIT").arg(ms);
            }
            add_mode(spec, &mut cmd);
            cmd.arg("FENCE").arg(fence.get());
            if let Some(owner) = &spec.owner {
                cmd.arg("OWNER").arg(&**owner);
            }
        }
        Command::Extend { fence } => {
            cmd.arg(token).arg(ttl_ms);
            add_mode(spec, &mut cmd);
            if let Some(fence) = fence {
                cmd.arg("FENCE").arg(fence.get());
            }
        }
        Command::SwapToken { new } => {
            cmd.arg(token).arg(ttl_ms).arg("TOKEN").arg(new.as_str());
        }
        Command::Release | Command::Yield => {
            cmd.arg(token);
        }
        Command::Ping => {}
    }
    cmd
}

fn add_mode(spec: &Spec, cmd: &mut Cmd) {
    if spec.mode == Mode::Shared {
        cmd.arg("SHARED");
    }
}

/// Reads an error reply: `HELD number older` or `HELD number younger` is a refusal, and no failure.
fn read_refusal(error: &RedisError) -> Response {
    if error.code() != Some("HELD") {
        return Response::Failed(read_error(error));
    }
    let mut words = error.detail().unwrap_or_default().split([' ', ':']);
    let number = words.next().and_then(|number| number.parse().ok());
    let number = number.map(|number| Fence::new(number).unwrap_or_default());
    match (number, words.next()) {
        (Some(number), Some("older")) => Response::Held { number, is_older: true },
        (Some(number), Some("younger")) => Response::Held { number, is_older: false },
        _ => Response::Failed(NodeError::UnexpectedReply),
    }
}

/// Drops the text of the error `unknown command`, in which servers quote the command's arguments:
/// one of them is the token.
///
/// Not part of the API: the program `quorlock` reads the errors of nodes in the same way.
pub fn read_error(error: &RedisError) -> NodeError {
    let detail = error.detail().unwrap_or_default();
    let words = |code: &str| format!("{code} {detail}").trim_end().to_owned();
    match error.code() {
        Some("ABSTAIN") => NodeError::Abstains { reason: detail.to_owned() },
        Some("BADFENCE") => NodeError::ClockBehind { reason: detail.to_owned() },
        Some("QUEUEFULL") => NodeError::QueueFull { reason: detail.to_owned() },
        Some("REVOKED") => match detail.split(' ').next().and_then(|ms| ms.parse().ok()) {
            Some(left_ms) => NodeError::Revoked { left_ms },
            None => NodeError::UnexpectedReply,
        },
        Some("READONLY") => NodeError::Replica,
        Some(code @ ("NOPERM" | "NOAUTH" | "WRONGPASS")) => {
            NodeError::Denied { reason: words(code) }
        }
        _ if detail.starts_with("unknown command") => NodeError::NoModule,
        Some(code) => NodeError::of_error_reply(words(code)),
        None if error.is_io_error() || error.is_unrecoverable_error() => {
            NodeError::Down { reason: error.to_string() }
        }
        None => NodeError::UnexpectedReply,
    }
}
