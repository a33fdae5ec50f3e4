//! The last answer of each node: what an attempt or a round has heard so far.

use quorlock_core::quorum::Vote;

use crate::node::{Node, Reply};
use crate::{Answer, NodeAnswer, NodeError, Nodes};

/// The last answer of each node.
pub(crate) struct Answers(Vec<Answer>);

impl Answers {
    pub(crate) fn new(nodes: usize) -> Self {
        Self(vec![Answer::Pending; nodes])
    }

    pub(crate) fn set(&mut self, node: usize, answer: Answer) {
        self.0[node] = answer;
    }

    pub(crate) fn take_all(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.0)
    }

    /// Takes down a node's answer, and says what it is as a vote.
    pub(crate) fn take_vote(&mut self, node: usize, reply: &Reply) -> Vote {
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
    pub(crate) fn take(&mut self, node: usize, reply: &Reply) -> Option<bool> {
        self.set(node, reply.answer());
        reply.holds()
    }

    /// Whoever has not answered failed, for this reason.
    pub(crate) fn time_is_up(&mut self, error: &NodeError) {
        for answer in self.0.iter_mut().filter(|answer| **answer == Answer::Pending) {
            *answer = Answer::Failed(error.clone());
        }
    }

    pub(crate) fn report(&self, nodes: &[Node]) -> Nodes {
        report(nodes, &self.0)
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
