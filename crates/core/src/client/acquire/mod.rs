//! The machine of one call for a lock. This file decides when the call asks, waits and pauses.
//!
//! - `attempt`: one attempt on all nodes: which refusals are final, and who wins a tie.
//! - `wait`: a wait on one node, the checks of that node, and attempts that bypass it.
//! - `probe`: after the last attempt for one of several keys, a request for any of the others.
//! - `end`: how a call ends without a lock, with the last check, the releases and the reason.

mod attempt;
mod end;
mod probe;
mod wait;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use self::attempt::{Attempt, AttemptEnd, Kind, NodeGrant};
use super::late_timer::LateTimer;
use super::mutants::{self, Mutant, is_broken};
use super::{
    Answer, ClientState, Command, Context, Delivery, Mode, NodeError, Release, Request, RequestId,
    Response, Slots, Spare, Spec, Token, limits,
};
use crate::quorum::{Loss, Moment, Validity, Win};
use crate::{Fence, Ttl};

/// One call for a lock, up to the lock or the error: attempts, waits and pauses.
///
/// After [`new`](Self::new), and after each `handle_…` and [`cancel`](Self::cancel), call
/// [`poll`](Self::poll) until it returns `None`, and carry out each action before the next event.
/// Then wait for a response, a wait connection, [`poll_timeout`](Self::poll_timeout), or the call's
/// turn in the local queue. [`Action::Done`] and [`cancel`](Self::cancel) end the call. Only its
/// releases remain, each of them a separate [`Release`] machine.
#[derive(Debug)]
pub struct Acquire {
    /// The lock that requests ask for now. A call for any of several keys changes it.
    spec: Arc<Spec>,
    started: Moment,
    /// When the wait ends and the last attempt begins; `None` for a wait without end.
    until: Option<Moment>,
    /// When the call ends whatever the nodes do; `None` for a wait without end.
    deadline: Option<Moment>,
    /// The longest delay with which the driver called `handle_timeout` after the end of the wait.
    driver_delay: Duration,
    late: LateTimer,
    phase: Phase,
    /// After the last attempt, only an inspection of all nodes or a probe can lead to another one.
    is_last_attempt: bool,
    /// The next unused round number.
    round: u32,
    attempts: u32,
    /// How often the call returned to the queue of the deciding node although later nodes refused.
    waits_again: u32,
    /// The next pause lasts between half of this and all of it.
    pause: Duration,
    /// The nodes that were silent in the last attempt.
    silent: SmallVec<[usize; 5]>,
    /// The last answers, by node.
    answers: Vec<Answer>,
    /// For each node, the earlier token of this call that the node may still hold.
    pending_releases: SmallVec<[Option<PendingRelease>; 5]>,
    /// Whether the last attempt was lost because less than the minimal validity was left.
    too_late: bool,
    /// Whether other clients hold the lock or wait for it, as far as this call knows.
    contended: bool,
    /// Which key a call for any of several keys asks for; `None` for other calls.
    slots: Option<Slots>,
    actions: VecDeque<Action>,
}

#[derive(Debug, Default)]
enum Phase {
    /// The call waits for its turn in the local queue.
    Queued,
    /// An attempt is undecided.
    Attempting(Attempt),
    /// The attempt was lost. The missing answers show on which node other clients wait or, after
    /// the last attempt, whether another client holds the lock.
    AwaitingAnswers(Attempt),
    /// A pause before the INSPECTs: too few nodes refused for another client to hold the lock.
    /// `first_refusing` is the first node in the order that refused.
    Settling { until: Moment, first_refusing: usize },
    /// All nodes have been sent an INSPECT. Their time limit `limit` ends at `due`.
    Inspecting { round: u32, first_refusing: usize, due: Moment, limit: Duration },
    /// The call waits in the queue of one node, or for a connection on which to wait there.
    Waiting(Box<Waiting>),
    /// The last attempt was lost, and one node has been asked for any of the call's other keys.
    Probing(Box<Probing>),
    /// A pause until `next` begins.
    Pausing { until: Moment, next: Next },
    #[default]
    Ended,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    AskAll,
    WaitOn(usize),
}

