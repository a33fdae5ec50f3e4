use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::Spec;
use super::late_timer::LateTimer;
use super::reach::Reach;
use super::{
    Action, Command, ConnectionId, Context, Delivery, OutgoingRequest, Request, RequestId,
    Response, Token, limits,
};
use crate::mutants::{ClientRule, is_broken};
use crate::quorum::{Moment, ReleaseRound, ReleaseVerdict};
use crate::{Answer, NodeError};

/// The RELEASEs have round numbers above this one, and the requests of calls and locks below.
const LAST_WAIT_ROUND: u32 = u32::MAX / 2;

/// Releases one token on every node that may have it, until each has answered or the ttl is over.
///
/// Call [`poll`](Self::poll) at the start and after each event, until it returns `None`. Send each
/// request at once, before the client's later requests to that node. Drop the machine once
/// [`is_done`](Self::is_done).
#[derive(Debug)]
pub struct Release {
    spec: Arc<Spec>,
    token: Token,
    tally: ReleaseRound,
    nodes: Vec<Node>,
    /// When the verdict is due, whatever is unanswered.
    limit_at: Moment,
    /// When every lease that was granted before the start has ended by its deadline.
    ends_at: Moment,
    late: LateTimer,
    actions: VecDeque<Action>,
}

#[derive(Clone, Debug)]
struct Node {
    state: State,
    answer: Answer,
    /// The round number of the last request.
    round: u32,
    /// The round number of the unanswered WAIT of this token.
    wait: Option<u32>,
    pause: Duration,
    /// The connection of an ACQUIRE in flight, which a request through another one may overtake.
    acquire_on: Option<u64>,
    /// Until when to repeat the RELEASE, which may have overtaken the ACQUIRE or WAIT on another
    /// connection.
    overtakes_until: Option<Moment>,
    /// Whether several requests may still arrive, so that no answer shows that all have.
    has_lost_several: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No RELEASE is left to send or to await.
    Done,
    /// The RELEASE was sent through this connection. If it is unanswered at `resend_at`, it is also
    /// sent through a newer connection.
    Sent { connection: u64, resend_at: Moment },
    /// The RELEASE failed, or may have overtaken an ACQUIRE or WAIT. It is repeated at `repeat_at`.
    Paused { repeat_at: Moment },
}

impl Node {
    /// Whether a request of the token may still arrive after the RELEASE.
    fn may_overtake(&self, now: Moment) -> bool {
        !is_broken(ClientRule::LostWaitForgotten)
            && self.overtakes_until.is_some_and(|until| !now.has_reached(until))
    }
}

impl Release {
    /// Releases `token` on each node that a request may have reached.
    ///
    /// The RELEASE may overtake a WAIT, which takes another connection. So it is repeated until the
    /// WAIT has been answered. After a request was lost, it is repeated up to
    /// [`RELEASE_OVERTAKES`](limits::RELEASE_OVERTAKES).
    pub(super) fn new(
        token: Token,
        nodes: impl Iterator<Item = Reach>,
        spec: &Arc<Spec>,
        ctx: &Context<'_>,
    ) -> Self {
        let now = ctx.now;
        let mut limit = Duration::ZERO;
        let mut this = Self {
            spec: Arc::clone(spec),
            token,
            tally: ReleaseRound::new(ctx.client_state.majority),
            nodes: Vec::with_capacity(ctx.client_state.majority.nodes()),
            limit_at: now,
            ends_at: now.plus(spec.ttl.duration()),
            late: LateTimer::default(),
            actions: VecDeque::new(),
        };
        for (node, reach) in nodes.enumerate() {
            this.nodes.push(Node {
                state: State::Done,
                answer: Answer::Pending,
                round: LAST_WAIT_ROUND,
                wait: reach.wait,
                pause: limits::PAUSE_MIN,
                acquire_on: None,
                has_lost_several: reach.is_lost
                    || reach.connection().is_some() && (reach.wait.is_some() || reach.has_granted),
                overtakes_until: reach.is_lost.then(|| now.plus(limits::RELEASE_OVERTAKES)),
            });
            match reach.delivery {
                Delivery::NotSent => {
                    let reason = "it was not sent a request for this lock".to_owned();
                    this.nodes[node].answer = Answer::Failed(NodeError::Down { reason });
                    this.tally.answer(node, None);
                    continue;
                }
                Delivery::InFlight { .. } if is_broken(ClientRule::SilentNotReleased) => continue,
                Delivery::InFlight { .. } if is_broken(ClientRule::ReleaseElsewhere) => {
                    this.send(node, ctx);
                }
                // Through the connection of the ACQUIRE, RELEASE cannot arrive before it.
                Delivery::InFlight { connection } => {
                    this.nodes[node].acquire_on = Some(connection);
                    this.send_through(node, connection, ctx);
                }
                Delivery::Arrived => this.send(node, ctx),
            }
            limit = limit.max(spec.node_timeout(node, ctx));
        }
        this.limit_at = now.plus(limit);
        this
    }

