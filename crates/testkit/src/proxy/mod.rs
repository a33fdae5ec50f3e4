//! A proxy in front of one server, which simulates the faults of a network.
//!
//! - `lane`: one direction of a connection, and its faults
//! - `session`: one client and its connection to the server

mod lane;
mod session;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quorlock_localserver::holds_within;
use redis::{ConnectionAddr, IntoConnectionInfo as _};
use tokio::runtime;
use tokio::sync::{oneshot, watch};

pub use self::lane::Direction;
use self::lane::{Faults, Passage};

/// Time limit for the proxy's thread to close all connections. It normally does so at once.
const CUT_LIMIT: Duration = Duration::from_secs(5);

/// A TCP port on 127.0.0.1 that leads to a server, with faults that can be set at any time.
///
/// The proxy forwards all traffic at first. Faults apply to open and to new connections, until they
/// are replaced or [healed](Proxy::heal). The proxy has a thread of its own, so it works in
/// synchronous and in asynchronous tests. Dropping the proxy closes its port and all connections.
///
/// The end of a connection travels like its bytes: the server learns late that a client is gone if
/// bytes to the server are delayed, and not at all while they are held or dropped.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    upstream: ConnectionAddr,
    faults: watch::Sender<Faults>,
    open_connections: AtomicUsize,
    /// By direction.
    waiting_bytes: [AtomicU64; 2],
    round_trips: AtomicU64,
}

impl Proxy {
    /// Starts a proxy for the server at `upstream_url`: `redis://host:port/` or
    /// `redis+unix:///path`.
    ///
    /// The server need not run. While it is down, connections are reset.
    ///
    /// # Panics
    ///
    /// When the URL is not such an address, or the system has no port or thread left.
    #[track_caller]
    pub fn start(upstream_url: impl Into<String>) -> Self {
        let upstream_url = upstream_url.into();
        let upstream = match upstream_url.as_str().into_connection_info() {
            Ok(upstream) => upstream.addr().clone(),
            Err(error) => panic!("a proxy cannot connect to {upstream_url}: {error}"),
        };
        let shared = Arc::new(Shared {
            upstream,
            faults: watch::Sender::new(Faults::default()),
            open_connections: AtomicUsize::default(),
            waiting_bytes: Default::default(),
            round_trips: AtomicU64::default(),
        });
        let (stop, stopped) = oneshot::channel();
        match run(Arc::clone(&shared), stopped) {
            Ok((port, thread)) => Self { shared, port, stop: Some(stop), thread: Some(thread) },
            Err(error) => panic!("a proxy for {upstream_url} cannot be started: {error}"),
        }
    }

    /// Returns `redis://127.0.0.1:port/`, which clients use in place of the server's address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Delays all bytes in this direction, and keeps their order and rate.
    ///
    /// The delay counts from the arrival at the proxy, also for bytes that are already in transit.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.faults.send_modify(|faults| faults.lane_mut(direction).delay = delay);
    }

    /// Holds all bytes in this direction until the proxy is healed, and then forwards them.
    pub fn hold(&self, direction: Direction) {
        self.shared.faults.send_modify(|faults| faults.lane_mut(direction).passage = Passage::Hold);
    }

    /// Drops all bytes in this direction, also bytes that were held or delayed so far.
    pub fn drop_bytes(&self, direction: Direction) {
        self.shared.faults.send_modify(|faults| faults.lane_mut(direction).passage = Passage::Drop);
    }

    /// Resets all connections, and new ones as soon as they open, until the proxy is healed.
    ///
    /// When this call returns, no connection is open.
    ///
    /// # Panics
    ///
    /// When a connection is still open after 5 s.
    pub fn cut(&self) {
        self.shared.faults.send_modify(|faults| faults.cut = true);
        let closed = holds_within(CUT_LIMIT, || self.connections() == 0);
        assert!(
            closed,
            "the connections of the proxy are not closed after {} ms",
            CUT_LIMIT.as_millis()
        );
    }

    /// Ends all faults. Forwards bytes without delay again, beginning with the held ones.
    ///
    /// Connections that were cut are not restored, and dropped bytes are lost. A connection that
    /// lost bytes is rarely usable.
    pub fn heal(&self) {
        self.shared.faults.send_replace(Faults::default());
    }

    pub fn connections(&self) -> usize {
        self.shared.open_connections.load(Acquire)
    }

    /// Returns the number of bytes that are delayed or held: neither forwarded nor dropped yet.
    pub fn waiting_bytes(&self, direction: Direction) -> u64 {
        self.shared.waiting_bytes[direction as usize].load(Relaxed)
    }

    /// Returns the number of round trips of all clients.
    ///
    /// A round trip ends when bytes are forwarded to a client, after bytes of the same connection
    /// were forwarded to the server. It is counted before the client receives these bytes.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips.load(Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended too, and this code may run during another panic.
            let _ = thread.join();
        }
    }
}

fn run(
    shared: Arc<Shared>,
    stopped: oneshot::Receiver<()>,
) -> std::io::Result<(u16, JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let listener = {
        let _within = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    let thread = thread::Builder::new().name("proxy".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = session::accept_all(listener, shared) => {}
                _ = stopped => {}
            }
        });
        // Here the runtime is dropped and ends all sessions, before the thread is joined.
    })?;
    Ok((port, thread))
}
