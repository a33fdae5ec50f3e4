use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Spec;
use super::late_timer::LateTimer;
use super::reach::Reach;
use super::{
    Action, Command, ConnectionId, Context, Delivery, Mode, OutgoingRequest, Release, Request,
    RequestId, Response, Token, Topology, limits,
};
use crate::mutants::{ClientRule, is_broken};
use crate::quorum::{
    Extension, ExtensionVerdict, KnownBefore, Majority, Moment, Ownership, OwnershipState, Win,
};
use crate::{Answer, Fence, NodeError};

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
    nodes: Vec<HeldNode>,
    /// The next unused round number.
    next_round: u32,
    /// The number of consecutive rounds that began while a node missed the lock.
    repair_rounds: u32,
    /// When to stand in line, in front, on the nodes that miss the lock; `None` once that is done.
    front_at: Option<Moment>,
    /// Whether the lock is extended until it is released.
    is_renewed: bool,
    /// When the lock was won, or its last round of extensions decided.
    decided_at: Moment,
    round: Option<Round>,
    late: LateTimer,
    actions: VecDeque<Action>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(super) struct HeldNode {
    /// The node's last answer.
    answer: Answer,
    /// The incarnation of the server that gave this answer.
    incarnation: u64,
    reach: Reach,
    /// When the last ACQUIRE was sent, or later.
    acquire_sent_at: Moment,
    /// Whether the node has answered an extension or a repair, or could not be sent an extension.
    answered_since: bool,
    /// The connection of the unanswered EXTEND of the last round.
    extend_on: Option<u64>,
    /// The round number of an unanswered repair.
    repair: Option<u32>,
    /// The unanswered request of the call that acquired the lock, or the WAIT in front.
    straggler: Option<Straggler>,
    /// The round number of the WAIT in front, while it has no connection.
    opening: Option<u32>,
    /// A WAIT whose place the one in front has taken over.
    superseded: Option<u32>,
    /// Whether a YIELD to the node was never answered. It may still arrive, so nothing that the
    /// node says about this token counts.
    is_doubtful: bool,
    /// Whether the node counts in extensions: it was known to hold the lock when the lock was last
    /// certain. A node that granted late may have done so after a majority had lost the lock, so it
    /// counts only once the others have confirmed the lock.
    counts: bool,
    /// Whether the node has ever answered that an operator revoked the lock.
    has_revoked: bool,
}

/// A request that was unanswered when the lock was won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Straggler {
    pub(super) round: u32,
    pub(super) kind: StragglerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StragglerKind {
    /// For one of several keys, `key` is the position of the lock's key in the request; `None` if
    /// the request was for other keys.
    Acquire {
        key: Option<usize>,
    },
    /// As [`Acquire`](Self::Acquire).
    Wait {
        key: Option<usize>,
    },
    Yield,
}

/// A round of extensions.
#[derive(Debug)]
struct Round {
    /// The round number of the EXTENDs. The repairs of the round use the next one.
    number: u32,
    core: Extension,
    /// When unanswered nodes count as silent, and after how long; `None` once they do.
    due: Option<(Moment, Duration)>,
}

impl HeldNode {
    pub(super) fn new(
        answer: Answer,
        incarnation: u64,
        reach: Reach,
        straggler: Option<Straggler>,
        now: Moment,
    ) -> Self {
        let kind = straggler.map(|straggler| straggler.kind);
        Self {
            counts: matches!(answer, Answer::Granted(_)),
            answer,
            incarnation,
            reach,
            acquire_sent_at: now,
            answered_since: false,
            extend_on: None,
            repair: None,
            straggler,
            opening: None,
            superseded: None,
            is_doubtful: kind == Some(StragglerKind::Yield),
            has_revoked: false,
        }
    }

    /// Whether a request that may grant the lock may still arrive, although the lock awaits no
    /// answer to it.
    fn has_lost(&self) -> bool {
        self.reach.is_lost || self.superseded.is_some()
    }

    /// Whether an extension may bring the lock back to the node, or make its late grant count.
    fn needs_repair(&self) -> bool {
        let is_late = matches!(self.answer, Answer::Granted(_)) && !self.counts;
        let is_in_line =
            self.repair.is_some() || self.straggler.is_some() || self.opening.is_some();
        self.answer == Answer::Refused && !is_in_line || is_late
    }

