use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorlock_core::quorum::{Lifetime, Vote};
use quorlock_core::{Fence, Ttl};

use crate::node::{Connection, Node, Reply};
use crate::quorum::Shared;
use crate::release::{Undo, release};
use crate::token::Token;
use crate::{Answer, ExtendError, NodeAnswer, NodeError, Nodes, ReleaseError, clock, extend};

/// A held lock.
///
/// It is held for [`remaining`](Self::remaining), by this machine's own clocks, whatever the nodes do: before that is
/// over, [`extend`](Self::extend) it or stop what it protects. [`fence`](Self::fence) is for the resource itself, to
/// reject whoever comes late.
///
/// Dropping the lock releases it from a background task; [`release`](Self::release) waits for a majority to confirm.
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    holding: Option<Holding>,
}

/// Everything there is to a held lock.
pub(crate) struct Holding {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: Arc<[u8]>,
    pub(crate) token: Token,
    pub(crate) ttl: Ttl,
    pub(crate) fence: Fence,
    pub(crate) lifetime: Lifetime,
    pub(crate) node_limit: Duration,
    /// What the ACQUIRE of each node went through, if it was sent.
    pub(crate) connections: Vec<Option<Connection>>,
    pub(crate) answers: Answers,
}

/// On how many of the nodes a lock is known to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Nodes that hold it.
    pub held: usize,
    /// Nodes that there are.
    pub nodes: usize,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock was held until now.
    Released,
    /// The lock had ended before: by its deadline, or by an operator's command.
    AlreadyOver,
}

impl Lock {
    pub(crate) fn new(holding: Holding) -> Self {
        Self { holding: Some(holding) }
    }

    /// The locked key.
    pub fn key(&self) -> &[u8] {
        &self.holding().key
    }

    /// The fencing token: larger than that of every earlier holder of the key. Pass it along with every write to what the
    /// lock protects, and have that refuse anything below the largest it has seen.
    pub fn fence(&self) -> Fence {
        self.holding().fence
    }

    /// How much longer the lock is certainly held; zero when it may be another's.
    pub fn remaining(&self) -> Duration {
        self.holding().lifetime.remaining(clock::now()).unwrap_or_default()
    }

    /// On how many nodes the lock is known to be held. Nodes that answer late still count.
    pub fn coverage(&self) -> Coverage {
        let holding = self.holding();
        Coverage { held: holding.answers.yes(), nodes: holding.shared.nodes.len() }
    }

    /// Makes the lock last a full ttl from now, on a majority of the nodes.
    ///
    /// # Errors
    /// [`ExtendError::Lost`] when the lock is another's or nobody's; [`ExtendError::NoQuorum`] when too few nodes
    /// answer, and then the lock is still held for what [`remaining`](Self::remaining) says.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the lock held at least as long as before; nodes may hold it longer than it says.
    pub async fn extend(&mut self) -> Result<(), ExtendError> {
        extend::extend(self.holding_mut()).await
    }

    /// Gives the lock back, on all nodes, and returns when a majority has confirmed it. The rest is done in the
    /// background. That the lock had ended before is a result, not an error.
    ///
    /// # Errors
    /// [`ReleaseError::NoQuorum`] when too few nodes answer; the release goes on in the background.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the background.
    pub async fn release(mut self) -> Result<Released, ReleaseError> {
        let Some(holding) = self.holding.take() else {
            unreachable!("only this and Drop take it, and both consume")
        };
        release(holding).await
    }

    fn holding(&self) -> &Holding {
        self.holding.as_ref().expect("taken only by what consumes the lock")
    }

    fn holding_mut(&mut self) -> &mut Holding {
        self.holding.as_mut().expect("taken only by what consumes the lock")
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(holding) = self.holding.take() {
            Undo::of(holding).spawn();
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .field("coverage", &self.coverage())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.held, self.nodes)
    }
}

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

    /// Takes down a node's answer, and says what it is as a vote.
    pub(crate) fn take_vote(&self, node: usize, reply: &Reply) -> Vote {
        let (answer, vote) = match reply {
            Reply::Yes(Some(fence)) => (Answer::Yes(Some(*fence)), Vote::Granted(*fence)),
            Reply::Yes(None) => (Answer::Failed(NodeError::Nonsense), Vote::Silent),
            Reply::No => (Answer::No, Vote::Refused),
            Reply::Failed(error) => (Answer::Failed(error.clone()), Vote::Silent),
        };
        self.set(node, answer);
        vote
    }

    /// Takes down an answer that is a plain yes or no; `None` for no answer.
    pub(crate) fn take(&self, node: usize, reply: &Reply) -> Option<bool> {
        let (answer, held) = match reply {
            Reply::Yes(fence) => (Answer::Yes(*fence), Some(true)),
            Reply::No => (Answer::No, Some(false)),
            Reply::Failed(error) => (Answer::Failed(error.clone()), None),
        };
        self.set(node, answer);
        held
    }

    /// Whoever has not answered failed, for this reason.
    pub(crate) fn time_is_up(&self, error: &NodeError) {
        for answer in self.lock().iter_mut().filter(|answer| **answer == Answer::Pending) {
            *answer = Answer::Failed(error.clone());
        }
    }

    pub(crate) fn yes(&self) -> usize {
        self.lock().iter().filter(|answer| matches!(answer, Answer::Yes(_))).count()
    }

    pub(crate) fn report(&self, nodes: &[Node]) -> Nodes {
        let answers = self.lock();
        let named = nodes.iter().zip(answers.iter());
        Nodes(
            named
                .map(|(node, answer)| NodeAnswer { node: node.name().to_owned(), answer: answer.clone() })
                .collect(),
        )
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
