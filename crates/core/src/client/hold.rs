use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::Spec;
use super::acquire::Grant;
use super::late_timer::LateTimer;
use super::mutants::{Mutant, is_broken};
use super::{
    Answer, Command, Context, Delivery, Mode, NodeError, OutgoingRequest, Release, Request,
    RequestId, Response, Spare, Token, Topology, limits,
};
use crate::Fence;
use crate::quorum::{
    Extension, ExtensionVerdict, LossReason, Majority, Moment, Ownership, OwnershipState,
};

/// A held lock, from the grant to the end: ownership, extension, repair, release.
///
/// [`extend`](Self::extend) begins a round, and [`poll`](Self::poll) returns its requests. A driver
/// may send the requests of several locks in one pipeline per node. The machine also processes late
/// responses to the grant's ACQUIREs: the requests that won the lock. After
/// [`release`](Self::release) or [`detach`](Self::detach) it only undoes repairs that were in
/// flight.
#[derive(Debug)]
pub struct Hold {
    spec: Arc<Spec>,
    token: Token,
    fence: Fence,
    since: Moment,
    state: OwnershipState,
    /// Whether the holder released or detached the lock.
    over: bool,
    nodes: Vec<Node>,
    /// The round number of the grant's ACQUIREs.
    acquire_round: u32,
    /// The next unused round number.
    next_round: u32,
    /// The number of consecutive rounds that began while a node missed the lock.
    repair_rounds: u32,
    /// Until when to repeat the grant's ACQUIRE on nodes that refuse it; `None` for a lock that
    /// another process acquired.
    repeat_until: Option<Moment>,
    /// Whether the driver extends the lock until it is released.
    is_renewed: bool,
    round: Option<Round>,
    late: LateTimer,
    actions: VecDeque<HoldAction>,
}

#[derive(Clone, Debug)]
struct Node {
    /// The node's last answer.
    answer: Answer,
    /// The incarnation of the server that gave this answer.
    incarnation: u64,
    /// How far the last ACQUIRE got. It was sent at `acquire_sent_at` or earlier.
    delivery: Delivery,
    acquire_sent_at: Moment,
    /// Whether the node has answered an extension or a repair, or could not be sent an extension.
    answered_since: bool,
    /// The round number of an unanswered repair.
    repair: Option<u32>,
    /// When to repeat the grant's ACQUIRE, which the node has refused each time so far.
    repeat_at: Option<Moment>,
    /// How often the node has refused that ACQUIRE, plus the repeats that were postponed. Refusals
    /// before the grant count as one.
    refusals: u8,
    /// Whether the node has ever answered that an operator revoked the lock.
    has_revoked: bool,
}

/// A round of extensions.
#[derive(Debug)]
struct Round {
    /// The round number of the EXTENDs. The repairs of the round use the next one.
    number: u32,
    core: Extension,
    /// The connection of each unanswered request, by node.
    pending: SmallVec<[Option<u64>; 5]>,
    /// When unanswered nodes count as silent, and after how long; `None` once they do.
    due: Option<(Moment, Duration)>,
    /// Until when to wait for late answers and repairs.
    ends_at: Moment,
    decided: bool,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Extend,
    /// Repairs nodes that the previous round found to miss the lock. No caller awaits the verdict.
    Repair,
}

/// An instruction to the driver of a held lock.
#[derive(Debug)]
pub enum HoldAction {
    /// Send a request.
    Send(OutgoingRequest),
    /// A round was decided. [`Hold::renew_in`] says when the next is due.
    Decided {
        /// The number of the round. Its verdict also answers the calls that wait for an earlier
        /// round, which this round replaced.
        round: u32,
        /// What the nodes answered.
        verdict: ExtensionVerdict,
    },
    /// A repair has ended. The value says whether the node has the lock again.
    Repaired(bool),
    /// A node misses the lock. [`Hold::renew_in`] says when the next round is due.
    Incomplete,
    /// The queue node refused a request, so another client may wait for the lock there.
    Contended,
    /// Drive this machine.
    Release(Box<Release>),
    /// Report to the node's link that this connection left a request unanswered.
    Suspect {
        /// The index of the node.
        node: usize,
        /// The number of its connection.
        connection: u64,
    },
}

