//! One attempt to take a lock: sends, receives and keeps the time for [`Acquisition`], which decides.

use std::sync::Arc;
use std::time::Duration;

use quorlock_core::quorum::{
    Acquisition, FenceAnswer, Heard, Lifetime, Loss, Moment, Move, Pursuit, Step, Vote, Win,
};
use quorlock_core::{Fence, Ttl};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::answers::Answers;
use crate::held::{Grant, Held};
use crate::keys::Keys;
use crate::node::{Asked, Question, Reached, Reply};
use crate::quorum::Shared;
use crate::release::Undo;
use crate::token::Token;
use crate::wait::Granted;
use crate::widen::Widening;
use crate::{AcquireError, Answer, Handover, Lock, NodeError, Nodes, clock, observe};

/// What is to be acquired, checked.
pub(crate) struct Wanted {
    pub(crate) keys: Keys,
    pub(crate) ttl: Ttl,
    pub(crate) min_validity: Duration,
    pub(crate) node_limit: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) owner: Option<String>,
}

/// Why an attempt failed.
pub(crate) struct Failure {
    pub(crate) loss: Loss,
    pub(crate) nodes: Nodes,
    /// What was heard of each node, by index. Those that granted were released since.
    pub(crate) heard: Vec<Heard>,
    /// Nodes that have not answered yet, and what they were asked was sent.
    asked: Asked,
    /// How long they have for it,
    until: Instant,
    /// which is so much in all.
    node_limit: Duration,
}

/// An attempt on its way. Dropped before it has come to a lock, it releases on every node that it may have reached.
struct Attempt {
    shared: Arc<Shared>,
    wanted_keys: Keys,
    ttl: Ttl,
    /// Of the verbs to come.
    node_limit: Duration,
    max_hold: Duration,
    owner: Option<String>,
    token: Token,
    proposed: Fence,
    core: Acquisition,
    /// When something happened last.
    now: Moment,
    /// Whether it yields to the queue node of each key.
    yields_to_queues: bool,
    /// Whether the core has been told which those are.
    knows_queues: bool,
    reached: Vec<Reached>,
    /// Which start of its server each node was asked in.
    incarnations: Vec<u64>,
    asked: Asked,
    /// Answers to EXTEND … FENCE, which come from nodes that have answered ACQUIRE.
    told: Asked,
    /// Nodes that refused and are asked again, and when.
    again: Vec<(Instant, usize)>,
    question: Question,
    /// After so long those that are kept in reserve are asked as well.
    late_after: Duration,
    answers: Answers,
    held: bool,
}

pub(crate) fn no_token(error: getrandom::Error) -> AcquireError {
    AcquireError::Unusable { reason: format!("no random bits for a token: {error}") }
}

impl Failure {
    /// Hears what a node answers in time.
    pub(crate) async fn hear(&mut self, node: usize) {
        while self.heard[node] == Heard::Nothing {
            let asked = timeout_at(self.until, self.asked.next()).await;
            if asked.is_err() {
                self.nodes.0[node].answer = Answer::Failed(NodeError::timed_out(self.node_limit));
            }
            let Ok(Some((answered, reply))) = asked else {
                self.heard[node] = Heard::Silence;
                return;
            };
            self.nodes.0[answered].answer = reply.answer();
            self.heard[answered] = match reply.holds() {
                Some(true) => Heard::Grant,
                Some(false) => Heard::Refusal,
                None => Heard::Silence,
            };
        }
    }
}

/// One attempt, which yields to the queue node of each key. The outer error says that nothing could even be tried.
pub(crate) async fn attempt(
    shared: &Arc<Shared>,
    wanted: &Wanted,
    node_limit: Duration,
) -> Result<Result<Lock, Failure>, AcquireError> {
    let token = Token::random().map_err(no_token)?;
    // The clock is read before the first byte is sent: a lock begins no later than this.
    let sent = clock::now();
    let core = Acquisition::new(shared.majority, sent, wanted.ttl, wanted.min_validity);
    let mut attempt = Attempt::new(shared, wanted, token, shared.propose_fence(), core, sent);
    attempt.yields_to_queues = true;
    for node in 0..shared.nodes.len() {
        attempt.send(node);
    }
    let ended = attempt.run(node_limit).await;
    let took = attempt.now.since(sent);
    if attempt.heard().any(|heard| matches!(heard, Heard::Grant | Heard::Refusal)) {
        shared.saw_round_trip(took);
    }
    observe::attempted(took);
    Ok(ended)
}

