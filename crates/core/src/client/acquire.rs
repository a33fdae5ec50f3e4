use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::attempt::{Attempt, End, Kind, Waited};
use super::mutants::{self, Mutant, is_broken};
use super::{
    Answer, Command, Context, Delivery, Keys, Mode, NodeError, Release, Request, RequestId,
    Response, Slots, Token, Topology, limits,
};
use crate::quorum::{Lifetime, Loss, Moment, Win};
use crate::{Fence, Ttl};

/// Describes a lock to acquire. [`Spec::check`] says whether it is valid.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The keys of the lock.
    pub keys: Keys,
    /// How long the lock lasts unless it is extended.
    pub ttl: Ttl,
    /// The keys of which the lock takes one, if it is such a lock. Then `keys` are the keys that
    /// may be granted: all of these in a call's spec, and the one of its key in that of a lock.
    pub any: Option<Keys>,
    /// Whether others that share the lock may hold it at the same time.
    pub mode: Mode,
    /// A lock with less than this left when it is granted counts as not granted.
    pub min_validity: Duration,
    /// How long one node may take to answer, if the caller says so.
    pub node_timeout: Option<Duration>,
    /// How long the lock is held at most, if there is a limit.
    pub max_hold: Option<Duration>,
    /// A label for people.
    pub owner: Option<Arc<str>>,
}

/// From the call to a lock or an error: attempts, waiting, pauses.
///
/// After [`new`](Self::new), and after each `handle_…` and [`cancel`](Self::cancel), call
/// [`poll`](Self::poll) until it returns `None` and carry out each action before anything else
/// happens; then wait for a response, for [`poll_timeout`](Self::poll_timeout), or for the turn in
/// the local queue. After [`Action::Done`] or [`cancel`](Self::cancel) only releases remain, which
/// are machines of their own.
#[derive(Debug)]
pub struct Acquire {
    spec: Arc<Spec>,
    started: Moment,
    /// The end of the wait, at which the last attempt begins; none for a wait without end.
    until: Option<Moment>,
    /// When it must have ended, whatever the nodes do.
    deadline: Option<Moment>,
    /// The longest delay with which the program ran a timer after the end of the wait.
    late: Duration,
    phase: Phase,
    /// No other attempt follows this one.
    last: bool,
    /// The number of the next round.
    round: u32,
    attempts: u32,
    /// How often it stayed with the deciding node although later ones refused.
    stays: u32,
    pause: Duration,
    /// Nodes that did not answer the last attempt.
    silent: SmallVec<[usize; 5]>,
    /// What each node answered last.
    answers: Vec<Answer>,
    /// What each node may still hold of the call's earlier requests.
    released: SmallVec<[Option<Released>; 5]>,
    /// Too little of the lock would have been left the last time.
    too_late: bool,
    /// Other clients hold the lock or wait for it, as far as this call has seen.
    contended: bool,
    /// The slots of which it takes one, if it is such a lock.
    slots: Option<Slots>,
    actions: VecDeque<Action>,
}

#[derive(Debug)]
enum Phase {
    /// Another call of this program is after the same lock.
    InLine,
    /// All nodes are asked.
    Asking(Attempt),
    /// A deciding node refused. What the others answer shows whether the lock is held.
    Hearing(Attempt),
    /// So few nodes refused that the lock may be free. Then they are asked whether it is.
    Settling {
        until: Moment,
        refused_by: usize,
    },
    /// They are asked.
    Looking {
        round: u32,
        refused_by: usize,
        due: Moment,
        limit: Duration,
    },
    /// In the queue of one node.
    Waiting(Box<Waiting>),
    /// The slot is taken, and a node is asked for any other.
    Probing(Box<Probing>),
    /// The node granted the lock, and the call asks the others.
    Taking(Attempt, usize),
    Pausing {
        until: Moment,
        next: Next,
    },
    Ended,
}

/// What follows a pause.
#[derive(Clone, Copy, Debug)]
enum Next {
    AskAll,
    WaitOn(usize),
}

/// A token of the call that is being released on a node.
#[derive(Clone, Copy, Debug)]
enum Released {
    /// Of a WAIT that was not answered. It may be granted whenever the node reads it.
    Wait,
    /// Of a lease, if there was one.
    Lease {
        /// The connection that its RELEASE, and every one before it, went through; none if it may
        /// arrive before what it releases.
        connection: Option<u64>,
        /// By then it has ended by itself.
        until: Moment,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Answered,
    ConnectionLost,
}

/// One request for any of the slots that are left, of a call that does not wait.
#[derive(Debug)]
struct Probing {
    /// The attempt that was lost.
    lost: Attempt,
    /// The slot of that attempt.
    slot_spec: Arc<Spec>,
    id: RequestId,
    connection: u64,
    token: Token,
    sent: Moment,
    due: Moment,
}

#[derive(Debug)]
struct Waiting {
    /// What it waits for.
    spec: Arc<Spec>,
    /// It waits for some of the slots only, and not for long.
    is_partial: bool,
    node: usize,
    id: RequestId,
    token: Token,
    /// When the WAIT was sent; none while there is no connection for it.
    sent: Option<Moment>,
    /// The node has answered the WAIT, or its connection was lost.
    ended: Option<WaitEnd>,
    /// When the node ends the wait.
    ends_at: Option<Moment>,
    /// When the client gives the wait up; later than that, as the answer takes its time.
    late_at: Option<Moment>,
    look_at: Moment,
    /// The unanswered PING, and when the node counts as dead.
    ping: Option<(RequestId, Moment)>,
    /// The unanswered INSPECT of another node, and its time limit.
    inspect: Option<(RequestId, Moment)>,
    /// How many nodes after this one in the order are looked at next.
    look_offset: usize,
    /// When all nodes were asked last, it refused, and fewer than a majority did: no client holds
    /// the lock.
    is_alone_in_refusing: bool,
    /// An attempt past this node, or while there is no place to wait.
    ahead: Option<Attempt>,
    /// The node granted the lock meanwhile.
    granted: Option<(Waited, Option<usize>)>,
}

/// What the driver is to do.
#[derive(Debug)]
pub enum Action {
    /// Send a request through this connection of the node, after everything that was sent there
    /// before. If there is no such connection any more, respond that it is down.
    Send {
        /// Tells the response apart.
        id: RequestId,
        /// The number of the node's connection.
        connection: u64,
        /// What to send.
        request: Request,
    },
    /// Stand in line for a waiting connection to the node; once there is one, call
    /// [`Acquire::handle_wait_sent`] and send the WAIT through it that this returns.
    Wait {
        /// Tells the response apart.
        id: RequestId,
    },
    /// The waiting connection is not needed: the WAIT was not sent, or has been answered.
    StopWaiting {
        /// The WAIT.
        id: RequestId,
    },
    /// Run this machine, together with the WAIT that it [needs](Release::wait).
    Release(Box<Release>),
    /// The node left a request unanswered: tell its link.
    Suspect {
        /// The index of the node.
        node: usize,
        /// The number of its connection.
        connection: u64,
    },
    /// It is over.
    Done(Box<Outcome>),
}

/// How an [`Acquire`] ended.
#[derive(Debug)]
pub enum Outcome {
    /// The lock is held. Its machine is [`Hold`](super::Hold). Responses that are still missing are
    /// that machine's.
    Acquired(Grant),
    /// The lock is not held. What some nodes may have granted is being released.
    Failed(Failure),
}

/// A lock that has just been acquired.
#[derive(Debug)]
pub struct Grant {
    /// The token that holds it.
    pub token: Token,
    /// Its fence.
    pub fence: Fence,
    /// How long it is certainly held.
    pub lifetime: Lifetime,
    /// When it was decided.
    pub since: Moment,
    /// The round of its ACQUIREs.
    pub round: u32,
    /// The first round that no request of the call has used.
    pub(super) next_round: u32,
    pub(super) nodes: Vec<GrantNode>,
}

/// What is known of a node when the lock is granted.
#[derive(Clone, Debug)]
pub(super) struct GrantNode {
    pub(super) answer: Answer,
    pub(super) delivery: Delivery,
    pub(super) incarnation: u64,
}

/// Why a lock was not acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub reason: Reason,
    /// What each node answered last, by index.
    pub answers: Vec<Answer>,
    /// How long the call took.
    pub took: Duration,
}

