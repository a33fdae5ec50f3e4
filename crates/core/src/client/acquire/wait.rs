//! A wait on one node: checks of that node, attempts during the wait, and when to leave.

use std::sync::Arc;

use super::attempt::{Attempt, AttemptEnd, Kind, NodeGrant};
use super::{Acquire, Action, Inspect, Next, PendingRelease, Phase, Reason, WaitEnd, Waiting};
use crate::client::mutants::{Mutant, is_broken};
use crate::client::{
    Answer, Command, Context, NodeError, Release, Request, RequestId, Response, limits, mutants,
};
use crate::quorum::{Moment, Validity};

impl Acquire {
    pub(super) fn wait_on(&mut self, node: usize, ctx: &mut Context<'_>) {
        self.attempts += 1;
        self.contended = true;
        let limited = self.until.filter(|_| !is_broken(Mutant::NoDeadline));
        self.deadline = limited.map(|until| until.plus(limits::CALL_GRACE));
        if let Err(error) = ctx.topology.route_acquire(node) {
            // Only the grant of an admitted node counts.
            self.answers[node] = Answer::Failed(error);
            return self.pause_before(Next::AskAll, ctx);
        }
        let Some(token) = mutants::new_token(self.started, ctx) else {
            return self.finish(Reason::NoRandom, ctx);
        };
        let id = RequestId { round: self.reserve_rounds(1), node };
        let (spec, is_partial) = match &self.slots {
            Some(slots) => (slots.candidates(), slots.is_partial()),
            None => (Arc::clone(&self.spec), false),
        };
        self.actions.push_back(Action::Wait { id });
        // While there is no connection for the WAIT, each check may start an attempt.
        let check_at = ctx.now.plus(ctx.jitter(limits::PAUSE_MAX));
        self.phase = Phase::Waiting(Box::new(Waiting {
            spec,
            is_partial,
            node,
            id,
            token,
            sent: None,
            incarnation: ctx.topology.incarnation(node),
            ended: None,
            ends_at: None,
            leave_at: self.wait_until(ctx),
            check_at,
            ping: None,
            inspect: None,
            inspect_offset: 1,
            refused_in_minority: self.refused_in_minority(ctx),
            side_attempt: None,
            granted: None,
        }));
    }

    /// When to end the WAIT: early enough for the last check before the end of the call. `None` for
    /// a wait without end.
    pub(super) fn wait_until(&self, ctx: &Context<'_>) -> Option<Moment> {
        let until = self.until?;
        let settle = limits::settle(ctx.client_state.round_trips.typical());
        let early = settle.saturating_sub(limits::CALL_GRACE.saturating_sub(limits::WAIT_GRACE));
        let left = ctx.now.until(until);
        Some(ctx.now.plus(left.saturating_sub(early)))
    }

    /// Handles the answer to the WAIT, or the failure to get a connection for it.
    pub(super) fn handle_wait_over(&mut self, response: &Response, ctx: &mut Context<'_>) {
        let order = self.order(ctx);
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        let id = waiting.id;
        let is_lost = matches!(response, Response::Failed(NodeError::Down { .. }));
        waiting.ended = Some(if is_lost { WaitEnd::ConnectionLost } else { WaitEnd::Answered });
        self.actions.push_back(Action::StopWaiting { id });
        match response {
            Response::FenceAfterWait { fence, waited }
            | Response::FenceAndKey { fence, waited, .. } => {
                let slot = match response {
                    Response::FenceAndKey { key, .. } => waiting.spec.slot_at(*key),
                    _ => None,
                };
                let Some(sent) = waiting.sent else { return };
                self.contended = !waited.is_zero();
                let granted = NodeGrant {
                    node: waiting.node,
                    token: waiting.token,
                    fence: *fence,
                    validity: if is_broken(Mutant::ValidFromAnswer) {
                        Validity::new(ctx.now, self.spec.ttl)
                    } else {
                        Validity::after_wait(sent, *waited, self.spec.ttl)
                    },
                    incarnation: ctx.topology.incarnation(waiting.node),
                    silent: self.silent.clone(),
                    order,
                };
                if waiting.side_attempt.is_some() {
                    // The side attempt ends soon. If it is lost, the call uses this grant.
                    waiting.granted = Some((granted, slot));
                    waiting.leave_at = None;
                } else {
                    self.acquire_others(granted, slot, ctx);
                }
            }
            Response::Held { .. } | Response::No => {
                // The server can end a WAIT early, for example by `CLIENT UNBLOCK`.
                let is_over = |at: Moment| ctx.now.plus(limits::WAIT_GRACE).has_reached(at);
                let is_partial = waiting.is_partial;
                self.is_last_attempt |= !is_partial && waiting.ends_at.is_some_and(is_over);
                self.stop_side_attempt(ctx);
                self.end_partial_wait(is_partial);
                self.pick_slot(ctx);
                self.start(Kind::AllNodes, ctx);
            }
            Response::Failed(error) => self.leave_node(error.clone(), ctx),
            Response::Fence(_) | Response::Yes => self.leave_node(NodeError::UnexpectedReply, ctx),
        }
    }

