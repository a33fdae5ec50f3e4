//! Giving a lock back, or undoing an attempt: RELEASE to every node that ACQUIRE may have reached, until each has
//! confirmed it or the lock has ended by itself.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use quorlock_core::quorum::{Release, ReleaseVerdict, Standing};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::answers::Answers;
use crate::held::Held;
use crate::keys::Keys;
use crate::node::{Asked, Connection, Question, Reached, Reply, ask};
use crate::quorum::Shared;
use crate::token::Token;
use crate::{Answer, NodeError, ReleaseError, Released, observe};

/// The first pause before a node that failed is asked again; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause before a node that failed is asked again.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often it is looked whether a node that does not answer has got another connection.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A release on its way. Dropped half-way, it goes on in the background.
pub(crate) struct Undo {
    shared: Arc<Shared>,
    question: Question,
    asked: Asked,
    /// Nodes that were never sent an ACQUIRE.
    unreached: Vec<usize>,
    nodes: Vec<Confirmation>,
    /// After that every lease has ended by itself.
    lasts: Duration,
    /// What has ended already is asked for once.
    persistent: bool,
    asks_again: bool,
}

/// How far it has come on one node.
#[derive(Clone)]
struct Confirmation {
    is_missing: bool,
    /// Which of the node's connections RELEASE was sent through last. Not known of one that has failed and is asked again.
    through: Option<u64>,
    /// Before the node is asked again, if that fails.
    pause: Duration,
}

impl Undo {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        keys: &Keys,
        token: &Token,
        reached: Vec<Reached>,
        lasts: Duration,
    ) -> Self {
        let mut this = Self {
            shared: Arc::clone(shared),
            question: Question::release(keys, token),
            asked: Asked::with_capacity(shared.nodes.len()),
            unreached: Vec::new(),
            nodes: vec![
                Confirmation { is_missing: true, through: None, pause: PAUSE_MIN };
                shared.nodes.len()
            ],
            lasts,
            persistent: true,
            asks_again: false,
        };
        for (index, reached) in reached.into_iter().enumerate() {
            match reached {
                Reached::No => {
                    this.unreached.push(index);
                    this.nodes[index].is_missing = false;
                }
                // Through the connection that ACQUIRE took, RELEASE cannot arrive before it.
                Reached::Through(connection) => this.ask(index, Ok(connection)),
                Reached::Somehow => this.ask(index, shared.nodes[index].connection()),
            }
        }
        this
    }

    /// To one node only.
    pub(crate) fn on(shared: &Arc<Shared>, node: usize, keys: &Keys, token: &Token, lasts: Duration) -> Self {
        let mut reached = vec![Reached::No; shared.nodes.len()];
        reached[node] = Reached::Somehow;
        Self::new(shared, keys, token, reached, lasts)
    }

    /// Of a lock that its holder gives back; and how things stood with it until now.
    pub(crate) fn of(held: &Held) -> (Standing, Self) {
        let (standing, reached) = held.end();
        held.forget();
        let mut this = Self::new(&held.shared, &held.keys, &held.token, reached, held.ttl.duration());
        this.persistent = !matches!(standing, Standing::Lost(_));
        (standing, this)
    }

    /// Goes on behind the caller's back, until all nodes have answered.
    pub(crate) fn spawn(mut self) {
        if self.asked.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        shared.spawn(async move {
            // What is left by then has ended by itself.
            let _ = timeout(self.lasts, self.finish()).await;
        });
    }

    /// Goes on as well; for when everything has been sent, and most likely there is little left to do. What others made may wait
    /// for a timer of the runtime that this is called in, which is not to be in anybody else's way.
    fn leave(self) {
        if self.asks_again || !self.shared.has_own_connections() {
            self.spawn();
        } else if !self.asked.is_empty() {
            let shared = Arc::clone(&self.shared);
            shared.leftovers.add(self, &shared.tasks);
        }
    }

    /// Takes down what has been answered, until a node has failed. Whether that is all.
    pub(crate) fn look(&mut self) -> bool {
        while !self.asks_again
            && let Some((node, reply)) = self.asked.take_done()
        {
            self.retry_if_failed(node, &reply);
        }
        self.asked.is_empty()
    }

    /// Whether a node has failed, and is asked again.
    pub(crate) fn asks_again(&self) -> bool {
        self.asks_again
    }

    async fn finish(&mut self) {
        loop {
            let look = sleep(LOOK_EVERY);
            tokio::select! {
                biased;
                answered = self.asked.next() => {
                    let Some((node, reply)) = answered else { return };
                    self.retry_if_failed(node, &reply);
                }
                () = look => {
                    // A connection that was replaced may never answer. What was sent through it is still waited for: it
                    // is the one that cannot arrive before ACQUIRE.
                    for index in 0..self.nodes.len() {
                        if let Ok(now) = self.shared.nodes[index].connection()
                            && self.nodes[index].is_missing
                            && self.nodes[index].through != Some(now.generation())
                        {
                            self.ask(index, Ok(now));
                        }
                    }
                }
            }
        }
    }

    fn retry_if_failed(&mut self, index: usize, reply: &Reply) {
        if !matches!(reply, Reply::Failed(_)) {
            self.nodes[index].is_missing = false;
            return;
        }
        // A server without the module has granted nothing, and never will.
        if !self.persistent || matches!(reply, Reply::Failed(NodeError::NoModule)) {
            return;
        }
        self.asks_again = true;
        self.nodes[index].through = None;
        let pause = self.nodes[index].pause;
        self.nodes[index].pause = (pause * 2).min(PAUSE_MAX);
        let (node, question) = (self.shared.nodes[index].clone(), self.question.clone());
        // Whoever finds out may do so in another runtime, which ends sooner.
        let pause = AbortOnDropHandle::new(self.shared.runtime.spawn(sleep(pause)));
        self.asked.push(async move {
            if pause.await.is_err() {
                // The client's own runtime has ended. Nobody can ask any more.
                return pending().await;
            }
            (index, ask(node.connection(), &question).await)
        });
    }

    fn ask(&mut self, index: usize, connection: Result<Connection, NodeError>) {
        self.nodes[index].through = connection.as_ref().ok().map(Connection::generation);
        self.asked.ask(index, connection, self.question.clone());
    }
}

