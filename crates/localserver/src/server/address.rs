use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

    /// Returns whether a server answers here and has loaded its data. A server with a password may
    /// still be loading: it checks the password before it reports that it is loading.
    pub(super) fn answers_ping(&self) -> bool {
        let answered = match self {
            Self::Unix(path) => UnixStream::connect(path).and_then(|stream| {
                stream.set_read_timeout(Some(PING_TIMEOUT))?;
                ping(stream)
            }),
            Self::Tcp(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
                TcpStream::connect_timeout(&address, PING_TIMEOUT).and_then(|stream| {
                    stream.set_read_timeout(Some(PING_TIMEOUT))?;
                    ping(stream)
                })
            }
        };
        answered.unwrap_or(false)
    }
}

fn ping(mut stream: impl Read + Write) -> io::Result<bool> {
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    // NOAUTH is the answer of a server with a password. The server runs, and the caller can log in.
    Ok(matches!(&answer, b"+PONG" | b"-NOAU"))
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
