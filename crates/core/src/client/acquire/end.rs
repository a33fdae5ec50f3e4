//! How a call ends: the lock, or the releases and the reason.

use std::sync::Arc;

use super::node::State;
use super::{Acquire, Phase};
use crate::Answer;
use crate::client::hold::HeldNode;
use crate::client::{Action, Context, Failure, Hold, Reason, Release};
use crate::quorum::{Validity, Win};

impl Acquire {
    pub(super) fn win(&mut self, win: Win, ctx: &mut Context<'_>) {
        let Some(token) = self.token.take() else { return };
        ctx.client_state.fences.learn(self.ticket, win.fence);
        if let Some(old) = self.attaches {
            // While a node has the token of the process that detached the lock, it refuses the new
            // token, and no other client releases the old one.
            let answer = |node: usize| self.nodes[node].answer(ctx.now);
            let may_have_old =
                |node: usize| !matches!(answer(node), Answer::Granted(_) | Answer::Refused);
            let release = Release::on(old, &self.spec, ctx, may_have_old);
            self.actions.push_back(Action::Release(Box::new(release)));
        }
        let (kept, spec) = (self.kept, self.spec_of(self.kept));
        if let Some(others) = spec.of_other_slots() {
            // The call leaves the lines in which it stands for other keys, and releases keys that
            // nodes have granted. The lock handles what the WAITs may still be granted.
            let may_have_others = |node: usize| {
                let node = &self.nodes[node];
                let has_other = node.lease.is_some() && !node.has_slot(kept);
                node.reach.may_have_others || node.reach.wait.is_some() || has_other
            };
            let release = Release::on(token, &others, ctx, may_have_others);
            self.actions.push_back(Action::Release(Box::new(release)));
        }
        let nodes = self.nodes.drain(..).map(|node| {
            let answer = match &node.lease {
                Some(lease) if lease.slot == kept && node.state != State::Yielding => {
                    Answer::Granted(Some(lease.fence))
                }
                Some(_) => Answer::Pending,
                None if node.refused.is_some() => Answer::Refused,
                None => node.answer(ctx.now),
            };
            let straggler = node.straggler(spec.keys.first());
            HeldNode::new(answer, node.incarnation, node.reach, straggler, ctx.now)
        });
        let nodes = nodes.collect();
        let mut hold = Hold::new(Arc::clone(&spec), token, win, nodes, self.last_round + 1, ctx);
        if self.attaches.is_none() {
            hold.repair_soon(ctx);
        }
        self.spec = spec;
        self.end(ctx);
        self.actions.push_back(Action::Done(Ok(Box::new(hold))));
    }

    /// Ends the call with the reason that follows from the last answers.
    pub(super) fn fail(&mut self, ctx: &mut Context<'_>) {
        let most = self.most_granted().map(|(slot, _)| slot);
        // A node that granted another key of several refuses the one that most nodes granted.
        let refused = self.count(|node| {
            let has_other = most.is_some_and(|slot| node.lease.is_some() && !node.has_slot(slot));
            has_other || node.answer(ctx.now) == Answer::Refused
        });
        let granted = most.map_or(0, |slot| {
            self.count(|node| node.counts() && node.has_slot(slot) && node.error.is_none())
        });
        // A grant of the requests that are unanswered would leave too little validity, too.
        let left = Validity::new(self.asked_at, self.spec.ttl).and_then(|it| it.remaining(ctx.now));
        let is_late = self.phase == Phase::Asking && left < Some(self.spec.min_validity);
        let reason = if refused > ctx.client_state.majority.spare() {
            Reason::Held
        } else if granted >= ctx.client_state.majority.size() || is_late {
            Reason::InsufficientValidity
        } else {
            Reason::NoQuorum
        };
        self.finish(reason, ctx);
    }

    /// Releases everything, and ends the call.
    pub(super) fn finish(&mut self, reason: Reason, ctx: &mut Context<'_>) {
        let answers = self.nodes.iter().map(|node| node.answer(ctx.now)).collect();
        self.release_all(ctx);
        self.end(ctx);
        let failure = Failure { reason, answers, took: ctx.now.since(self.started) };
        self.actions.push_back(Action::Done(Err(failure)));
    }
}
