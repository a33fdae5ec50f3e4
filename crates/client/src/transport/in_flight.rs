use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project_lite::pin_project;
use quorlock_core::client::{NodeError, RequestId, Response};
use tokio::time::Instant;

use super::{Connection, Outgoing};

/// How many places a thread keeps for the next requests. Each is larger than what an allocator has at
/// hand, and a lock needs two for each node.
const PLACES_MAX: usize = 1024;

thread_local! {
    static PLACES: RefCell<Vec<Pin<Box<dyn Place>>>> = const { RefCell::new(Vec::new()) };
}

/// Requests in flight that are waited for together: no more than a few for each node.
///
/// All of them are polled whenever one of them wakes the task: for so few that costs less than to
/// find out which of them it was. Reusing their memory is worth 4 % of the locks per second of 128
/// tasks (`make bench`, throughput).
#[derive(Default)]
pub(crate) struct InFlight {
    requests: Vec<State>,
}

/// The response to a request, and how long it took.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) id: RequestId,
    pub(crate) response: Response,
    pub(crate) took: Took,
}

/// How long a response took.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Took {
    Exactly(Duration),
    /// No task was waiting for the response, so it may have arrived long before it was read.
    AtMost(Duration),
}

enum State {
    Open {
        id: RequestId,
        sent: Instant,
        place: Pin<Box<dyn Place>>,
        /// The last poll was by a task that the response wakes.
        is_awaited: bool,
    },
    Done(Answered),
}

/// Where a request is asked, and later another one.
trait Place: Send {
    fn ask(self: Pin<&mut Self>, connection: Arc<Connection>, outgoing: Outgoing);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response>;

    /// Asks nothing any more, and holds nothing.
    fn clear(self: Pin<&mut Self>);
}

pin_project! {
    struct PlaceOf<A, F> {
        ask: A,
        #[pin]
        asking: Option<F>,
    }
}

impl InFlight {
    pub(crate) fn with_capacity(requests: usize) -> Self {
        Self { requests: Vec::with_capacity(requests) }
    }

    /// Sends a request now: before anything that is sent later.
    pub(crate) fn ask(&mut self, id: RequestId, connection: Arc<Connection>, outgoing: Outgoing) {
        let place = PLACES.try_with(|places| places.borrow_mut().pop()).ok().flatten();
        let mut place = place.unwrap_or_else(new_place);
        place.as_mut().ask(connection, outgoing);
        let sent = Instant::now();
        let state = match place.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => State::Open { id, sent, place, is_awaited: false },
            Poll::Ready(response) => {
                keep(place);
                State::Done(Answered { id, response, took: Took::AtMost(Duration::ZERO) })
            }
        };
        self.requests.push(state);
    }

    /// A request that cannot be sent has failed.
    pub(crate) fn fail(&mut self, id: RequestId, error: NodeError) {
        let response = Response::Failed(error);
        let took = Took::AtMost(Duration::ZERO);
        self.requests.push(State::Done(Answered { id, response, took }));
    }

    /// A response; never without requests.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Answered {
        poll_fn(|cx| self.poll_next(cx, true)).await
    }

    /// A response, or that there are no requests.
    pub(crate) fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
        if self.is_empty() { Poll::Ready(None) } else { self.poll_next(cx, true).map(Some) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// A response that has arrived already.
    pub(crate) fn take_done(&mut self) -> Option<Answered> {
        match self.poll_next(&mut Context::from_waker(Waker::noop()), false) {
            Poll::Ready(answered) => Some(answered),
            Poll::Pending => None,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, awaits: bool) -> Poll<Answered> {
        let is_done = |state: &State| matches!(state, State::Done(_));
        if !self.requests.iter().any(is_done) {
            self.poll_all(cx, awaits);
        }
        let done = self.requests.iter().position(is_done);
        match done.map(|index| self.requests.remove(index)) {
            Some(State::Done(answered)) => Poll::Ready(answered),
            Some(State::Open { .. }) | None => Poll::Pending,
        }
    }

    fn poll_all(&mut self, cx: &mut Context<'_>, awaits: bool) {
        for state in &mut self.requests {
            let State::Open { id, sent, place, is_awaited } = state else { continue };
            if let Poll::Ready(response) = place.as_mut().poll(cx) {
                let took = sent.elapsed();
                let is_exact = awaits && *is_awaited;
                let took = if is_exact { Took::Exactly(took) } else { Took::AtMost(took) };
                let answered = Answered { id: *id, response, took };
                if let State::Open { place, .. } = std::mem::replace(state, State::Done(answered)) {
                    keep(place);
                }
            } else {
                *is_awaited = awaits;
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for state in self.requests.drain(..) {
            if let State::Open { place, .. } = state {
                keep(place);
            }
        }
    }
}

fn new_place() -> Pin<Box<dyn Place>> {
    Box::pin(PlaceOf { ask: Connection::ask, asking: None })
}

impl<A, F> Place for PlaceOf<A, F>
where
    A: Fn(Arc<Connection>, Outgoing) -> F + Send,
    F: Future<Output = Response> + Send,
{
    fn ask(self: Pin<&mut Self>, connection: Arc<Connection>, outgoing: Outgoing) {
        let mut this = self.project();
        let asking = (this.ask)(connection, outgoing);
        this.asking.set(Some(asking));
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        match self.project().asking.as_pin_mut() {
            Some(asking) => asking.poll(cx),
            None => Poll::Pending,
        }
    }

    fn clear(self: Pin<&mut Self>) {
        self.project().asking.set(None);
    }
}

/// Keeps a place for another request.
fn keep(mut place: Pin<Box<dyn Place>>) {
    place.as_mut().clear();
    let _ = PLACES.try_with(|places| {
        let mut places = places.borrow_mut();
        if places.len() < PLACES_MAX {
            places.push(place);
        }
    });
}
