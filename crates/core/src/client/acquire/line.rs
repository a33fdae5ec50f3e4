//! Standing in line on all nodes, yielding to older calls, and releasing part of a lock.

use std::time::Duration;

use super::node::{Node, State};
use super::{Acquire, Partial, Phase};
use crate::NodeError;
use crate::client::reach::Reach;
use crate::client::{Action, Command, Context, Release, Request, limits};
use crate::mutants::{ClientRule, is_broken};

impl Acquire {
    /// Stands in line on all nodes, with a ticket above every number that a majority knows. From
    /// then on, no call that asks later is granted a majority before this one.
    pub(super) fn stand_in_line(&mut self, ctx: &mut Context<'_>) {
        let round_trip = ctx.client_state.round_trips.typical();
        let tie_ends_at = ctx.now.plus(limits::tie(round_trip));
        let leave_at = if self.may_wait(ctx.now) { self.until } else { Some(tie_ends_at) };
        (self.phase, self.phase_ends) = (Phase::InLine, leave_at);
        if !std::mem::replace(&mut self.is_ticket_final, true)
            && !is_broken(ClientRule::TicketNotRaised)
        {
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
            if self.kept.is_some() {
                // A call for one of several keys that keeps none any more asks for all of them.
                return self.start_over(Duration::ZERO, ctx);
            }
        } else {
            let pause = limits::patience(round_trip);
            let first = Partial { since: now, yield_at: now.plus(pause) };
            let partial = self.partial.get_or_insert(first);
            if now.has_reached(partial.yield_at) {
                let never = is_broken(ClientRule::NeverGivesBack);
                let longest = if never { Duration::MAX } else { limits::silence(round_trip) };
                let end = partial.since.plus(longest);
                if now.has_reached(end) {
                    if let Some(kept) = self.kept {
                        // A lock of this key may have the other nodes: try the next key first.
                        self.spec = self.spec.with_keys(self.spec.keys.starting_at(kept + 1));
                    }
                    return self.start_over(limits::rejoin_pause(round_trip), ctx);
                }
                // The pauses double, but in a tie, all calls have little time.
                let doubling = if may_wait { now.since(partial.since) } else { Duration::ZERO };
                partial.yield_at = now.plus(pause + doubling).earlier(end);
                self.give_way(ctx);
            }
        }
        if !self.take_place(ctx) {
            // Other calls of this program have all places, but the lock may be free.
            return self.start_over_later(ctx);
        }
        // A majority has granted, and too little is left of the validity.
        let size = ctx.client_state.majority.size();
        let stale = self.most_granted().filter(|(_, granted)| *granted >= size);
        if let Some((slot, _)) = stale {
            if is_broken(ClientRule::LongWaitIsLost) {
                return self.fail(ctx);
            }
            self.kept = slot;
        }
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            let is_stale = stale.is_some_and(|(slot, _)| node.has_slot(slot));
            if node.state == State::Idle && node.again_at.is_none() {
                self.stand(index, ctx);
            } else if node.state == State::Granted && (is_stale || node.ticket != self.ticket) {
                // To a node with another ticket, this call is older than it is now.
                self.ask(index, ctx);
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
            let Node { state: State::Granted, lease: Some(lease), .. } = &self.nodes[node] else {
                continue;
            };
            let of = lease.slot;
            let command = if of == slot { Command::Yield } else { Command::Release };
            if command == Command::Release || !is_broken(ClientRule::NeverYields) {
                let request = Request { token, command };
                self.send(node, State::Yielding, (request, self.spec_of(of)), ctx);
            }
        }
    }

    /// Whether permanent errors leave too few nodes for a majority.
    pub(super) fn is_ruled_out(&self, ctx: &Context<'_>) -> bool {
        let errors = self.nodes.iter().filter_map(|node| node.error.as_ref());
        NodeError::rule_out_majority(errors, ctx.client_state.majority)
    }

    /// Starts over after a pause that doubles each time.
    pub(super) fn start_over_later(&mut self, ctx: &mut Context<'_>) {
        self.pause = (self.pause * 2).min(limits::PAUSE_MAX);
        self.start_over(self.pause, ctx);
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
        self.phase = Phase::Pausing;
        self.phase_ends = Some(self.until.map_or(until, |end| until.earlier(end)));
    }

    /// Releases the present token on all nodes that may have it.
    pub(super) fn release_all(&mut self, ctx: &Context<'_>) {
        let Some(token) = self.token.take() else { return };
        let spec = self.spec.of_all_slots();
        let reach = |node: &Node| Reach { has_granted: node.lease.is_some(), ..node.reach };
        let release = Release::new(token, self.nodes.iter().map(reach), &spec, ctx);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if node.reach.may_outlast_release(ctx.topology.route(index).ok()) {
                node.spent_until = Some(ctx.now.plus(self.spec.ttl.duration()));
            }
            node.start_over();
        }
        self.agreement = None;
        self.partial = None;
        self.kept = None;
        self.actions.push_back(Action::Release(Box::new(release)));
    }
}
