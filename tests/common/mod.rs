//! Helpers of the module's tests: a connection that works like redis-cli, a waiting client,
//! replication, and the content of the append-only file.

use std::fs;
use std::net::Ipv4Addr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quorlock_testkit::{Server, ServerBuilder, StartError, eventually};
use redis::{Cmd, Connection, FromRedisValue, RedisError, RedisResult, Value};

/// Longer than most steps of a test take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

#[track_caller]
pub(crate) fn server() -> Server {
    Server::with_module().start().expect("a server with the module starts")
}

#[track_caller]
pub(crate) fn server_and_cli() -> (Server, RedisCli) {
    let server = server();
    let cli = RedisCli::new(&server);
    (server, cli)
}

/// A connection of a user that may use only the keys that begin with `k`.
#[track_caller]
pub(crate) fn worker_on_k(server: &Server, admin: &mut RedisCli) -> RedisCli {
    admin.reply("ACL SETUSER worker on nopass ~k* +@all");
    let mut worker = RedisCli::new(server);
    worker.reply("AUTH worker any");
    worker
}

/// A server with the module whose append-only file receives every write at once.
pub(crate) fn append_only() -> ServerBuilder {
    Server::with_module().arg("appendonly", "yes").arg("appendfsync", "always")
}

/// The end of the log of a server that must refuse to start.
#[track_caller]
pub(crate) fn log_of_refusal(builder: ServerBuilder) -> String {
    match builder.start() {
        Err(StartError::Exited { status, log_tail }) => {
            assert_eq!(status.code(), Some(1), "no crash: {status}\n{log_tail}");
            log_tail
        }
        Err(error) => panic!("{error}"),
        Ok(server) => panic!("the server has started: {}", server.log()),
    }
}

/// Splits a line into a command at spaces. The caller can add arguments that contain spaces.
pub(crate) fn command(line: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(line.split(' ').collect::<Vec<_>>());
    command
}

/// One connection. It keeps the types of replies: `Nil` is not `""`, and `Int(1)` not `"1"`.
pub(crate) struct RedisCli(pub(crate) Connection);

impl RedisCli {
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

    #[track_caller]
    pub(crate) fn reply(&mut self, line: &str) -> Value {
        self.ask(line)
    }

    #[track_caller]
    pub(crate) fn ask<T: FromRedisValue>(&mut self, line: &str) -> T {
        self.run(&command(line))
    }

    #[track_caller]
    pub(crate) fn run<T: FromRedisValue>(&mut self, command: &Cmd) -> T {
        match command.query(&mut self.0) {
            Ok(reply) => reply,
            Err(error) => panic!("{}: {error}", shown(command)),
        }
    }

    /// Sends a line without waiting for its reply.
    #[track_caller]
    pub(crate) fn send(&mut self, line: &str) {
        let packed = command(line).get_packed_command();
        self.0.send_packed_command(&packed).expect("the server receives it");
    }

    /// The replies to lines that the server executes in one turn of its loop.
    #[track_caller]
    pub(crate) fn in_one_turn(&mut self, lines: &[&str]) -> Vec<Value> {
        let mut pipeline = redis::pipe();
        for line in lines {
            pipeline.add_command(command(line));
        }
        pipeline.query(&mut self.0).expect("the server answers")
    }

    #[track_caller]
    pub(crate) fn transaction(&mut self, lines: &[&str]) -> Vec<Value> {
        self.reply("MULTI");
        for line in lines {
            assert_eq!(self.reply(line), Value::SimpleString("QUEUED".into()), "{line}");
        }
        match self.reply("EXEC") {
            Value::Array(replies) => replies,
            aborted => panic!("{lines:?}: {aborted:?}"),
        }
    }

    /// The error reply, word for word.
    #[track_caller]
    pub(crate) fn error(&mut self, line: &str) -> String {
        self.error_of(&command(line))
    }

    #[track_caller]
    pub(crate) fn error_of(&mut self, command: &Cmd) -> String {
        match command.query::<Value>(&mut self.0) {
            Ok(reply) => panic!("{}: answered {reply:?}, not an error", shown(command)),
            Err(error) => words(&error).unwrap_or_else(|| panic!("{}: {error}", shown(command))),
        }
    }

