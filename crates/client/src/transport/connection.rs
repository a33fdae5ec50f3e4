use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, Pipeline, ProtocolVersion,
    RedisError, RedisResult, Value,
};
use quorlock_core::NodeError;
use quorlock_core::client::{Hello, Response, limits};
use tokio::time::Instant;

use super::batches::{Batches, UNANSWERED_MAX};
use super::command::{Outgoing, read_error};
use super::port_protocol;

/// A node, with RESP3: without it, redis-rs does not report the end of a connection.
#[derive(Clone)]
pub(crate) struct Endpoint(Client);

/// A shared connection to a node.
pub(crate) struct Connection {
    wire: MultiplexedConnection,
    /// The requests about locks.
    pub(crate) batches: Batches,
    /// The number among the connections of the node.
    pub(crate) number: u64,
}

impl Endpoint {
    pub(crate) fn new(client: &Client) -> RedisResult<Self> {
        let info = client.get_connection_info().clone();
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp);
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        Ok(Self(Client::open(info.set_redis_settings(settings))?))
    }

    /// The address, without any password.
    pub(crate) fn address(&self) -> String {
        match self.0.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("{host}:{port}")
            }
            ConnectionAddr::Unix(path) => path.display().to_string(),
            other => other.to_string(),
        }
    }

    async fn open_wait_connection(&self) -> Result<MultiplexedConnection, NodeError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limits::HANDSHAKE))
            // The machines give up earlier. But no call waits for the end of a lost WAIT, and its
            // connection must not stay open.
            .set_response_timeout(Some(limits::WAIT_SLICE + limits::HANDSHAKE));
        let connecting = self.0.get_multiplexed_async_connection_with_config(&config);
        connecting.await.map_err(|error| connect_error(&error))
    }
}

/// Connects to a node and reads its INFO. Also returns how long the reply to INFO took. Calls
/// `closed` once when the connection has ended.
pub(crate) async fn open(
    endpoint: &Endpoint,
    number: u64,
    closed: impl Fn() + Send + Sync + 'static,
) -> Result<(Connection, Hello, Duration), NodeError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limits::HANDSHAKE))
        // The machines have a time limit for every request.
        .set_response_timeout(None)
        // A place for each batch, and as many for other requests: a batch that waited for a place
        // could be overtaken.
        .set_pipeline_buffer_size(2 * UNANSWERED_MAX)
        .set_push_sender(move |push: ::redis::PushInfo| -> Result<(), ::redis::aio::SendError> {
            if push.kind == ::redis::PushKind::Disconnection {
                closed();
            }
            Ok(())
        });
    let mut wire = connect_or_explain(&endpoint.0, &config).await?;
    let asked = Instant::now();
    let mut info = ::redis::cmd("INFO");
    info.arg("server").arg("replication").arg("lock");
    let info: String =
        info.query_async(&mut wire).await.map_err(|error| match read_error(&error) {
            NodeError::Denied { reason } => {
                NodeError::Denied { reason: format!("{reason}; the client needs INFO (+info)") }
            }
            other => other,
        })?;
    let batches = Batches::start(wire.clone());
    Ok((Connection { wire, batches, number }, Hello::from_info(&info), asked.elapsed()))
}

/// Connects, and finds out whether the port speaks TLS if it seems to be down or silent.
///
/// Not part of the API: the program `quorlock` connects to each node in the same way.
pub async fn connect_or_explain(
    client: &Client,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, NodeError> {
    let address = client.get_connection_info().addr();
    tokio::select! {
        biased;
        connected = client.get_multiplexed_async_connection_with_config(config) => {
            let error = match connected {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            match connect_error(&error) {
                down @ NodeError::Down { .. }
                    if !error.is_timeout() && !error.is_connection_refusal() =>
                {
                    Err(port_protocol::mismatch(address).await.unwrap_or(down))
                }
                other => Err(other),
            }
        }
        error = port_protocol::mismatch_of_silent_port(address) => Err(error),
    }
}

fn connect_error(error: &RedisError) -> NodeError {
    let reason = error.to_string();
    if error.kind() == ErrorKind::AuthenticationFailed {
        return NodeError::Denied { reason };
    }
    match read_error(error) {
        NodeError::ErrorReply(words) if words.contains("DB index is out of range") => {
            let reason = format!("{words}: check the database number in the URL");
            NodeError::Misconfigured { reason }
        }
        _ if reason.contains("invalid peer certificate") => NodeError::Misconfigured {
            reason: format!("{reason}: check the node's certificate and the trusted roots"),
        },
        NodeError::UnexpectedReply => NodeError::Down { reason },
        other => other,
    }
}

impl Connection {
    /// Returns whether the node replied to a PING without an error.
    pub(crate) async fn ping(&self) -> bool {
        ::redis::cmd("PING").exec_async(&mut self.wire.clone()).await.is_ok()
    }

    /// For requests that are not about a lock of this client, in any order with the others.
    pub(super) async fn ask_all(&self, commands: Pipeline) -> Result<Vec<Value>, NodeError> {
        let count = commands.len();
        let replies = self.wire.clone().send_packed_commands(&commands, 0, count).await;
        let replies = replies.map_err(|error| read_error(&error))?;
        if replies.len() == count { Ok(replies) } else { Err(NodeError::UnexpectedReply) }
    }
}

/// The most wait connections that are kept without a WAIT.
const IDLE_MAX: usize = 16;

/// The wait connections of a client to one node. A command that blocks delays every later command
/// on its connection, so a wait connection carries one WAIT at a time, and no other requests.
pub(crate) struct WaitConnectionPool {
    endpoint: Endpoint,
    idle: Mutex<Vec<MultiplexedConnection>>,
}

impl WaitConnectionPool {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle connection or opens one.
    pub(crate) async fn checkout(&self) -> Result<MultiplexedConnection, NodeError> {
        let idle = self.idle().pop();
        match idle {
            Some(connection) => Ok(connection),
            None => self.endpoint.open_wait_connection().await,
        }
    }

    /// Sends a WAIT through a connection of the pool, and returns the response.
    pub(crate) async fn ask(
        &self,
        mut connection: MultiplexedConnection,
        outgoing: &Outgoing,
    ) -> Response {
        let reply = connection.send_packed_command(&outgoing.packet).await;
        // An error reply leaves the connection usable, and any other error does not.
        if reply.is_ok() {
            self.put_back(connection);
        }
        outgoing.read(reply)
    }

    /// Keeps a connection that carries no WAIT for the next one.
    pub(crate) fn put_back(&self, connection: MultiplexedConnection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }
}
