//! The machine of one call for a lock. This file has its interface and its phases.
//!
//! - `node`: the state of one node: what the call asked it, and what it answered.
//! - `line`: standing in line on all nodes, yielding to older calls, and releasing part of a lock.
//! - `end`: how a call ends: the lock, or the releases and the reason.

mod end;
mod line;
mod node;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use self::node::{Node, State};
use super::late_timer::LateTimer;
use super::{Action, Command, Context, Reason, Request, RequestId, Response, Spec, Token, limits};
use crate::mutants::{ClientRule, is_broken};
use crate::quorum::{Acquisition, Moment, Step, Validity};
use crate::{Fence, NodeError};

/// One call for a lock, up to the lock or the error.
///
/// A call first asks all nodes, without waiting. If no majority can grant, it stands in line on all
/// nodes with its ticket, until a majority has granted. A call that has some nodes and no majority
/// gives way to older calls.
///
/// After [`new`](Self::new), and after each `handle_…` and [`cancel`](Self::cancel), call
/// [`poll`](Self::poll) until it returns `None`, and carry out each action before the next event.
/// Then wait for a response, a wait connection, [`poll_timeout`](Self::poll_timeout), or the call's
/// turn in the local queue. [`Action::Done`] and [`cancel`](Self::cancel) end the call. Only its
/// releases remain, each of them a separate [`Release`](super::Release) machine.
#[derive(Debug)]
pub struct Acquire {
    /// The lock of the call. If it is one of several keys, all of them, the preferred one first,
    /// until the lock is acquired.
    spec: Arc<Spec>,
    /// In a call for one of several keys, the position of the key that the call tries to complete.
    kept: Option<usize>,
    /// The token of the process that detached the lock, in a call that attaches it.
    attaches: Option<Token>,
    started: Moment,
    /// When the wait ends; `None` for a wait without end.
    until: Option<Moment>,
    /// When the call ends whatever the nodes do; `None` for a wait without end.
    deadline: Option<Moment>,
    /// The longest delay with which the driver called `handle_timeout` after the end of the wait.
    driver_delay: Duration,
    late: LateTimer,
    phase: Phase,
    /// When the phase ends; `None` for a wait without end.
    phase_ends: Option<Moment>,
    token: Option<Token>,
    /// The proposed fence, which also orders the call in every queue.
    ticket: Fence,
    /// Whether the ticket stays as it is: the call has been in line, or no majority accepts more.
    is_ticket_final: bool,
    /// The number of the last request.
    last_round: u32,
    /// Whether the call has a place among the calls of its program that stand in line.
    has_place: bool,
    /// How many of several keys the call has passed over, because nodes granted different ones.
    slots_passed: usize,
    /// How often the call has asked all nodes, and when it last did.
    attempts: u32,
    asked_at: Moment,
    /// The next pause before all nodes are asked again lasts between half of this and all of it.
    pause: Duration,
    nodes: Vec<Node>,
    /// The agreement on a fence, once a majority has granted.
    agreement: Option<Agreement>,
    /// Since when the call has some nodes and no majority.
    partial: Option<Partial>,
    actions: VecDeque<Action>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The call waits for its turn in the local queue.
    Queued,
    /// All nodes have been asked. At the end of the phase, the answers of a majority suffice.
    Asking,
    /// The call stands in line, up to the end of its wait, or of a tie.
    InLine,
    /// The call has nothing on any node until it asks all of them again.
    Pausing,
    Ended,
}

#[derive(Debug)]
struct Agreement {
    core: Acquisition,
    /// What the nodes must leave for their grants to count.
    validity: Validity,
    due: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Partial {
    since: Moment,
    yield_at: Moment,
}

impl Acquire {
    /// Prepares a call that waits for at most `wait`; `None` is no limit.
    /// [`begin`](Self::begin) begins the call.
    pub fn new(spec: Arc<Spec>, wait: Option<Duration>, ctx: &Context<'_>) -> Self {
        let longest = spec.longest_timeout(ctx);
        let limited = wait.filter(|_| !is_broken(ClientRule::NoDeadline));
        let deadline = limited.map(|wait| ctx.now.plus(wait.max(longest) + limits::WAIT_GRACE));
        let until = wait.map(|wait| ctx.now.plus(wait));
        let nodes = ctx.topology.nodes.len();
        let round_trip = ctx.client_state.round_trips.typical();
        Self {
            spec,
            kept: None,
            attaches: None,
            started: ctx.now,
            until,
            deadline,
            driver_delay: Duration::ZERO,
            late: LateTimer::default(),
            phase: Phase::Queued,
            phase_ends: until,
            token: None,
            ticket: Fence::ZERO,
            is_ticket_final: false,
            last_round: 0,
            has_place: false,
            slots_passed: 0,
            attempts: 0,
            asked_at: ctx.now,
            pause: round_trip.clamp(limits::PAUSE_MIN, limits::PAUSE_MAX),
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            agreement: None,
            partial: None,
            actions: VecDeque::with_capacity(nodes + 1),
        }
    }