/// Takes the other nodes for a lock that one has granted after a wait there.
pub(crate) async fn attempt_after_wait(
    shared: &Arc<Shared>,
    wanted: &Wanted,
    node: usize,
    granted: Granted,
    pursuit: &Pursuit,
    node_limit: Duration,
) -> Result<Lock, Failure> {
    let Granted { token, fence, sent, waited, incarnation } = granted;
    let lifetime = Lifetime::after_wait(sent, waited, wanted.ttl);
    let core = Acquisition::after_wait(shared.majority, node, fence, lifetime, wanted.min_validity)
        .that_yields_to(pursuit.yields_to(Move::WaitOn { node }))
        .that_awaits(&pursuit.awaits(node))
        .that_asks(&pursuit.asks(node, shared.majority, node_limit, |other| shared.nodes[other].was_late()));
    let mut attempt = Attempt::new(shared, wanted, token, fence, core, clock::now());
    attempt.answers.set(node, Answer::Yes(Some(fence)));
    attempt.reached[node] = Reached::Somehow;
    attempt.incarnations[node] = incarnation;
    attempt.late_after = pursuit.late_after();
    // With a single node there is nobody left to ask, and it is decided by this.
    let sent = attempt.now;
    attempt.core.review(sent);
    let ended = attempt.run(node_limit).await;
    if ended.is_ok() {
        shared.saw_round_trip(attempt.now.since(sent));
    }
    ended
}

/// Swaps the token of a lock that another process gave for one of this attempt's own. The outer error says that nothing
/// could even be tried.
pub(crate) async fn resume(
    shared: &Arc<Shared>,
    wanted: &Wanted,
    handover: Handover,
) -> Result<Result<Lock, Failure>, AcquireError> {
    let (old, fence) = handover.into_parts();
    shared.agreed_on_fence(fence, fence);
    let token = Token::random().map_err(no_token)?;
    let sent = clock::now();
    let core = Acquisition::new(shared.majority, sent, wanted.ttl, wanted.min_validity);
    // None is proposed: nodes that hold the lock with a larger fence than the others would refuse one that is below theirs.
    let question = Question::take_over(&wanted.keys, &old, &token, wanted.ttl);
    let mut attempt = Attempt::asking(question, shared, wanted, token, fence, core, sent);
    for node in 0..shared.nodes.len() {
        attempt.send(node);
    }
    let lock = match attempt.run(wanted.node_limit).await {
        Ok(lock) => lock,
        Err(failure) => return Ok(Err(failure)),
    };
    // Nodes where it is still the other's, if it is: nobody else would ever release it there.
    let left = lock.nodes_without().map(|without| if without { Reached::Somehow } else { Reached::No });
    Undo::new(shared, &wanted.keys, &old, left.collect(), wanted.ttl.duration()).spawn();
    Widening::add(lock.held());
    Ok(Ok(lock))
}

impl Attempt {
    fn new(
        shared: &Arc<Shared>,
        wanted: &Wanted,
        token: Token,
        hint: Fence,
        core: Acquisition,
        now: Moment,
    ) -> Self {
        let question = Question::acquire(&wanted.keys, &token, wanted.ttl, hint, wanted.owner.as_deref());
        Self::asking(question, shared, wanted, token, hint, core, now)
    }

    fn asking(
        question: Question,
        shared: &Arc<Shared>,
        wanted: &Wanted,
        token: Token,
        proposed: Fence,
        core: Acquisition,
        now: Moment,
    ) -> Self {
        let nodes = shared.nodes.len();
        Self {
            shared: Arc::clone(shared),
            wanted_keys: wanted.keys.clone(),
            ttl: wanted.ttl,
            node_limit: wanted.node_limit,
            max_hold: wanted.max_hold,
            owner: wanted.owner.clone(),
            question,
            token,
            proposed,
            core,
            now,
            yields_to_queues: false,
            knows_queues: false,
            reached: vec![Reached::No; nodes],
            incarnations: vec![0; nodes],
            asked: Asked::with_capacity(nodes),
            told: Asked::new(),
            again: Vec::new(),
            late_after: Duration::MAX,
            answers: Answers::new(nodes),
            held: false,
        }
    }

    fn send(&mut self, index: usize) {
        let node = &self.shared.nodes[index];
        self.incarnations[index] = node.incarnation();
        match node.connection() {
            Ok(connection) => {
                self.reached[index] = Reached::Through(connection.clone());
                self.asked.ask(index, Ok(connection), self.question.clone());
            }
            Err(error) => {
                self.answers.set(index, Answer::Failed(error));
                self.now = clock::now();
                self.core.vote(index, Vote::Silent, self.now);
            }
        }
    }

