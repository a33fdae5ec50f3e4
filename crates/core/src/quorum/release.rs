use super::majority::{Majority, Tally};

/// One release round: RELEASE to all nodes that were sent a request, decided by a majority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseRound {
    tally: Tally<()>,
    verdict: Option<ReleaseVerdict>,
}

/// The verdict of a release round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseVerdict {
    /// The token held the lock, and no longer holds it on a majority of the nodes.
    Released,
    /// The lock had already ended.
    AlreadyOver,
    /// Too few nodes answered. The lock ends by its deadline at the latest.
    Unconfirmed,
}

impl ReleaseRound {
    /// Starts a round without answers.
    pub fn new(majority: Majority) -> Self {
        Self { tally: Tally::new(majority), verdict: None }
    }

    /// Records whether a node says that the token held the lock; `None` if the node did not vote.
    ///
    /// Returns the verdict if this answer decides the round.
    pub fn answer(&mut self, node: usize, held: Option<bool>) -> Option<ReleaseVerdict> {
        self.tally.cast(node, held.into());
        if self.verdict.is_some() {
            return None;
        }
        let released = self.tally.yes().count();
        // Nodes on which the token did not hold the lock.
        let missing = self.tally.no().count();
        let majority = self.tally.majority();
        self.verdict = if released >= majority.size() {
            Some(ReleaseVerdict::Released)
        } else if missing > majority.spare() && released + missing >= majority.size() {
            Some(ReleaseVerdict::AlreadyOver)
        } else if self.tally.pending() == 0 {
            Some(self.without_the_rest())
        } else {
            None
        };
        self.verdict
    }

    /// The verdict; `None` if the round is undecided.
    pub fn verdict(&self) -> Option<ReleaseVerdict> {
        self.verdict
    }

    /// Ends the round because the nodes' time is over, and returns the verdict.
    pub fn expire(&mut self) -> ReleaseVerdict {
        *self.verdict.get_or_insert(self.without_the_rest())
    }

    /// The verdict if no other node answers.
    fn without_the_rest(&self) -> ReleaseVerdict {
        let free = self.tally.yes().count() + self.tally.no().count();
        if free >= self.tally.majority().size() {
            ReleaseVerdict::Released
        } else {
            ReleaseVerdict::Unconfirmed
        }
    }
}
