use std::collections::VecDeque;
use std::time::Duration;

use super::tally::{Ballot, Lost, Tally};
use super::{Lifetime, Majority, Moment};
use crate::{Fence, Ttl};

/// One attempt to take a lock on a majority of the nodes.
///
/// All nodes are asked at once with the same proposed fence. Feed it each node's [`Vote`], and carry out each
/// [`Step`] that [`Acquisition::poll`] returns. It is decided at the earliest moment: the rest of the answers are still
/// fed to it, and they change nothing but the coverage.
///
/// The fence `F` of a lock is the smallest number that the answers of N/2 + 1 nodes do not exceed, and the lock is won
/// once N/2 + 1 nodes have stored exactly `F`. Nodes that answered less are told, which they accept only while this
/// attempt's token holds the key there; nodes that answered more hold the lock but are not counted. Of two locks on a
/// key, one came second on some counted node, and was therefore answered more there than the first one's `F`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquisition {
    tally: Tally<Fence>,
    /// How long the lock will be held, if it is won; `None` when the ttl is too short to be relied upon at all.
    lifetime: Option<Lifetime>,
    min_validity: Duration,
    /// Whether the refusal of a node decides, whatever the others say.
    yields_to: Vec<bool>,
    /// Whether nodes that refuse are asked again until the time is up.
    patient: bool,
    /// Nodes that refused and are being asked again.
    refused: Vec<bool>,
    /// The fence that the nodes are to agree on, once a majority has granted.
    agreed: Option<Fence>,
    /// Nodes that were told the fence and have not answered yet.
    told: Vec<bool>,
    steps: VecDeque<Step>,
    decided: bool,
}

/// A node's answer to ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vote {
    /// The node granted the lock, with this fence.
    Granted(Fence),
    /// Somebody else holds the lock there.
    Refused,
    /// An error, a time-out, an abstention: no vote.
    Silent,
}

/// A node's answer to `EXTEND … FENCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FenceAnswer {
    /// The token holds the lock there, with this fence now.
    Stored(Fence),
    /// The token holds the lock there, and the node does not take this fence: it lies too far ahead of its clock.
    Unacceptable,
    /// The token does not hold the lock there any more, or there was no answer.
    Failed,
}

/// What the caller is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Send `EXTEND key token ttl FENCE fence` to this node and feed the answer to [`Acquisition::fence_answer`].
    TellFence {
        /// The index of the node.
        node: usize,
        /// The fence to tell.
        fence: Fence,
    },
    /// Send the same ACQUIRE to this node once more, in a moment.
    AskAgain {
        /// The index of the node.
        node: usize,
    },
    /// The lock is held.
    Won(Win),
    /// The lock is not held. Send RELEASE to **all** nodes, also to those that refused or were silent: a request may
    /// have arrived although its answer did not.
    Lost(Loss),
}

/// A lock that was won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Win {
    /// The fence that N/2 + 1 nodes have stored.
    pub fence: Fence,
    /// How long it is certainly held.
    pub lifetime: Lifetime,
}

/// Why a lock was not won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// Others hold it on so many nodes that those which can vote make no majority of grants.
    Held,
    /// So many nodes do not vote that the rest is no majority.
    NoQuorum,
    /// Less than the wanted validity was left when a majority had granted, or when it was clear that none would in time.
    TooLate,
}

impl Acquisition {
    /// An attempt whose first byte has not been sent before `sent`.
    pub fn new(majority: Majority, sent: Moment, ttl: Ttl, min_validity: Duration) -> Self {
        Self::lasting(majority, Lifetime::new(sent, ttl), min_validity)
    }

    /// The same, which is lost as soon as one of these nodes refuses, also when a majority would have granted.
    #[must_use]
    pub fn that_yields_to(mut self, nodes: &[usize]) -> Self {
        for &node in nodes {
            self.yields_to[node] = true;
        }
        self
    }

    /// What is left to do for a client that was granted `fence` by one node after it had waited there: to take the
    /// others, which are proposed that same fence. Nodes that refuse are asked again, since the last holder's releases
    /// may still be on their way to them.
    pub fn after_wait(
        majority: Majority,
        node: usize,
        fence: Fence,
        lifetime: Option<Lifetime>,
        min_validity: Duration,
    ) -> Self {
        let mut this = Self::lasting(majority, lifetime, min_validity);
        this.patient = true;
        this.tally.cast(node, Ballot::Yes(fence));
        this
    }

    fn lasting(majority: Majority, lifetime: Option<Lifetime>, min_validity: Duration) -> Self {
        Self {
            tally: Tally::new(majority),
            lifetime,
            min_validity,
            yields_to: vec![false; majority.nodes()],
            patient: false,
            refused: vec![false; majority.nodes()],
            agreed: None,
            told: vec![false; majority.nodes()],
            steps: VecDeque::new(),
            decided: false,
        }
    }

