//! One attempt on all nodes: which node decides, which refusals are final, and which nodes are
//! asked again. What follows a lost attempt is in `mod.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Action, Grant, GrantNode};
use crate::Fence;
use crate::client::mutants::{Mutant, is_broken};
use crate::client::{
    Answer, Command, Context, Delivery, Mode, NodeError, Release, Request, RequestId, Response,
    Spare, Spec, Token, Topology, limits,
};
use crate::quorum::{Acquisition, FenceAnswer, Loss, Moment, Step, Validity, Vote, Win};

/// One attempt on all nodes, with one token.
///
/// A refusal is not final at once. When several clients ask for a free lock at the same moment,
/// each may be granted some nodes. Then the deciding node, which is the first node in the key's
/// order that votes, chooses the winner. The winner repeats its request to each node that refused,
/// a round trip after the refusal. The other clients release the nodes that granted them.
#[derive(Debug)]
pub(super) struct Attempt {
    kind: Kind,
    token: Token,
    /// The fence that the ACQUIREs propose.
    proposed: Fence,
    /// Counts the final votes and agrees on a fence.
    core: Acquisition,
    /// The round number of the ACQUIREs. The EXTENDs that store the agreed fence use the next one.
    round: u32,
    nodes: Vec<NodeState>,
    /// The order by which the client chose the granting node; empty except after a grant.
    order: SmallVec<[usize; 7]>,
    began: Moment,
    /// Until when an attempt after a grant repeats its requests to nodes that refuse.
    patient_until: Option<Moment>,
    /// Until when the attempt awaits a deciding node, although the refusals rule out a majority.
    decide_by: Option<Moment>,
    /// Until when a win after a grant is delayed for the answers of earlier nodes of the order.
    win_by: Option<Moment>,
    ended: bool,
    /// Whether a deciding node refused, so that another client comes first.
    decider_refused: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Acquires the lock on all nodes.
    AllNodes,
    /// Acquires the lock on all nodes but this one, which refuses it and is sent nothing.
    Bypass { node: usize },
    /// Acquires the lock on the other nodes, after this node granted it in answer to a WAIT or to a
    /// request for any of several keys.
    AfterGrant { node: usize },
    /// Swaps the token of the process that detached the lock.
    Attach { old: Token },
}

impl Kind {
    fn bypassed(&self) -> Option<usize> {
        if let Self::Bypass { node } = self { Some(*node) } else { None }
    }
}

#[derive(Clone, Debug)]
struct NodeState {
    answer: Answer,
    delivery: Delivery,
    incarnation: u64,
    /// When the answer is due, and the time limit; `None` without a request in flight.
    due: Option<(Moment, Duration)>,
    /// Whether the request in flight stores the agreed fence.
    storing_fence: bool,
    refusals: u8,
    refused_provisionally: bool,
    repeat_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum AttemptEnd {
    Won(Win),
    Lost(Loss),
}

/// The grant of one node, in answer to a WAIT or to a request for any of several keys.
#[derive(Clone, Debug)]
pub(super) struct NodeGrant {
    pub(super) node: usize,
    pub(super) token: Token,
    pub(super) fence: Fence,
    pub(super) validity: Option<Validity>,
    pub(super) incarnation: u64,
    /// The nodes that were silent in the last attempt.
    pub(super) silent: SmallVec<[usize; 5]>,
    /// The order by which the client chose this node.
    pub(super) order: SmallVec<[usize; 7]>,
}

impl Attempt {
    /// Starts an attempt whose first bytes are sent now.
    pub(super) fn new(
        kind: Kind,
        spec: &Spec,
        token: Token,
        round: u32,
        ctx: &mut Context<'_>,
        out: &mut VecDeque<Action>,
    ) -> Self {
        let mut core =
            Acquisition::new(ctx.client_state.majority, ctx.now, spec.ttl, spec.min_validity);
        if spec.mode == Mode::Shared && !is_broken(Mutant::ReaderOutrunsWriter) {
            // Other nodes grant readers while a writer waits on the queue node. So a reader must
            // not win before the queue node has answered.
            let is_asked = |node: &usize| {
                kind.bypassed() != Some(*node) && ctx.topology.route_acquire(*node).is_ok()
            };
            let order = spec.order(ctx.topology, Spare::Available);
            core = core.awaiting(order.into_iter().find(is_asked).as_slice());
        }
        let proposed = ctx.client_state.fences.propose(ctx.wall_us);
        let mut this = Self::of(kind, token, proposed, core, round, ctx);
        for node in 0..this.nodes.len() {
            if this.kind.bypassed() == Some(node) {
                this.core.vote(node, Vote::Silent, ctx.now);
            } else {
                this.ask(node, spec, ctx, out);
            }
        }
        this
    }

