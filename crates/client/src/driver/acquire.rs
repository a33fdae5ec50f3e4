use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use quorlock_core::client::{
    Acquire, Action, Failure, NodeError, Outcome, Request, RequestId, Response, Spec, Token,
};
use tokio::time::sleep;

use super::hold::{LockInner, Stragglers};
use super::local_queues::QueuedCall;
use super::places_in_line::Place;
use super::releases::Releasing;
use super::shared::Shared;
use super::timers::{sleep_until, sleep_with_timer};
use crate::transport::{InFlight, Outgoing, WaitConnection, Waits};

/// The driver of an [`Acquire`]. Dropped before its end, it releases the lock in the background.
struct Call {
    shared: Arc<Shared>,
    machine: Acquire,
    in_flight: InFlight,
    /// The place in line, or in the queue for one.
    place: Option<Place>,
    /// Wait connections that are being opened.
    opening: FuturesUnordered<BoxFuture<'static, Opened>>,
    waits: Waits,
    /// The last encoded request, for reuse: most requests go to several nodes.
    last_built: Option<(Request, Arc<Spec>, Outgoing)>,
    ended: bool,
}

type Opened = (RequestId, Result<WaitConnection, NodeError>);

/// Acquires a lock within `wait`; `None` is no limit.
pub(crate) async fn acquire(
    shared: &Arc<Shared>,
    spec: Spec,
    wait: Option<Duration>,
) -> Result<Arc<LockInner>, Failure> {
    let machine = shared.with_context(|ctx| Acquire::new(Arc::new(spec), wait, ctx));
    let place = machine.takes_turn().then(|| {
        let spec = machine.spec();
        shared.queues.enter(spec.name(), spec.mode)
    });
    // Boxed, because the call is large and is moved several times.
    Box::new(Call::new(shared, machine)).run(place).await
}

/// Swaps the token of a lock that another process detached.
pub(crate) async fn attach(
    shared: &Arc<Shared>,
    spec: Spec,
    old: Token,
) -> Result<Arc<LockInner>, Failure> {
    let machine = shared.with_context(|ctx| Acquire::attach(Arc::new(spec), old, ctx));
    Box::new(Call::new(shared, machine)).finish().await
}

impl Call {
    fn new(shared: &Arc<Shared>, machine: Acquire) -> Self {
        Self {
            in_flight: InFlight::with_capacity(shared.nodes.len()),
            shared: Arc::clone(shared),
            machine,
            place: None,
            opening: FuturesUnordered::new(),
            waits: Waits::default(),
            last_built: None,
            ended: false,
        }
    }

    /// Runs the call to its end, once `queued` is at the head of the local queue or the call has
    /// waited long enough for that. `queued` is `None` if the call does not queue.
    async fn run(
        mut self: Box<Self>,
        mut queued: Option<QueuedCall>,
    ) -> Result<Arc<LockInner>, Failure> {
        if let Some(in_queue) = &mut queued {
            let deadline = self.machine.poll_timeout();
            let has_turn = tokio::select! {
                biased;
                () = in_queue.ready() => true,
                () = sleep_until(deadline) => false,
            };
            if !has_turn {
                // The call leaves the local queue, and continues without it.
                drop(queued);
                self.propose_slot();
                self.shared.with_context(|ctx| self.machine.handle_timeout(ctx));
                return self.finish().await;
            }
        }
        self.propose_slot();
        self.shared.with_context(|ctx| self.machine.begin(ctx));
        let outcome = self.finish().await;
        drop(queued);
        outcome
    }

    /// For a lock on one of several keys, proposes the key that is likely free: its slot.
    fn propose_slot(&mut self) {
        if let Some(keys) = &self.machine.spec().any {
            let slot = self.shared.queues.propose_slot(keys);
            self.machine.prefer_slot(slot);
        }
    }