    /// Takes down what a node answered to ACQUIRE.
    pub fn vote(&mut self, node: usize, vote: Vote, now: Moment) {
        let ballot = match vote {
            Vote::Granted(fence) => Ballot::Yes(fence),
            Vote::Refused if self.patient && !self.yields_to[node] && !self.decided => {
                self.refused[node] = true;
                self.steps.push_back(Step::AskAgain { node });
                return;
            }
            Vote::Refused => Ballot::No,
            Vote::Silent => Ballot::Silent,
        };
        self.refused[node] = ballot == Ballot::No;
        self.tally.cast(node, ballot);
        self.advance(now);
    }

    /// Takes down what a node answered when it was told the fence.
    pub fn fence_answer(&mut self, node: usize, answer: FenceAnswer, now: Moment) {
        let Some(told) = self.told.get_mut(node) else { return };
        if !std::mem::take(told) {
            return;
        }
        match answer {
            FenceAnswer::Stored(fence) => self.tally.recast(node, Ballot::Yes(fence)),
            FenceAnswer::Failed => self.tally.recast(node, Ballot::Silent),
            FenceAnswer::Unacceptable => self.leave_out_those_ahead(),
        }
        self.advance(now);
    }

    /// Gives up on whatever has not been answered: the nodes' time is over.
    pub fn time_is_up(&mut self, now: Moment) {
        for node in 0..self.tally.majority().nodes() {
            self.tally.cast(node, if self.refused[node] { Ballot::No } else { Ballot::Silent });
            if std::mem::take(&mut self.told[node]) {
                self.tally.recast(node, Ballot::Silent);
            }
        }
        self.advance(now);
    }

    /// Looks whether it is decided already: of a single node's grant after a wait there is nothing left to be asked.
    pub fn review(&mut self, now: Moment) {
        self.advance(now);
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// On how many nodes the lock is known to be held.
    pub fn coverage(&self) -> usize {
        self.tally.yes().count()
    }

    /// Whether this node refused.
    pub fn refused_by(&self, node: usize) -> bool {
        self.refused[node]
    }

    /// Whether this node granted.
    pub fn granted_by(&self, node: usize) -> bool {
        self.tally.yes().any(|(other, _)| other == node)
    }

    /// Whether it is known if the lock was won.
    pub fn is_decided(&self) -> bool {
        self.decided
    }

    fn advance(&mut self, now: Moment) {
        if self.decided {
            return;
        }
        if self.yields_to.iter().zip(&self.refused).any(|(yields, refused)| *yields && *refused) {
            return self.decide(Step::Lost(Loss::Held));
        }
        let lifetime = self
            .lifetime
            .filter(|lifetime| lifetime.remaining(now).is_some_and(|left| left >= self.min_validity));
        match self.tally.lost() {
            Some(Lost::Refused) => return self.decide(Step::Lost(Loss::Held)),
            // A majority can vote, and some of it refused.
            Some(Lost::Silence) if !self.tally.is_silent() => return self.decide(Step::Lost(Loss::Held)),
            Some(Lost::Silence) if lifetime.is_some() => return self.decide(Step::Lost(Loss::NoQuorum)),
            Some(Lost::Silence) => return self.decide(Step::Lost(Loss::TooLate)),
            None if !self.tally.has_majority() => return,
            None => {}
        }
        let Some(lifetime) = lifetime else { return self.decide(Step::Lost(Loss::TooLate)) };
        let fence = self.fence_to_agree_on();
        let stored = self.tally.yes().filter(|&(node, stored)| stored == fence && !self.told[node]).count();
        if stored >= self.tally.majority().size() {
            return self.decide(Step::Won(Win { fence, lifetime }));
        }
        let below: Vec<usize> = self
            .tally
            .yes()
            .filter(|&(node, stored)| stored < fence && !self.told[node])
            .map(|(node, _)| node)
            .collect();
        for node in below {
            self.told[node] = true;
            self.steps.push_back(Step::TellFence { node, fence });
        }
    }

    /// The smallest number that N/2 + 1 grants do not exceed; never smaller than what nodes were already told.
    fn fence_to_agree_on(&mut self) -> Fence {
        let mut granted: Vec<Fence> = self.tally.yes().map(|(_, fence)| fence).collect();
        granted.sort_unstable();
        let smallest = granted[self.tally.majority().size() - 1];
        let fence = self.agreed.map_or(smallest, |agreed| agreed.max(smallest));
        self.agreed = Some(fence);
        fence
    }

    /// A node whose clock is far ahead gave a fence that others do not take. They may agree on one without it.
    fn leave_out_those_ahead(&mut self) {
        let Some(refused) = self.agreed.take() else { return };
        let ahead: Vec<usize> =
            self.tally.yes().filter(|&(_, stored)| stored >= refused).map(|(node, _)| node).collect();
        for node in ahead {
            self.tally.recast(node, Ballot::Silent);
        }
    }

    fn decide(&mut self, step: Step) {
        self.decided = true;
        self.steps.clear();
        self.steps.push_back(step);
    }
}