    /// Begins a call that attaches a detached lock: it swaps the token `old` for a new one.
    pub fn attach(spec: Arc<Spec>, old: Token, ctx: &mut Context<'_>) -> Self {
        let mut this = Self::new(spec, Some(Duration::ZERO), ctx);
        this.attaches = Some(old);
        this.begin(ctx);
        this
    }

    /// The lock. For a lock of one of several keys, its key is known once it is acquired.
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// How often the call has asked all nodes.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether the call waits for its turn in the local queue: it does unless its wait is zero.
    pub fn takes_turn(&self) -> bool {
        self.until != Some(self.started)
    }

    /// Whether the call waits for its turn now.
    pub fn is_queued(&self) -> bool {
        self.phase == Phase::Queued
    }

    /// Begins the call, at its turn in the local queue.
    pub fn begin(&mut self, ctx: &mut Context<'_>) {
        if self.phase == Phase::Queued {
            if let Some(all) = &self.spec.any {
                // Calls that begin with different keys disturb each other less.
                self.spec = self.spec.with_keys(all.starting_at(ctx.random_index(all.len())));
            }
            self.ticket = ctx.client_state.fences.propose(ctx.wall_us);
            self.ask_all(ctx);
        }
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
        let phase = match (self.phase, &self.agreement) {
            (Phase::Ended, _) => return None,
            (_, Some(agreement)) => Some(agreement.due),
            (Phase::Asking, None) if !self.may_stand() => None,
            (Phase::InLine, None) => {
                let yield_at = self.partial.map(|partial| partial.yield_at);
                yield_at.into_iter().chain(self.phase_ends).reduce(Moment::earlier)
            }
            _ => self.phase_ends,
        };
        let nodes = self.nodes.iter().filter_map(Node::next_due);
        nodes.chain(phase).chain(self.give_up_at()).reduce(Moment::earlier)
    }

    /// The deadline, later by the delay of the driver: the call must not treat nodes as silent
    /// because the program was not scheduled in time.
    fn give_up_at(&self) -> Option<Moment> {
        self.deadline.map(|deadline| deadline.plus(self.driver_delay))
    }

    fn wait_is_over(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now.has_reached(until))
    }

