//! The state of one node: what the call asked it, and what it answered.

use std::sync::Arc;
use std::time::Duration;

use super::Acquire;
use crate::client::hold::{Straggler, StragglerKind};
use crate::client::reach::Reach;
use crate::client::{
    Action, Command, ConnectionId, Context, Delivery, OutgoingRequest, Request, RequestId,
    Response, Spec, limits,
};
use crate::mutants::{ClientRule, is_broken};
use crate::quorum::{FenceAnswer, Moment, Validity};
use crate::{Answer, Fence, NodeError};

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) state: State,
    /// The number of the last request. Each request of a call has its own.
    pub(super) round: u32,
    /// When that request was sent.
    sent: Moment,
    /// When its answer is due.
    pub(super) due: Option<Moment>,
    /// What the node may hold for the present token.
    pub(super) lease: Option<Lease>,
    /// Whether the node refused when it last voted, and if so, an older call. A single failure
    /// changes nothing.
    pub(super) refused: Option<bool>,
    /// Why the last request failed; `None` if it has not.
    pub(super) error: Option<NodeError>,
    /// Whether a WAIT has ended without a grant.
    has_waited: bool,
    failures: u32,
    /// When to stand in line again after a failure; `None` for at once.
    pub(super) again_at: Option<Moment>,
    pub(super) reach: Reach,
    /// The lock that the last request which may grant asked for, and its ticket.
    asked: Option<Arc<Spec>>,
    pub(super) ticket: Fence,
    pub(super) incarnation: u64,
    /// Until when the node may hold an earlier token of this call.
    pub(super) spent_until: Option<Moment>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// The node has nothing of this call, as far as the call knows, and was asked nothing.
    #[default]
    Idle,
    /// ACQUIRE is unanswered.
    Asked,
    /// The call stands in line there, or has no connection for the WAIT yet.
    InLine,
    /// The node has granted. Only in this state, its lease counts.
    Granted,
    /// YIELD, or the RELEASE of a key that the call does not keep, is unanswered. It may still
    /// arrive, so the lease does not count.
    Yielding,
    /// The node has granted, and was asked to store the agreed fence.
    Storing,
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) fence: Fence,
    pub(super) validity: Option<Validity>,
    /// The position of the granted key among the keys of the call, in a call for one of several.
    pub(super) slot: Option<usize>,
}

impl Node {
    /// Forgets everything about the present token.
    pub(super) fn start_over(&mut self) {
        let Self { refused, failures, spent_until, .. } = *self;
        let error = self.error.take();
        *self = Self { refused, error, failures, spent_until, ..Self::default() };
    }

    /// The answer as a failed call reports it. A node that failed once is reported as it was last
    /// heard.
    pub(super) fn answer(&self, now: Moment) -> Answer {
        // The refusal may be due to an earlier token of this call.
        let is_own = self.spent_until.is_some_and(|until| !now.has_reached(until));
        match (self.refused, &self.error) {
            (Some(_), _) if is_own && !is_broken(ClientRule::HeldByItself) => {
                Answer::Failed(NodeError::HeldByLostRequest)
            }
            (Some(_), _) => Answer::Refused,
            (None, Some(error)) => Answer::Failed(error.clone()),
            // The grant is being released: its fence is not valid.
            (None, None) if self.lease.is_some() && self.state != State::Asked => {
                Answer::Granted(None)
            }
            (None, None) => Answer::Pending,
        }
    }

    /// Whether this is the node's last request. The answer to an earlier WAIT says only that the
    /// WAIT is over.
    pub(super) fn awaits(&mut self, round: u32, response: &Response) -> bool {
        if round != self.round {
            self.reach.wait.take_if(|wait| *wait == round);
            self.reach.may_have_others |=
                matches!(response, Response::Granted { key: Some(_), .. });
        }
        round == self.round
    }

    /// Whether the node's lease counts, as long as it is valid.
    pub(super) fn counts(&self) -> bool {
        self.state == State::Granted
            || is_broken(ClientRule::YieldingCounts) && self.state == State::Yielding
    }

