//! Connections on which a client waits. A command that blocks holds up everything behind it, so each
//! has one user at a time, and none is shared with requests that are answered at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redis::aio::MultiplexedConnection;
use quorlock_core::client::{Entry, Line, NodeError, Response, limits};
use tokio::sync::oneshot;

use super::command::Packet;
use super::{Endpoint, Outgoing};

/// How many connections are kept for the clients that wait next.
const IDLE_MAX: usize = 16;

/// The waiting connections to one node.
pub(crate) struct BlockingPool {
    endpoint: Endpoint,
    state: Mutex<State>,
}

struct State {
    seats: Line,
    called: HashMap<u64, oneshot::Sender<()>>,
    idle: Vec<MultiplexedConnection>,
}

/// A waiting connection, to be used once.
pub(crate) struct Seat {
    connection: Option<MultiplexedConnection>,
    pool: Arc<BlockingPool>,
    /// Its number in the line, until it has been called.
    in_line: Option<u64>,
}

impl BlockingPool {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let seats = Line::new(limits::SEATS_MAX);
        Self { endpoint, state: Mutex::new(State { seats, called: HashMap::new(), idle: Vec::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a seat, and connects it.
    ///
    /// # Cancel safety
    /// Dropping the future gives the seat back, or the place in the line.
    pub(crate) async fn seat(self: Arc<Self>) -> Result<Seat, NodeError> {
        let (mut seat, called) = {
            let mut state = self.state();
            match state.seats.enter() {
                Entry::Place => (Seat { connection: None, pool: Arc::clone(&self), in_line: None }, None),
                Entry::InLine(number) => {
                    let (call, called) = oneshot::channel();
                    state.called.insert(number, call);
                    let pool = Arc::clone(&self);
                    (Seat { connection: None, pool, in_line: Some(number) }, Some(called))
                }
            }
        };
        if let Some(called) = called {
            // The seat keeps the sender's side alive.
            let _ = called.await;
            seat.in_line = None;
        }
        let idle = self.state().idle.pop();
        seat.connection = Some(match idle {
            Some(connection) => connection,
            None => self.endpoint.open_exclusive().await?,
        });
        Ok(seat)
    }

    fn leave(&self) {
        let mut state = self.state();
        for next in state.seats.leave() {
            if let Some(call) = state.called.remove(&next) {
                let _ = call.send(());
            }
        }
    }
}

impl Seat {
    /// Sends the request, and keeps the connection for another one when it is answered. Dropped
    /// before that, it closes the connection.
    pub(crate) async fn ask(mut self, outgoing: Outgoing) -> Response {
        let (Some(mut connection), Packet::One(command)) = (self.connection.take(), &outgoing.packet) else {
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

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(number) = self.in_line {
            let mut state = self.pool.state();
            state.called.remove(&number);
            if state.seats.give_up(number).is_some() {
                return;
            }
        }
        self.pool.leave();
    }
}
