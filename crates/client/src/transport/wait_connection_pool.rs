//! The wait connections of a client to one node. A command that blocks delays every later command
//! on its connection, so a wait connection carries one WAIT at a time, and no other requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redis::aio::MultiplexedConnection;
use quorlock_core::client::{NodeError, Response};

use super::{Endpoint, Outgoing};

const IDLE_MAX: usize = 16;

pub(crate) struct WaitConnectionPool {
    endpoint: Endpoint,
    idle: Mutex<Vec<MultiplexedConnection>>,
}

/// A connection for one WAIT. If it carries no WAIT when it is dropped, it returns to the pool.
pub(crate) struct WaitConnection {
    connection: Option<MultiplexedConnection>,
    pool: Arc<WaitConnectionPool>,
}

impl WaitConnectionPool {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle connection or opens one.
    pub(crate) async fn checkout(self: Arc<Self>) -> Result<WaitConnection, NodeError> {
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.endpoint.open_wait_connection().await?,
        };
        Ok(WaitConnection { connection: Some(connection), pool: self })
    }
}

impl WaitConnection {
    /// Sends a WAIT, and returns the response. Then the pool may reuse the connection.
    pub(crate) async fn ask(mut self, outgoing: Outgoing) -> Response {
        let Some(mut connection) = self.connection.take() else {
            return Response::Failed(NodeError::connection_lost());
        };
        let reply = connection.send_packed_command(&outgoing.packet).await;
        // An error reply leaves the connection usable, and any other error does not.
        if reply.is_ok() {
            self.connection = Some(connection);
        }
        outgoing.read(reply)
    }
}

impl Drop for WaitConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let mut idle = self.pool.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }
}
