use super::Majority;

/// One node's part in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ballot<Y> {
    Pending,
    Yes(Y),
    No,
    Silent,
}

/// The ballots of one round and whether they decide it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tally<Y> {
    majority: Majority,
    ballots: Vec<Ballot<Y>>,
}

/// Why no majority can be had any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lost {
    /// Too many nodes said no: whatever the silent ones think, it would not have been enough.
    Refused,
    /// Nodes that did not vote could have made the difference.
    Silence,
}

impl<Y: Copy> Tally<Y> {
    pub(super) fn new(majority: Majority) -> Self {
        Self { majority, ballots: vec![Ballot::Pending; majority.nodes()] }
    }

    pub(super) fn majority(&self) -> Majority {
        self.majority
    }

    /// Takes down a node's ballot. Only the first of each node counts.
    pub(super) fn cast(&mut self, node: usize, ballot: Ballot<Y>) {
        if let Some(slot @ Ballot::Pending) = self.ballots.get_mut(node) {
            *slot = ballot;
        }
    }

    /// Changes what a node said before.
    pub(super) fn recast(&mut self, node: usize, ballot: Ballot<Y>) {
        if let Some(slot) = self.ballots.get_mut(node) {
            *slot = ballot;
        }
    }

    pub(super) fn ballot(&self, node: usize) -> Ballot<Y> {
        self.ballots[node]
    }

    /// What a node that said yes said.
    pub(super) fn of(&self, node: usize) -> Option<Y> {
        match self.ballots.get(node) {
            Some(Ballot::Yes(what)) => Some(*what),
            _ => None,
        }
    }

    pub(super) fn yes(&self) -> impl Iterator<Item = (usize, Y)> {
        self.ballots.iter().enumerate().filter_map(|(node, ballot)| match ballot {
            Ballot::Yes(what) => Some((node, *what)),
            _ => None,
        })
    }

    pub(super) fn no(&self) -> impl Iterator<Item = usize> {
        let ballots = self.ballots.iter().enumerate();
        ballots.filter(|(_, ballot)| matches!(ballot, Ballot::No)).map(|(node, _)| node)
    }

    pub(super) fn count(&self, wanted: impl Fn(&Ballot<Y>) -> bool) -> usize {
        self.ballots.iter().filter(|ballot| wanted(ballot)).count()
    }

    pub(super) fn pending(&self) -> usize {
        self.count(|ballot| matches!(ballot, Ballot::Pending))
    }

    pub(super) fn has_majority(&self) -> bool {
        self.yes().count() >= self.majority.size()
    }

    /// Whether so many nodes do not vote that the others are no majority.
    pub(super) fn is_silent(&self) -> bool {
        self.count(|ballot| matches!(ballot, Ballot::Silent)) > self.majority.spare()
    }

    /// Why a majority of yes is out of reach, if it is.
    pub(super) fn lost(&self) -> Option<Lost> {
        let no = self.count(|ballot| matches!(ballot, Ballot::No));
        let silent = self.count(|ballot| matches!(ballot, Ballot::Silent));
        if no > self.majority.spare() {
            Some(Lost::Refused)
        } else if no + silent > self.majority.spare() {
            Some(Lost::Silence)
        } else {
            None
        }
    }
}
