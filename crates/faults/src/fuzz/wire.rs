//! A raw connection: packets of several commands, and replies that may arrive much later.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use quorlock_testkit::Server;
use redis::{FromRedisValue, Parser, RedisResult, Value, from_redis_value, pack_command};

/// The words of a command: its name and its arguments.
pub(super) type Words = Vec<Vec<u8>>;

/// Time limit for a reply. A longer wait means that the server hangs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Wire {
    stream: TcpStream,
    parser: Parser,
    /// A reply that was read too early.
    unread: Option<Value>,
    /// The server's ID of this client.
    pub(super) id: i64,
}

pub(super) fn words(line: &str) -> Words {
    line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns the time in a reply to TIME, in microseconds.
pub(super) fn time_us(reply: Value) -> Result<u64> {
    let (s, us): (u64, u64) = from_redis_value(reply)?;
    Ok(s * 1_000_000 + us)
}

impl Wire {
    pub(super) fn connect(server: &Server) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let mut wire = Self { stream, parser: Parser::new(), unread: None, id: 0 };
        wire.id = wire.call("CLIENT ID")?;
        Ok(wire)
    }

    /// Sends commands in one packet. The server executes nothing else between them.
    pub(super) fn send(&mut self, commands: &[Words]) -> Result<()> {
        let packet: Vec<_> = commands.iter().flat_map(|words| pack_command(words)).collect();
        Ok(self.stream.write_all(&packet)?)
    }

    pub(super) fn call<T: FromRedisValue>(&mut self, line: &str) -> Result<T> {
        self.send(&[words(line)])?;
        from_redis_value(self.receive()?).with_context(|| line.to_owned())
    }

    pub(super) fn call_all(&mut self, commands: &[Words]) -> Result<Vec<Value>> {
        self.send(commands)?;
        commands.iter().map(|_| Ok(self.receive()?)).collect()
    }

    pub(super) fn receive(&mut self) -> RedisResult<Value> {
        match self.unread.take() {
            Some(reply) => Ok(reply),
            None => self.parser.parse_value(&self.stream),
        }
    }

    /// Returns a reply that has arrived.
    pub(super) fn try_receive(&mut self) -> Result<Option<Value>> {
        self.stream.set_nonblocking(true)?;
        let received = self.receive();
        self.stream.set_nonblocking(false)?;
        match received {
            Err(error) if error.is_timeout() => Ok(None),
            received => Ok(Some(received?)),
        }
    }

    pub(super) fn unread(&mut self, reply: Value) {
        self.unread = Some(reply);
    }

    /// Returns a field of INFO; empty if the section has no such field.
    pub(super) fn info(&mut self, section: &str, name: &str) -> Result<String> {
        let info: String = self.call(&format!("INFO {section}"))?;
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value.unwrap_or_default().trim().to_owned())
    }
}
