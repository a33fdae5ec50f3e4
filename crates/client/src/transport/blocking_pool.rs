//! Connections for blocking commands. A command that blocks delays every later command on its
//! connection, so each of these connections carries one blocking command at a time, and no other
//! requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redis::aio::MultiplexedConnection;
use quorlock_core::client::{Entry, NodeError, PlaceQueue, Response, limits};
use tokio::sync::oneshot;

use super::command::Packet;
use super::{Endpoint, Outgoing};

/// How many idle connections are kept for the next waits.
const IDLE_MAX: usize = 16;

/// The connections to one node that carry WAITs.
pub(crate) struct BlockingPool {
    endpoint: Endpoint,
    state: Mutex<State>,
}

struct State {
    places: PlaceQueue,
    waiting: HashMap<u64, oneshot::Sender<()>>,
    idle: Vec<MultiplexedConnection>,
}

/// An exclusive connection for one blocking command.
pub(crate) struct PooledConnection {
    connection: Option<MultiplexedConnection>,
    pool: Arc<BlockingPool>,
    /// The number of the checkout in the queue for a place, until it receives one.
    in_line: Option<u64>,
}

impl BlockingPool {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let places = PlaceQueue::new(limits::SEATS_MAX);
        Self {
            endpoint,
            state: Mutex::new(State { places, waiting: HashMap::new(), idle: Vec::new() }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place in the pool, and takes an idle connection or opens one.
    ///
    /// # Cancel safety
    /// Dropping the future releases the place in the pool or in the queue.
    pub(crate) async fn checkout(self: Arc<Self>) -> Result<PooledConnection, NodeError> {
        let (mut checkout, notified) = {
            let mut state = self.state();
            match state.places.enter() {
                Entry::Place => (
                    PooledConnection { connection: None, pool: Arc::clone(&self), in_line: None },
                    None,
                ),
                Entry::Queued(number) => {
                    let (notify, notified) = oneshot::channel();
                    state.waiting.insert(number, notify);
                    let pool = Arc::clone(&self);
                    (
                        PooledConnection { connection: None, pool, in_line: Some(number) },
                        Some(notified),
                    )
                }
            }
        };
        if let Some(notified) = notified {
            // Cannot fail, since `checkout` keeps the pool alive, and with it the sender.
            let _ = notified.await;
            checkout.in_line = None;
        }
        let idle = self.state().idle.pop();
        checkout.connection = Some(match idle {
            Some(connection) => connection,
            None => self.endpoint.open_exclusive().await?,
        });
        Ok(checkout)
    }

    fn leave(&self) {
        let mut state = self.state();
        for next in state.places.leave() {
            if let Some(notify) = state.waiting.remove(&next) {
                let _ = notify.send(());
            }
        }
    }
}

impl PooledConnection {
    /// Sends the request. After the reply, the pool may keep the connection for another request.
    /// If the future is dropped before that, the connection is closed.
    pub(crate) async fn ask(mut self, outgoing: Outgoing) -> Response {
        let (Some(mut connection), Packet::One(command)) =
            (self.connection.take(), &outgoing.packet)
        else {
            return Response::Failed(NodeError::UnexpectedReply);
        };
        let reply = connection.send_packed_command(command).await;
        if reply.is_ok() {
            let mut state = self.pool.state();
            if state.idle.len() < IDLE_MAX {
                state.idle.push(connection);
            }
        }
        outgoing.read(reply)
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some(number) = self.in_line {
            let mut state = self.pool.state();
            state.waiting.remove(&number);
            if state.places.give_up(number).is_some() {
                return;
            }
        }
        self.pool.leave();
    }
}
