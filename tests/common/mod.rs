//! Helpers of the module's tests: a connection that works like redis-cli, and a waiting client.

#![allow(dead_code, reason = "each test file uses only a part")]

use std::thread::{self, JoinHandle};
use std::time::Duration;

use quorlock_testkit::{Server, eventually};
use redis::{Cmd, Connection, FromRedisValue, Value};

/// Longer than any step of a test takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A server with the module.
#[track_caller]
pub(crate) fn server() -> Server {
    Server::with_module().start().expect("a server with the module starts")
}

/// A server with the module, and a connection to it.
#[track_caller]
pub(crate) fn server_and_cli() -> (Server, Cli) {
    let server = server();
    let cli = Cli::new(&server);
    (server, cli)
}

/// Splits a line into a command at spaces. The caller can add arguments that contain spaces.
pub(crate) fn command(line: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(line.split(' ').collect::<Vec<_>>());
    command
}

/// One connection. It keeps the types of replies: `Nil` is not `""`, and `Int(1)` not `"1"`.
pub(crate) struct Cli(pub(crate) Connection);

impl Cli {
    #[track_caller]
    pub(crate) fn new(server: &Server) -> Self {
        Self(server.connection())
    }

    #[track_caller]
    pub(crate) fn resp3(server: &Server) -> Self {
        let client = redis::Client::open(format!("{}?protocol=resp3", server.url()));
        let connection = client.and_then(|client| client.get_connection_with_timeout(PATIENCE));
        let connection = connection.expect("the server speaks RESP3");
        connection.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        Self(connection)
    }

    /// The reply to a line, with its type.
    #[track_caller]
    pub(crate) fn reply(&mut self, line: &str) -> Value {
        self.ask(line)
    }

    /// The reply to a line, as a `T`.
    #[track_caller]
    pub(crate) fn ask<T: FromRedisValue>(&mut self, line: &str) -> T {
        self.run(&command(line))
    }

    /// The reply to a command, as a `T`.
    #[track_caller]
    pub(crate) fn run<T: FromRedisValue>(&mut self, command: &Cmd) -> T {
        match command.query(&mut self.0) {
            Ok(reply) => reply,
            Err(error) => panic!("{}: {error}", shown(command)),
        }
    }

    /// The error reply to a line, word for word.
    #[track_caller]
    pub(crate) fn error(&mut self, line: &str) -> String {
        self.error_of(&command(line))
    }

    /// The error reply to a command, word for word.
    #[track_caller]
    pub(crate) fn error_of(&mut self, command: &Cmd) -> String {
        match command.query::<Value>(&mut self.0) {
            Ok(reply) => panic!("{}: answered {reply:?}, not an error", shown(command)),
            Err(error) => match (error.code(), error.detail()) {
                (Some(code), Some(detail)) => format!("{code} {detail}"),
                _ => panic!("{}: {error}", shown(command)),
            },
        }
    }

    /// The server's wall clock, in milliseconds.
    #[track_caller]
    pub(crate) fn now_ms(&mut self) -> i64 {
        let (s, us): (i64, i64) = self.ask("TIME");
        s * 1000 + us / 1000
    }

    /// When a key expires, in milliseconds of the wall clock.
    #[track_caller]
    pub(crate) fn expires_at_ms(&mut self, key: &str) -> i64 {
        self.ask(&format!("PEXPIRETIME {key}"))
    }

    /// The fence that INSPECT shows; `None` for a foreign string and for a free key.
    #[track_caller]
    pub(crate) fn fence(&mut self, key: &str) -> Option<i64> {
        let lock: Option<std::collections::HashMap<String, Value>> =
            self.ask(&format!("LOCK.INSPECT {key}"));
        match lock?.remove("fence") {
            Some(Value::Int(fence)) => Some(fence),
            Some(Value::Nil) => None,
            other => panic!("a fence is an integer or nil, not {other:?}"),
        }
    }
}

/// A field of `INFO lock` that is a number.
#[track_caller]
pub(crate) fn info(server: &Server, name: &str) -> u64 {
    let info: String = Cli::new(server).ask("INFO lock");
    let field = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field
        .and_then(|field| field.trim().parse().ok())
        .unwrap_or_else(|| panic!("{name} is a number"))
}

/// A client that waits in a separate thread.
pub(crate) struct Waiter(JoinHandle<Value>);

impl Waiter {
    /// Sends the line. Returns when the client is in the queue.
    #[track_caller]
    pub(crate) fn new(server: &Server, line: &str) -> Self {
        let mut cli = Cli::new(server);
        cli.0.set_read_timeout(Some(4 * PATIENCE)).expect("the timeout is not zero");
        let before = info(server, "lock_waiters");
        let line = line.to_owned();
        let answer = thread::spawn(move || cli.reply(&line));
        eventually(PATIENCE, "the client waits", || info(server, "lock_waiters") == before + 1);
        Self(answer)
    }

    /// Waits for the answer.
    #[track_caller]
    pub(crate) fn answer(self) -> Value {
        self.0.join().expect("the client is answered")
    }

    pub(crate) fn waits(&self) -> bool {
        !self.0.is_finished()
    }

    /// Waits for the grant, and returns its fence.
    #[track_caller]
    pub(crate) fn fence(self) -> i64 {
        match self.answer() {
            Value::Array(fields) => match fields[..] {
                [Value::Int(fence), Value::Int(_)] => fence,
                ref other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

/// Formats a command for a panic message, with long arguments cut off.
fn shown(command: &Cmd) -> String {
    let words = command.args_iter().map(|word| match word {
        redis::Arg::Simple(bytes) => bytes[..bytes.len().min(80)].escape_ascii().to_string(),
        redis::Arg::Cursor => "cursor".to_owned(),
        _ => "…".to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}