/// Why a lock was not acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// At the last look, tokens of other clients left no majority.
    Held,
    /// Too few nodes could vote, or the others could not agree.
    NoQuorum,
    /// A majority granted the lock so late that less than the minimal validity was left.
    InsufficientValidity,
    /// The operating system has no random numbers for a token.
    NoRandom,
}

/// Why a [`Spec`] can never be a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpec {
    /// Drift and time limits leave nothing of the ttl.
    #[error(
        "a ttl of {ttl:?} leaves {lasts:?} after clock drift, which must be more than the time limit \
         per node ({node_timeout:?}) and no less than min_validity ({min_validity:?}): raise the ttl"
    )]
    TtlTooShort {
        /// The ttl.
        ttl: Duration,
        /// What drift leaves of it.
        lasts: Duration,
        /// The time limit per node.
        node_timeout: Duration,
        /// The least validity.
        min_validity: Duration,
    },
    /// The lock would be lost before its least validity is over.
    #[error("max_hold ({max_hold:?}) is less than min_validity ({min_validity:?}): raise it")]
    MaxHoldTooShort {
        /// The longest time to hold it.
        max_hold: Duration,
        /// The least validity.
        min_validity: Duration,
    },
    /// A shared lock has one key.
    #[error(
        "a lock of several keys, or of one of several, is exclusive: share a lock of one key, or do not share"
    )]
    SeveralShared,
    /// The keys cannot be locked.
    #[error(transparent)]
    Keys(#[from] super::InvalidKeys),
    /// The label is longer than a node accepts.
    #[error("the owner label must be at most {max} bytes", max = Spec::OWNER_BYTES_MAX)]
    OwnerTooLong,
}

impl Spec {
    /// The longest owner label that a node accepts, in bytes.
    pub const OWNER_BYTES_MAX: usize = 256;

    /// Refuses what can never be a lock.
    ///
    /// # Errors
    /// [`InvalidSpec`] says what is wrong and what to do.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        let (ttl, min_validity) = (self.ttl.duration(), self.min_validity);
        let lasts = crate::quorum::reliable(self.ttl);
        let least = limits::node_timeout(Duration::ZERO, self.ttl);
        let node_timeout = self.node_timeout.unwrap_or(least);
        if lasts <= node_timeout || lasts < min_validity {
            return Err(InvalidSpec::TtlTooShort { ttl, lasts, node_timeout, min_validity });
        }
        match self.max_hold {
            Some(max_hold) if max_hold < min_validity => {
                return Err(InvalidSpec::MaxHoldTooShort { max_hold, min_validity });
            }
            _ => {}
        }
        if self.owner.as_ref().is_some_and(|owner| owner.len() > Self::OWNER_BYTES_MAX) {
            return Err(InvalidSpec::OwnerTooLong);
        }
        if self.mode == Mode::Shared && (self.keys.len() > 1 || self.any.is_some()) {
            return Err(InvalidSpec::SeveralShared);
        }
        Ok(self.keys.check()?)
    }

    /// The keys that name the lock in a program: its queue there is theirs.
    pub fn name(&self) -> &Keys {
        self.any.as_ref().unwrap_or(&self.keys)
    }

    /// Which of the keys of [`any`](Self::any) it is about.
    pub fn slot(&self) -> Option<usize> {
        self.any.as_ref()?.iter().position(|key| key == self.keys.first())
    }

    /// The order of the nodes that decides where the lock is waited for: of one of several keys,
    /// that of the first of them, so that all clients wait on the same node.
    pub(super) fn order(&self, topology: &Topology) -> SmallVec<[usize; 7]> {
        topology.order(self.name().first())
    }

    /// The order of the nodes for each key of the lock.
    pub(super) fn orders(&self, topology: &Topology) -> SmallVec<[SmallVec<[usize; 7]>; 1]> {
        match self.any {
            Some(_) => std::iter::once(self.order(topology)).collect(),
            None => topology.orders(&self.keys),
        }
    }

    /// How long a node may take to answer a request about this lock.
    pub(super) fn node_timeout(&self, node: usize, ctx: &Context<'_>) -> Duration {
        let derived = || limits::node_timeout(ctx.fleet.round_trips.of(node), self.ttl);
        self.node_timeout.unwrap_or_else(derived)
    }

    /// The longest time that any node may take to answer.
    pub(super) fn longest_timeout(&self, ctx: &Context<'_>) -> Duration {
        let limits = (0..ctx.topology.nodes().len()).map(|node| self.node_timeout(node, ctx));
        limits.max().unwrap_or_default()
    }

    /// A node has not answered within `limit`.
    pub(super) fn timed_out(&self, node: usize, limit: Duration, ctx: &Context<'_>) -> NodeError {
        let round_trip = ctx.fleet.round_trips.of(node);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match limits::ttl_wanted(round_trip, self.ttl) {
            Some(ttl) if self.node_timeout.is_none() => NodeError::TooFar {
                limit_ms: ms(limit),
                round_trip_ms: ms(round_trip),
                ttl_ms: ms(ttl),
            },
            _ => NodeError::timed_out(limit),
        }
    }
}