    /// Whether the node has granted the key at this position, or all keys.
    pub(super) fn has_slot(&self, slot: Option<usize>) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.slot == slot)
    }

    /// The request that may still grant the lock of this key or give it up.
    pub(super) fn straggler(&self, key: &[u8]) -> Option<Straggler> {
        let asked = self.asked.as_ref();
        let key = asked.and_then(|asked| asked.keys.iter().position(|other| other == key));
        let kind = match self.state {
            _ if self.reach.wait.is_some() => StragglerKind::Wait { key },
            State::Asked | State::Idle if self.reach.connection().is_some() => {
                StragglerKind::Acquire { key }
            }
            State::Yielding => StragglerKind::Yield,
            _ => return None,
        };
        let round = self.reach.wait.unwrap_or(self.round);
        Some(Straggler { round, kind })
    }

    /// When the answer is due, or when a failed request may be repeated.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.due.or(self.again_at.filter(|_| self.state == State::Idle))
    }

    /// The node no longer holds the lock for the present token.
    fn vacate(&mut self, refused: Option<bool>) {
        self.state = State::Idle;
        self.lease = None;
        self.due = None;
        self.again_at = None;
        self.refused = refused;
        self.error = None;
    }

    fn fail(&mut self, error: NodeError, now: Moment) {
        self.state = State::Idle;
        self.due = None;
        if self.failures > 0 && !matches!(error, NodeError::QueueFull { .. }) {
            self.refused = None;
        }
        self.error = Some(error);
        self.pause(now);
    }

    /// Delays the next request, the longer the more requests have failed.
    fn pause(&mut self, now: Moment) {
        let pause = limits::PAUSE_MIN.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.again_at = Some(now.plus(pause.min(limits::PAUSE_MAX)));
    }
}

impl Acquire {
    /// Sends ACQUIRE, or for an attach the swap of the token, to a node.
    pub(super) fn ask(&mut self, index: usize, ctx: &mut Context<'_>) {
        let Some(token) = self.token else { return };
        let command = match self.spec.any {
            None => Command::Acquire { fence: self.ticket },
            Some(_) => Command::AcquireAny { fence: self.ticket },
        };
        let request = match self.attaches {
            None => Request { token, command },
            Some(old) => Request { token: old, command: Command::SwapToken { new: token } },
        };
        self.send(index, State::Asked, (request, Arc::clone(&self.spec)), ctx);
    }

    /// Sends a request through the node's shared connection, with a time limit.
    pub(super) fn send(
        &mut self,
        index: usize,
        state: State,
        (request, spec): (Request, Arc<Spec>),
        ctx: &mut Context<'_>,
    ) {
        let may_grant = state == State::Asked;
        let route =
            if may_grant { ctx.topology.route_acquire(index) } else { ctx.topology.route(index) };
        let connection = match route {
            Ok(connection) => connection,
            Err(error) => match state {
                State::Asked => return self.nodes[index].fail(error, ctx.now),
                State::Storing => {
                    return self.fence_stored(index, &Response::Failed(error), ctx);
                }
                // Nothing was sent, so the lease stays.
                _ => return,
            },
        };
        let limit = self.spec.node_timeout(index, ctx);
        self.last_round += 1;
        let node = &mut self.nodes[index];
        if may_grant {
            node.reach.send_acquire(connection);
            node.incarnation = ctx.topology.incarnation(index);
            node.asked = Some(Arc::clone(&spec));
            node.ticket = self.ticket;
            node.error = None;
        }
        node.state = state;
        node.round = self.last_round;
        node.sent = ctx.now;
        node.due = Some(ctx.now.plus(limit));
        let id = RequestId { round: node.round, node: index };
        let send = OutgoingRequest { id, connection, request, spec };
        self.actions.push_back(Action::Send(send));
    }

