//! One attempt on all nodes: which of them decides, whose refusal is final, and who is asked again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::acquire::{Action, Grant, GrantNode, Spec};
use super::limits;
use super::mutants::{Mutant, is_broken};
use super::release::Release;
use super::{
    Answer, Command, Context, Delivery, NodeError, Request, RequestId, Response, Token, Topology,
};
use crate::Fence;
use crate::quorum::{Acquisition, FenceAnswer, Lifetime, Loss, Moment, Step, Vote, Win};

/// One attempt on all nodes, with one token.
///
/// A refusal is not final at once. Clients that ask at the same moment for a free lock each get
/// some nodes: then the node that comes first in the key's order decides. The client that it
/// granted repeats its request to the nodes that refused, a round trip apart. The other clients
/// release the nodes that granted them.
#[derive(Debug)]
pub(super) struct Attempt {
    kind: Kind,
    token: Token,
    proposed: Fence,
    core: Acquisition,
    /// The round of its ACQUIREs. That of its fences is the next one.
    round: u32,
    nodes: Vec<Asked>,
    /// The order of the nodes for each key, once a node has refused.
    orders: Option<SmallVec<[SmallVec<[usize; 7]>; 1]>>,
    began: Moment,
    /// Until then, nodes that refuse after a wait are asked again.
    patience: Option<Moment>,
    /// Until then, the answer of a node that decides is awaited although no majority is left.
    decide_by: Option<Moment>,
    ended: bool,
    /// A deciding node refused: others come first.
    yielded: bool,
}

/// What an attempt is for.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// To acquire a free lock.
    First,
    /// The same past a node that refuses although the others are free.
    GoAhead {
        /// The index of that node, which is not asked.
        past: usize,
    },
    /// To take the other nodes for a lock that one has granted after a wait.
    AfterWait {
        /// The index of the node.
        node: usize,
    },
    /// To swap the token of a lock that another process detached.
    Attach {
        /// The token of that process.
        old: Token,
    },
}

/// What became of one node.
#[derive(Clone, Debug)]
struct Asked {
    answer: Answer,
    delivery: Delivery,
    incarnation: u64,
    /// When the node's time to answer is over, while it is being asked.
    due: Option<(Moment, Duration)>,
    /// Whether `due` is about its fence.
    telling: bool,
    /// How often it has refused.
    refusals: u8,
    /// It has refused, and that is not final yet.
    open: bool,
    /// When it is asked again.
    again_at: Option<Moment>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Won(Win),
    Lost(Loss),
}

/// A lock that one node granted after a wait.
#[derive(Clone, Debug)]
pub(super) struct Waited {
    pub(super) node: usize,
    pub(super) token: Token,
    pub(super) fence: Fence,
    pub(super) lifetime: Option<Lifetime>,
    pub(super) incarnation: u64,
    /// Nodes that did not answer the last time.
    pub(super) silent: SmallVec<[usize; 5]>,
}

impl Attempt {
    /// An attempt whose first bytes are sent now.
    pub(super) fn new(
        kind: Kind,
        spec: &Spec,
        token: Token,
        round: u32,
        ctx: &mut Context<'_>,
        out: &mut VecDeque<Action>,
    ) -> Self {
        let core = Acquisition::new(ctx.fleet.majority, ctx.now, spec.ttl, spec.min_validity);
        let proposed = ctx.fleet.fences.propose(ctx.wall_us);
        let mut this = Self::of(kind, token, proposed, core, round, ctx);
        for node in 0..this.nodes.len() {
            if matches!(this.kind, Kind::GoAhead { past } if past == node) {
                this.core.vote(node, Vote::Silent, ctx.now);
            } else {
                this.ask(node, spec, ctx, out);
            }
        }
        this
    }