    /// Starts an attempt on the other nodes for a lock that one node granted. It proposes the fence
    /// of that grant.
    ///
    /// The longer the wait was, the less certain is the moment of the grant. If that leaves too
    /// little validity, the attempt also extends the lock on the node that granted it.
    pub(super) fn after_grant(
        spec: &Spec,
        node_grant: NodeGrant,
        round: u32,
        ctx: &mut Context<'_>,
        out: &mut VecDeque<Action>,
    ) -> Self {
        let NodeGrant { node, token, fence, validity, incarnation, silent, order } = node_grant;
        // The client gives way if an earlier node refuses, so the win awaits the earlier nodes.
        let earlier = before(&order, node).iter().copied();
        let awaits: Vec<_> = earlier.filter(|earlier| !silent.contains(earlier)).collect();
        let (majority, min_validity) = (ctx.client_state.majority, spec.min_validity);
        let limit = spec.node_timeout(node, ctx);
        let round_trip = ctx.client_state.round_trips.typical();
        let patience = limits::patience(round_trip, limit);
        let left = validity.and_then(|validity| validity.remaining(ctx.now));
        let suffices = is_broken(Mutant::LongWaitIsLost)
            || left.is_some_and(|left| left >= min_validity + patience);
        let extend_through = if suffices { None } else { ctx.topology.route_acquire(node).ok() };
        let core = match extend_through {
            Some(_) => Acquisition::new(majority, ctx.now, spec.ttl, min_validity),
            None => Acquisition::after_wait(majority, node, fence, validity, min_validity),
        };
        let core = core.awaiting(&awaits);
        let mut this = Self::of(Kind::AfterGrant { node }, token, fence, core, round, ctx);
        this.order = order;
        this.patient_until = Some(ctx.now.plus(patience));
        let granted = &mut this.nodes[node];
        granted.delivery = Delivery::Arrived;
        granted.incarnation = incarnation;
        if let Some(connection) = extend_through {
            granted.due = Some((ctx.now.plus(limit), limit));
            let id = RequestId { round, node };
            let request = Request { token, command: Command::Extend { fence: Some(fence) } };
            out.push_back(Action::Send { id, connection, request });
        } else {
            granted.answer = Answer::Granted(Some(fence));
        }
        let bare = is_broken(Mutant::BareMajorityAfterWait);
        for (asked, other) in (0..this.nodes.len()).filter(|&other| other != node).enumerate() {
            if bare && asked + 1 >= majority.size() {
                this.failed(other, NodeError::UnexpectedReply, ctx);
                continue;
            }
            this.ask(other, spec, ctx, out);
        }
        // With a single node, no answer follows that would decide the attempt.
        this.core.review(ctx.now);
        this
    }

    fn of(
        kind: Kind,
        token: Token,
        proposed: Fence,
        core: Acquisition,
        round: u32,
        ctx: &Context<'_>,
    ) -> Self {
        let state = NodeState {
            answer: Answer::Pending,
            delivery: Delivery::NotSent,
            incarnation: 0,
            due: None,
            storing_fence: false,
            refusals: 0,
            refused_provisionally: false,
            repeat_at: None,
        };
        Self {
            kind,
            token,
            proposed,
            core,
            round,
            nodes: vec![state; ctx.client_state.majority.nodes()],
            order: SmallVec::new(),
            began: ctx.now,
            patient_until: None,
            decide_by: None,
            win_by: None,
            ended: false,
            decider_refused: false,
        }
    }

    /// How many round numbers an attempt uses.
    pub(super) const ROUNDS: u32 = 2;