    async fn run(&mut self, node_limit: Duration) -> Result<Lock, Failure> {
        let mut until = Instant::now() + node_limit;
        let limit = sleep(node_limit.min(self.late_after));
        tokio::pin!(limit);
        loop {
            while let Some(step) = self.core.poll() {
                match step {
                    Step::Ask { node } => self.send(node),
                    Step::TellFence { node, fence } => {
                        if self.told.is_empty() {
                            until = Instant::now() + node_limit;
                        }
                        let question =
                            Question::extend(&self.wanted_keys, &self.token, self.ttl, Some(fence));
                        self.tell(node, question);
                    }
                    Step::AskAgain { node, pause } if pause.is_zero() => self.send(node),
                    Step::AskAgain { node, pause } => self.again.push((Instant::now() + pause, node)),
                    Step::Won(win) => return Ok(self.lock(win)),
                    Step::Lost(loss) => {
                        let nodes = self.answers.report(&self.shared.nodes);
                        tracing::debug!(?loss, %nodes, "not granted");
                        return Err(Failure {
                            loss,
                            nodes,
                            heard: self.heard().collect(),
                            asked: self.take_sent(),
                            until,
                            node_limit,
                        });
                    }
                }
            }
            tokio::select! {
                biased;
                Some((node, reply)) = self.asked.next(), if !self.asked.is_empty() => {
                    let vote = self.answers.take_vote(node, &reply);
                    if vote != Vote::Silent {
                        self.reached[node] = Reached::Somehow;
                    }
                    // In what order the nodes come matters only once somebody refuses.
                    if vote == Vote::Refused && self.yields_to_queues && !self.knows_queues {
                        self.knows_queues = true;
                        self.core.yield_to(&self.shared.queue_nodes(&self.wanted_keys));
                    }
                    self.now = clock::now();
                    self.core.vote(node, vote, self.now);
                }
                Some(node) = first_due(&mut self.again), if !self.again.is_empty() => self.send(node),
                Some((node, reply)) = self.told.next(), if !self.told.is_empty() => {
                    let answer = match (&reply, self.answers.take_vote(node, &reply)) {
                        (_, Vote::Granted(fence)) => FenceAnswer::Stored(fence),
                        (Reply::Failed(NodeError::ClockBehind { .. }), _) => FenceAnswer::Unacceptable,
                        (_, Vote::Refused | Vote::Silent) => FenceAnswer::Failed,
                    };
                    self.now = clock::now();
                    self.core.fence_answer(node, answer, self.now);
                }
                () = &mut limit => {
                    if Instant::now() < until {
                        self.hurry();
                        limit.as_mut().reset(until);
                        continue;
                    }
                    self.answers.time_is_up(&NodeError::timed_out(node_limit));
                    self.now = clock::now();
                    self.core.time_is_up(self.now);
                }
            }
        }
    }

    /// Questions that are not answered yet, all of which have been sent: a connection that was handed in may hold up an
    /// ACQUIRE until after the RELEASE that undoes it, and what waits there is dropped.
    fn take_sent(&mut self) -> Asked {
        let asked = std::mem::replace(&mut self.asked, Asked::new());
        if self.shared.has_own_connections() { asked } else { Asked::new() }
    }

    fn tell(&mut self, index: usize, question: Question) {
        let connection = match &self.reached[index] {
            Reached::Through(connection) => Ok(connection.clone()),
            Reached::No | Reached::Somehow => self.shared.nodes[index].connection(),
        };
        self.told.ask(index, connection, question);
    }

    /// What was heard of each node.
    fn heard(&self) -> impl Iterator<Item = Heard> {
        (0..self.shared.nodes.len()).map(|node| self.core.heard_of(node))
    }

    /// Asks those that were kept in reserve, if there are any. Then nodes that have not answered by now come last for a while.
    fn hurry(&mut self) {
        if self.core.reserve().is_empty() {
            return;
        }
        for (index, node) in self.shared.nodes.iter().enumerate() {
            if self.core.heard_of(index) == Heard::Nothing && !self.core.reserve().contains(&index) {
                node.set_late();
            }
        }
        self.core.hurry();
    }

    fn lock(&mut self, win: Win) -> Lock {
        self.held = true;
        self.shared.agreed_on_fence(self.proposed, win.fence);
        let held = Arc::new(Held::new(Grant {
            shared: Arc::clone(&self.shared),
            keys: self.wanted_keys.clone(),
            token: self.token.clone(),
            owner: self.owner.take(),
            ttl: self.ttl,
            fence: win.fence,
            node_limit: self.node_limit,
            max_hold: self.max_hold,
            since: self.now,
            yielded_to_queues: self.yields_to_queues,
            lifetime: win.lifetime,
            reached: std::mem::take(&mut self.reached),
            reserve: self.core.reserve().to_vec(),
            incarnations: std::mem::take(&mut self.incarnations),
            answers: self.answers.take_all(),
            stragglers: std::mem::replace(&mut self.asked, Asked::new()),
        }));
        if !self.core.reserve().is_empty() {
            Widening::add(&held);
        }
        tracing::debug!(fence = win.fence.get(), coverage = %held.coverage(), nodes = %held.report(), "granted");
        Lock::new(held)
    }
}

/// The node whose time comes first, when it has come.
async fn first_due(nodes: &mut Vec<(Instant, usize)>) -> Option<usize> {
    let (place, &(at, node)) = nodes.iter().enumerate().min_by_key(|(_, (at, _))| *at)?;
    sleep_until(at).await;
    nodes.swap_remove(place);
    Some(node)
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.held {
            let reached = std::mem::take(&mut self.reached);
            Undo::new(&self.shared, &self.wanted_keys, &self.token, reached, self.ttl.duration()).spawn();
        }
    }
}