    /// Takes the other nodes for a lock that one has granted, proposing its fence to them.
    pub(super) fn after_wait(
        spec: &Spec,
        waited: Waited,
        round: u32,
        ctx: &mut Context<'_>,
        out: &mut VecDeque<Action>,
    ) -> Self {
        let Waited { node, token, fence, lifetime, incarnation, silent } = waited;
        let orders = ctx.topology.orders(&spec.keys);
        // A client that holds an earlier node never waits for one that holds a later node.
        let earlier = before(&orders[0], node).iter().copied();
        let awaits: Vec<_> = earlier.filter(|earlier| !silent.contains(earlier)).collect();
        let majority = ctx.fleet.majority;
        let core = Acquisition::after_wait(majority, node, fence, lifetime, spec.min_validity)
            .that_awaits(&awaits);
        let mut this = Self::of(Kind::AfterWait { node }, token, fence, core, round, ctx);
        this.orders = Some(orders);
        let limit = spec.node_timeout(node, ctx);
        let patience = limits::patience(ctx.fleet.round_trips.typical(), limit);
        this.patience = Some(ctx.now.plus(patience));
        let granted = &mut this.nodes[node];
        granted.answer = Answer::Granted(Some(fence));
        granted.delivery = Delivery::Arrived;
        granted.incarnation = incarnation;
        let bare = is_broken(Mutant::BareMajorityAfterWait);
        for (asked, other) in (0..this.nodes.len()).filter(|&other| other != node).enumerate() {
            if bare && asked + 1 >= majority.size() {
                this.failed(other, NodeError::UnexpectedReply, ctx.now);
                continue;
            }
            this.ask(other, spec, ctx, out);
        }
        // With a single node there is no other node to ask.
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
        let asked = Asked {
            answer: Answer::Pending,
            delivery: Delivery::NotSent,
            incarnation: 0,
            due: None,
            telling: false,
            refusals: 0,
            open: false,
            again_at: None,
        };
        let nodes = (0..ctx.fleet.majority.nodes()).map(|_| asked.clone()).collect();
        Self {
            kind,
            token,
            proposed,
            core,
            round,
            nodes,
            orders: None,
            began: ctx.now,
            patience: None,
            decide_by: None,
            ended: false,
            yielded: false,
        }
    }

    /// How many round numbers an attempt uses.
    pub(super) const ROUNDS: u32 = 2;

    fn request(&self) -> Request {
        match self.kind {
            Kind::Attach { old } => {
                Request { token: old, command: Command::SwapToken { new: self.token } }
            }
            Kind::First | Kind::GoAhead { .. } | Kind::AfterWait { .. } => {
                Request { token: self.token, command: Command::Acquire { fence: self.proposed } }
            }
        }
    }

    fn ask(&mut self, node: usize, spec: &Spec, ctx: &Context<'_>, out: &mut VecDeque<Action>) {
        let route = ctx.topology.route_acquire(node);
        let asked = &mut self.nodes[node];
        asked.again_at = None;
        match route {
            Ok(connection) => {
                asked.incarnation = ctx.topology.incarnation(node);
                asked.delivery = Delivery::InFlight { connection };
                let limit = spec.node_timeout(node, ctx);
                asked.due = Some((ctx.now.plus(limit), limit));
                asked.telling = false;
                let id = RequestId { round: self.round, node };
                out.push_back(Action::Send { id, connection, request: self.request() });
            }
            Err(error) => self.failed(node, error, ctx.now),
        }
    }

    fn failed(&mut self, node: usize, error: NodeError, now: Moment) {
        let asked = &mut self.nodes[node];
        asked.due = None;
        asked.answer = Answer::Failed(error);
        if std::mem::take(&mut asked.telling) {
            self.core.fence_answer(node, FenceAnswer::Failed, now);
        } else if asked.open {
            // It refused before it failed.
            asked.answer = Answer::Refused;
            self.refuse(node, now);
        } else {
            self.core.vote(node, Vote::Silent, now);
        }
    }

    /// Whether a response is of this attempt.
    pub(super) fn expects(&self, id: RequestId) -> bool {
        id.round == self.round || id.round == self.round + 1
    }

