use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use redis::ConnectionAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use super::Shared;
use super::lane::{Direction, Lane};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Pause after a failed accept: the system does not report when a file descriptor is free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

pub(super) async fn accept_all(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        shared.open_connections.fetch_add(1, Relaxed);
        tokio::spawn(serve(client, Open(Arc::clone(&shared))));
    }
}

/// A connection that counts as open until this value is dropped.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open_connections.fetch_sub(1, Release);
    }
}

async fn serve(mut client: TcpStream, open: Open) {
    let mut faults = open.0.faults.subscribe();
    let ended = tokio::select! {
        // A connection that opens after a cut does not reach the server.
        biased;
        _ = faults.wait_for(|faults| faults.cut) => Err(io::ErrorKind::ConnectionReset.into()),
        ended = converse(&mut client, &open.0) => ended,
    };
    if ended.is_err() {
        // The other side sees an error then. If this fails, the connection closes normally, and a
        // client that awaits an answer still fails.
        let _ = client.set_zero_linger();
    }
    drop(client);
    // The connection counts as open until it is closed.
    drop(open);
}

async fn converse(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    match &shared.upstream {
        ConnectionAddr::Tcp(host, port) => {
            let connecting = TcpStream::connect((host.as_str(), *port));
            let mut server = timeout(CONNECT_LIMIT, connecting).await??;
            server.set_nodelay(true)?;
            forward(shared, client, server.split()).await
        }
        ConnectionAddr::Unix(path) => {
            let mut server = timeout(CONNECT_LIMIT, UnixStream::connect(path)).await??;
            forward(shared, client, server.split()).await
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

async fn forward(
    shared: &Shared,
    client: &mut TcpStream,
    (from_server, to_server): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (from_client, to_client) = client.split();
    let is_asked = AtomicBool::default();
    let requests = Lane::new(Direction::ToServer, shared, &is_asked);
    let answers = Lane::new(Direction::ToClient, shared, &is_asked);
    tokio::try_join!(requests.run(from_client, to_server), answers.run(from_server, to_client))?;
    Ok(())
}
