use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::acquire::{Grant, Spec};
use super::mutants::{Mutant, is_broken};
use super::{
    Answer, Command, Context, Delivery, Mode, NodeError, Release, Request, RequestId, Response,
    Token, limits,
};
use crate::Fence;
use crate::quorum::{End, Extension, ExtensionVerdict, Moment, Standing, Tenure};

/// A held lock, from the grant to the end: ownership, extension, repair, release.
///
/// [`extend`](Self::extend) begins a round; [`poll`](Self::poll) says what to send, also for many
/// locks of a client in one pipeline per node. Responses to the ACQUIREs of the grant that were
/// still missing are fed to it as well. After [`release`](Self::release) or
/// [`detach`](Self::detach) it only undoes repairs that cross with the end.
#[derive(Debug)]
pub struct Hold {
    spec: Arc<Spec>,
    token: Token,
    fence: Fence,
    since: Moment,
    tenure: Tenure,
    /// The holder released or detached it.
    over: bool,
    /// Whether an operator revoked it on a node, or on so many that no majority extends it.
    revoked: Revoked,
    nodes: Vec<Node>,
    /// The round of the ACQUIREs that it was granted by.
    acquire_round: u32,
    /// The number of the next round.
    next_round: u32,
    /// How many rounds in a row began because a node did not hold it.
    repair_rounds: u32,
    round: Option<Round>,
    actions: VecDeque<HoldAction>,
}

/// What is known of one node.
#[derive(Clone, Debug)]
struct Node {
    /// What it answered last.
    answer: Answer,
    /// Which start of its server that was.
    incarnation: u64,
    /// Of the last ACQUIRE.
    delivery: Delivery,
    /// When that ACQUIRE was sent.
    acquired_at: Moment,
    /// Whether it has answered to anything after the ACQUIREs of the grant.
    answered_since: bool,
    /// The round of an unanswered repair.
    repair: Option<u32>,
}

/// What the nodes have said of a revocation. No later answer takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Revoked {
    Nowhere,
    /// On a minority. The lock can be extended on the others, and no node is repaired any more:
    /// that would undo what the operator did.
    Somewhere,
    /// On more nodes than may be missing: the others are no majority.
    Everywhere,
}

/// A round of extensions.
#[derive(Debug)]
struct Round {
    number: u32,
    core: Extension,
    /// Through which connection each node was asked, while it has not answered.
    pending: SmallVec<[Option<u64>; 5]>,
    /// When nodes that have not answered count as silent; none after that.
    due: Option<(Moment, Duration)>,
    decided: bool,
    /// No caller asked for it: it repairs the nodes that the round before it found to miss the
    /// lock.
    is_follow_up: bool,
}

/// What the driver of a held lock is to do.
#[derive(Debug)]
pub enum HoldAction {
    /// Send a request.
    Send(super::release::Send),
    /// A round was decided. The next is due as [`Hold::renew_in`] says.
    Decided(ExtensionVerdict),
    /// A repair was answered: whether the node holds the lock again.
    Repaired(bool),
    /// A node does not hold the lock. The next round is due as [`Hold::renew_in`] says.
    Incomplete,
    /// Another client waits for the lock on the node where it would be waited for.
    Contended,
    /// Run this machine.
    Release(Box<Release>),
    /// A node left a request unanswered: tell its link.
    Suspect {
        /// The index of the node.
        node: usize,
        /// The number of its connection.
        connection: u64,
    },
}

impl Node {
    /// Whether it is known not to hold the lock: its last answer says so, it was never asked for
    /// it, or it abstained when it was. An abstention from an extension says nothing: a replica may
    /// have the key.
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
    /// A lock that has just been granted.
    pub fn new(spec: Arc<Spec>, grant: Grant) -> Self {
        let max_hold = spec.max_hold.unwrap_or(Duration::MAX);
        let nodes = grant.nodes.into_iter().map(|node| Node {
            answer: node.answer,
            incarnation: node.incarnation,
            delivery: node.delivery,
            acquired_at: grant.since,
            answered_since: false,
            repair: None,
        });
        Self {
            spec,
            token: grant.token,
            fence: grant.fence,
            since: grant.since,
            tenure: Tenure::new(grant.lifetime, grant.since, max_hold),
            over: false,
            revoked: Revoked::Nowhere,
            nodes: nodes.collect(),
            acquire_round: grant.round,
            next_round: grant.next_round,
            repair_rounds: 0,
            round: None,
            actions: VecDeque::new(),
        }
    }