    /// Takes a response. Also after the end: what comes late still shows where the lock is.
    pub(super) fn handle_response(
        &mut self,
        id: RequestId,
        response: &Response,
        ctx: &Context<'_>,
    ) {
        let node = id.node;
        let asked = &mut self.nodes[node];
        if !matches!(response, Response::Failed(_)) {
            asked.delivery = Delivery::Arrived;
        }
        if id.round == self.round {
            if asked.telling {
                return;
            }
            asked.due = None;
            asked.answer = response.to_answer();
            match response {
                Response::Fence(fence) => {
                    asked.open = false;
                    self.core.vote(node, Vote::Granted(*fence), ctx.now);
                }
                Response::No => {
                    asked.refusals = asked.refusals.saturating_add(1);
                    // Once it is decided, no node is asked again.
                    asked.open = !self.ended;
                }
                Response::Failed(error) => self.failed(node, error.clone(), ctx.now),
                Response::Yes | Response::FenceAfterWait { .. } => {
                    self.failed(node, NodeError::UnexpectedReply, ctx.now);
                }
            }
        } else if std::mem::take(&mut asked.telling) {
            asked.due = None;
            asked.answer = match response {
                // It granted the lock, and another may not have it: an operator ended it meanwhile.
                Response::No => {
                    let reason = "the lock ended there while it was being acquired";
                    Answer::Failed(NodeError::Refused(reason.into()))
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

    /// What is due now: nodes that are asked again, and those whose time is over.
    pub(super) fn handle_timeout(
        &mut self,
        spec: &Spec,
        ctx: &mut Context<'_>,
        out: &mut VecDeque<Action>,
    ) {
        for node in 0..self.nodes.len() {
            let asked = &self.nodes[node];
            if let Some((_, limit)) = asked.due.filter(|(at, _)| ctx.now.has_reached(*at)) {
                let delivery = asked.delivery;
                let error = spec.timed_out(node, limit, ctx);
                self.failed(node, error, ctx.now);
                ctx.fleet.round_trips.timed_out(node);
                if let Delivery::InFlight { connection } = delivery {
                    out.push_back(Action::Suspect { node, connection });
                }
            } else if asked.again_at.is_some_and(|at| ctx.now.has_reached(at)) {
                self.ask(node, spec, ctx, out);
            }
        }
    }

    /// Gives up on everything that has not been answered.
    pub(super) fn time_is_up(&mut self, spec: &Spec, ctx: &Context<'_>) {
        for node in 0..self.nodes.len() {
            let asked = &mut self.nodes[node];
            asked.again_at = None;
            if asked.due.is_some() {
                let limit = ctx.now.since(self.began);
                let error = spec.timed_out(node, limit, ctx);
                self.failed(node, error, ctx.now);
            } else if asked.open {
                self.refuse(node, ctx.now);
            }
        }
        if !self.ended {
            self.core.time_is_up(ctx.now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Moment> {
        let due = |asked: &Asked| asked.due.map(|(at, _)| at);
        let nodes = self.nodes.iter().flat_map(|asked| [due(asked), asked.again_at]);
        let open = self.nodes.iter().any(|asked| asked.open);
        nodes
            .chain([self.patience, self.decide_by].map(|at| at.filter(|_| open)))
            .flatten()
            .reduce(Moment::earlier)
    }

    /// Carries out what has been decided. Returns the end, once.
    pub(super) fn advance(
        &mut self,
        spec: &Spec,
        ctx: &mut Context<'_>,
        out: &mut VecDeque<Action>,
    ) -> Option<End> {
        if self.ended {
            return None;
        }
        if self.nodes.iter().any(|asked| asked.open) {
            self.settle_refusals(spec, ctx, out);
            if self.yielded {
                return Some(self.end(End::Lost(Loss::Held)));
            }
        }
        while let Some(step) = self.core.poll() {
            match step {
                Step::TellFence { node, fence } => self.tell(node, fence, spec, ctx, out),
                Step::Won(win) => {
                    ctx.fleet.fences.learn(self.proposed, win.fence);
                    return Some(self.end(End::Won(win)));
                }
                Step::Lost(loss) => return Some(self.end(End::Lost(loss))),
            }
        }
        None
    }

    /// Asks no node again.
    fn end(&mut self, end: End) -> End {
        self.ended = true;
        for asked in &mut self.nodes {
            asked.open = false;
            asked.again_at = None;
        }
        end
    }

    fn tell(
        &mut self,
        node: usize,
        fence: Fence,
        spec: &Spec,
        ctx: &Context<'_>,
        out: &mut VecDeque<Action>,
    ) {
        let asked = &mut self.nodes[node];
        match ctx.topology.route(node) {
            Ok(connection) => {
                let limit = spec.node_timeout(node, ctx);
                asked.due = Some((ctx.now.plus(limit), limit));
                asked.telling = true;
                let request =
                    Request { token: self.token, command: Command::Extend { fence: Some(fence) } };
                let id = RequestId { round: self.round + 1, node };
                out.push_back(Action::Send { id, connection, request });
            }
            Err(error) => {
                asked.answer = Answer::Failed(error);
                self.core.fence_answer(node, FenceAnswer::Failed, ctx.now);
            }
        }
    }

    /// A refusal is final.
    fn refuse(&mut self, node: usize, now: Moment) {
        self.nodes[node].open = false;
        self.nodes[node].again_at = None;
        self.core.vote(node, Vote::Refused, now);
    }

    /// Decides which refusals are final, and which nodes are asked again.
    fn settle_refusals(&mut self, spec: &Spec, ctx: &mut Context<'_>, out: &mut VecDeque<Action>) {
        if matches!(self.kind, Kind::Attach { .. }) {
            return self.refuse_all(ctx.now);
        }
        let keys = &spec.keys;
        let orders = self.orders.get_or_insert_with(|| ctx.topology.orders(keys)).clone();
        if let Kind::AfterWait { node } = self.kind {
            self.yielded = before(&orders[0], node).iter().any(|&node| self.nodes[node].open);
            let patient = self.patience.is_some_and(|until| !ctx.now.has_reached(until));
            if self.yielded || !patient {
                return self.refuse_all(ctx.now);
            }
            self.ask_refusers_again(spec, ctx, out, |refusals| {
                // The round trip is pause enough for a release that is in flight already.
                let doublings = u32::from(refusals.checked_sub(2)?);
                Some(limits::PAUSE_MIN.saturating_mul(2_u32.saturating_pow(doublings)))
            });
            return;
        }
        if is_broken(Mutant::QueueNodeOutvoted) {
            return self.refuse_all(ctx.now);
        }
        // The first node of each order that has a vote decides.
        let past = if let Kind::GoAhead { past } = self.kind { Some(past) } else { None };
        let mut all_granted = true;
        for order in &orders {
            let has_vote = |node: &&usize| {
                Some(**node) != past && !matches!(self.nodes[**node].answer, Answer::Failed(_))
            };
            let Some(&decider) = order.iter().find(has_vote) else { continue };
            if self.nodes[decider].open {
                self.yielded = true;
                return self.refuse_all(ctx.now);
            }
            all_granted &= matches!(self.nodes[decider].answer, Answer::Granted(_));
        }
        if !all_granted {
            // A deciding node has not answered yet. Where no majority is left without it, it is
            // given as long as the winner of a tie needs.
            let refused = self.count(|answer| *answer == Answer::Refused);
            if refused > ctx.fleet.majority.spare() {
                let settle = limits::settle(ctx.fleet.round_trips.typical());
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
        let exhausted = |asked: &Asked| asked.open && asked.refusals > repeats;
        for node in 0..self.nodes.len() {
            if exhausted(&self.nodes[node]) {
                self.refuse(node, ctx.now);
            }
        }
        let round_trip = ctx.fleet.round_trips.typical().max(limits::PAUSE_MIN);
        self.ask_refusers_again(spec, ctx, out, |_| Some(round_trip));
    }

    /// Asks nodes again that have refused so often, after this pause; at once without one.
    fn ask_refusers_again(
        &mut self,
        spec: &Spec,
        ctx: &Context<'_>,
        out: &mut VecDeque<Action>,
        pause: impl Fn(u8) -> Option<Duration>,
    ) {
        for node in 0..self.nodes.len() {
            let asked = &mut self.nodes[node];
            if !asked.open || asked.again_at.is_some() || asked.due.is_some() {
                continue;
            }
            match pause(asked.refusals) {
                Some(pause) => asked.again_at = Some(ctx.now.plus(pause)),
                None => self.ask(node, spec, ctx, out),
            }
        }
    }

    fn refuse_all(&mut self, now: Moment) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].open {
                self.refuse(node, now);
            }
        }
    }

    /// Whether it was lost because a node that decides refused.
    pub(super) fn has_yielded(&self) -> bool {
        self.yielded
    }

    /// Whether each node that was asked has answered, or its time is over.
    pub(super) fn has_heard_all(&self) -> bool {
        let is_past = |node: usize| matches!(self.kind, Kind::GoAhead { past } if past == node);
        let mut nodes = self.nodes.iter().enumerate();
        nodes.all(|(node, asked)| is_past(node) || asked.answer != Answer::Pending)
    }

    /// How many nodes have answers of this kind.
    pub(super) fn count(&self, is: impl Fn(&Answer) -> bool) -> usize {
        self.nodes.iter().filter(|asked| is(&asked.answer)).count()
    }

    pub(super) fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.nodes.iter().map(|asked| &asked.answer)
    }

    /// What the lock begins with.
    pub(super) fn grant(&mut self, win: Win, now: Moment) -> Grant {
        if let Kind::GoAhead { past } = self.kind {
            // This attempt did not ask that node. It is repaired when the lock is extended.
            self.nodes[past].answer = Answer::Refused;
        }
        let nodes = self.nodes.drain(..).map(|asked| GrantNode {
            answer: asked.answer,
            delivery: asked.delivery,
            incarnation: asked.incarnation,
        });
        Grant {
            token: self.token,
            fence: win.fence,
            lifetime: win.lifetime,
            since: now,
            round: self.round,
            next_round: self.round + Self::ROUNDS,
            nodes: nodes.collect(),
        }
    }

    /// The nodes that were asked, and the connection through which each is sent the RELEASE.
    pub(super) fn connections(
        &self,
        topology: &Topology,
    ) -> impl Iterator<Item = (usize, Option<u64>)> {
        self.nodes.iter().enumerate().filter_map(|(node, asked)| match asked.delivery {
            Delivery::InFlight { connection } => Some((node, Some(connection))),
            Delivery::Arrived => Some((node, topology.route(node).ok())),
            Delivery::NotSent => None,
        })
    }

    /// Releases everything that it may have been granted.
    pub(super) fn roll_back(&self, spec: &Arc<Spec>, ctx: &Context<'_>) -> Release {
        let deliveries = self.nodes.iter().map(|asked| asked.delivery);
        Release::new(self.token, deliveries, spec, ctx)
    }

    /// Releases the token of a process that detached the lock, on the nodes that may still hold it
    /// by that token. No other client does so, and the new token would be refused there until the
    /// end of the ttl.
    pub(super) fn release_detached(&self, spec: &Arc<Spec>, ctx: &Context<'_>) -> Option<Release> {
        let Kind::Attach { old } = self.kind else { return None };
        let is_settled =
            |asked: &Asked| matches!(asked.answer, Answer::Granted(_) | Answer::Refused);
        if self.nodes.iter().all(is_settled) {
            return None;
        }
        let deliveries = self.nodes.iter().map(|asked| match asked.delivery {
            _ if is_settled(asked) => Delivery::NotSent,
            // The node may hold the old token although no request for the new one was sent to it.
            Delivery::NotSent => Delivery::Arrived,
            delivery => delivery,
        });
        Some(Release::new(old, deliveries, spec, ctx))
    }
}

/// The nodes that come before this one.
fn before(order: &[usize], node: usize) -> &[usize] {
    let place = order.iter().position(|&other| other == node).unwrap_or(0);
    &order[..place]
}