impl Acquire {
    /// A call that waits for `wait`, or without end. It begins when its turn comes in the local
    /// queue of its keys: see [`handle_turn`](Self::handle_turn).
    pub fn new(mut spec: Arc<Spec>, wait: Option<Duration>, ctx: &Context<'_>) -> Self {
        let longest = spec.longest_timeout(ctx);
        let until = wait.map(|wait| ctx.now.plus(wait));
        let limited = wait.filter(|_| !is_broken(Mutant::NoDeadline));
        let deadline = limited.map(|wait| ctx.now.plus(wait.max(longest) + limits::CALL_GRACE));
        let nodes = ctx.topology.nodes().len();
        let slots = spec.any.is_some().then(|| Slots::new(&spec));
        Self {
            started: ctx.now,
            until,
            deadline,
            late: Duration::ZERO,
            phase: Phase::InLine,
            last: wait.is_some_and(|wait| wait.is_zero()),
            round: 0,
            attempts: 0,
            stays: 0,
            pause: ctx.fleet.round_trips.typical().clamp(limits::PAUSE_MIN, limits::PAUSE_MAX),
            silent: SmallVec::new(),
            answers: std::iter::repeat_n(Answer::Pending, nodes).collect(),
            released: SmallVec::from_elem(None, nodes),
            too_late: false,
            contended: false,
            actions: VecDeque::with_capacity(nodes + 1),
            spec: {
                if let Some(slots) = &slots {
                    spec = slots.spec();
                }
                spec
            },
            slots,
        }
    }

    /// Asks for this one of its [slots](Spec::any) first. To be called before its turn.
    pub fn prefer_slot(&mut self, slot: usize) {
        if let (Some(slots), Phase::InLine) = (&mut self.slots, &self.phase) {
            slots.take(slot);
            self.spec = slots.spec();
        }
    }

    /// Asks for another slot, if it takes one of several.
    fn pick_slot(&mut self, ctx: &mut Context<'_>) {
        if let Some(slots) = &mut self.slots {
            slots.pick(ctx.random);
            self.spec = slots.spec();
        }
    }

    /// Swaps the token of a lock that another process detached.
    pub fn attach(spec: Arc<Spec>, old: Token, ctx: &mut Context<'_>) -> Self {
        let mut this = Self::new(spec, Some(Duration::ZERO), ctx);
        this.start(Kind::Attach { old }, ctx);
        this.proceed(ctx);
        this
    }

    /// What a WAIT of it asks for.
    pub fn wait_spec(&self) -> &Arc<Spec> {
        match &self.phase {
            Phase::Waiting(waiting) => &waiting.spec,
            _ => &self.spec,
        }
    }

    /// The lock that it is about: of one of several keys, the one that it asks for now.
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// Whether others want the same lock, as far as this call has seen. The next call of the
    /// program begins with a wait then.
    pub fn is_contended(&self) -> bool {
        self.contended
    }

    /// How many attempts and waits there have been.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Its turn has come in the local queue; `contended` if the last call of the program had to
    /// wait.
    pub fn handle_turn(&mut self, contended: bool, ctx: &mut Context<'_>) {
        if !matches!(self.phase, Phase::InLine) {
            return;
        }
        if is_broken(Mutant::RefusesUnasked) && contended && self.last {
            return self.finish(Reason::Held, ctx);
        }
        if contended && !self.last && !self.is_time(ctx.now) {
            self.contended = true;
            let order = self.spec.order(ctx.topology);
            let votes = |node: &usize| ctx.topology.route_acquire(*node).is_ok();
            match order.into_iter().find(votes) {
                Some(node) => self.wait_on(node, ctx),
                None => self.start(Kind::First, ctx),
            }
        } else {
            self.start(Kind::First, ctx);
        }
        self.proceed(ctx);
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Moment> {
        let phase = match &self.phase {
            Phase::Ended => return None,
            Phase::InLine => self.until,
            Phase::Asking(attempt) | Phase::Hearing(attempt) | Phase::Taking(attempt, _) => {
                attempt.poll_timeout()
            }
            Phase::Settling { until, .. } | Phase::Pausing { until, .. } => Some(*until),
            Phase::Looking { due, .. } => Some(*due),
            Phase::Probing(probing) => Some(probing.due),
            Phase::Waiting(waiting) => waiting.poll_timeout(),
        };
        // Where to wait is not heard of for longer than the wait.
        let until = self.until.filter(|_| !self.last && matches!(self.phase, Phase::Hearing(_)));
        phase.into_iter().chain(until).chain(self.give_up_at()).reduce(Moment::earlier)
    }

    /// When the call ends, whatever has been answered. A program that was not run in time does not
    /// take that for the nodes' silence: the time for which it was late does not count.
    fn give_up_at(&self) -> Option<Moment> {
        self.deadline.map(|deadline| deadline.plus(self.late))
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        if self.is_time(ctx.now) {
            let late = self.poll_timeout().map(|due| ctx.now.since(due));
            self.late = self.late.max(late.unwrap_or_default());
        }
        if self.give_up_at().is_some_and(|deadline| ctx.now.has_reached(deadline)) {
            return self.give_up(ctx);
        }
        match &mut self.phase {
            Phase::InLine => {
                if is_broken(Mutant::HeldOutOfTurn) {
                    return self.finish(Reason::Held, ctx);
                }
                if self.is_time(ctx.now) {
                    // The result of another call does not answer this one: it asks the nodes
                    // itself.
                    self.start(Kind::First, ctx);
                }
            }
            Phase::Asking(attempt) | Phase::Hearing(attempt) | Phase::Taking(attempt, _) => {
                attempt.handle_timeout(&self.spec, ctx, &mut self.actions);
            }
            Phase::Settling { until, refused_by } => {
                if ctx.now.has_reached(*until) {
                    let refused_by = *refused_by;
                    self.look(refused_by, ctx);
                }
            }
            Phase::Looking { due, limit, .. } => {
                if ctx.now.has_reached(*due) {
                    let limit = *limit;
                    for node in 0..self.answers.len() {
                        if self.answers[node] == Answer::Pending {
                            self.answers[node] =
                                Answer::Failed(self.spec.timed_out(node, limit, ctx));
                        }
                    }
                }
            }
            Phase::Probing(probing) => {
                if ctx.now.has_reached(probing.due) {
                    self.probe_ended(false, ctx);
                }
            }
            Phase::Waiting(_) => self.look_after_wait(ctx),
            Phase::Pausing { until, next } => {
                if ctx.now.has_reached(*until) {
                    let next = *next;
                    self.resume(next, ctx);
                }
            }
            Phase::Ended => {}
        }
        self.proceed(ctx);
    }

    /// There is a connection for the WAIT, and the context's time is that before its first byte.
    /// Returns what to send, or nothing if the wait is over.
    pub fn handle_wait_sent(&mut self, id: RequestId, ctx: &mut Context<'_>) -> Option<Request> {
        let whole = self.wait_until(ctx);
        let Phase::Waiting(waiting) = &mut self.phase else { return None };
        let partial = waiting.is_partial.then(|| ctx.now.plus(limits::LOOK_EVERY));
        let ends_at = whole.into_iter().chain(partial).reduce(Moment::earlier);
        waiting.is_partial &= ends_at != whole;
        // A WAIT that could not be answered in time would only delay the last attempt.
        let round_trip = ctx.fleet.round_trips.of(waiting.node);
        let is_too_late = |ends_at: Moment| ctx.now.plus(round_trip * 2).has_reached(ends_at);
        if waiting.id != id || ends_at.is_some_and(is_too_late) {
            return None;
        }
        waiting.sent = Some(ctx.now);
        waiting.ends_at = ends_at;
        waiting.late_at = ends_at.map(|ends_at| ends_at.plus(limits::WAIT_GRACE));
        waiting.look_at = ctx.now.plus(limits::LOOK_EVERY);
        let wait = ends_at.map_or(Duration::from_millis(Ttl::MAX_MS), |ends_at| {
            // The node is to answer by then, however far away it is.
            ctx.now.until(ends_at).saturating_sub(round_trip)
        });
        // A wait of zero does not wait at all.
        let wait = wait.max(Duration::from_millis(1));
        let fence = ctx.fleet.fences.propose(ctx.wall_us);
        Some(Request { token: waiting.token, command: Command::Wait { fence, wait } })
    }

    /// Takes a response.
    pub fn handle_response(&mut self, id: RequestId, response: &Response, ctx: &mut Context<'_>) {
        match &mut self.phase {
            Phase::Asking(attempt) | Phase::Hearing(attempt) | Phase::Taking(attempt, _)
                if attempt.expects(id) =>
            {
                attempt.handle_response(id, response, ctx);
            }
            Phase::Looking { round, .. } if *round == id.round => {
                self.answers[id.node] = match response {
                    Response::Yes => Answer::Refused,
                    Response::No => Answer::Granted(None),
                    Response::Failed(error) => Answer::Failed(error.clone()),
                    _ => Answer::Failed(NodeError::UnexpectedReply),
                };
            }
            Phase::Probing(probing) if probing.id == id => self.handle_probed(response, ctx),
            Phase::Probing(probing) if probing.lost.expects(id) => {
                probing.lost.handle_response(id, response, ctx);
            }
            Phase::Waiting(waiting) => {
                if waiting.id == id {
                    self.handle_wait_over(response, ctx);
                } else if waiting.ping.is_some_and(|(ping, _)| ping == id) {
                    waiting.ping = None;
                    if let Response::Failed(error) = response {
                        let error = error.clone();
                        self.leave_node(Some(error), ctx);
                    }
                } else if waiting.inspect.is_some_and(|(inspect, _)| inspect == id) {
                    waiting.inspect = None;
                    // The next look is at another node: this one may hold what was not released.
                    if !is_broken(Mutant::LooksAtOneNode) {
                        waiting.look_offset += 1;
                    }
                    if *response == Response::No {
                        self.go_ahead(ctx);
                    }
                } else if let Some(ahead) = waiting.ahead.as_mut().filter(|ahead| ahead.expects(id))
                {
                    ahead.handle_response(id, response, ctx);
                }
            }
            _ => {}
        }
        self.proceed(ctx);
    }

    /// The caller is not interested any more. What it may have been granted is released.
    pub fn cancel(&mut self, ctx: &mut Context<'_>) {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Asking(attempt) | Phase::Taking(attempt, _) => self.roll_back(&attempt, ctx),
            Phase::Waiting(waiting) => self.leave(&waiting, ctx),
            Phase::Probing(probing) => self.release_probe(&probing, ctx),
            // What they were granted has been released.
            Phase::Hearing(_)
            | Phase::InLine
            | Phase::Settling { .. }
            | Phase::Looking { .. }
            | Phase::Pausing { .. }
            | Phase::Ended => {}
        }
    }

