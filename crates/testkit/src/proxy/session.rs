use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use super::Shared;
use super::lane::{Direction, Lane};
use super::meter::RoundTrip;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Pause after a failed accept: the system does not report when a file descriptor is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

pub(super) async fn accept_all(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if shared.meter.try_open(|| !shared.faults.borrow().cut) {
            tokio::spawn(serve(client, Open(Arc::clone(&shared))));
        } else {
            reset(client);
        }
    }
}

/// A connection that counts as open until this value is dropped.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.meter.close();
    }
}

async fn serve(mut client: TcpStream, open: Open) {
    let mut faults = open.0.faults.subscribe();
    let ended = tokio::select! {
        _ = faults.wait_for(|faults| faults.cut) => Err(io::ErrorKind::ConnectionReset.into()),
        ended = converse(&mut client, &open.0) => ended,
    };
    match ended {
        Ok(()) => drop(client),
        Err(_) => reset(client),
    }
    // The connection counts as open until it is closed.
    drop(open);
}

async fn converse(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    match timeout(CONNECT_LIMIT, shared.upstream.connect()).await?? {
        UpstreamStream::Tcp(mut server) => forward(shared, client, server.split()).await,
        UpstreamStream::Unix(mut server) => forward(shared, client, server.split()).await,
    }
}

async fn forward(
    shared: &Shared,
    client: &mut TcpStream,
    (from_server, to_server): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (from_client, to_client) = client.split();
    let round_trip = RoundTrip::default();
    let requests = Lane::new(Direction::ToServer, shared, &round_trip);
    let answers = Lane::new(Direction::ToClient, shared, &round_trip);
    tokio::try_join!(requests.run(from_client, to_server), answers.run(from_server, to_client))?;
    Ok(())
}

/// Closes a connection so that the other side sees an error.
fn reset(client: TcpStream) {
    // If that fails, the connection closes normally. A client that awaits an answer still fails.
    let _ = client.set_zero_linger();
    drop(client);
}

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