/// See [`crate::Lock::release`].
pub(crate) async fn release(held: &Held) -> Result<Released, ReleaseError> {
    /// Whatever way the future ends, the rest is done in the background.
    struct Guard(Option<Undo>);
    impl Drop for Guard {
        fn drop(&mut self) {
            if let Some(undo) = self.0.take() {
                undo.spawn();
            }
        }
    }

    let (standing, undo) = Undo::of(held);
    let mut guard = Guard(Some(undo));
    if let Standing::Lost(_) = standing {
        observe::released(held, Some(Released::AlreadyOver));
        return Ok(Released::AlreadyOver);
    }
    let undo = guard.0.as_mut().expect("put in just now");
    let mut answers = Answers::new(held.shared.nodes.len());
    let (in_reserve, unreachable): (Vec<_>, Vec<_>) =
        undo.unreached.iter().copied().partition(|&index| held.was_in_reserve(index));
    let mut release = Release::new(held.shared.majority).never_asked(in_reserve.iter().copied());
    let mut verdict = None;
    for index in unreachable {
        answers.set(index, Answer::Failed(NodeError::Down { reason: "it was never asked".into() }));
        verdict = verdict.or(release.answer(index, None));
    }

    let limit = sleep(held.node_limit);
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
            () = &mut limit => break release.time_is_up(),
        }
    };
    if !matches!(verdict, ReleaseVerdict::Unconfirmed)
        && let Some(undo) = guard.0.take()
    {
        undo.leave();
    }
    let released = match verdict {
        ReleaseVerdict::Released => Ok(Released::Released),
        ReleaseVerdict::AlreadyOver => {
            held.heard_of_release(answers.take_all());
            Ok(Released::AlreadyOver)
        }
        ReleaseVerdict::Unconfirmed => {
            answers.time_is_up(&NodeError::timed_out(held.node_limit));
            for index in in_reserve {
                answers.set(index, Answer::Pending);
            }
            Err(ReleaseError::NoQuorum { nodes: answers.report(&held.shared.nodes) })
        }
    };
    observe::released(held, released.as_ref().ok().copied());
    released
}