    // What follows from what has happened.

    fn proceed(&mut self, ctx: &mut Context<'_>) {
        match &mut self.phase {
            Phase::Asking(attempt) | Phase::Taking(attempt, _) => {
                if let Some(end) = attempt.advance(&self.spec, ctx, &mut self.actions) {
                    self.attempt_ended(end, ctx);
                }
            }
            Phase::Hearing(_) if !self.last => self.choose_node(ctx),
            Phase::Hearing(attempt) => {
                let spare = ctx.fleet.majority.spare();
                let refused = attempt.count(|answer| *answer == Answer::Refused);
                if refused > spare || attempt.has_heard_all() {
                    self.heard_all(ctx);
                }
            }
            Phase::Looking { refused_by, .. } => {
                let pending = self.answers.contains(&Answer::Pending);
                let free =
                    self.answers.iter().filter(|answer| matches!(answer, Answer::Granted(_)));
                if free.count() >= ctx.fleet.majority.size() {
                    let past = *refused_by;
                    let is_free = matches!(self.answers[past], Answer::Granted(_));
                    let kind = if is_free { Kind::First } else { Kind::GoAhead { past } };
                    self.start(kind, ctx);
                    self.proceed(ctx);
                } else if !pending {
                    self.fail(ctx);
                }
            }
            Phase::Waiting(waiting) => {
                if let Some(ahead) = &mut waiting.ahead
                    && let Some(end) = ahead.advance(&self.spec, ctx, &mut self.actions)
                {
                    self.ahead_ended(end, ctx);
                }
            }
            Phase::InLine
            | Phase::Settling { .. }
            | Phase::Probing(_)
            | Phase::Pausing { .. }
            | Phase::Ended => {}
        }
    }

    fn start(&mut self, kind: Kind, ctx: &mut Context<'_>) {
        self.attempts += 1;
        self.last |= self.is_time(ctx.now);
        let Some(token) = mutants::token(self.started, ctx) else {
            return self.finish(Reason::NoRandom, ctx);
        };
        let round = self.rounds(Attempt::ROUNDS);
        let attempt = Attempt::new(kind, &self.spec, token, round, ctx, &mut self.actions);
        self.phase = Phase::Asking(attempt);
    }

    fn rounds(&mut self, count: u32) -> u32 {
        let round = self.round;
        self.round += count;
        round
    }

