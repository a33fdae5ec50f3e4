//! Keeping locks: EXTEND to all nodes that were asked for them, for as many locks as are due in one pipeline per node;
//! [`Extension`] decides of each. A node that turns out to have missed a lock that a majority has just extended is repaired.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ::redis::Pipeline;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quorlock_core::quorum::{Extension, ExtensionVerdict};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::held::Held;
use crate::node::{Connection, Question, Reply};
use crate::quorum::Shared;
use crate::release::Undo;
use crate::{ExtendError, LostError, clock, observe};

/// What a node answered of each lock that it was asked about, and by which of its connections.
type Answered = BoxFuture<'static, (usize, u64, Vec<usize>, Vec<Reply>)>;
/// The same of repairs: which locks were repaired.
type Repaired = BoxFuture<'static, (usize, Vec<usize>, Vec<Reply>)>;

/// How many locks go in one pipeline: more would hold up what others ask of the node meanwhile.
const PIPELINE_MAX: usize = 512;

/// One lock of a round.
pub(crate) struct Due {
    pub(crate) held: Arc<Held>,
    /// Who wants to know what came of it.
    pub(crate) tell: Option<oneshot::Sender<ExtensionVerdict>>,
}

/// See [`crate::Lock::extend`].
pub(crate) async fn extend(held: &Arc<Held>) -> Result<(), ExtendError> {
    let lost = |lost: LostError| match lost {
        LostError::HeldTooLong { max_hold } => ExtendError::HeldTooLong { max_hold },
        LostError::Ended { nodes } | LostError::Expired { nodes } => ExtendError::Lost { nodes },
    };
    // What has ended here is not asked for again: it may be another's by now.
    if !held.is_extensible().map_err(lost)? {
        return Err(ExtendError::HeldTooLong { max_hold: held.max_hold() });
    }
    let (tell, told) = oneshot::channel();
    let due = Due { held: Arc::clone(held), tell: Some(tell) };
    let round = round(Arc::clone(&held.shared), vec![due], held.node_limit, Patience::NextRound);
    held.shared.spawn(round);
    // The round goes on for stragglers and repairs, behind the caller's back.
    let verdict = told.await.unwrap_or(ExtensionVerdict::Uncertain);
    match (verdict, held.is_extensible()) {
        (_, Err(end)) => Err(lost(end)),
        (ExtensionVerdict::Extended(_), Ok(_)) => Ok(()),
        (ExtensionVerdict::Lost | ExtensionVerdict::Uncertain, Ok(_)) => {
            Err(ExtendError::NoQuorum { nodes: held.report() })
        }
    }
}

/// How long a round goes on for what changes nothing but the coverage.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    /// Until it is time for the next one.
    NextRound,
    /// For the nodes' time limit.
    NodeLimit,
}

/// Rounds for locks that are due, together as far as they have the same time limit per node and are not too many.
pub(crate) fn rounds(
    shared: &Arc<Shared>,
    due: Vec<Due>,
    patience: Patience,
) -> Vec<impl Future<Output = ()> + use<>> {
    let mut batches: HashMap<Duration, Vec<Due>> = HashMap::new();
    for due in due {
        batches.entry(due.held.node_limit).or_default().push(due);
    }
    let mut rounds = Vec::new();
    for (node_limit, mut batch) in batches {
        while !batch.is_empty() {
            let rest = batch.split_off(batch.len().min(PIPELINE_MAX));
            rounds.push(round(Arc::clone(shared), batch, node_limit, patience));
            batch = rest;
        }
    }
    rounds
}

