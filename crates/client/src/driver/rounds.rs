//! Rounds of extensions: the requests of many locks travel in one pipeline per node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::redis::Pipeline;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quorlock_core::client::{
    Command, Context, Hold, NodeError, OutgoingRequest, RequestId, Response, Spec,
};
use quorlock_core::quorum::{ExtensionVerdict, Moment, Ownership};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::hold::LockInner;
use super::shared::Shared;
use super::timers::sleep_until;
use crate::transport::{InFlight, Outgoing, read_fence};
use crate::{ExtendError, LostError, clock};

/// How long a round without a lock may outlast the last lock, while a node is silent.
const GIVEN_UP_CHECK_EVERY: Duration = Duration::from_secs(1);

/// A node's responses to one pipeline, each with the index of its lock.
type PendingResponses = BoxFuture<'static, Vec<(usize, RequestId, Response)>>;

/// [`Hold::extend`] or [`Hold::downgrade`]. Returns the number of the round.
type BeginRound = fn(&mut Hold, &Context<'_>) -> Option<u32>;

/// See [`crate::Lock::extend`].
pub(crate) async fn extend(lock: &Arc<LockInner>) -> Result<(), ExtendError> {
    begin_and_wait(lock, Hold::extend).await
}

/// See [`crate::Lock::downgrade`].
pub(crate) async fn downgrade(lock: &Arc<LockInner>) -> Result<(), ExtendError> {
    if lock.spec.keys.len() > 1 {
        return Err(ExtendError::NotShareable);
    }
    begin_and_wait(lock, Hold::downgrade).await
}

async fn begin_and_wait(lock: &Arc<LockInner>, begin_round: BeginRound) -> Result<(), ExtendError> {
    let lost = |lost: LostError| match lost {
        LostError::HeldTooLong { max_hold } => ExtendError::HeldTooLong { max_hold },
        LostError::Ended { nodes }
        | LostError::Expired { nodes }
        | LostError::Revoked { nodes } => ExtendError::Lost { nodes },
    };
    // A lock that has ended by this machine's clocks is not extended: another client may hold it.
    if !lock.is_extensible().map_err(lost)? {
        if lock.is_revoked() {
            return Err(ExtendError::Revoked { nodes: lock.report() });
        }
        let max_hold = lock.spec.max_hold.unwrap_or(Duration::MAX);
        return Err(ExtendError::HeldTooLong { max_hold });
    }
    let (call, verdict) = oneshot::channel();
    let shared = Arc::clone(&lock.shared);
    let locks = vec![Arc::clone(lock)];
    shared.runtime.spawn(run_round(Arc::clone(&shared), locks, begin_round, Some(call)));
    // The round continues for late answers and repairs. It has no verdict if the lock ended before,
    // or if the runtime has ended.
    let verdict = verdict.await;
    lock.is_extensible().map_err(lost)?;
    match verdict {
        Err(_) => Err(ExtendError::RuntimeEnded),
        Ok(ExtensionVerdict::Extended(_)) => Ok(()),
        Ok(_) if lock.is_revoked() => Err(ExtendError::Revoked { nodes: lock.report() }),
        // A majority has answered since the verdict.
        Ok(_) if matches!(lock.ownership(), Ownership::Held(_)) => Ok(()),
        Ok(_) => Err(ExtendError::NoQuorum { nodes: lock.report() }),
    }
}

/// Extends locks. Ends when all nodes have answered, or once [`Hold::round_ends_at`] has passed for
/// every lock.
pub(super) async fn round(shared: Arc<Shared>, locks: Vec<Arc<LockInner>>) {
    run_round(shared, locks, Hold::extend, None).await;
}

/// `call` waits for the verdict on the first lock.
async fn run_round(
    shared: Arc<Shared>,
    locks: Vec<Arc<LockInner>>,
    begin_round: BeginRound,
    mut call: Option<oneshot::Sender<ExtensionVerdict>>,
) {
    let (extensions, answers) = (Vec::new(), FuturesUnordered::new());
    let mut round = Round { shared, locks, extensions, answers, has_ended: false };
    for index in 0..round.locks.len() {
        let lock = Arc::clone(&round.locks[index]);
        lock.handle_stragglers();
        round.call(index, |hold, ctx| {
            let number = begin_round(hold, ctx);
            // The verdict may be among the actions that follow.
            if let (Some(number), Some(call)) = (number, call.take()) {
                lock.register_call(number, call);
            }
        });
    }
    let end = round.locks.iter().filter_map(|lock| lock.round_ends_at()).reduce(Moment::later);
    round.send_extensions();
    while !round.answers.is_empty() {
        let deadline = round.deadline();
        let now = clock::now();
        let is_late = end.is_some_and(|end| now.has_reached(end));
        if deadline.is_none() && (is_late || round.locks.iter().all(|lock| lock.was_given_up())) {
            break;
        }
        let next = deadline.unwrap_or_else(|| now.plus(GIVEN_UP_CHECK_EVERY));
        tokio::select! {
            biased;
            Some(answered) = round.answers.next() => round.handle(answered),
            () = sleep_until(Some(next)) => round.handle_timeout(),
        }
    }
    round.has_ended = true;
}

struct Round {
    shared: Arc<Shared>,
    locks: Vec<Arc<LockInner>>,
    /// The EXTENDs that have not been sent yet, each with the index of its lock.
    extensions: Vec<(usize, OutgoingRequest)>,
    answers: FuturesUnordered<PendingResponses>,
    /// False if the runtime ends before the round.
    has_ended: bool,
}

impl Drop for Round {
    /// Undoes the unanswered repairs of locks that were released or detached. If the runtime has
    /// ended, fails the calls that wait for a verdict.
    fn drop(&mut self) {
        for lock in &self.locks {
            if !self.has_ended {
                lock.fail_calls();
            }
            lock.with_hold(|hold, ctx| hold.abandon_repairs(ctx), |_, _| {});
        }
    }
}

impl Round {
    fn deadline(&self) -> Option<Moment> {
        self.locks.iter().filter_map(|lock| lock.node_timeout_at()).reduce(Moment::earlier)
    }

    /// Calls the machine of a lock. Sends repairs at once, and leaves EXTENDs for
    /// [`send_extensions`](Self::send_extensions): no EXTEND revives a lock that was released.
    fn call(&mut self, index: usize, call: impl FnOnce(&mut Hold, &mut Context<'_>)) {
        let Self { shared, locks, extensions, answers, .. } = self;
        locks[index].with_hold(call, |spec, send| match send.request.command {
            Command::Acquire { .. } => answers.push(send_repair(shared, index, spec, &send)),
            _ => extensions.push((index, send)),
        });
    }

    fn handle(&mut self, answered: Vec<(usize, RequestId, Response)>) {
        for (index, id, response) in answered {
            self.call(index, |hold, ctx| hold.handle_response(id, &response, ctx));
        }
        self.send_extensions();
    }

    fn handle_timeout(&mut self) {
        for index in 0..self.locks.len() {
            self.call(index, |hold, ctx| hold.handle_timeout(ctx));
        }
        self.send_extensions();
    }

    /// All requests through one connection share one pipeline.
    fn send_extensions(&mut self) {
        let mut by_connection = BTreeMap::<_, Vec<_>>::new();
        for (index, send) in self.extensions.drain(..) {
            by_connection.entry((send.id.node, send.connection)).or_default().push((index, send));
        }
        for ((node, connection), sends) in by_connection {
            let mut pipeline = Pipeline::with_capacity(sends.len());
            for (index, send) in &sends {
                let outgoing = Outgoing::new(&self.locks[*index].current_spec(), &send.request);
                outgoing.add_to(&mut pipeline);
            }
            let ids: Vec<_> = sends.iter().map(|(index, send)| (*index, send.id)).collect();
            let found = self.shared.connection(node, connection);
            let shared = Arc::clone(&self.shared);
            self.answers.push(Box::pin(async move {
                let failed = |error: NodeError| {
                    let ids = ids.iter();
                    ids.map(|&(index, id)| (index, id, Response::Failed(error.clone()))).collect()
                };
                let Some(connection) = found else { return failed(NodeError::connection_lost()) };
                let asked = Instant::now();
                match connection.ask_all(pipeline).await {
                    Ok(values) if values.len() == ids.len() => {
                        shared.client_state.round_trips.sample(node, asked.elapsed());
                        let read = |((index, id), value)| (index, id, read_fence(value));
                        ids.iter().copied().zip(values).map(read).collect()
                    }
                    Ok(_) => failed(NodeError::UnexpectedReply),
                    Err(error) => failed(error),
                }
            }));
        }
    }
}

fn send_repair(
    shared: &Shared,
    index: usize,
    spec: &Spec,
    send: &OutgoingRequest,
) -> PendingResponses {
    let mut in_flight = InFlight::with_capacity(1);
    shared.ask(&mut in_flight, send.id, send.connection, Outgoing::new(spec, &send.request));
    Box::pin(async move {
        let answered = in_flight.next().await;
        vec![(index, answered.id, answered.response)]
    })
}
