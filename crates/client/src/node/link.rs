use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisFuture, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::NodeError;

/// How long an attempt to connect may take, in milliseconds.
const CONNECT_LIMIT_MS: u64 = 1000;
/// The first pause between attempts to connect, in milliseconds; it doubles.
const PAUSE_MIN_MS: u64 = 20;
/// The longest pause between attempts to connect, in milliseconds.
const PAUSE_MAX_MS: u64 = 500;

/// The way to one node. It is mended behind everybody's back: whoever asks while it is broken is told so at once.
pub(crate) struct Link {
    state: watch::Sender<State>,
    broken: Notify,
    /// The server's run id, when it was last connected.
    identity: Mutex<Option<Arc<str>>>,
}

enum State {
    /// Nothing is known yet.
    New,
    Up(Connection),
    Down(NodeError),
}

/// One connection to a node; shared by all who ask it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(super) handle: Handle,
    /// Which of a link's connections this is.
    pub(super) generation: u64,
}

impl Link {
    /// A link through a connection that is there already, and that mends itself if it can.
    pub(crate) fn ready(handle: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        let handle = Handle(Box::new(handle));
        Self {
            state: watch::Sender::new(State::Up(Connection { handle, generation: 0 })),
            broken: Notify::new(),
            identity: Mutex::default(),
        }
    }

    /// A link that is not connected yet: see [`Link::keep_connected`].
    pub(crate) fn unconnected() -> Self {
        Self { state: watch::Sender::new(State::New), broken: Notify::new(), identity: Mutex::default() }
    }

    pub(crate) fn connection(&self) -> Result<Connection, NodeError> {
        match &*self.state.borrow() {
            State::Up(connection) => Ok(connection.clone()),
            State::Down(error) => Err(error.clone()),
            State::New => Err(NodeError::Down { reason: "still connecting".into() }),
        }
    }

    /// Waits, for so long at most, until it is known whether the node can be reached.
    pub(crate) async fn settled(&self, limit: Duration) {
        let mut state = self.state.subscribe();
        let _ = timeout(limit, state.wait_for(|state| !matches!(state, State::New))).await;
    }

    pub(crate) fn identity(&self) -> Option<Arc<str>> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the server for its run id. A server that does not tell is known by its address.
    pub(super) async fn identify(&self, connection: &mut impl ConnectionLike) {
        let info = ::redis::cmd("INFO").arg("server").query_async::<String>(connection).await;
        let info = info.unwrap_or_default();
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = run_id.map(Into::into);
    }

    /// Somebody found this connection broken.
    pub(crate) fn broken(&self, generation: u64) {
        let current =
            matches!(&*self.state.borrow(), State::Up(connection) if connection.generation == generation);
        if current {
            self.broken.notify_one();
        }
    }

    /// Connects, and connects again whenever the connection breaks, until told to stop.
    pub(crate) async fn keep_connected(&self, client: &Client, stop: CancellationToken) {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_millis(CONNECT_LIMIT_MS)))
            // Every question has a time limit of its own; a second one would only cut waits short.
            .set_response_timeout(None);
        let mut generation = 0;
        let mut pause_ms = PAUSE_MIN_MS;
        loop {
            let connecting = async {
                let limit = Duration::from_millis(CONNECT_LIMIT_MS);
                let connected =
                    timeout(limit, client.get_multiplexed_async_connection_with_config(&config)).await;
                match connected {
                    Ok(Ok(connection)) => Ok(connection),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err(format!("connecting took longer than {CONNECT_LIMIT_MS} ms")),
                }
            };
            let connected = tokio::select! {
                connected = connecting => connected,
                () = stop.cancelled() => return,
            };
            match connected {
                Ok(mut connection) => {
                    generation += 1;
                    pause_ms = PAUSE_MIN_MS;
                    let limit = Duration::from_millis(CONNECT_LIMIT_MS);
                    let _ = timeout(limit, self.identify(&mut connection)).await;
                    let up = Connection { handle: Handle(Box::new(connection.clone())), generation };
                    self.state.send_replace(State::Up(up));
                    tokio::select! {
                        () = self.watch_over(connection) => {}
                        () = stop.cancelled() => return,
                    }
                    let reason = "the connection was lost".into();
                    self.state.send_replace(State::Down(NodeError::Down { reason }));
                }
                Err(reason) => {
                    self.state.send_replace(State::Down(NodeError::Down { reason }));
                    tokio::select! {
                        () = sleep(Duration::from_millis(pause_ms)) => {}
                        () = stop.cancelled() => return,
                    }
                    pause_ms = (pause_ms * 2).min(PAUSE_MAX_MS);
                }
            }
        }
    }

    /// Returns when the connection is broken.
    async fn watch_over(&self, mut connection: MultiplexedConnection) {
        loop {
            tokio::select! {
                () = self.broken.notified() => return,
                () = sleep(Duration::from_millis(PAUSE_MAX_MS)) => {}
            }
            // An idle connection tells nobody that it has broken.
            let ping = ::redis::cmd("PING");
            let ping = connection.send_packed_command(&ping);
            match timeout(Duration::from_millis(CONNECT_LIMIT_MS), ping).await {
                // Whatever was asked since is kept until it is answered, and that would be without end.
                Err(_) => return,
                Ok(Err(error)) if error.is_unrecoverable_error() => return,
                Ok(_) => {}
            }
        }
    }
}

/// Any connection that can be shared.
pub(crate) struct Handle(Box<dyn Shared>);

trait Shared: ConnectionLike + Send + Sync {
    fn share(&self) -> Box<dyn Shared>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared for C {
    fn share(&self) -> Box<dyn Shared> {
        Box::new(self.clone())
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self(self.0.share())
    }
}

impl ConnectionLike for Handle {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}