    /// The lock that it is about. Its mode changes when it is [shared](Self::downgrade).
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// The token that holds it.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Its fence.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// How long it has been held.
    pub fn held_for(&self, now: Moment) -> Duration {
        now.since(self.since)
    }

    /// Whether its holder released or detached it.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Whether it is held, and for how long. A lock that was released is as good as lost.
    pub fn standing(&self, now: Moment) -> Standing {
        if self.over { Standing::Lost(End::NotHeld) } else { self.tenure.standing(now) }
    }

    /// Whether an extension could make it last longer.
    pub fn is_extensible(&self, now: Moment) -> bool {
        !self.over && !self.is_revoked() && self.tenure.is_extensible(now)
    }

    /// Whether an operator revoked it, and the nodes that did not revoke it are no majority. It is
    /// held until its deadline.
    pub fn is_revoked(&self) -> bool {
        self.revoked == Revoked::Everywhere
    }

    fn may_repair(&self) -> bool {
        self.revoked == Revoked::Nowhere || is_broken(Mutant::RevokedRepaired)
    }

    /// When the next extension of a renewed lock is due: a third of the ttl after the last
    /// extension, sooner after one that no majority confirmed, and soon while a node that answers
    /// does not hold it. Until that is repaired, one failing node may be one too many.
    pub fn renew_in(&self, now: Moment) -> Option<Duration> {
        if self.over || self.is_revoked() {
            return None;
        }
        let regular = self.tenure.extend_in(now, self.spec.ttl)?;
        let is_missing = |node: &Node| node.answer == Answer::Refused && node.repair.is_none();
        if !self.may_repair() || !self.nodes.iter().any(is_missing) {
            return Some(regular);
        }
        let doublings = 2_u32.saturating_pow(self.repair_rounds);
        Some(regular.min(limits::REPAIR_AFTER.saturating_mul(doublings)))
    }

    /// What each node answered last, by index.
    pub fn answers(&self) -> impl ExactSizeIterator<Item = &Answer> {
        self.nodes.iter().map(|node| &node.answer)
    }

    /// How many nodes are known to hold it: nodes whose last answer says so, and that were not
    /// restarted since.
    pub fn coverage(&self, topology: &super::Topology) -> usize {
        self.holding(topology).count()
    }

    fn holding(&self, topology: &super::Topology) -> impl Iterator<Item = usize> {
        let holds = |(index, node): &(usize, &Node)| {
            matches!(node.answer, Answer::Granted(_))
                && node.incarnation == topology.incarnation(*index)
        };
        self.nodes.iter().enumerate().filter(holds).map(|(index, _)| index)
    }

    /// Whether others may hold it as well. A lock that is [shared](Self::downgrade) stays so.
    pub fn mode(&self) -> Mode {
        self.spec.mode
    }

    /// Shares an exclusive lock from now on, and extends it. Nodes may carry that out whose answers
    /// are lost: so it counts as shared whatever they answer, and every request says so from here
    /// on.
    pub fn downgrade(&mut self, ctx: &Context<'_>) {
        self.set_mode(Mode::Shared);
        // A round that is undecided asks for an exclusive lock.
        self.begin_round(false, ctx);
    }

    fn set_mode(&mut self, mode: Mode) {
        self.spec = Arc::new(Spec { mode, ..(*self.spec).clone() });
    }

    /// Begins a round of extensions, unless the lock has ended, or an earlier call's round is
    /// undecided: then that one's end is the end of this one, too.
    pub fn extend(&mut self, ctx: &Context<'_>) {
        let is_undecided = |round: &Round| !round.decided && !round.is_follow_up;
        if self.round.as_ref().is_some_and(is_undecided) {
            return;
        }
        let is_repairing = self.nodes.iter().any(|node| node.answer == Answer::Refused);
        self.repair_rounds = if is_repairing { self.repair_rounds + 1 } else { 0 };
        self.begin_round(false, ctx);
    }