    fn attempt_ended(&mut self, end: End, ctx: &mut Context<'_>) {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        let (mut attempt, waited_on) = match phase {
            Phase::Asking(attempt) => (attempt, None),
            Phase::Taking(attempt, node) => (attempt, Some(node)),
            other => {
                self.phase = other;
                return;
            }
        };
        let loss = match end {
            End::Won(win) => return self.won(&mut attempt, win, ctx),
            End::Lost(loss) => loss,
        };
        self.roll_back(&attempt, ctx);
        self.too_late = loss == Loss::TooLate;
        if loss == Loss::Held
            && !attempt.has_yielded()
            && !is_broken(Mutant::TakenSlotAskedAgain)
            && let Some(slots) = &mut self.slots
        {
            // Others hold that slot without the node that decides.
            slots.leave_out();
        }
        if !self.last && !self.is_time(ctx.now) {
            self.keep_answers(&attempt);
            if waited_on.is_none() && self.awaits_earlier_node(&attempt, ctx) {
                self.phase = Phase::Hearing(attempt);
                return;
            }
            return self.next(&attempt, waited_on, ctx);
        }
        self.last = true;
        if loss == Loss::Held && self.may_probe(&attempt, waited_on) {
            self.probe(attempt, ctx);
        } else if loss == Loss::Held {
            // Whether others hold the lock is known when the rest has answered.
            self.phase = Phase::Hearing(attempt);
            self.proceed(ctx);
        } else {
            self.keep_answers(&attempt);
            self.fail(ctx);
        }
    }

    fn keep_answers(&mut self, attempt: &Attempt) {
        self.answers = attempt.answers().cloned().collect();
        let silent =
            |(node, answer): (usize, &Answer)| matches!(answer, Answer::Failed(_)).then_some(node);
        self.silent = self.answers.iter().enumerate().filter_map(silent).collect();
    }

    fn won(&mut self, attempt: &mut Attempt, win: Win, ctx: &Context<'_>) {
        self.phase = Phase::Ended;
        if let Some(release) = attempt.release_detached(&self.spec, ctx) {
            self.actions.push_back(Action::Release(Box::new(release)));
        }
        let grant = Grant { next_round: self.round, ..attempt.grant(win, ctx.now) };
        self.actions.push_back(Action::Done(Box::new(Outcome::Acquired(grant))));
    }

    /// Whether a node has not answered that comes before all that refused: it says where others
    /// wait.
    fn awaits_earlier_node(&self, attempt: &Attempt, ctx: &Context<'_>) -> bool {
        let order = self.spec.order(ctx.topology);
        let answers: SmallVec<[&Answer; 5]> = attempt.answers().collect();
        let Some(holder) = order.iter().position(|&node| *answers[node] == Answer::Refused) else {
            return false;
        };
        order[..holder].iter().any(|&node| *answers[node] == Answer::Pending)
    }

    /// Waits, once it is known where others wait.
    fn choose_node(&mut self, ctx: &mut Context<'_>) {
        let Phase::Hearing(attempt) = &self.phase else { return };
        if self.awaits_earlier_node(attempt, ctx) && !self.is_time(ctx.now) {
            return;
        }
        if let Phase::Hearing(attempt) = std::mem::replace(&mut self.phase, Phase::Ended) {
            self.keep_answers(&attempt);
            self.next(&attempt, None, ctx);
        }
    }

    /// What follows an attempt that was lost, while there is time.
    fn next(&mut self, attempt: &Attempt, waited_on: Option<usize>, ctx: &mut Context<'_>) {
        if self.is_hopeless(ctx) {
            return self.fail(ctx);
        }
        let order = self.spec.order(ctx.topology);
        let anyone = is_broken(Mutant::WaitsOnQueueNode);
        let refused = |node: &usize| anyone || self.answers[*node] == Answer::Refused;
        let Some(holder) = order.iter().copied().find(refused) else {
            return self.pause_before(Next::AskAll, ctx);
        };
        let has_vote = |node: &usize| !matches!(self.answers[*node], Answer::Failed(_));
        let decider = order.iter().copied().find(has_vote);
        if let (Some(slots), Some(node)) = (&self.slots, decider)
            && !attempt.has_yielded()
            && slots.is_partial()
        {
            // The node that decides has other slots, perhaps.
            return self.wait_on(node, ctx);
        }
        if decider == Some(holder) || (waited_on.is_some() && attempt.has_yielded()) {
            self.wait_on(holder, ctx);
        } else if let Some(node) = waited_on.filter(|_| waited_on == decider && self.can_stay(ctx))
        {
            // Others wait on a later node, which refuses while they do. They give way to this one:
            // a client that joined them instead would keep that queue alive.
            self.stays += 1;
            self.pause_before(Next::WaitOn(node), ctx);
        } else {
            // The holder has not reached the node that decides, which will not hear of the end.
            self.pause_before(Next::WaitOn(holder), ctx);
        }
    }

    /// Whether it may wait on its node again. Fewer nodes refused than are a majority, so that no
    /// other client can hold the lock; this call lost it because further nodes did not answer.
    fn can_stay(&self, ctx: &Context<'_>) -> bool {
        self.count_refused() < ctx.fleet.majority.size() && self.stays < limits::STAYS_MAX
    }

    /// Whether so many nodes fail permanently that the others are no majority.
    fn is_hopeless(&self, ctx: &Context<'_>) -> bool {
        Answer::rule_out_majority(&self.answers, ctx.fleet.majority)
    }

    fn pause_before(&mut self, next: Next, ctx: &mut Context<'_>) {
        let until = ctx.now.plus(ctx.jitter(self.pause));
        self.pause = (self.pause * 2).min(limits::PAUSE_MAX);
        // The last attempt is at the very end.
        let until = self.until.map_or(until, |last| last.earlier(until)).later(ctx.now);
        self.phase = Phase::Pausing { until, next };
    }

    fn resume(&mut self, next: Next, ctx: &mut Context<'_>) {
        match next {
            Next::WaitOn(node) if !self.is_time(ctx.now) => self.wait_on(node, ctx),
            Next::WaitOn(_) | Next::AskAll => {
                self.pick_slot(ctx);
                self.start(Kind::First, ctx);
            }
        }
    }

    // The last look: is it true that another holds the lock?

    fn heard_all(&mut self, ctx: &mut Context<'_>) {
        let Phase::Hearing(attempt) = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return;
        };
        self.keep_answers(&attempt);
        let spare = ctx.fleet.majority.spare();
        let refused = self.count_refused();
        let voting =
            self.answers.iter().filter(|answer| !matches!(answer, Answer::Failed(_))).count();
        if refused > spare || voting < ctx.fleet.majority.size() || !attempt.has_yielded() {
            return self.fail(ctx);
        }
        // Too few nodes refused for another client to hold the lock. It may be about to acquire it,
        // or a node holds a lock that was not released.
        let order = self.spec.order(ctx.topology);
        let refused_by = order.iter().copied().find(|&node| self.answers[node] == Answer::Refused);
        let settle = limits::settle(ctx.fleet.round_trips.typical());
        let until = ctx.now.plus(settle);
        match refused_by {
            Some(refused_by) => self.phase = Phase::Settling { until, refused_by },
            None => self.fail(ctx),
        }
    }

    fn look(&mut self, refused_by: usize, ctx: &mut Context<'_>) {
        let round = self.rounds(1);
        let Some(token) = mutants::token(self.started, ctx) else {
            return self.finish(Reason::NoRandom, ctx);
        };
        let limit = self.spec.longest_timeout(ctx);
        for node in 0..self.answers.len() {
            self.answers[node] = match ctx.topology.route_acquire(node) {
                Ok(connection) => {
                    let request = Request { token, command: Command::Inspect };
                    let id = RequestId { round, node };
                    self.actions.push_back(Action::Send { id, connection, request });
                    Answer::Pending
                }
                Err(error) => Answer::Failed(error),
            };
        }
        self.phase = Phase::Looking { round, refused_by, due: ctx.now.plus(limit), limit };
    }

    /// Whether this node refuses, and too few are known to refuse for another client to hold the
    /// lock.
    fn is_alone_in_refusing(&self, node: usize, ctx: &Context<'_>) -> bool {
        self.answers[node] == Answer::Refused && self.count_refused() <= ctx.fleet.majority.spare()
    }

    fn count_refused(&self) -> usize {
        self.answers.iter().filter(|answer| **answer == Answer::Refused).count()
    }

    // Waiting on one node.

    fn wait_on(&mut self, node: usize, ctx: &mut Context<'_>) {
        self.attempts += 1;
        self.contended = true;
        let limited = self.until.filter(|_| !is_broken(Mutant::NoDeadline));
        self.deadline = limited.map(|until| until.plus(limits::CALL_GRACE));
        if let Err(error) = ctx.topology.route_acquire(node) {
            // What a node grants counts only if it is admitted.
            self.answers[node] = Answer::Failed(error);
            return self.pause_before(Next::AskAll, ctx);
        }
        let Some(token) = mutants::token(self.started, ctx) else {
            return self.finish(Reason::NoRandom, ctx);
        };
        let id = RequestId { round: self.rounds(1), node };
        let (spec, is_partial) = match &self.slots {
            Some(slots) => (slots.candidates(), slots.is_partial()),
            None => (Arc::clone(&self.spec), false),
        };
        self.actions.push_back(Action::Wait { id });
        // Without a place to wait it polls.
        let look_at = ctx.now.plus(ctx.jitter(limits::PAUSE_MAX));
        self.phase = Phase::Waiting(Box::new(Waiting {
            spec,
            is_partial,
            node,
            id,
            token,
            sent: None,
            ended: None,
            ends_at: None,
            late_at: self.wait_until(ctx),
            look_at,
            ping: None,
            inspect: None,
            look_offset: 1,
            is_alone_in_refusing: self.is_alone_in_refusing(node, ctx),
            ahead: None,
            granted: None,
        }));
    }

    /// When waiting ends, so that a last look fits in before the end of the call.
    fn wait_until(&self, ctx: &Context<'_>) -> Option<Moment> {
        let until = self.until?;
        let look = limits::settle(ctx.fleet.round_trips.typical());
        let early = look.saturating_sub(limits::CALL_GRACE.saturating_sub(limits::WAIT_GRACE));
        let left = ctx.now.until(until);
        Some(ctx.now.plus(left.saturating_sub(early)))
    }

    /// Whether it takes a turn in the local queue: a call that does not wait asks the nodes at
    /// once.
    pub fn takes_turn(&self) -> bool {
        !self.last
    }

    /// Whether the wait is over.
    fn is_time(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now.has_reached(until))
    }

    fn handle_wait_over(&mut self, response: &Response, ctx: &mut Context<'_>) {
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        let id = waiting.id;
        let is_lost = matches!(response, Response::Failed(NodeError::Down { .. }));
        waiting.ended = Some(if is_lost { WaitEnd::ConnectionLost } else { WaitEnd::Answered });
        self.actions.push_back(Action::StopWaiting { id });
        match response {
            Response::FenceAfterWait { fence, waited }
            | Response::AnyAfterWait { fence, waited, .. } => {
                let slot = match response {
                    Response::AnyAfterWait { key, .. } => slot_of(&waiting.spec, *key),
                    _ => None,
                };
                let Some(sent) = waiting.sent else { return };
                self.contended = !waited.is_zero();
                let granted = Waited {
                    node: waiting.node,
                    token: waiting.token,
                    fence: *fence,
                    lifetime: if is_broken(Mutant::ValidFromAnswer) {
                        Lifetime::new(ctx.now, self.spec.ttl)
                    } else {
                        Lifetime::after_wait(sent, *waited, self.spec.ttl)
                    },
                    incarnation: ctx.topology.incarnation(waiting.node),
                    silent: self.silent.clone(),
                };
                if waiting.ahead.is_some() {
                    // That attempt is soon over, one way or the other.
                    waiting.granted = Some((granted, slot));
                    waiting.late_at = None;
                } else {
                    self.take(granted, slot, ctx);
                }
            }
            Response::No => {
                let ended = |at: Moment| ctx.now.plus(limits::WAIT_GRACE).has_reached(at);
                let is_partial = waiting.is_partial;
                self.last |= !is_partial && waiting.ends_at.is_some_and(ended);
                self.stop_ahead(ctx);
                self.end_partial(is_partial);
                self.pick_slot(ctx);
                self.start(Kind::First, ctx);
            }
            Response::Failed(error) => {
                let error = error.clone();
                self.answers[id.node] = Answer::Failed(error.clone());
                self.leave_node(Some(error), ctx);
            }
            Response::Fence(_) | Response::Yes => self.leave_node(None, ctx),
        }
    }

    /// Takes the other nodes.
    fn take(&mut self, granted: Waited, slot: Option<usize>, ctx: &mut Context<'_>) {
        if let (Some(slots), Some(slot)) = (&mut self.slots, slot) {
            slots.take(slot);
            self.spec = slots.spec();
        }
        let (node, round) = (granted.node, self.rounds(Attempt::ROUNDS));
        let attempt = Attempt::after_wait(&self.spec, granted, round, ctx, &mut self.actions);
        self.phase = Phase::Taking(attempt, node);
    }

    /// The node cannot be waited on, or not any more.
    fn leave_node(&mut self, error: Option<NodeError>, ctx: &mut Context<'_>) {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        if let Phase::Waiting(waiting) = phase {
            if waiting.sent.is_some() && !matches!(waiting.ended, Some(WaitEnd::Answered)) {
                self.note_release(waiting.node, None, ctx.now);
            }
            self.answers[waiting.node] =
                Answer::Failed(error.unwrap_or(NodeError::UnexpectedReply));
            self.leave(&waiting, ctx);
        }
        self.pause_before(Next::AskAll, ctx);
    }

    fn stop_ahead(&mut self, ctx: &Context<'_>) {
        if let Phase::Waiting(waiting) = &mut self.phase
            && let Some(ahead) = waiting.ahead.take()
        {
            self.roll_back(&ahead, ctx);
        }
    }

    /// Leaves the queue.
    fn leave(&mut self, waiting: &Waiting, ctx: &Context<'_>) {
        if let Some(ahead) = &waiting.ahead {
            self.roll_back(ahead, ctx);
        }
        self.give_up_seat(waiting, ctx);
    }

    fn give_up_seat(&mut self, waiting: &Waiting, ctx: &Context<'_>) {
        if waiting.sent.is_none() {
            self.actions.push_back(Action::StopWaiting { id: waiting.id });
            return;
        }
        let (token, node, spec) = (waiting.token, waiting.node, &waiting.spec);
        let release = match waiting.ended {
            Some(WaitEnd::Answered) => Release::on(token, node, spec, ctx),
            Some(WaitEnd::ConnectionLost) => Release::of_lost_wait(token, node, spec, ctx),
            None => Release::leave(token, waiting.id, spec, ctx),
        };
        self.actions.push_back(Action::Release(Box::new(release)));
    }

    /// What is due while it waits.
    fn look_after_wait(&mut self, ctx: &mut Context<'_>) {
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        if let Some(ahead) = &mut waiting.ahead {
            ahead.handle_timeout(&self.spec, ctx, &mut self.actions);
        }
        if let Some((_, due)) = waiting.ping
            && ctx.now.has_reached(due)
        {
            let limit = limits::liveness(ctx.fleet.round_trips.of(waiting.node));
            if let Ok(connection) = ctx.topology.route(waiting.node) {
                self.actions.push_back(Action::Suspect { node: waiting.node, connection });
            }
            return self.leave_node(Some(NodeError::timed_out(limit)), ctx);
        }
        if let Some((_, due)) = waiting.inspect
            && ctx.now.has_reached(due)
        {
            waiting.inspect = None;
            waiting.look_offset += 1;
        }
        if waiting.late_at.is_some_and(|late_at| ctx.now.has_reached(late_at)) {
            let is_partial = waiting.is_partial;
            if let Phase::Waiting(waiting) = std::mem::replace(&mut self.phase, Phase::Ended) {
                self.leave(&waiting, ctx);
            }
            self.last |= !is_partial;
            self.end_partial(is_partial);
            self.pick_slot(ctx);
            return self.start(Kind::First, ctx);
        }
        if !ctx.now.has_reached(waiting.look_at) {
            return;
        }
        if waiting.sent.is_none() {
            waiting.look_at = ctx.now.plus(ctx.jitter(limits::LOOK_EVERY));
            if waiting.ahead.is_none() && !is_broken(Mutant::NoPollWithoutSeat) {
                // What a node has not released is no reason to poll for ever.
                let (node, offset) = (waiting.node, waiting.look_offset);
                if std::mem::take(&mut waiting.is_alone_in_refusing) && waiting.inspect.is_none() {
                    self.inspect_another(node, offset, ctx);
                } else {
                    self.pick_slot(ctx);
                    self.ask_ahead(Kind::First, ctx);
                }
            }
            return;
        }
        if is_broken(Mutant::LeavesQueue) && waiting.ahead.is_none() {
            let node = waiting.node;
            self.leave_node(None, ctx);
            return self.wait_on(node, ctx);
        }
        waiting.look_at = ctx.now.plus(limits::LOOK_EVERY);
        let (node, offset) = (waiting.node, waiting.look_offset);
        if waiting.ping.is_none() {
            let round = self.rounds(1);
            self.ping(RequestId { round, node }, ctx);
        }
        let Phase::Waiting(waiting) = &self.phase else { return };
        let looks = !is_broken(Mutant::NeverLooksPast);
        if looks && waiting.inspect.is_none() && waiting.ahead.is_none() {
            self.inspect_another(node, offset, ctx);
        }
    }

    fn ping(&mut self, id: RequestId, ctx: &mut Context<'_>) {
        match ctx.topology.route(id.node) {
            Ok(connection) => {
                let Phase::Waiting(waiting) = &mut self.phase else { return };
                let liveness = limits::liveness(ctx.fleet.round_trips.of(id.node));
                waiting.ping = Some((id, ctx.now.plus(liveness)));
                let request = Request { token: waiting.token, command: Command::Ping };
                self.actions.push_back(Action::Send { id, connection, request });
            }
            Err(error) => self.leave_node(Some(error), ctx),
        }
    }

    /// Asks the next node of the order whether the lock is free there.
    fn inspect_another(&mut self, node: usize, offset: usize, ctx: &mut Context<'_>) {
        self.pick_slot(ctx);
        let order = self.spec.order(ctx.topology);
        let place = order.iter().position(|&other| other == node).unwrap_or(0);
        let others = (0..order.len()).map(|step| order[(place + offset + step) % order.len()]);
        let reachable =
            |other: &usize| *other != node && ctx.topology.route_acquire(*other).is_ok();
        let Some(other) = others.into_iter().find(reachable) else { return };
        let Ok(connection) = ctx.topology.route_acquire(other) else { return };
        let id = RequestId { round: self.rounds(1), node: other };
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        let limit = self.spec.node_timeout(other, ctx);
        waiting.inspect = Some((id, ctx.now.plus(limit)));
        let request = Request { token: waiting.token, command: Command::Inspect };
        self.actions.push_back(Action::Send { id, connection, request });
    }

    /// Another node is free: asks all, but for the one on which it waits.
    fn go_ahead(&mut self, ctx: &mut Context<'_>) {
        if let Phase::Waiting(waiting) = &self.phase
            && waiting.ahead.is_none()
            && waiting.granted.is_none()
        {
            let past = waiting.node;
            self.ask_ahead(Kind::GoAhead { past }, ctx);
        }
    }

    fn ask_ahead(&mut self, kind: Kind, ctx: &mut Context<'_>) {
        self.attempts += 1;
        let Some(token) = mutants::token(self.started, ctx) else { return };
        let round = self.rounds(Attempt::ROUNDS);
        let attempt = Attempt::new(kind, &self.spec, token, round, ctx, &mut self.actions);
        if let Phase::Waiting(waiting) = &mut self.phase {
            waiting.ahead = Some(attempt);
        }
        self.proceed(ctx);
    }

    fn ahead_ended(&mut self, end: End, ctx: &mut Context<'_>) {
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        let Some(mut ahead) = waiting.ahead.take() else { return };
        if let End::Won(win) = end {
            if let Phase::Waiting(waiting) = std::mem::replace(&mut self.phase, Phase::Ended) {
                self.give_up_seat(&waiting, ctx);
            }
            // The client that a refusing node has granted does not hold the lock.
            self.contended = false;
            return self.won(&mut ahead, win, ctx);
        }
        let (node, granted) = (waiting.node, waiting.granted.take());
        self.keep_answers(&ahead);
        self.roll_back(&ahead, ctx);
        let is_alone = self.is_alone_in_refusing(node, ctx);
        if let Phase::Waiting(waiting) = &mut self.phase {
            waiting.is_alone_in_refusing = is_alone;
        }
        if let Some((granted, slot)) = granted {
            self.take(granted, slot, ctx);
        } else if self.is_hopeless(ctx) {
            if let Phase::Waiting(waiting) = std::mem::replace(&mut self.phase, Phase::Ended) {
                self.leave(&waiting, ctx);
            }
            self.fail(ctx);
        }
    }

    // One of several keys.

    /// Whether one request may find another slot for a call that does not wait.
    fn may_probe(&self, lost: &Attempt, waited_on: Option<usize>) -> bool {
        let asked_before = self.contended && waited_on.is_none();
        let is_left = |slots: &Slots| slots.has_others() && slots.probes < limits::PROBES_MAX;
        !asked_before && lost.has_refused() && self.slots.as_ref().is_some_and(is_left)
    }

    /// Asks the first node of the order for any slot but the one that was just refused.
    fn probe(&mut self, lost: Attempt, ctx: &mut Context<'_>) {
        let order = self.spec.order(ctx.topology);
        let route = |node: usize| Some((node, ctx.topology.route_acquire(node).ok()?));
        let found = order.into_iter().find_map(route);
        let token = mutants::token(self.started, ctx);
        let (Some((node, connection)), Some(token), Some(slots)) = (found, token, &mut self.slots)
        else {
            self.phase = Phase::Hearing(lost);
            return self.proceed(ctx);
        };
        slots.probes += 1;
        let slot_spec = std::mem::replace(&mut self.spec, slots.others());
        let id = RequestId { round: self.rounds(1), node };
        let fence = ctx.fleet.fences.propose(ctx.wall_us);
        let request = Request { token, command: Command::AcquireAny { fence } };
        self.actions.push_back(Action::Send { id, connection, request });
        let due = ctx.now.plus(self.spec.node_timeout(node, ctx));
        let sent = ctx.now;
        self.phase =
            Phase::Probing(Box::new(Probing { lost, slot_spec, id, connection, token, sent, due }));
    }

    fn handle_probed(&mut self, response: &Response, ctx: &mut Context<'_>) {
        let Phase::Probing(probing) = &self.phase else { return };
        let Response::AnyAfterWait { fence, key, .. } = response else {
            return self.probe_ended(*response == Response::No, ctx);
        };
        let (node, token, slot) = (probing.id.node, probing.token, slot_of(&self.spec, *key));
        let granted = Waited {
            node,
            token,
            fence: *fence,
            lifetime: Lifetime::after_wait(probing.sent, Duration::ZERO, self.spec.ttl),
            incarnation: ctx.topology.incarnation(node),
            silent: self.silent.clone(),
        };
        self.take(granted, slot, ctx);
    }

    /// No slot is free there, or the node does not answer.
    fn probe_ended(&mut self, is_refused: bool, ctx: &mut Context<'_>) {
        let Phase::Probing(probing) = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return;
        };
        if !is_refused {
            self.release_probe(&probing, ctx);
        }
        let Probing { lost, slot_spec, .. } = *probing;
        self.spec = slot_spec;
        self.phase = Phase::Hearing(lost);
    }

    fn release_probe(&mut self, probing: &Probing, ctx: &Context<'_>) {
        let Probing { id, connection, token, .. } = *probing;
        self.note_release(id.node, Some(connection), ctx.now);
        let delivery = |node| {
            if node == id.node { Delivery::InFlight { connection } } else { Delivery::NotSent }
        };
        let deliveries = (0..ctx.topology.nodes().len()).map(delivery);
        let release = Release::new(token, deliveries, &self.spec, ctx);
        self.actions.push_back(Action::Release(Box::new(release)));
    }

    /// A wait for some of the slots is over: from now on all of them are asked for again.
    fn end_partial(&mut self, is_partial: bool) {
        if let Some(slots) = self.slots.as_mut().filter(|_| is_partial) {
            slots.allow_all();
        }
    }

    // The end.

    fn roll_back(&mut self, attempt: &Attempt, ctx: &Context<'_>) {
        for (node, connection) in attempt.connections(ctx.topology) {
            self.note_release(node, connection, ctx.now);
        }
        let release = attempt.roll_back(&self.spec, ctx);
        self.actions.push_back(Action::Release(Box::new(release)));
    }

    /// The call's own time is over.
    fn give_up(&mut self, ctx: &mut Context<'_>) {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Asking(mut attempt) | Phase::Taking(mut attempt, _) => {
                attempt.time_is_up(&self.spec, ctx);
                self.keep_answers(&attempt);
                self.roll_back(&attempt, ctx);
            }
            Phase::Hearing(mut attempt) => {
                attempt.time_is_up(&self.spec, ctx);
                self.keep_answers(&attempt);
            }
            Phase::Probing(mut probing) => {
                self.release_probe(&probing, ctx);
                self.spec = Arc::clone(&probing.slot_spec);
                probing.lost.time_is_up(&self.spec, ctx);
                self.keep_answers(&probing.lost);
            }
            Phase::Waiting(mut waiting) => {
                if let Some(ahead) = &mut waiting.ahead {
                    ahead.time_is_up(&self.spec, ctx);
                    self.keep_answers(ahead);
                }
                self.leave(&waiting, ctx);
            }
            _ => {}
        }
        self.fail(ctx);
    }

    /// A token of this call is being released on the node, through this connection: what follows it
    /// there comes after the release. None for a WAIT that was not answered, on whatever
    /// connection.
    fn note_release(&mut self, node: usize, connection: Option<u64>, now: Moment) {
        let until = now.plus(self.spec.ttl.duration());
        self.released[node] = Some(match (self.released[node], connection) {
            (_, None) | (Some(Released::Wait), _) => Released::Wait,
            (Some(Released::Lease { connection: earlier, until: over }), Some(_))
                if earlier != connection && !now.has_reached(over) =>
            {
                Released::Lease { connection: None, until }
            }
            (_, Some(_)) => Released::Lease { connection, until },
        });
    }

    /// A node may refuse because of a token of this call, whose release it has not received: that
    /// is not another's lock.
    fn doubt_own_refusals(&mut self, ctx: &Context<'_>) {
        if is_broken(Mutant::HeldByItself) {
            return;
        }
        for (node, released) in self.released.iter().enumerate() {
            let may_hold = match released {
                None => false,
                Some(Released::Wait) => true,
                Some(Released::Lease { connection, until }) => {
                    let came_first =
                        connection.is_some() && *connection == ctx.topology.route(node).ok();
                    !came_first && !ctx.now.has_reached(*until)
                }
            };
            if may_hold && self.answers[node] == Answer::Refused {
                self.answers[node] = Answer::Failed(NodeError::HeldByLostRequest);
            }
        }
    }

    /// The reason is what the nodes answered last.
    fn fail(&mut self, ctx: &Context<'_>) {
        self.doubt_own_refusals(ctx);
        let reason = if self.count_refused() > ctx.fleet.majority.spare() {
            Reason::Held
        } else if self.too_late {
            Reason::InsufficientValidity
        } else {
            Reason::NoQuorum
        };
        self.finish(reason, ctx);
    }

    fn finish(&mut self, reason: Reason, ctx: &Context<'_>) {
        self.phase = Phase::Ended;
        let answers = self.answers.iter().map(|answer| match answer {
            // Free at the last look.
            Answer::Granted(_) => Answer::Granted(None),
            other => other.clone(),
        });
        let failure =
            Failure { reason, answers: answers.collect(), took: ctx.now.since(self.started) };
        self.actions.push_back(Action::Done(Box::new(Outcome::Failed(failure))));
    }
}

impl Waiting {
    fn poll_timeout(&self) -> Option<Moment> {
        let requests = [self.ping, self.inspect].into_iter().flatten().map(|(_, due)| due);
        let ahead = self.ahead.as_ref().and_then(Attempt::poll_timeout);
        requests.chain(self.late_at).chain(ahead).chain([self.look_at]).reduce(Moment::earlier)
    }
}

/// Which slot a key of this request is.
fn slot_of(spec: &Spec, key: usize) -> Option<usize> {
    let key = spec.keys.iter().nth(key)?;
    spec.any.as_ref()?.iter().position(|slot| slot == key)
}
