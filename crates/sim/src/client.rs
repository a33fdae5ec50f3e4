use quorlock_core::Fence;
use quorlock_core::quorum::{FenceAnswer, Moment, ReleaseRound, Step, Validity, Vote};

use crate::Mutant;
use crate::agreement::{Agreement, Rules};
use crate::lock::{Lock, Nodes};
use crate::message::{Answer, Effect, Request};

/// A client that acquires, holds, extends and releases one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    attempts: u8,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Before the first attempt, between two attempts, or after the end of the lock.
    Idle,
    /// Waits for grants, and then for nodes to store the fence.
    Acquiring(Agreement, Attempt),
    Holding(Lock),
    Releasing(ReleaseRound),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    /// When the first byte was sent.
    at: Moment,
    /// When the first answer arrived. Only [`Mutant::ValidFromAnswer`] records it.
    answered: Option<Moment>,
    /// The nodes that granted, if the client repairs its lock.
    granted: Nodes,
    /// Nodes that were asked to store a fence and have not answered, with that fence.
    storing: Vec<(usize, Fence)>,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self { attempts: 0, phase: Phase::Idle }
    }

    pub(crate) fn attempts(&self) -> u8 {
        self.attempts
    }

    /// Returns the number of the present attempt, which its messages and its token contain.
    pub(crate) fn attempt(&self, rules: Rules) -> u8 {
        if rules.mutant == Some(Mutant::TokenUsedTwice) { 1 } else { self.attempts }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    pub(crate) fn is_acquiring(&self) -> bool {
        matches!(self.phase, Phase::Acquiring(..))
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding(_))
    }

    /// The number of rounds of extensions that have begun.
    pub(crate) fn rounds(&self) -> u8 {
        if let Phase::Holding(lock) = &self.phase { lock.rounds() } else { 0 }
    }

    /// Returns whether the client would use the answer of this node to this request.
    pub(crate) fn expects(&self, rules: Rules, node: usize, request: Request) -> bool {
        match (&self.phase, request) {
            (Phase::Acquiring(_, attempt), Request::StoreFence(fence)) => {
                attempt.storing.contains(&(node, fence))
            }
            (Phase::Holding(lock), Request::Extend(round)) => lock.expects(round),
            // A late answer. It matters only if the client repairs its lock.
            (Phase::Holding(_), Request::Acquire(_)) => rules.repair,
            (Phase::Acquiring(..), Request::Acquire(_))
            | (Phase::Holding(_), Request::Repair(_))
            | (Phase::Releasing(_), Request::Release) => true,
            _ => false,
        }
    }

    pub(crate) fn begin(&mut self, rules: Rules, proposal: Fence, now: Moment) -> Vec<Effect> {
        self.attempts += 1;
        let agreement = Agreement::new(rules, now);
        self.phase = Phase::Acquiring(agreement, Attempt::new(now));
        vec![Effect::AskAll(Request::Acquire(proposal))]
    }

    /// Handles the end of the time limit of an attempt.
    pub(crate) fn expire(&mut self, rules: Rules, now: Moment) -> Vec<Effect> {
        if let Phase::Acquiring(agreement, _) = &mut self.phase {
            agreement.expire(now);
        }
        self.proceed(rules, now)
    }

    pub(crate) fn extend(&mut self, rules: Rules, now: Moment) -> Vec<Effect> {
        if let Phase::Holding(lock) = &mut self.phase {
            vec![lock.extend(rules, now)]
        } else {
            vec![]
        }
    }

    pub(crate) fn release(&mut self, rules: Rules) -> Vec<Effect> {
        self.phase = Phase::Releasing(ReleaseRound::new(rules.majority));
        vec![Effect::AskAll(Request::Release)]
    }

    /// Stops using the lock, without a request to any node.
    pub(crate) fn forget(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Forgets a lock whose validity has ended. No later answer revives it.
    pub(crate) fn check_validity(&mut self, rules: Rules, now: Moment) {
        if let Phase::Holding(lock) = &self.phase
            && !lock.is_held(rules, now)
        {
            self.phase = Phase::Idle;
        }
    }

    /// Handles an answer that the client [expects](Self::expects).
    pub(crate) fn handle_response(
        &mut self,
        rules: Rules,
        node: usize,
        request: Request,
        answer: Answer,
        now: Moment,
    ) -> Vec<Effect> {
        let held = match answer {
            Answer::Held(_) | Answer::Released => Some(true),
            Answer::NotHeld => Some(false),
            Answer::BadFence | Answer::Revoked | Answer::Silent => None,
        };
        match (&mut self.phase, request) {
            (Phase::Acquiring(agreement, attempt), Request::Acquire(_)) => {
                if rules.mutant == Some(Mutant::ValidFromAnswer) {
                    attempt.answered.get_or_insert(now);
                }
                let vote = match answer {
                    Answer::Held(fence) => {
                        if rules.repair {
                            attempt.granted.set(node, true);
                        }
                        Vote::Granted(fence)
                    }
                    Answer::NotHeld => Vote::Refused,
                    _ => Vote::Silent,
                };
                agreement.vote(node, vote, now);
                self.proceed(rules, now)
            }
            (Phase::Acquiring(agreement, attempt), Request::StoreFence(_)) => {
                attempt.storing.retain(|&(storing, _)| storing != node);
                let answer = match answer {
                    Answer::Held(fence) => FenceAnswer::Stored(fence),
                    Answer::BadFence => FenceAnswer::Unacceptable,
                    _ => FenceAnswer::Failed,
                };
                agreement.fence_answer(node, answer, now);
                self.proceed(rules, now)
            }
            (Phase::Holding(lock), Request::Acquire(_)) => {
                lock.record_answer(node, held);
                vec![]
            }
            (Phase::Holding(lock), Request::Extend(_)) => {
                let effects = lock.handle_extension(rules, node, held, now);
                self.check_validity(rules, now);
                effects
            }
            (Phase::Holding(lock), Request::Repair(round)) => {
                lock.handle_repair(rules, node, round, held, now)
            }
            (Phase::Releasing(release), Request::Release) => {
                if release.answer(node, held).is_some() {
                    self.phase = Phase::Idle;
                }
                vec![]
            }
            _ => vec![],
        }
    }

    fn proceed(&mut self, rules: Rules, now: Moment) -> Vec<Effect> {
        let Phase::Acquiring(agreement, attempt) = &mut self.phase else { return vec![] };
        let mut effects = Vec::new();
        let mut next = None;
        for step in agreement.steps() {
            effects.push(match step {
                Step::StoreFence { node, fence } => {
                    attempt.storing.push((node, fence));
                    attempt.storing.sort_unstable();
                    Effect::Ask(node, Request::StoreFence(fence))
                }
                Step::Won(win) => {
                    let from_answer =
                        attempt.answered.and_then(|answered| Validity::new(answered, rules.ttl));
                    let validity = from_answer.unwrap_or(win.validity);
                    next =
                        Some(Phase::Holding(Lock::new(validity, attempt.at, attempt.granted, now)));
                    Effect::Won(win.fence)
                }
                Step::Lost(_) => {
                    next = Some(Phase::Idle);
                    Effect::AskAll(Request::Release)
                }
            });
        }
        if let Some(next) = next {
            self.phase = next;
        }
        effects
    }
}

impl Attempt {
    fn new(at: Moment) -> Self {
        Self { at, answered: None, granted: Nodes::default(), storing: Vec::new() }
    }
}
