//! The last answer of each node: what an attempt or a round has heard so far.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorlock_core::quorum::Vote;

use crate::node::{Node, Reply};
use crate::{Answer, NodeAnswer, NodeError, Nodes};

/// The last answer of each node. Shared with the task that waits for stragglers.
#[derive(Clone)]
pub(crate) struct Answers(Arc<Mutex<Vec<Answer>>>);

impl Answers {
    pub(crate) fn new(nodes: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![Answer::Pending; nodes])))
    }

    pub(crate) fn set(&self, node: usize, answer: Answer) {
        self.lock()[node] = answer;
    }

    pub(crate) fn all(&self) -> Vec<Answer> {
        self.lock().clone()
    }

    /// Takes down a node's answer, and says what it is as a vote.
    pub(crate) fn take_vote(&self, node: usize, reply: &Reply) -> Vote {
        let vote = match reply {
            Reply::Yes(Some(fence)) => Vote::Granted(*fence),
            Reply::No => Vote::Refused,
            Reply::Yes(None) | Reply::Granted { .. } | Reply::Failed(_) => Vote::Silent,
        };
        let answer = match (vote, reply) {
            (Vote::Granted(fence), _) => Answer::Yes(Some(fence)),
            (Vote::Refused, _) => Answer::No,
            (Vote::Silent, Reply::Failed(error)) => Answer::Failed(error.clone()),
            (Vote::Silent, _) => Answer::Failed(NodeError::Nonsense),
        };
        self.set(node, answer);
        vote
    }

    /// Takes down an answer that is a plain yes or no; `None` for no answer.
    pub(crate) fn take(&self, node: usize, reply: &Reply) -> Option<bool> {
        self.set(node, reply.answer());
        reply.holds()
    }

    /// Whoever has not answered failed, for this reason.
    pub(crate) fn time_is_up(&self, error: &NodeError) {
        for answer in self.lock().iter_mut().filter(|answer| **answer == Answer::Pending) {
            *answer = Answer::Failed(error.clone());
        }
    }

    pub(crate) fn report(&self, nodes: &[Node]) -> Nodes {
        report(nodes, &self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Each answer with the name of its node.
pub(crate) fn report(nodes: &[Node], answers: &[Answer]) -> Nodes {
    let named = nodes.iter().zip(answers);
    let answer = |(node, answer): (&Node, &Answer)| NodeAnswer {
        node: node.name().to_owned(),
        answer: answer.clone(),
    };
    Nodes(named.map(answer).collect())
}
