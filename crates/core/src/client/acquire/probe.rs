//! After the last attempt for one of several keys, a request to one node for any of the others.

use std::time::Duration;

use super::attempt::{Attempt, NodeGrant};
use super::{Acquire, Action, Phase, Probing};
use crate::client::{
    Command, Context, Delivery, Release, Request, RequestId, Response, Slots, limits, mutants,
};
use crate::quorum::Validity;

impl Acquire {
    /// Whether to ask a node for any other key.
    ///
    /// A WAIT has already asked for any key. So after a WAIT, the call probes only if the WAIT was
    /// granted and the attempt on the other nodes was lost.
    pub(super) fn may_probe(&self, lost: &Attempt) -> bool {
        let may_ask = |slots: &Slots| {
            let was_asked = slots.wait_was_sent && lost.granting_node().is_none();
            !was_asked && slots.has_others() && slots.probes < limits::PROBES_MAX
        };
        lost.has_refusal() && self.slots.as_ref().is_some_and(may_ask)
    }

    /// Asks the first available node in the order for any of the [other keys](Slots::others).
    pub(super) fn probe(&mut self, lost: Attempt, ctx: &mut Context<'_>) {
        let order = self.order(ctx);
        let route = |node: usize| Some((node, ctx.topology.route_acquire(node).ok()?));
        let found = order.into_iter().find_map(route);
        let token = mutants::new_token(self.started, ctx);
        let (Some((node, connection)), Some(token), Some(slots)) = (found, token, &mut self.slots)
        else {
            self.phase = Phase::AwaitingAnswers(lost);
            return self.proceed(ctx);
        };
        slots.probes += 1;
        let slot_spec = std::mem::replace(&mut self.spec, slots.others());
        let id = RequestId { round: self.reserve_rounds(1), node };
        let fence = ctx.client_state.fences.propose(ctx.wall_us);
        let request = Request { token, command: Command::AcquireAny { fence } };
        self.actions.push_back(Action::Send { id, connection, request });
        let due = ctx.now.plus(self.spec.node_timeout(node, ctx));
        let sent = ctx.now;
        self.phase =
            Phase::Probing(Box::new(Probing { lost, slot_spec, id, connection, token, sent, due }));
    }

    pub(super) fn handle_probed(&mut self, response: &Response, ctx: &mut Context<'_>) {
        let Phase::Probing(probing) = &self.phase else { return };
        let Response::FenceAndKey { fence, key, .. } = response else {
            return self.probe_ended(Some(response), ctx);
        };
        let (node, token, slot) = (probing.id.node, probing.token, self.spec.slot_at(*key));
        let granted = NodeGrant {
            node,
            token,
            fence: *fence,
            validity: Validity::after_wait(probing.sent, Duration::ZERO, self.spec.ttl),
            incarnation: ctx.topology.incarnation(node),
            silent: self.silent.clone(),
            order: self.order(ctx),
        };
        self.acquire_others(granted, slot, ctx);
    }

    /// Ends the probe without a key, and continues with the lost attempt. The response is `None`
    /// after a time-out. Only a refusal proves that the node granted nothing.
    pub(super) fn probe_ended(&mut self, response: Option<&Response>, ctx: &mut Context<'_>) {
        let Phase::Probing(probing) = std::mem::take(&mut self.phase) else { return };
        if response != Some(&Response::No) {
            self.release_probe(&probing, ctx);
        }
        let Probing { lost, slot_spec, .. } = *probing;
        self.spec = slot_spec;
        self.phase = Phase::AwaitingAnswers(lost);
    }

    pub(super) fn release_probe(&mut self, probing: &Probing, ctx: &Context<'_>) {
        let Probing { id, connection, token, .. } = *probing;
        self.note_release(id.node, Some(connection), ctx.now);
        let delivery = |node| {
            if node == id.node { Delivery::InFlight { connection } } else { Delivery::NotSent }
        };
        let deliveries = (0..ctx.topology.nodes().len()).map(delivery);
        let release = Release::new(token, deliveries, &self.spec, ctx);
        self.actions.push_back(Action::Release(Box::new(release)));
    }

    /// Allows all keys again, if the wait that ended was for some of the keys only.
    pub(super) fn end_partial_wait(&mut self, is_partial: bool) {
        if let Some(slots) = self.slots.as_mut().filter(|_| is_partial) {
            slots.allow_all();
        }
    }
}