    fn request(&self) -> Request {
        match self.kind {
            Kind::Attach { old } => {
                Request { token: old, command: Command::SwapToken { new: self.token } }
            }
            Kind::AllNodes | Kind::Bypass { .. } | Kind::AfterGrant { .. } => {
                Request { token: self.token, command: Command::Acquire { fence: self.proposed } }
            }
        }
    }

    fn ask(&mut self, node: usize, spec: &Spec, ctx: &Context<'_>, out: &mut VecDeque<Action>) {
        let route = ctx.topology.route_acquire(node);
        let state = &mut self.nodes[node];
        state.repeat_at = None;
        match route {
            Ok(connection) => {
                state.incarnation = ctx.topology.incarnation(node);
                state.delivery = Delivery::InFlight { connection };
                let limit = spec.node_timeout(node, ctx);
                state.due = Some((ctx.now.plus(limit), limit));
                state.storing_fence = false;
                let id = RequestId { round: self.round, node };
                out.push_back(Action::Send { id, connection, request: self.request() });
            }
            Err(error) => self.failed(node, error, ctx),
        }
    }

    fn failed(&mut self, node: usize, error: NodeError, ctx: &Context<'_>) {
        let state = &mut self.nodes[node];
        state.due = None;
        state.answer = Answer::Failed(error);
        if std::mem::take(&mut state.storing_fence) {
            self.core.fence_answer(node, FenceAnswer::Failed, ctx.now);
        } else if state.refused_provisionally {
            // The refusal counts, although a repeated request failed.
            state.answer = Answer::Refused;
            self.refuse(node, ctx.now);
        } else {
            ctx.client_state.voters.failed(node);
            self.core.vote(node, Vote::Silent, ctx.now);
        }
    }

    pub(super) fn expects(&self, id: RequestId) -> bool {
        id.round == self.round || id.round == self.round + 1
    }

    /// Also processes responses after the decision: they show whether the node has the lock.
    pub(super) fn handle_response(
        &mut self,
        id: RequestId,
        response: &Response,
        ctx: &Context<'_>,
    ) {
        let node = id.node;
        let state = &mut self.nodes[node];
        if !matches!(response, Response::Failed(_)) {
            state.delivery = Delivery::Arrived;
        }
        if id.round == self.round {
            if state.storing_fence {
                return;
            }
            if !matches!(response, Response::Failed(_)) {
                ctx.client_state.voters.voted(node);
            }
            state.due = None;
            state.answer = response.to_answer();
            match response {
                Response::Fence(fence) => {
                    state.refused_provisionally = false;
                    self.core.vote(node, Vote::Granted(*fence), ctx.now);
                }
                Response::Held { .. } | Response::No => {
                    state.refusals = state.refusals.saturating_add(1);
                    // After the decision no node is asked again.
                    state.refused_provisionally = !self.ended;
                }
                Response::Failed(error) => self.failed(node, error.clone(), ctx),
                Response::Yes | Response::FenceAfterWait { .. } | Response::FenceAndKey { .. } => {
                    self.failed(node, NodeError::UnexpectedReply, ctx);
                }
            }
        } else if std::mem::take(&mut state.storing_fence) {
            state.due = None;
            state.answer = match response {
                // The node had granted the lock, which has ended there since.
                Response::No => {
                    let reason = "the lock ended there while it was being acquired";
                    Answer::Failed(NodeError::ErrorReply(reason.into()))
                }
                other => other.to_answer(),
            };
            let answer = match response {
                Response::Fence(fence) => FenceAnswer::Stored(*fence),
                Response::Failed(NodeError::ClockBehind { .. }) => FenceAnswer::Unacceptable,
                _ => FenceAnswer::Failed,
            };
            self.core.fence_answer(node, answer, ctx.now);
        }
    }

    /// Repeats requests whose pause is over, and fails nodes whose time to answer is over.
    pub(super) fn handle_timeout(
        &mut self,
        spec: &Spec,
        ctx: &mut Context<'_>,
        out: &mut VecDeque<Action>,
    ) {
        for node in 0..self.nodes.len() {
            let state = &self.nodes[node];
            if let Some((_, limit)) = state.due.filter(|(at, _)| ctx.now.has_reached(*at)) {
                let delivery = state.delivery;
                let error = spec.timed_out(node, limit, ctx);
                self.failed(node, error, ctx);
                ctx.client_state.round_trips.timed_out(node);
                if let Delivery::InFlight { connection } = delivery {
                    out.push_back(Action::Suspect { node, connection });
                }
            } else if state.repeat_at.is_some_and(|at| ctx.now.has_reached(at)) {
                self.ask(node, spec, ctx, out);
            }
        }
    }

