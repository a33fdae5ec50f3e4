//! A raw connection: packets of several commands, and replies that may arrive much later.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quorlock_testkit::Server;

/// The words of a command: its name and its arguments.
pub(super) type Words = Vec<Vec<u8>>;

/// Time limit for a reply. A longer wait means that the server hangs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// A reply in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Status(String),
    Error(String),
    Array(Vec<Reply>),
    /// The server closed the connection.
    Closed,
}

pub(super) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// A reply that was read too early.
    unread: Option<Reply>,
    /// The server's ID of this client.
    pub(super) id: i64,
}

pub(super) fn words(line: &str) -> Words {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns a field of INFO; empty if the section has no such field.
pub(super) fn info(wire: &mut Wire, section: &str, name: &str) -> Result<String> {
    let Reply::Bulk(info) = wire.call(&format!("INFO {section}"))? else { bail!("no INFO") };
    let info = String::from_utf8_lossy(&info).into_owned();
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.unwrap_or_default().trim().to_owned())
}

/// Returns the time in a reply to TIME, in microseconds.
pub(super) fn time_us(reply: &Reply) -> Option<u64> {
    let Reply::Array(time) = reply else { return None };
    let [Reply::Bulk(s), Reply::Bulk(us)] = &time[..] else { return None };
    let number = |bytes: &[u8]| String::from_utf8_lossy(bytes).parse::<u64>().unwrap_or(0);
    Some(number(s) * 1_000_000 + number(us))
}

impl Wire {
    pub(super) fn connect(server: &Server) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port()))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let mut wire = Self { stream, buffer: Vec::new(), unread: None, id: 0 };
        match wire.call("CLIENT ID")? {
            Reply::Int(id) => wire.id = id,
            other => bail!("CLIENT ID was answered {other:?}"),
        }
        Ok(wire)
    }

    /// Sends commands in one packet. The server executes nothing else between them.
    pub(super) fn send(&mut self, commands: &[Words]) -> Result<()> {
        let mut packet = Vec::with_capacity(256);
        for words in commands {
            write!(packet, "*{}\r\n", words.len())?;
            for word in words {
                write!(packet, "${}\r\n", word.len())?;
                packet.extend_from_slice(word);
                packet.extend_from_slice(b"\r\n");
            }
        }
        Ok(self.stream.write_all(&packet)?)
    }

    pub(super) fn call(&mut self, line: &str) -> Result<Reply> {
        self.send(&[words(line)])?;
        self.receive()
    }

    pub(super) fn call_all(&mut self, commands: &[Words]) -> Result<Vec<Reply>> {
        self.send(commands)?;
        commands.iter().map(|_| self.receive()).collect()
    }

    pub(super) fn receive(&mut self) -> Result<Reply> {
        loop {
            if let Some(reply) = self.parsed()? {
                return Ok(reply);
            }
            if !self.fill().context("no reply")? {
                return Ok(Reply::Closed);
            }
        }
    }

    pub(super) fn try_receive(&mut self) -> Result<Option<Reply>> {
        if let Some(reply) = self.parsed()? {
            return Ok(Some(reply));
        }
        self.stream.set_nonblocking(true)?;
        let filled = self.fill();
        self.stream.set_nonblocking(false)?;
        match filled {
            Ok(true) => self.parsed(),
            Ok(false) => Ok(Some(Reply::Closed)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn unread(&mut self, reply: Reply) {
        self.unread = Some(reply);
    }

    /// Reads the bytes that have arrived. Returns false at the end of the connection.
    fn fill(&mut self) -> std::io::Result<bool> {
        let mut bytes = [0; 16384];
        match self.stream.read(&mut bytes) {
            Ok(read) => {
                self.buffer.extend_from_slice(&bytes[..read]);
                Ok(read > 0)
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn parsed(&mut self) -> Result<Option<Reply>> {
        if let Some(reply) = self.unread.take() {
            return Ok(Some(reply));
        }
        let mut at = 0;
        let reply = parse(&self.buffer, &mut at)?;
        if reply.is_some() {
            self.buffer.drain(..at);
        }
        Ok(reply)
    }
}

/// Parses one reply from `at` on. Returns `None` when a part of it is missing.
fn parse(buffer: &[u8], at: &mut usize) -> Result<Option<Reply>> {
    let rest = &buffer[*at..];
    let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let line = String::from_utf8_lossy(&rest[1..end]).into_owned();
    let kind = rest[0];
    *at += end + 2;
    Ok(Some(match kind {
        b'+' => Reply::Status(line),
        b'-' => Reply::Error(line),
        b':' => Reply::Int(line.parse()?),
        b'$' | b'*' if line == "-1" => Reply::Nil,
        b'$' => {
            let bytes: usize = line.parse()?;
            if buffer.len() < *at + bytes + 2 {
                return Ok(None);
            }
            let bulk = buffer[*at..*at + bytes].to_vec();
            *at += bytes + 2;
            Reply::Bulk(bulk)
        }
        b'*' => {
            let items: usize = line.parse()?;
            let mut array = Vec::with_capacity(items);
            for _ in 0..items {
                match parse(buffer, at)? {
                    Some(item) => array.push(item),
                    None => return Ok(None),
                }
            }
            Reply::Array(array)
        }
        _ => bail!("a reply begins with an unexpected byte: {:?}", kind as char),
    }))
}
