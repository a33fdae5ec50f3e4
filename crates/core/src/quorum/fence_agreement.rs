use std::collections::VecDeque;
use std::time::Duration;

use super::tally::{Ballot, Lost, Tally};
use super::{Lifetime, Majority, Moment};
use crate::client::mutants::{Mutant, is_broken};
use crate::{Fence, Ttl};

/// One attempt to take a lock on a majority of the nodes.
///
/// All nodes are asked at once with the same proposed fence. Feed it each node's [`Vote`], and carry
/// out each [`Step`] that [`Acquisition::poll`] returns. It is decided at the earliest moment: the
/// rest of the answers are still fed to it, and they change nothing but the coverage.
///
/// The fence `F` of a lock is the smallest number that the answers of N/2 + 1 nodes do not exceed, and the lock is won
/// once N/2 + 1 nodes have stored exactly `F`. Nodes that answered less are told, which they accept only while this
/// attempt's token holds the key there; nodes that answered more hold the lock but are not counted. Of two locks on a
/// key, one came second on some counted node, and was therefore answered more there than the first one's `F`.
///
/// A node whose clock is far behind does not take a fence from a node whose clock is far ahead. Which of them is wrong
/// does not matter: neither counts for a fence that it cannot have, and the others agree without it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquisition {
    tally: Tally<Grant>,
    /// How long the lock will be held, if it is won; `None` when the ttl is too short to be relied upon at all.
    lifetime: Option<Lifetime>,
    min_validity: Duration,
    /// Nodes without whose answers it is not won.
    awaits: Vec<usize>,
    steps: VecDeque<Step>,
    /// What was decided, until somebody has heard of it.
    decision: Option<Step>,
    decided: bool,
}