    /// What the last answer says, if the server has this incarnation now.
    ///
    /// A node misses the lock if it refused, was never sent an ACQUIRE, or answered the grant's
    /// ACQUIRE with an abstention. An abstention in answer to an extension proves nothing: it comes
    /// from a replica, which may have the key.
    fn known(&self, incarnation: u64) -> KnownBefore {
        match self.answer {
            _ if self.is_doubtful => KnownBefore::Nothing,
            Answer::Refused => KnownBefore::Missing,
            Answer::Granted(_) if self.incarnation == incarnation => KnownBefore::Held,
            Answer::Granted(_) => KnownBefore::Nothing,
            _ if self.reach.delivery == Delivery::NotSent => KnownBefore::Missing,
            Answer::Failed(NodeError::Abstains { .. }) if !self.answered_since => {
                KnownBefore::Missing
            }
            _ => KnownBefore::Nothing,
        }
    }
}

impl Hold {
    /// Starts with a lock that has just been won. `next_round` is the first round number that no
    /// request of the call has used.
    pub(super) fn new(
        spec: Arc<Spec>,
        token: Token,
        win: Win,
        nodes: Vec<HeldNode>,
        next_round: u32,
        ctx: &Context<'_>,
    ) -> Self {
        let max_hold = spec.max_hold.unwrap_or(Duration::MAX);
        Self {
            spec,
            token,
            fence: win.fence,
            since: ctx.now,
            state: OwnershipState::new(win.validity, ctx.now, max_hold),
            nodes,
            next_round,
            repair_rounds: 0,
            front_at: None,
            is_renewed: false,
            decided_at: ctx.now,
            round: None,
            late: LateTimer::default(),
            actions: VecDeque::new(),
        }
    }

    /// Lets the lock stand in line soon, in front, on the nodes that miss it.
    pub(super) fn repair_soon(&mut self, ctx: &Context<'_>) {
        let round_trip = ctx.client_state.round_trips.typical();
        self.front_at = Some(ctx.now.plus(limits::patience(round_trip)));
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
        self.state.was_given_up()
    }

    /// Whether the lock is held, and for how long. A released lock counts as lost.
    pub fn ownership(&self, now: Moment) -> Ownership {
        self.state.ownership(now)
    }

    /// Whether the caller may begin to use the lock, of which it learns now. If it did not run for
    /// a while, the least validity of a new lock must still be left.
    pub fn is_learned_in_time(&self, now: Moment) -> bool {
        let is_late = self.held_for(now) > limits::LATE_TIMER;
        let is_left = |left| !is_late || left >= self.spec.min_validity;
        matches!(self.ownership(now), Ownership::Held(left) if is_left(left))
    }

    /// Whether an extension can move the deadline of the lock.
    pub fn is_extensible(&self, now: Moment) -> bool {
        !self.is_revoked() && self.state.is_extensible(now)
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
        self.revocations() == 0 || is_broken(ClientRule::RevokedRepaired)
    }

    /// The time from the last decision to the next extension of a renewed lock; `None` if no
    /// extension follows.
    ///
    /// A renewed lock is extended a third of the ttl after the last extension, and sooner after one
    /// that no majority confirmed. That includes a revoked lock, which the operator may also end
    /// before its deadline. The time is also short while a node says that it misses the lock: until
    /// that node is repaired, the failure of one other node may lose the lock.
    fn renew_after(&self) -> Option<Duration> {
        let regular = self.state.next_extension_in(self.decided_at, self.spec.ttl)?;
        // The call's own requests, and the WAIT in front, come first.
        let waits_for_front = self.front_at().is_some();
        if waits_for_front || !self.may_repair() || !self.nodes.iter().any(HeldNode::needs_repair) {
            return Some(regular);
        }
        let doublings = 2_u32.saturating_pow(self.repair_rounds);
        Some(regular.min(limits::PAUSE_MIN.saturating_mul(doublings)))
    }

    /// The last answer of each node, by index.
    pub fn answers(&self) -> impl ExactSizeIterator<Item = &Answer> {
        self.nodes.iter().map(|node| &node.answer)
    }

    /// The number of nodes that last answered that they hold the lock, and did not restart since.
    pub fn coverage(&self, topology: &Topology) -> usize {
        let holds = |(index, node): &(usize, &HeldNode)| {
            node.known(topology.incarnation(*index)) == KnownBefore::Held
        };
        self.nodes.iter().enumerate().filter(holds).count()
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
        self.begin_round(ctx)
    }