    fn begin_round(&mut self, is_follow_up: bool, ctx: &Context<'_>) {
        if self.over || matches!(self.standing(ctx.now), Standing::Lost(_)) {
            return;
        }
        let number = self.next_round;
        self.next_round += 2;
        let is_missing = |node: &usize| self.nodes[*node].is_known_to_miss();
        let missing: SmallVec<[usize; 5]> = (0..self.nodes.len()).filter(is_missing).collect();
        let core = Extension::new(ctx.fleet.majority, ctx.now, self.spec.ttl)
            .known_to_hold(self.holding(ctx.topology))
            .known_to_miss(missing);
        let limit = self.spec.longest_timeout(ctx);
        self.round = Some(Round {
            number,
            core,
            pending: SmallVec::from_elem(None, self.nodes.len()),
            due: Some((ctx.now.plus(limit), limit)),
            decided: false,
            is_follow_up,
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
                    let send = super::release::Send { id, connection, request };
                    self.actions.push_back(HoldAction::Send(send));
                }
                Err(error) => {
                    self.heard(node, Answer::Failed(error), ctx);
                    self.answer_round(node, None, ctx);
                }
            }
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<HoldAction> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), while a round is undecided.
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.round.as_ref().and_then(|round| round.due).map(|(at, _)| at)
    }

    /// Gives up on nodes that have not answered the round in time.
    pub fn handle_timeout(&mut self, ctx: &Context<'_>) {
        let Some(round) = &mut self.round else { return };
        let Some((_, limit)) = round.due.filter(|(at, _)| ctx.now.has_reached(*at)) else { return };
        round.due = None;
        let pending = round.pending.clone();
        for (node, connection) in pending.into_iter().enumerate() {
            if let Some(connection) = connection {
                self.nodes[node].answer = Answer::Failed(self.spec.timed_out(node, limit, ctx));
                ctx.fleet.round_trips.timed_out(node);
                self.actions.push_back(HoldAction::Suspect { node, connection });
            }
        }
        if let Some(verdict) = self.round.as_mut().and_then(|round| round.core.time_is_up()) {
            self.decide(verdict, ctx);
        }
    }

    /// Takes a response: of the grant, of a round, or of a repair.
    pub fn handle_response(&mut self, id: RequestId, response: &Response, ctx: &Context<'_>) {
        let node = id.node;
        if id.round == self.acquire_round {
            self.handle_straggler(node, response, ctx);
        } else if self.nodes[node].repair == Some(id.round) {
            self.handle_repaired(node, response, ctx);
        } else if let Some(round) = &mut self.round
            && round.number == id.round
        {
            let connection = round.pending[node].take();
            let arrived = match self.nodes[node].delivery {
                // What went through the same connection has arrived before.
                Delivery::InFlight { connection: acquired } => Some(acquired) == connection,
                Delivery::NotSent | Delivery::Arrived => false,
            };
            if arrived && !matches!(response, Response::Failed(_)) {
                self.nodes[node].delivery = Delivery::Arrived;
            }
            self.heard(node, response.to_answer(), ctx);
            self.answer_round(node, response.holds(), ctx);
            let found_missing =
                self.round.as_ref().is_some_and(|round| round.core.has_found_missing());
            if found_missing && self.may_repair() && self.is_extensible(ctx.now) {
                self.begin_round(true, ctx);
            } else if *response == Response::No && self.nodes[node].repair.is_none() {
                self.actions.push_back(HoldAction::Incomplete);
            }
        }
    }

    /// A node answered to ACQUIRE when the lock was granted already.
    fn handle_straggler(&mut self, index: usize, response: &Response, ctx: &Context<'_>) {
        let node = &mut self.nodes[index];
        if !matches!(response, Response::Failed(_)) && node.delivery != Delivery::NotSent {
            node.delivery = Delivery::Arrived;
        }
        if !node.answered_since {
            node.answer = response.to_answer();
            if *response == Response::No {
                self.actions.push_back(HoldAction::Incomplete);
            }
        }
        if *response == Response::No && self.is_queue_node(index, ctx) {
            self.actions.push_back(HoldAction::Contended);
        }
    }

    fn is_queue_node(&self, node: usize, ctx: &Context<'_>) -> bool {
        self.spec.orders(ctx.topology).iter().any(|order| order.first() == Some(&node))
    }

    fn handle_repaired(&mut self, index: usize, response: &Response, ctx: &Context<'_>) {
        let node = &mut self.nodes[index];
        node.repair = None;
        if !matches!(response, Response::Failed(_)) {
            node.delivery = Delivery::Arrived;
        }
        self.actions.push_back(HoldAction::Repaired(response.holds() == Some(true)));
        self.heard(index, response.to_answer(), ctx);
        if self.over {
            self.undo_repair(index, ctx);
        } else if *response == Response::No {
            self.actions.push_back(HoldAction::Incomplete);
        }
    }

    fn heard(&mut self, index: usize, answer: Answer, ctx: &Context<'_>) {
        let node = &mut self.nodes[index];
        node.answer = answer;
        node.incarnation = ctx.topology.incarnation(index);
        node.answered_since = true;
        let is_revoked =
            |node: &&Node| matches!(node.answer, Answer::Failed(NodeError::Revoked { .. }));
        let revoked = match self.nodes.iter().filter(is_revoked).count() {
            0 => Revoked::Nowhere,
            count if count > ctx.fleet.majority.spare() => Revoked::Everywhere,
            _ => Revoked::Somewhere,
        };
        if revoked > self.revoked {
            self.revoked = revoked;
        }
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
        if std::mem::replace(&mut round.decided, true) {
            return;
        }
        if !self.over {
            self.tenure.settle(verdict, ctx.now);
        }
        let is_confirmed = matches!(verdict, ExtensionVerdict::Extended(_));
        if is_broken(Mutant::ExclusiveUntilConfirmed) && !is_confirmed {
            self.set_mode(Mode::Exclusive);
        }
        self.actions.push_back(HoldAction::Decided(verdict));
    }

    /// Gives a node the lock that it missed. Not while an earlier ACQUIRE may be on its way there:
    /// two of them could give the node the lock again after an operator has ended it there.
    fn repair(&mut self, index: usize, ctx: &Context<'_>) {
        let node = &self.nodes[index];
        let on_its_way = matches!(node.delivery, Delivery::InFlight { .. })
            && ctx.now.since(node.acquired_at) < self.spec.ttl.duration();
        let ended = self.over || matches!(self.standing(ctx.now), Standing::Lost(_));
        if ended || on_its_way || !self.may_repair() {
            return;
        }
        let Ok(connection) = ctx.topology.route_acquire(index) else { return };
        let Some(number) = self.round.as_ref().map(|round| round.number + 1) else { return };
        let node = &mut self.nodes[index];
        node.delivery = Delivery::InFlight { connection };
        node.acquired_at = ctx.now;
        node.repair = Some(number);
        let request =
            Request { token: self.token, command: Command::Acquire { fence: self.fence } };
        let id = RequestId { round: number, node: index };
        self.actions.push_back(HoldAction::Send(super::release::Send { id, connection, request }));
    }

    /// Nothing more is heard of repairs that have not been answered.
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

    /// The holder releases it: how it stood, and the machine that releases it on all nodes.
    pub fn release(&mut self, ctx: &Context<'_>) -> (Standing, Release) {
        let standing = self.standing(ctx.now);
        self.over = true;
        let deliveries = self.nodes.iter().map(|node| node.delivery);
        let release = Release::new(self.token, deliveries, &self.spec, ctx);
        match standing {
            Standing::Lost(_) => (standing, release.once()),
            Standing::Held(_) | Standing::Uncertain(_) => (standing, release),
        }
    }

    /// The holder gives it to another process. It stays where it is until its deadline, unless that
    /// process attaches it. Returns what is left of it.
    pub fn detach(&mut self, now: Moment) -> Option<Duration> {
        let left = match self.standing(now) {
            Standing::Held(left) | Standing::Uncertain(left) => Some(left),
            Standing::Lost(_) => None,
        };
        self.over = true;
        left
    }

    /// What the nodes answered to its release.
    pub fn handle_released(&mut self, answers: impl Iterator<Item = Answer>) {
        for (node, answer) in self.nodes.iter_mut().zip(answers) {
            node.answer = answer;
        }
    }

    /// How late renewals of this lock may be, so that several travel together.
    pub fn renewal_window(&self) -> Duration {
        limits::RENEWAL_WINDOW.min(self.spec.ttl.duration() / 50)
    }

    /// The error of a node that has not answered within this lock's time limit.
    pub fn timed_out(&self, ctx: &Context<'_>) -> NodeError {
        NodeError::timed_out(self.spec.longest_timeout(ctx))
    }
}
