//! One attempt to take a lock: sends, receives and keeps the time for [`Acquisition`], which decides.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quorlock_core::quorum::{Acquisition, FenceAnswer, Loss, Step, Vote, Win};
use quorlock_core::{Fence, Ttl};
use tokio::time::{Instant, sleep_until, timeout};

use crate::lock::{Answers, Holding};
use crate::node::{Asked, Connection, Question, Reply};
use crate::quorum::Shared;
use crate::release::Undo;
use crate::token::Token;
use crate::{AcquireError, Answer, Lock, NodeError, Nodes, clock};

/// What is to be acquired, checked.
pub(crate) struct Wanted {
    pub(crate) key: Arc<[u8]>,
    pub(crate) ttl: Ttl,
    pub(crate) min_validity: Duration,
    pub(crate) node_limit: Duration,
    pub(crate) owner: Option<String>,
}

/// Why an attempt failed.
pub(crate) struct Failure {
    pub(crate) loss: Loss,
    pub(crate) nodes: Nodes,
}

/// An attempt on its way. Dropped before it has come to a lock, it releases on every node that it may have reached.
struct Attempt {
    shared: Arc<Shared>,
    wanted_key: Arc<[u8]>,
    ttl: Ttl,
    token: Token,
    proposed: Fence,
    core: Acquisition,
    /// What the ACQUIRE of each node went through, if it was sent.
    connections: Vec<Option<Connection>>,
    asked: FuturesUnordered<Asked>,
    /// Answers to EXTEND … FENCE, which come from nodes that have answered ACQUIRE.
    told: FuturesUnordered<Asked>,
    answers: Answers,
    held: bool,
}

/// One attempt. The outer error says that nothing could even be tried.
pub(crate) async fn attempt(
    shared: &Arc<Shared>,
    wanted: &Wanted,
) -> Result<Result<Lock, Failure>, AcquireError> {
    let token = Token::random()
        .map_err(|error| AcquireError::Unusable { reason: format!("no random bits for a token: {error}") })?;
    let proposed = shared.propose_fence();
    let question = Question::acquire(&wanted.key, &token, wanted.ttl, proposed, wanted.owner.as_deref());
    let nodes = shared.nodes.len();
    let mut attempt = Attempt {
        shared: Arc::clone(shared),
        wanted_key: Arc::clone(&wanted.key),
        ttl: wanted.ttl,
        token,
        proposed,
        // The clock is read before the first byte is sent: a lock begins no later than this.
        core: Acquisition::new(shared.majority, clock::now(), wanted.ttl, wanted.min_validity),
        connections: Vec::with_capacity(nodes),
        asked: FuturesUnordered::new(),
        told: FuturesUnordered::new(),
        answers: Answers::new(nodes),
        held: false,
    };
    attempt.send_all(&question);
    Ok(attempt.run(wanted.node_limit).await)
}

impl Attempt {
    fn send_all(&mut self, question: &Question) {
        for (index, node) in self.shared.nodes.iter().enumerate() {
            let connection = node.connection();
            self.connections.push(connection.as_ref().ok().cloned());
            match connection {
                Ok(connection) => {
                    let (node, question) = (node.clone(), question.clone());
                    self.asked.push(Box::pin(async move { (index, node.ask(connection, &question).await) }));
                }
                Err(error) => {
                    self.answers.set(index, Answer::Failed(error));
                    self.core.vote(index, Vote::Silent, clock::now());
                }
            }
        }
    }

    async fn run(mut self, node_limit: Duration) -> Result<Lock, Failure> {
        let limit = sleep_until(Instant::now() + node_limit);
        tokio::pin!(limit);
        loop {
            while let Some(step) = self.core.poll() {
                match step {
                    Step::TellFence { node, fence } => {
                        if self.told.is_empty() {
                            limit.as_mut().reset(Instant::now() + node_limit);
                        }
                        let question = Question::extend(&self.wanted_key, &self.token, self.ttl, Some(fence));
                        self.tell(node, question);
                    }
                    Step::Won(win) => return Ok(self.into_lock(win, node_limit)),
                    Step::Lost(loss) => {
                        let nodes = self.answers.report(&self.shared.nodes);
                        tracing::debug!(?loss, %nodes, "not acquired");
                        return Err(Failure { loss, nodes });
                    }
                }
            }
            tokio::select! {
                biased;
                Some((node, reply)) = self.asked.next(), if !self.asked.is_empty() => {
                    let vote = self.answers.take_vote(node, &reply);
                    self.core.vote(node, vote, clock::now());
                }
                Some((node, reply)) = self.told.next(), if !self.told.is_empty() => {
                    let answer = match (&reply, self.answers.take_vote(node, &reply)) {
                        (_, Vote::Granted(fence)) => FenceAnswer::Stored(fence),
                        (Reply::Failed(NodeError::ClockBehind { .. }), _) => FenceAnswer::Unacceptable,
                        (_, Vote::Refused | Vote::Silent) => FenceAnswer::Failed,
                    };
                    self.core.fence_answer(node, answer, clock::now());
                }
                () = &mut limit => {
                    let limit_ms = u64::try_from(node_limit.as_millis()).unwrap_or(u64::MAX);
                    self.answers.time_is_up(&NodeError::TimedOut { limit_ms });
                    self.core.time_is_up(clock::now());
                }
            }
        }
    }

    fn tell(&mut self, index: usize, question: Question) {
        let node = self.shared.nodes[index].clone();
        let connection = self.connections[index].clone();
        self.told.push(Box::pin(async move {
            let reply = match connection {
                Some(connection) => node.ask(connection, &question).await,
                None => Reply::Failed(NodeError::Nonsense),
            };
            (index, reply)
        }));
    }

    fn into_lock(mut self, win: Win, node_limit: Duration) -> Lock {
        self.held = true;
        self.shared.agreed_on_fence(self.proposed, win.fence);
        tracing::debug!(fence = win.fence.get(), coverage = self.answers.yes(), "acquired");
        let asked = std::mem::take(&mut self.asked);
        if !asked.is_empty() {
            let limit = self.ttl.duration();
            let answers = self.answers.clone();
            self.shared.spawn(async move {
                let _ = timeout(limit, count_stragglers(asked, answers)).await;
            });
        }
        Lock::new(Holding {
            shared: Arc::clone(&self.shared),
            key: Arc::clone(&self.wanted_key),
            token: self.token.clone(),
            ttl: self.ttl,
            fence: win.fence,
            lifetime: win.lifetime,
            node_limit,
            connections: std::mem::take(&mut self.connections),
            answers: self.answers.clone(),
        })
    }
}

/// Nodes that grant after it was decided hold the lock as well.
async fn count_stragglers(mut asked: FuturesUnordered<Asked>, answers: Answers) {
    while let Some((node, reply)) = asked.next().await {
        answers.take_vote(node, &reply);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.held {
            let connections = std::mem::take(&mut self.connections);
            Undo::new(&self.shared, &self.wanted_key, &self.token, connections, self.ttl.duration()).spawn();
        }
    }
}
