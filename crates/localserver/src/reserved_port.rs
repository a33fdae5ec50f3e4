use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A TCP port of 127.0.0.1 for a program that this process starts.
///
/// A socket is bound to the port and never listens. As long as this value lives, programs that do
/// not set `SO_REUSEADDR` cannot bind the port. Programs that set it, as servers do, can listen
/// there. Only Linux works this way: on other systems, the port was free when it was chosen.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    _socket: Option<TcpSocket>,
}

impl ReservedPort {
    /// Reserves this port, or any free one if it is `None`.
    pub fn new(number: Option<u16>) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, number.unwrap_or(0))))?;
        let number = socket.local_addr()?.port();
        Ok(Self { number, _socket: cfg!(target_os = "linux").then_some(socket) })
    }

    /// Returns the number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}