    /// Asks the driver for a connection on which to stand in line.
    pub(super) fn stand(&mut self, index: usize, ctx: &mut Context<'_>) {
        if let Err(error) = ctx.topology.route_acquire(index) {
            return self.nodes[index].fail(error, ctx.now);
        }
        self.last_round += 1;
        let id = RequestId { round: self.last_round, node: index };
        let node = &mut self.nodes[index];
        (node.state, node.round, node.again_at) = (State::InLine, id.round, None);
        self.actions.push_back(Action::Wait { id });
    }

    /// Returns the WAIT to send through this connection; `None` if the call no longer needs it.
    pub fn handle_wait_connection(
        &mut self,
        id: RequestId,
        ctx: &mut Context<'_>,
    ) -> Option<(Request, Arc<Spec>)> {
        let token = self.token?;
        // In a tie, the first WAIT ends soon, to hear whether an older call has the node.
        let slice = if self.may_wait(ctx.now) || self.nodes[id.node].has_waited {
            ctx.jitter(limits::WAIT_SLICE)
        } else {
            limits::patience(ctx.client_state.round_trips.typical())
        };
        let left = self.phase_ends.map_or(slice, |at| at.since(ctx.now));
        let wait = limits::wait_of(slice.min(left));
        let limit = self.spec.node_timeout(id.node, ctx) + limits::WAIT_GRACE;
        let (kept, spec) = (self.kept, self.spec_of(self.kept));
        let node = &mut self.nodes[id.node];
        if node.round != id.round || node.state != State::InLine {
            return None;
        }
        // The answer says nothing of another key that the node has granted.
        node.reach.may_have_others |=
            kept.is_some() && node.lease.is_some() && !node.has_slot(kept);
        node.sent = ctx.now;
        node.due = Some(ctx.now.plus(wait + limit));
        node.reach.send_wait(id.round);
        node.incarnation = ctx.topology.incarnation(id.node);
        let request = Request { token, command: Command::Wait { fence: self.ticket, wait } };
        node.asked = Some(Arc::clone(&spec));
        node.ticket = self.ticket;
        Some((request, spec))
    }

    /// The lock of the key at this position, in a call for one of several; `None` for all keys.
    pub(super) fn spec_of(&self, slot: Option<usize>) -> Arc<Spec> {
        let of_slot = |slot| self.spec.with_keys(self.spec.keys.only(slot));
        slot.map_or_else(|| Arc::clone(&self.spec), of_slot)
    }

    /// Handles the answer to the node's last request.
    pub(super) fn answered(&mut self, index: usize, response: &Response, ctx: &mut Context<'_>) {
        let node = &mut self.nodes[index];
        let round = node.round;
        let was_waiting = node.reach.wait.take_if(|wait| *wait == round).is_some();
        let is_lost = response.is_lost();
        if !is_lost && !was_waiting && matches!(node.state, State::Asked | State::Idle) {
            node.reach.delivery = Delivery::Arrived;
        }
        node.reach.is_lost |= is_lost && was_waiting;
        match (node.state, response) {
            (State::Yielding, Response::Yes | Response::No) => {
                // If the lease was gone, it is not known whether another call has the node.
                let is_kept = node.lease.as_ref().is_some_and(|lease| lease.slot == self.kept);
                node.vacate((is_kept && *response == Response::Yes).then_some(true));
            }
            (State::Yielding, _)
                if *response == Response::Kept || is_broken(ClientRule::LostYieldForgotten) =>
            {
                node.state = State::Granted;
                node.due = None;
            }
            (State::Yielding, _) => {
                // The request may still arrive, so nothing that this token is granted would last.
                if let Response::Failed(error) = response {
                    node.error = Some(error.clone());
                }
                self.start_over(limits::rejoin_pause(ctx.client_state.round_trips.typical()), ctx);
            }
            (State::Storing, _) => self.fence_stored(index, response, ctx),
            (_, Response::Held { is_older, .. }) => {
                let waited = ctx.now.since(node.sent);
                let limit = self.spec.node_timeout(index, ctx) + limits::WAIT_GRACE;
                let is_early = |due: Moment| waited * 2 + limit < due.since(node.sent);
                let is_early = was_waiting && node.due.is_some_and(is_early);
                // Other keys than the one that the call keeps may be free.
                let all = self.spec.keys.len();
                let is_of_all = node.asked.as_ref().is_none_or(|asked| asked.keys.len() == all);
                node.has_waited |= was_waiting;
                node.vacate(Some(*is_older && is_of_all));
                if was_waiting && is_broken(ClientRule::SliceNotRenewed) {
                    node.again_at = Some(ctx.now.plus(limits::RELEASE_OVERTAKES));
                } else if is_early {
                    node.pause(ctx.now);
                } else {
                    node.failures = 0;
                }
            }
            (_, Response::No | Response::Yes | Response::Kept) => {
                // The token to swap is gone, or another request has ended the wait.
                node.vacate(node.refused.or(Some(true)));
                node.pause(ctx.now);
            }
            (_, Response::Failed(error)) => node.fail(error.clone(), ctx.now),
            (_, Response::Granted { fence, waited, key }) => {
                self.granted(index, *fence, *waited, *key, ctx);
            }
        }
    }

