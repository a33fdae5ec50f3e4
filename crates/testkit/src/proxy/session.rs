use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::lane::Lane;
use super::meter::Turn;
use super::upstream::UpstreamStream;
use super::{Direction, Proxy, Shared};

/// How long a server that does not accept is waited for.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long is waited after the system had no descriptor for a connection: nothing reports when it has one again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

pub(super) async fn accept_all(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let may_open = |open| open < Proxy::CONNECTIONS_MAX && !shared.faults.borrow().cut;
        if shared.meter.try_open(may_open) {
            tokio::spawn(serve(client, Open(Arc::clone(&shared))));
        } else {
            reset(client);
        }
    }
}

/// A connection that is counted as open until this is dropped.
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
    // Only now, so that a connection which is not counted is closed.
    drop(open);
}

async fn converse(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    match timeout(CONNECT_LIMIT, shared.upstream.connect()).await?? {
        UpstreamStream::Tcp(mut server) => {
            let (from_server, to_server) = server.split();
            forward(shared, from_client, to_server, from_server, to_client).await
        }
        UpstreamStream::Unix(mut server) => {
            let (from_server, to_server) = server.split();
            forward(shared, from_client, to_server, from_server, to_client).await
        }
    }
}

async fn forward(
    shared: &Shared,
    from_client: impl AsyncRead + Unpin,
    to_server: impl AsyncWrite + Unpin,
    from_server: impl AsyncRead + Unpin,
    to_client: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let turn = Turn::default();
    let requests = Lane::new(Direction::ToServer, shared, &turn);
    let answers = Lane::new(Direction::ToClient, shared, &turn);
    tokio::try_join!(requests.run(from_client, to_server), answers.run(from_server, to_client))?;
    Ok(())
}

/// Closes a connection such that the other side sees that it was not meant to end.
fn reset(client: TcpStream) {
    // Should this fail, the connection ends in the ordinary way, which is an error to a client that waits for an answer.
    let _ = client.set_zero_linger();
    drop(client);
}
