//! How a call ends without a lock: the last check, the releases and the reason.

use std::sync::Arc;

use super::attempt::Attempt;
use super::{Acquire, Action, Failure, Outcome, PendingRelease, Phase, Reason};
use crate::client::mutants::{Mutant, is_broken};
use crate::client::{Answer, Command, Context, NodeError, Request, RequestId, limits, mutants};
use crate::quorum::Moment;

impl Acquire {
    /// Decides what follows the last attempt, once enough nodes have answered: the error, or an
    /// inspection of all nodes.
    pub(super) fn after_last_attempt(&mut self, ctx: &mut Context<'_>) {
        let Phase::AwaitingAnswers(attempt) = std::mem::take(&mut self.phase) else { return };
        self.keep_answers(&attempt);
        let voting = self.answers.iter().filter(|answer| !matches!(answer, Answer::Failed(_)));
        let majority_votes = voting.count() >= ctx.client_state.majority.size();
        match self.refused_in_minority(ctx) {
            Some(first_refusing) if majority_votes && attempt.decider_refused() => {
                // Another client may be about to acquire the lock, or the node still has a lease of
                // an earlier lock that was not released there.
                let settle = limits::settle(ctx.client_state.round_trips.typical());
                self.phase = Phase::Settling { until: ctx.now.plus(settle), first_refusing };
            }
            _ => self.fail(ctx),
        }
    }

    pub(super) fn inspect_all(&mut self, first_refusing: usize, ctx: &mut Context<'_>) {
        let round = self.reserve_rounds(1);
        let Some(token) = mutants::new_token(self.started, ctx) else {
            return self.finish(Reason::NoRandom, ctx);
        };
        let limit = self.spec.longest_timeout(ctx);
        for node in 0..self.answers.len() {
            self.answers[node] = match ctx.topology.route_acquire(node) {
                Ok(connection) => {
                    let request = Request { token, command: Command::Inspect };
                    let id = RequestId { round, node };
                    self.actions.push_back(Action::Send { id, connection, request });
                    Answer::Pending
                }
                Err(error) => Answer::Failed(error),
            };
        }
        self.phase = Phase::Inspecting { round, first_refusing, due: ctx.now.plus(limit), limit };
    }

    /// Gives up an attempt, and releases what it may have been granted.
    ///
    /// In a call for any of several keys, also drops the attempt's requests that the driver has not
    /// polled yet: the driver would send them with the key that [`spec`](Self::spec) has when it
    /// polls, and the next attempt may change this key.
    pub(super) fn roll_back(&mut self, attempt: &Attempt, ctx: &Context<'_>) {
        let is_unsent =
            |action: &Action| matches!(action, Action::Send { id, .. } if attempt.expects(*id));
        if self.slots.is_some() {
            self.actions.retain(|action| !is_unsent(action));
        }
        for (node, connection) in attempt.connections(ctx.topology) {
            self.note_release(node, connection, ctx.now);
        }
        let release = attempt.roll_back(&self.spec, ctx);
        self.actions.push_back(Action::Release(Box::new(release)));
    }

    /// Ends the call because its time is over.
    pub(super) fn give_up(&mut self, ctx: &mut Context<'_>) {
        match std::mem::take(&mut self.phase) {
            Phase::Attempting(mut attempt) => {
                attempt.expire(&self.spec, ctx);
                self.keep_answers(&attempt);
                self.roll_back(&attempt, ctx);
            }
            Phase::AwaitingAnswers(mut attempt) => {
                attempt.expire(&self.spec, ctx);
                self.keep_answers(&attempt);
            }
            Phase::Probing(mut probing) => {
                self.release_probe(&probing, ctx);
                self.spec = Arc::clone(&probing.slot_spec);
                probing.lost.expire(&self.spec, ctx);
                self.keep_answers(&probing.lost);
            }
            Phase::Waiting(mut waiting) => {
                if let Some(side_attempt) = &mut waiting.side_attempt {
                    side_attempt.expire(&self.spec, ctx);
                    self.keep_answers(side_attempt);
                }
                self.leave(&waiting, ctx);
            }
            _ => {}
        }
        self.fail(ctx);
    }

    /// Records that the token of an ACQUIRE is being released on the node. `connection` carries the
    /// RELEASE; it is `None` if the node has no connection now.
    pub(super) fn note_release(&mut self, node: usize, connection: Option<u64>, now: Moment) {
        let until = now.plus(self.spec.ttl.duration());
        self.pending_releases[node] = Some(match self.pending_releases[node] {
            Some(PendingRelease::Wait) => PendingRelease::Wait,
            Some(PendingRelease::Lease { connection: earlier, until: end })
                if earlier != connection && !now.has_reached(end) =>
            {
                PendingRelease::Lease { connection: None, until }
            }
            _ => PendingRelease::Lease { connection, until },
        });
    }

    /// Turns the refusal of a node into an error if the node may still hold an earlier token of
    /// this call: that token may be the reason for the refusal.
    pub(super) fn discount_self_caused_refusals(&mut self, ctx: &Context<'_>) {
        if is_broken(Mutant::HeldByItself) {
            return;
        }
        for (node, pending) in self.pending_releases.iter().enumerate() {
            let may_hold = match pending {
                None => false,
                Some(PendingRelease::Wait) => true,
                Some(PendingRelease::Lease { connection, until }) => {
                    let released_before_request =
                        connection.is_some() && *connection == ctx.topology.route(node).ok();
                    !released_before_request && !ctx.now.has_reached(*until)
                }
            };
            if may_hold && self.answers[node] == Answer::Refused {
                self.answers[node] = Answer::Failed(NodeError::HeldByLostRequest);
            }
        }
    }

    /// Ends the call with the reason that follows from the last answers.
    pub(super) fn fail(&mut self, ctx: &Context<'_>) {
        self.discount_self_caused_refusals(ctx);
        let reason = if self.count_refused() > ctx.client_state.majority.spare() {
            Reason::Held
        } else if self.too_late {
            Reason::InsufficientValidity
        } else {
            Reason::NoQuorum
        };
        self.finish(reason, ctx);
    }

    pub(super) fn finish(&mut self, reason: Reason, ctx: &Context<'_>) {
        self.phase = Phase::Ended;
        let answers = self.answers.iter().map(|answer| match answer {
            // The grant is being released, or an INSPECT found the lock free: no fence is valid.
            Answer::Granted(_) => Answer::Granted(None),
            other => other.clone(),
        });
        let failure =
            Failure { reason, answers: answers.collect(), took: ctx.now.since(self.started) };
        self.actions.push_back(Action::Done(Box::new(Outcome::Failed(failure))));
    }
}