/// Extends locks that have the same time limit per node. Tells of each as soon as it is decided, and ends when all nodes
/// have answered, or when there is no more patience.
async fn round(shared: Arc<Shared>, due: Vec<Due>, node_limit: Duration, patience: Patience) {
    let longest = due.iter().map(|due| due.held.ttl.duration()).max().unwrap_or_default();
    let lasts = match patience {
        Patience::NextRound => node_limit.max(longest / 3),
        Patience::NodeLimit => node_limit,
    };
    let mut round = Round::begin(&shared, due);
    let limit = sleep_until(Instant::now() + node_limit);
    let end = sleep_until(Instant::now() + lasts);
    tokio::pin!(limit, end);
    let mut in_time = true;
    while !(round.asked.is_empty() && round.repairing.is_empty()) {
        tokio::select! {
            biased;
            Some((node, through, locks, replies)) = round.asked.next(), if !round.asked.is_empty() => {
                round.take(node, through, &locks, &replies);
            }
            Some((node, locks, replies)) = round.repairing.next(), if !round.repairing.is_empty() => {
                round.repaired(node, &locks, &replies);
            }
            () = &mut limit, if in_time => {
                in_time = false;
                round.time_is_up();
            }
            () = &mut end => break,
        }
    }
}

/// A round on its way.
struct Round {
    shared: Arc<Shared>,
    locks: Vec<Extending>,
    asked: FuturesUnordered<Answered>,
    /// Which nodes have not answered yet.
    silent: Vec<bool>,
    repairing: FuturesUnordered<Repaired>,
    /// Which locks are being repaired on a node, and it is not known with what result.
    repairs: Vec<(usize, usize)>,
}

struct Extending {
    held: Arc<Held>,
    core: Extension,
    /// Which nodes are asked about it.
    asked: Vec<bool>,
    tell: Option<oneshot::Sender<ExtensionVerdict>>,
}

impl Round {
    fn begin(shared: &Arc<Shared>, due: Vec<Due>) -> Self {
        // The clock is read before the first byte is sent: the new lifetime begins no later than this.
        let sent = clock::now();
        let locks: Vec<_> = due
            .into_iter()
            .map(|Due { held, tell }| {
                let asked: Vec<_> = (0..shared.nodes.len()).map(|node| !held.was_never_asked(node)).collect();
                let core =
                    Extension::new(shared.majority, sent, held.ttl).known_to_hold(held.holding_nodes());
                Extending { held, core, asked, tell }
            })
            .collect();
        let nodes = shared.nodes.len();
        let mut round = Self {
            shared: Arc::clone(shared),
            locks,
            asked: FuturesUnordered::new(),
            silent: vec![true; nodes],
            repairing: FuturesUnordered::new(),
            repairs: Vec::new(),
        };
        for lock in &mut round.locks {
            for node in (0..nodes).filter(|&node| !lock.asked[node]) {
                // These alone never decide it: they are no more than a majority can spare. With nodes that do not answer they do,
                // so they come before those.
                let verdict = lock.core.answer(node, Some(false), sent);
                debug_assert_eq!(verdict, None);
            }
        }
        let everything = Arc::new(pipeline(round.locks.iter()));
        for index in 0..nodes {
            round.ask(index, &everything);
        }
        round
    }

    /// Asks a node about those locks for which it was asked before. It does not have the others.
    fn ask(&mut self, index: usize, everything: &Arc<Pipeline>) {
        let locks: Vec<_> = (0..self.locks.len()).filter(|&lock| self.locks[lock].asked[index]).collect();
        if locks.is_empty() {
            self.silent[index] = false;
            return;
        }
        match self.shared.nodes[index].connection() {
            Ok(connection) => {
                let pipeline = if locks.len() == self.locks.len() {
                    Arc::clone(everything)
                } else {
                    Arc::new(pipeline(locks.iter().map(|&lock| &self.locks[lock])))
                };
                let through = connection.generation();
                self.asked.push(Box::pin(async move {
                    let replies = connection.ask_fences(&pipeline).await;
                    (index, through, locks, replies)
                }));
            }
            Err(error) => {
                let failed = vec![Reply::Failed(error); locks.len()];
                self.take(index, 0, &locks, &failed);
            }
        }
    }