    /// Releases the token on some of the nodes, which all requests have reached.
    pub(super) fn on(
        token: Token,
        spec: &Arc<Spec>,
        ctx: &Context<'_>,
        is_there: impl Fn(usize) -> bool,
    ) -> Self {
        let delivery = |node| if is_there(node) { Delivery::Arrived } else { Delivery::NotSent };
        let nodes = (0..ctx.topology.nodes.len()).map(|node| Reach::of(delivery(node)));
        Self::new(token, nodes, spec, ctx)
    }

    /// The description of the lock.
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// The token to release.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The unanswered WAITs whose responses this machine needs.
    pub fn waits(&self) -> impl Iterator<Item = RequestId> {
        let waits = self.nodes.iter().enumerate();
        waits.filter_map(|(node, state)| Some(RequestId { round: state.wait?, node }))
    }

    /// Returns the next action: a request to send, or a suspicion.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` once the machine is done.
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.late.next(self.next_due())
    }

    fn next_due(&self) -> Option<Moment> {
        if self.is_done() {
            return None;
        }
        let nodes = self.nodes.iter().filter_map(|node| match node.state {
            State::Done => None,
            State::Sent { resend_at, .. } => Some(resend_at),
            State::Paused { repeat_at } => Some(repeat_at),
        });
        let limit_at = self.verdict().is_none().then_some(self.limit_at);
        nodes.chain(limit_at).chain([self.ends_at]).reduce(Moment::earlier)
    }

    /// Whether no request is left to send, to repeat or to await.
    pub fn is_done(&self) -> bool {
        let is_done = |node: &Node| node.wait.is_none() && matches!(node.state, State::Done);
        self.nodes.iter().all(is_done)
    }

    /// The verdict, once a majority has decided or the time limit is over.
    pub fn verdict(&self) -> Option<ReleaseVerdict> {
        self.tally.verdict()
    }

    /// The last answer of each node.
    pub fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.nodes.iter().map(|node| &node.answer)
    }

    /// Processes a response to one of the requests, or to one of the [WAITs](Self::waits).
    pub fn handle_response(&mut self, id: RequestId, response: &Response, ctx: &Context<'_>) {
        if self.nodes[id.node].wait == Some(id.round) {
            self.nodes[id.node].wait = None;
            if matches!(response, Response::No | Response::Held { .. }) {
                // The waiter has left the queue, and was granted nothing. An earlier request of the
                // token may have been, so a RELEASE that failed is still repeated.
                let node = &mut self.nodes[id.node];
                let has_arrived = !matches!(node.answer, Answer::Failed(_))
                    || is_broken(ClientRule::FailedReleaseForgotten);
                if matches!(node.state, State::Paused { .. })
                    && has_arrived
                    && !node.may_overtake(ctx.now)
                {
                    node.state = State::Done;
                }
            } else {
                // The waiter was granted the lock, or may have been.
                if response.is_lost() {
                    self.nodes[id.node].overtakes_until =
                        Some(ctx.now.plus(limits::RELEASE_OVERTAKES));
                }
                self.send(id.node, ctx);
            }
            return;
        }
        let node = &mut self.nodes[id.node];
        if matches!(node.state, State::Done) || id.round <= LAST_WAIT_ROUND {
            return;
        }
        node.answer = response.to_answer();
        let may_have_overtaken = node.may_overtake(ctx.now);
        self.tally.answer(id.node, response.holds());
        let node = &mut self.nodes[id.node];
        match response {
            Response::No if may_have_overtaken => self.repeat(id.node, ctx),
            Response::Yes if may_have_overtaken && node.has_lost_several => {
                self.repeat(id.node, ctx);
            }
            // The lock may have been granted after this RELEASE, so the newest RELEASE decides.
            Response::No | Response::Yes
                if node.round != id.round || !matches!(node.state, State::Sent { .. }) => {}
            Response::Failed(error) if error.is_permanent() => {
                // A repeated RELEASE would fail, too. A lease of the token ends by its deadline.
                node.state = State::Done;
                node.wait = None;
            }
            // An older request failed. The newer one is unanswered.
            Response::Failed(_) if node.round != id.round => {}
            Response::Failed(_) => self.repeat(id.node, ctx),
            // The waiter may not have been in the queue yet.
            _ if node.wait.is_some() => self.repeat(id.node, ctx),
            _ => node.state = State::Done,
        }
    }

    fn repeat(&mut self, node: usize, ctx: &Context<'_>) {
        let node = &mut self.nodes[node];
        node.state = State::Paused { repeat_at: ctx.now.plus(node.pause) };
        node.pause = (node.pause * 2).min(limits::PAUSE_LONG);
    }

    /// Carries out what is due.
    pub fn handle_timeout(&mut self, ctx: &Context<'_>) {
        if self.late.postpones(self.next_due(), ctx.now) {
            return;
        }
        if ctx.now.has_reached(self.ends_at) {
            for node in &mut self.nodes {
                node.wait = None;
                node.state = State::Done;
            }
        }
        for index in 0..self.nodes.len() {
            match self.nodes[index].state {
                State::Sent { connection, resend_at } if ctx.now.has_reached(resend_at) => {
                    let id = ConnectionId { node: index, number: connection };
                    self.actions.push_back(Action::Suspect(id));
                    // A replaced connection may never answer.
                    match ctx.topology.route(index) {
                        Ok(current) if current != connection => self.send(index, ctx),
                        _ => {
                            let resend_at = ctx.now.plus(resend_after(index, ctx));
                            self.nodes[index].state = State::Sent { connection, resend_at };
                        }
                    }
                }
                State::Paused { repeat_at } if ctx.now.has_reached(repeat_at) => {
                    self.send(index, ctx);
                }
                _ => {}
            }
        }
        if self.verdict().is_none() && ctx.now.has_reached(self.limit_at) {
            let error = NodeError::timed_out(self.spec.longest_timeout(ctx));
            for node in self.nodes.iter_mut().filter(|node| node.answer == Answer::Pending) {
                node.answer = Answer::Failed(error.clone());
            }
            self.tally.expire();
        }
    }

    fn send(&mut self, node: usize, ctx: &Context<'_>) {
        match ctx.topology.route(node) {
            Ok(connection) => self.send_through(node, connection, ctx),
            Err(error) => {
                let permanent = error.is_permanent();
                self.nodes[node].answer = Answer::Failed(error);
                self.tally.answer(node, None);
                if permanent {
                    self.nodes[node].state = State::Done;
                } else {
                    self.repeat(node, ctx);
                }
            }
        }
    }

    fn send_through(&mut self, index: usize, connection: u64, ctx: &Context<'_>) {
        let now = ctx.now;
        let node = &mut self.nodes[index];
        node.round += 1;
        if node.acquire_on.is_some_and(|acquire_on| acquire_on != connection) {
            node.overtakes_until.get_or_insert(now.plus(limits::RELEASE_OVERTAKES));
        }
        node.state = State::Sent { connection, resend_at: now.plus(resend_after(index, ctx)) };
        let id = RequestId { round: node.round, node: index };
        let request = Request { token: self.token, command: Command::Release };
        let spec = Arc::clone(&self.spec);
        self.actions.push_back(Action::Send(OutgoingRequest { id, connection, request, spec }));
    }
}

/// How long a RELEASE may be unanswered.
fn resend_after(node: usize, ctx: &Context<'_>) -> Duration {
    limits::silence(ctx.client_state.round_trips.of(node))
}