    /// Handles everything that is due at the context's time.
    pub fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        let due = self.next_due();
        let reads_first = self.late.postpones(due, ctx.now);
        if self.wait_is_over(ctx.now) {
            let late = due.map(|due| ctx.now.since(due)).unwrap_or_default();
            let reading = if reads_first { limits::LATE_TIMER } else { Duration::ZERO };
            self.driver_delay = self.driver_delay.max(late + reading);
        }
        if reads_first {
            return;
        }
        for node in 0..self.nodes.len() {
            self.expire(node, ctx);
        }
        let now = ctx.now;
        let is_over = |at: Option<Moment>| at.is_some_and(|at| now.has_reached(at));
        let phase_is_over = is_over(self.phase_ends);
        if let Some(agreement) = self.agreement.as_mut().filter(|it| now.has_reached(it.due)) {
            agreement.core.expire(now);
        }
        match self.phase {
            Phase::Ended => return,
            Phase::Queued if phase_is_over && is_broken(ClientRule::HeldOutOfTurn) => {
                return self.finish(Reason::Held, ctx);
            }
            Phase::Queued if phase_is_over => {
                // Ask the nodes: a turn that did not come does not prove that the lock is held.
                return self.begin(ctx);
            }
            Phase::Pausing if phase_is_over => return self.ask_all(ctx),
            Phase::InLine if phase_is_over && self.agreement.is_none() => return self.fail(ctx),
            _ => {}
        }
        self.proceed(ctx);
        if self.phase != Phase::Ended && is_over(self.give_up_at()) {
            self.fail(ctx);
        }
    }

    /// Processes a response.
    pub fn handle_response(&mut self, id: RequestId, response: &Response, ctx: &mut Context<'_>) {
        if self.phase == Phase::Ended || !self.nodes[id.node].awaits(id.round, response) {
            return;
        }
        if let Response::Held { number, .. } = response {
            ctx.client_state.fences.learn_refusal(*number, ctx.wall_us);
        }
        self.answered(id.node, response, ctx);
        self.proceed(ctx);
    }

    /// Ends the call without a result. What nodes may have granted is released.
    pub fn cancel(&mut self, ctx: &mut Context<'_>) {
        self.end(ctx);
        self.release_all(ctx);
    }

    fn end(&mut self, ctx: &Context<'_>) {
        self.phase = Phase::Ended;
        if std::mem::take(&mut self.has_place) {
            ctx.client_state.places.give_back();
        }
    }

    fn ask_all(&mut self, ctx: &mut Context<'_>) {
        let Some(token) = ctx.new_token(self.started) else {
            return self.finish(Reason::NoRandom, ctx);
        };
        self.token = Some(token);
        self.attempts += 1;
        self.asked_at = ctx.now;
        let round_trip = ctx.client_state.round_trips.typical();
        self.phase = Phase::Asking;
        self.phase_ends = Some(ctx.now.plus(limits::patience(round_trip)));
        for node in 0..self.nodes.len() {
            self.ask(node, ctx);
        }
        self.proceed(ctx);
    }

    /// Decides what the answers so far allow.
    fn proceed(&mut self, ctx: &mut Context<'_>) {
        self.agree(ctx);
        match self.phase {
            _ if self.agreement.is_some() => {}
            Phase::Asking | Phase::InLine if self.is_ticket_rejected(ctx) => {
                ctx.client_state.fences.forget(self.ticket);
                self.ticket = Fence::of_wall_us(ctx.wall_us);
                // A node with a wrong clock may tell the same number again.
                self.is_ticket_final = true;
                self.release_all(ctx);
                self.ask_all(ctx);
            }
            Phase::Asking => self.proceed_asking(ctx),
            Phase::InLine => self.proceed_in_line(ctx),
            Phase::Queued | Phase::Pausing | Phase::Ended => {}
        }
    }

    /// Whether no majority accepts the ticket now. A ticket that is not ahead of this clock cannot
    /// be lowered.
    fn is_ticket_rejected(&self, ctx: &Context<'_>) -> bool {
        let rejects = |node: &Node| {
            node.state == State::Idle
                && node.ticket == self.ticket
                && node.error.as_ref().is_some_and(NodeError::rejects_ticket)
        };
        self.ticket > Fence::of_wall_us(ctx.wall_us)
            && self.count(rejects) > ctx.client_state.majority.spare()
            && !is_broken(ClientRule::RejectedTicketKept)
    }

    fn proceed_asking(&mut self, ctx: &mut Context<'_>) {
        let majority = ctx.client_state.majority;
        let pending = self.count(|node| node.state == State::Asked);
        let granted = self.most_granted().map_or(0, |(_, granted)| granted);
        if granted >= majority.size() {
            // The nodes have granted, but too little is left of the validity.
            return self.start_over(self.pause, ctx);
        }
        if granted + pending >= majority.size() {
            // A majority may still grant. A silent node must not delay the others in a tie.
            let is_patient = self.phase_ends.is_some_and(|end| !ctx.now.has_reached(end));
            if is_patient || !self.may_stand() {
                return;
            }
            if !self.take_place(ctx) {
                // The call cannot stand in line, so it needs the answers of slow nodes.
                self.phase_ends = None;
                return;
            }
        }
        let (voted, older) = (self.voted(), self.older());
        if older > majority.spare() && !self.may_wait(ctx.now) {
            self.fail(ctx);
        } else if voted >= majority.size() && self.attaches.is_none() {
            if !self.ask_for_next_slot(ctx) {
                self.stand_in_line(ctx);
            }
        } else if pending == 0 {
            self.start_over_later(ctx);
        }
    }

    /// In a call for one of several keys, asks all nodes again if a majority granted different
    /// keys. Returns whether it does.
    ///
    /// Each node grants the first key that is free there, so the last of the granted keys is the
    /// first one that may be free on all of them.
    fn ask_for_next_slot(&mut self, ctx: &mut Context<'_>) -> bool {
        let granted = self.nodes.iter().filter_map(|node| node.lease.as_ref()?.slot);
        let has_majority = granted.clone().count() >= ctx.client_state.majority.size();
        let last = granted.max().unwrap_or_default();
        if !has_majority || last == 0 || self.slots_passed + last >= self.spec.keys.len() {
            return false;
        }
        self.slots_passed += last;
        let spec = self.spec.with_keys(self.spec.keys.starting_at(last));
        self.release_all(ctx);
        self.spec = spec;
        self.ask_all(ctx);
        true
    }

    /// Whether a majority has answered, and a node has refused.
    fn may_stand(&self) -> bool {
        let has_refusal = self.nodes.iter().any(|node| node.refused.is_some());
        self.voted() > self.nodes.len() / 2 && has_refusal && self.attaches.is_none()
    }

    /// How many nodes granted or refused when they were last heard.
    fn voted(&self) -> usize {
        self.count(|node| node.lease.is_some() || node.refused.is_some())
    }

    /// How many nodes an older call has, as far as this call knows.
    fn older(&self) -> usize {
        self.count(|node| node.refused == Some(true))
    }

    /// Takes a place among the calls of this program that stand in line, if one is free.
    fn take_place(&mut self, ctx: &Context<'_>) -> bool {
        self.has_place = self.has_place || ctx.client_state.places.take();
        self.has_place
    }

    fn may_wait(&self, now: Moment) -> bool {
        self.takes_turn() && !self.wait_is_over(now)
    }

    fn count(&self, matches: impl Fn(&Node) -> bool) -> usize {
        self.nodes.iter().filter(|node| matches(node)).count()
    }

    /// Begins the agreement on a fence once a majority has granted, and ends it.
    fn agree(&mut self, ctx: &mut Context<'_>) {
        let (majority, now) = (ctx.client_state.majority, ctx.now);
        if self.agreement.is_none()
            && let Some((slot, _)) = self.most_granted()
            && let Some(&(_, validity)) = self.counting(slot, now).get(majority.size() - 1)
        {
            let limit = self.spec.longest_timeout(ctx);
            // A lock with less than one time limit left may end during its first extension.
            let bounded = limits::bounded_node_timeout(limit, self.spec.ttl);
            let least = self.spec.min_validity.max(bounded);
            if validity.remaining(now) >= Some(least) {
                let core = Acquisition::lasting(majority, Some(validity), least);
                self.agreement = Some(Agreement { core, validity, due: now.plus(limit) });
                self.kept = slot;
            }
        }
        let counting = self.counting(self.kept, now);
        let Some(agreement) = &mut self.agreement else { return };
        let lasts = agreement.validity.remaining(now);
        for (node, _) in counting.iter().filter(|(_, validity)| validity.remaining(now) >= lasts) {
            if let Some(lease) = &self.nodes[*node].lease {
                agreement.core.vote(*node, Some(lease.fence), now);
            }
        }
        while let Some(step) = self.agreement.as_mut().and_then(|agreement| agreement.core.poll()) {
            match step {
                Step::StoreFence { node, fence } => {
                    let Some(token) = self.token else { return };
                    let request =
                        Request { token, command: Command::Extend { fence: Some(fence) } };
                    self.send(node, State::Storing, (request, self.spec_of(self.kept)), ctx);
                }
                Step::Won(win) => return self.win(win, ctx),
                Step::Lost(_) => return self.start_over(self.pause, ctx),
            }
        }
    }

    /// The slot that most nodes granted, whether or not the grants still count, and their number.
    fn most_granted(&self) -> Option<(Option<usize>, usize)> {
        let granted = self.nodes.iter().filter(|node| node.state == State::Granted);
        let slots = granted.filter_map(|node| Some(node.lease.as_ref()?.slot));
        let count = |slot| slots.clone().filter(|other| *other == slot).count();
        // Of several, that of the smallest key.
        let key = |slot: Option<usize>| self.spec.keys.iter().nth(slot?);
        let counted = slots.clone().map(|slot| (slot, count(slot)));
        counted.max_by_key(|&(slot, count)| (count, Reverse(key(slot))))
    }

    /// The nodes whose grants of this slot count, and how long these last, the longest first.
    fn counting(&self, slot: Option<usize>, now: Moment) -> Vec<(usize, Validity)> {
        let validity = |(index, node): (usize, &Node)| {
            let lease = node.lease.as_ref().filter(|lease| lease.slot == slot && node.counts())?;
            Some((index, lease.validity?))
        };
        let mut counting: Vec<_> = self.nodes.iter().enumerate().filter_map(validity).collect();
        counting.sort_by_key(|(_, validity)| Reverse(validity.remaining(now)));
        counting
    }
}