    /// Decides the attempt: fails every node that has not answered, and makes all refusals final.
    pub(super) fn expire(&mut self, spec: &Spec, ctx: &Context<'_>) {
        for node in 0..self.nodes.len() {
            let state = &mut self.nodes[node];
            state.repeat_at = None;
            if state.due.is_some() {
                let limit = ctx.now.since(self.began);
                let error = spec.timed_out(node, limit, ctx);
                self.failed(node, error, ctx);
            } else if state.refused_provisionally {
                self.refuse(node, ctx.now);
            }
        }
        if !self.ended {
            self.core.expire(ctx.now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Moment> {
        let due = |state: &NodeState| state.due.map(|(at, _)| at);
        let nodes = self.nodes.iter().flat_map(|state| [due(state), state.repeat_at]);
        let any_provisional = self.nodes.iter().any(|state| state.refused_provisionally);
        let win_by = self.win_by.filter(|_| self.core.is_delayed());
        nodes
            .chain([win_by])
            .chain([self.patient_until, self.decide_by].map(|at| at.filter(|_| any_provisional)))
            .flatten()
            .reduce(Moment::earlier)
    }

    /// Carries out the steps that the answers allow. Returns the end of the attempt, once.
    pub(super) fn advance(
        &mut self,
        spec: &Spec,
        ctx: &mut Context<'_>,
        out: &mut VecDeque<Action>,
    ) -> Option<AttemptEnd> {
        if self.ended {
            return None;
        }
        if self.nodes.iter().any(|state| state.refused_provisionally) {
            self.settle_refusals(spec, ctx, out);
            if self.decider_refused {
                return Some(self.end(AttemptEnd::Lost(Loss::Held)));
            }
        }
        self.limit_delay(spec, ctx);
        while let Some(step) = self.core.poll() {
            match step {
                Step::StoreFence { node, fence } => self.store_fence(node, fence, spec, ctx, out),
                Step::Won(win) => {
                    ctx.client_state.fences.learn(self.proposed, win.fence);
                    return Some(self.end(AttemptEnd::Won(win)));
                }
                Step::Lost(loss) => return Some(self.end(AttemptEnd::Lost(loss))),
            }
        }
        None
    }

    /// Limits the time for which a win after a grant awaits the earlier nodes of the order, whose
    /// grants take precedence. Meanwhile this client holds a majority, so another client to which a
    /// slow node grants the lock cannot win either.
    fn limit_delay(&mut self, spec: &Spec, ctx: &Context<'_>) {
        let is_limited = spec.mode == Mode::Exclusive && !is_broken(Mutant::AwaitsSlowNode);
        if !is_limited || !matches!(self.kind, Kind::AfterGrant { .. }) || !self.core.is_delayed() {
            return;
        }
        let settle = limits::settle(ctx.client_state.round_trips.typical());
        let win_by = *self.win_by.get_or_insert(ctx.now.plus(settle));
        if ctx.now.has_reached(win_by) {
            self.core.stop_awaiting(ctx.now);
        }
    }

    /// Ends the attempt, and with it the repetition of requests.
    fn end(&mut self, end: AttemptEnd) -> AttemptEnd {
        self.ended = true;
        for state in &mut self.nodes {
            state.refused_provisionally = false;
            state.repeat_at = None;
        }
        end
    }

    fn store_fence(
        &mut self,
        node: usize,
        fence: Fence,
        spec: &Spec,
        ctx: &Context<'_>,
        out: &mut VecDeque<Action>,
    ) {
        let state = &mut self.nodes[node];
        match ctx.topology.route(node) {
            Ok(connection) => {
                let limit = spec.node_timeout(node, ctx);
                state.due = Some((ctx.now.plus(limit), limit));
                state.storing_fence = true;
                let request =
                    Request { token: self.token, command: Command::Extend { fence: Some(fence) } };
                let id = RequestId { round: self.round + 1, node };
                out.push_back(Action::Send { id, connection, request });
            }
            Err(error) => {
                state.answer = Answer::Failed(error);
                self.core.fence_answer(node, FenceAnswer::Failed, ctx.now);
            }
        }
    }

    /// Makes the refusal of a node final.
    fn refuse(&mut self, node: usize, now: Moment) {
        self.nodes[node].refused_provisionally = false;
        self.nodes[node].repeat_at = None;
        self.core.vote(node, Vote::Refused, now);
    }

    /// Decides which refusals are final, and when to repeat the request to the other refusers.
    fn settle_refusals(&mut self, spec: &Spec, ctx: &mut Context<'_>, out: &mut VecDeque<Action>) {
        if matches!(self.kind, Kind::Attach { .. }) {
            return self.refuse_all(ctx.now);
        }
        if let Kind::AfterGrant { node } = self.kind {
            // The granting node can refuse, too: it does not extend a lock that has ended there.
            let deciders = before(&self.order, node).iter().chain([&node]);
            self.decider_refused =
                deciders.into_iter().any(|&node| self.nodes[node].refused_provisionally);
            let is_patient = self.patient_until.is_some_and(|until| !ctx.now.has_reached(until));
            if self.decider_refused || !is_patient {
                return self.refuse_all(ctx.now);
            }
            self.ask_refusers_again(spec, ctx, out, |refusals| {
                // The first repeat has no pause: a release in flight arrives during the round trip.
                let doublings = u32::from(refusals.checked_sub(2)?);
                Some(limits::PAUSE_MIN.saturating_mul(2_u32.saturating_pow(doublings)))
            });
            return;
        }
        if is_broken(Mutant::QueueNodeOutvoted) {
            return self.refuse_all(ctx.now);
        }
        // The first node of each order that votes or may still vote decides.
        let bypassed = self.kind.bypassed();
        let may_vote = |node: usize| {
            Some(node) != bypassed && !matches!(self.nodes[node].answer, Answer::Failed(_))
        };
        let expected = |node: &usize| may_vote(*node) && ctx.client_state.voters.includes(*node);
        let voters = (0..self.nodes.len()).filter(expected).count();
        let spare = Spare::of(voters, ctx.client_state.majority);
        let deciders: SmallVec<[usize; 2]> = (spec.orders(ctx.topology, spare).iter())
            .filter_map(|order| order.iter().copied().find(|&node| may_vote(node)))
            .collect();
        let mut all_granted = true;
        for decider in deciders {
            if self.nodes[decider].refused_provisionally {
                self.decider_refused = true;
                return self.refuse_all(ctx.now);
            }
            all_granted &= matches!(self.nodes[decider].answer, Answer::Granted(_));
        }
        if !all_granted {
            // A deciding node has not answered yet. Once the refusals rule out a majority, the
            // attempt awaits that answer only as long as the winner of a tie needs to win.
            let refused = self.count(|answer| *answer == Answer::Refused);
            if refused > ctx.client_state.majority.spare() {
                let settle = limits::settle(ctx.client_state.round_trips.typical());
                let decide_by = *self.decide_by.get_or_insert(ctx.now.plus(settle));
                if ctx.now.has_reached(decide_by) {
                    self.refuse_all(ctx.now);
                }
            } else {
                self.decide_by = None;
            }
            return;
        }
        self.decide_by = None;
        let repeats = if is_broken(Mutant::NoTieRepeat) { 0 } else { limits::TIE_REPEATS };
        let exhausted = |state: &NodeState| state.refused_provisionally && state.refusals > repeats;
        for node in 0..self.nodes.len() {
            if exhausted(&self.nodes[node]) {
                self.refuse(node, ctx.now);
            }
        }
        let round_trip = ctx.client_state.round_trips.typical().max(limits::PAUSE_MIN);
        self.ask_refusers_again(spec, ctx, out, |_| Some(round_trip));
    }

    /// Repeats the request to each node whose refusal is provisional. `pause` returns the pause
    /// before the repeat, given the node's number of refusals; `None` sends it at once.
    fn ask_refusers_again(
        &mut self,
        spec: &Spec,
        ctx: &Context<'_>,
        out: &mut VecDeque<Action>,
        pause: impl Fn(u8) -> Option<Duration>,
    ) {
        for node in 0..self.nodes.len() {
            let state = &mut self.nodes[node];
            if !state.refused_provisionally || state.repeat_at.is_some() || state.due.is_some() {
                continue;
            }
            match pause(state.refusals) {
                Some(pause) => state.repeat_at = Some(ctx.now.plus(pause)),
                None => self.ask(node, spec, ctx, out),
            }
        }
    }

    fn refuse_all(&mut self, now: Moment) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].refused_provisionally {
                self.refuse(node, now);
            }
        }
    }