    fn granted(
        &mut self,
        index: usize,
        fence: Fence,
        waited: Duration,
        key: Option<usize>,
        ctx: &Context<'_>,
    ) {
        let ttl = self.spec.ttl;
        let node = &mut self.nodes[index];
        let slot = key.map(|key| {
            let granted = node.asked.as_ref().and_then(|asked| asked.keys.iter().nth(key));
            self.spec.keys.iter().position(|key| Some(key) == granted).unwrap_or(0)
        });
        let from_answer = is_broken(ClientRule::ValidFromAnswer) && !waited.is_zero();
        let (sent, waited) =
            if from_answer { (ctx.now, Duration::ZERO) } else { (node.sent, waited) };
        let validity = Validity::after_wait(sent, waited, ttl);
        node.state = State::Granted;
        node.due = None;
        node.lease = Some(Lease { fence, validity, slot });
        node.refused = None;
        node.failures = 0;
        node.error = None;
    }

    fn fence_stored(&mut self, index: usize, response: &Response, ctx: &mut Context<'_>) {
        let node = &mut self.nodes[index];
        node.due = None;
        node.state = State::Granted;
        let answer = match response {
            Response::Granted { fence, .. } => {
                if let Some(lease) = &mut node.lease {
                    lease.fence = *fence;
                }
                FenceAnswer::Stored(*fence)
            }
            Response::Failed(error @ NodeError::ClockBehind { .. }) => {
                node.error = Some(error.clone());
                FenceAnswer::Unacceptable
            }
            // The lease may be gone, and it is not known whether another call has the node.
            _ => {
                node.vacate(None);
                if let Response::Failed(error) = response {
                    node.fail(error.clone(), ctx.now);
                }
                FenceAnswer::Failed
            }
        };
        if let Some(agreement) = &mut self.agreement {
            agreement.core.fence_answer(index, answer, ctx.now);
        }
    }

    /// Treats a node as silent whose time is over.
    pub(super) fn expire(&mut self, index: usize, ctx: &mut Context<'_>) {
        let node = &mut self.nodes[index];
        node.again_at.take_if(|at| ctx.now.has_reached(*at));
        let Some(due) = node.due.take_if(|due| ctx.now.has_reached(*due)) else { return };
        let error = self.spec.timed_out(index, due.since(node.sent), ctx);
        if node.state == State::InLine {
            // The answer may still come, and the WAIT is released at the end.
            node.reach.is_lost = true;
            return node.fail(error, ctx.now);
        }
        if let Some(number) = node.reach.connection().or_else(|| ctx.topology.route(index).ok()) {
            self.actions.push_back(Action::Suspect(ConnectionId { node: index, number }));
        }
        ctx.client_state.round_trips.timed_out(index);
        self.answered(index, &Response::Failed(error), ctx);
    }
}
