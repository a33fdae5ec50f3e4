use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quorlock_core::client::{NodeError, RequestId, Response};
use tokio::time::Instant;

use super::{Connection, Outgoing};

/// Requests in flight whose responses are awaited together, a few for each node at most.
#[derive(Default)]
pub(crate) struct InFlight {
    inbox: Arc<Inbox>,
    /// Keeps each connection until its response has arrived.
    open: Vec<(RequestId, Arc<Connection>)>,
}

#[derive(Default)]
struct Inbox {
    state: Mutex<Arrived>,
}

#[derive(Default)]
struct Arrived {
    responses: VecDeque<Answered>,
    waker: Option<Waker>,
}

/// The place for one response. Reports a lost connection when it is dropped unanswered.
pub(super) struct Ticket {
    id: RequestId,
    sent: Instant,
    inbox: Option<Arc<Inbox>>,
}

#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) id: RequestId,
    pub(crate) response: Response,
    pub(crate) took: Duration,
}

impl InFlight {
    pub(crate) fn with_capacity(requests: usize) -> Self {
        Self { inbox: Arc::default(), open: Vec::with_capacity(requests) }
    }

    pub(crate) fn ask(&mut self, id: RequestId, connection: Arc<Connection>, outgoing: Outgoing) {
        let ticket = Ticket { id, sent: Instant::now(), inbox: Some(Arc::clone(&self.inbox)) };
        connection.ask(outgoing, ticket);
        self.open.push((id, connection));
    }

    /// For a request that cannot be sent.
    pub(crate) fn fail(&mut self, id: RequestId, error: NodeError) {
        let response = Response::Failed(error);
        self.inbox.put(Answered { id, response, took: Duration::ZERO });
    }

    /// Waits for a response. Never returns if no request is in flight.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Answered {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// `None` if no request is in flight.
    pub(crate) fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
        if self.is_empty() { Poll::Ready(None) } else { self.poll_next(cx).map(Some) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.inbox.arrived().responses.is_empty()
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Answered> {
        let mut arrived = self.inbox.arrived();
        let Some(answered) = arrived.responses.pop_front() else {
            arrived.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        drop(arrived);
        self.close(answered.id);
        Poll::Ready(answered)
    }

    pub(crate) fn take_answered(&mut self) -> Option<Answered> {
        let answered = self.inbox.arrived().responses.pop_front()?;
        self.close(answered.id);
        Some(answered)
    }

    fn close(&mut self, id: RequestId) {
        if let Some(index) = self.open.iter().position(|(open, _)| *open == id) {
            self.open.swap_remove(index);
        }
    }
}

impl Inbox {
    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, answered: Answered) {
        let waker = {
            let mut arrived = self.arrived();
            arrived.responses.push_back(answered);
            arrived.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Ticket {
    pub(super) fn answer(mut self, response: Response) {
        self.put(response);
    }

    fn put(&mut self, response: Response) {
        if let Some(inbox) = self.inbox.take() {
            inbox.put(Answered { id: self.id, response, took: self.sent.elapsed() });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.put(Response::Failed(NodeError::connection_lost()));
    }
}