    /// Runs the call to its end.
    async fn finish(mut self: Box<Self>) -> Result<Arc<LockInner>, Failure> {
        let timer = sleep(Duration::ZERO);
        tokio::pin!(timer);
        let mut armed = None;
        let outcome = loop {
            if let Some(outcome) = self.act() {
                break outcome;
            }
            let deadline = self.machine.poll_timeout();
            tokio::select! {
                biased;
                answered = self.in_flight.next() => {
                    self.shared.sample(&answered);
                    self.respond(answered.id, &answered.response);
                }
                (id, response) = self.waits.next() => self.respond(id, &response),
                () = place_taken(&mut self.place) => {
                    self.shared.with_context(|ctx| self.machine.handle_place(ctx));
                }
                Some((id, opened)) = self.opening.next() => self.handle_opened(id, opened),
                () = sleep_with_timer(timer.as_mut(), &mut armed, deadline) => {
                    self.shared.with_context(|ctx| self.machine.handle_timeout(ctx));
                }
            }
        };
        self.ended = true;
        match outcome {
            Outcome::Acquired(hold) => {
                let stragglers = Stragglers {
                    in_flight: std::mem::take(&mut self.in_flight),
                    waits: std::mem::take(&mut self.waits),
                };
                let lock = LockInner::new(&self.shared, *hold, stragglers);
                let attempts = self.machine.attempts();
                tracing::debug!(attempts, coverage = %lock.coverage(), nodes = %lock.report(), "granted");
                Ok(lock)
            }
            Outcome::Failed(failure) => Err(failure),
        }
    }

    fn respond(&mut self, id: RequestId, response: &Response) {
        self.shared.with_context(|ctx| self.machine.handle_response(id, response, ctx));
    }

    /// Carries out all actions of the machine. Returns the outcome once the call has ended.
    fn act(&mut self) -> Option<Outcome> {
        let mut outcome = None;
        while let Some(action) = self.machine.poll() {
            match action {
                Action::Send { id, connection, request, spec } => {
                    self.send(id, connection, &request, &spec);
                }
                Action::TakePlace => {
                    let place = self.shared.places_in_line.take();
                    if place.is_taken() {
                        self.shared.with_context(|ctx| self.machine.handle_place(ctx));
                    }
                    self.place = Some(place);
                }
                Action::Wait { id } => {
                    let wait_connections = Arc::clone(&self.shared.nodes[id.node].wait_connections);
                    let opening = async move { (id, wait_connections.checkout().await) };
                    self.opening.push(opening.boxed());
                }
                Action::Release(release) => {
                    Releasing::new(&self.shared, *release, &mut self.waits).finish_later();
                }
                Action::Suspect { node, connection } => self.shared.suspect(node, connection),
                Action::Done(done) => outcome = Some(done),
            }
        }
        outcome
    }

    fn send(&mut self, id: RequestId, connection: u64, request: &Request, spec: &Arc<Spec>) {
        let outgoing = match &self.last_built {
            Some((built, of, outgoing)) if built == request && Arc::ptr_eq(of, spec) => {
                outgoing.clone()
            }
            _ => {
                let outgoing = Outgoing::new(spec, request);
                self.last_built = Some((*request, Arc::clone(spec), outgoing.clone()));
                outgoing
            }
        };
        self.shared.ask(&mut self.in_flight, id, connection, outgoing);
    }

    fn handle_opened(&mut self, id: RequestId, opened: Result<WaitConnection, NodeError>) {
        let connection = match opened {
            Ok(connection) => connection,
            Err(error) => return self.respond(id, &Response::Failed(error)),
        };
        let wait = self.shared.with_context(|ctx| self.machine.handle_wait_connection(id, ctx));
        if let Some((request, spec)) = wait {
            let response = connection.ask(Outgoing::new(&spec, &request), &self.shared.runtime);
            self.waits.push(id, response);
        }
    }
}

/// Waits for a place in line. Never returns if the call does not queue for one.
async fn place_taken(place: &mut Option<Place>) {
    match place {
        Some(place) => place.taken().await,
        None => std::future::pending().await,
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.with_context(|ctx| self.machine.cancel(ctx));
            self.act();
        }
    }
}