    /// The node whose grant began the attempt, if any.
    pub(super) fn granting_node(&self) -> Option<usize> {
        if let Kind::AfterGrant { node } = self.kind { Some(node) } else { None }
    }

    pub(super) fn decider_refused(&self) -> bool {
        self.decider_refused
    }

    pub(super) fn has_refusal(&self) -> bool {
        self.count(|answer| *answer == Answer::Refused) > 0
    }

    /// Whether every node that was asked has answered or timed out.
    pub(super) fn has_heard_all(&self) -> bool {
        let bypassed = self.kind.bypassed();
        let mut nodes = self.nodes.iter().enumerate();
        nodes.all(|(node, state)| Some(node) == bypassed || state.answer != Answer::Pending)
    }

    pub(super) fn count(&self, is: impl Fn(&Answer) -> bool) -> usize {
        self.nodes.iter().filter(|state| is(&state.answer)).count()
    }

    pub(super) fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.nodes.iter().map(|state| &state.answer)
    }

    pub(super) fn grant(&mut self, win: Win, spec: &Spec, ctx: &Context<'_>) -> Grant {
        let is_attached = matches!(self.kind, Kind::Attach { .. });
        let repeat_until = ctx.now.plus(limits::outlast(spec.longest_timeout(ctx)));
        if let Some(node) = self.kind.bypassed() {
            // The attempt did not ask this node, so it misses the lock. An extension repairs it.
            self.nodes[node].answer = Answer::Refused;
        }
        let nodes = self.nodes.drain(..).map(|state| GrantNode {
            answer: state.answer,
            delivery: state.delivery,
            incarnation: state.incarnation,
        });
        Grant {
            token: self.token,
            fence: win.fence,
            validity: win.validity,
            since: ctx.now,
            round: self.round,
            next_round: self.round + Self::ROUNDS,
            repeat_until: Some(repeat_until).filter(|_| !is_attached),
            nodes: nodes.collect(),
        }
    }