    fn set_mode(&mut self, mode: Mode) {
        self.spec = Arc::new(Spec { mode, ..(*self.spec).clone() });
    }

    /// Begins a round of extensions, unless that of an earlier call is undecided.
    ///
    /// Returns the number of the round that answers this call; `None` if the lock has ended.
    pub fn extend(&mut self, ctx: &Context<'_>) -> Option<u32> {
        let is_undecided = |round: &&Round| round.core.verdict().is_none();
        if let Some(round) = self.round.as_ref().filter(is_undecided) {
            return Some(round.number);
        }
        let is_incomplete = self.nodes.iter().any(HeldNode::needs_repair);
        self.repair_rounds = if is_incomplete { self.repair_rounds + 1 } else { 0 };
        self.begin_round(ctx)
    }

    fn has_ended(&self, now: Moment) -> bool {
        self.state.remaining(now).is_none()
    }

    /// Returns the number of the round; `None` if the lock has ended.
    fn begin_round(&mut self, ctx: &Context<'_>) -> Option<u32> {
        if self.has_ended(ctx.now) {
            return None;
        }
        let number = self.next_round;
        self.next_round += 2;
        // From now on, extensions repair the nodes that miss the lock.
        self.front_at = None;
        let majority = ctx.client_state.majority;
        let known = |node: usize| self.nodes[node].known(ctx.topology.incarnation(node));
        let core = Extension::new(majority, ctx.now, self.spec.ttl, known);
        let limit = self.spec.longest_timeout(ctx);
        self.round = Some(Round { number, core, due: Some((ctx.now.plus(limit), limit)) });
        let request = Request { token: self.token, command: Command::Extend { fence: None } };
        for node in 0..self.nodes.len() {
            self.nodes[node].extend_on = None;
            let was_asked = self.nodes[node].reach.delivery != Delivery::NotSent;
            match ctx.topology.route_held(node, was_asked) {
                Ok(_) if self.nodes[node].is_doubtful => self.answer_round(node, None, ctx),
                Ok(connection) => {
                    self.nodes[node].extend_on = Some(connection);
                    let id = RequestId { round: number, node };
                    self.send(id, connection, request);
                }
                Err(error) => {
                    self.record_answer(node, Answer::Failed(error), ctx);
                    self.answer_round(node, None, ctx);
                }
            }
        }
        Some(number)
    }

