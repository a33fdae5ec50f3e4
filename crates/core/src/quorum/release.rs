use super::Majority;
use super::tally::{Ballot, Tally};

/// Giving a lock back: RELEASE to all nodes that were asked for it, over as soon as a majority has answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Release {
    tally: Tally<()>,
    verdict: Option<ReleaseVerdict>,
}

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseVerdict {
    /// The lock was held, and is held no more.
    Released,
    /// The lock had ended before.
    AlreadyOver,
    /// Too few nodes answered to say. It ends by its deadline at the latest.
    Unconfirmed,
}

impl Release {
    /// A release that nobody has answered yet.
    pub fn new(majority: Majority) -> Self {
        Self { tally: Tally::new(majority), verdict: None }
    }

    /// Takes down a node's answer: whether the token held the lock there, or `None` if there was no answer. Returns the
    /// verdict when this answer made it.
    pub fn answer(&mut self, node: usize, held: Option<bool>) -> Option<ReleaseVerdict> {
        self.tally.cast(
            node,
            match held {
                Some(true) => Ballot::Yes(()),
                Some(false) => Ballot::No,
                None => Ballot::Silent,
            },
        );
        if self.verdict.is_some() {
            return None;
        }
        let released = self.tally.yes().count();
        // Where it is not, and was not until now.
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

    /// Decides without those that have not answered, if it is not decided yet: the nodes' time is over.
    pub fn time_is_up(&mut self) -> ReleaseVerdict {
        *self.verdict.get_or_insert(self.without_the_rest())
    }

    /// What it is if nobody else answers: whether a majority is known not to have the lock any more.
    fn without_the_rest(&self) -> ReleaseVerdict {
        let free = self.tally.yes().count() + self.tally.no().count();
        if free >= self.tally.majority().size() {
            ReleaseVerdict::Released
        } else {
            ReleaseVerdict::Unconfirmed
        }
    }
}