    /// The nodes that were asked, and the connection for the RELEASE of each, if there is one.
    pub(super) fn connections(
        &self,
        topology: &Topology,
    ) -> impl Iterator<Item = (usize, Option<u64>)> {
        self.nodes.iter().enumerate().filter_map(|(node, state)| match state.delivery {
            Delivery::InFlight { connection } => Some((node, Some(connection))),
            Delivery::Arrived => Some((node, topology.route(node).ok())),
            Delivery::NotSent => None,
        })
    }

    /// Releases everything that the nodes may have granted.
    pub(super) fn roll_back(&self, spec: &Arc<Spec>, ctx: &Context<'_>) -> Release {
        let deliveries = self.nodes.iter().map(|state| state.delivery);
        Release::new(self.token, deliveries, spec, ctx)
    }

    /// Releases the token of the process that detached the lock, on the nodes that may still have
    /// it; `None` if there are none. While they have it, they refuse the new token, and no other
    /// client releases the old one.
    pub(super) fn release_detached(&self, spec: &Arc<Spec>, ctx: &Context<'_>) -> Option<Release> {
        let Kind::Attach { old } = self.kind else { return None };
        let is_settled =
            |state: &NodeState| matches!(state.answer, Answer::Granted(_) | Answer::Refused);
        if self.nodes.iter().all(is_settled) {
            return None;
        }
        let deliveries = self.nodes.iter().map(|state| match state.delivery {
            _ if is_settled(state) => Delivery::NotSent,
            // The node was not sent the new token, and may have the old one.
            Delivery::NotSent => Delivery::Arrived,
            delivery => delivery,
        });
        Some(Release::new(old, deliveries, spec, ctx))
    }
}

fn before(order: &[usize], node: usize) -> &[usize] {
    let place = order.iter().position(|&other| other == node).unwrap_or(0);
    &order[..place]
}
