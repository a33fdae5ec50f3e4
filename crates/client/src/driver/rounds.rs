//! Rounds of extensions: the requests of many locks travel in one pipeline per node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::redis::Pipeline;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quorlock_core::client::{Context, Hold, NodeError, OutgoingRequest, RequestId, Response};
use quorlock_core::quorum::{ExtensionVerdict, Moment};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::hold::LockInner;
use super::shared::Shared;
use super::timers::sleep_until;
use crate::transport::{Outgoing, read_fence};
use crate::{ExtendError, LostError, clock};

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
    shared.spawn(run_round(Arc::clone(&shared), vec![Arc::clone(lock)], begin_round, Some(call)));
    // The round continues for late answers and repairs. It has no verdict if the lock ended before.
    let verdict = verdict.await.unwrap_or(ExtensionVerdict::Uncertain);
    match (verdict, lock.is_extensible()) {
        (_, Err(end)) => Err(lost(end)),
        (ExtensionVerdict::Extended(_), Ok(_)) => Ok(()),
        (_, Ok(_)) if lock.is_revoked() => Err(ExtendError::Revoked { nodes: lock.report() }),
        (ExtensionVerdict::Lost | ExtensionVerdict::Uncertain, Ok(_)) => {
            Err(ExtendError::NoQuorum { nodes: lock.report() })
        }
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
    let mut round = Round { shared, locks, answers: FuturesUnordered::new() };
    let mut sends = Vec::new();
    for (index, lock) in round.locks.iter().enumerate() {
        lock.handle_stragglers();
        let ((), requests) = lock.with_hold(|hold, ctx| {
            let number = begin_round(hold, ctx);
            // The verdict may be among the actions that follow.
            if let (Some(number), Some(call)) = (number, call.take()) {
                lock.register_call(number, call);
            }
        });
        sends.extend(requests.into_iter().map(|send| (index, send)));
    }
    let end = round.locks.iter().filter_map(|lock| lock.round_ends_at()).reduce(Moment::later);
    round.send(sends);
    while !round.answers.is_empty() {
        let deadline = round.deadline().into_iter().chain(end).reduce(Moment::earlier);
        tokio::select! {
            biased;
            Some(answered) = round.answers.next() => round.handle(answered),
            () = sleep_until(deadline) => {
                if end.is_some_and(|end| clock::now().has_reached(end)) {
                    break;
                }
                round.handle_timeout();
            }
        }
    }
    round.handle_timeout();
}

struct Round {
    shared: Arc<Shared>,
    locks: Vec<Arc<LockInner>>,
    answers: FuturesUnordered<PendingResponses>,
}

impl Drop for Round {
    /// Undoes the unanswered repairs of locks that were released or detached.
    fn drop(&mut self) {
        for lock in &self.locks {
            lock.with_hold(|hold, ctx| hold.abandon_repairs(ctx));
        }
    }
}

impl Round {
    fn deadline(&self) -> Option<Moment> {
        self.locks.iter().filter_map(|lock| lock.node_timeout_at()).reduce(Moment::earlier)
    }

    fn handle(&mut self, answered: Vec<(usize, RequestId, Response)>) {
        let mut sends = Vec::new();
        for (index, id, response) in answered {
            let lock = &self.locks[index];
            let ((), more) = lock.with_hold(|hold, ctx| hold.handle_response(id, &response, ctx));
            sends.extend(more.into_iter().map(|send| (index, send)));
        }
        self.send(sends);
    }

    fn handle_timeout(&mut self) {
        let mut sends = Vec::new();
        for (index, lock) in self.locks.iter().enumerate() {
            let ((), more) = lock.with_hold(|hold, ctx| hold.handle_timeout(ctx));
            sends.extend(more.into_iter().map(|send| (index, send)));
        }
        self.send(sends);
    }

    /// All requests through one connection share one pipeline.
    fn send(&mut self, sends: Vec<(usize, OutgoingRequest)>) {
        let mut by_connection = BTreeMap::<_, Vec<_>>::new();
        for (index, send) in sends {
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
