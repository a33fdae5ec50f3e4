//! Giving a lock back, or undoing an attempt: RELEASE to every node that ACQUIRE may have reached, until each has
//! confirmed it or the lock has ended by itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quorlock_core::quorum::{Release, ReleaseVerdict};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::lock::{Answers, Holding, Released};
use crate::node::{Asked, Question, Reached, Reply};
use crate::quorum::Shared;
use crate::token::Token;
use crate::{Answer, NodeError, ReleaseError};

/// The first pause before a node that failed is asked again; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause before a node that failed is asked again.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A release on its way. Dropped half-way, it goes on in the background.
pub(crate) struct Undo {
    shared: Arc<Shared>,
    question: Question,
    asked: FuturesUnordered<Asked>,
    pauses: Vec<Duration>,
    /// By then every lease has ended by itself.
    until: Instant,
}

impl Undo {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        key: &[u8],
        token: &Token,
        reached: Vec<Reached>,
        lasts: Duration,
    ) -> Self {
        let mut this = Self {
            shared: Arc::clone(shared),
            question: Question::release(key, token),
            asked: FuturesUnordered::new(),
            pauses: vec![PAUSE_MIN; shared.nodes.len()],
            until: Instant::now() + lasts,
        };
        for (index, reached) in reached.into_iter().enumerate() {
            match reached {
                Reached::No => {}
                // Through the connection that ACQUIRE took, RELEASE cannot arrive before it.
                Reached::Through(connection) => {
                    let (node, question) = (shared.nodes[index].clone(), this.question.clone());
                    this.asked.push(Box::pin(async move { (index, node.ask(connection, &question).await) }));
                }
                Reached::Somehow => this.ask(index, Duration::ZERO),
            }
        }
        this
    }

    /// To one node only.
    pub(crate) fn on(shared: &Arc<Shared>, node: usize, key: &[u8], token: &Token, lasts: Duration) -> Self {
        let mut reached = vec![Reached::No; shared.nodes.len()];
        reached[node] = Reached::Somehow;
        Self::new(shared, key, token, reached, lasts)
    }

    pub(crate) fn of(holding: Holding) -> Self {
        let Holding { shared, key, token, ttl, reached, .. } = holding;
        Self::new(&shared, &key, &token, reached, ttl.duration())
    }

    /// Goes on behind the caller's back, until all nodes have answered.
    pub(crate) fn spawn(mut self) {
        if self.asked.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        shared.spawn(async move {
            let until = self.until;
            while let Ok(Some((node, reply))) = timeout_at(until, self.asked.next()).await {
                self.retry_if_failed(node, &reply);
            }
            // What is left has ended by itself; there is nothing to go on with.
            self.asked.clear();
        });
    }

    fn retry_if_failed(&mut self, index: usize, reply: &Reply) {
        if !matches!(reply, Reply::Failed(_)) {
            return;
        }
        let pause = self.pauses[index];
        self.pauses[index] = (pause * 2).min(PAUSE_MAX);
        self.ask(index, pause);
    }

    /// Asks through whatever connection there is after the pause.
    fn ask(&mut self, index: usize, pause: Duration) {
        let (node, question) = (self.shared.nodes[index].clone(), self.question.clone());
        self.asked.push(Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let reply = match node.connection() {
                Ok(connection) => node.ask(connection, &question).await,
                Err(error) => Reply::Failed(error),
            };
            (index, reply)
        }));
    }
}

/// See [`crate::Lock::release`].
pub(crate) async fn release(holding: Holding) -> Result<Released, ReleaseError> {
    /// Whatever way the future ends, the rest is done in the background.
    struct Guard(Option<Undo>);
    impl Drop for Guard {
        fn drop(&mut self) {
            if let Some(undo) = self.0.take() {
                undo.spawn();
            }
        }
    }

    let node_limit = holding.node_limit;
    let answers = Answers::new(holding.shared.nodes.len());
    let mut release = Release::new(holding.shared.majority);
    let mut verdict = None;
    for (index, reached) in holding.reached.iter().enumerate() {
        if matches!(reached, Reached::No) {
            answers.set(index, Answer::Failed(NodeError::Down { reason: "it was never asked".into() }));
            verdict = verdict.or(release.answer(index, None));
        }
    }
    let mut guard = Guard(Some(Undo::of(holding)));
    let undo = guard.0.as_mut().expect("put in just now");

    let limit = sleep_until(Instant::now() + node_limit);
    tokio::pin!(limit);
    let verdict = loop {
        if let Some(verdict) = verdict {
            break verdict;
        }
        tokio::select! {
            biased;
            Some((node, reply)) = undo.asked.next(), if !undo.asked.is_empty() => {
                verdict = release.answer(node, answers.take(node, &reply));
                undo.retry_if_failed(node, &reply);
            }
            () = &mut limit => break ReleaseVerdict::Unconfirmed,
        }
    };
    match verdict {
        ReleaseVerdict::Released => Ok(Released::Released),
        ReleaseVerdict::AlreadyOver => Ok(Released::AlreadyOver),
        ReleaseVerdict::Unconfirmed => {
            let limit_ms = u64::try_from(node_limit.as_millis()).unwrap_or(u64::MAX);
            answers.time_is_up(&NodeError::TimedOut { limit_ms });
            Err(ReleaseError::NoQuorum { nodes: answers.report(&undo.shared.nodes) })
        }
    }
}
