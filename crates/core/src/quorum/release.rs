use super::Majority;
use super::tally::{Ballot, Tally};

/// Giving a lock back: RELEASE to all nodes, over as soon as a majority has answered.
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
        let size = self.tally.majority().size();
        let released = self.tally.yes().count();
        let answered = released + self.tally.count(|ballot| matches!(ballot, Ballot::No));
        self.verdict = if released >= size {
            Some(ReleaseVerdict::Released)
        } else if answered >= size && answered - released > self.tally.majority().spare() {
            Some(ReleaseVerdict::AlreadyOver)
        } else if self.tally.pending() == 0 {
            Some(match (answered >= size, released) {
                (false, _) => ReleaseVerdict::Unconfirmed,
                (true, 0) => ReleaseVerdict::AlreadyOver,
                (true, _) => ReleaseVerdict::Released,
            })
        } else {
            None
        };
        self.verdict
    }
}
