//! Standing in line on all nodes, yielding to older calls, and releasing part of a lock.

use std::time::Duration;

use super::node::{Lease, State};
use super::{Acquire, Action, Partial, Phase};
use crate::client::{Command, Context, Delivery, NodeError, Release, Request, limits};
use crate::mutants::{Mutant, is_broken};

impl Acquire {
    /// Stands in line on all nodes, with a ticket above every number that a majority knows. From
    /// then on, no call that asks later is granted a majority before this one.
    pub(super) fn stand_in_line(&mut self, ctx: &mut Context<'_>) {
        let round_trip = ctx.client_state.round_trips.typical();
        let tie_ends_at = ctx.now.plus(limits::tie(round_trip));
        let leave_at = if self.may_wait(ctx.now) { self.until } else { Some(tie_ends_at) };
        self.phase = Phase::InLine { leave_at };
        if !std::mem::replace(&mut self.has_stood, true) && !is_broken(Mutant::TicketNotRaised) {
            self.ticket = ctx.client_state.fences.propose(ctx.wall_us);
            for node in &mut self.nodes {
                // It is not known yet which calls are older than the new ticket.
                node.refused = node.refused.and(Some(false));
            }
        }
        self.proceed_in_line(ctx);
    }

    pub(super) fn proceed_in_line(&mut self, ctx: &mut Context<'_>) {
        let (now, may_wait) = (ctx.now, self.may_wait(ctx.now));
        let has_lost_tie = self.older() > ctx.client_state.majority.spare() && !may_wait;
        if has_lost_tie || self.is_ruled_out(ctx) {
            return self.fail(ctx);
        }
        let round_trip = ctx.client_state.round_trips.typical();
        if self.nodes.iter().all(|node| node.lease.is_none()) {
            self.partial = None;
        } else {
            let pause = limits::patience(round_trip);
            let first = Partial { since: now, yield_at: now.plus(pause), pause };
            let partial = self.partial.get_or_insert(first);
            if now.has_reached(partial.yield_at) {
                let never = is_broken(Mutant::NeverGivesBack);
                let longest = if never { Duration::MAX } else { limits::partial(round_trip) };
                let end = partial.since.plus(longest);
                if now.has_reached(end) {
                    return self.start_over(limits::rejoin_pause(round_trip), ctx);
                }
                // In a tie, all calls have little time.
                partial.pause *= if may_wait { 2 } else { 1 };
                partial.yield_at = now.plus(partial.pause).earlier(end);
                self.give_way(ctx);
            }
        }
        self.renew_stale_grants(ctx);
        if !self.has_place {
            return self.await_place(ctx);
        }
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            if node.state == State::Idle && node.may_ask(ctx.now) {
                self.stand(index, ctx);
            } else if node.state == State::Granted && node.ticket != self.ticket {
                // To the node, this call is older than it is now.
                self.ask(index, ctx);
            }
        }
        self.widen(ctx);
    }

    /// Queues for a place in line. Until the call has one, it asks all nodes again and again: the
    /// lock may be free although other calls of this program have all places.
    fn await_place(&mut self, ctx: &mut Context<'_>) {
        match self.place_due {
            Some(due) if ctx.now.has_reached(due) => {
                self.pause = (self.pause * 2).min(limits::PAUSE_MAX);
                self.place_due = Some(ctx.now.plus(self.pause));
                self.start_over(self.pause, ctx);
            }
            Some(_) => {}
            None => {
                self.place_due = Some(ctx.now.plus(self.pause));
                self.actions.push_back(Action::TakePlace);
            }
        }
    }

    /// Asks the nodes that granted to take the lock back if an older call waits for it. Of several
    /// keys, keeps the one that most nodes granted, and releases the others.
    fn give_way(&mut self, ctx: &mut Context<'_>) {
        let Some((slot, _)) = self.most_granted() else { return };
        self.kept = slot;
        let Some(token) = self.token else { return };
        for node in 0..self.nodes.len() {
            if self.nodes[node].state != State::Granted {
                continue;
            }
            let of = self.nodes[node].lease.as_ref().and_then(|lease| lease.slot);
            if of == slot {
                if !is_broken(Mutant::NeverYields) {
                    let request = Request { token, command: Command::Yield };
                    self.send(node, State::Yielding, (request, self.wait_spec()), ctx);
                }
            } else if let Some(spec) = of.and_then(|of| self.spec.of_slot(of)) {
                let request = Request { token, command: Command::Release };
                self.send(node, State::GivingBack, (request, spec), ctx);
            }
        }
    }

    /// Asks again for grants of which too little validity is left, once a majority has granted.
    fn renew_stale_grants(&mut self, ctx: &mut Context<'_>) {
        let size = ctx.client_state.majority.size();
        let Some((slot, _)) = self.most_granted().filter(|(_, granted)| *granted >= size) else {
            return;
        };
        if is_broken(Mutant::LongWaitIsLost) {
            self.too_late = true;
            return self.fail(ctx);
        }
        self.kept = slot;
        for node in 0..self.nodes.len() {
            let has_slot = |lease: &Lease| lease.slot == slot;
            let has_granted = self.nodes[node].state == State::Granted;
            if has_granted && self.nodes[node].lease.as_ref().is_some_and(has_slot) {
                self.ask(node, ctx);
            }
        }
    }

    /// In a call for one of several keys that keeps none any more, starts over, so that it asks for
    /// all of them again on the nodes where it stands in line for one.
    fn widen(&mut self, ctx: &mut Context<'_>) {
        if self.kept.is_some() && self.partial.is_none() {
            self.start_over(Duration::ZERO, ctx);
        }
    }

    /// Whether permanent errors leave too few nodes for a majority.
    pub(super) fn is_ruled_out(&self, ctx: &Context<'_>) -> bool {
        let errors = self.nodes.iter().filter_map(|node| node.error.as_ref());
        NodeError::rule_out_majority(errors, ctx.client_state.majority)
    }

    /// Releases everything, and asks all nodes again after a pause, with the same ticket and a new
    /// token: requests with the old one may still arrive. Ends the call if its wait is over.
    pub(super) fn start_over(&mut self, at_most: Duration, ctx: &mut Context<'_>) {
        if !self.may_wait(ctx.now) || self.is_ruled_out(ctx) {
            return self.fail(ctx);
        }
        self.release_all(ctx);
        let pause = ctx.jitter(at_most);
        let until = ctx.now.plus(pause);
        let until = self.until.map_or(until, |end| until.earlier(end));
        self.phase = Phase::Pausing { until };
    }

    /// Releases the present token on all nodes that may have it.
    pub(super) fn release_all(&mut self, ctx: &Context<'_>) {
        let Some(token) = self.token.take() else { return };
        let spec = self.spec.of_all_slots();
        let was_sent = self.nodes.iter().any(|node| node.delivery != Delivery::NotSent);
        let deliveries = self.nodes.iter().map(|node| node.delivery);
        let mut release = Release::new(token, deliveries, &spec, ctx);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if let Some(round) = node.wait {
                release.await_wait(index, round);
            }
            if node.wait.is_some() || node.lease.is_some() {
                release.is_granted_elsewhere(index);
            }
            if node.is_lost {
                release.may_overtake(index, ctx.now);
            }
            if node.may_keep_token(ctx.topology.route(index).ok()) {
                node.spent_until = Some(ctx.now.plus(self.spec.ttl.duration()));
            }
            node.start_over();
        }
        self.agreement = None;
        self.partial = None;
        self.kept = None;
        // What the driver has not polled yet is not sent.
        self.actions.retain(|action| !matches!(action, Action::Send { .. } | Action::Wait { .. }));
        if was_sent {
            self.actions.push_back(Action::Release(Box::new(release)));
        }
    }
}