impl Node {
    /// Whether the node refused, was never sent an ACQUIRE, or answered the grant's ACQUIRE with an
    /// abstention. An abstention in answer to an extension proves nothing: it comes from a replica,
    /// which may have the key.
    fn is_known_to_miss(&self) -> bool {
        match self.answer {
            Answer::Refused => true,
            Answer::Granted(_) => false,
            _ if self.delivery == Delivery::NotSent => true,
            Answer::Failed(NodeError::Abstains { .. }) => !self.answered_since,
            _ => false,
        }
    }
}

impl Hold {
    /// Starts with a lock that has just been granted.
    pub fn new(spec: Arc<Spec>, grant: Grant) -> Self {
        let max_hold = spec.max_hold.unwrap_or(Duration::MAX);
        let nodes = grant.nodes.into_iter().map(|node| Node {
            answer: node.answer,
            incarnation: node.incarnation,
            delivery: node.delivery,
            acquire_sent_at: grant.since,
            answered_since: false,
            repair: None,
            repeat_at: None,
            refusals: 0,
            has_revoked: false,
        });
        let mut this = Self {
            spec,
            token: grant.token,
            fence: grant.fence,
            since: grant.since,
            state: OwnershipState::new(grant.validity, grant.since, max_hold),
            over: false,
            nodes: nodes.collect(),
            acquire_round: grant.round,
            next_round: grant.next_round,
            repair_rounds: 0,
            repeat_until: grant.repeat_until,
            is_renewed: false,
            round: None,
            late: LateTimer::default(),
            actions: VecDeque::new(),
        };
        for index in 0..this.nodes.len() {
            let node = &mut this.nodes[index];
            if node.answer == Answer::Refused && node.delivery == Delivery::Arrived {
                node.refusals = 1;
                this.schedule_repeat(index, grant.since);
            }
        }
        this
    }

    /// The description of the lock. [`downgrade`](Self::downgrade) changes its mode.
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// The token that holds the lock.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The fence of the lock.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The time since the grant.
    pub fn held_for(&self, now: Moment) -> Duration {
        now.since(self.since)
    }

    /// Whether the holder released or detached the lock.
    pub fn was_given_up(&self) -> bool {
        self.over
    }

    /// Whether the lock is held, and for how long. A released lock counts as lost.
    pub fn ownership(&self, now: Moment) -> Ownership {
        if self.over { Ownership::Lost(LossReason::NotHeld) } else { self.state.ownership(now) }
    }

    /// Whether an extension can move the deadline of the lock.
    pub fn is_extensible(&self, now: Moment) -> bool {
        !self.over && !self.is_revoked() && self.state.is_extensible(now)
    }

    /// Whether an operator revoked the lock on enough nodes to rule out a majority that extends it.
    /// The holder keeps it until its deadline.
    pub fn is_revoked(&self) -> bool {
        Majority::of(self.nodes.len()).is_some_and(|majority| self.revocations() > majority.spare())
    }

    /// The number of nodes that have ever answered that the lock is revoked. It never falls.
    fn revocations(&self) -> usize {
        self.nodes.iter().filter(|node| node.has_revoked).count()
    }

    /// Whether nodes that miss the lock may be repaired. On a revoked lock, even one that only a
    /// minority revoked, a repair would undo the revocation.
    fn may_repair(&self) -> bool {
        self.revocations() == 0 || is_broken(Mutant::RevokedRepaired)
    }

    /// The time until the next extension of a renewed lock; `None` if no extension follows.
    ///
    /// A renewed lock is extended a third of the ttl after the last extension, and sooner after one
    /// that no majority confirmed. That includes a revoked lock, which the operator may also end
    /// before its deadline. The time is also short while a node says that it misses the lock: until
    /// that node is repaired, the failure of one other node may lose the lock.
    pub fn renew_in(&self, now: Moment) -> Option<Duration> {
        if self.over {
            return None;
        }
        let regular = self.state.next_extension_in(now, self.spec.ttl)?;
        let is_missing = |node: &Node| node.answer == Answer::Refused && node.repair.is_none();
        if !self.may_repair() || !self.nodes.iter().any(is_missing) {
            return Some(regular);
        }
        let doublings = 2_u32.saturating_pow(self.repair_rounds);
        Some(regular.min(limits::REPAIR_AFTER.saturating_mul(doublings)))
    }

