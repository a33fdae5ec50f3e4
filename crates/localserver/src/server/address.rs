use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::{Client, Connection, RedisResult, cmd};
use tokio::net::TcpSocket;

use crate::StartError;

/// Time limit of one PING. After it, `Server::wait_for_answer` checks whether the process exited.
const PING_TIMEOUT: Duration = Duration::from_millis(200);

/// Where a server listens, the same for all restarts.
#[derive(Debug)]
pub(super) enum Address {
    Unix(PathBuf),
    Tcp(ReservedPort),
}

impl Address {
    pub(super) fn unix_in(directory: &Path) -> Self {
        Self::Unix(directory.join("s"))
    }

    /// Reserves `port`, or any free port if it is `None`.
    pub(super) fn tcp(port: Option<u16>) -> Result<Self, StartError> {
        let reserved = ReservedPort::new(port);
        reserved.map(Self::Tcp).map_err(|source| StartError::Port { port, source })
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Unix(path) => format!("redis+unix://{}", path.display()),
            Self::Tcp(port) => format!("redis://127.0.0.1:{}/", port.number()),
        }
    }

    pub(super) fn directives(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Unix(path) => {
                vec![("port", "0".into()), ("unixsocket", path.display().to_string())]
            }
            Self::Tcp(port) => {
                vec![("port", port.number().to_string()), ("bind", "127.0.0.1".into())]
            }
        }
    }

    /// Returns a new connection, with this limit for connecting, and for each read and write.
    pub(super) fn connect(&self, limit: Duration) -> RedisResult<Connection> {
        let connection = Client::open(self.url())?.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(limit))?;
        connection.set_write_timeout(Some(limit))?;
        Ok(connection)
    }

    /// Returns whether a server answers here and has loaded its data. A server with a password may
    /// still be loading: it checks the password before it reports that it is loading.
    pub(super) fn answers_ping(&self) -> bool {
        let answer =
            self.connect(PING_TIMEOUT).and_then(|mut connection| cmd("PING").exec(&mut connection));
        // NOAUTH is the answer of a server with a password. It runs, and the caller can log in.
        answer.map_or_else(|error| error.code() == Some("NOAUTH"), |()| true)
    }
}

/// A TCP port of 127.0.0.1 for a program that this process starts.
///
/// A socket is bound to the port and never listens. As long as this value lives, programs that do
/// not set `SO_REUSEADDR` cannot bind the port. Programs that set it, as servers do, can listen
/// there.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    _socket: TcpSocket,
}

impl ReservedPort {
    /// Reserves this port, or any free one if it is `None`.
    pub fn new(number: Option<u16>) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, number.unwrap_or(0))))?;
        let number = socket.local_addr()?.port();
        Ok(Self { number, _socket: socket })
    }

    /// Returns the number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}
