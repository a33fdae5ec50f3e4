//! Keeping a lock: EXTEND to all nodes; [`Extension`] decides.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quorlock_core::quorum::{Extension, ExtensionVerdict};
use tokio::time::{Instant, sleep_until};

use crate::lock::{Answers, Holding};
use crate::node::{Asked, Question};
use crate::{Answer, ExtendError, NodeError, clock};

pub(crate) async fn extend(holding: &mut Holding) -> Result<(), ExtendError> {
    let shared = &holding.shared;
    let answers = Answers::new(shared.nodes.len());
    let lost = |answers: &Answers| ExtendError::Lost { nodes: answers.report(&shared.nodes) };
    // What has ended here is not asked for again: it may be another's by now.
    if holding.lifetime.remaining(clock::now()).is_none() {
        return Err(lost(&answers));
    }
    let question = Question::extend(&holding.key, &holding.token, holding.ttl, None);
    let mut extension = Extension::new(shared.majority, clock::now(), holding.ttl);
    let mut verdict = None;
    let mut asked = FuturesUnordered::<Asked>::new();
    for (index, node) in shared.nodes.iter().enumerate() {
        match node.connection() {
            Ok(connection) => {
                let (node, question) = (node.clone(), question.clone());
                asked.push(Box::pin(async move { (index, node.ask(connection, &question).await) }));
            }
            Err(error) => {
                answers.set(index, Answer::Failed(error));
                verdict = verdict.or(extension.answer(index, None, clock::now()));
            }
        }
    }
    let limit = sleep_until(Instant::now() + holding.node_limit);
    tokio::pin!(limit);
    let verdict = loop {
        if let Some(verdict) = verdict {
            break verdict;
        }
        tokio::select! {
            biased;
            Some((node, reply)) = asked.next(), if !asked.is_empty() => {
                verdict = extension.answer(node, answers.take(node, &reply), clock::now());
            }
            () = &mut limit => {
                let limit_ms = u64::try_from(holding.node_limit.as_millis()).unwrap_or(u64::MAX);
                answers.time_is_up(&NodeError::TimedOut { limit_ms });
                break ExtensionVerdict::Uncertain;
            }
        }
    };
    match verdict {
        ExtensionVerdict::Extended(lifetime) => {
            holding.lifetime = holding.lifetime.later(lifetime, clock::now());
            holding.answers = answers;
            Ok(())
        }
        ExtensionVerdict::Lost => {
            holding.lifetime = holding.lifetime.over();
            Err(lost(&answers))
        }
        ExtensionVerdict::Uncertain => Err(ExtendError::NoQuorum { nodes: answers.report(&shared.nodes) }),
    }
}
