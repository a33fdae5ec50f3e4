//! The wait connections of a client on one node. A command that blocks delays every later command
//! on its connection, so a wait connection carries one WAIT at a time, and no other requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redis::aio::MultiplexedConnection;
use quorlock_core::client::{Entry, NodeError, PlaceQueue, Response, limits};
use tokio::sync::oneshot;

use super::command::Packet;
use super::{Endpoint, Outgoing};

const IDLE_MAX: usize = 16;

pub(crate) struct WaitConnectionPool {
    endpoint: Endpoint,
    state: Mutex<State>,
}

struct State {
    places: PlaceQueue,
    waiting: HashMap<u64, oneshot::Sender<()>>,
    idle: Vec<MultiplexedConnection>,
}

/// A place in the pool, or in the queue for one, and later a connection for one WAIT.
pub(crate) struct WaitConnection {
    connection: Option<MultiplexedConnection>,
    pool: Arc<WaitConnectionPool>,
    /// The number in the queue; `None` once the wait connection has a place and knows it.
    in_line: Option<(u64, oneshot::Receiver<()>)>,
}

impl WaitConnectionPool {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let places = PlaceQueue::new(limits::WAIT_CONNECTIONS_MAX);
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
    pub(crate) async fn checkout(self: Arc<Self>) -> Result<WaitConnection, NodeError> {
        let in_line = {
            let mut state = self.state();
            match state.places.enter() {
                Entry::Place => None,
                Entry::Queued(number) => {
                    let (notify, notified) = oneshot::channel();
                    state.waiting.insert(number, notify);
                    Some((number, notified))
                }
            }
        };
        let mut taken = WaitConnection { connection: None, pool: Arc::clone(&self), in_line };
        if let Some((_, notified)) = &mut taken.in_line {
            // Cannot fail, since `taken` keeps the pool alive, and with it the sender.
            let _ = notified.await;
            taken.in_line = None;
        }
        let idle = self.state().idle.pop();
        taken.connection = Some(match idle {
            Some(connection) => connection,
            None => self.endpoint.open_wait_connection().await?,
        });
        Ok(taken)
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

impl WaitConnection {
    /// After the reply, the pool may reuse the connection. Dropping the future closes it.
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

impl Drop for WaitConnection {
    fn drop(&mut self) {
        if let Some((number, _)) = &self.in_line {
            let mut state = self.pool.state();
            state.waiting.remove(number);
            if state.places.give_up(*number).is_some() {
                return;
            }
        }
        self.pool.leave();
    }
}
