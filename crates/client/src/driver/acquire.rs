use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use quorlock_core::client::{
    Acquire, Action, Failure, NodeError, Outcome, Request, RequestId, Response, Spec, Token,
};
use tokio::time::sleep;

use super::hold::LockInner;
use super::local_queues::QueuedCall;
use super::releases::{Releasing, SentWait};
use super::shared::Shared;
use super::timers::{sleep_until, sleep_with_timer};
use crate::transport::{InFlight, Outgoing, WaitConnection};

/// The driver of an [`Acquire`]. Dropped before its end, it releases the lock in the background.
struct Call {
    shared: Arc<Shared>,
    machine: Acquire,
    in_flight: InFlight,
    wait: Option<Wait>,
    /// The last encoded request, for reuse: most requests go to several nodes.
    last_built: Option<(Request, Arc<Spec>, Outgoing)>,
    ended: bool,
}

enum Wait {
    /// The WAIT has no wait connection yet.
    Opening(RequestId, BoxFuture<'static, Result<WaitConnection, NodeError>>),
    Sent(SentWait),
}

enum WaitEvent {
    Opened(RequestId, Result<WaitConnection, NodeError>),
    Answered(RequestId, Response),
}

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
            wait: None,
            last_built: None,
            ended: false,
        }
    }

    /// Runs the call to its end, once `queued` is at the head of the local queue or the call has
    /// waited long enough for that. `queued` is `None` if the call does not queue.
    async fn run(
        mut self: Box<Self>,
        queued: Option<QueuedCall>,
    ) -> Result<Arc<LockInner>, Failure> {
        let Some(mut queued) = queued else {
            self.propose_slot();
            self.shared.with_context(|ctx| self.machine.begin(false, ctx));
            return self.finish().await;
        };
        let deadline = self.machine.poll_timeout();
        let contended = tokio::select! {
            biased;
            contended = queued.ready() => contended,
            () = sleep_until(deadline) => {
                // The call leaves the local queue, and continues without it.
                drop(queued);
                self.propose_slot();
                self.shared.with_context(|ctx| self.machine.handle_timeout(ctx));
                return self.finish().await;
            }
        };
        self.propose_slot();
        self.shared.with_context(|ctx| self.machine.begin(contended, ctx));
        let spec = Arc::clone(self.machine.spec());
        let shared = Arc::clone(&self.shared);
        let (outcome, now_contended) = self.finish_with_contention().await;
        if now_contended != contended {
            shared.queues.set_contended(spec.name(), now_contended);
        }
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

    async fn finish(self: Box<Self>) -> Result<Arc<LockInner>, Failure> {
        self.finish_with_contention().await.0
    }

    /// Runs the call to its end. Also returns whether the lock is contended.
    async fn finish_with_contention(
        mut self: Box<Self>,
    ) -> (Result<Arc<LockInner>, Failure>, bool) {
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
                event = next_event(&mut self.wait) => self.handle_wait(event),
                () = sleep_with_timer(timer.as_mut(), &mut armed, deadline) => {
                    self.shared.with_context(|ctx| self.machine.handle_timeout(ctx));
                }
            }
        };
        self.ended = true;
        let contended = self.machine.is_contended();
        let outcome = match outcome {
            Outcome::Acquired(grant) => {
                let stragglers = std::mem::take(&mut self.in_flight);
                let spec = Arc::clone(self.machine.spec());
                let lock = LockInner::new(&self.shared, spec, grant, stragglers);
                let attempts = self.machine.attempts();
                tracing::debug!(attempts, coverage = %lock.coverage(), nodes = %lock.report(), "granted");
                Ok(lock)
            }
            Outcome::Failed(failure) => Err(failure),
        };
        (outcome, contended)
    }

    fn respond(&mut self, id: RequestId, response: &Response) {
        self.shared.with_context(|ctx| self.machine.handle_response(id, response, ctx));
    }

    /// Carries out all actions of the machine. Returns the outcome once the call has ended.
    fn act(&mut self) -> Option<Outcome> {
        let mut outcome = None;
        while let Some(action) = self.machine.poll() {
            match action {
                Action::Send { id, connection, request } => self.send(id, connection, &request),
                Action::Wait { id } => {
                    let wait_connections = Arc::clone(&self.shared.nodes[id.node].wait_connections);
                    self.wait = Some(Wait::Opening(id, wait_connections.checkout().boxed()));
                }
                Action::StopWaiting { .. } => self.wait = None,
                Action::Release(release) => {
                    let wait = match release.wait().and_then(|_| self.wait.take()) {
                        Some(Wait::Sent(wait)) => Some(wait),
                        Some(Wait::Opening(..)) | None => None,
                    };
                    Releasing::new(&self.shared, *release, wait).finish_later();
                }
                Action::Suspect { node, connection } => self.shared.suspect(node, connection),
                Action::Done(done) => outcome = Some(*done),
            }
        }
        outcome
    }

    fn send(&mut self, id: RequestId, connection: u64, request: &Request) {
        let spec = self.machine.spec();
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

    fn handle_wait(&mut self, event: WaitEvent) {
        self.wait = None;
        match event {
            WaitEvent::Opened(id, Ok(connection)) => {
                let request =
                    self.shared.with_context(|ctx| self.machine.handle_wait_connection(id, ctx));
                if let Some(request) = request {
                    let outgoing = Outgoing::new(self.machine.wait_spec(), &request);
                    self.wait = Some(Wait::Sent((id, connection.ask(outgoing).boxed())));
                }
            }
            WaitEvent::Opened(id, Err(error)) => self.respond(id, &Response::Failed(error)),
            WaitEvent::Answered(id, response) => self.respond(id, &response),
        }
    }
}

/// Waits for the next event of a WAIT. Never returns if there is no WAIT.
async fn next_event(wait: &mut Option<Wait>) -> WaitEvent {
    match wait {
        Some(Wait::Opening(id, opening)) => WaitEvent::Opened(*id, opening.await),
        Some(Wait::Sent((id, answer))) => WaitEvent::Answered(*id, answer.await),
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