    /// Starts an attempt on the other nodes, for the lock that one node granted.
    pub(super) fn acquire_others(
        &mut self,
        granted: NodeGrant,
        slot: Option<usize>,
        ctx: &mut Context<'_>,
    ) {
        if let (Some(slots), Some(slot)) = (&mut self.slots, slot) {
            slots.select(slot);
            self.spec = slots.spec();
        }
        let round = self.reserve_rounds(Attempt::ROUNDS);
        let attempt = Attempt::after_grant(&self.spec, granted, round, ctx, &mut self.actions);
        self.phase = Phase::Attempting(attempt);
    }

    /// Leaves a node on which the call can no longer wait, and pauses before the next attempt.
    pub(super) fn leave_node(&mut self, error: NodeError, ctx: &mut Context<'_>) {
        if let Phase::Waiting(waiting) = std::mem::take(&mut self.phase) {
            if waiting.sent.is_some() && !matches!(waiting.ended, Some(WaitEnd::Answered)) {
                self.pending_releases[waiting.node] = Some(PendingRelease::Wait);
            }
            self.answers[waiting.node] = Answer::Failed(error);
            self.leave(&waiting, ctx);
        }
        self.pause_before(Next::AskAll, ctx);
    }

    pub(super) fn stop_side_attempt(&mut self, ctx: &Context<'_>) {
        if let Phase::Waiting(waiting) = &mut self.phase
            && let Some(side_attempt) = waiting.side_attempt.take()
        {
            self.roll_back(&side_attempt, ctx);
        }
    }

    /// Leaves the queue, and gives up the side attempt.
    pub(super) fn leave(&mut self, waiting: &Waiting, ctx: &Context<'_>) {
        if let Some(side_attempt) = &waiting.side_attempt {
            self.roll_back(side_attempt, ctx);
        }
        self.end_wait(waiting, ctx);
    }