/// A token of this call whose release a node may not have received.
#[derive(Clone, Copy, Debug)]
enum PendingRelease {
    /// The token of an unanswered WAIT. It is unknown until when the node may hold it.
    Wait,
    /// The token of an ACQUIRE. Even if no RELEASE arrives, its lease has ended at `until`.
    ///
    /// All RELEASEs so far went through `connection`, so a later request through it arrives after
    /// them. `connection` is `None` if they went through several, or if the node had none.
    Lease { connection: Option<u64>, until: Moment },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Answered,
    ConnectionLost,
}

/// A request to one node for any of a call's other keys, after the last attempt for one key.
#[derive(Debug)]
struct Probing {
    /// The last attempt, which was lost. Some answers to it may be missing.
    lost: Attempt,
    /// The lock of the one key that the lost attempt asked for.
    slot_spec: Arc<Spec>,
    id: RequestId,
    connection: u64,
    token: Token,
    sent: Moment,
    /// When the node's time to answer is over.
    due: Moment,
}

#[derive(Debug)]
struct Waiting {
    spec: Arc<Spec>,
    /// Whether this is a short wait for only some of several keys.
    is_partial: bool,
    node: usize,
    id: RequestId,
    token: Token,
    /// When the WAIT was sent; `None` while there is no connection for it.
    sent: Option<Moment>,
    /// The incarnation of the node's server when the WAIT was sent.
    incarnation: u64,
    /// `None` while the WAIT is unanswered.
    ended: Option<WaitEnd>,
    /// When the node's answer is due; `None` for a wait without end, and until the WAIT is sent.
    ends_at: Option<Moment>,
    /// When the client gives up the wait: later than `ends_at`, to leave time for a late answer.
    /// `None` for a wait without end, and once the node has granted the lock.
    leave_at: Option<Moment>,
    check_at: Moment,
    /// The unanswered PING, and when the node counts as failed.
    ping: Option<(RequestId, Moment)>,
    inspect: Option<Inspect>,
    /// In the order, the next node to inspect is this many places after the node to bypass.
    inspect_offset: usize,
    /// The first node in the order that refused the last attempt, if too few nodes refused for
    /// another client to hold the lock.
    refused_in_minority: Option<usize>,
    /// An attempt that bypasses a node, or, without a connection for the WAIT, one on all nodes.
    side_attempt: Option<Attempt>,
    /// The node's grant, if it arrived during the side attempt. The inner `Option` is the slot of
    /// the granted key; `None` unless the call is for any of several keys.
    granted: Option<(NodeGrant, Option<usize>)>,
}

/// An INSPECT that asks whether the lock is free on one node, although another node refuses it.
#[derive(Clone, Copy, Debug)]
struct Inspect {
    id: RequestId,
    due: Moment,
    /// The node to bypass if the lock is free.
    bypass: usize,
}

/// An instruction to the driver.
#[derive(Debug)]
pub enum Action {
    /// Send a request through this connection of the node. Keep the order of the actions. If the
    /// connection is closed, respond with [`NodeError::Down`].
    Send {
        /// Identifies the response.
        id: RequestId,
        /// The number of the node's connection.
        connection: u64,
        /// The request.
        request: Request,
    },
    /// Get an exclusive connection to the node, or queue for one. Then call
    /// [`Acquire::handle_wait_connection`], and send the WAIT that it returns.
    Wait {
        /// Identifies the response.
        id: RequestId,
    },
    /// Free the exclusive connection, or stop queueing for it. It carries no unanswered WAIT.
    StopWaiting {
        /// Identifies the WAIT.
        id: RequestId,
    },
    /// Drive this machine. Also pass it the response to the WAIT that it [needs](Release::wait).
    Release(Box<Release>),
    /// Report to the node's link that this connection left a request unanswered.
    Suspect {
        /// The index of the node.
        node: usize,
        /// The number of its connection.
        connection: u64,
    },
    /// The call has ended.
    Done(Box<Outcome>),
}