/// What is known of the fence of a node that granted the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    /// What the node has.
    stored: Fence,
    /// What it was told, as long as it has not answered to that.
    told: Option<Fence>,
    /// It refused to take this one, and takes none above it.
    refused: Option<Fence>,
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
    /// The lock is held.
    Won(Win),
    /// The lock is not held. Send RELEASE to **all** nodes that were asked, also to those that refused or were silent: a
    /// request may have arrived although its answer did not.
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

    /// The same, which is not won before these nodes have answered, or their time is up.
    #[must_use]
    pub fn that_awaits(mut self, nodes: &[usize]) -> Self {
        self.awaits = nodes.to_vec();
        self
    }

    /// What is left to do for a client that was granted `fence` by one node after it had waited there:
    /// all others are proposed that same fence.
    pub fn after_wait(
        majority: Majority,
        node: usize,
        fence: Fence,
        lifetime: Option<Lifetime>,
        min_validity: Duration,
    ) -> Self {
        let mut this = Self::lasting(majority, lifetime, min_validity);
        this.tally.cast(node, Ballot::Yes(Grant::of(fence)));
        this
    }

    fn lasting(majority: Majority, lifetime: Option<Lifetime>, min_validity: Duration) -> Self {
        Self {
            tally: Tally::new(majority),
            lifetime,
            min_validity,
            awaits: Vec::new(),
            steps: VecDeque::new(),
            decision: None,
            decided: false,
        }
    }

    /// Takes down what a node answered to ACQUIRE.
    pub fn vote(&mut self, node: usize, vote: Vote, now: Moment) {
        let ballot = match vote {
            Vote::Granted(fence) => Ballot::Yes(Grant::of(fence)),
            Vote::Refused => Ballot::No,
            Vote::Silent => Ballot::Silent,
        };
        self.tally.cast(node, ballot);
        self.advance(now);
    }

    /// Takes down what a node answered when it was told the fence.
    pub fn fence_answer(&mut self, node: usize, answer: FenceAnswer, now: Moment) {
        let Some((grant, told)) = self.tally.of(node).and_then(|grant| Some((grant, grant.told?))) else {
            return;
        };
        let ballot = match answer {
            FenceAnswer::Stored(stored) if stored >= told => {
                Ballot::Yes(Grant { stored, told: None, ..grant })
            }
            FenceAnswer::Unacceptable => Ballot::Yes(Grant { told: None, refused: Some(told), ..grant }),
            // A node that says it stored less than it was told has not stored it.
            FenceAnswer::Stored(_) | FenceAnswer::Failed => Ballot::Silent,
        };
        self.tally.recast(node, ballot);
        self.advance(now);
    }

    /// Gives up on whatever has not been answered: the nodes' time is over. Afterwards it is decided.
    pub fn time_is_up(&mut self, now: Moment) {
        for node in 0..self.tally.majority().nodes() {
            self.tally.cast(node, Ballot::Silent);
            if self.tally.of(node).is_some_and(|grant| grant.told.is_some()) {
                self.tally.recast(node, Ballot::Silent);
            }
        }
        self.advance(now);
        // What is left to be told would need another round.
        if !self.decided {
            self.decide(Step::Lost(Loss::NoQuorum));
        }
    }

    /// Looks whether it is decided already: of a single node's grant after a wait there is nothing left to be asked.
    pub fn review(&mut self, now: Moment) {
        self.advance(now);
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Step> {
        self.decision.take().or_else(|| self.steps.pop_front())
    }

    /// On how many nodes the lock is known to be held.
    pub fn coverage(&self) -> usize {
        self.tally.yes().count()
    }

    /// Whether it is known if the lock was won.
    pub fn is_decided(&self) -> bool {
        self.decided
    }

    fn advance(&mut self, now: Moment) {
        if self.decided {
            return;
        }
        let lifetime = self
            .lifetime
            .filter(|lifetime| lifetime.remaining(now).is_some_and(|left| left >= self.min_validity));
        match (self.tally.lost(), lifetime) {
            (Some(Lost::Refused), _) => self.decide(Step::Lost(Loss::Held)),
            // A majority can vote, and some of it refused.
            (Some(Lost::Silence), _) if !self.tally.is_silent() => self.decide(Step::Lost(Loss::Held)),
            (_, None) => self.decide(Step::Lost(Loss::TooLate)),
            (Some(Lost::Silence), Some(_)) => self.decide(Step::Lost(Loss::NoQuorum)),
            (None, Some(lifetime)) => self.agree(lifetime),
        }
    }

    /// Has the nodes agree on a fence, as far as they have granted the lock.
    fn agree(&mut self, lifetime: Lifetime) {
        let size = self.tally.majority().size();
        let Some(fence) = self.fence_to_agree_on() else {
            let most = self.candidates().map(|fence| self.able_to_have(fence)).max().unwrap_or_default();
            let waiting = self.grants().any(|grant| grant.told.is_some());
            if !waiting && most + self.tally.pending() < size {
                self.decide(Step::Lost(Loss::NoQuorum));
            }
            return;
        };
        if is_broken(Mutant::LargestFence) && self.grants().count() >= size {
            let fence = self.grants().map(|grant| grant.stored).max().unwrap_or(fence);
            return self.decide(Step::Won(Win { fence, lifetime }));
        }
        if self.grants().filter(|grant| grant.has(fence)).count() >= size {
            if !self.awaits.iter().any(|&node| self.tally.ballot(node) == Ballot::Pending) {
                self.decide(Step::Won(Win { fence, lifetime }));
            }
            return;
        }
        let below: Vec<_> = self.tally.yes().filter(|(_, grant)| grant.is_to_be_told(fence)).collect();
        for (node, grant) in below {
            self.tally.recast(node, Ballot::Yes(Grant { told: Some(fence), ..grant }));
            self.steps.push_back(Step::TellFence { node, fence });
        }
    }

    /// The smallest fence that N/2 + 1 nodes have or can still be told. What a node was told counts as what it has, so
    /// that a grant that comes late does not change what the others are about to agree on.
    fn fence_to_agree_on(&self) -> Option<Fence> {
        let size = self.tally.majority().size();
        self.candidates().filter(|&fence| self.able_to_have(fence) >= size).min()
    }

    fn grants(&self) -> impl Iterator<Item = Grant> {
        self.tally.yes().map(|(_, grant)| grant)
    }

    /// Nobody needs to be told a fence that no node has.
    fn candidates(&self) -> impl Iterator<Item = Fence> {
        self.grants().map(Grant::expected)
    }

    fn able_to_have(&self, fence: Fence) -> usize {
        self.grants().filter(|grant| grant.can_have(fence)).count()
    }

    fn decide(&mut self, step: Step) {
        self.decided = true;
        self.decision = Some(step);
    }
}

impl Grant {
    fn of(stored: Fence) -> Self {
        Self { stored, told: None, refused: None }
    }

    /// What the node has once it has answered, if it takes what it was told.
    fn expected(self) -> Fence {
        self.told.unwrap_or(self.stored)
    }

    fn can_have(self, fence: Fence) -> bool {
        let takes = self.refused.is_none_or(|refused| fence < refused);
        self.expected() == fence || (self.expected() < fence && takes)
    }

    /// The node is known to have had exactly this one while the token held it. That counts, whatever it was told since.
    fn has(self, fence: Fence) -> bool {
        self.stored == fence
    }

    fn is_to_be_told(self, fence: Fence) -> bool {
        self.told.is_none() && self.stored < fence && self.can_have(fence)
    }
}