    #[track_caller]
    pub(crate) fn now_ms(&mut self) -> i64 {
        let (s, us): (i64, i64) = self.ask("TIME");
        s * 1000 + us / 1000
    }

    /// On the server's wall clock.
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

/// A number of `INFO lock`.
#[track_caller]
pub(crate) fn info(server: &Server, name: &str) -> u64 {
    quorlock_testkit::info(&mut server.connection(), "lock", name).expect("the server has it")
}

pub(crate) fn replication_field(cli: &mut RedisCli, name: &str) -> String {
    let info: String = cli.ask("INFO replication");
    let field = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    field.unwrap_or_default().trim().to_owned()
}

pub(crate) fn is_replica_of(cli: &mut RedisCli, master: &Server) -> bool {
    replication_field(cli, "master_port") == master.port().to_string()
        && replication_field(cli, "master_link_status") == "up"
}

/// Makes `replica` follow `master`, and returns when it has the master's data.
#[track_caller]
pub(crate) fn replicate(replica: &mut RedisCli, master: &Server) {
    replica.reply(&format!("REPLICAOF {} {}", Ipv4Addr::LOCALHOST, master.port()));
    // A replica may need seconds to reconnect.
    let patience = 4 * PATIENCE;
    eventually(patience, "the replica follows the master", || is_replica_of(replica, master));
    // The master learns later than the replica that the link is up.
    let mut on_master = RedisCli::new(master);
    eventually(patience, "the master knows its replica", || {
        replication_field(&mut on_master, "slave0").contains("state=online")
    });
}

/// The commands in the append-only file since its last rewrite, without SELECT, MULTI and EXEC.
#[track_caller]
pub(crate) fn appended(server: &Server) -> Vec<Vec<String>> {
    let files = fs::read_dir(server.dir().join("appendonlydir")).expect("the folder exists");
    let paths = files.map(|file| file.expect("a file").path());
    let mut increments = paths.filter(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let (Some(path), None) = (increments.next(), increments.next()) else {
        panic!("one increment")
    };
    let mut file = fs::File::open(path).expect("the file can be read");
    let (mut parser, mut commands) = (redis::Parser::new(), Vec::new());
    loop {
        let words: Vec<String> = match parser.parse_value(&mut file) {
            Ok(command) => redis::from_redis_value(command).expect("words"),
            Err(end) if end.is_io_error() => return commands,
            Err(error) => panic!("{error}"),
        };
        if !matches!(&words[0][..], "SELECT" | "MULTI" | "EXEC") {
            commands.push(words);
        }
    }
}

/// A client that waits in a separate thread.
pub(crate) struct Waiter {
    pub(crate) client_id: i64,
    result: JoinHandle<RedisResult<Value>>,
}

impl Waiter {
    /// Sends the line. Returns when the client is in the queue.
    #[track_caller]
    pub(crate) fn new(server: &Server, line: &str) -> Self {
        let mut cli = RedisCli::new(server);
        cli.0.set_read_timeout(Some(4 * PATIENCE)).expect("the timeout is not zero");
        let client_id = cli.ask("CLIENT ID");
        let before = info(server, "lock_waiters");
        let command = command(line);
        let result = thread::spawn(move || command.query(&mut cli.0));
        eventually(PATIENCE, "the client waits", || info(server, "lock_waiters") == before + 1);
        Self { client_id, result }
    }

    #[track_caller]
    pub(crate) fn answer(self) -> Value {
        self.result.join().expect("the thread ends").expect("the client is answered")
    }

    #[track_caller]
    pub(crate) fn wait_for_grant(self) {
        let answer = self.answer();
        assert!(matches!(&answer, Value::Array(fields) if fields.len() == 2), "{answer:?}");
    }
}

/// An error reply, word for word; `None` if the error is not a reply.
fn words(error: &RedisError) -> Option<String> {
    Some(format!("{} {}", error.code()?, error.detail()?))
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