/// How an [`Acquire`] ended.
#[derive(Debug)]
pub enum Outcome {
    /// The lock is held. Its [`Hold`](super::Hold) also processes the responses still missing.
    Acquired(Grant),
    /// The lock is not held. Each [`Action::Release`] releases what nodes may have granted.
    Failed(Failure),
}

/// A lock that has just been acquired.
#[derive(Debug)]
pub struct Grant {
    /// The token that holds it.
    pub token: Token,
    /// Its fence.
    pub fence: Fence,
    /// How long the lock is certainly held.
    pub validity: Validity,
    /// When the lock was won.
    pub since: Moment,
    /// The round number of the ACQUIREs that won the lock.
    pub round: u32,
    /// The first round number that no request of the call has used.
    pub(super) next_round: u32,
    /// Until when to repeat the ACQUIRE on nodes that refuse it; `None` for an attached lock.
    pub(super) repeat_until: Option<Moment>,
    pub(super) nodes: Vec<GrantNode>,
}

/// The state of one node when the lock is granted.
#[derive(Clone, Debug)]
pub(super) struct GrantNode {
    pub(super) answer: Answer,
    pub(super) delivery: Delivery,
    pub(super) incarnation: u64,
}

/// The result of a call that did not acquire its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub reason: Reason,
    /// The last answer of each node, by index.
    pub answers: Vec<Answer>,
    /// How long the call took.
    pub took: Duration,
}

/// Why a lock was not acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too many nodes refused for the others to form a majority: another client holds the lock or
    /// waits for it.
    Held,
    /// Too few nodes voted, or their votes gave no client a majority.
    NoQuorum,
    /// The last attempt took so long that less than the minimal validity was left.
    InsufficientValidity,
    /// The operating system has no random numbers for a token.
    NoRandom,
}

impl Acquire {
    /// Prepares a call that waits for at most `wait`; `None` is no limit.
    /// [`begin`](Self::begin) begins the call.
    pub fn new(spec: Arc<Spec>, wait: Option<Duration>, ctx: &Context<'_>) -> Self {
        let longest = spec.longest_timeout(ctx);
        let until = wait.map(|wait| ctx.now.plus(wait));
        let limited = wait.filter(|_| !is_broken(Mutant::NoDeadline));
        let deadline = limited.map(|wait| ctx.now.plus(wait.max(longest) + limits::CALL_GRACE));
        let nodes = ctx.topology.nodes().len();
        let round_trip = ctx.client_state.round_trips.typical();
        let slots = spec.any.is_some().then(|| Slots::new(&spec));
        Self {
            spec: slots.as_ref().map_or(spec, Slots::spec),
            started: ctx.now,
            until,
            deadline,
            driver_delay: Duration::ZERO,
            late: LateTimer::default(),
            phase: Phase::Queued,
            is_last_attempt: wait.is_some_and(|wait| wait.is_zero()),
            round: 0,
            attempts: 0,
            waits_again: 0,
            pause: round_trip.clamp(limits::PAUSE_MIN, limits::PAUSE_MAX),
            silent: SmallVec::new(),
            answers: vec![Answer::Pending; nodes],
            pending_releases: SmallVec::from_elem(None, nodes),
            too_late: false,
            contended: false,
            slots,
            actions: VecDeque::with_capacity(nodes + 1),
        }
    }

    /// Chooses which of several [keys](Spec::any) the first attempt asks for, if it has not begun.
    pub fn prefer_slot(&mut self, slot: usize) {
        if let (Some(slots), Phase::Queued) = (&mut self.slots, &self.phase) {
            slots.select(slot);
            self.spec = slots.spec();
        }
    }