    /// A node has answered.
    fn take(&mut self, node: usize, through: u64, locks: &[usize], replies: &[Reply]) {
        self.silent[node] = false;
        let now = clock::now();
        let mut to_repair: Vec<(usize, usize)> = Vec::new();
        for (&index, reply) in locks.iter().zip(replies) {
            let lock = &mut self.locks[index];
            lock.held.heard(node, reply, through);
            let verdict = lock.core.answer(node, reply.holds(), now);
            if let Some(verdict) = verdict {
                lock.decide(verdict);
            }
            while let Some(node) = lock.core.next_repair() {
                to_repair.push((node, index));
            }
        }
        if !to_repair.is_empty() {
            self.repair(&to_repair);
        }
    }

    fn time_is_up(&mut self) {
        for lock in &mut self.locks {
            let asked = &lock.asked;
            let silent = (0..self.silent.len()).filter(|&node| self.silent[node] && asked[node]);
            lock.held.time_is_up(silent);
            if let Some(verdict) = lock.core.time_is_up() {
                lock.decide(verdict);
            }
        }
    }

    /// Asks nodes for locks that they missed, all of a node in one pipeline.
    fn repair(&mut self, to_repair: &[(usize, usize)]) {
        for (index, node) in self.shared.nodes.iter().enumerate() {
            let locks: Vec<_> =
                to_repair.iter().filter(|(at, _)| *at == index).map(|(_, lock)| *lock).collect();
            if locks.is_empty() {
                continue;
            }
            let Ok(connection) = node.connection() else { continue };
            let mut pipeline = Pipeline::with_capacity(locks.len());
            let mut repaired = Vec::with_capacity(locks.len());
            for lock in locks {
                let held = &self.locks[lock].held;
                if held.reach(index, &connection) {
                    let owner = held.owner.as_deref();
                    pipeline.add_command(Question::acquire_command(
                        &held.keys,
                        &held.token,
                        held.ttl,
                        held.fence,
                        owner,
                    ));
                    repaired.push(lock);
                }
            }
            if repaired.is_empty() {
                continue;
            }
            tracing::debug!(
                node = node.name(),
                locks = repaired.len(),
                "asking for locks that it does not have"
            );
            self.repairs.extend(repaired.iter().map(|&lock| (index, lock)));
            self.repairing.push(ask_repair(index, connection, pipeline, repaired));
        }
    }

    /// A node has answered to its repair.
    fn repaired(&mut self, node: usize, locks: &[usize], replies: &[Reply]) {
        for (&lock, reply) in locks.iter().zip(replies) {
            let held = &self.locks[lock].held;
            held.heard_of_repair(node, reply);
            observe::repaired(reply.holds() == Some(true));
            if !matches!(reply, Reply::Failed(_)) {
                self.repairs.retain(|&repair| repair != (node, lock));
                if held.is_over() {
                    give_back(held, node);
                }
            }
        }
    }
}

impl Drop for Round {
    /// A lock that was given back while it was being repaired must not stay on that node.
    fn drop(&mut self) {
        for &(node, lock) in &self.repairs {
            let held = &self.locks[lock].held;
            if held.is_over() {
                give_back(held, node);
            }
        }
    }
}

fn pipeline<'a>(locks: impl ExactSizeIterator<Item = &'a Extending>) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(locks.len());
    for Extending { held, .. } in locks {
        pipeline.add_command(Question::extend_command(&held.keys, &held.token, held.ttl, None));
    }
    pipeline
}

fn give_back(held: &Held, node: usize) {
    Undo::on(&held.shared, node, &held.keys, &held.token, held.ttl.duration()).spawn();
}

fn ask_repair(index: usize, connection: Connection, pipeline: Pipeline, locks: Vec<usize>) -> Repaired {
    Box::pin(async move {
        let replies = connection.ask_fences(&pipeline).await;
        (index, locks, replies)
    })
}

impl Extending {
    fn decide(&mut self, verdict: ExtensionVerdict) {
        self.held.settle(verdict);
        observe::extended(&self.held, verdict);
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(verdict);
        } else {
            self.held.shared.keeper.decided(&self.held);
        }
    }
}
