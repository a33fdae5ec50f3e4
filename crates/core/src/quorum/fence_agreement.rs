use std::collections::VecDeque;
use std::time::Duration;

use super::majority::{Ballot, Majority, Tally};
use super::{Moment, Validity};
use crate::Fence;
use crate::mutants::{ClientRule, is_broken};

/// One attempt to acquire a lock on a majority of the nodes.
///
/// The caller proposes the same fence to all nodes at once, records each node's [vote](Self::vote),
/// and carries out each [`Step`] that [`Acquisition::poll`] returns. The attempt is decided as
/// early as possible. Votes after that change nothing.
///
/// The fence `F` of a lock is the smallest one that N/2 + 1 nodes store or can still store. The
/// lock is won once N/2 + 1 nodes store exactly `F`. A node that answered with a smaller fence is
/// asked to store `F`, and accepts only while this attempt's token holds the key there. A node that
/// answered with a larger fence holds the lock and is not counted. Any two locks on a key share a
/// counted node. That node answered the later lock with a fence above the earlier lock's `F`.
///
/// A node whose clock is far behind refuses a fence from a node whose clock is far ahead. Neither
/// node counts for a fence that it cannot store, so it does not matter which clock is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquisition {
    tally: Tally<Grant>,
    /// How long the lock is held if it is won; `None` if drift leaves nothing of the ttl.
    validity: Option<Validity>,
    min_validity: Duration,
    /// What [`Acquisition::poll`] has not returned yet. A decision comes first.
    steps: VecDeque<Step>,
    is_decided: bool,
}

/// The fence of a node that granted the lock, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    /// The fence that the node stores.
    stored: Fence,
    /// The fence that the node is asked to store; `None` without an unanswered request.
    requested: Option<Fence>,
    /// A fence that the node refused. It refuses all larger ones as well.
    refused: Option<Fence>,
}

/// A node's answer to `EXTEND … FENCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FenceAnswer {
    /// The token holds the lock there, with this fence now.
    Stored(Fence),
    /// The token holds the lock there. The node refuses the fence as too far ahead of its clock.
    Unacceptable,
    /// The token no longer holds the lock there, or the node did not vote.
    Failed,
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send `EXTEND key token ttl FENCE fence`, and record the [answer](Acquisition::fence_answer).
    StoreFence {
        /// The index of the node.
        node: usize,
        /// The fence to send.
        fence: Fence,
    },
    /// The lock is held.
    Won(Win),
    /// The lock is not held: send RELEASE to **all** nodes that were sent a request.
    ///
    /// That includes nodes that refused or were silent: a request may have arrived although its
    /// answer did not.
    Lost(Loss),
}

/// A lock that was won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Win {
    /// The fence that N/2 + 1 nodes store.
    pub fence: Fence,
    /// How long the lock is certainly held.
    pub validity: Validity,
}

/// Why a lock was not won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Too few nodes grant the lock, or too few can store the same fence.
    NoQuorum,
    /// Less than `min_validity` was left before the lock was won.
    TooLate,
}

impl Acquisition {
    /// Starts an attempt in which each grant that is counted lasts at least for `validity`.
    pub fn lasting(majority: Majority, validity: Option<Validity>, min_validity: Duration) -> Self {
        Self {
            tally: Tally::new(majority),
            validity,
            min_validity,
            steps: VecDeque::new(),
            is_decided: false,
        }
    }

    /// Records a node's answer to ACQUIRE, or to an EXTEND in its place: the fence of the grant, or
    /// `None` if the node refused, failed, abstained, or did not answer.
    pub fn vote(&mut self, node: usize, granted: Option<Fence>, now: Moment) {
        let grant = |stored| Ballot::Yes(Grant { stored, requested: None, refused: None });
        self.tally.cast(node, granted.map_or(Ballot::Silent, grant));
        self.advance(now);
    }

    /// Records a node's answer to [`Step::StoreFence`].
    pub fn fence_answer(&mut self, node: usize, answer: FenceAnswer, now: Moment) {
        let Some((grant, requested)) =
            self.tally.yes_of(node).and_then(|grant| Some((grant, grant.requested?)))
        else {
            return;
        };
        let ballot = match answer {
            FenceAnswer::Stored(stored) if stored >= requested => {
                Ballot::Yes(Grant { stored, requested: None, ..grant })
            }
            FenceAnswer::Unacceptable => {
                Ballot::Yes(Grant { requested: None, refused: Some(requested), ..grant })
            }
            // A node that reports a smaller fence has not stored the requested one.
            FenceAnswer::Stored(_) | FenceAnswer::Failed => Ballot::Silent,
        };
        self.tally.recast(node, ballot);
        self.advance(now);
    }

