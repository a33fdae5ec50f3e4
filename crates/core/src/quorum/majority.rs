/// The majority of N configured nodes: N/2 + 1 of all nodes, however few of them answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Majority {
    nodes: usize,
}

impl Majority {
    /// Returns the majority of `nodes` nodes; `None` for zero nodes.
    pub const fn of(nodes: usize) -> Option<Self> {
        if nodes == 0 { None } else { Some(Self { nodes }) }
    }

    /// The number of nodes: N.
    pub const fn nodes(self) -> usize {
        self.nodes
    }

    /// The number of nodes that decide: N/2 + 1.
    pub const fn size(self) -> usize {
        self.nodes / 2 + 1
    }

    /// How many nodes may be missing while the other nodes are still a majority.
    pub const fn spare(self) -> usize {
        self.nodes - self.size()
    }
}

/// One node's ballot in a round. Each round maps the replies of its command to ballots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ballot<Y> {
    /// The request is unanswered.
    Pending,
    /// The node granted, extended or released the lock.
    Yes(Y),
    /// The node refused.
    No,
    /// No vote: no answer in time, an error, or an abstention (`-ABSTAIN`).
    Silent,
}

impl From<Option<bool>> for Ballot<()> {
    /// The ballot of a node that holds the lock, does not hold it, or did not vote.
    fn from(held: Option<bool>) -> Self {
        match held {
            Some(true) => Self::Yes(()),
            Some(false) => Self::No,
            None => Self::Silent,
        }
    }
}

/// The ballots of one round, and whether they decide it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tally<Y> {
    majority: Majority,
    ballots: Vec<Ballot<Y>>,
}

impl<Y: Copy> Tally<Y> {
    pub(super) fn new(majority: Majority) -> Self {
        Self { majority, ballots: vec![Ballot::Pending; majority.nodes()] }
    }

    pub(super) fn majority(&self) -> Majority {
        self.majority
    }

    /// Records a node's ballot. Only a node's first ballot counts.
    pub(super) fn cast(&mut self, node: usize, ballot: Ballot<Y>) {
        if let Some(slot @ Ballot::Pending) = self.ballots.get_mut(node) {
            *slot = ballot;
        }
    }

    /// Replaces a node's ballot.
    pub(super) fn recast(&mut self, node: usize, ballot: Ballot<Y>) {
        if let Some(slot) = self.ballots.get_mut(node) {
            *slot = ballot;
        }
    }

    /// The value of a node's yes; `None` for any other ballot.
    pub(super) fn yes_of(&self, node: usize) -> Option<Y> {
        match self.ballots.get(node) {
            Some(Ballot::Yes(value)) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn yes(&self) -> impl Iterator<Item = (usize, Y)> {
        self.ballots.iter().enumerate().filter_map(|(node, ballot)| match ballot {
            Ballot::Yes(value) => Some((node, *value)),
            _ => None,
        })
    }

    pub(super) fn no(&self) -> impl Iterator<Item = usize> {
        let ballots = self.ballots.iter().enumerate();
        ballots.filter(|(_, ballot)| matches!(ballot, Ballot::No)).map(|(node, _)| node)
    }

    pub(super) fn pending(&self) -> usize {
        self.ballots.iter().filter(|ballot| matches!(ballot, Ballot::Pending)).count()
    }

    pub(super) fn has_majority(&self) -> bool {
        self.yes().count() >= self.majority.size()
    }

    /// Whether the refusals alone rule out a majority of yes.
    pub(super) fn is_refused(&self) -> bool {
        self.no().count() > self.majority.spare()
    }

    /// Whether the refusals and the silent nodes rule out a majority of yes.
    pub(super) fn is_out_of_reach(&self) -> bool {
        self.yes().count() + self.pending() < self.majority.size()
    }
}