    /// The last answer of each node, by index.
    pub fn answers(&self) -> impl ExactSizeIterator<Item = &Answer> {
        self.nodes.iter().map(|node| &node.answer)
    }

    /// The number of nodes that last answered that they hold the lock, and did not restart since.
    pub fn coverage(&self, topology: &Topology) -> usize {
        self.holding(topology).count()
    }

    fn holding(&self, topology: &Topology) -> impl Iterator<Item = usize> {
        let holds = |(index, node): &(usize, &Node)| {
            matches!(node.answer, Answer::Granted(_))
                && node.incarnation == topology.incarnation(*index)
        };
        self.nodes.iter().enumerate().filter(holds).map(|(index, _)| index)
    }

    /// Whether other clients may share the lock. A shared lock stays shared.
    pub fn mode(&self) -> Mode {
        self.spec.mode
    }

    /// Makes an exclusive lock shared, and extends it.
    ///
    /// The lock counts as shared at once, whatever the nodes answer: a node may have downgraded the
    /// lock although its answer was lost. Every later request repeats the mode.
    ///
    /// Returns the number of the round that answers this call; `None` if the lock has ended.
    pub fn downgrade(&mut self, ctx: &Context<'_>) -> Option<u32> {
        self.set_mode(Mode::Shared);
        // An undecided round asks for an exclusive lock, so another round begins.
        self.begin_round(Purpose::Extend, ctx)
    }

    fn set_mode(&mut self, mode: Mode) {
        self.spec = Arc::new(Spec { mode, ..(*self.spec).clone() });
    }

    /// Begins a round of extensions, unless that of an earlier call is undecided.
    ///
    /// Returns the number of the round that answers this call; `None` if the lock has ended.
    pub fn extend(&mut self, ctx: &Context<'_>) -> Option<u32> {
        let is_undecided = |round: &&Round| !round.decided && round.purpose == Purpose::Extend;
        if let Some(round) = self.round.as_ref().filter(is_undecided) {
            return Some(round.number);
        }
        let is_incomplete = self.nodes.iter().any(|node| node.answer == Answer::Refused);
        self.repair_rounds = if is_incomplete { self.repair_rounds + 1 } else { 0 };
        self.begin_round(Purpose::Extend, ctx)
    }

    fn has_ended(&self, now: Moment) -> bool {
        matches!(self.ownership(now), Ownership::Lost(_))
    }

    /// Returns the number of the round; `None` if the lock has ended.
    fn begin_round(&mut self, purpose: Purpose, ctx: &Context<'_>) -> Option<u32> {
        if self.has_ended(ctx.now) {
            return None;
        }
        let number = self.next_round;
        self.next_round += 2;
        let is_missing = |node: &usize| self.nodes[*node].is_known_to_miss();
        let missing: SmallVec<[usize; 5]> = (0..self.nodes.len()).filter(is_missing).collect();
        let core = Extension::new(ctx.client_state.majority, ctx.now, self.spec.ttl)
            .known_to_hold(self.holding(ctx.topology))
            .known_to_miss(missing);
        let limit = self.spec.longest_timeout(ctx);
        self.round = Some(Round {
            number,
            core,
            pending: SmallVec::from_elem(None, self.nodes.len()),
            due: Some((ctx.now.plus(limit), limit)),
            // After the ttl, a late majority would leave no validity.
            ends_at: ctx.now.plus(self.spec.ttl.duration()),
            decided: false,
            purpose,
        });
        let request = Request { token: self.token, command: Command::Extend { fence: None } };
        for node in 0..self.nodes.len() {
            let was_asked = self.nodes[node].delivery != Delivery::NotSent;
            match ctx.topology.route_held(node, was_asked) {
                Ok(connection) => {
                    if let Some(round) = &mut self.round {
                        round.pending[node] = Some(connection);
                    }
                    let id = RequestId { round: number, node };
                    let send = OutgoingRequest { id, connection, request };
                    self.actions.push_back(HoldAction::Send(send));
                }
                Err(error) => {
                    self.record_answer(node, Answer::Failed(error), ctx);
                    self.answer_round(node, None, ctx);
                }
            }
        }
        Some(number)
    }

