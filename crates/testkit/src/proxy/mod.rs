//! A bad network before one server.
//!
//! - `fault`: what is wrong with it now
//! - `meter`: what has passed
//! - `upstream`: where the server listens
//! - `session`: one client and its connection to the server
//! - `lane`: one direction of a session, where the faults happen

mod fault;
mod lane;
mod meter;
mod session;
mod upstream;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{oneshot, watch};

pub use self::fault::Direction;
use self::fault::{Faults, Passage};
use self::meter::Meter;
use self::upstream::Upstream;

/// How long [`Proxy::cut`] waits for its own thread, which has nothing else to wait for.
const CUT_LIMIT: Duration = Duration::from_secs(5);

/// A TCP port on 127.0.0.1 that leads to a server, with faults that can be set while connections are open.
///
/// It forwards everything at first. Faults hold for the connections that are open and for new ones, until they are
/// replaced or [healed](Proxy::heal). It runs in a thread of its own, so that it works in synchronous tests and in
/// asynchronous ones alike. When it is dropped, its port and all connections are closed.
///
/// The end of a connection travels like its bytes: a server does not learn of a client that has left as long as that
/// direction is delayed or held, or its bytes are dropped.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    faults: watch::Sender<Faults>,
    meter: Meter,
}

impl Proxy {
    /// How many connections are open at most: further ones are reset.
    pub const CONNECTIONS_MAX: usize = 1024;

    /// Starts a proxy for the server at `upstream_url`: `redis://host:port/`, or `redis+unix:///path`.
    ///
    /// The server need not run: as long as it does not, connections are reset.
    ///
    /// # Panics
    ///
    /// When that is no such address, or the system has no port or thread left.
    #[track_caller]
    pub fn start(upstream_url: impl Into<String>) -> Self {
        let upstream_url = upstream_url.into();
        let Some(upstream) = Upstream::parse(&upstream_url) else {
            panic!(
                "{upstream_url} is no address that a proxy can connect to: redis://host:port/ and redis+unix:///path are"
            );
        };
        let faults = watch::Sender::new(Faults::default());
        let shared = Arc::new(Shared { upstream, faults, meter: Meter::default() });
        let (stop, stopped) = oneshot::channel();
        match run(Arc::clone(&shared), stopped) {
            Ok((port, thread)) => Self { shared, port, stop: Some(stop), thread: Some(thread) },
            Err(error) => panic!("a proxy for {upstream_url} cannot be started: {error}"),
        }
    }

    /// Where it listens, in place of the server: `redis://127.0.0.1:port/`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Everything in this direction arrives that much later, in order and at the same rate.
    ///
    /// What is on its way already is delayed by the new time too, counted from when it came to the proxy.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.faults.send_modify(|faults| faults.lane_mut(direction).delay = delay);
    }

    /// Nothing in this direction arrives, until it is healed; then all of it does.
    ///
    /// At most 16 MiB are kept for a connection; more waits with the sender, as on a network that is slow.
    pub fn hold(&self, direction: Direction) {
        self.shared.faults.send_modify(|faults| faults.lane_mut(direction).passage = Passage::Hold);
    }

    /// Nothing in this direction arrives, also not later, and neither does what was held or delayed so far.
    pub fn drop_bytes(&self, direction: Direction) {
        self.shared.faults.send_modify(|faults| faults.lane_mut(direction).passage = Passage::Drop);
    }

    /// Resets all connections, and new ones as soon as they are made, until it is healed.
    ///
    /// When this returns there is no connection left, and nothing passes any more.
    ///
    /// # Panics
    ///
    /// When there still is one after 5 s.
    pub fn cut(&self) {
        self.shared.faults.send_modify(|faults| faults.cut = true);
        let closed = self.shared.meter.wait_until_closed(CUT_LIMIT);
        assert!(closed, "the connections of the proxy are not closed after {} ms", CUT_LIMIT.as_millis());
    }

    /// Forwards everything again, in both directions and at once, beginning with what was held.
    ///
    /// Connections that were cut are not restored, and bytes that were dropped are gone: a connection that has lost some
    /// is rarely of use to its client.
    pub fn heal(&self) {
        self.shared.faults.send_replace(Faults::default());
    }

    /// How many connections are open now.
    pub fn connections(&self) -> usize {
        self.shared.meter.open()
    }

    /// How many bytes have been passed on in this direction.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.meter.lane(direction).bytes()
    }

    /// In how many pieces, as they came in from the sender, they were passed on.
    pub fn chunks(&self, direction: Direction) -> u64 {
        self.shared.meter.lane(direction).chunks()
    }

    /// How many bytes have come in and are neither passed on nor dropped: they are delayed, or held.
    pub fn waiting_bytes(&self, direction: Direction) -> u64 {
        self.shared.meter.lane(direction).waiting_bytes()
    }

    /// How many bytes have come in and were dropped.
    pub fn dropped_bytes(&self, direction: Direction) -> u64 {
        self.shared.meter.lane(direction).dropped_bytes()
    }

    /// How often something was passed on to a client after something was passed on to the server on the same connection:
    /// the round trips that clients have waited for, when they do not send further requests while they wait.
    ///
    /// An answer that a client has received is counted.
    pub fn round_trips(&self) -> u64 {
        self.shared.meter.round_trips()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked is gone too, and this may be a panic already.
            let _ = thread.join();
        }
    }
}

fn run(shared: Arc<Shared>, stopped: oneshot::Receiver<()>) -> std::io::Result<(u16, JoinHandle<()>)> {
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
        // The sessions go with the runtime, here, before the thread is joined.
    })?;
    Ok((port, thread))
}
