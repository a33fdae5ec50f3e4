use std::io;
use std::path::PathBuf;

use redis::{ConnectionAddr, IntoConnectionInfo};
use tokio::net::{TcpStream, UnixStream};

/// Where the server of a proxy listens.
#[derive(Debug)]
pub(super) enum Upstream {
    Tcp(String, u16),
    Unix(PathBuf),
}

pub(super) enum UpstreamStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Upstream {
    pub(super) fn parse(url: &str) -> Option<Self> {
        match url.into_connection_info().ok()?.addr() {
            ConnectionAddr::Tcp(host, port) => Some(Self::Tcp(host.clone(), *port)),
            ConnectionAddr::Unix(path) => Some(Self::Unix(path.clone())),
            _ => None,
        }
    }

    pub(super) async fn connect(&self) -> io::Result<UpstreamStream> {
        match self {
            Self::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(UpstreamStream::Tcp(stream))
            }
            Self::Unix(path) => Ok(UpstreamStream::Unix(UnixStream::connect(path).await?)),
        }
    }
}
