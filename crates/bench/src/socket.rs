use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, ensure};
use quorlock_testkit::Server;

/// More than any answer has, and little, because there are thousands.
const BUFFER_BYTES: usize = 128;

/// A blocking connection to a server, spoken to in the plainest way.
pub(crate) struct Socket {
    reader: BufReader<TcpStream>,
    line: String,
}

impl Socket {
    /// To a server that listens on TCP.
    pub(crate) fn connect(server: &Server) -> anyhow::Result<Self> {
        let url = server.url();
        let address = url.strip_prefix("redis://").context("it listens on TCP")?;
        let stream = TcpStream::connect(address.trim_end_matches('/'))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::with_capacity(BUFFER_BYTES, stream), line: String::new() })
    }

    /// Asks for the one lock there is, with a token that is this client's, and does not wait for the answer.
    pub(crate) fn ask_for_the_lock(&mut self, client: usize) -> anyhow::Result<()> {
        self.send(&format!("LOCK.ACQUIRE orders/42 {client:032x} 60000 WAIT 60000\r\n"))
    }

    /// Releases it, and does not wait for the answer either.
    pub(crate) fn release(&mut self, client: usize) -> anyhow::Result<()> {
        self.send(&format!("LOCK.RELEASE orders/42 {client:032x}\r\n"))
    }

    pub(crate) fn ping(&mut self) -> anyhow::Result<()> {
        self.send("PING\r\n")?;
        self.expect("+PONG")
    }

    /// Blocks until the lock is granted.
    pub(crate) fn read_grant(&mut self) -> anyhow::Result<()> {
        self.expect("*2")?;
        self.read_line()?;
        self.read_line()
    }

    pub(crate) fn send(&mut self, command: &str) -> anyhow::Result<()> {
        Ok(self.reader.get_mut().write_all(command.as_bytes())?)
    }

    /// Blocks until there is an answer, which is to be this line.
    pub(crate) fn expect(&mut self, answer: &str) -> anyhow::Result<()> {
        self.read_line()?;
        ensure!(self.line == answer, "the server answered {} and not {answer}", self.line);
        Ok(())
    }

    fn read_line(&mut self) -> anyhow::Result<()> {
        self.line.clear();
        self.reader.read_line(&mut self.line)?;
        self.line.truncate(self.line.trim_end().len());
        Ok(())
    }
}