    /// Counts every missing answer as silence, because the nodes' time is over, and decides.
    pub fn expire(&mut self, now: Moment) {
        for node in 0..self.tally.majority().nodes() {
            self.tally.cast(node, Ballot::Silent);
            if self.tally.yes_of(node).is_some_and(|grant| grant.requested.is_some()) {
                self.tally.recast(node, Ballot::Silent);
            }
        }
        self.advance(now);
        // An undecided attempt would need another round to store the fence on more nodes.
        if !self.is_decided {
            self.decide(Step::Lost(Loss::NoQuorum));
        }
    }

    /// Returns what to do next.
    pub fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    fn advance(&mut self, now: Moment) {
        if self.is_decided {
            return;
        }
        let validity = self.validity.filter(|validity| {
            validity.remaining(now).is_some_and(|left| left >= self.min_validity)
        });
        match validity {
            None => self.decide(Step::Lost(Loss::TooLate)),
            Some(_) if self.tally.is_out_of_reach() => self.decide(Step::Lost(Loss::NoQuorum)),
            Some(validity) => self.agree(validity),
        }
    }

    /// Asks nodes to store the fence. Wins once N/2 + 1 nodes store it. Loses if there is no fence
    /// that N/2 + 1 nodes can store.
    fn agree(&mut self, validity: Validity) {
        let size = self.size();
        let Some(fence) = self.fence_to_agree_on() else {
            let able = self.candidates().map(|fence| self.count_able_to_store(fence));
            let most = able.max().unwrap_or_default();
            let has_unanswered = self.grants().any(|grant| grant.requested.is_some());
            if !has_unanswered && most + self.tally.pending() < size {
                self.decide(Step::Lost(Loss::NoQuorum));
            }
            return;
        };
        if is_broken(ClientRule::LargestFence) && self.grants().count() >= size {
            let fence = self.grants().map(|grant| grant.stored).max().unwrap_or(fence);
            return self.decide(Step::Won(Win { fence, validity }));
        }
        if self.is_stored_by_majority(fence) {
            return self.decide(Step::Won(Win { fence, validity }));
        }
        let below: Vec<_> =
            self.tally.yes().filter(|(_, grant)| grant.needs_request(fence)).collect();
        for (node, grant) in below {
            self.tally.recast(node, Ballot::Yes(Grant { requested: Some(fence), ..grant }));
            self.steps.push_back(Step::StoreFence { node, fence });
        }
    }

    /// The smallest fence that N/2 + 1 nodes store or can still store.
    /// A fence that a node was asked to store counts as stored. So a late grant does not change the
    /// fence on which the other nodes are about to agree.
    fn fence_to_agree_on(&self) -> Option<Fence> {
        let size = self.size();
        self.candidates().filter(|&fence| self.count_able_to_store(fence) >= size).min()
    }

    /// How many nodes must store the fence.
    fn size(&self) -> usize {
        let (size, granted) = (self.tally.majority().size(), self.grants().count());
        if is_broken(ClientRule::MajorityOfGrants) && granted >= size {
            return granted / 2 + 1;
        }
        size
    }

    fn grants(&self) -> impl Iterator<Item = Grant> {
        self.tally.yes().map(|(_, grant)| grant)
    }

    /// The fences that a node stores or was asked to store. The one to agree on is among them.
    fn candidates(&self) -> impl Iterator<Item = Fence> {
        self.grants().map(Grant::expected)
    }

    /// Whether a majority stored exactly this fence while the token held the lock there. Such a
    /// node counts, even if it was asked to store another fence since.
    fn is_stored_by_majority(&self, fence: Fence) -> bool {
        let stores = self.grants().filter(|grant| grant.stored == fence).count();
        stores >= self.size()
    }

    fn count_able_to_store(&self, fence: Fence) -> usize {
        self.grants().filter(|grant| grant.can_store(fence)).count()
    }

    fn decide(&mut self, step: Step) {
        self.is_decided = true;
        self.steps.push_front(step);
    }
}

impl Grant {
    /// The fence that the node stores once it has accepted the requested one.
    fn expected(self) -> Fence {
        self.requested.unwrap_or(self.stored)
    }

    fn can_store(self, fence: Fence) -> bool {
        let accepts = self.refused.is_none_or(|refused| fence < refused);
        self.expected() == fence || (self.expected() < fence && accepts)
    }

    fn needs_request(self, fence: Fence) -> bool {
        self.requested.is_none() && self.stored < fence && self.can_store(fence)
    }
}