    /// In a call for any of several keys, chooses the key of the next attempt.
    fn pick_slot(&mut self, ctx: &mut Context<'_>) {
        if let Some(slots) = &mut self.slots {
            slots.pick(ctx.random);
            self.spec = slots.spec();
        }
    }

    /// Begins a call that attaches a detached lock: it swaps the token `old` for a new one.
    pub fn attach(spec: Arc<Spec>, old: Token, ctx: &mut Context<'_>) -> Self {
        let mut this = Self::new(spec, Some(Duration::ZERO), ctx);
        this.start(Kind::Attach { old }, ctx);
        this.proceed(ctx);
        this
    }

    /// The lock that this call's WAIT asks for.
    pub fn wait_spec(&self) -> &Arc<Spec> {
        match &self.phase {
            Phase::Waiting(waiting) => &waiting.spec,
            _ => &self.spec,
        }
    }

    /// The lock that requests, other than a WAIT, ask for now.
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// Whether other clients hold the lock or wait for it, as far as this call knows. If so, the
    /// program's next call for the lock begins with a wait.
    pub fn is_contended(&self) -> bool {
        self.contended
    }

    /// The number of attempts and waits so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Begins the call, at its turn in the local queue.
    ///
    /// `contended` says whether the program has seen other clients hold the lock or wait for it.
    pub fn begin(&mut self, contended: bool, ctx: &mut Context<'_>) {
        if !matches!(self.phase, Phase::Queued) {
            return;
        }
        if is_broken(Mutant::RefusesUnasked) && contended && self.is_last_attempt {
            return self.finish(Reason::Held, ctx);
        }
        let mut wait_node = None;
        // A reader asks first: it must hear the ticket of a writer that waits, and exceed it.
        let may_wait = self.spec.mode == Mode::Exclusive && !self.is_last_attempt;
        if contended && may_wait && !self.wait_is_over(ctx.now) {
            self.contended = true;
            let may_vote = |node: &usize| ctx.topology.route_acquire(*node).is_ok();
            wait_node = self.order(ctx).into_iter().find(may_vote);
        }
        match wait_node {
            Some(node) => self.wait_on(node, ctx),
            None => self.start(Kind::AllNodes, ctx),
        }
        self.proceed(ctx);
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), unless an event comes first.
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.late.next(self.next_due())
    }

    fn next_due(&self) -> Option<Moment> {
        let phase = match &self.phase {
            Phase::Ended => return None,
            Phase::Queued => self.until,
            Phase::Attempting(attempt) | Phase::AwaitingAnswers(attempt) => attempt.poll_timeout(),
            Phase::Settling { until, .. } | Phase::Pausing { until, .. } => Some(*until),
            Phase::Inspecting { due, .. } => Some(*due),
            Phase::Probing(probing) => {
                probing.lost.poll_timeout().into_iter().chain([probing.due]).reduce(Moment::earlier)
            }
            Phase::Waiting(waiting) => waiting.poll_timeout(),
        };
        // The choice of a node to wait on must not outlast the wait.
        let until = self
            .until
            .filter(|_| !self.is_last_attempt && matches!(self.phase, Phase::AwaitingAnswers(_)));
        phase.into_iter().chain(until).chain(self.give_up_at()).reduce(Moment::earlier)
    }

    /// The deadline, later by the delay of the driver: the call must not treat nodes as silent
    /// because the program was not scheduled in time.
    fn give_up_at(&self) -> Option<Moment> {
        self.deadline.map(|deadline| deadline.plus(self.driver_delay))
    }

    /// Handles everything that is due at the context's time.
    pub fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let due = self.next_due();
        let reads_first = self.late.postpones(due, ctx.now);
        if self.wait_is_over(ctx.now) {
            let late = due.map(|due| ctx.now.since(due)).unwrap_or_default();
            let reading = if reads_first { limits::LATE_READ_PAUSE } else { Duration::ZERO };
            self.driver_delay = self.driver_delay.max(late + reading);
        }
        if reads_first {
            return;
        }
        if self.give_up_at().is_some_and(|deadline| ctx.now.has_reached(deadline)) {
            return self.give_up(ctx);
        }
        match &mut self.phase {
            Phase::Queued => {
                if is_broken(Mutant::HeldOutOfTurn) {
                    return self.finish(Reason::Held, ctx);
                }
                if self.wait_is_over(ctx.now) {
                    // Ask the nodes: a turn that did not come does not prove that the lock is held.
                    self.start(Kind::AllNodes, ctx);
                }
            }
            Phase::Attempting(attempt) | Phase::AwaitingAnswers(attempt) => {
                attempt.handle_timeout(&self.spec, ctx, &mut self.actions);
            }
            &mut Phase::Settling { until, first_refusing } if ctx.now.has_reached(until) => {
                self.inspect_all(first_refusing, ctx);
            }
            &mut Phase::Inspecting { due, limit, .. } if ctx.now.has_reached(due) => {
                for node in 0..self.answers.len() {
                    if self.answers[node] == Answer::Pending {
                        self.answers[node] = Answer::Failed(self.spec.timed_out(node, limit, ctx));
                    }
                }
            }
            Phase::Probing(probing) => {
                // The lost attempt keeps its time limits.
                let Probing { lost, slot_spec, due, .. } = &mut **probing;
                lost.handle_timeout(slot_spec, ctx, &mut self.actions);
                if ctx.now.has_reached(*due) {
                    self.probe_ended(None, ctx);
                }
            }
            Phase::Waiting(_) => self.check_wait(ctx),
            &mut Phase::Pausing { until, next } if ctx.now.has_reached(until) => {
                self.resume(next, ctx);
            }
            // Nothing is due.
            Phase::Settling { .. }
            | Phase::Inspecting { .. }
            | Phase::Pausing { .. }
            | Phase::Ended => {}
        }
        self.proceed(ctx);
    }

    /// Returns the WAIT to send through the connection that is now available; `None` if there is no
    /// time left for it, or the call does not wait any more.
    pub fn handle_wait_connection(
        &mut self,
        id: RequestId,
        ctx: &mut Context<'_>,
    ) -> Option<Request> {
        let last_end = self.wait_until(ctx);
        let Phase::Waiting(waiting) = &mut self.phase else { return None };
        let partial_end = waiting.is_partial.then(|| ctx.now.plus(limits::WAIT_CHECK_EVERY));
        let ends_at = last_end.into_iter().chain(partial_end).reduce(Moment::earlier);
        // A short wait that lasts until the end of the call's wait counts as a complete one.
        waiting.is_partial &= ends_at != last_end;
        // A WAIT that cannot be answered in time would only delay the last attempt.
        let round_trip = ctx.client_state.round_trips.of(waiting.node);
        let answer_at = ctx.now.plus(round_trip * limits::ROUND_TRIPS_FOR_AN_ANSWER);
        let is_too_late = |ends_at: Moment| answer_at.has_reached(ends_at);
        if waiting.id != id || ends_at.is_some_and(is_too_late) {
            return None;
        }
        if let Some(slots) = &mut self.slots {
            slots.wait_was_sent = true;
        }
        waiting.sent = Some(ctx.now);
        waiting.incarnation = ctx.topology.incarnation(waiting.node);
        waiting.ends_at = ends_at;
        waiting.leave_at = ends_at.map(|ends_at| ends_at.plus(limits::WAIT_GRACE));
        waiting.check_at = ctx.now.plus(limits::WAIT_CHECK_EVERY);
        let wait = ends_at.map_or(Duration::from_millis(Ttl::MAX_MS), |ends_at| {
            // The node ends the wait a round trip early, so that its answer arrives by `ends_at`.
            ctx.now.until(ends_at).saturating_sub(round_trip)
        });
        let wait = wait.max(limits::WAIT_MIN);
        let fence = ctx.client_state.fences.propose(ctx.wall_us);
        Some(Request { token: waiting.token, command: Command::Wait { fence, wait } })
    }

    /// Processes a response.
    pub fn handle_response(&mut self, id: RequestId, response: &Response, ctx: &mut Context<'_>) {
        let response = ctx.heard(response);
        if let Response::Failed(NodeError::Abstains { .. }) = response {
            // The node does not vote, which matters even if the call has given up the attempt.
            ctx.client_state.voters.failed(id.node);
        }
        match &mut self.phase {
            Phase::Attempting(attempt) | Phase::AwaitingAnswers(attempt) if attempt.expects(id) => {
                attempt.handle_response(id, response, ctx);
            }
            Phase::Inspecting { round, .. } if *round == id.round => {
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
                        self.leave_node(error.clone(), ctx);
                    }
                } else if let Some(inspect) = waiting.inspect.take_if(|inspect| inspect.id == id) {
                    // The next INSPECT goes to another node: this one may have a lease of a lock
                    // that was not released.
                    waiting.inspect_offset += usize::from(!is_broken(Mutant::InspectsOneNode));
                    if *response == Response::No {
                        self.bypass(inspect.bypass, ctx);
                    }
                } else if let Some(side_attempt) = &mut waiting.side_attempt
                    && side_attempt.expects(id)
                {
                    side_attempt.handle_response(id, response, ctx);
                }
            }
            _ => {}
        }
        self.proceed(ctx);
    }

    /// Ends the call without a result, and releases what the nodes may have granted.
    pub fn cancel(&mut self, ctx: &mut Context<'_>) {
        match std::mem::take(&mut self.phase) {
            Phase::Attempting(attempt) => self.roll_back(&attempt, ctx),
            Phase::Waiting(waiting) => self.leave(&waiting, ctx),
            Phase::Probing(probing) => self.release_probe(&probing, ctx),
            // Everything that the nodes may have granted is being released already.
            Phase::AwaitingAnswers(_)
            | Phase::Queued
            | Phase::Settling { .. }
            | Phase::Inspecting { .. }
            | Phase::Pausing { .. }
            | Phase::Ended => {}
        }
    }

    /// Ends the attempt, or moves to the next phase, if the answers so far allow that.
    fn proceed(&mut self, ctx: &mut Context<'_>) {
        match &mut self.phase {
            Phase::Attempting(attempt) => {
                if let Some(end) = attempt.advance(&self.spec, ctx, &mut self.actions) {
                    self.attempt_ended(end, ctx);
                }
            }
            Phase::AwaitingAnswers(_) if !self.is_last_attempt => self.choose_node(ctx),
            Phase::AwaitingAnswers(attempt) => {
                let spare = ctx.client_state.majority.spare();
                let refused = attempt.count(|answer| *answer == Answer::Refused);
                if refused > spare || attempt.has_heard_all() {
                    self.after_last_attempt(ctx);
                }
            }
            Phase::Inspecting { first_refusing, .. } => {
                let free =
                    self.answers.iter().filter(|answer| matches!(answer, Answer::Granted(_)));
                if free.count() >= ctx.client_state.majority.size() {
                    let node = *first_refusing;
                    let is_free = matches!(self.answers[node], Answer::Granted(_));
                    let kind = if is_free { Kind::AllNodes } else { Kind::Bypass { node } };
                    self.start(kind, ctx);
                    self.proceed(ctx);
                } else if !self.answers.contains(&Answer::Pending) {
                    self.fail(ctx);
                }
            }
            Phase::Waiting(waiting) => {
                if let Some(side_attempt) = &mut waiting.side_attempt
                    && let Some(end) = side_attempt.advance(&self.spec, ctx, &mut self.actions)
                {
                    self.side_attempt_ended(end, ctx);
                }
            }
            Phase::Queued
            | Phase::Settling { .. }
            | Phase::Probing(_)
            | Phase::Pausing { .. }
            | Phase::Ended => {}
        }
    }

    fn start(&mut self, kind: Kind, ctx: &mut Context<'_>) {
        self.attempts += 1;
        self.is_last_attempt |= self.wait_is_over(ctx.now);
        let Some(token) = mutants::new_token(self.started, ctx) else {
            return self.finish(Reason::NoRandom, ctx);
        };
        let round = self.reserve_rounds(Attempt::ROUNDS);
        let attempt = Attempt::new(kind, &self.spec, token, round, ctx, &mut self.actions);
        self.phase = Phase::Attempting(attempt);
    }

    /// Reserves `count` round numbers. Returns the first.
    fn reserve_rounds(&mut self, count: u32) -> u32 {
        let round = self.round;
        self.round += count;
        round
    }

    fn attempt_ended(&mut self, end: AttemptEnd, ctx: &mut Context<'_>) {
        let Phase::Attempting(mut attempt) = std::mem::take(&mut self.phase) else { return };
        let loss = match end {
            AttemptEnd::Won(win) => return self.won(&mut attempt, win, ctx),
            AttemptEnd::Lost(loss) => loss,
        };
        self.roll_back(&attempt, ctx);
        self.too_late = loss == Loss::TooLate;
        if loss == Loss::Held
            && !attempt.decider_refused()
            && !is_broken(Mutant::TakenSlotAskedAgain)
            && let Some(slots) = &mut self.slots
        {
            // Other clients hold this key on other nodes, and the deciding node does not know it.
            slots.leave_out();
        }
        if !self.is_last_attempt && !self.wait_is_over(ctx.now) {
            self.keep_answers(&attempt);
            if attempt.granting_node().is_none() && self.awaits_earlier_node(&attempt, ctx) {
                self.phase = Phase::AwaitingAnswers(attempt);
                return;
            }
            return self.after_loss(&attempt, ctx);
        }
        self.is_last_attempt = true;
        if loss == Loss::Held && self.may_probe(&attempt) {
            self.probe(attempt, ctx);
        } else if loss == Loss::Held {
            // The missing answers show whether another client holds the lock.
            self.phase = Phase::AwaitingAnswers(attempt);
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
        let grant = Grant { next_round: self.round, ..attempt.grant(win, &self.spec, ctx) };
        self.actions.push_back(Action::Done(Box::new(Outcome::Acquired(grant))));
    }

    /// Whether a node before all refusing nodes in the order has not answered. Its answer shows on
    /// which node other clients wait.
    fn awaits_earlier_node(&self, attempt: &Attempt, ctx: &Context<'_>) -> bool {
        let order = self.order(ctx);
        let answers: SmallVec<[&Answer; 5]> = attempt.answers().collect();
        let is_refusing = |&node: &usize| *answers[node] == Answer::Refused;
        let Some(first_refusing) = order.iter().position(is_refusing) else { return false };
        order[..first_refusing].iter().any(|&node| *answers[node] == Answer::Pending)
    }

    fn choose_node(&mut self, ctx: &mut Context<'_>) {
        let Phase::AwaitingAnswers(attempt) = &self.phase else { return };
        if self.awaits_earlier_node(attempt, ctx) && !self.wait_is_over(ctx.now) {
            return;
        }
        if let Phase::AwaitingAnswers(attempt) = std::mem::take(&mut self.phase) {
            self.keep_answers(&attempt);
            self.after_loss(&attempt, ctx);
        }
    }

    /// Decides what follows a lost attempt that was not the last: a wait, a pause or the error.
    fn after_loss(&mut self, attempt: &Attempt, ctx: &mut Context<'_>) {
        let (waited_on, gives_way) = (attempt.granting_node(), attempt.decider_refused());
        if self.majority_is_ruled_out(ctx) {
            return self.fail(ctx);
        }
        let order = self.order(ctx);
        let any_answer = is_broken(Mutant::WaitsWhereNotRefused);
        let is_refusing = |node: &usize| any_answer || self.answers[*node] == Answer::Refused;
        let Some(first_refusing) = order.iter().copied().find(is_refusing) else {
            return self.pause_before(Next::AskAll, ctx);
        };
        let may_vote = |node: &usize| !matches!(self.answers[*node], Answer::Failed(_));
        let decider = order.iter().copied().find(may_vote);
        if let (Some(slots), Some(node)) = (&self.slots, decider)
            && !gives_way
            && slots.is_partial()
        {
            // Another key may be free on the deciding node.
            return self.wait_on(node, ctx);
        }
        if decider == Some(first_refusing) || (waited_on.is_some() && gives_way) {
            self.wait_on(first_refusing, ctx);
        } else if let Some(node) =
            waited_on.filter(|_| waited_on == decider && self.may_wait_again(ctx))
        {
            // Later nodes refuse because other clients wait there. These clients give way to this
            // call. If the call waited there too, the queue there would never become empty.
            self.waits_again += 1;
            self.pause_before(Next::WaitOn(node), ctx);
        } else {
            // The client that holds the lock has no lease on the deciding node, so its release
            // hands nothing over there.
            self.pause_before(Next::WaitOn(first_refusing), ctx);
        }
    }

    /// The order of the nodes that decides where this call waits.
    fn order(&self, ctx: &Context<'_>) -> SmallVec<[usize; 7]> {
        let ClientState { majority, voters, .. } = ctx.client_state;
        let may_vote =
            |&node: &usize| voters.includes(node) && ctx.topology.route_acquire(node).is_ok();
        let voters = (0..majority.nodes()).filter(may_vote).count();
        // What the client knows of the voters may be outdated. A reader that wrongly believes that
        // no node is spare could pass a writer that waits on the queue node.
        let spare = match self.spec.mode {
            Mode::Shared => Spare::Available,
            Mode::Exclusive => Spare::of(voters, *majority),
        };
        self.spec.order(ctx.topology, spare)
    }

    /// Whether the call may wait on its node again: fewer than a majority refused, so no other
    /// client holds the lock.
    fn may_wait_again(&self, ctx: &Context<'_>) -> bool {
        self.count_refused() < ctx.client_state.majority.size()
            && self.waits_again < limits::WAITS_AGAIN_MAX
    }

    fn majority_is_ruled_out(&self, ctx: &Context<'_>) -> bool {
        Answer::rule_out_majority(&self.answers, ctx.client_state.majority)
    }

    fn pause_before(&mut self, next: Next, ctx: &mut Context<'_>) {
        let until = ctx.now.plus(ctx.jitter(self.pause));
        self.pause = (self.pause * 2).min(limits::PAUSE_MAX);
        // The last attempt begins when the wait ends.
        let until = self.until.map_or(until, |end| end.earlier(until)).later(ctx.now);
        self.phase = Phase::Pausing { until, next };
    }

    fn resume(&mut self, next: Next, ctx: &mut Context<'_>) {
        match next {
            Next::WaitOn(node) if !self.wait_is_over(ctx.now) => self.wait_on(node, ctx),
            Next::WaitOn(_) | Next::AskAll => {
                self.pick_slot(ctx);
                self.start(Kind::AllNodes, ctx);
            }
        }
    }

    /// The first node in the order that refused, if too few nodes refused for another client to
    /// hold the lock.
    fn refused_in_minority(&self, ctx: &Context<'_>) -> Option<usize> {
        if self.count_refused() > ctx.client_state.majority.spare() {
            return None;
        }
        self.order(ctx).into_iter().find(|&node| self.answers[node] == Answer::Refused)
    }

    fn count_refused(&self) -> usize {
        self.answers.iter().filter(|answer| **answer == Answer::Refused).count()
    }

    /// Whether the call waits for its turn in the local queue: it does unless its wait is zero.
    pub fn takes_turn(&self) -> bool {
        !self.is_last_attempt
    }

    fn wait_is_over(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now.has_reached(until))
    }
}
