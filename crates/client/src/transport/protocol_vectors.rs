//! Checks the test vectors of docs/protocol.md that are about bytes: `wire` in
//! docs/protocol/vectors.json. Tests of the core check the others: `decisions`.

#[path = "../../../core/tests/vectors/mod.rs"]
mod vectors;

use std::time::Duration;

use ::redis::Arg;
use quorlock_core::client::{Command, Hello, Keys, Mode, Request, Response, Spec, Token};
use quorlock_core::{Fence, NodeError, Ttl};
use vectors::{Fields, Reader, bytes};

use super::command::Outgoing;
use crate::{DetachedLock, InvalidDetached};

const READERS: [(&str, Reader); 6] = [
    ("commands", command),
    ("detached", detached),
    ("detached_invalid", invalid_detached),
    ("errors", error),
    ("info", info),
    ("replies", reply),
];

#[test]
fn bytes_are_those_of_the_vectors() {
    vectors::read_all("wire", &READERS);
}

impl Fields {
    fn text_or_null(&mut self, name: &str) -> Option<String> {
        self.take(name).as_str().map(str::to_owned)
    }

    fn token(&mut self, name: &str) -> Token {
        Token::from_text(&self.text(name)).unwrap()
    }

    fn fence(&mut self) -> Fence {
        // Zero stands for the front of the queue.
        Fence::new(self.number("fence")).unwrap_or_default()
    }

    fn keys(&mut self) -> Keys {
        self.take("keys").as_array().unwrap().iter().map(bytes).collect()
    }
}

/// The lock that a request of this name is about.
fn spec(name: &str, keys: Keys, ttl: Ttl, owner: Option<String>) -> Spec {
    let is_shared = matches!(name, "share" | "wait to share" | "become shared");
    let is_any = matches!(name, "acquire any" | "wait for any");
    Spec {
        any: is_any.then(|| keys.clone()),
        mode: if is_shared { Mode::Shared } else { Mode::Exclusive },
        owner: owner.map(Into::into),
        ..Spec::exclusive(keys, ttl)
    }
}

/// Takes the parts of a request from a vector, and encodes the request.
fn outgoing(case: &mut Fields) -> Outgoing {
    let name = case.text("request");
    let keys = case.keys();
    let ttl = Ttl::from_ms(case.number("ttl_ms")).unwrap();
    let spec = spec(&name, keys, ttl, case.text_or_null("owner"));
    let token = case.token("token");
    let command = match &name[..] {
        "acquire" | "share" => Command::Acquire { fence: case.fence() },
        "wait" | "wait to share" | "wait for any" => Command::Wait {
            fence: case.fence(),
            wait: Duration::from_millis(case.number("wait_ms")),
        },
        "acquire any" => Command::AcquireAny { fence: case.fence() },
        "extend" | "become shared" => Command::Extend { fence: None },
        "store fence" => Command::Extend { fence: Some(case.fence()) },
        "swap token" => Command::SwapToken { new: case.token("new_token") },
        "release" => Command::Release,
        "yield" => Command::Yield,
        "ping" => Command::Ping,
        other => panic!("{other}"),
    };
    Outgoing::new(&spec, &Request { token, command })
}

fn command(mut case: Fields) {
    let sent = vec![arguments(&outgoing(&mut case).packet)];
    let expected = case.take("sent");
    let expected: Vec<Vec<_>> = (expected.as_array().unwrap().iter())
        .map(|arguments| arguments.as_array().unwrap().iter().map(bytes).collect())
        .collect();
    assert_eq!(sent, expected, "{}", case.text);
}

fn arguments(command: &::redis::Cmd) -> Vec<Vec<u8>> {
    let argument = |argument| match argument {
        Arg::Simple(bytes) => <[u8]>::to_vec(bytes),
        _ => panic!("a command of the protocol has no cursor"),
    };
    command.args_iter().map(argument).collect()
}

/// A request of this name. Its other parts do not matter for the reply.
fn request(name: &str) -> Outgoing {
    let mut case = Fields::of(&serde_json::json!({
        "request": name, "keys": ["s:00", "s:01"], "owner": null, "ttl_ms": 1000, "wait_ms": 1000,
        "fence": 7, "token": "0".repeat(32), "new_token": "1".repeat(32),
    }));
    let outgoing = outgoing(&mut case);
    case.left.clear();
    outgoing
}

