//! Connections on which somebody waits. A command that blocks holds up everything behind it, so each has one user at a
//! time, and none is shared with the questions that are answered at once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::{AsyncConnectionConfig, Client};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::{Question, Reply, question};
use crate::NodeError;

/// How many may wait on one node at the same time: one for each key that is waited for.
const WAITING_MAX: usize = 256;
/// How many connections are kept for those who wait next.
const IDLE_MAX: usize = 16;
/// How long an attempt to connect may take, in milliseconds.
const CONNECT_LIMIT_MS: u64 = 1000;

/// The connections to one node on which somebody waits or waited.
pub(crate) struct WaitingRoom {
    client: Option<Client>,
    seats: Arc<Semaphore>,
    idle: Mutex<Vec<MultiplexedConnection>>,
}

/// A connection of one's own.
pub(crate) struct Seat {
    connection: MultiplexedConnection,
    room: Arc<WaitingRoom>,
    _permit: OwnedSemaphorePermit,
}

impl WaitingRoom {
    /// Without a client there are no further connections to be had, and nobody waits on this node.
    pub(crate) fn new(client: Option<Client>) -> Self {
        Self { client, seats: Arc::new(Semaphore::new(WAITING_MAX)), idle: Mutex::default() }
    }

    pub(crate) fn has_seats(&self) -> bool {
        self.client.is_some()
    }

    pub(crate) async fn sit_down(self: &Arc<Self>) -> Result<Seat, NodeError> {
        let down = |reason: String| NodeError::Down { reason };
        let Some(client) = &self.client else {
            return Err(down("its connection is shared, and nobody can wait on it".into()));
        };
        let permit =
            Arc::clone(&self.seats).acquire_owned().await.map_err(|error| down(error.to_string()))?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = if let Some(connection) = idle {
            connection
        } else {
            let limit = Duration::from_millis(CONNECT_LIMIT_MS);
            let config =
                AsyncConnectionConfig::new().set_connection_timeout(Some(limit)).set_response_timeout(None);
            match timeout(limit, client.get_multiplexed_async_connection_with_config(&config)).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => return Err(down(error.to_string())),
                Err(_) => return Err(down(format!("connecting took longer than {CONNECT_LIMIT_MS} ms"))),
            }
        };
        Ok(Seat { connection, room: Arc::clone(self), _permit: permit })
    }
}

impl Seat {
    /// Asks, and gives the seat back when there is an answer. Dropped before, it closes the connection.
    pub(crate) async fn ask(mut self, question: Question) -> Reply {
        match self.connection.req_packed_command(&question.command).await {
            Ok(value) => {
                let mut idle = self.room.idle.lock().unwrap_or_else(PoisonError::into_inner);
                if idle.len() < IDLE_MAX {
                    idle.push(self.connection.clone());
                }
                question.read(value)
            }
            Err(error) => Reply::Failed(question::read_error(&error)),
        }
    }
}