    /// Ends the WAIT, and releases what the node may have granted to it.
    pub(super) fn end_wait(&mut self, waiting: &Waiting, ctx: &Context<'_>) {
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

    pub(super) fn check_wait(&mut self, ctx: &mut Context<'_>) {
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        if let Some(side_attempt) = &mut waiting.side_attempt {
            side_attempt.handle_timeout(&self.spec, ctx, &mut self.actions);
        }
        if let Some((_, due)) = waiting.ping
            && ctx.now.has_reached(due)
        {
            let limit = limits::liveness(ctx.client_state.round_trips.of(waiting.node));
            if let Ok(connection) = ctx.topology.route(waiting.node) {
                self.actions.push_back(Action::Suspect { node: waiting.node, connection });
            }
            return self.leave_node(NodeError::timed_out(limit), ctx);
        }
        if waiting.inspect.is_some_and(|inspect| ctx.now.has_reached(inspect.due)) {
            waiting.inspect = None;
            waiting.inspect_offset += usize::from(!is_broken(Mutant::InspectsOneNode));
        }
        if waiting.leave_at.is_some_and(|leave_at| ctx.now.has_reached(leave_at)) {
            let is_partial = waiting.is_partial;
            if let Phase::Waiting(waiting) = std::mem::take(&mut self.phase) {
                self.leave(&waiting, ctx);
            }
            self.is_last_attempt |= !is_partial;
            self.end_partial_wait(is_partial);
            self.pick_slot(ctx);
            return self.start(Kind::AllNodes, ctx);
        }
        if !ctx.now.has_reached(waiting.check_at) {
            return;
        }
        if waiting.sent.is_none() {
            if let Err(error) = ctx.topology.route_acquire(waiting.node)
                && !is_broken(Mutant::WaitsForConnectionOfSilentNode)
            {
                // A node that does not answer accepts no connection for the WAIT either. The
                // attempt to connect would fail only after the time limit of the handshake.
                return self.leave_node(error, ctx);
            }
            waiting.check_at = ctx.now.plus(ctx.jitter(limits::WAIT_CHECK_EVERY));
            if waiting.side_attempt.is_none() && !is_broken(Mutant::NoPollWithoutWaitConnection) {
                // A node may have a lease of a lock that was not released. Then each attempt on all
                // nodes is lost, so check first whether the call can bypass that node.
                let may_bypass =
                    |node: &usize| *node == waiting.node || !is_broken(Mutant::BypassesOnlyItsNode);
                let refusing = waiting.refused_in_minority.take().filter(may_bypass);
                if let Some(node) = refusing.filter(|_| waiting.inspect.is_none()) {
                    let offset = waiting.inspect_offset;
                    self.inspect_another(node, offset, ctx);
                } else {
                    self.pick_slot(ctx);
                    self.start_side_attempt(Kind::AllNodes, ctx);
                }
            }
            return;
        }
        let has_restarted = waiting.incarnation != ctx.topology.incarnation(waiting.node);
        if has_restarted && !is_broken(Mutant::WaitsPastRestart) {
            // The node has lost its queue, even if the connection of the WAIT still seems open.
            return self.leave_node(NodeError::connection_lost(), ctx);
        }
        if is_broken(Mutant::LeavesQueue) && waiting.side_attempt.is_none() {
            let node = waiting.node;
            self.leave_node(NodeError::UnexpectedReply, ctx);
            return self.wait_on(node, ctx);
        }
        waiting.check_at = ctx.now.plus(limits::WAIT_CHECK_EVERY);
        let (node, offset) = (waiting.node, waiting.inspect_offset);
        if waiting.ping.is_none() {
            let round = self.reserve_rounds(1);
            self.ping(RequestId { round, node }, ctx);
        }
        let Phase::Waiting(waiting) = &self.phase else { return };
        let may_bypass = !is_broken(Mutant::NeverBypasses);
        if may_bypass && waiting.inspect.is_none() && waiting.side_attempt.is_none() {
            self.inspect_another(node, offset, ctx);
        }
    }

    pub(super) fn ping(&mut self, id: RequestId, ctx: &mut Context<'_>) {
        match ctx.topology.route(id.node) {
            Ok(connection) => {
                let Phase::Waiting(waiting) = &mut self.phase else { return };
                let liveness = limits::liveness(ctx.client_state.round_trips.of(id.node));
                waiting.ping = Some((id, ctx.now.plus(liveness)));
                let request = Request { token: waiting.token, command: Command::Ping };
                self.actions.push_back(Action::Send { id, connection, request });
            }
            Err(error) => self.leave_node(error, ctx),
        }
    }

    /// Sends INSPECT to the first available node but `bypass`, starting `offset` places after it in
    /// the order. If the lock is free there, the call bypasses `bypass`.
    pub(super) fn inspect_another(&mut self, bypass: usize, offset: usize, ctx: &mut Context<'_>) {
        self.pick_slot(ctx);
        let order = self.order(ctx);
        let place = order.iter().position(|&other| other == bypass).unwrap_or(0);
        let others = (0..order.len()).map(|step| order[(place + offset + step) % order.len()]);
        let route = |other| Some((other, ctx.topology.route_acquire(other).ok()?));
        let Some((other, connection)) = others.filter(|&other| other != bypass).find_map(route)
        else {
            return;
        };
        let id = RequestId { round: self.reserve_rounds(1), node: other };
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        let limit = self.spec.node_timeout(other, ctx);
        waiting.inspect = Some(Inspect { id, due: ctx.now.plus(limit), bypass });
        let request = Request { token: waiting.token, command: Command::Inspect };
        self.actions.push_back(Action::Send { id, connection, request });
    }

    /// Starts an attempt on all other nodes, because the lock is free on one of them.
    pub(super) fn bypass(&mut self, node: usize, ctx: &mut Context<'_>) {
        if let Phase::Waiting(waiting) = &self.phase
            && waiting.side_attempt.is_none()
            && waiting.granted.is_none()
        {
            self.start_side_attempt(Kind::Bypass { node }, ctx);
        }
    }

    pub(super) fn start_side_attempt(&mut self, kind: Kind, ctx: &mut Context<'_>) {
        self.attempts += 1;
        let Some(token) = mutants::new_token(self.started, ctx) else { return };
        let round = self.reserve_rounds(Attempt::ROUNDS);
        let attempt = Attempt::new(kind, &self.spec, token, round, ctx, &mut self.actions);
        if let Phase::Waiting(waiting) = &mut self.phase {
            waiting.side_attempt = Some(attempt);
        }
        self.proceed(ctx);
    }

    pub(super) fn side_attempt_ended(&mut self, end: AttemptEnd, ctx: &mut Context<'_>) {
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        let Some(mut side_attempt) = waiting.side_attempt.take() else { return };
        if let AttemptEnd::Won(win) = end {
            if let Phase::Waiting(waiting) = std::mem::take(&mut self.phase) {
                self.end_wait(&waiting, ctx);
            }
            // No other client holds the lock, whatever the node of the wait answers.
            self.contended = false;
            return self.won(&mut side_attempt, win, ctx);
        }
        let granted = waiting.granted.take();
        self.keep_answers(&side_attempt);
        self.roll_back(&side_attempt, ctx);
        let refused_in_minority = self.refused_in_minority(ctx);
        if let Phase::Waiting(waiting) = &mut self.phase {
            waiting.refused_in_minority = refused_in_minority;
        }
        if let Some((granted, slot)) = granted {
            self.acquire_others(granted, slot, ctx);
            // With a single node, no answer follows that would advance the attempt.
            self.proceed(ctx);
        } else if self.majority_is_ruled_out(ctx) {
            if let Phase::Waiting(waiting) = std::mem::take(&mut self.phase) {
                self.leave(&waiting, ctx);
            }
            self.fail(ctx);
        }
    }
}

impl Waiting {
    pub(super) fn poll_timeout(&self) -> Option<Moment> {
        let ping = self.ping.map(|(_, due)| due);
        let inspect = self.inspect.map(|inspect| inspect.due);
        let side_attempt = self.side_attempt.as_ref().and_then(Attempt::poll_timeout);
        ping.into_iter()
            .chain(inspect)
            .chain(self.leave_at)
            .chain(side_attempt)
            .chain([self.check_at])
            .reduce(Moment::earlier)
    }
}
