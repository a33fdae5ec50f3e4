//! How a call ends: the lock, or the releases and the reason.

use std::sync::Arc;

use super::node::{Node, State};
use super::{
    Acquire, Action, Failure, Grant, GrantNode, Outcome, Phase, Reason, Straggler, StragglerKind,
};
use crate::client::{Answer, Context, Delivery, NodeError, Release, limits};
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
        let kept = self.kept_slot();
        let (all, spec) = (Arc::clone(&self.spec), self.wait_spec());
        let key_at =
            spec.keys.iter().next().and_then(|key| all.keys.iter().position(|it| it == key));
        let nodes = self.nodes.drain(..).map(|node| GrantNode {
            straggler: node.straggler(key_at.unwrap_or(0)),
            answer: node.answer_at_win(kept),
            delivery: node.delivery,
            incarnation: node.incarnation,
            is_lost: node.is_lost,
        });
        let round_trip = ctx.client_state.round_trips.typical();
        let repair_at = ctx.now.plus(limits::patience(round_trip));
        let grant = Grant {
            token,
            fence: win.fence,
            validity: win.validity,
            since: ctx.now,
            next_round: self.next_round,
            repair_at: Some(repair_at).filter(|_| self.attaches.is_none()),
            nodes: nodes.collect(),
        };
        self.spec = spec;
        self.phase = Phase::Ended;
        self.actions.push_back(Action::Done(Box::new(Outcome::Acquired(grant))));
    }

    /// After a call for one of several keys has won, leaves the lines in which it stands for the
    /// other keys, and gives those of them back that nodes have granted. The lock handles what the
    /// WAITs may still be granted.
    fn leave_other_keys(&mut self, ctx: &Context<'_>) {
        let (Some(kept), Some(token)) = (&self.kept, self.token) else { return };
        let slot = Some(kept.slot);
        let is_other = |node: &Node| {
            node.may_have_others
                || node.wait.is_some()
                || node.lease.as_ref().is_some_and(|lease| lease.slot != slot)
        };
        if !self.nodes.iter().any(is_other) {
            return;
        }
        let Some(spec) = self.spec.without_slot(kept.slot) else { return };
        let deliveries = self
            .nodes
            .iter()
            .map(|node| if is_other(node) { Delivery::Arrived } else { Delivery::NotSent });
        let release = Release::new(token, deliveries, &spec, ctx);
        self.actions.push_back(Action::Release(Box::new(release)));
    }

    /// Releases the token of the process that detached the lock, on the nodes that may still have
    /// it; `None` if there are none. While they have it, they refuse the new token, and no other
    /// client releases the old one.
    fn release_detached(&self, ctx: &Context<'_>) -> Option<Release> {
        let old = self.attaches?;
        let is_settled = |node: &Node| matches!(node.answer, Answer::Granted(_) | Answer::Refused);
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

    /// Releases everything, and ends the call with the reason that follows from the last answers.
    pub(super) fn fail(&mut self, ctx: &mut Context<'_>) {
        let answers: Vec<_> = self.nodes.iter().map(|node| node.last_answer(ctx)).collect();
        let refused = answers.iter().filter(|answer| **answer == Answer::Refused).count();
        let reason = if refused > ctx.client_state.majority.spare() {
            Reason::Held
        } else if self.too_late || self.would_be_too_late(ctx) {
            Reason::InsufficientValidity
        } else {
            Reason::NoQuorum
        };
        self.finish_with(reason, answers, ctx);
    }

    /// Whether a grant of the first requests would leave too little validity by now.
    fn would_be_too_late(&self, ctx: &Context<'_>) -> bool {
        let left = Validity::new(self.asked_at, self.spec.ttl)
            .and_then(|validity| validity.remaining(ctx.now));
        let is_asking = matches!(self.phase, Phase::Asking { .. });
        is_asking && left.is_none_or(|left| left < self.spec.min_validity)
    }

    pub(super) fn finish(&mut self, reason: Reason, ctx: &mut Context<'_>) {
        let answers = self.nodes.iter().map(|node| node.answer.clone()).collect();
        self.finish_with(reason, answers, ctx);
    }

    fn finish_with(&mut self, reason: Reason, answers: Vec<Answer>, ctx: &mut Context<'_>) {
        self.release_all(ctx);
        self.phase = Phase::Ended;
        let failure = Failure { reason, answers, took: ctx.now.since(self.started) };
        self.actions.push_back(Action::Done(Box::new(Outcome::Failed(failure))));
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

    /// The answer with which a lock of this key begins.
    fn answer_at_win(&self, kept: Option<usize>) -> Answer {
        match &self.lease {
            Some(lease) if lease.slot == kept && self.state != State::Yielding => {
                Answer::Granted(Some(lease.fence))
            }
            Some(_) => Answer::Pending,
            None if self.refused.is_some() => Answer::Refused,
            None => self.answer.clone(),
        }
    }

    /// The answer of a call that failed. A node that failed once is reported as it was last heard.
    fn last_answer(&self, ctx: &Context<'_>) -> Answer {
        // The refusal may be due to an earlier token of this call.
        let is_own = self.spent_until.is_some_and(|until| !ctx.now.has_reached(until));
        match (&self.answer, self.refused) {
            (_, Some(_)) if is_own && !is_broken(Mutant::HeldByItself) => {
                Answer::Failed(NodeError::HeldByLostRequest)
            }
            (_, Some(_)) => Answer::Refused,
            // The grant is being released: its fence is not valid.
            (Answer::Granted(_), None) => Answer::Granted(None),
            (answer, None) => answer.clone(),
        }
    }
}
