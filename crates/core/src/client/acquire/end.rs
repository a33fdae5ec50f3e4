//! How a call ends: the lock, or the releases and the reason.

use std::sync::Arc;

use super::node::{Node, State};
use super::{Acquire, Action, Failure, Outcome, Phase, Reason};
use crate::client::hold::{HeldNode, Straggler, StragglerKind};
use crate::client::{Answer, Context, Delivery, Hold, Release};
use crate::mutants::{Mutant, is_broken};
use crate::quorum::{Validity, Win};

impl Acquire {
    pub(super) fn win(&mut self, win: Win, ctx: &mut Context<'_>) {
        let Some(token) = self.token else { return };
        ctx.client_state.fences.learn(self.ticket, win.fence);
        if let Some(release) = self.release_detached(ctx) {
            self.actions.push_back(Action::Release(Box::new(release)));
        }
        self.leave_other_keys(ctx);
        let (kept, spec) = (self.kept, self.wait_spec());
        let key = self.spec.keys.iter().position(|key| key == spec.keys.first()).unwrap_or(0);
        let nodes = self.nodes.drain(..).map(|node| {
            let answer = match &node.lease {
                Some(lease) if lease.slot == kept && node.state != State::Yielding => {
                    Answer::Granted(Some(lease.fence))
                }
                Some(_) => Answer::Pending,
                None if node.refused.is_some() => Answer::Refused,
                None => node.answer(ctx.now),
            };
            let mut held = HeldNode::new(answer, node.delivery, node.straggler(key), ctx.now);
            (held.incarnation, held.is_lost) = (node.incarnation, node.is_lost);
            held
        });
        let nodes = nodes.collect();
        let mut hold = Hold::new(Arc::clone(&spec), token, win, nodes, self.next_round, ctx);
        if self.attaches.is_none() {
            hold.repair_soon(ctx);
        }
        self.spec = spec;
        self.phase = Phase::Ended;
        self.actions.push_back(Action::Done(Outcome::Acquired(Box::new(hold))));
    }

    /// After a call for one of several keys has won, leaves the lines in which it stands for the
    /// other keys, and gives those of them back that nodes have granted. The lock handles what the
    /// WAITs may still be granted.
    fn leave_other_keys(&mut self, ctx: &Context<'_>) {
        let (Some(kept), Some(token)) = (self.kept, self.token) else { return };
        let Some(spec) = self.spec.without_slot(kept) else { return };
        let is_other = |node: &Node| {
            node.may_have_others
                || node.wait.is_some()
                || node.lease.as_ref().is_some_and(|lease| lease.slot != Some(kept))
        };
        if self.nodes.iter().any(is_other) {
            let release = Release::on(token, &spec, ctx, |node| is_other(&self.nodes[node]));
            self.actions.push_back(Action::Release(Box::new(release)));
        }
    }

    /// Releases the token of the process that detached the lock, on the nodes that may still have
    /// it; `None` if there are none. While they have it, they refuse the new token, and no other
    /// client releases the old one.
    fn release_detached(&self, ctx: &Context<'_>) -> Option<Release> {
        let old = self.attaches?;
        let is_settled =
            |node: &Node| matches!(node.answer(ctx.now), Answer::Granted(_) | Answer::Refused);
        if self.nodes.iter().all(is_settled) {
            return None;
        }
        let deliveries = self.nodes.iter().map(|node| match node.delivery {
            _ if is_settled(node) => Delivery::NotSent,
            // The node was not sent the new token, and may have the old one.
            Delivery::NotSent => Delivery::Arrived,
            delivery => delivery,
        });
        Some(Release::new(old, deliveries, &self.spec, ctx))
    }

    /// Ends the call with the reason that follows from the last answers.
    pub(super) fn fail(&mut self, ctx: &mut Context<'_>) {
        let refused = self.count(|node| node.answer(ctx.now) == Answer::Refused);
        let reason = if refused > ctx.client_state.majority.spare() {
            Reason::Held
        } else if self.too_late || self.would_be_too_late(ctx) {
            Reason::InsufficientValidity
        } else {
            Reason::NoQuorum
        };
        self.finish(reason, ctx);
    }

    /// Whether a grant of the first requests would leave too little validity by now.
    fn would_be_too_late(&self, ctx: &Context<'_>) -> bool {
        let left = Validity::new(self.asked_at, self.spec.ttl)
            .and_then(|validity| validity.remaining(ctx.now));
        let is_asking = matches!(self.phase, Phase::Asking { .. });
        is_asking && left.is_none_or(|left| left < self.spec.min_validity)
    }

    /// Releases everything, and ends the call.
    pub(super) fn finish(&mut self, reason: Reason, ctx: &mut Context<'_>) {
        let answers = self.nodes.iter().map(|node| node.answer(ctx.now)).collect();
        self.release_all(ctx);
        self.phase = Phase::Ended;
        let failure = Failure { reason, answers, took: ctx.now.since(self.started) };
        self.actions.push_back(Action::Done(Outcome::Failed(failure)));
    }
}

impl Node {
    fn straggler(&self, key: usize) -> Option<Straggler> {
        let kind = match self.state {
            _ if self.wait.is_some() => StragglerKind::Wait { key },
            State::Asked | State::Idle if self.is_unanswered() => StragglerKind::Acquire { key },
            State::Yielding => StragglerKind::Yield,
            _ => return None,
        };
        let round = self.wait.unwrap_or(self.round);
        Some(Straggler { round, kind })
    }
}