fn reply(mut case: Fields) {
    let name = case.text("request");
    let outgoing = request(&name);
    let response = outgoing.read(::redis::parse_redis_value(case.text("reply").as_bytes()));
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap();
    let means = match response {
        Response::Granted { fence, waited, key: None } if name.starts_with("wait") => {
            serde_json::json!({ "fence": fence.get(), "waited_us": micros(waited) })
        }
        Response::Granted { fence, waited: Duration::ZERO, key: None } => {
            serde_json::json!({ "fence": fence.get() })
        }
        Response::Granted { fence, waited, key: Some(key) } => {
            let (waited_us, key) = (micros(waited), format!("s:{key:02}"));
            serde_json::json!({ "fence": fence.get(), "waited_us": waited_us, "key": key })
        }
        Response::Granted { .. } => panic!("{name} does not wait: {}", case.text),
        Response::Held { number, is_older } => {
            serde_json::json!({ "held": number.get(), "older": is_older })
        }
        Response::Yes => "yes".into(),
        Response::Kept => "kept".into(),
        Response::No => "no".into(),
        Response::Failed(NodeError::UnexpectedReply) => "unexpected".into(),
        Response::Failed(error) => panic!("{error}: {}", case.text),
    };
    assert_eq!(means, case.take("means"), "{}", case.text);
}

fn error(mut case: Fields) {
    let reply = format!("-{}\r\n", case.text("error"));
    let (kind, permanent) = (case.text("kind"), case.take("permanent").as_bool().unwrap());
    for request in ["acquire", "wait", "extend", "release", "yield"] {
        let response = self::request(request).read(::redis::parse_redis_value(reply.as_bytes()));
        let Response::Failed(error) = response else { panic!("{response:?}: {}", case.text) };
        let found = match &error {
            NodeError::Abstains { .. } => "abstains",
            NodeError::ClockBehind { .. } => "clock behind",
            NodeError::QueueFull { .. } => "queue full",
            NodeError::Revoked { .. } => "revoked",
            NodeError::Replica => "replica",
            NodeError::Denied { .. } => "denied",
            NodeError::NoModule => "no module",
            error if error.rejects_ticket() => "ticket rejected",
            NodeError::ErrorReply(_) | NodeError::TtlTooLong { .. } => "refused",
            other => panic!("{other:?}: {}", case.text),
        };
        assert_eq!((found, error.is_permanent()), (&kind[..], permanent), "{}", case.text);
    }
}

fn info(mut case: Fields) {
    let hello = Hello::from_info(&case.text("info"));
    assert_eq!(hello.run_id.as_deref(), case.text_or_null("run_id").as_deref());
    assert_eq!(hello.mode, case.text_or_null("mode"));
    assert_eq!(!hello.is_replica, case.take("master").as_bool().unwrap());
    assert_eq!(hello.module_version, case.text_or_null("module"));
    assert_eq!(hello.set.set().map(ToString::to_string), case.text_or_null("set"));
}

fn detached(mut case: Fields) {
    let text = case.text("text");
    let lock: DetachedLock = format!(" {text}\n").parse().unwrap();
    assert!(lock.keys == case.keys(), "{text}");
    assert_eq!(lock.token.as_str(), case.text("token"), "{text}");
    assert_eq!(lock.ttl.ms(), case.number("ttl_ms"), "{text}");
    assert_eq!(lock.fence(), case.fence(), "{text}");
    let until = std::time::UNIX_EPOCH + Duration::from_millis(case.number("until_ms"));
    assert_eq!(lock.until(), until, "{text}");
    assert_eq!(lock.to_secret_text(), text);
}

fn invalid_detached(mut case: Fields) {
    let why = match case.text("text").parse::<DetachedLock>() {
        Err(InvalidDetached::NotDetached) => "not detached",
        Err(InvalidDetached::OtherVersion) => "other version",
        Ok(lock) => panic!("{lock:?}: {}", case.text),
    };
    assert_eq!(why, case.text("why"), "{}", case.text);
}