    /// Until when to wait for the answers to the last round and to its repairs: a ttl after the
    /// round began.
    pub fn round_ends_at(&self) -> Option<Moment> {
        self.round.as_ref().map(|round| round.ends_at)
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<HoldAction> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` if no answer to the last round
    /// is due any more.
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.late.next(self.next_due())
    }

    fn next_due(&self) -> Option<Moment> {
        self.round.as_ref().and_then(|round| round.due).map(|(at, _)| at)
    }

    /// Fails the nodes that have not answered the round in time.
    pub fn handle_timeout(&mut self, ctx: &Context<'_>) {
        if self.late.postpones(self.next_due(), ctx.now) {
            return;
        }
        let Some(round) = &mut self.round else { return };
        let Some((_, limit)) = round.due.filter(|(at, _)| ctx.now.has_reached(*at)) else { return };
        round.due = None;
        let pending = round.pending.clone();
        for (node, connection) in pending.into_iter().enumerate() {
            if let Some(connection) = connection {
                self.nodes[node].answer = Answer::Failed(self.spec.timed_out(node, limit, ctx));
                ctx.client_state.round_trips.timed_out(node);
                self.actions.push_back(HoldAction::Suspect { node, connection });
            }
        }
        if let Some(verdict) = self.round.as_mut().and_then(|round| round.core.expire()) {
            self.decide(verdict, ctx);
        }
    }

    /// Processes a response to the grant's ACQUIRE, to an extension, or to a repair.
    pub fn handle_response(&mut self, id: RequestId, response: &Response, ctx: &Context<'_>) {
        let response = ctx.heard(response);
        let node = id.node;
        if matches!(response, Response::Failed(NodeError::Revoked { .. })) {
            // Late answers count, too.
            self.nodes[node].has_revoked = true;
        }
        if id.round == self.acquire_round {
            self.handle_straggler(node, response, ctx);
        } else if self.nodes[node].repair == Some(id.round) {
            self.handle_repaired(node, response, ctx);
        } else if let Some(round) = &mut self.round
            && round.number == id.round
        {
            let connection = round.pending[node].take();
            let arrived = match self.nodes[node].delivery {
                // Requests through one connection arrive in order, so the ACQUIRE has arrived, too.
                Delivery::InFlight { connection: acquired } => Some(acquired) == connection,
                Delivery::NotSent | Delivery::Arrived => false,
            };
            if arrived && !matches!(response, Response::Failed(_)) {
                self.nodes[node].delivery = Delivery::Arrived;
            }
            self.record_answer(node, response.to_answer(), ctx);
            self.answer_round(node, response.holds(), ctx);
            let found_missing =
                self.round.as_ref().is_some_and(|round| round.core.has_found_missing());
            if found_missing && self.may_repair() && self.is_extensible(ctx.now) {
                self.begin_round(Purpose::Repair, ctx);
            } else if *response == Response::No && self.nodes[node].repair.is_none() {
                self.actions.push_back(HoldAction::Incomplete);
            }
        }
    }

    /// Processes an answer to the grant's ACQUIRE that arrived after the grant.
    fn handle_straggler(&mut self, index: usize, response: &Response, ctx: &Context<'_>) {
        match response {
            Response::Failed(_) => ctx.client_state.voters.failed(index),
            _ => ctx.client_state.voters.voted(index),
        }
        let node = &mut self.nodes[index];
        if !matches!(response, Response::Failed(_)) && node.delivery != Delivery::NotSent {
            node.delivery = Delivery::Arrived;
        }
        if *response == Response::No {
            if self.is_queue_node(index, ctx) {
                self.actions.push_back(HoldAction::Contended);
            }
            let node = &mut self.nodes[index];
            node.refusals = node.refusals.saturating_add(1);
            if node.refusals == 1 && self.repeat_acquire(index, ctx) {
                return;
            }
            self.schedule_repeat(index, ctx.now);
        }
        let node = &mut self.nodes[index];
        let is_granted = matches!(response, Response::Fence(_)) && node.answer == Answer::Refused;
        if is_granted || !node.answered_since {
            let last = std::mem::replace(&mut node.answer, response.to_answer());
            if *response == Response::No && last != Answer::Refused {
                self.actions.push_back(HoldAction::Incomplete);
            }
        }
    }

    /// Schedules another ACQUIRE for a node that has refused each one so far, if there is time.
    fn schedule_repeat(&mut self, index: usize, now: Moment) {
        let node = &mut self.nodes[index];
        let at = now.plus(limits::repeat_pause(node.refusals));
        let is_in_time = |until: Moment| !at.has_reached(until);
        node.repeat_at = Some(at).filter(|_| self.repeat_until.is_some_and(is_in_time));
    }

    /// Begins the renewal of the lock. Without it, a refused ACQUIRE is repeated at most once.
    pub fn renew(&mut self) {
        self.is_renewed = true;
    }

    /// When to call [`repeat_refused`](Self::repeat_refused); `None` if there is no ACQUIRE to
    /// repeat, or if the lock is not [renewed](Self::renew).
    pub fn repeat_at(&self) -> Option<Moment> {
        if !self.is_renewed {
            return None;
        }
        self.nodes.iter().filter_map(|node| node.repeat_at).reduce(Moment::earlier)
    }

    /// Repeats the grant's ACQUIRE on the nodes that refused it and whose pause is over.
    pub fn repeat_refused(&mut self, ctx: &Context<'_>) {
        if !self.is_renewed {
            return;
        }
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if node.repeat_at.take_if(|at| ctx.now.has_reached(*at)).is_none() {
                continue;
            }
            if node.repair.is_some() || ctx.topology.route_acquire(index).is_err() {
                // The answer to the repair, or a new connection, comes first.
                node.refusals = node.refusals.saturating_add(1);
                self.schedule_repeat(index, ctx.now);
            } else {
                self.repeat_acquire(index, ctx);
            }
        }
    }

    /// Repeats the grant's ACQUIRE on a node that has refused each one so far. Returns whether the
    /// request was sent.
    ///
    /// The last holder's release may be in flight to the node, or the node may have granted a
    /// waiter that will give way. Until the node has the lock, the failure of one other node may
    /// lose the lock, and without a majority there is no repair. The repeat is safe: to the node,
    /// the request looks like an ACQUIRE that arrives late.
    fn repeat_acquire(&mut self, index: usize, ctx: &Context<'_>) -> bool {
        let is_in_time = self.repeat_until.is_some_and(|until| !ctx.now.has_reached(until));
        let has_lock = matches!(self.nodes[index].answer, Answer::Granted(_));
        let may_repeat = is_in_time && !has_lock && self.revocations() == 0;
        may_repeat
            && !self.has_ended(ctx.now)
            && !is_broken(Mutant::LateRefusalIsFinal)
            && self.send_acquire(index, self.acquire_round, ctx)
    }

    /// Sends ACQUIRE with the lock's token and fence. Returns whether the request was sent.
    fn send_acquire(&mut self, index: usize, round: u32, ctx: &Context<'_>) -> bool {
        let Ok(connection) = ctx.topology.route_acquire(index) else { return false };
        let node = &mut self.nodes[index];
        node.delivery = Delivery::InFlight { connection };
        node.incarnation = ctx.topology.incarnation(index);
        node.acquire_sent_at = ctx.now;
        // Clients that wait there, with older tickets too, do not keep the holder from its lock.
        let command = Command::Acquire { fence: Fence::ZERO };
        let request = Request { token: self.token, command };
        let id = RequestId { round, node: index };
        self.actions.push_back(HoldAction::Send(OutgoingRequest { id, connection, request }));
        true
    }

    fn is_queue_node(&self, node: usize, ctx: &Context<'_>) -> bool {
        let orders = self.spec.orders(ctx.topology, Spare::Available);
        orders.iter().any(|order| order.first() == Some(&node))
    }

    fn handle_repaired(&mut self, index: usize, response: &Response, ctx: &Context<'_>) {
        let node = &mut self.nodes[index];
        node.repair = None;
        if !matches!(response, Response::Failed(_)) {
            node.delivery = Delivery::Arrived;
        }
        if *response != Response::No {
            // The node may have the lock now. If the node misses it later, an operator ended the
            // lock there, so the grant's ACQUIRE must not be repeated.
            node.repeat_at = None;
        }
        self.actions.push_back(HoldAction::Repaired(response.holds() == Some(true)));
        self.record_answer(index, response.to_answer(), ctx);
        if self.over {
            self.undo_repair(index, ctx);
        } else if *response == Response::No {
            self.actions.push_back(HoldAction::Incomplete);
        }
    }

    fn record_answer(&mut self, index: usize, answer: Answer, ctx: &Context<'_>) {
        let node = &mut self.nodes[index];
        node.answer = answer;
        node.incarnation = ctx.topology.incarnation(index);
        node.answered_since = true;
    }

    fn answer_round(&mut self, node: usize, held: Option<bool>, ctx: &Context<'_>) {
        let Some(round) = &mut self.round else { return };
        if let Some(verdict) = round.core.answer(node, held, ctx.now) {
            self.decide(verdict, ctx);
        }
        while let Some(node) = self.round.as_mut().and_then(|round| round.core.next_repair()) {
            self.repair(node, ctx);
        }
    }

    fn decide(&mut self, verdict: ExtensionVerdict, ctx: &Context<'_>) {
        let Some(round) = &mut self.round else { return };
        round.decided = true;
        let number = round.number;
        if !self.over {
            self.state.settle(verdict, ctx.now);
        }
        let is_confirmed = matches!(verdict, ExtensionVerdict::Extended(_));
        if is_broken(Mutant::ExclusiveUntilConfirmed) && !is_confirmed {
            self.set_mode(Mode::Exclusive);
        }
        self.actions.push_back(HoldAction::Decided { round: number, verdict });
    }

    /// Sends ACQUIRE to a node that misses the lock, unless an earlier one may be in flight: with
    /// two in flight, the second could restore a lock that an operator ended after the first.
    fn repair(&mut self, index: usize, ctx: &Context<'_>) {
        let node = &self.nodes[index];
        let is_in_flight = matches!(node.delivery, Delivery::InFlight { .. })
            && ctx.now.since(node.acquire_sent_at) < self.spec.ttl.duration();
        if self.has_ended(ctx.now) || is_in_flight || !self.may_repair() {
            return;
        }
        let Some(number) = self.round.as_ref().map(|round| round.number + 1) else { return };
        if self.send_acquire(index, number, ctx) {
            self.nodes[index].repair = Some(number);
        }
    }

    /// Undoes the unanswered repairs of a lock that is over, once no driver awaits their responses.
    pub fn abandon_repairs(&mut self, ctx: &Context<'_>) {
        for index in 0..self.nodes.len() {
            if self.over && self.nodes[index].repair.take().is_some() {
                self.undo_repair(index, ctx);
            }
        }
    }

    fn undo_repair(&mut self, index: usize, ctx: &Context<'_>) {
        let release = Release::on(self.token, index, &self.spec, ctx);
        self.actions.push_back(HoldAction::Release(Box::new(release)));
    }

    /// Begins the release. Returns the ownership before it, and the machine that releases the lock.
    pub fn release(&mut self, ctx: &Context<'_>) -> (Ownership, Release) {
        let ownership = self.ownership(ctx.now);
        self.over = true;
        let deliveries = self.nodes.iter().map(|node| node.delivery);
        let release = Release::new(self.token, deliveries, &self.spec, ctx);
        match ownership {
            Ownership::Lost(_) => (ownership, release.once()),
            Ownership::Held(_) | Ownership::Uncertain(_) => (ownership, release),
        }
    }

    /// Gives the lock up for another process to attach. The lock stays on its nodes until its
    /// deadline. Returns the remaining validity; `None` if the lock is lost.
    pub fn detach(&mut self, now: Moment) -> Option<Duration> {
        let left = match self.ownership(now) {
            Ownership::Held(left) | Ownership::Uncertain(left) => Some(left),
            Ownership::Lost(_) => None,
        };
        self.over = true;
        left
    }

    /// Records the nodes' answers to the release.
    pub fn handle_released(&mut self, answers: impl Iterator<Item = Answer>) {
        for (node, answer) in self.nodes.iter_mut().zip(answers) {
            node.answer = answer;
        }
    }

    /// How early the renewal of this lock may be, to share a batch with others.
    pub fn renewal_window(&self) -> Duration {
        limits::renewal_window(self.spec.ttl)
    }
}