    fn send(&mut self, id: RequestId, connection: u64, request: Request) {
        let spec = Arc::clone(&self.spec);
        self.actions.push_back(Action::Send(OutgoingRequest { id, connection, request, spec }));
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` if nothing is due any more.
    pub fn poll_timeout(&self) -> Option<Moment> {
        let round = self.late.next(self.next_due());
        round.into_iter().chain(self.front_at()).chain(self.renew_at()).reduce(Moment::earlier)
    }

    fn next_due(&self) -> Option<Moment> {
        self.round.as_ref().and_then(|round| round.due).map(|(at, _)| at)
    }

    /// Fails the nodes that have not answered the round in time, repairs a lock that was just won,
    /// and extends a renewed one.
    pub fn handle_timeout(&mut self, ctx: &Context<'_>) {
        self.expire_round(ctx);
        if self.renew_at().is_some_and(|at| ctx.now.has_reached(at)) {
            // A lock that has ended is not renewed again and again.
            self.is_renewed = self.extend(ctx).is_some();
        }
        if self.front_at().is_some_and(|at| ctx.now.has_reached(at)) {
            self.stand_in_front(ctx);
        }
    }

    fn expire_round(&mut self, ctx: &Context<'_>) {
        if self.late.postpones(self.next_due(), ctx.now) {
            return;
        }
        let Some(round) = &mut self.round else { return };
        let Some((_, limit)) = round.due.filter(|(at, _)| ctx.now.has_reached(*at)) else { return };
        round.due = None;
        let verdict = round.core.expire();
        for (node, state) in self.nodes.iter_mut().enumerate() {
            if let Some(number) = state.extend_on {
                state.answer = Answer::Failed(self.spec.timed_out(node, limit, ctx));
                ctx.client_state.round_trips.timed_out(node);
                self.actions.push_back(Action::Suspect(ConnectionId { node, number }));
            }
        }
        if let Some(verdict) = verdict {
            self.decide(verdict, ctx);
        }
    }

    /// Processes a response to the grant's ACQUIRE, to an extension, or to a repair.
    pub fn handle_response(&mut self, id: RequestId, response: &Response, ctx: &Context<'_>) {
        let node = id.node;
        if matches!(response, Response::Failed(NodeError::Revoked { .. })) {
            // Late answers count, too.
            self.nodes[node].has_revoked = true;
        }
        if self.nodes[node].opening.take_if(|round| *round == id.round).is_some() {
            return;
        }
        let straggler = self.nodes[node].straggler.filter(|it| it.round == id.round);
        if matches!(response, Response::Granted { key: Some(_), .. }) && straggler.is_none() {
            // A late answer to a request of the call, whose key is not known any more.
            self.give_other_keys_back(node, ctx);
        }
        if self.nodes[node].superseded.take_if(|round| *round == id.round).is_some() {
            self.nodes[node].reach.is_lost |= response.is_lost();
            return;
        }
        if let Some(straggler) = straggler {
            self.handle_straggler(node, straggler.kind, response, ctx);
        } else if self.nodes[node].repair == Some(id.round) {
            self.handle_repaired(node, response, ctx);
        } else if self.round.as_ref().is_some_and(|round| round.number == id.round) {
            self.handle_extended(node, response, ctx);
        } else if response.holds() == Some(false) {
            // A late answer of an earlier round. What the node grants after it is late, too.
            self.nodes[node].counts = false;
            self.nodes[node].answered_since = true;
        }
    }

    /// Processes an answer to an extension of the last round, in time or late.
    fn handle_extended(&mut self, index: usize, response: &Response, ctx: &Context<'_>) {
        let is_confirmed = self.round.as_ref().is_some_and(|round| round.core.is_extended());
        let node = &mut self.nodes[index];
        let connection = node.extend_on.take();
        // Requests through one connection arrive in order, so the ACQUIRE has arrived, too.
        let arrived = connection.is_some() && node.reach.connection() == connection;
        if arrived && !matches!(response, Response::Failed(_)) {
            node.reach.delivery = Delivery::Arrived;
        }
        let held = response.holds();
        node.counts = held != Some(false) && (node.counts || is_confirmed);
        let counts = node.counts || is_broken(ClientRule::LateGrantCounts);
        self.record_answer(index, response.to_answer(), ctx);
        self.answer_round(index, held.filter(|held| counts || !held), ctx);
        let found_missing = self.round.as_ref().is_some_and(|round| round.core.has_found_missing());
        if found_missing && self.may_repair() && self.is_extensible(ctx.now) {
            self.begin_round(ctx);
        }
    }

    /// Processes an answer to a request of the call that acquired the lock, or to the WAIT in
    /// front.
    fn handle_straggler(
        &mut self,
        index: usize,
        kind: StragglerKind,
        response: &Response,
        ctx: &Context<'_>,
    ) {
        let in_time = self.is_just_won(ctx);
        let node = &mut self.nodes[index];
        node.straggler = None;
        node.reach.wait = None;
        let has_failed = matches!(response, Response::Failed(_));
        if has_failed {
            node.reach.is_lost |= response.is_lost() && matches!(kind, StragglerKind::Wait { .. });
        } else if matches!(kind, StragglerKind::Acquire { .. }) {
            // The answer to a WAIT says nothing of an ACQUIRE, which has another connection.
            node.reach.delivery = Delivery::Arrived;
        }
        let answer = match (kind, response) {
            // Any other answer may mean that the YIELD still arrives.
            (StragglerKind::Yield, Response::Kept | Response::Yes | Response::No) => {
                node.is_doubtful = false;
                if *response == Response::Kept { Answer::Granted(None) } else { Answer::Refused }
            }
            (
                StragglerKind::Acquire { key } | StragglerKind::Wait { key },
                Response::Granted { key: granted @ Some(_), .. },
            ) if key != *granted => {
                self.give_other_keys_back(index, ctx);
                Answer::Refused
            }
            _ => response.to_answer(),
        };
        let node = &mut self.nodes[index];
        let is_granted = matches!(answer, Answer::Granted(_));
        if self.state.was_given_up() || (node.answered_since && !is_granted) {
            return;
        }
        node.counts |= is_granted && in_time && !node.answered_since;
        node.answer = answer;
    }

    /// Whether a grant that is heard now is no late one.
    fn is_just_won(&self, ctx: &Context<'_>) -> bool {
        ctx.now.since(self.since) <= self.spec.longest_timeout(ctx)
    }

    /// Releases those of several keys that the lock does not have, on one node.
    fn give_other_keys_back(&mut self, index: usize, ctx: &Context<'_>) {
        if let Some(others) = self.spec.of_other_slots() {
            self.release_on(index, &others, ctx);
        }
    }

    fn release_on(&mut self, index: usize, spec: &Arc<Spec>, ctx: &Context<'_>) {
        let release = Release::on(self.token, spec, ctx, |node| node == index);
        self.actions.push_back(Action::Release(Box::new(release)));
    }

    /// Begins the renewal of the lock. Without it, nodes that miss the lock are repaired only when
    /// it is extended.
    pub fn renew(&mut self) {
        self.is_renewed = true;
    }

    /// When the next extension of a renewed lock is due, up to [`limits::RENEWAL_WINDOW`] early, so
    /// that locks that are due at about the same time share a batch.
    pub fn renew_at(&self) -> Option<Moment> {
        let is_decided = self.round.as_ref().is_none_or(|round| round.core.verdict().is_some());
        let after = self.renew_after().filter(|_| self.is_renewed && is_decided)?;
        let window = limits::RENEWAL_WINDOW.as_nanos();
        let early = self.decided_at.plus(after).raw.as_nanos() % window;
        let early = Duration::from_nanos(u64::try_from(early).unwrap_or(0));
        Some(self.decided_at.plus(after.saturating_sub(early.min(after / 10))))
    }

    /// When to stand in front; `None` if that was done, or if the lock is not
    /// [renewed](Self::renew).
    fn front_at(&self) -> Option<Moment> {
        let is_missing = |node: &HeldNode| !matches!(node.answer, Answer::Granted(_));
        let is_needed = self.is_renewed && self.nodes.iter().any(is_missing);
        self.front_at.filter(|_| is_needed)
    }

    /// Stands in line, in front of all others, on the nodes that miss a lock that was just won.
    ///
    /// Other calls may hold them for a moment, and give way. Until a node has the lock, the failure
    /// of one other node may lose the lock, and without a majority there is no repair. To the node,
    /// the request looks like one of the call that arrives late.
    fn stand_in_front(&mut self, ctx: &Context<'_>) {
        self.front_at = None;
        let is_over = self.has_ended(ctx.now) || self.revocations() > 0;
        if is_over || is_broken(ClientRule::NoFrontRepair) {
            return;
        }
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            let is_pending = matches!(
                node.straggler,
                Some(Straggler { kind: StragglerKind::Acquire { .. } | StragglerKind::Yield, .. })
            );
            let is_missing = !matches!(node.answer, Answer::Granted(_)) && !node.answered_since;
            if is_missing && !is_pending && ctx.topology.route_acquire(index).is_ok() {
                let id = RequestId { round: self.next_round, node: index };
                self.next_round += 1;
                self.nodes[index].opening = Some(id.round);
                self.actions.push_back(Action::Wait { id });
            }
        }
    }

    /// Returns the WAIT to send through this connection; `None` if the lock no longer needs it.
    pub fn handle_wait_connection(
        &mut self,
        id: RequestId,
        ctx: &Context<'_>,
    ) -> Option<(Request, Arc<Spec>)> {
        let node = &mut self.nodes[id.node];
        node.opening = None;
        let is_held = matches!(node.answer, Answer::Granted(_)) || node.answered_since;
        if is_held || self.revocations() > 0 || self.has_ended(ctx.now) {
            return None;
        }
        let node = &mut self.nodes[id.node];
        node.superseded = node.straggler.map(|straggler| straggler.round);
        node.straggler =
            Some(Straggler { round: id.round, kind: StragglerKind::Wait { key: Some(0) } });
        node.incarnation = ctx.topology.incarnation(id.node);
        node.reach.send_wait(id.round);
        let slice = limits::bounded_node_timeout(limits::WAIT_SLICE, self.spec.ttl);
        let wait = limits::wait_of(slice);
        let command = Command::Wait { fence: Fence::ZERO, wait };
        Some((Request { token: self.token, command }, Arc::clone(&self.spec)))
    }

    fn handle_repaired(&mut self, index: usize, response: &Response, ctx: &Context<'_>) {
        let node = &mut self.nodes[index];
        node.repair = None;
        if !matches!(response, Response::Failed(_)) {
            node.reach.delivery = Delivery::Arrived;
        }
        let in_time = ctx.now.since(node.acquire_sent_at) <= self.spec.longest_timeout(ctx);
        node.counts |= response.holds() == Some(true) && in_time;
        self.actions.push_back(Action::Repaired(response.holds() == Some(true)));
        self.record_answer(index, response.to_answer(), ctx);
        if self.was_given_up() {
            self.release_on(index, &Arc::clone(&self.spec), ctx);
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
        let verdict = round.core.answer(node, held, ctx.now);
        if let Some(verdict) = verdict {
            self.decide(verdict, ctx);
        }
        while let Some(node) = self.round.as_mut().and_then(|round| round.core.next_repair()) {
            self.repair(node, ctx);
        }
    }

    fn decide(&mut self, verdict: ExtensionVerdict, ctx: &Context<'_>) {
        let Some(round) = &self.round else { return };
        let (number, is_confirmed) = (round.number, round.core.is_extended());
        self.decided_at = ctx.now;
        self.state.settle(verdict, ctx.now);
        for node in self.nodes.iter_mut().filter(|_| is_confirmed) {
            node.counts |= matches!(node.answer, Answer::Granted(_));
        }
        if is_broken(ClientRule::ExclusiveUntilConfirmed) && !is_confirmed {
            self.set_mode(Mode::Exclusive);
        }
        self.actions.push_back(Action::Decided { round: number, verdict });
    }

    /// Sends ACQUIRE to a node that misses the lock, unless an earlier one may be in flight: with
    /// two in flight, the second could restore a lock that an operator ended after the first.
    fn repair(&mut self, index: usize, ctx: &Context<'_>) {
        let node = &self.nodes[index];
        let is_in_flight = node.reach.connection().is_some()
            && ctx.now.since(node.acquire_sent_at) < self.spec.ttl.duration();
        let may_arrive = is_in_flight || node.straggler.is_some() || node.is_doubtful;
        if self.has_ended(ctx.now) || may_arrive || !self.may_repair() {
            return;
        }
        let Some(number) = self.round.as_ref().map(|round| round.number + 1) else { return };
        let Ok(connection) = ctx.topology.route_acquire(index) else { return };
        let node = &mut self.nodes[index];
        node.repair = Some(number);
        node.reach.delivery = Delivery::InFlight { connection };
        node.incarnation = ctx.topology.incarnation(index);
        node.acquire_sent_at = ctx.now;
        // Clients that wait there, with older tickets too, do not keep the holder from its lock.
        let command = Command::Acquire { fence: Fence::ZERO };
        let id = RequestId { round: number, node: index };
        self.send(id, connection, Request { token: self.token, command });
    }

    /// Begins the release. Returns the ownership before it, and the machine that releases the lock.
    pub fn release(&mut self, ctx: &Context<'_>) -> (Ownership, Release) {
        let ownership = self.ownership(ctx.now);
        self.state.give_up();
        // Of several keys, a request that is unanswered or lost may be granted any.
        let may_have_others = |node: &HeldNode| {
            let is_unanswered = node.straggler.is_some() || node.reach.connection().is_some();
            node.has_lost() || is_unanswered || node.reach.may_have_others
        };
        let spec = if self.nodes.iter().any(may_have_others) {
            self.spec.of_all_slots()
        } else {
            Arc::clone(&self.spec)
        };
        let nodes = self.nodes.iter().map(|node| {
            let has_granted = matches!(node.answer, Answer::Granted(_));
            Reach { is_lost: node.has_lost(), has_granted, ..node.reach }
        });
        (ownership, Release::new(self.token, nodes, &spec, ctx))
    }

    /// Gives the lock up for another process to attach. The lock stays on its nodes until its
    /// deadline. Returns the remaining validity; `None` if the lock is lost.
    pub fn detach(&mut self, now: Moment) -> Option<Duration> {
        let left = self.state.remaining(now);
        self.state.give_up();
        left
    }

    /// Records the nodes' answers to the release.
    pub fn handle_released(&mut self, answers: impl Iterator<Item = Answer>) {
        for (node, answer) in self.nodes.iter_mut().zip(answers) {
            node.answer = answer;
        }
    }
}
